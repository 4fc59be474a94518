//! Event sets. A set hears of what happens after it was told to listen, of each thing once.

use std::collections::{BTreeMap, BTreeSet};

use crate::scenario::{Board, Scenario};

use super::{Answer, Call, Code};

/// A critical error.
pub(crate) const XID: u64 = 0x8;
/// Instances were made or unmade.
pub(crate) const MIG_CHANGE: u64 = 0x100;

/// Something that happened to a board.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Event {
    at: i64,
    /// The board's UUID.
    pub(crate) board: String,
    /// The bit of its kind.
    pub(crate) kind: u64,
    pub(crate) data: u64,
    pub(crate) gi: Option<u32>,
    pub(crate) ci: Option<u32>,
    /// Keeps apart what is alike.
    place: usize,
}

#[derive(Default)]
struct Set {
    /// Boards by UUID, with the kinds listened for and since when.
    registered: BTreeMap<String, (u64, i64)>,
    delivered: BTreeSet<Event>,
}

/// The sets that were made and not freed.
pub(super) struct Sets {
    made: usize,
    all: BTreeMap<usize, Set>,
}

const BASE: usize = 0x9000_0000;
const STEP: usize = 0x40;

impl Sets {
    pub(super) const fn new() -> Sets {
        Sets { made: 0, all: BTreeMap::new() }
    }
}

impl Call<'_> {
    pub(crate) fn make_set(&mut self) -> usize {
        let sets = &mut self.world.sets;
        sets.made += 1;
        let number = BASE + sets.made * STEP;
        sets.all.insert(number, Set::default());
        number
    }

    pub(crate) fn free_set(&mut self, set: usize) -> Answer {
        self.world.sets.all.remove(&set).map(|_| ()).ok_or(Code::INVALID_ARGUMENT)
    }

    /// Lets a set listen to a board; what it listened for already, it keeps.
    pub(crate) fn register(&mut self, set: usize, board: &Board, kinds: u64) -> Answer {
        if kinds & !(XID | MIG_CHANGE) != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let now = self.now;
        let set = self.world.sets.all.get_mut(&set).ok_or(Code::INVALID_ARGUMENT)?;
        let entry = set.registered.entry(board.uuid.clone()).or_insert((0, now));
        entry.0 |= kinds;
        Ok(())
    }

    /// The earliest thing that a set has not heard of yet, which it has heard of from now on.
    pub(crate) fn next_event(&mut self, set: usize) -> Answer<Event> {
        let (scenario, now) = (self.scenario, self.now);
        let set = self.world.sets.all.get_mut(&set).ok_or(Code::INVALID_ARGUMENT)?;
        let heard = set.registered.iter().flat_map(|(uuid, (kinds, since))| {
            let happened = events(scenario, uuid).into_iter();
            happened.filter(move |event| event.kind & kinds != 0 && *since < event.at && event.at <= now)
        });
        let next = heard.filter(|event| !set.delivered.contains(event)).min().ok_or(Code::TIMEOUT)?;
        set.delivered.insert(next.clone());
        Ok(next)
    }
}

/// All that ever happens to a board.
fn events(scenario: &Scenario, uuid: &str) -> Vec<Event> {
    let Some((_, board)) = scenario.board(uuid) else {
        return vec![];
    };
    let event =
        |at, kind, data, gi, ci, place| Event { at, board: uuid.to_owned(), kind, data, gi, ci, place };
    let xids = board.xid.iter().enumerate();
    let mut events: Vec<Event> =
        xids.map(|(place, one)| event(one.at.0, XID, one.xid, one.gi, one.ci, place)).collect();
    let of_instances = board.instance.iter().flat_map(|instance| {
        let computes = instance.compute.iter().map(|compute| compute.span());
        computes.chain([instance.span()]).flat_map(|span| [span.from, span.until])
    });
    let of_mode = board.mig.iter().flat_map(|mig| mig.edges());
    let edges: BTreeSet<i64> = of_instances.chain(of_mode).collect();
    events.extend(edges.into_iter().map(|at| event(at, MIG_CHANGE, 0, None, None, 0)));
    events
}
