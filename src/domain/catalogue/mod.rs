//! What boards, MIG profiles and vGPU types are: how much of a board each is, and where it fits.
//!
//! Owns the embedded tables (`boards.csv`, `mig.csv`, `vgpu.csv`; each row with its source and how sure it is), the
//! operator's rows beside them, and how names are matched. A profile that is not here is unknown, never guessed.
//!
//! Does not own: shares (`share`), what is done with an unknown profile (`allocation`), the operator's file
//! (`services`).
//!
//! Always true here: profiles fit their board; no spelling of a model means two boards; memory is MiB, power mW.

mod embedded;
mod names;
mod rows;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::LazyLock;

pub use names::{ProfileName, Series, VgpuTypeName};
pub use rows::{BoardRow, CatalogueError, CatalogueFault, CatalogueRows, ProfileRow};

use super::ids::Name;
use names::model_key;

/// Drivers round a profile's memory differently: what one calls 7g.80gb is 7g.79gb for another.
const GIGABYTES_OFF_MAX: u16 = 1;

/// Where a row comes from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Provenance {
    /// The document or listing.
    pub source: String,
    /// How sure it is: read there, derived, or recalled.
    pub confidence: String,
}

/// A board model. Of a board with several GPUs, one of them, as the driver shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Board {
    /// The catalogue's own name for it.
    pub key: Name,
    /// Product names, such as the driver's.
    pub names: Vec<Name>,
    /// Nominal memory in MiB.
    pub memory_mib: u32,
    /// Power without load in mW, where somebody measured it.
    pub baseline_milliwatts: Option<u32>,
    /// How it can be cut by MIG; `None`: it cannot, or that is not known.
    pub mig: Option<MigBoard>,
    /// Where the row comes from.
    pub provenance: Provenance,
}

/// How a board can be cut by MIG.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigBoard {
    /// Compute slices of the board.
    pub compute_slices: u16,
    /// Memory slots of the board, in which instances are placed.
    pub memory_slots: u16,
    /// The profiles, by name.
    pub profiles: Vec<MigProfile>,
}

/// The media engines of a MIG profile, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Media {
    /// The name says nothing of them.
    None,
    /// `+me`: those that one instance can have.
    One,
    /// `+me.all`: all of the board's.
    All,
    /// `-me`: none of them.
    Without,
}

/// A MIG GPU instance profile of one board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigProfile {
    /// Its name, such as `1g.10gb+me`.
    pub name: Name,
    /// Compute slices, of the board's.
    pub compute_slices: u16,
    /// Memory slots that it counts for, of the board's.
    pub memory_slots: u16,
    /// The slots at which it may begin, ascending; empty: not known.
    pub starts: Vec<u16>,
    /// The slots that it takes from its start on.
    pub length: u16,
    /// How many fit on an otherwise empty board.
    pub max_instances: u16,
    /// Memory in MiB that an instance reports, less than its name says.
    pub memory_mib: Option<u32>,
    /// Its media engines.
    pub media: Media,
    /// Where the row comes from.
    pub provenance: Provenance,
}

/// A vGPU type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VgpuType {
    /// Its name without the vendor, such as `H100-20C`.
    pub name: Name,
    /// The code of the board in type names, such as `H100XM`.
    pub board_code: Name,
    /// Nominal memory of the board in MiB; some types have more framebuffer than that.
    pub board_memory_mib: u32,
    /// Framebuffer in MiB, which can differ from what the name says.
    pub framebuffer_mib: u32,
    /// The MIG profile on which it runs; `None`: time-sliced on the whole GPU.
    pub gi_profile: Option<Name>,
    /// How many of it a GPU takes; where it runs on a MIG profile, how many a GPU instance takes.
    pub max: u16,
    /// How many of it a GPU takes beside types of other sizes, where that is known.
    pub max_mixed: Option<u16>,
    /// Where the row comes from.
    pub provenance: Provenance,
}

/// All that is known of boards, MIG profiles and vGPU types.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Catalogue {
    boards: BTreeMap<Name, Board>,
    /// Every spelling of a model that is known, as `model_key` makes it.
    models: BTreeMap<String, Name>,
    /// By the name as `VgpuTypeName` shows it.
    vgpus: BTreeMap<String, VgpuType>,
}

