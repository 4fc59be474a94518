//! MIG layouts: which sets of GPU instances a board can have, where each may stand, and what can still be added.
//!
//! A layout is legal when its instances fit on the board's compute slices, stand at starts of their profile without
//! meeting each other, and keep to the rules of media engines. What can be added is the heaviest legal set of
//! further instances that moves and destroys nothing (DESIGN §3, rule 4).
//!
//! Source of placements and rules: NVIDIA MIG User Guide, as the catalogue carries them.

use std::collections::HashMap;
use std::fmt;

use super::catalogue::{Media, MigBoard, MigProfile};
use super::ids::Name;
use super::policy::Weighting;
use super::share::Share;

/// An existing instance: its profile's place in the board's table, and its start where that could be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance {
    /// Index into [`MigBoard::profiles`].
    pub profile: usize,
    /// The first memory slot; none: placement unreadable.
    pub start: Option<u16>,
}

/// Why a layout cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IllegalLayout {
    /// More of one profile than the board can have.
    #[error("{count} × {profile}, and the board has room for {max}")]
    TooMany {
        /// The profile.
        profile: String,
        /// How many exist.
        count: usize,
        /// How many can.
        max: u16,
    },
    /// More compute slices than the board has.
    #[error("{layout} takes {taken} compute slices, and the board has {board}")]
    TooManyComputeSlices {
        /// The instances.
        layout: String,
        /// What they take.
        taken: u32,
        /// What there is.
        board: u16,
    },
    /// A start that is none of the profile's.
    #[error("{profile} cannot start at slot {start}; it may at {starts}")]
    WrongStart {
        /// The profile.
        profile: String,
        /// The start as read.
        start: u16,
        /// Where it may.
        starts: String,
    },
    /// Two instances in one slot.
    #[error("two instances of {layout} stand in the same memory slot")]
    Overlap {
        /// The instances.
        layout: String,
    },
    /// No legal starts are left for those whose placement is not known.
    #[error("{layout} leaves no legal start for all of its instances")]
    NoStart {
        /// The instances.
        layout: String,
    },
    /// Media engines are given away twice.
    #[error("{layout} gives the media engines away twice")]
    Media {
        /// The instances.
        layout: String,
    },
}

/// What a legal layout leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// Σ weights of what exists, at most the whole.
    pub taken: Share,
    /// The most that can still be added: `S(L ∪ A) − S(L)`.
    pub addable: Share,
    /// Whether a placement was assumed.
    pub is_assumed: bool,
}

/// Starts at which a profile may stand. One whose placement is in no table may stand at multiples of its length.
fn starts(board: &MigBoard, profile: &MigProfile) -> Vec<u16> {
    if !profile.starts.is_empty() {
        return profile.starts.clone();
    }
    let length = profile.length.max(1);
    (0..board.memory_slots)
        .step_by(length.into())
        .filter(|start| start.saturating_add(length) <= board.memory_slots)
        .collect()
}

/// The memory slots of an instance as bits.
fn slots(start: u16, length: u16) -> u64 {
    (start..start.saturating_add(length))
        .fold(0, |bits, slot| bits | 1_u64.checked_shl(slot.into()).unwrap_or(0))
}

/// A placement under construction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Board {
    slots: u64,
    compute: u16,
    media: u8,
    all: bool,
    not_without: bool,
    count: u16,
}

impl Board {
    const EMPTY: Self = Self { slots: 0, compute: 0, media: 0, all: false, not_without: false, count: 0 };

    /// The board with one more instance, if it fits.
    fn with(self, board: &MigBoard, profile: &MigProfile, start: u16) -> Option<Self> {
        let taken = slots(start, profile.length);
        let compute = self.compute.checked_add(profile.compute_slices)?;
        if self.slots & taken != 0 || compute > board.compute_slices {
            return None;
        }
        let mut next = Self { slots: self.slots | taken, compute, count: self.count.checked_add(1)?, ..self };
        match profile.media {
            Media::One => next.media = next.media.checked_add(1)?,
            Media::All => {
                // It takes every engine: nobody else may have one.
                if self.all || self.not_without {
                    return None;
                }
                next.all = true;
            }
            Media::None | Media::Without => {}
        }
        let has_engines = !matches!(profile.media, Media::Without);
        if has_engines && !matches!(profile.media, Media::All) {
            if self.all {
                return None;
            }
            next.not_without = true;
        }
        (next.media <= 1).then_some(next)
    }
}

/// Whether the profile gives some engines to its instance where engines are shared out by name: only boards with a
/// profile that takes all of them do.
fn shares_engines(board: &MigBoard) -> bool {
    board.profiles.iter().any(|profile| matches!(profile.media, Media::All))
}

