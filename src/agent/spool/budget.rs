//! Room on the disk: what goes first when the budget is used up.
//!
//! Acknowledged batches, then detail (minutes become quarter-hours), then the oldest windows, for which a gap stands.

use super::disk::Disk;
use super::log::Place;
use super::ranges::Range;
use super::record::WindowRecord;
use super::{Lane, PressureState, Spool, SpoolError, WindowEntry, fits, hull, merge};
use crate::domain::ids::Name;
use crate::domain::period::Span;
use crate::domain::usage::Batch;

/// Windows are merged inside quarter-hours of UTC, in microseconds.
const QUARTER_MICROS: i64 = 15 * 60 * 1_000_000;

/// Windows for which one gap stands: their numbers, their time, and the state of the last.
type GapRun = (Range, Span, Vec<u8>);

/// What a step freed.
enum Step {
    /// Something; there may be more.
    Freed,
    /// There is nothing left of this kind.
    Nothing,
}

impl<D: Disk> Spool<D> {
    /// Makes room for so many bytes. Where nothing can go any more, the budget is exceeded: measuring goes on.
    pub(super) fn make_room(&mut self, bytes: usize) -> Result<(), SpoolError> {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        if self.used().saturating_mul(2) < self.settings.budget {
            self.worst = PressureState::Fine;
        }
        while self.used().saturating_add(bytes) > self.settings.budget {
            match self.free() {
                Ok(Step::Freed) => {}
                Ok(Step::Nothing) => break,
                Err(error) if error.is_fatal() => return Err(error),
                // A disk that takes no rewriting may still take the window.
                Err(_) => break,
            }
            self.remove_doomed();
        }
        Ok(())
    }

    fn free(&mut self) -> Result<Step, SpoolError> {
        if let Some(segment) = self.oldest_acknowledged(None) {
            self.drop_batches(segment)?;
            return Ok(Step::Freed);
        }
        if let Step::Freed = self.merge_oldest()? {
            self.worst = self.worst.max(PressureState::Merging);
            return Ok(Step::Freed);
        }
        if let Step::Freed = self.drop_oldest()? {
            self.worst = PressureState::Dropping;
            return Ok(Step::Freed);
        }
        Ok(Step::Nothing)
    }

    /// Merges the untried windows of the oldest segment in which that is to be had. Not of the newest: its quarter-hour
    /// goes on.
    fn merge_oldest(&mut self) -> Result<Step, SpoolError> {
        let newest = self.window_log.newest();
        let waiting = self
            .window_log
            .segments
            .iter()
            .filter(|(first, segment)| !segment.is_merged && Some(**first) != newest);
        let waiting: Vec<u64> = waiting.map(|(first, _)| *first).collect();
        for segment in waiting {
            let before = self.window_log.segments.get(&segment).map_or(0, |segment| segment.bytes);
            let records = self.records(segment)?;
            let count = records.len();
            // Those in a batch are of no use here.
            let untried = records.into_iter().filter(|(_, record)| self.is_untried(record)).collect();
            let merged = self.merge_records(untried)?;
            if merged.is_empty() {
                self.remove_segment(segment);
                return Ok(Step::Freed);
            }
            if merged.len() < count {
                self.replace_segment(segment, &merged)?;
            }
            let after = self.window_log.segments.get_mut(&segment).map_or(0, |segment| {
                segment.is_merged = true;
                segment.bytes
            });
            if after < before {
                return Ok(Step::Freed);
            }
        }
        Ok(Step::Nothing)
    }

    /// Makes one record of each run of untried windows that touch inside a quarter-hour.
    fn merge_records(
        &self,
        records: Vec<(WindowEntry, WindowRecord)>,
    ) -> Result<Vec<WindowRecord>, SpoolError> {
        let mut runs: Vec<Vec<WindowRecord>> = Vec::new();
        for (_, record) in records {
            let last = runs.last().and_then(|run| run.last());
            let goes_on = last.is_some_and(|last| self.are_one(last, &record));
            match runs.last_mut().filter(|_| goes_on) {
                Some(run) => run.push(record),
                None => runs.push(vec![record]),
            }
        }
        let mut merged = Vec::with_capacity(runs.len());
        for run in runs {
            match self.merge_run(&run)? {
                Some(one) => merged.push(one),
                None => merged.extend(run),
            }
        }
        Ok(merged)
    }

