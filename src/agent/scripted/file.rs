//! A fleet file as it is written: TOML, in which no key is unknown and no number has a point.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

/// A fleet.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FleetFile {
    pub(super) seed: u64,
    /// RFC 3339, whole seconds; lengths of time count from here.
    pub(super) start: String,
    pub(super) driver: Option<String>,
    #[serde(rename = "node")]
    pub(super) nodes: Vec<Spanned<NodeFile>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeFile {
    pub(super) name: String,
    #[serde(rename = "device")]
    pub(super) devices: Vec<Spanned<DeviceFile>>,
    #[serde(rename = "habit", default)]
    pub(super) habits: Vec<Spanned<HabitFile>>,
    #[serde(rename = "fault", default)]
    pub(super) faults: Vec<Spanned<FaultFile>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeviceFile {
    pub(super) model: String,
    /// Without it, what the catalogue says of the model.
    pub(super) memory_mib: Option<u32>,
    /// Without it, one that the seed gives.
    pub(super) uuid: Option<String>,
    pub(super) serial: Option<String>,
    pub(super) pci: Option<String>,
    pub(super) mode: String,
    #[serde(default)]
    pub(super) layout: Vec<PartFile>,
    /// Of `time_slicing` only; without it, holders share evenly.
    pub(super) replicas: Option<u32>,
    /// Of vGPUs only.
    pub(super) scheduler: Option<String>,
    /// `slice`, `holder` or `none`: what is measured apart.
    pub(super) meters: Option<String>,
    pub(super) watts: WattsFile,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WattsFile {
    pub(super) idle: u32,
    pub(super) busy: u32,
}

/// A MIG instance, a number of vGPUs, or a MIG instance with vGPUs on it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PartFile {
    pub(super) profile: Option<String>,
    pub(super) start: Option<u16>,
    pub(super) vgpu: Option<String>,
    pub(super) count: Option<u16>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HabitFile {
    /// Evidence by its words. `{n}` is the number of the stay, `{on}` what is held.
    pub(super) who: BTreeMap<String, String>,
    /// `device`, `device.part` or `device.part.vgpu`, each counted from 0.
    pub(super) on: Vec<String>,
    pub(super) from: Option<String>,
    pub(super) until: Option<String>,
    /// When it is there.
    pub(super) hours: Option<Vec<String>>,
    pub(super) bursts: Option<BurstsFile>,
    /// When it is busy, of the time when it is there; else it is idle.
    pub(super) busy_hours: Option<Vec<String>>,
    /// Per mille of SM activity.
    pub(super) busy: u16,
    #[serde(default)]
    pub(super) idle: u16,
    #[serde(default)]
    pub(super) memory_mib: u32,
    /// Of `mps` only.
    pub(super) percent: Option<u32>,
    pub(super) limit_mib: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BurstsFile {
    pub(super) every: String,
    pub(super) lasts: String,
    pub(super) at_most: Option<String>,
    /// Per mille of the slots.
    pub(super) chance: u16,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FaultFile {
    /// After the start, or RFC 3339.
    pub(super) at: String,
    pub(super) kind: FaultKind,
    pub(super) device: Option<usize>,
    #[serde(rename = "for")]
    pub(super) lasts: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) layout: Option<Vec<PartFile>>,
    pub(super) scheduler: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FaultKind {
    /// The device cannot be reached for a while, and nothing runs on it.
    Lost,
    /// It has another layout, or another scheduler, from then on.
    Reconfigure,
    /// Holders cannot be seen for a while.
    HoldersHidden,
    /// Its counters begin anew: what they measured around that instant is gone.
    CountersReset,
    /// The first sample from then on measures so much of the past once more.
    BufferReplayed,
}
