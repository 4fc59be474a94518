//! Utilization samples: taken on a grid that begins at `start`, each of the time since the one before.
//!
//! A process has a sample of each period that it lived through from end to end and used something in;
//! percents change on the grid only, so a sample is exact. Kept are those of the last instants, and none from
//! before the driver was loaded.

use std::collections::BTreeMap;

use crate::scenario::{Board, Engines, Percents, SampleFault, SampleFaultKind, Span};

use super::{Answer, Call, Code, vgpus};

/// What one process or vGPU used of a board in one period.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    /// When the period ended, as the driver stamps it.
    pub(crate) stamp: u64,
    /// A pid, or the id of a vGPU.
    pub(crate) whose: u32,
    pub(crate) percent: Engines,
}

/// What a process in a VM used.
#[derive(Debug, Clone)]
pub(crate) struct GuestSample {
    pub(crate) sample: Sample,
    pub(crate) vgpu: u32,
    pub(crate) name: String,
}

/// How idle ones are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Idle {
    /// Without a sample.
    Left,
    /// With a sample of nothing.
    Told,
}

impl<'a> Call<'a> {
    /// Samples of the processes of a board that are later than `seen`.
    pub(crate) fn process_samples(&self, board: &Board, seen: u64) -> Answer<Vec<Sample>> {
        self.check_undivided(board)?;
        let mut samples = vec![];
        for period in self.periods(board, seen) {
            for process in &board.process {
                let percent = process.percent.as_ref();
                samples.extend(self.sample(period, process.pid, process.span(), percent, Idle::Left));
            }
        }
        self.given_out(board, samples, |sample| (0, sample.whose))
    }

    /// Samples of the vGPUs of a board that are later than `seen`.
    pub(crate) fn vgpu_samples(&self, board: &'a Board, seen: u64) -> Answer<Vec<Sample>> {
        self.check_undivided(board)?;
        let vgpus = vgpus::known(self.scenario, board, self.now);
        let mut samples = vec![];
        for period in self.periods(board, seen) {
            for (id, vgpu) in &vgpus {
                samples.extend(self.sample(period, *id, vgpu.span(), vgpu.percent.as_ref(), Idle::Told));
            }
        }
        self.given_out(board, samples, |sample| (0, sample.whose))
    }

    /// Samples of the processes inside the vGPUs of a board that are later than `seen`.
    pub(crate) fn guest_samples(&self, board: &'a Board, seen: u64) -> Answer<Vec<GuestSample>> {
        self.check_undivided(board)?;
        let vgpus = vgpus::known(self.scenario, board, self.now);
        let mut samples = vec![];
        for period in self.periods(board, seen) {
            for (id, vgpu) in &vgpus {
                for process in &vgpu.process {
                    let percent = process.percent.as_ref();
                    let sample = self.sample(period, process.pid, process.span(), percent, Idle::Left);
                    let name = process.name.clone();
                    samples.extend(sample.map(|sample| GuestSample { sample, vgpu: *id, name }));
                }
            }
        }
        self.given_out(board, samples, |sample| (sample.vgpu, sample.sample.whose))
    }

    /// The periods that samples are kept and asked for of.
    fn periods(&self, board: &Board, seen: u64) -> Vec<Span> {
        let period = self.scenario.sample_period();
        let last = self.now.div_euclid(period);
        let first = (last - i64::from(self.scenario.sample_buffer)).max(0);
        let (loaded, _) = self.scenario.last_load(self.now);
        let is_replayed = SampleFault::hold(&board.sample_fault, SampleFaultKind::Replayed, self.now);
        (first..last)
            .map(|at| Span { from: at * period, until: (at + 1) * period })
            .filter(|span| loaded.is_none_or(|loaded| span.from >= loaded))
            .filter(|span| is_replayed || self.stamp(span.until) > seen)
            .collect()
    }

    fn sample(
        &self,
        period: Span,
        whose: u32,
        alive: Span,
        percent: Option<&Percents>,
        idle: Idle,
    ) -> Option<Sample> {
        let percent = percent.map_or([0; 6], |percent| percent.at(period.from));
        let is_told = idle == Idle::Told || percent.iter().any(|percent| *percent > 0);
        let sample = Sample { stamp: self.stamp(period.until), whose, percent };
        (alive.covers(period) && is_told).then_some(sample)
    }

    /// What the driver makes of it: nothing new is an error, and it may be at fault.
    fn given_out<T: Clone>(
        &self,
        board: &Board,
        mut samples: Vec<T>,
        whose: impl Fn(&T) -> (u32, u32),
    ) -> Answer<Vec<T>> {
        let is = |kind| SampleFault::hold(&board.sample_fault, kind, self.now);
        if is(SampleFaultKind::LatestOnly) {
            let latest: BTreeMap<_, _> = samples.into_iter().map(|sample| (whose(&sample), sample)).collect();
            samples = latest.into_values().collect();
        }
        if is(SampleFaultKind::Doubled) {
            samples = samples.into_iter().flat_map(|sample| [sample.clone(), sample]).collect();
        }
        if is(SampleFaultKind::OutOfOrder) {
            samples.reverse();
        }
        if samples.is_empty() { Err(Code::NOT_FOUND) } else { Ok(samples) }
    }
}