/// Examines a layout: legal or not, what it takes, and what can still be added, weighed by `weighting`.
///
/// Instances whose start is not known are put where the most can still be added.
///
/// # Errors
/// [`IllegalLayout`] says which rule it breaks.
pub fn examine(
    board: &MigBoard,
    instances: &[Instance],
    weighting: Weighting,
) -> Result<Room, IllegalLayout> {
    let mut instances = instances.to_vec();
    instances.sort_unstable();
    check_counts(board, &instances)?;
    let mut placed = Board::EMPTY;
    let mut open: Vec<&MigProfile> = Vec::new();
    for instance in &instances {
        let Some(profile) = board.profiles.get(instance.profile) else { continue };
        let Some(start) = instance.start else {
            open.push(profile);
            continue;
        };
        let allowed = starts(board, profile);
        if !allowed.contains(&start) {
            return Err(IllegalLayout::WrongStart {
                profile: profile.name.to_string(),
                start,
                starts: allowed.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            });
        }
        placed = placed.with(board, profile, start).ok_or_else(|| why_not(board, &instances))?;
    }
    // The largest first: small ones find a place in what is left, the other way round they may not.
    open.sort_by(|a, b| (b.length, &b.name).cmp(&(a.length, &a.name)));
    let weights: Vec<Share> =
        board.profiles.iter().map(|profile| weight(board, profile, weighting)).collect();
    let mut search = Search { board, weights: &weights, known: HashMap::new() };
    let taken = instances.iter().filter_map(|instance| weights.get(instance.profile));
    let taken = Share::sum(taken);
    let counts = counts(board, &instances);
    let best = search.best_of(placed, &open, &counts).ok_or_else(|| no_start(board, &instances))?;
    let whole = taken.plus(&best).at_most(Share::WHOLE);
    let taken = taken.at_most(Share::WHOLE);
    let is_assumed = !open.is_empty()
        || instances.iter().any(|each| board.profiles.get(each.profile).is_some_and(|p| p.starts.is_empty()));
    Ok(Room { addable: whole.minus(&taken), taken, is_assumed })
}

/// The weight of one instance of a profile, of the whole board.
#[must_use]
pub fn weight(board: &MigBoard, profile: &MigProfile, weighting: Weighting) -> Share {
    let (compute, memory) = shares(board, profile);
    weighting.weigh(&compute, &memory)
}

/// Compute share and memory share of one instance of a profile, of the whole board.
#[must_use]
pub fn shares(board: &MigBoard, profile: &MigProfile) -> (Share, Share) {
    (
        Share::part_of(profile.compute_slices.into(), board.compute_slices.into()),
        Share::part_of(profile.memory_slots.into(), board.memory_slots.into()),
    )
}

fn counts(board: &MigBoard, instances: &[Instance]) -> Vec<u16> {
    let mut counts = vec![0_u16; board.profiles.len()];
    for instance in instances {
        if let Some(count) = counts.get_mut(instance.profile) {
            *count = count.saturating_add(1);
        }
    }
    counts
}

fn check_counts(board: &MigBoard, instances: &[Instance]) -> Result<(), IllegalLayout> {
    for (profile, count) in board.profiles.iter().zip(counts(board, instances)) {
        if count > profile.max_instances {
            let (profile, max) = (profile.name.to_string(), profile.max_instances);
            return Err(IllegalLayout::TooMany { profile, count: count.into(), max });
        }
    }
    let slices =
        |instance: &Instance| board.profiles.get(instance.profile).map(|p| u32::from(p.compute_slices));
    let taken = instances.iter().filter_map(slices).fold(0_u32, u32::saturating_add);
    if taken > u32::from(board.compute_slices) {
        let (layout, board) = (shown(board, instances), board.compute_slices);
        return Err(IllegalLayout::TooManyComputeSlices { layout, taken, board });
    }
    Ok(())
}

/// Why instances whose starts are all known do not fit, the compute slices apart.
fn why_not(board: &MigBoard, instances: &[Instance]) -> IllegalLayout {
    let mut taken = 0_u64;
    for instance in instances {
        let (Some(profile), Some(start)) = (board.profiles.get(instance.profile), instance.start) else {
            continue;
        };
        let here = slots(start, profile.length);
        if taken & here != 0 {
            return IllegalLayout::Overlap { layout: shown(board, instances) };
        }
        taken |= here;
    }
    IllegalLayout::Media { layout: shown(board, instances) }
}

fn no_start(board: &MigBoard, instances: &[Instance]) -> IllegalLayout {
    let of = |media: Media| {
        instances.iter().filter(|i| board.profiles.get(i.profile).is_some_and(|p| p.media == media)).count()
    };
    let engines = of(Media::One).saturating_add(of(Media::All));
    let others = instances.len().saturating_sub(of(Media::Without)).saturating_sub(of(Media::All));
    if engines > 1 || (of(Media::All) > 0 && others > 0 && shares_engines(board)) {
        return IllegalLayout::Media { layout: shown(board, instances) };
    }
    IllegalLayout::NoStart { layout: shown(board, instances) }
}

