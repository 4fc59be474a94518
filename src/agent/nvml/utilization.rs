//! From the driver's sample buffers to integrals of activity, each sample counted once.
//!
//! A sample says what percent of SM time somebody used in one period of the driver's grid, and is stamped by
//! the driver's clock with the period's end. It covers the time from the grid's stamp before it, whoever
//! that one was of, where that is about one period ago; else nobody was busy in between and it covers one
//! period. NVIDIA's periods are between a sixth of a second and a second, by product; which one it is, the
//! stamps show.
//!
//! Always true here: of one pid (or vGPU) a stamp counts once, and only upwards, however often and in which
//! order buffers are given out; what was counted before a restart is known after it.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::raw::Sample;

/// The longest period of a driver, and what counts until a grid is known. Source: NVML API reference,
/// `nvmlDeviceGetProcessUtilization`: between 1 s and 1/6 s.
const PERIOD_MICROS_MAX: u64 = 1_000_000;
/// Stamps that are nearer than this are of one instant of the grid: the shortest period is 166 ms.
const INSTANT_MICROS: u64 = 100_000;
/// How long stamps are remembered one by one. What is given out again is from the driver's buffer, which is
/// of minutes.
const REMEMBERED_MICROS: u64 = 600 * 1_000_000;
/// Most pids that are remembered one by one.
const SEEN_MAX: usize = 500;
/// Of so many last distances the grid's period is read.
const DISTANCES: usize = 64;
/// Nanoseconds of activity in a microsecond, by percent.
const NANOS_PER_MICRO_PERCENT: i64 = 10;

/// What outlives a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GridState {
    /// All stamps up to here are counted.
    floor: u64,
    /// The newest stamp of all.
    newest: u64,
    period: u64,
    /// The newest stamp of each that is above the floor.
    seen: BTreeMap<u32, u64>,
}

/// The samples of one board that were counted.
#[derive(Debug, Default)]
pub(super) struct Grid {
    state: GridState,
    /// The newest stamps of the grid.
    stamps: BTreeSet<u64>,
    /// The last distances of neighbours, as far as they can be a period.
    distances: VecDeque<u64>,
    /// Whether there was a look before: what is in the buffer at the first one is from before it.
    has_begun: bool,
    /// Looks in a row that brought nothing.
    silent: u32,
}

impl Grid {
    pub(super) fn restored(state: GridState) -> Self {
        let stamps = (state.newest > 0).then_some(state.newest).into_iter().collect();
        Self { state, stamps, ..Self::default() }
    }

    pub(super) fn state(&self) -> GridState {
        self.state.clone()
    }

    /// What to ask the driver for: everything since this stamp.
    ///
    /// Now and then everything that it has: where its clock was set back, what is new bears stamps of long
    /// ago.
    pub(super) fn since(&self) -> u64 {
        if self.silent > 0 && self.silent.is_multiple_of(60) { 0 } else { self.state.newest }
    }

    /// Nanoseconds of SM time that each used according to samples that were not counted yet; they are now.
    ///
    /// At the first look nothing is: what the buffer holds is of a time in which nobody looked.
    pub(super) fn count(&mut self, mut samples: Vec<Sample>) -> HashMap<u32, i64> {
        let asked_all = self.since() == 0;
        samples.sort_unstable_by_key(|sample| (sample.stamp, sample.whose));
        let (was_silent, newest) = (self.silent, samples.last().map_or(0, |sample| sample.stamp));
        let mut sums = HashMap::new();
        let mut is_new = false;
        if was_silent > 0 && asked_all && self.was_set_back(&samples) {
            tracing::warn!("the driver's clock was set back: its samples count from here on anew");
            *self = Self::default();
        }
        let has_begun = std::mem::replace(&mut self.has_begun, true);
        for Sample { whose, stamp, percent } in samples {
            if stamp <= self.state.floor || self.state.seen.get(&whose).is_some_and(|seen| *seen >= stamp) {
                continue;
            }
            self.state.seen.insert(whose, stamp);
            let micros = self.covered(stamp);
            is_new = true;
            if has_begun {
                let nanos = i64::from(percent.min(100))
                    .saturating_mul(i64::try_from(micros).unwrap_or_default())
                    .saturating_mul(NANOS_PER_MICRO_PERCENT);
                let sum: &mut i64 = sums.entry(whose).or_default();
                *sum = sum.saturating_add(nanos);
            }
        }
        self.silent = if is_new { 0 } else { self.silent.saturating_add(1) };
        self.state.newest = self.state.newest.max(newest);
        if !has_begun {
            self.state.floor = self.state.floor.max(self.state.newest);
        }
        self.prune();
        sums
    }

