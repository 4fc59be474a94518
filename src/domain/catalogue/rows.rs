//! Rows from outside: checked, and put over those that are there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::names::model_key;
use super::{Board, Catalogue, Media, MigBoard, MigProfile, ProfileName, Provenance, VgpuType, VgpuTypeName};
use crate::domain::ids::Name;

/// A vGPU type's framebuffer is what the driver says, near what its name says: at most this many times as much, and
/// at least that part of it. Beyond, a unit was mistaken.
const FRAMEBUFFER_FACTOR_MAX: u32 = 2;

/// Rows of the three tables, as decoded and not yet checked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CatalogueRows {
    /// Boards: new ones, or more about known ones.
    pub boards: Vec<BoardRow>,
    /// MIG profiles.
    pub profiles: Vec<ProfileRow>,
    /// vGPU types.
    pub vgpus: Vec<VgpuType>,
}

/// A board. What is `None` stays as it is on a board that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoardRow {
    /// The board's key.
    pub key: Name,
    /// Product names to add. One that another board had is this one's from now on.
    pub names: Vec<Name>,
    /// Memory in MiB; a new board needs it.
    pub memory_mib: Option<u32>,
    /// Compute slices of a board that MIG can cut; comes with `memory_slots`.
    pub compute_slices: Option<u16>,
    /// Memory slots of a board that MIG can cut; comes with `compute_slices`.
    pub memory_slots: Option<u16>,
    /// Power without load in mW.
    pub baseline_milliwatts: Option<u32>,
    /// Where the row comes from.
    pub provenance: Provenance,
}

/// A MIG profile of a board. Its compute slices and media engines are in its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfileRow {
    /// The board, by its key or one of its names.
    pub board: Name,
    /// The profile's name.
    pub name: Name,
    /// Memory slots that it counts for.
    pub memory_slots: u16,
    /// The slots at which it may begin; empty: not known.
    pub starts: Vec<u16>,
    /// The slots that it takes.
    pub length: u16,
    /// How many fit on an otherwise empty board.
    pub max_instances: u16,
    /// Memory in MiB that an instance reports.
    pub memory_mib: Option<u32>,
    /// Where the row comes from.
    pub provenance: Provenance,
}

/// A row breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{row}: {field} {fault}")]
pub struct CatalogueError {
    /// The row: its table and its key.
    pub row: String,
    /// The field.
    pub field: &'static str,
    /// Which rule.
    pub fault: CatalogueFault,
}

/// The rules for a field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CatalogueFault {
    /// A field that this row needs is not there.
    #[error("is missing")]
    Missing,
    /// The same key, or the same name, stands in the rows twice.
    #[error("`{text}` is there twice")]
    Twice {
        /// As the second one is written.
        text: String,
    },
    /// A product name is another board's key.
    #[error("`{text}` is the key of another board")]
    IsAKey {
        /// The name.
        text: Name,
    },
    /// The board is not known.
    #[error("`{text}` is not known; add a [[board]] with its memory_mib, compute_slices and memory_slots")]
    UnknownBoard {
        /// The board as given.
        text: Name,
    },
    /// The board is not known to have MIG.
    #[error("`{text}` has no MIG slices; give its [[board]] compute_slices and memory_slots")]
    WithoutMig {
        /// The board's key.
        text: Name,
    },
    /// Not a name of its kind.
    #[error("`{text}` is no name such as {example}")]
    NotAName {
        /// As given.
        text: Name,
        /// What one looks like.
        example: &'static str,
    },
    /// Zero, where there is at least one.
    #[error("is 0")]
    Zero,
    /// More than there is.
    #[error("is {given}, of {most} at most")]
    TooLarge {
        /// As given.
        given: u32,
        /// What there is.
        most: u32,
    },
    /// A start that leaves no room.
    #[error("has {start}, from which {length} of {slots} slots do not fit")]
    StartOutside {
        /// The start.
        start: u16,
        /// The profile's length.
        length: u16,
        /// The board's slots.
        slots: u16,
    },
    /// The row's own name says otherwise.
    #[error("is `{given}`, which its name contradicts")]
    AgainstName {
        /// As given.
        given: String,
    },
}

