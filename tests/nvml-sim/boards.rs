//! What boards, MIG profiles and vGPU types are, as far as NVIDIA documents it.
//!
//! The tables hold the facts that the catalogue of `src/domain` holds too, which names their sources, and
//! beside them the driver's own numbers. They are kept apart, so that a wrong row in one is not right by the
//! other. An empty cell is not known, and the library answers 0 there; a scenario can say more. Ids of vGPU
//! types are made up, by the row; PCI device ids of boards without MIG are recalled.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Error};

/// A type of board.
#[derive(Debug, Deserialize)]
pub(crate) struct BoardType {
    pub(crate) r#type: String,
    pub(crate) name: String,
    pub(crate) memory_mib: u64,
    /// NVML's number of the architecture.
    pub(crate) architecture: u32,
    /// Compute slices, which is as many MIG devices as it can have; `None`: it has no MIG.
    #[serde(rename = "slices")]
    pub(crate) mig_slots: Option<u32>,
    /// PCI device id, hexadecimal.
    #[serde(deserialize_with = "hexadecimal")]
    pub(crate) device_id: u32,
}

/// A MIG profile of a board.
#[derive(Debug, Deserialize)]
pub(crate) struct Profile {
    pub(crate) board: String,
    pub(crate) profile: String,
    /// Its place in the enumeration.
    pub(crate) index: Option<u32>,
    /// The driver's number.
    pub(crate) id: Option<u32>,
    pub(crate) slices: u32,
    pub(crate) max: u32,
    pub(crate) sms: Option<u32>,
    pub(crate) memory_mib: Option<u64>,
    pub(crate) decoders: Option<u32>,
    pub(crate) encoders: Option<u32>,
    pub(crate) jpegs: Option<u32>,
    pub(crate) ofas: Option<u32>,
    pub(crate) copy_engines: Option<u32>,
    /// Memory slots that it can start in.
    #[serde(deserialize_with = "numbers")]
    pub(crate) starts: Vec<u32>,
    /// Memory slots that it takes.
    pub(crate) size: u32,
}

impl Profile {
    /// What the instance has, or the nominal size where that is not known.
    pub(crate) fn memory_mib(&self) -> u64 {
        let nominal = || {
            let (_, after) = self.profile.split_once("g.")?;
            let (gigabytes, _) = after.split_once("gb")?;
            Some(gigabytes.parse::<u64>().ok()? * 1_024)
        };
        self.memory_mib.or_else(nominal).unwrap_or(0)
    }
}

/// A type of vGPU.
#[derive(Debug, Deserialize)]
pub(crate) struct VgpuType {
    pub(crate) id: u32,
    pub(crate) r#type: String,
    pub(crate) framebuffer_mib: u64,
    /// The profile of the GPU instance that it runs in.
    #[serde(deserialize_with = "word")]
    pub(crate) gi_profile: Option<String>,
    pub(crate) max: Option<u32>,
    pub(crate) license: String,
}

static BOARDS: LazyLock<BTreeMap<String, BoardType>> = LazyLock::new(|| {
    rows(include_str!("boards.csv")).map(|row: BoardType| (row.r#type.clone(), row)).collect()
});
static PROFILES: LazyLock<Vec<Profile>> = LazyLock::new(|| rows(include_str!("mig-profiles.csv")).collect());
static VGPU_TYPES: LazyLock<Vec<VgpuType>> = LazyLock::new(|| rows(include_str!("vgpu-types.csv")).collect());

pub(crate) fn board(name: &str) -> Option<&'static BoardType> {
    BOARDS.get(name)
}

/// The profiles of a board whose number is known.
pub(crate) fn profiles(board: &str) -> impl Iterator<Item = &'static Profile> {
    PROFILES.iter().filter(move |profile| profile.board == board && profile.id.is_some())
}

pub(crate) fn profile(board: &str, name: &str) -> Option<&'static Profile> {
    profiles(board).find(|profile| profile.profile == name)
}

pub(crate) fn profile_by_id(board: &str, id: u32) -> Option<&'static Profile> {
    profiles(board).find(|profile| profile.id == Some(id))
}

pub(crate) fn vgpu_type(name: &str) -> Option<&'static VgpuType> {
    VGPU_TYPES.iter().find(|kind| kind.r#type == name)
}

pub(crate) fn vgpu_type_by_id(id: u32) -> Option<&'static VgpuType> {
    VGPU_TYPES.iter().find(|kind| kind.id == id)
}

/// Rows of a table of ours: one that cannot be read is left out, and missed by the test that counts them.
fn rows<T: DeserializeOwned>(table: &'static str) -> impl Iterator<Item = T> {
    csv::Reader::from_reader(table.as_bytes()).into_deserialize().filter_map(Result::ok)
}

fn numbers<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<u32>, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.split_ascii_whitespace().map(|word| word.parse().map_err(D::Error::custom)).collect()
}

fn hexadecimal<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let text = String::deserialize(deserializer)?;
    u32::from_str_radix(&text, 16).map_err(D::Error::custom)
}

fn word<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let text = String::deserialize(deserializer)?;
    Ok((!text.is_empty()).then_some(text))
}