    /// Whether what the driver holds ends before what it gave out already.
    fn was_set_back(&self, samples: &[Sample]) -> bool {
        let is_new = |sample: &Sample| {
            self.state.seen.get(&sample.whose).is_none_or(|seen| *seen != sample.stamp)
                && !self.stamps.contains(&sample.stamp)
        };
        !samples.is_empty() && samples.iter().all(|sample| sample.stamp < self.state.newest && is_new(sample))
    }

    /// How long a time the sample of a stamp covers, in microseconds.
    fn covered(&mut self, stamp: u64) -> u64 {
        // Those of one instant may differ by a little.
        let near = stamp.saturating_sub(INSTANT_MICROS).saturating_add(1)
            ..=stamp.saturating_add(INSTANT_MICROS).saturating_sub(1);
        let stamp = match self.stamps.range(near).next() {
            Some(known) => *known,
            None => {
                self.learn(stamp);
                self.stamps.insert(stamp);
                stamp
            }
        };
        let before = self.stamps.range(..stamp).next_back();
        let period = self.period();
        match before.and_then(|before| stamp.checked_sub(*before)) {
            Some(distance) if distance <= period.saturating_add(period / 2) => distance,
            Some(_) | None => period,
        }
    }

    /// Takes note of how far a new stamp is from the one before it.
    fn learn(&mut self, stamp: u64) {
        let Some(before) = self.stamps.range(..stamp).next_back() else { return };
        let distance = stamp.saturating_sub(*before);
        if distance > PERIOD_MICROS_MAX.saturating_add(INSTANT_MICROS) {
            return;
        }
        if self.distances.len() >= DISTANCES {
            self.distances.pop_front();
        }
        self.distances.push_back(distance);
        let mut sorted: Vec<u64> = self.distances.iter().copied().collect();
        sorted.sort_unstable();
        // Not the smallest: one odd stamp must not shorten all that come after it.
        self.state.period = sorted.get(sorted.len() / 10).copied().unwrap_or_default();
    }

    const fn period(&self) -> u64 {
        if self.state.period == 0 { PERIOD_MICROS_MAX } else { self.state.period }
    }

    /// Forgets single stamps of long ago; all up to there are counted.
    fn prune(&mut self) {
        let mut floor = self.state.newest.saturating_sub(REMEMBERED_MICROS);
        if self.state.seen.len() > SEEN_MAX {
            let mut newest: Vec<u64> = self.state.seen.values().copied().collect();
            newest.sort_unstable();
            let spare = newest.len().saturating_sub(SEEN_MAX);
            floor = floor.max(newest.get(spare).copied().unwrap_or_default());
        }
        if floor > self.state.floor {
            self.state.floor = floor;
            self.state.seen.retain(|_, stamp| *stamp > floor);
            self.stamps = self.stamps.split_off(&floor);
        }
    }
}