impl Catalogue {
    /// The catalogue that comes with this program.
    #[must_use]
    pub fn embedded() -> &'static Self {
        static EMBEDDED: LazyLock<Catalogue> = LazyLock::new(embedded::read);
        &EMBEDDED
    }

    /// The board of a model as an inventory writes it: case, spaces, hyphens, underscores and a leading `NVIDIA ` do
    /// not matter.
    #[must_use]
    pub fn board(&self, model: &Name) -> Option<&Board> {
        self.boards.get(self.models.get(&model_key(model.as_str()))?)
    }

    /// All boards, by key.
    pub fn boards(&self) -> impl Iterator<Item = &Board> {
        self.boards.values()
    }

    /// The profile of a GPU instance, or of the GPU instance that a compute instance is part of.
    ///
    /// Where no name is equal, the one whose memory differs by a gigabyte is meant; none, if two do.
    #[must_use]
    pub fn mig_profile(&self, model: &Name, profile: &str) -> Option<(&MigBoard, &MigProfile)> {
        let mig = self.board(model)?.mig.as_ref()?;
        let wanted = ProfileName::parse(profile)?.gpu_instance();
        let mut near = Vec::new();
        for each in &mig.profiles {
            let Some(name) = ProfileName::parse(each.name.as_str()) else { continue };
            if name == wanted {
                return Some((mig, each));
            }
            let alike = (name.slices, &name.suffix) == (wanted.slices, &wanted.suffix);
            if alike && name.gigabytes.abs_diff(wanted.gigabytes) <= GIGABYTES_OFF_MAX {
                near.push(each);
            }
        }
        match near.as_slice() {
            [only] => Some((mig, only)),
            _ => None,
        }
    }

    /// A vGPU type, in any spelling that [`VgpuTypeName`] reads.
    #[must_use]
    pub fn vgpu(&self, type_name: &str) -> Option<&VgpuType> {
        self.vgpus.get(&VgpuTypeName::parse(type_name)?.to_string())
    }

    /// The time-sliced types of a board, the largest framebuffer first, then by name.
    pub fn vgpu_types_of(&self, board_code: &Name) -> impl Iterator<Item = &VgpuType> {
        let of_board = |each: &&VgpuType| {
            each.gi_profile.is_none() && each.board_code.as_str().eq_ignore_ascii_case(board_code.as_str())
        };
        let mut types: Vec<&VgpuType> = self.vgpus.values().filter(of_board).collect();
        types.sort_by_key(|each| (Reverse(each.framebuffer_mib), &each.name));
        types.into_iter()
    }

    /// All vGPU types, by board code, then the largest framebuffer first.
    pub fn vgpu_types(&self) -> impl Iterator<Item = &VgpuType> {
        let mut types: Vec<&VgpuType> = self.vgpus.values().collect();
        types.sort_by_key(|each| {
            (&each.board_code, each.gi_profile.is_some(), Reverse(each.framebuffer_mib), &each.name)
        });
        types.into_iter()
    }

    /// This catalogue with an operator's rows in it; theirs win over those of the same key.
    ///
    /// # Errors
    /// [`CatalogueError`] names the row and the field that break a rule.
    pub fn extended(&self, rows: &CatalogueRows) -> Result<Self, CatalogueError> {
        rows::extended(self, rows)
    }

    /// All rows as text, a line each, in an order that depends on them alone: equal texts are equal catalogues.
    #[must_use]
    pub fn content_hash_input(&self) -> String {
        let mut text = String::new();
        for board in self.boards() {
            let names = board.names.iter().map(Name::as_str).collect::<Vec<_>>().join(";");
            let (watts, from) = (shown(board.baseline_milliwatts), &board.provenance);
            let mig = board.mig.as_ref();
            let (compute, slots) = (mig.map(|mig| mig.compute_slices), mig.map(|mig| mig.memory_slots));
            line(
                &mut text,
                &[
                    &"board",
                    &board.key,
                    &names,
                    &board.memory_mib,
                    &shown(compute),
                    &shown(slots),
                    &watts,
                    &from.confidence,
                    &from.source,
                ],
            );
            for each in mig.iter().flat_map(|mig| &mig.profiles) {
                let starts = each.starts.iter().map(u16::to_string).collect::<Vec<_>>().join(" ");
                let (memory, from) = (shown(each.memory_mib), &each.provenance);
                line(
                    &mut text,
                    &[
                        &"profile",
                        &board.key,
                        &each.name,
                        &each.compute_slices,
                        &each.memory_slots,
                        &starts,
                        &each.length,
                        &each.max_instances,
                        &memory,
                        &from.confidence,
                        &from.source,
                    ],
                );
            }
        }
        for each in self.vgpu_types() {
            let (profile, from) = (shown(each.gi_profile.as_ref()), &each.provenance);
            let mixed = shown(each.max_mixed);
            line(
                &mut text,
                &[
                    &"vgpu",
                    &each.name,
                    &each.board_code,
                    &each.board_memory_mib,
                    &each.framebuffer_mib,
                    &profile,
                    &each.max,
                    &mixed,
                    &from.confidence,
                    &from.source,
                ],
            );
        }
        text
    }
}