/// Puts rows over a catalogue.
pub(super) fn extended(base: &Catalogue, rows: &CatalogueRows) -> Result<Catalogue, CatalogueError> {
    let mut next = base.clone();
    let mut touched = put_boards(&mut next, &rows.boards)?;
    next.models = models(&next.boards);
    touched.extend(put_profiles(&mut next, &rows.profiles)?);
    // All profiles of these boards: a board that was given fewer slices must still hold those that it had.
    for board in touched.iter().filter_map(|key| next.boards.get(key)) {
        if let Some(mig) = &board.mig {
            mig.profiles.iter().try_for_each(|profile| check_profile(board, mig, profile))?;
        }
    }
    put_vgpus(&mut next, &rows.vgpus)?;
    Ok(next)
}

/// What a row's error begins with.
struct At<'a> {
    table: &'static str,
    key: &'a dyn fmt::Display,
}

impl At<'_> {
    fn fault(&self, field: &'static str, fault: CatalogueFault) -> CatalogueError {
        CatalogueError { row: format!("{} `{}`", self.table, self.key), field, fault }
    }

    fn at_least_one(&self, field: &'static str, value: u32) -> Result<(), CatalogueError> {
        if value == 0 { Err(self.fault(field, CatalogueFault::Zero)) } else { Ok(()) }
    }

    fn within(&self, field: &'static str, given: u32, most: u32) -> Result<(), CatalogueError> {
        self.at_least_one(field, given)?;
        if given > most { Err(self.fault(field, CatalogueFault::TooLarge { given, most })) } else { Ok(()) }
    }

    fn twice(&self, field: &'static str, text: &dyn fmt::Display) -> CatalogueError {
        self.fault(field, CatalogueFault::Twice { text: text.to_string() })
    }
}

fn put_boards(next: &mut Catalogue, rows: &[BoardRow]) -> Result<BTreeSet<Name>, CatalogueError> {
    let mut keys: BTreeMap<String, Name> =
        next.boards.keys().map(|key| (model_key(key.as_str()), key.clone())).collect();
    let mut touched = BTreeSet::new();
    for row in rows {
        let at = At { table: "board", key: &row.key };
        let key = keys.entry(model_key(row.key.as_str())).or_insert_with(|| row.key.clone()).clone();
        if !touched.insert(key.clone()) {
            return Err(at.twice("key", &row.key));
        }
        let board = match next.boards.remove(&key) {
            Some(known) => known,
            None => new_board(row, &at)?,
        };
        next.boards.insert(key, with_row(board, row, &at)?);
    }
    put_names(next, rows, &keys)?;
    Ok(touched)
}

fn new_board(row: &BoardRow, at: &At<'_>) -> Result<Board, CatalogueError> {
    Ok(Board {
        key: row.key.clone(),
        names: Vec::new(),
        memory_mib: row.memory_mib.ok_or_else(|| at.fault("memory_mib", CatalogueFault::Missing))?,
        baseline_milliwatts: None,
        mig: None,
        provenance: row.provenance.clone(),
    })
}

/// Twice what any board has. Which set of further instances is the heaviest is found by looking at all of them.
const SLICES_MAX: u32 = 16;

fn with_row(mut board: Board, row: &BoardRow, at: &At<'_>) -> Result<Board, CatalogueError> {
    board.memory_mib = row.memory_mib.unwrap_or(board.memory_mib);
    at.at_least_one("memory_mib", board.memory_mib)?;
    if let Some(baseline) = row.baseline_milliwatts {
        at.at_least_one("baseline_milliwatts", baseline)?;
        board.baseline_milliwatts = Some(baseline);
    }
    match (row.compute_slices, row.memory_slots) {
        (Some(compute_slices), Some(memory_slots)) => {
            at.within("compute_slices", compute_slices.into(), SLICES_MAX)?;
            at.within("memory_slots", memory_slots.into(), SLICES_MAX)?;
            let profiles = board.mig.map(|mig| mig.profiles).unwrap_or_default();
            board.mig = Some(MigBoard { compute_slices, memory_slots, profiles });
        }
        (None, None) => {}
        (Some(_), None) => return Err(at.fault("memory_slots", CatalogueFault::Missing)),
        (None, Some(_)) => return Err(at.fault("compute_slices", CatalogueFault::Missing)),
    }
    board.provenance = row.provenance.clone();
    Ok(board)
}

