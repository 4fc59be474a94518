//! Which layouts of GPU instances are legal and what fits beside them, by trying everything.
//!
//! The rules are those of the MIG User Guide as DESIGN §3 uses them: starts and lengths in memory slots, compute
//! slices, how many of a profile there can be, media engines. The catalogue gives figures, and no answers.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use fatia::domain::catalogue::{Catalogue, Media, MigBoard, VgpuType};
use fatia::domain::ids::Name;
use fatia::domain::layout::{Instance, examine};
use fatia::domain::policy::Weighting;
use fatia::domain::share::Share;
use proptest::collection::vec;
use proptest::prelude::*;

use super::exact::Exact;
use super::holds;

/// A profile's number on its board, and where it stands.
pub(super) type Standing = (usize, Option<u16>);

/// What stands on a board.
#[derive(Clone, Default)]
struct Filled {
    slots: u32,
    compute: u16,
    of_profile: BTreeMap<usize, u16>,
    media: Vec<Media>,
}

/// Where a profile may begin.
pub(super) fn starts(board: &MigBoard, profile: usize) -> Vec<u16> {
    let profile = &board.profiles[profile];
    if !profile.starts.is_empty() {
        return profile.starts.clone();
    }
    let fits =
        |start: &u16| start.is_multiple_of(profile.length) && start + profile.length <= board.memory_slots;
    (0..board.memory_slots).filter(fits).collect()
}

impl Filled {
    fn with(&self, board: &MigBoard, number: usize, start: u16) -> Option<Self> {
        let profile = &board.profiles[number];
        if !starts(board, number).contains(&start) {
            return None;
        }
        let mut next = self.clone();
        for slot in start..start + profile.length {
            if next.slots >> slot & 1 == 1 {
                return None;
            }
            next.slots |= 1 << slot;
        }
        next.compute += profile.compute_slices;
        let count = next.of_profile.entry(number).or_default();
        *count += 1;
        if *count > profile.max_instances || next.compute > board.compute_slices {
            return None;
        }
        next.media.push(profile.media);
        let of = |media| next.media.iter().filter(|each| **each == media).count();
        let with_engines = next.media.len() - of(Media::Without);
        let is_legal = of(Media::One) <= 1 && (of(Media::All) == 0 || with_engines == 1);
        is_legal.then_some(next)
    }
}

/// A weight over `compute slices × memory slots × 10⁶`.
fn weight(board: &MigBoard, profile: usize, weighting: Weighting) -> i64 {
    let profile = &board.profiles[profile];
    let compute = i64::from(profile.compute_slices) * i64::from(board.memory_slots);
    let memory = i64::from(profile.memory_slots) * i64::from(board.compute_slices);
    match weighting {
        Weighting::Compute => compute * 1_000_000,
        Weighting::Memory => memory * 1_000_000,
        Weighting::Dominant => compute.max(memory) * 1_000_000,
        Weighting::Blended { alpha_ppm } => {
            compute * i64::from(alpha_ppm) + memory * (1_000_000 - i64::from(alpha_ppm))
        }
    }
}

/// The heaviest addition to what stands, of the placements from `next` on.
fn most(filled: &Filled, board: &MigBoard, placements: &[(usize, u16, i64)]) -> i64 {
    let mut best = 0;
    for (at, (profile, start, weight)) in placements.iter().enumerate() {
        if let Some(with) = filled.with(board, *profile, *start) {
            best = best.max(weight + most(&with, board, &placements[at + 1..]));
        }
    }
    best
}

/// The same over all places at which those may stand whose place is not known; none: there are none.
fn most_over(
    filled: &Filled,
    board: &MigBoard,
    standing: &[Standing],
    placements: &[(usize, u16, i64)],
) -> Option<i64> {
    let Some(((profile, start), rest)) = standing.split_first() else {
        return Some(most(filled, board, placements));
    };
    let places = start.map_or_else(|| starts(board, *profile), |start| vec![start]);
    let tried = places.into_iter().filter_map(|start| filled.with(board, *profile, start));
    tried.filter_map(|with| most_over(&with, board, rest, placements)).max()
}

type Room = Option<(i64, i64, i64)>;
/// Of which board, what stands on it, and how it is weighed.
type Question = (Name, Vec<Standing>, Weighting);

