//! Windows that were placed by a clock that turned out to be wrong: they are placed anew before they are sent.
//!
//! Always true: a window is placed by what its own clocks showed, so that doing it twice, or again after a crash in
//! the middle, comes to the same.

use super::disk::Disk;
use super::record::{Cursor, WindowRecord};
use super::{Spool, SpoolError};
use crate::agent::clock::OFF_MICROS_MIN;
use crate::domain::ids::Name;
use crate::domain::period::Span;
use crate::domain::units::{Instant, NANOS_PER_MICRO};
use crate::domain::usage::Batch;

impl<D: Disk> Spool<D> {
    /// Places the untried windows of a run of the machine where `offset_micros`, server time less monotonic clock, puts
    /// what their clocks showed, and lets windows follow from `now` on. Returns how many were moved.
    ///
    /// # Errors
    /// [`SpoolError`]; what was not moved then is by the next call.
    pub fn retime(&mut self, boot: &Name, offset_micros: i64, now: Instant) -> Result<usize, SpoolError> {
        self.guard(|spool| spool.retime_inner(boot, offset_micros, now))
    }

    fn retime_inner(&mut self, boot: &Name, offset_micros: i64, now: Instant) -> Result<usize, SpoolError> {
        let mut moved = 0;
        let segments: Vec<u64> = self.window_log.segments.keys().copied().collect();
        for segment in segments {
            let mut records = Vec::new();
            let mut is_changed = false;
            for (_, record) in self.records(segment)? {
                let is_untried = !self.cursor.done.holds((record.first, record.last));
                match self.placed(&record, boot, offset_micros).filter(|_| is_untried) {
                    Some(placed) => {
                        (moved, is_changed) = (moved + 1, true);
                        records.push(placed);
                    }
                    None => records.push(record),
                }
            }
            if is_changed {
                if Some(segment) == self.window_log.newest() {
                    self.window_log.close();
                }
                self.replace_segment(segment, &records)?;
            }
        }
        let edge = self.cursor.last_edge.filter(|edge| *edge <= now);
        let newest = self.windows.values().map(|entry| entry.span.end().min(now)).max();
        // What was sent for a time that has not come is the service's to judge.
        let next = edge.max(newest).or_else(|| self.cursor.last_edge.map(|edge| edge.min(now)));
        if next != self.cursor.last_edge {
            self.save(Cursor { last_edge: next, ..self.cursor.clone() })?;
        }
        Ok(moved)
    }

    /// A record where its clocks put it; none: it is there, or has no clocks of that run.
    fn placed(&self, record: &WindowRecord, boot: &Name, offset_micros: i64) -> Option<WindowRecord> {
        if record.is_gap {
            return None;
        }
        let mut batch = self.contents(record);
        let off = misplaced_by(&batch, boot, offset_micros)?;
        shift(&mut batch, off);
        let body = self.packed(&batch).ok().flatten()?;
        Some(WindowRecord { span: shifted(record.span, off), body, ..record.clone() })
    }
}

/// By how much what a batch says has to be moved to be where its clocks put it; none: it is there, or has no clocks of
/// that run of the machine.
pub(in crate::agent) fn misplaced_by(batch: &Batch, boot: &Name, offset_micros: i64) -> Option<i64> {
    let clocks = batch.clocks.iter().rev().find(|row| row.boot == *boot)?;
    let end = clocks.monotonic_nanos.div_euclid(NANOS_PER_MICRO).saturating_add(offset_micros);
    let off = end.saturating_sub(clocks.span.end().micros());
    (off.saturating_abs() >= OFF_MICROS_MIN).then_some(off)
}

/// A span so much later.
pub(in crate::agent) fn shifted(span: Span, micros: i64) -> Span {
    Span::clamped(span.start().plus_micros(micros), span.end().plus_micros(micros))
}

/// Moves all that a batch says.
pub(in crate::agent) fn shift(batch: &mut Batch, micros: i64) {
    let move_span = |span: &mut Span| *span = shifted(*span, micros);
    for row in &mut batch.rows {
        move_span(&mut row.span);
        move_span(&mut row.uncut);
    }
    for row in &mut batch.layout {
        move_span(&mut row.span);
        move_span(&mut row.uncut);
    }
    for row in &mut batch.usage {
        move_span(&mut row.span);
        row.uncut_start = row.uncut_start.plus_micros(micros);
    }
    batch.energy.iter_mut().for_each(|row| move_span(&mut row.span));
    batch.coverage.iter_mut().for_each(|row| move_span(&mut row.span));
    batch.gaps.iter_mut().for_each(|row| move_span(&mut row.span));
    for row in &mut batch.clocks {
        move_span(&mut row.span);
        row.offset_micros = row.offset_micros.saturating_add(micros);
    }
}