/// Gives boards their names; a name that another board had is taken from it.
fn put_names(
    next: &mut Catalogue,
    rows: &[BoardRow],
    keys: &BTreeMap<String, Name>,
) -> Result<(), CatalogueError> {
    let mut given: BTreeMap<String, &Name> = BTreeMap::new();
    for row in rows {
        let at = At { table: "board", key: &row.key };
        for name in &row.names {
            let spelling = model_key(name.as_str());
            let own = keys.get(&model_key(row.key.as_str()));
            if keys.get(&spelling).is_some_and(|other| Some(other) != own) {
                return Err(at.fault("names", CatalogueFault::IsAKey { text: name.clone() }));
            }
            if given.insert(spelling, own.unwrap_or(&row.key)).is_some() {
                return Err(at.twice("names", name));
            }
        }
    }
    for (key, board) in &mut next.boards {
        let stays = |name: &Name| {
            let spelling = model_key(name.as_str());
            // Its own key wins as well: a new board may be named as a product that another board had.
            let owner = given.get(&spelling).copied().or_else(|| keys.get(&spelling));
            owner.is_none_or(|owner| owner == key)
        };
        board.names.retain(stays);
    }
    for row in rows {
        let Some(board) = keys.get(&model_key(row.key.as_str())).and_then(|key| next.boards.get_mut(key))
        else {
            continue;
        };
        for name in &row.names {
            let spelling = model_key(name.as_str());
            if !board.names.iter().any(|there| model_key(there.as_str()) == spelling) {
                board.names.push(name.clone());
            }
        }
    }
    Ok(())
}

fn models(boards: &BTreeMap<Name, Board>) -> BTreeMap<String, Name> {
    boards
        .values()
        .flat_map(|board| {
            let spellings = board.names.iter().chain([&board.key]);
            spellings.map(|name| (model_key(name.as_str()), board.key.clone()))
        })
        .collect()
}

fn put_profiles(next: &mut Catalogue, rows: &[ProfileRow]) -> Result<BTreeSet<Name>, CatalogueError> {
    let mut seen = BTreeSet::new();
    let mut touched = BTreeSet::new();
    for row in rows {
        let key = format!("{} {}", row.board, row.name);
        let at = At { table: "profile", key: &key };
        let Some(name) = ProfileName::parse(row.name.as_str()).filter(|name| name.compute_instance.is_none())
        else {
            let fault = CatalogueFault::NotAName { text: row.name.clone(), example: "1g.10gb" };
            return Err(at.fault("name", fault));
        };
        let unknown = || at.fault("board", CatalogueFault::UnknownBoard { text: row.board.clone() });
        let board = next.models.get(&model_key(row.board.as_str())).ok_or_else(unknown)?;
        if !seen.insert((board.clone(), name.clone())) {
            return Err(at.twice("name", &row.name));
        }
        let board = next.boards.get_mut(board).ok_or_else(unknown)?;
        touched.insert(board.key.clone());
        let Some(mig) = board.mig.as_mut() else {
            return Err(at.fault("board", CatalogueFault::WithoutMig { text: board.key.clone() }));
        };
        let mut starts = row.starts.clone();
        starts.sort_unstable();
        let profile = MigProfile {
            name: canonical(&name, &row.name),
            compute_slices: name.slices,
            memory_slots: row.memory_slots,
            starts,
            length: row.length,
            max_instances: row.max_instances,
            memory_mib: row.memory_mib,
            media: name.media(),
            provenance: row.provenance.clone(),
        };
        mig.profiles.retain(|there| there.name != profile.name);
        mig.profiles.push(profile);
        mig.profiles.sort_by(|a, b| a.name.cmp(&b.name));
    }
    Ok(touched)
}

/// The name as it is shown, which is never longer than it was given.
fn canonical(name: &ProfileName, given: &Name) -> Name {
    Name::parse(&name.to_string()).unwrap_or_else(|_| given.clone())
}

