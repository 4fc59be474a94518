//! A node that is played from a fleet file: who holds what, how busy it is, and what goes wrong.
//!
//! Always true here: what is there at an instant depends on the file and the instant alone, and what a sample
//! measured is the exact integral since the sample before, rounded so that samples add up however many there are. So
//! a source that is restored goes on exactly, and a replay that samples once a minute sums to what a live run does.
//!
//! The examples under `tests/fixtures/agent` show what a file can say. Every change is at a whole second.

mod file;
mod fleet;
mod layout;
mod piece;
mod read;
#[cfg(test)]
mod tests;
mod when;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::source::{
    Amount, DeviceInfo, DeviceSample, Inventory, Newcomer, Sample, Source, SourceError, Standing,
};
use crate::domain::ids::Name;
use crate::domain::period::Span;
use crate::domain::units::{Instant, MICROS_PER_HOUR, MICROS_PER_SECOND};
use crate::domain::usage::{Evidence, Slice};
use fleet::{Metering, Node};
use piece::{Piece, Played, Rate};

/// As far back as devices tell what was used, in microseconds.
const REMEMBERED_MICROS: i64 = 7 * 24 * MICROS_PER_HOUR;

pub use read::{ScriptError, nodes};

/// How far [`ScriptedSource::next_change`] looks, in microseconds: a year.
const HORIZON_MICROS: i64 = 366 * 86_400 * MICROS_PER_SECOND;

/// A source that plays a node of a fleet file. It has no clock: it shows what its instants ask for.
#[derive(Debug)]
pub struct ScriptedSource {
    node: Node,
    /// The sample before.
    last: Option<Instant>,
    /// What was there at the sample before; empty: not worked out since a restart.
    before: Vec<Arc<Standing>>,
    /// What is there around the last instant that was asked for.
    piece: Option<Piece>,
}

/// What outlives a process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    last_micros: i64,
}

impl ScriptedSource {
    /// Reads a fleet file, and plays one of its nodes.
    ///
    /// # Errors
    /// [`ScriptError`] says what in the file cannot be, and where.
    pub fn open(text: &str, node: &Name) -> Result<Self, ScriptError> {
        Ok(Self { node: read::node(text, node)?, last: None, before: Vec::new(), piece: None })
    }

    /// The first instant after another at which a holder, a layout, or what can be seen changes; none: nothing does
    /// within a year.
    #[must_use]
    pub fn next_change(&self, after: Instant) -> Option<Instant> {
        self.next_change_before(after, after.plus_micros(HORIZON_MICROS))
    }

    /// The same, if it comes before `end`. It looks no further.
    #[must_use]
    pub fn next_change_before(&self, after: Instant, end: Instant) -> Option<Instant> {
        let mut piece = Piece::at(&self.node, after, None);
        let first: Vec<Arc<Standing>> = piece.devices.iter().map(|each| Arc::clone(&each.standing)).collect();
        while piece.span.end() < end {
            piece = Piece::at(&self.node, piece.span.end(), Some(&piece));
            let now = piece.devices.iter().map(|each| &each.standing);
            if now.zip(&first).any(|(now, first)| !Arc::ptr_eq(now, first) && now != first) {
                return Some(piece.span.start());
            }
        }
        None
    }

    /// What is there at an instant.
    fn move_to(&mut self, at: Instant) -> Piece {
        match self.piece.take() {
            Some(piece) if piece.span.contains(at) => piece,
            piece => Piece::at(&self.node, at, piece.as_ref()),
        }
    }

    /// From where on a sample measures; none: there was none before it.
    fn since(&self, at: Instant) -> Option<Instant> {
        let last = self.last.map(|last| last.min(at));
        let replayed = self.node.replays.iter().rev().find(|(from, length)| match self.last {
            Some(last) => last < *from && *from <= at,
            None => *from <= at && at < from.plus_micros(*length),
        });
        replayed.map(|(_, length)| at.plus_micros(length.saturating_neg())).or(last)
    }
}

impl Source for ScriptedSource {
    fn inventory(&mut self) -> Result<Inventory, SourceError> {
        let devices: Vec<DeviceInfo> = self.node.devices.iter().map(|device| device.info.clone()).collect();
        Ok(Inventory { driver: self.node.driver.clone(), devices })
    }