/// What stands, what can be added, and the whole, in one unit; none: that cannot be.
pub(super) fn room(key: &Name, board: &MigBoard, standing: &[Standing], weighting: Weighting) -> Room {
    thread_local! {
        static KNOWN: RefCell<HashMap<Question, Room>> = RefCell::default();
    }
    let mut standing = standing.to_vec();
    standing.sort_unstable();
    let question = (key.clone(), standing, weighting);
    if let Some(known) = KNOWN.with_borrow(|known| known.get(&question).copied()) {
        return known;
    }
    let mut placements = Vec::new();
    for profile in 0..board.profiles.len() {
        let of_profile = starts(board, profile).into_iter();
        placements.extend(of_profile.map(|start| (profile, start, weight(board, profile, weighting))));
    }
    let whole = i64::from(board.compute_slices) * i64::from(board.memory_slots) * 1_000_000;
    let taken: i64 = question.1.iter().map(|(profile, _)| weight(board, *profile, weighting)).sum();
    let room = most_over(&Filled::default(), board, &question.1, &placements)
        .map(|more| (taken.min(whole), (taken + more).min(whole) - taken.min(whole), whole));
    KNOWN.with_borrow_mut(|known| known.insert(question, room));
    room
}

/// The heaviest set of further types of a board of mixed sizes.
pub(super) fn mix(running: &[&VgpuType], weigh: &dyn Fn(&VgpuType) -> Exact) -> Exact {
    let (board, memory) = (&running[0].board_code, running[0].board_memory_mib);
    let taken: u32 = running.iter().map(|each| each.framebuffer_mib).sum();
    let types: Vec<(u32, usize, Exact)> = Catalogue::embedded()
        .vgpu_types()
        .filter(|each| each.board_code == *board && each.gi_profile.is_none())
        .map(|each| {
            let here = running.iter().filter(|other| other.name == each.name).count();
            let room = usize::from(each.max_mixed.unwrap_or(each.max)).saturating_sub(here);
            (each.framebuffer_mib.div_ceil(512), room, weigh(each))
        })
        .collect();
    let mut known = HashMap::new();
    heaviest(&types, memory.saturating_sub(taken) / 512, &mut known)
}

fn heaviest(types: &[(u32, usize, Exact)], units: u32, known: &mut HashMap<(usize, u32), Exact>) -> Exact {
    let Some(((size, limit, weight), rest)) = types.split_first() else { return Exact::zero() };
    if let Some(known) = known.get(&(types.len(), units)) {
        return known.clone();
    }
    let (mut best, mut left, mut sum) = (heaviest(rest, units, known), units, Exact::zero());
    for _ in 0..*limit {
        let Some(less) = left.checked_sub(*size) else { break };
        (left, sum) = (less, sum.plus(weight));
        best = best.max(sum.plus(&heaviest(rest, left, known)));
    }
    known.insert((types.len(), units), best.clone());
    best
}

pub(super) fn weightings() -> impl Strategy<Value = Weighting> {
    prop_oneof![
        2 => Just(Weighting::DEFAULT),
        1 => (0..=1_000_000_u32).prop_map(|alpha_ppm| Weighting::Blended { alpha_ppm }),
        1 => Just(Weighting::Compute),
        1 => Just(Weighting::Memory),
        1 => Just(Weighting::Dominant),
    ]
}

#[test]
fn the_search_for_room_agrees_with_trying_everything() {
    let boards =
        || Catalogue::embedded().boards().filter_map(|board| Some((&board.key, board.mig.as_ref()?)));
    let each = vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..8_u8), 0..8);
    for (key, board) in boards() {
        holds(25, (weightings(), &each), |(weighting, picks)| {
            let mut standing: Vec<Standing> = Vec::new();
            for (profile, start, how) in picks {
                let profile = profile.index(board.profiles.len());
                let starts = starts(board, profile);
                let start = starts[start.index(starts.len())];
                standing.push((profile, (how > 1).then_some(start)));
                // Mostly what can be: what cannot is tried and left out again, one time in eight not.
                if how != 7 && room(key, board, &standing, weighting).is_none() {
                    standing.pop();
                }
            }
            let instances: Vec<Instance> = standing
                .iter()
                .map(|(profile, start)| Instance { profile: *profile, start: *start })
                .collect();
            let got = examine(board, &instances, weighting);
            let Some((taken, addable, whole)) = room(key, board, &standing, weighting) else {
                prop_assert!(got.is_err(), "{}: {:?} cannot be", key, standing);
                return Ok(());
            };
            let got = got.map_err(|error| TestCaseError::fail(format!("{key}: {error}")))?;
            let share = |part: i64| Share::new(part.into(), whole.into()).unwrap();
            prop_assert_eq!(
                (got.taken, got.addable),
                (share(taken), share(addable)),
                "{}: {:?}",
                key,
                standing
            );
            Ok(())
        });
    }
}