    fn is_untried(&self, record: &WindowRecord) -> bool {
        !self.cursor.done.holds((record.first, record.last))
    }

    fn are_one(&self, a: &WindowRecord, b: &WindowRecord) -> bool {
        let quarter = |instant: i64| instant.div_euclid(QUARTER_MICROS);
        let (start, end) = (a.span.start().micros(), b.span.end().micros());
        let is_neighbour = a.last.saturating_add(1) == b.first && a.span.end() == b.span.start();
        let is_same_lane = b.first != self.cursor.live_from;
        let is_same_quarter = quarter(start) == quarter(end.saturating_sub(1));
        is_neighbour && is_same_lane && is_same_quarter && !a.is_gap && !b.is_gap
    }

    /// One record of several; none: one is all there is, or they fit no message together.
    fn merge_run(&self, run: &[WindowRecord]) -> Result<Option<WindowRecord>, SpoolError> {
        let ([first, .., last], Some(span)) = (run, hull(run.iter().map(|record| record.span))) else {
            return Ok(None);
        };
        let windows: Vec<Batch> = run.iter().map(|record| self.contents(record)).collect();
        let merged = merge::merge(&windows);
        if !fits(&merged) {
            return Ok(None);
        }
        let minutes = run.iter().fold(0_u32, |sum, record| sum.saturating_add(record.minutes));
        Ok(self.packed(&merged)?.map(|body| WindowRecord {
            first: first.first,
            last: last.last,
            span,
            minutes,
            is_gap: false,
            state: last.state.clone(),
            body,
        }))
    }

    /// Puts gaps in the place of the untried windows of the oldest segment that has some.
    fn drop_oldest(&mut self) -> Result<Step, SpoolError> {
        let oldest = self
            .windows
            .iter()
            .find(|(first, entry)| !entry.is_gap && !self.cursor.done.holds((**first, entry.last)));
        let Some(segment) = oldest.map(|(_, entry)| entry.place.segment) else { return Ok(Step::Nothing) };
        if Some(segment) == self.window_log.newest() {
            self.window_log.close();
        }
        let before = self.window_log.bytes();
        let mut gaps: Vec<GapRun> = Vec::new();
        for (entry, record) in self.records(segment)? {
            if !self.is_untried(&record) {
                // Its batch has it.
                continue;
            }
            let numbers = (record.first, record.last);
            match gaps.last_mut().filter(|last| self.follows(last, numbers, entry.span)) {
                Some(last) => *last = widened(last, numbers, entry.span, record.state),
                None => gaps.push((numbers, entry.span, record.state)),
            }
        }
        // The gap before goes on here, where there is one: its file says so before this one goes.
        let previous = self.previous_gap(segment)?;
        let mut files: Vec<(u64, Vec<WindowRecord>)> = Vec::new();
        let mut rest = gaps.into_iter().peekable();
        if let Some((file, mut before)) = previous
            && let Some(last) = before.pop()
            && let Some((numbers, span, state)) =
                rest.next_if(|(numbers, span, _)| self.follows(&last, *numbers, *span))
        {
            before.push(widened(&last, numbers, span, state));
            files.push((file, self.gap_records(before)?));
        }
        files.push((segment, self.gap_records(rest.collect())?));
        for (file, records) in files {
            if records.is_empty() {
                self.remove_segment(file);
            } else {
                self.replace_segment(file, &records)?;
            }
        }
        let is_less = self.window_log.bytes() < before;
        Ok(if is_less { Step::Freed } else { Step::Nothing })
    }

    fn follows(&self, last: &GapRun, numbers: Range, span: Span) -> bool {
        last.0.1.saturating_add(1) == numbers.0
            && last.1.end() == span.start()
            && numbers.0 != self.cursor.live_from
    }