    fn sample(&mut self, at: Instant, sample: &mut Sample) -> Result<(), SourceError> {
        if self.before.is_empty() {
            let piece = self.move_to(self.last.unwrap_or(at));
            self.before = piece.devices.iter().map(|each| Arc::clone(&each.standing)).collect();
            self.piece = Some(piece);
        }
        // No device remembers for longer what happened since it was looked at.
        sample.since = self.since(at).filter(|since| at.micros_since(*since) <= REMEMBERED_MICROS);
        sample.devices.truncate(self.before.len());
        for (number, before) in self.before.iter().enumerate() {
            match sample.devices.get_mut(number) {
                Some(look) => begin(look, before),
                None => sample.devices.push(DeviceSample::unmeasured(Arc::clone(before))),
            }
        }
        let mut from = sample.since.unwrap_or(at);
        if let Some(since) = sample.since {
            for (look, device) in sample.devices.iter_mut().zip(&self.node.devices) {
                let is_reset = device.resets.iter().any(|reset| since < *reset && *reset <= at);
                if !is_reset && since < at {
                    look.amounts.extend(look.measured_of.meters.iter().map(|_| piece::NOTHING));
                    look.millijoules = Some(0);
                }
            }
        }
        while from < at {
            let piece = self.move_to(from);
            let span = Span::clamped(from, piece.span.end().min(at));
            for (look, played) in sample.devices.iter_mut().zip(&piece.devices) {
                measure(look, played, span);
            }
            from = span.end();
            self.piece = Some(piece);
        }
        if let Some(since) = sample.since {
            let span = Span::clamped(since, at);
            for (look, device) in sample.devices.iter_mut().zip(&self.node.devices) {
                if device.metering == Metering::Holders
                    && device.hidden.iter().any(|hidden| hidden.meets(span))
                {
                    look.amounts.clear();
                    look.newcomers.clear();
                }
            }
        }
        let piece = self.move_to(at);
        let now = sample.devices.iter_mut().zip(&mut self.before).zip(&piece.devices);
        for ((look, before), played) in now {
            look.standing = Arc::clone(&played.standing);
            *before = Arc::clone(&played.standing);
        }
        self.piece = Some(piece);
        self.last = Some(at);
        Ok(())
    }

    fn state(&self) -> Vec<u8> {
        let state = self.last.map(|last| State { last_micros: last.micros() });
        state.and_then(|state| serde_json::to_vec(&state).ok()).unwrap_or_default()
    }

    fn restore(&mut self, state: &[u8]) {
        let state: Option<State> = serde_json::from_slice(state).ok();
        self.last = state.map(|state| Instant::MIN.plus_micros(state.last_micros));
        self.before.clear();
    }
}

/// Empties a look, and says of what its amounts will be.
fn begin(look: &mut DeviceSample, before: &Arc<Standing>) {
    look.measured_of = Arc::clone(before);
    look.amounts.clear();
    look.newcomers.clear();
    look.millijoules = None;
}

/// Adds what a device did in a span without change.
fn measure(look: &mut DeviceSample, played: &Played, span: Span) {
    // The counters began anew.
    let Some(millijoules) = look.millijoules.as_mut() else { return };
    *millijoules = millijoules.saturating_add(piece::by_second(played.milliwatts, span));
    if Arc::ptr_eq(&look.measured_of, &played.standing) {
        for (sum, rate) in look.amounts.iter_mut().zip(&played.rates) {
            add(sum, rate.over(span));
        }
        return;
    }
    for (at, rate) in played.rates.iter().enumerate() {
        let Some((slice, seen)) = metered(&played.standing, at) else { continue };
        let place = (0..look.measured_of.meters.len())
            .find(|at| metered(&look.measured_of, *at) == Some((slice, seen)));
        match place.and_then(|at| look.amounts.get_mut(at)) {
            Some(sum) => add(sum, rate.over(span)),
            None => add_newcomer(&mut look.newcomers, slice, seen, *rate, span),
        }
    }
}

fn add_newcomer(all: &mut Vec<Newcomer>, slice: &Slice, seen: Option<&Evidence>, rate: Rate, span: Span) {
    let is_same = |each: &&mut Newcomer| each.slice == *slice && each.evidence.as_ref() == seen;
    if let Some(newcomer) = all.iter_mut().find(is_same) {
        add(&mut newcomer.amount, rate.over(span));
        return;
    }
    all.push(Newcomer { slice: slice.clone(), evidence: seen.cloned(), amount: rate.over(span) });
}

fn add(sum: &mut Amount, more: Amount) {
    let plus = |a: Option<i64>, b: Option<i64>| a.zip(b).map(|(a, b)| a.saturating_add(b));
    sum.active_nanos = plus(sum.active_nanos, more.active_nanos);
    sum.memory_byte_seconds = plus(sum.memory_byte_seconds, more.memory_byte_seconds);
}

/// What a meter measures.
fn metered(standing: &Standing, at: usize) -> Option<(&Slice, Option<&Evidence>)> {
    let meter = standing.meters.get(at)?;
    let holder = meter.holder.and_then(|at| standing.holders.get(at));
    Some((standing.slices.get(meter.slice)?, holder.map(|holder| &holder.evidence)))
}