fn check_profile(board: &Board, mig: &MigBoard, profile: &MigProfile) -> Result<(), CatalogueError> {
    let key = format!("{} {}", board.key, profile.name);
    let at = At { table: "profile", key: &key };
    let slots = mig.memory_slots;
    at.within("compute_slices", profile.compute_slices.into(), mig.compute_slices.into())?;
    at.within("memory_slots", profile.memory_slots.into(), slots.into())?;
    at.within("length", profile.length.into(), slots.into())?;
    at.at_least_one("max_instances", profile.max_instances.into())?;
    for (number, start) in profile.starts.iter().copied().enumerate() {
        if profile.starts.iter().skip(number.saturating_add(1)).any(|other| *other == start) {
            return Err(at.twice("starts", &start));
        }
        if start.checked_add(profile.length).is_none_or(|end| end > slots) {
            let fault = CatalogueFault::StartOutside { start, length: profile.length, slots };
            return Err(at.fault("starts", fault));
        }
    }
    if !profile.starts.is_empty() {
        let starts = u32::try_from(profile.starts.len()).unwrap_or(u32::MAX);
        at.within("max_instances", profile.max_instances.into(), starts)?;
    }
    match profile.memory_mib {
        Some(memory) => at.within("memory_mib", memory, board.memory_mib),
        None => Ok(()),
    }
}

fn put_vgpus(next: &mut Catalogue, rows: &[VgpuType]) -> Result<(), CatalogueError> {
    let mut seen = BTreeSet::new();
    for row in rows {
        let at = At { table: "vgpu", key: &row.name };
        let Some(name) = VgpuTypeName::parse(row.name.as_str()) else {
            let fault = CatalogueFault::NotAName { text: row.name.clone(), example: "H100-20C" };
            return Err(at.fault("name", fault));
        };
        if !seen.insert(name.clone()) {
            return Err(at.twice("name", &row.name));
        }
        check_vgpu(row, &name, &at)?;
        let shown = Name::parse(&name.to_string()).unwrap_or_else(|_| row.name.clone());
        next.vgpus.insert(name.to_string(), VgpuType { name: shown, ..row.clone() });
    }
    Ok(())
}