/// A layout in the form `3g.40gb@0 + 2g.20gb`.
fn shown(board: &MigBoard, instances: &[Instance]) -> String {
    let each = |instance: &Instance| {
        let name = board.profiles.get(instance.profile).map(|profile| profile.name.to_string());
        let start = instance.start.map(|start| format!("@{start}"));
        format!("{}{}", name.unwrap_or_default(), start.unwrap_or_default())
    };
    instances.iter().map(each).collect::<Vec<_>>().join(" + ")
}

/// The search for the heaviest addition. Boards have at most eight slots, so it looks at everything.
struct Search<'a> {
    board: &'a MigBoard,
    weights: &'a [Share],
    known: HashMap<(Board, u16, Vec<u16>), Share>,
}

impl Search<'_> {
    /// The heaviest addition over all legal starts of `open`; none where they have none.
    fn best_of(&mut self, placed: Board, open: &[&MigProfile], counts: &[u16]) -> Option<Share> {
        let Some((first, rest)) = open.split_first() else {
            return Some(self.best(placed, 0, counts));
        };
        let mut best: Option<Share> = None;
        for start in starts(self.board, first) {
            let Some(next) = placed.with(self.board, first, start) else { continue };
            let Some(found) = self.best_of(next, rest, counts) else { continue };
            best = Some(best.map_or(found, |best| best.at_least(found)));
        }
        best
    }

    /// The heaviest addition that begins at `slot` or after it.
    fn best(&mut self, placed: Board, slot: u16, counts: &[u16]) -> Share {
        if slot >= self.board.memory_slots || placed.compute >= self.board.compute_slices {
            return Share::NONE;
        }
        let key = (placed, slot, counts.to_vec());
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let mut best = self.best(placed, slot.saturating_add(1), counts);
        let board = self.board;
        for (at, profile) in board.profiles.iter().enumerate() {
            let room = counts.get(at).is_some_and(|count| *count < profile.max_instances);
            if !room || !starts(board, profile).contains(&slot) {
                continue;
            }
            let (Some(next), Some(weight)) = (placed.with(board, profile, slot), self.weights.get(at)) else {
                continue;
            };
            let mut counts = counts.to_vec();
            if let Some(count) = counts.get_mut(at) {
                *count = count.saturating_add(1);
            }
            let weight = *weight;
            best = best.at_least(weight.plus(&self.best(next, slot.saturating_add(1), &counts)));
        }
        self.known.insert(key, best);
        best
    }
}

/// Rooms of layouts that were examined before: a layout is examined once, however many hours it stands.
#[derive(Default)]
pub struct Layouts {
    known: HashMap<(Name, Weighting, Vec<Instance>), Result<Room, IllegalLayout>>,
}

impl fmt::Debug for Layouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Layouts({} known)", self.known.len())
    }
}