/// Nanoseconds that `percent` of a span are.
pub(super) fn of_percent(percent: u32, micros: i64) -> i64 {
    i64::from(percent.min(100)).saturating_mul(micros).saturating_mul(NANOS_PER_MICRO_PERCENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;
    const START: u64 = 1_780_272_000 * SECOND;

    fn sample(whose: u32, millis: u64, percent: u32) -> Sample {
        Sample { whose, stamp: START + millis * 1_000, percent }
    }

    /// A grid that was looked at before, with an empty buffer.
    fn begun() -> Grid {
        let mut grid = Grid::default();
        assert!(grid.count(Vec::new()).is_empty());
        grid
    }

    fn millis(sums: &HashMap<u32, i64>, whose: u32) -> i64 {
        sums.get(&whose).copied().unwrap_or_default() / 1_000_000
    }

    #[test]
    fn what_the_buffer_holds_at_the_first_look_is_of_before_and_does_not_count() {
        let mut grid = Grid::default();
        assert!(grid.count(vec![sample(1, 1_000, 50), sample(1, 2_000, 50)]).is_empty());
        let sums = grid.count(vec![sample(1, 2_000, 50), sample(1, 3_000, 50)]);
        assert_eq!(millis(&sums, 1), 500);
    }

    #[test]
    fn a_sample_counts_once_reordered_doubled_or_again() {
        let mut grid = begun();
        let all: Vec<Sample> =
            (1..=5).flat_map(|at| [sample(1, at * 1_000, 40), sample(2, at * 1_000, 10)]).collect();
        let doubled: Vec<Sample> = all.iter().rev().flat_map(|one| [*one, *one]).collect();
        let sums = grid.count(doubled);
        assert_eq!((millis(&sums, 1), millis(&sums, 2)), (2_000, 500));
        assert!(grid.count(all.clone()).is_empty());
        let mut grid = Grid::restored(grid.state());
        assert!(grid.count(all).is_empty(), "after a restart too");
    }

    #[test]
    fn a_sample_covers_the_time_from_the_grids_stamp_before_it() {
        let mut grid = begun();
        // The grid is of a sixth of a second; both processes show it.
        let all = (1..=12).map(|at| sample(1 + u32::try_from(at % 2).unwrap(), at * 166, 100)).collect();
        let sums = grid.count(all);
        // The first of all has none before it: a second is assumed.
        assert_eq!(millis(&sums, 1), 6 * 166);
        assert_eq!(millis(&sums, 2), 1_000 + 5 * 166);
        // Nobody was busy for a while: the next sample is of one period and not of the while.
        assert_eq!(millis(&grid.count(vec![sample(1, 60_000, 50)]), 1), 83);
    }

    #[test]
    fn stamps_that_differ_by_a_little_are_of_one_instant() {
        let mut grid = begun();
        grid.count((1..=20).map(|at| sample(1, at * 1_000, 1)).collect());
        let sums = grid.count(vec![sample(1, 21_000, 50), sample(2, 21_003, 50), sample(3, 20_998, 50)]);
        assert!([1, 2, 3].into_iter().all(|whose| (499..=501).contains(&millis(&sums, whose))), "{sums:?}");
    }

    #[test]
    fn a_late_sample_of_another_counts_and_one_of_long_ago_does_not() {
        let mut grid = begun();
        grid.count((1..=20).map(|at| sample(1, at * 1_000, 1)).collect());
        assert_eq!(millis(&grid.count(vec![sample(2, 15_000, 50)]), 2), 500);
        grid.count(vec![sample(1, 700_000, 1)]);
        assert!(grid.count(vec![sample(3, 16_000, 50)]).is_empty());
    }

    #[test]
    fn a_drivers_clock_that_was_set_back_is_followed_within_a_minute_of_looks() {
        let mut grid = begun();
        let at = |second: u64| Sample { whose: 1, stamp: START + second * SECOND, percent: 100 };
        grid.count((3_000..3_010).map(at).collect());
        let mut counted = 0;
        for second in 0..200_u64 {
            // Only what is newer than asked for.
            let (from, since) = (second.saturating_sub(30), grid.since());
            let buffer = (from..=second).map(at).filter(|one| one.stamp > since).collect();
            counted += grid.count(buffer).values().sum::<i64>();
        }
        assert!((130_000_000_000..=140_000_000_000).contains(&counted), "{counted}");
    }

    #[test]
    fn the_state_stays_small_with_ever_new_pids() {
        let mut grid = begun();
        for at in 1..20_000_u32 {
            grid.count(vec![sample(at, u64::from(at) * 200, 1)]);
        }
        assert!(serde_json::to_vec(&grid.state()).unwrap().len() < 32_000);
        assert_eq!(millis(&grid.count(vec![sample(1, 20_000 * 200, 50)]), 1), 100);
    }
}