fn check_vgpu(row: &VgpuType, name: &VgpuTypeName, at: &At<'_>) -> Result<(), CatalogueError> {
    let against = |field, given: &dyn fmt::Display| {
        at.fault(field, CatalogueFault::AgainstName { given: given.to_string() })
    };
    if !row.board_code.as_str().eq_ignore_ascii_case(name.board.as_str()) {
        return Err(against("board_code", &row.board_code));
    }
    at.at_least_one("board_memory_mib", row.board_memory_mib)?;
    at.at_least_one("framebuffer_mib", row.framebuffer_mib)?;
    let (given, named) = (row.framebuffer_mib, name.framebuffer_mib());
    if given.max(named) > given.min(named).saturating_mul(FRAMEBUFFER_FACTOR_MAX) {
        return Err(against("framebuffer_mib", &given));
    }
    match (&row.gi_profile, name.gi_slices) {
        (Some(given), Some(slices)) => {
            let profile = ProfileName::parse(given.as_str()).ok_or_else(|| {
                let fault = CatalogueFault::NotAName { text: given.clone(), example: "1g.10gb" };
                at.fault("gi_profile", fault)
            })?;
            let media = matches!(profile.media(), Media::One | Media::All);
            if (profile.slices, profile.compute_instance, media) != (slices, None, name.media) {
                return Err(against("gi_profile", given));
            }
        }
        (None, None) => {}
        (None, Some(_)) => return Err(at.fault("gi_profile", CatalogueFault::Missing)),
        (Some(given), None) => return Err(against("gi_profile", given)),
    }
    at.at_least_one("max", row.max.into())?;
    match row.max_mixed {
        Some(mixed) => at.within("max_mixed", mixed.into(), row.max.into()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::parse(text).unwrap()
    }

    fn provenance() -> Provenance {
        Provenance { source: "our own listing".to_owned(), confidence: "measured".to_owned() }
    }

    fn board(key: &str) -> BoardRow {
        BoardRow {
            key: name(key),
            names: Vec::new(),
            memory_mib: None,
            compute_slices: None,
            memory_slots: None,
            baseline_milliwatts: None,
            provenance: provenance(),
        }
    }

    fn new_board(key: &str) -> BoardRow {
        BoardRow { memory_mib: Some(65_536), compute_slices: Some(7), memory_slots: Some(8), ..board(key) }
    }

    fn profile(board: &str, text: &str, memory_slots: u16, starts: &[u16], max_instances: u16) -> ProfileRow {
        ProfileRow {
            board: name(board),
            name: name(text),
            memory_slots,
            starts: starts.to_vec(),
            length: memory_slots,
            max_instances,
            memory_mib: None,
            provenance: provenance(),
        }
    }

    fn vgpu(
        text: &str,
        board_code: &str,
        framebuffer_mib: u32,
        gi_profile: Option<&str>,
        max: u16,
    ) -> VgpuType {
        VgpuType {
            name: name(text),
            board_code: name(board_code),
            board_memory_mib: 49_152,
            framebuffer_mib,
            gi_profile: gi_profile.map(name),
            max,
            max_mixed: None,
            provenance: provenance(),
        }
    }

    fn of(boards: Vec<BoardRow>, profiles: Vec<ProfileRow>, vgpus: Vec<VgpuType>) -> CatalogueRows {
        CatalogueRows { boards, profiles, vgpus }
    }

    fn extend(rows: &CatalogueRows) -> Catalogue {
        Catalogue::embedded().extended(rows).unwrap()
    }

    #[test]
    fn no_rows_change_nothing() {
        let same = extend(&CatalogueRows::default());
        assert_eq!(&same, Catalogue::embedded());
        assert_eq!(same.content_hash_input(), Catalogue::embedded().content_hash_input());
    }

    #[test]
    fn a_new_board_comes_with_its_profiles() {
        let a100 = BoardRow { names: vec![name("NVIDIA A100-SXM-64GB")], ..new_board("A100-64GB") };
        let profiles = vec![
            profile("NVIDIA A100-SXM-64GB", "7g.64gb", 8, &[0], 1),
            profile("A100-64GB", "MIG 1g.8gb", 1, &[6, 0, 1, 2, 3, 4, 5], 7),
        ];
        let extended = extend(&of(vec![a100], profiles, Vec::new()));
        let (board, found) = extended.mig_profile(&name("a100-sxm-64gb"), "1g.8gb").unwrap();
        assert_eq!(board.profiles.len(), 2);
        assert_eq!((found.name.as_str(), found.compute_slices), ("1g.8gb", 1));
        assert_eq!(found.starts, [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(extended.boards().count(), Catalogue::embedded().boards().count() + 1);
        assert_ne!(extended.content_hash_input(), Catalogue::embedded().content_hash_input());
    }

    #[test]
    fn a_known_board_gains_a_name_and_a_baseline_and_keeps_the_rest() {
        let names = vec![name("NVIDIA H100"), name("NVIDIA H100 PCIe")];
        let row = BoardRow { names, baseline_milliwatts: Some(71_500), ..board("h100 80gb") };
        let extended = extend(&of(vec![row], Vec::new(), Vec::new()));
        let known = Catalogue::embedded().board(&name("H100-80GB")).unwrap();
        let found = extended.board(&name("NVIDIA H100")).unwrap();
        assert_eq!((&found.key, found.memory_mib, &found.mig), (&known.key, known.memory_mib, &known.mig));
        assert_eq!((found.baseline_milliwatts, found.names.len()), (Some(71_500), known.names.len() + 1));
        assert_eq!(found.provenance, provenance());
    }

    #[test]
    fn a_name_that_another_board_had_is_taken_from_it() {
        let row = BoardRow { names: vec![name("NVIDIA GB200")], ..board("GB200-189GB") };
        let h20 = BoardRow { memory_mib: Some(98_304), ..board("H20") };
        let extended = extend(&of(vec![row, h20], Vec::new(), Vec::new()));
        let key = |model: &str| extended.board(&name(model)).unwrap().key.as_str().to_owned();
        assert_eq!((key("NVIDIA GB200"), key("NVIDIA H20")), ("GB200-189GB".to_owned(), "H20".to_owned()));
        assert!(extended.board(&name("GB200-186GB")).unwrap().names.is_empty());
        assert!(extended.mig_profile(&name("NVIDIA H20"), "1g.12gb").is_none());
    }

    #[test]
    fn a_profile_and_a_type_are_corrected() {
        let rows = of(
            Vec::new(),
            vec![profile("NVIDIA RTX PRO 5000 Blackwell", "1g.24gb", 1, &[0, 1], 2)],
            vec![
                vgpu("NVIDIA L40S-24Q", "L40S", 24_000, None, 2),
                vgpu("RTX6000-Ada-48Q", "RTX6000-Ada", 49_152, None, 1),
                vgpu("L40S-2-24Q", "L40S", 24_576, Some("2g.24gb+gfx"), 2),
            ],
        );
        let extended = extend(&rows);
        let (_, found) = extended.mig_profile(&name("RTX PRO 5000 Blackwell"), "1g.24gb").unwrap();
        assert_eq!(found.starts, [0, 1]);
        assert_eq!(extended.vgpu("L40S-24Q").unwrap().framebuffer_mib, 24_000);
        assert_eq!(extended.vgpu("nvidia_rtx6000-ada-48q").unwrap().max, 1);
        assert_eq!(extended.vgpu_types_of(&name("rtx6000-ada")).count(), 1);
        let (before, after) = (Catalogue::embedded().vgpu_types().count(), extended.vgpu_types().count());
        assert_eq!(after, before + 2);
    }

    #[test]
    fn a_row_that_breaks_a_rule_is_named_with_its_field() {
        let check = |rows: CatalogueRows, message: &str| {
            assert_eq!(Catalogue::embedded().extended(&rows).unwrap_err().to_string(), message);
        };
        let boards = |boards: Vec<BoardRow>| of(boards, Vec::new(), Vec::new());
        check(boards(vec![board("X")]), "board `X`: memory_mib is missing");
        check(boards(vec![BoardRow { memory_mib: Some(0), ..board("X") }]), "board `X`: memory_mib is 0");
        let half = BoardRow { memory_slots: None, ..new_board("X") };
        check(boards(vec![half]), "board `X`: memory_slots is missing");
        let half = BoardRow { compute_slices: None, ..new_board("X") };
        check(boards(vec![half]), "board `X`: compute_slices is missing");
        let none = BoardRow { compute_slices: Some(0), ..new_board("X") };
        check(boards(vec![none]), "board `X`: compute_slices is 0");
        let dark = BoardRow { baseline_milliwatts: Some(0), ..new_board("X") };
        check(boards(vec![dark]), "board `X`: baseline_milliwatts is 0");
        let twice = vec![new_board("X 1"), new_board("x-1")];
        check(boards(twice), "board `x-1`: key `x-1` is there twice");
        let named = |key: &str, text: &str| BoardRow { names: vec![name(text)], ..new_board(key) };
        check(
            boards(vec![named("X", "Z"), named("Y", "NVIDIA Z")]),
            "board `Y`: names `NVIDIA Z` is there twice",
        );
        check(
            boards(vec![named("X", "NVIDIA L40S")]),
            "board `X`: names `NVIDIA L40S` is the key of another board",
        );
        let fewer = BoardRow { compute_slices: Some(4), memory_slots: Some(4), ..board("H100-80GB") };
        check(
            boards(vec![fewer]),
            "profile `H100-80GB 1g.10gb`: starts has 4, from which 1 of 4 slots do not fit",
        );

        let profiles = |row: ProfileRow| of(vec![new_board("X")], vec![row], Vec::new());
        check(
            profiles(profile("Y", "1g.8gb", 1, &[], 1)),
            "profile `Y 1g.8gb`: board `Y` is not known; add a [[board]] with its memory_mib, compute_slices and \
             memory_slots",
        );
        check(
            profiles(profile("L40S", "1g.8gb", 1, &[], 1)),
            "profile `L40S 1g.8gb`: board `L40S` has no MIG slices; give its [[board]] compute_slices and \
             memory_slots",
        );
        for text in ["8gb", "1c.2g.16gb"] {
            check(
                profiles(profile("X", text, 1, &[], 1)),
                &format!("profile `X {text}`: name `{text}` is no name such as 1g.10gb"),
            );
        }
        check(
            profiles(profile("X", "8g.64gb", 8, &[0], 1)),
            "profile `X 8g.64gb`: compute_slices is 8, of 7 at most",
        );
        check(
            profiles(profile("X", "1g.8gb", 9, &[], 1)),
            "profile `X 1g.8gb`: memory_slots is 9, of 8 at most",
        );
        check(profiles(profile("X", "1g.8gb", 0, &[], 1)), "profile `X 1g.8gb`: memory_slots is 0");
        let long = ProfileRow { length: 9, ..profile("X", "1g.8gb", 1, &[], 1) };
        check(profiles(long), "profile `X 1g.8gb`: length is 9, of 8 at most");
        check(profiles(profile("X", "1g.8gb", 1, &[], 0)), "profile `X 1g.8gb`: max_instances is 0");
        check(
            profiles(profile("X", "1g.8gb", 1, &[0, 1], 3)),
            "profile `X 1g.8gb`: max_instances is 3, of 2 at most",
        );
        check(
            profiles(profile("X", "1g.8gb", 1, &[3, 1, 3], 1)),
            "profile `X 1g.8gb`: starts `3` is there twice",
        );
        check(
            profiles(profile("X", "3g.32gb", 4, &[0, 5], 1)),
            "profile `X 3g.32gb`: starts has 5, from which 4 of 8 slots do not fit",
        );
        check(
            profiles(profile("X", "1g.8gb", 1, &[u16::MAX], 1)),
            "profile `X 1g.8gb`: starts has 65535, from which 1 of 8 slots do not fit",
        );
        let large = ProfileRow { memory_mib: Some(65_537), ..profile("X", "1g.8gb", 1, &[], 1) };
        check(profiles(large), "profile `X 1g.8gb`: memory_mib is 65537, of 65536 at most");
        let twice = vec![profile("X", "1g.8gb", 1, &[], 1), profile("x", "mig-1g.8gb", 1, &[], 1)];
        check(
            of(vec![new_board("X")], twice, Vec::new()),
            "profile `x mig-1g.8gb`: name `mig-1g.8gb` is there twice",
        );

        let vgpus = |row: VgpuType| of(Vec::new(), Vec::new(), vec![row]);
        check(
            vgpus(vgpu("L40S", "L40S", 1, None, 1)),
            "vgpu `L40S`: name `L40S` is no name such as H100-20C",
        );
        check(
            vgpus(vgpu("L40S-8Q", "L40", 8_192, None, 6)),
            "vgpu `L40S-8Q`: board_code is `L40`, which its name contradicts",
        );
        check(vgpus(vgpu("L40S-8Q", "L40S", 0, None, 6)), "vgpu `L40S-8Q`: framebuffer_mib is 0");
        check(
            vgpus(vgpu("L40S-8Q", "L40S", 8, None, 6)),
            "vgpu `L40S-8Q`: framebuffer_mib is `8`, which its name contradicts",
        );
        check(vgpus(vgpu("L40S-8Q", "L40S", 8_192, None, 0)), "vgpu `L40S-8Q`: max is 0");
        let mixed = VgpuType { max_mixed: Some(7), ..vgpu("L40S-8Q", "L40S", 8_192, None, 6) };
        check(vgpus(mixed), "vgpu `L40S-8Q`: max_mixed is 7, of 6 at most");
        check(
            vgpus(vgpu("L40S-8Q", "L40S", 8_192, Some("1g.8gb"), 1)),
            "vgpu `L40S-8Q`: gi_profile is `1g.8gb`, which its name contradicts",
        );
        check(vgpus(vgpu("L40S-1-8Q", "L40S", 8_192, None, 1)), "vgpu `L40S-1-8Q`: gi_profile is missing");
        check(
            vgpus(vgpu("L40S-1-8CME", "L40S", 8_192, Some("1g.8gb"), 1)),
            "vgpu `L40S-1-8CME`: gi_profile is `1g.8gb`, which its name contradicts",
        );
        check(
            of(
                Vec::new(),
                Vec::new(),
                vec![vgpu("L40S-8Q", "L40S", 8_192, None, 6), vgpu("nvidia_l40s-8q", "L40S", 8_192, None, 6)],
            ),
            "vgpu `nvidia_l40s-8q`: name `nvidia_l40s-8q` is there twice",
        );
    }
}