fn shown(value: Option<impl fmt::Display>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// A line with its fields separated by tabs, which no name has.
fn line(text: &mut String, fields: &[&dyn fmt::Display]) {
    for (number, field) in fields.iter().enumerate() {
        let separator = if number == 0 { "" } else { "\t" };
        let _never_fails = write!(text, "{separator}{field}");
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sha2::{Digest, Sha256};

    use super::*;

    fn name(text: &str) -> Name {
        Name::parse(text).unwrap()
    }

    fn board(model: &str) -> Option<&'static str> {
        Catalogue::embedded().board(&name(model)).map(|board| board.key.as_str())
    }

    fn mig(model: &str, profile: &str) -> Option<&'static MigProfile> {
        Catalogue::embedded().mig_profile(&name(model), profile).map(|(_, profile)| profile)
    }

    fn vgpu(type_name: &str) -> Option<&'static VgpuType> {
        Catalogue::embedded().vgpu(type_name)
    }

    // The embedded tables.

    #[test]
    fn every_embedded_row_is_read() {
        let lines = |text: &str| text.lines().count() - 1;
        let all = Catalogue::embedded();
        let profiles = |board: &Board| board.mig.iter().map(|mig| mig.profiles.len()).sum::<usize>();
        assert_eq!(all.boards().count(), lines(include_str!("boards.csv")));
        assert_eq!(all.boards().map(profiles).sum::<usize>(), lines(include_str!("mig.csv")));
        assert_eq!(all.vgpu_types().count(), lines(include_str!("vgpu.csv")));
        assert_eq!(all.content_hash_input().lines().count(), 23 + 120 + 248);
    }

    /// Whoever changes a row sees it here: shares, and so bills, depend on it.
    #[test]
    fn the_embedded_tables_change_on_purpose_only() {
        let hash = Sha256::digest(Catalogue::embedded().content_hash_input());
        let shown: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(shown, "0e937aaf211fb2ee");
    }

    #[test]
    fn every_spelling_of_a_board_means_that_board_alone() {
        let mut owners = BTreeMap::new();
        for board in Catalogue::embedded().boards() {
            assert!(!board.provenance.source.is_empty() && !board.provenance.confidence.is_empty());
            for name in board.names.iter().chain([&board.key]) {
                let owner = owners.insert(model_key(name.as_str()), &board.key);
                assert!(owner.is_none_or(|owner| *owner == board.key), "{name} is {owner:?} too");
            }
        }
    }

    #[test]
    fn a_profile_name_says_the_memory_that_its_slots_are() {
        for board in Catalogue::embedded().boards() {
            for (mig, profile) in
                board.mig.iter().flat_map(|mig| mig.profiles.iter().map(move |each| (mig, each)))
            {
                let name = ProfileName::parse(profile.name.as_str()).unwrap();
                assert_eq!(name.to_string(), profile.name.as_str(), "{}", board.key);
                assert_eq!(profile.length, profile.memory_slots, "{} {name}", board.key);
                let slots = board.memory_mib * u32::from(profile.memory_slots) / u32::from(mig.memory_slots);
                let named = u32::from(name.gigabytes) * 1024;
                assert!(named.abs_diff(slots) <= 1536, "{} {name} has {slots} MiB by its slots", board.key);
            }
        }
    }

    #[test]
    fn a_vgpu_type_is_what_its_name_says() {
        let mut other = Vec::new();
        for each in Catalogue::embedded().vgpu_types() {
            let read = VgpuTypeName::parse(each.name.as_str()).unwrap();
            assert_eq!(read.to_string(), each.name.as_str());
            assert_eq!(read.board, each.board_code, "{}", each.name);
            if read.framebuffer_mib() != each.framebuffer_mib {
                other.push((each.name.as_str(), each.framebuffer_mib / 1024));
            }
            if each.gi_profile.is_none() && !each.name.as_str().ends_with("-141C") {
                let sold = each.framebuffer_mib * u32::from(each.max);
                assert!(sold <= each.board_memory_mib + 1024, "{} sells {sold} MiB", each.name);
            }
        }
        // The table's own figures, and the driver's too.
        assert_eq!(other, [("H200-141C", 144), ("H200-70C", 71), ("H200X-141C", 144), ("H200X-70C", 71)]);
    }

    #[test]
    fn the_gpu_instance_of_a_vgpu_type_is_a_profile_of_its_board() {
        let boards = [
            ("A100", "A100-40GB"),
            ("A100D", "A100-80GB"),
            ("A30", "A30-24GB"),
            ("DC", "RTX-PRO-6000-Blackwell-96GB"),
            ("H100", "H100-80GB"),
            ("H100L", "H100-94GB"),
            ("H100XL", "H100-94GB"),
            ("H100XM", "H100-80GB"),
            ("H100XS", "H100-64GB"),
            ("H200", "H200-141GB"),
            ("H200X", "H200-141GB"),
        ];
        for each in Catalogue::embedded().vgpu_types() {
            let Some(profile) = &each.gi_profile else { continue };
            let (_, key) = boards.iter().find(|(code, _)| *code == each.board_code.as_str()).unwrap();
            let profile = mig(key, profile.as_str()).unwrap_or_else(|| panic!("{} runs on none", each.name));
            assert_eq!(Some(&profile.name), each.gi_profile.as_ref(), "{}", each.name);
        }
    }

    // Look-ups.

    #[test]
    fn a_model_is_found_by_each_of_its_names() {
        let check = |model: &str, key: Option<&str>| assert_eq!(board(model), key, "{model}");
        check("H100-80GB", Some("H100-80GB"));
        check("NVIDIA H100 80GB HBM3", Some("H100-80GB"));
        check("NVIDIA-H100-80GB-HBM3", Some("H100-80GB"));
        check("h100_80gb", Some("H100-80GB"));
        check("nvidia h100 pcie", Some("H100-80GB"));
        check("NVIDIA H100 NVL", Some("H100-94GB"));
        check("NVIDIA GH200 480GB", Some("H100-96GB"));
        check("NVIDIA H20", Some("H100-96GB"));
        check("NVIDIA A100-SXM4-80GB", Some("A100-80GB"));
        check("A100 80GB PCIe", Some("A100-80GB"));
        check("NVIDIA A800-SXM4-80GB", Some("A100-80GB"));
        check("NVIDIA A100-PCIE-40GB", Some("A100-40GB"));
        check("A30", Some("A30-24GB"));
        check("NVIDIA H200 NVL", Some("H200-141GB"));
        check("NVIDIA RTX PRO 6000 Blackwell Server Edition", Some("RTX-PRO-6000-Blackwell-96GB"));
        check("Tesla T4", Some("T4"));
        check("NVIDIA L40S", Some("L40S"));
        // A name that several boards have is none's.
        check("NVIDIA A100", None);
        check("NVIDIA H100", None);
        check("NVIDIA", None);
        check("MI300X", None);
    }

    #[test]
    fn a_profile_is_what_the_driver_lists() {
        let h100 = mig("NVIDIA H100 PCIe", "3g.40gb").unwrap();
        assert_eq!((h100.compute_slices, h100.memory_slots, h100.length), (3, 4, 4));
        assert_eq!((h100.starts.as_slice(), h100.max_instances), ([0, 4].as_slice(), 2));
        let double = mig("H100-80GB", "1g.20gb").unwrap();
        assert_eq!((double.compute_slices, double.memory_slots, double.max_instances), (1, 2, 4));
        assert_eq!(double.starts, [0, 2, 4, 6]);
        let four = mig("A100-80GB", "4g.40gb").unwrap();
        assert_eq!(
            (four.starts.as_slice(), four.max_instances, four.memory_mib),
            ([0].as_slice(), 1, Some(40_192))
        );
        let a30 = mig("A30", "2g.12gb+me").unwrap();
        assert_eq!((a30.compute_slices, a30.memory_slots, a30.media), (2, 2, Media::One));
        let all = mig("RTX-PRO-6000-Blackwell-96GB", "mig-1g.24gb.me.all").unwrap();
        assert_eq!((all.media, all.max_instances), (Media::All, 1));
        assert_eq!(mig("RTX-PRO-6000-Blackwell-96GB", "1g.24gb-me").unwrap().media, Media::Without);
        assert_eq!(mig("RTX-PRO-6000-Blackwell-96GB", "1g.24gb+gfx").unwrap().media, Media::None);
        let (board, _) = Catalogue::embedded().mig_profile(&name("A30"), "1g.6gb").unwrap();
        assert_eq!((board.compute_slices, board.memory_slots), (4, 4));
        // Its placements are in no document.
        assert!(mig("RTX-PRO-5000-Blackwell-48GB", "2g.48gb").unwrap().starts.is_empty());
    }

    #[test]
    fn a_profile_may_be_off_by_a_gigabyte_and_no_more() {
        let check = |model: &str, profile: &str, found: Option<&str>| {
            assert_eq!(mig(model, profile).map(|each| each.name.as_str()), found, "{model} {profile}");
        };
        check("H100-80GB", "7g.79gb", Some("7g.80gb"));
        check("H100-80GB", "1c.7g.79gb", Some("7g.80gb"));
        check("H100-80GB", "1c.3g.40gb", Some("3g.40gb"));
        check("H100-80GB", "MIG 1g.10gb+me", Some("1g.10gb+me"));
        check("H100-80GB", "7g.78gb", None);
        // An equal name wins over a near one, and the suffix is never off.
        check("A100-40GB", "1g.5gb+me", Some("1g.5gb+me"));
        check("A100-40GB", "2g.10gb+me", None);
        check("H100-80GB", "1g.10gb+gfx", None);
        check("H100-80GB", "5g.40gb", None);
        check("L40S", "1g.10gb", None);
        check("MI300X", "1g.10gb", None);
    }

    #[test]
    fn of_two_profiles_that_are_near_neither_is_meant() {
        let profile = |gigabytes: u16| ProfileRow {
            board: name("A30"),
            name: name(&format!("1g.{gigabytes}gb")),
            memory_slots: 1,
            starts: Vec::new(),
            length: 1,
            max_instances: 1,
            memory_mib: None,
            provenance: Provenance { source: "test".to_owned(), confidence: "made up".to_owned() },
        };
        let rows = CatalogueRows { profiles: vec![profile(8)], ..CatalogueRows::default() };
        let extended = Catalogue::embedded().extended(&rows).unwrap();
        assert!(extended.mig_profile(&name("A30"), "1g.7gb").is_none());
        assert!(extended.mig_profile(&name("A30"), "1g.9gb").is_some());
    }

    #[test]
    fn a_vgpu_type_is_found_in_each_spelling() {
        let types = ["T4-16Q", "GRID T4-16Q", "grid_t4-16q", "NVIDIA T4-16Q", "nvidia_t4-16q"];
        assert!(types.into_iter().all(|spelling| vgpu(spelling).unwrap().name.as_str() == "T4-16Q"));
        // More framebuffer than the board has memory by its name.
        let largest = vgpu("NVIDIA H200X-141C").unwrap();
        assert_eq!((largest.framebuffer_mib, largest.board_memory_mib), (147_456, 144_384));
        assert_eq!((largest.max, largest.max_mixed), (1, Some(1)));
        let mixed = vgpu("H100-16C").unwrap();
        assert_eq!((mixed.framebuffer_mib, mixed.max, mixed.max_mixed), (16_384, 5, Some(4)));
        let media = vgpu("nvidia_h100-1-10cme").unwrap();
        assert_eq!(media.gi_profile.as_ref().unwrap().as_str(), "1g.10gb+me");
        // Several on one GPU instance.
        assert_eq!((vgpu("DC-1-2Q").unwrap().max, vgpu("DC-2-48Q").unwrap().max), (12, 1));
        assert_eq!(vgpu("A16-16Q").unwrap().board_memory_mib, 16_384);
        for unknown in ["nvidia-476", "nvidia-h100xm-8c", "B200-180C", "T4-3Q", ""] {
            assert_eq!(vgpu(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn the_types_of_a_board_come_in_a_fixed_order() {
        let types: Vec<&str> =
            Catalogue::embedded().vgpu_types_of(&name("t4")).map(|each| each.name.as_str()).collect();
        let order =
            "T4-16A T4-16C T4-16Q T4-8A T4-8C T4-8Q T4-4A T4-4C T4-4Q T4-2A T4-2B T4-2Q T4-1A T4-1B T4-1Q";
        assert_eq!(types.join(" "), order);
        let sliced = |each: &VgpuType| each.gi_profile.is_none();
        assert!(Catalogue::embedded().vgpu_types_of(&name("H100")).all(sliced));
        assert_eq!(Catalogue::embedded().vgpu_types_of(&name("H100")).count(), 8);
        assert_eq!(Catalogue::embedded().vgpu_types_of(&name("H1000")).count(), 0);
    }
}
