//! The window that is being filled: sums in place, and tables only when it closes.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use super::{Counts, same};
use crate::agent::source::{Amount, DeviceSample, Standing};
use crate::domain::period::Span;
use crate::domain::units::Instant;
use crate::domain::usage::{
    Batch, Coverage, CoverageOf, EnergyRow, Evidence, LayoutRow, Row, Slice, UseRow, cut_integral,
};

/// A sum over a span without holes, in which the same things were measured.
#[derive(Debug, Clone, Copy)]
struct Run {
    start: Instant,
    end: Instant,
    amount: Amount,
}

impl Run {
    const NONE: Self = Self {
        start: Instant::MIN,
        end: Instant::MIN,
        amount: Amount { active_nanos: None, memory_byte_seconds: None },
    };

    fn is_none(&self) -> bool {
        is_nothing(self.amount)
    }

    fn span(&self) -> Span {
        Span::clamped(self.start, self.end)
    }

    /// Adds a piece. Returns the run that ended, where the piece does not continue it.
    fn add(&mut self, piece: Span, more: Amount) -> Option<Self> {
        let goes_on = self.end == piece.start()
            && self.amount.active_nanos.is_some() == more.active_nanos.is_some()
            && self.amount.memory_byte_seconds.is_some() == more.memory_byte_seconds.is_some();
        if goes_on {
            self.end = piece.end();
            self.amount = sum(self.amount, more);
            return None;
        }
        let ended = std::mem::replace(self, Self { start: piece.start(), end: piece.end(), amount: more });
        (!ended.is_none()).then_some(ended)
    }
}

fn is_nothing(amount: Amount) -> bool {
    amount.active_nanos.is_none() && amount.memory_byte_seconds.is_none()
}

fn sum(a: Amount, b: Amount) -> Amount {
    let add = |a: Option<i64>, b: Option<i64>| match (a, b) {
        (Some(a), Some(b)) => Some(a.saturating_add(b)),
        (one, None) | (None, one) => one,
    };
    Amount {
        active_nanos: add(a.active_nanos, b.active_nanos),
        memory_byte_seconds: add(a.memory_byte_seconds, b.memory_byte_seconds),
    }
}

/// What of an amount over `measured` falls into `piece`. What is below zero was not measured.
fn part(amount: Amount, measured: Span, piece: Span) -> Amount {
    let cut = |all: Option<i64>| {
        all.filter(|all| *all >= 0)
            .map(|all| if piece == measured { all } else { cut_integral(all, measured, piece) })
    };
    Amount { active_nanos: cut(amount.active_nanos), memory_byte_seconds: cut(amount.memory_byte_seconds) }
}

/// One device in the window that is being filled.
#[derive(Debug)]
pub(super) struct OpenDevice {
    pub(super) standing: Arc<Standing>,
    /// For each meter of the standing, what it measured up to now.
    runs: Vec<Run>,
    /// Runs that ended inside the window, by meter.
    ended: Vec<(usize, Run)>,
    /// What was measured of those who were not there at the sample before.
    newcomers: Vec<(Slice, Option<Evidence>, Run)>,
    /// Energy, in the place of activity.
    energy: Run,
    energy_ended: Vec<Run>,
    /// Whether the amounts of the look at hand are of this standing.
    fits: bool,
    /// Whether the energy of the look at hand can be.
    has_energy: bool,
}

impl OpenDevice {
    pub(super) fn new(standing: &Arc<Standing>) -> Self {
        Self {
            standing: Arc::clone(standing),
            runs: vec![Run::NONE; standing.meters.len()],
            ended: Vec::new(),
            newcomers: Vec::new(),
            energy: Run::NONE,
            energy_ended: Vec::new(),
            fits: false,
            has_energy: false,
        }
    }

    /// Decides what of a look can be used, and counts what cannot.
    pub(super) fn check(&mut self, measured: Span, look: &DeviceSample, counts: &mut Counts) {
        let is_sized = look.amounts.is_empty() || look.amounts.len() == self.runs.len();
        self.fits = is_sized && same(&self.standing, &look.measured_of);
        if !self.fits {
            counts.misfits = counts.misfits.saturating_add(1);
        }
        let below = |amount: &&Amount| {
            amount.active_nanos.is_some_and(|each| each < 0)
                || amount.memory_byte_seconds.is_some_and(|each| each < 0)
        };
        let amounts = look.amounts.iter().chain(look.newcomers.iter().map(|each| &each.amount));
        let negative = u64::try_from(amounts.filter(below).count()).unwrap_or(u64::MAX);
        counts.negative = counts.negative.saturating_add(negative);
        let millijoules = look.millijoules.unwrap_or_default();
        let row = EnergyRow { device: self.standing.device.clone(), span: measured, millijoules };
        self.has_energy = look.millijoules.is_some() && row.is_plausible();
        if look.millijoules.is_some() && !self.has_energy {
            counts.implausible_energy = counts.implausible_energy.saturating_add(1);
        }
    }