    fn gap_records(&self, gaps: Vec<GapRun>) -> Result<Vec<WindowRecord>, SpoolError> {
        let reason = Name::fixed("the agent's disk budget was used up");
        gaps.into_iter()
            .map(|(numbers, span, state)| self.gap_record(numbers, span, &reason, state))
            .collect()
    }

    /// The segment before, if it holds nothing but untried gaps, and what they are.
    fn previous_gap(&mut self, segment: u64) -> Result<Option<(u64, Vec<GapRun>)>, SpoolError> {
        let before = self.window_log.segments.range(..segment).next_back().map(|(first, _)| *first);
        let Some(before) = before else { return Ok(None) };
        let inside = self.windows.iter().filter(|(_, entry)| entry.place.segment == before);
        let is_gap = |(first, entry): (&u64, &WindowEntry)| {
            entry.is_gap && !self.cursor.done.holds((*first, entry.last))
        };
        if !inside.into_iter().all(is_gap) {
            return Ok(None);
        }
        let records = self.records(before)?;
        let gaps = records
            .into_iter()
            .map(|(entry, record)| ((record.first, record.last), entry.span, record.state));
        Ok(Some((before, gaps.collect())))
    }

    /// Rewrites a segment, or makes one, and knows its records by their new places.
    pub(super) fn replace_segment(
        &mut self,
        segment: u64,
        records: &[WindowRecord],
    ) -> Result<(), SpoolError> {
        let frames: Vec<Vec<u8>> = records.iter().map(WindowRecord::frame).collect();
        let places = self.window_log.rewrite(&mut self.disk, segment, &frames)?;
        self.windows.retain(|_, entry| entry.place.segment != segment);
        for (record, place) in records.iter().zip(places) {
            self.know_window(record, place);
        }
        Ok(())
    }

    pub(super) fn know_window(&mut self, record: &WindowRecord, place: Place) {
        // What a longer gap has taken over is not there a second time.
        let inside = record.first.saturating_add(1)..=record.last;
        let inside: Vec<u64> = if record.first < record.last {
            self.windows.range(inside).map(|(first, _)| *first).collect()
        } else {
            Vec::new()
        };
        for first in inside {
            self.windows.remove(&first);
        }
        let entry = WindowEntry { last: record.last, span: record.span, is_gap: record.is_gap, place };
        self.windows.insert(record.first, entry);
    }

    /// Removes segments of windows that are all in batches. The newest stays: it says where the source's buffers were
    /// read to.
    pub(super) fn drop_done_windows(&mut self) {
        let newest = self.window_log.newest();
        let mut untried: std::collections::BTreeSet<u64> = std::collections::BTreeSet::new();
        for lane in Lane::ALL {
            untried.extend(self.untried(lane).map(|(_, entry)| entry.place.segment));
        }
        let segments = self.window_log.segments.keys().copied();
        let done: Vec<u64> =
            segments.filter(|first| Some(*first) != newest && !untried.contains(first)).collect();
        for segment in done {
            self.remove_segment(segment);
        }
        self.remove_doomed();
    }

    /// Gives up a segment of windows that nobody needs. Its file is removed as soon as that works: until then batches,
    /// the cursor or an earlier gap say that its windows are done.
    fn remove_segment(&mut self, segment: u64) {
        self.doomed.push(self.window_log.file(segment));
        self.window_log.segments.remove(&segment);
        self.windows.retain(|_, entry| entry.place.segment != segment);
    }

    pub(super) fn remove_doomed(&mut self) {
        let disk = &mut self.disk;
        self.doomed.retain(|file| match disk.unlink(file) {
            Ok(()) => false,
            Err(error) => error.kind() != std::io::ErrorKind::NotFound,
        });
    }
}

fn widened(last: &GapRun, numbers: Range, span: Span, state: Vec<u8>) -> GapRun {
    let all = hull([last.1, span]).unwrap_or(span);
    ((last.0.0, numbers.1), all, state)
}