impl Layouts {
    /// The same as [`examine`]; `key` tells the boards of one catalogue apart.
    ///
    /// # Errors
    /// [`IllegalLayout`].
    pub fn examine(
        &mut self,
        (key, board): (&Name, &MigBoard),
        mut instances: Vec<Instance>,
        weighting: Weighting,
    ) -> &Result<Room, IllegalLayout> {
        instances.sort_unstable();
        self.known
            .entry((key.clone(), weighting, instances))
            .or_insert_with_key(|(_, weighting, instances)| examine(board, instances, *weighting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::catalogue::Catalogue;
    use crate::domain::ids::Name;

    fn room(model: &'static str, layout: &str, weighting: Weighting) -> Result<Room, String> {
        let catalogue = Catalogue::embedded();
        let board = catalogue.board(&Name::fixed(model)).unwrap().mig.as_ref().unwrap();
        let instances: Vec<Instance> = layout
            .split_whitespace()
            .map(|each| {
                let (name, start) = match each.split_once('@') {
                    Some((name, start)) => (name, Some(start.parse().unwrap())),
                    None => (each, None),
                };
                let profile = board.profiles.iter().position(|profile| profile.name.as_str() == name);
                Instance { profile: profile.unwrap_or_else(|| panic!("{model} has no {name}")), start }
            })
            .collect();
        examine(board, &instances, weighting).map_err(|error| error.to_string())
    }

    fn leaves(model: &'static str, layout: &str, weighting: Weighting) -> String {
        let show = |share: Share| {
            let (numerator, denominator) = share.over(&Share::WHOLE).raw();
            format!("{numerator}/{denominator}")
        };
        let room = room(model, layout, weighting).unwrap();
        let stranded = Share::WHOLE.minus(&room.taken).minus(&room.addable);
        format!("{} {}", show(room.addable), show(stranded))
    }

    const BLENDED: Weighting = Weighting::DEFAULT;

    // DESIGN §3 and the partial layouts that were worked out beside it: idle, then stranded.
    #[test]
    fn partial_layouts_of_an_h100_leave_what_they_should() {
        let check =
            |layout: &str, want: &str| assert_eq!(leaves("H100-80GB", layout, BLENDED), want, "{layout}");
        check("", "1/1 0/1");
        check("3g.40gb@0", "13/28 1/14");
        check("1g.20gb@0 1g.20gb@2 1g.20gb@4", "11/56 3/14");
        check("3g.40gb@0 2g.20gb@4 1g.10gb@6", "0/1 15/112");
        check("3g.40gb@4 2g.20gb@0 1g.10gb@2", "15/112 0/1");
        check("7g.80gb@0", "0/1 0/1");
    }

    #[test]
    fn whole_layouts_of_an_h100_under_all_weightings() {
        let all = [Weighting::Compute, Weighting::Memory, BLENDED, Weighting::Dominant];
        let check = |layout: &str, want: [&str; 4]| {
            for (weighting, want) in all.into_iter().zip(want) {
                assert_eq!(leaves("H100-80GB", layout, weighting), want, "{layout} {weighting:?}");
            }
        };
        let sevenths: String = (0..7).map(|slot| format!("1g.10gb@{slot} ")).collect();
        check(&sevenths, ["0/1 0/1", "0/1 1/8", "0/1 1/16", "0/1 0/1"]);
        check("3g.40gb@0 3g.40gb@4", ["0/1 1/7", "0/1 0/1", "0/1 1/14", "0/1 0/1"]);
        check("4g.40gb@0 3g.40gb@4", ["0/1 0/1"; 4]);
        check("1g.20gb@0 1g.20gb@2 1g.20gb@4 1g.20gb@6", ["0/1 3/7", "0/1 0/1", "0/1 3/14", "0/1 0/1"]);
        check("3g.40gb@4 2g.20gb@0 1g.10gb@2 1g.10gb+me@3", ["0/1 0/1"; 4]);
    }

    #[test]
    fn illegal_layouts_are_refused_with_the_reason() {
        let check = |layout: &str, part: &str| {
            let refused = room("H100-80GB", layout, BLENDED).unwrap_err();
            assert!(refused.contains(part), "{layout}: {refused}");
        };
        check("3g.40gb@0 2g.20gb 1g.10gb 1g.10gb", "leaves no legal start");
        check("3g.40gb@4 2g.20gb 1g.10gb 1g.10gb 1g.10gb", "takes 8 compute slices, and the board has 7");
        check("4g.40gb 4g.40gb", "2 × 4g.40gb, and the board has room for 1");
        check("3g.40gb@2", "3g.40gb cannot start at slot 2; it may at 0, 4");
        check("3g.40gb@0 2g.20gb@2", "stand in the same memory slot");
        check("1g.10gb+me@0 1g.10gb+me@1", "2 × 1g.10gb+me, and the board has room for 1");
    }

    #[test]
    fn an_unreadable_placement_is_put_where_the_most_fits() {
        // At slot 4 it leaves slots 0–3 to a 4g of four compute slices; at 0 only to a 3g.
        let compute = room("H100-80GB", "3g.40gb", Weighting::Compute).unwrap();
        assert_eq!((compute.addable, compute.is_assumed), (Share::new(4, 7).unwrap(), true));
        assert!(!room("H100-80GB", "3g.40gb@4", Weighting::Compute).unwrap().is_assumed);
    }

    #[test]
    fn a_profile_that_takes_all_media_engines_has_no_neighbour_with_any() {
        let refused = room("RTX-PRO-6000-Blackwell-96GB", "1g.24gb+me.all@0 1g.24gb@1", BLENDED).unwrap_err();
        assert!(refused.contains("media engines"), "{refused}");
        assert_eq!(
            leaves("RTX-PRO-6000-Blackwell-96GB", "1g.24gb+me.all@0 1g.24gb-me@1", BLENDED),
            "1/2 0/1"
        );
    }

    #[test]
    fn a_layout_is_examined_once() {
        let board = Catalogue::embedded().board(&Name::fixed("H100-80GB")).unwrap().mig.as_ref().unwrap();
        let mut layouts = Layouts::default();
        for _ in 0..3 {
            let both = vec![Instance { profile: 0, start: None }, Instance { profile: 0, start: Some(1) }];
            assert!(layouts.examine((&Name::fixed("H100-80GB"), board), both, BLENDED).is_ok());
        }
        assert_eq!(layouts.known.len(), 1);
    }
}