    /// Adds what a look measured in `piece`, of all the time in which it measured. Of a lost device nothing counts.
    pub(super) fn add(&mut self, piece: Span, measured: Span, look: &DeviceSample) {
        let piece = piece.clip(measured);
        if piece.is_empty() || !self.standing.is_present() || self.standing.device != look.standing.device {
            return;
        }
        if self.fits {
            for (at, (run, amount)) in self.runs.iter_mut().zip(&look.amounts).enumerate() {
                let more = part(*amount, measured, piece);
                if !is_nothing(more) {
                    self.ended.extend(run.add(piece, more).map(|ended| (at, ended)));
                }
            }
        }
        for newcomer in &look.newcomers {
            let amount = part(newcomer.amount, measured, piece);
            let run = Run { start: piece.start(), end: piece.end(), amount };
            if !run.is_none() {
                self.newcomers.push((newcomer.slice.clone(), newcomer.evidence.clone(), run));
            }
        }
        if let (true, Some(millijoules)) = (self.has_energy, look.millijoules) {
            let all = Amount { active_nanos: Some(millijoules), memory_byte_seconds: None };
            self.energy_ended.extend(self.energy.add(piece, part(all, measured, piece)));
        }
    }

    /// Writes what the device had in the window, and begins anew.
    fn write(&mut self, span: Span, tables: &mut Tables, batch: &mut Batch) {
        let standing = Arc::clone(&self.standing);
        if standing.is_present() {
            let of = if standing.sees_holders {
                &[CoverageOf::Holding, CoverageOf::Use][..]
            } else {
                &[CoverageOf::Use]
            };
            let device = &standing.device;
            batch.coverage.extend(of.iter().map(|of| Coverage { device: device.clone(), span, of: *of }));
        }
        for slice in standing.slices.iter().filter(|slice| slice.id.is_some()) {
            batch.layout.push(LayoutRow { slice: tables.slices.number(slice), span, uncut: span });
        }
        for holder in &standing.holders {
            let Some(slice) = standing.slices.get(holder.slice) else { continue };
            let (slice, evidence) = (tables.slices.number(slice), tables.evidence.number(&holder.evidence));
            batch.rows.push(Row { slice, evidence, span, uncut: span });
        }
        let mut row = |slice: &Slice, seen: Option<&Evidence>, run: Run| {
            batch.usage.push(UseRow {
                slice: tables.slices.number(slice),
                evidence: seen.map(|seen| tables.evidence.number(seen)),
                span: run.span(),
                uncut_start: span.start(),
                active_nanos: run.amount.active_nanos,
                memory_byte_seconds: run.amount.memory_byte_seconds,
            });
        };
        let open = self.runs.iter_mut().map(|run| std::mem::replace(run, Run::NONE)).enumerate();
        for (at, run) in self.ended.drain(..).chain(open).filter(|(_, run)| !run.is_none()) {
            let Some(meter) = standing.meters.get(at) else { continue };
            let Some(slice) = standing.slices.get(meter.slice) else { continue };
            let seen = meter.holder.map(|at| standing.holders.get(at).map(|holder| &holder.evidence));
            if seen != Some(None) {
                row(slice, seen.flatten(), run);
            }
        }
        for (slice, seen, run) in self.newcomers.drain(..) {
            row(&slice, seen.as_ref(), run);
        }
        let last = std::mem::replace(&mut self.energy, Run::NONE);
        for run in self.energy_ended.drain(..).chain((!last.is_none()).then_some(last)) {
            let millijoules = run.amount.active_nanos.unwrap_or_default();
            batch.energy.push(EnergyRow { device: standing.device.clone(), span: run.span(), millijoules });
        }
    }
}

/// The batch of a window, of what its devices had in it; they begin anew.
pub(super) fn batch(span: Span, devices: &mut [OpenDevice], counts: &mut Counts) -> Batch {
    let (mut tables, mut batch) = (Tables::default(), Batch::default());
    for device in devices {
        device.write(span, &mut tables, &mut batch);
    }
    batch.slices = tables.slices.entries;
    batch.evidence = tables.evidence.entries;
    batch.usage = summed(batch.usage);
    for row in &mut batch.usage {
        let most = row.span.nanos();
        if let Some(active) = row.active_nanos.as_mut().filter(|active| **active > most) {
            counts.overstated_nanos = counts.overstated_nanos.saturating_add(active.saturating_sub(most));
            *active = most;
        }
    }
    batch
}

/// One row for each slice, holder and span: two that are alike to the letter would be taken for one.
fn summed(mut rows: Vec<UseRow>) -> Vec<UseRow> {
    rows.sort_unstable();
    rows.dedup_by(|next, kept| {
        let is_same = (next.slice, next.evidence, next.span) == (kept.slice, kept.evidence, kept.span);
        if is_same {
            let amount = |row: &UseRow| Amount {
                active_nanos: row.active_nanos,
                memory_byte_seconds: row.memory_byte_seconds,
            };
            let both = sum(amount(kept), amount(next));
            kept.active_nanos = both.active_nanos;
            kept.memory_byte_seconds = both.memory_byte_seconds;
        }
        is_same
    });
    rows
}

/// Values with their numbers, each once, in the order in which they came.
#[derive(Debug)]
pub(super) struct Table<T> {
    numbers: HashMap<T, usize>,
    pub(super) entries: Vec<T>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { numbers: HashMap::new(), entries: Vec::new() }
    }
}

impl<T: Clone + Eq + Hash> Table<T> {
    pub(super) fn number(&mut self, value: &T) -> usize {
        if let Some(number) = self.numbers.get(value) {
            return *number;
        }
        let number = self.entries.len();
        self.numbers.insert(value.clone(), number);
        self.entries.push(value.clone());
        number
    }
}

/// The tables of a batch.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) slices: Table<Slice>,
    pub(super) evidence: Table<Evidence>,
}
