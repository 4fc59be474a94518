//! Handles: what a caller holds of devices and instances. They are numbers that nobody follows, and stay the
//! same for the same thing; whether the thing exists is asked at each call.

use std::collections::BTreeMap;

/// What a handle is of. Instances of MIG that are made anew have handles of their own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Handle {
    Board(String),
    Mig { board: String, uuid: String },
    GpuInstance { board: String, gi: u32, from: i64 },
    ComputeInstance { board: String, uuid: String },
}

/// All handles that were given out.
pub(super) struct Handles {
    all: Vec<Handle>,
    numbers: BTreeMap<Handle, usize>,
}

/// Handles look like addresses, none of them near zero.
const BASE: usize = 0x10_0000;
const STEP: usize = 0x40;

impl Handles {
    pub(super) const fn new() -> Handles {
        Handles { all: Vec::new(), numbers: BTreeMap::new() }
    }

    /// The number of a handle, the same as before if it has one.
    pub(super) fn of(&mut self, handle: Handle) -> usize {
        if let Some(number) = self.numbers.get(&handle) {
            return *number;
        }
        let number = BASE + self.all.len() * STEP;
        self.all.push(handle.clone());
        self.numbers.insert(handle, number);
        number
    }

    pub(super) fn find(&self, number: usize) -> Option<&Handle> {
        let place = number.checked_sub(BASE)?;
        if place % STEP == 0 { self.all.get(place / STEP) } else { None }
    }
}
