//! From samples to windows: half-open spans of server time, cut at UTC minutes and wherever what is there changes.
//!
//! Always true here: windows do not overlap and none begins before the edge that the windower was made with; what
//! was measured between two samples is in windows once, however it is cut; a span that nobody sampled is in no
//! window, and so is unknown.

mod open;
mod split;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::source::{DeviceSample, Sample, Standing};
use crate::domain::period::Span;
use crate::domain::units::{Instant, MICROS_PER_SECOND};
use crate::domain::usage::{Batch, ClockRow};
use open::OpenDevice;

/// Where windows are cut, in microseconds of server time.
const MINUTE_MICROS: i64 = 60 * MICROS_PER_SECOND;

/// A gap between samples above which nobody knows who held what, in microseconds.
///
/// Ten samples at one a second. A driver call may block for some seconds while a device is reset, and that is no
/// reason to bill the time as unknown; who comes and goes unseen can hold for less than this. Whoever samples more
/// rarely, as a replay does, says so.
pub const SILENCE_MAX_MICROS: i64 = 10 * MICROS_PER_SECOND;

/// A closed window. It has every row of its span, which can be more than a message carries: see [`Window::parts`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// When. Every row of the batch lies inside.
    pub span: Span,
    /// What was there and what was measured.
    pub batch: Batch,
    /// The source's state after the sample that closed it: with it, a source goes on after this window.
    pub source_state: Vec<u8>,
}

/// What a windower left out or mended, since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Activity above the time in which it was measured, cut off, in nanoseconds.
    pub overstated_nanos: i64,
    /// Amounts below zero, taken as not measured.
    pub negative: u64,
    /// Energy that no board can have taken, taken as not measured.
    pub implausible_energy: u64,
    /// Looks whose amounts are of something else than was there before, taken as not measured.
    pub misfits: u64,
    /// Gaps between samples that were left out.
    pub silences: u64,
    /// Samples that were earlier than the one before.
    pub steps_back: u64,
}

/// What a window is closed with: asked for only when one closes.
pub trait Stamp {
    /// The clocks at a window's end; none: nothing to say.
    fn clocks(&self, span: Span) -> Option<ClockRow>;

    /// The source's state after the sample at hand.
    fn source_state(&self) -> Vec<u8>;
}

/// Makes windows of samples. See the module.
#[derive(Debug)]
pub struct Windower {
    silence_max_micros: i64,
    /// Windows end where so much is full, of UTC.
    cut_micros: i64,
    /// No window begins before it.
    edge: Instant,
    /// The sample before.
    last: Option<Instant>,
    devices: Vec<OpenDevice>,
    /// The window that is being filled; it ends where the last sample was.
    open: Option<Span>,
    counts: Counts,
}

impl Windower {
    /// A windower of which no window begins before `last_edge`, the end of the last window that was kept.
    #[must_use]
    pub fn new(last_edge: Instant) -> Self {
        Self::with_silence_max(last_edge, SILENCE_MAX_MICROS)
    }

    /// The same, for samples that are up to `silence_max_micros` apart.
    #[must_use]
    pub fn with_silence_max(last_edge: Instant, silence_max_micros: i64) -> Self {
        Self::with_cuts(last_edge, silence_max_micros, MINUTE_MICROS)
    }

    /// The same, of which windows are longer than a minute: a history needs no detail that nobody reads.
    #[must_use]
    pub fn with_cuts(last_edge: Instant, silence_max_micros: i64, cut_micros: i64) -> Self {
        Self {
            silence_max_micros,
            cut_micros: cut_micros.max(1),
            edge: last_edge,
            last: None,
            devices: Vec::new(),
            open: None,
            counts: Counts::default(),
        }
    }

    /// What was left out or mended.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Takes a sample, and returns the windows that it closes, in order.
    ///
    /// What stood at the sample before stood until this one. The first sample closes nothing, whatever it measured:
    /// who held what before it is not known.
    pub fn add(&mut self, at: Instant, sample: &Sample, stamp: &impl Stamp) -> Vec<Window> {
        let mut closed = Vec::new();
        if let Some(before) = self.last.replace(at) {
            if at < before {
                self.counts.steps_back = self.counts.steps_back.saturating_add(1);
                closed.extend(self.close(stamp));
            } else if at.micros_since(before) > self.silence_max_micros {
                self.counts.silences = self.counts.silences.saturating_add(1);
                closed.extend(self.close(stamp));
            } else {
                self.cover(Span::clamped(before.max(self.edge), at), sample, stamp, &mut closed);
            }
        }
        if !self.stands(&sample.devices) {
            closed.extend(self.close(stamp));
            self.devices = sample.devices.iter().map(|each| OpenDevice::new(&each.standing)).collect();
        }
        closed
    }

    /// Closes the window that is being filled at the last sample, if there is one: for an orderly end.
    pub fn close(&mut self, stamp: &impl Stamp) -> Option<Window> {
        let span = self.open.take()?;
        self.edge = self.edge.max(span.end());
        let mut batch = open::batch(span, &mut self.devices, &mut self.counts);
        batch.clocks.extend(stamp.clocks(span));
        Some(Window { span, batch, source_state: stamp.source_state() })
    }

    /// Puts the time since the sample before into windows, minute by minute.
    fn cover(&mut self, span: Span, sample: &Sample, stamp: &impl Stamp, closed: &mut Vec<Window>) {
        let Some(last) = self.last else { return };
        let measured = sample.since.map_or(Span::clamped(last, last), |since| Span::clamped(since, last));
        for (device, look) in self.devices.iter_mut().zip(&sample.devices) {
            device.check(measured, look, &mut self.counts);
        }
        let mut from = span.start();
        while from < span.end() {
            let edge = edge_after(from, self.cut_micros);
            let piece = Span::clamped(from, edge.min(span.end()));
            self.open = Some(Span::clamped(self.open.map_or(from, Span::start), piece.end()));
            for (device, look) in self.devices.iter_mut().zip(&sample.devices) {
                device.add(piece, measured, look);
            }
            if piece.end() == edge {
                closed.extend(self.close(stamp));
            }
            from = piece.end();
        }
    }

    /// Whether what is there now is what was there before. Takes over the newer of two equal handles.
    fn stands(&mut self, looks: &[DeviceSample]) -> bool {
        let is_same = |(open, look): (&mut OpenDevice, &DeviceSample)| {
            let is_same = same(&open.standing, &look.standing);
            if is_same {
                open.standing = Arc::clone(&look.standing);
            }
            is_same
        };
        self.devices.len() == looks.len() && self.devices.iter_mut().zip(looks).all(is_same)
    }
}

/// Whether two standings are the same: one comparison where the source hands out one `Arc`.
fn same(a: &Arc<Standing>, b: &Arc<Standing>) -> bool {
    Arc::ptr_eq(a, b) || a == b
}

/// The first edge after an instant.
fn edge_after(instant: Instant, every: i64) -> Instant {
    let number = instant.micros().div_euclid(every);
    Instant::from_micros(number.saturating_add(1).saturating_mul(every))
}
