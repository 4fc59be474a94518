//! Opening a spool: what the segments and the cursor say, and what is done about damage.
//!
//! A torn tail is cut. Damage before good records is passed over, and a gap is written for the windows in it. A damaged
//! cursor is as none: what is not known to be acknowledged is sent again. No damage keeps a spool from opening, and a
//! crash in the middle of it only means that it is done again.
//!
//! A last record that was damaged reads as one that was torn. Of a window, its time is measured again or missing. Of a
//! batch that was handed out, its number is given again: the service answers 409, and the lane begins a new stream.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::disk::Disk;
use super::frame;
use super::log::{self, BESIDE, Log, Place, Segment};
use super::ranges::{Range, Ranges};
use super::record::{BatchRecord, CURSOR_FILE, Cursor, Stream, WindowRecord};
use super::{BatchEntry, Lane, PressureState, SEGMENT_BYTES_MAX, Settings, Spool, SpoolError, damaged};
use crate::domain::ids::Name;
use crate::domain::period::Span;
use crate::domain::units::Instant;

/// Into how many segments a small budget is divided.
const SEGMENTS_MIN: u64 = 16;

/// What the logs say of the time at the edges of numbers.
#[derive(Default)]
struct Edges {
    /// By a run's first number.
    starts: BTreeMap<u64, Instant>,
    /// By its last.
    ends: BTreeMap<u64, Instant>,
    /// Numbers that segments may have lost to damage.
    suspect: Ranges,
}

impl Edges {
    fn note(&mut self, (first, last): Range, span: Span) {
        self.starts.insert(first, span.start());
        self.ends.insert(last, span.end());
    }

    /// The time between the neighbours of missing numbers.
    fn between(&self, (from, to): Range, last_edge: Option<Instant>) -> Span {
        let start = self.ends.range(..from).next_back().map(|(_, at)| *at);
        let end = self.starts.range(to..).next().map(|(_, at)| *at).or(last_edge).or(start);
        let end = end.unwrap_or(Instant::MIN);
        Span::clamped(start.unwrap_or(end), end)
    }
}

impl<D: Disk> Spool<D> {
    /// Opens the spool of a folder, or makes one. `ids` gives random ids for streams.
    ///
    /// # Errors
    /// [`SpoolError`] where the disk fails; never for what is on it.
    pub fn open(
        mut disk: D,
        settings: Settings,
        ids: impl FnMut() -> Uuid + Send + 'static,
    ) -> Result<Self, SpoolError> {
        let names = disk.list().map_err(log::io("list", "the folder"))?;
        for name in names.iter().filter(|name| name.ends_with(BESIDE)) {
            // It was never finished. If it stays, the next one of its name takes its place.
            drop(disk.unlink(name));
        }
        let mut read = None;
        let mut cursor_bytes = 0;
        if names.iter().any(|name| name == CURSOR_FILE) {
            let bytes = disk.read(CURSOR_FILE).map_err(log::io("read", CURSOR_FILE))?;
            cursor_bytes = log::bytes_of(&bytes);
            read = Cursor::read(&bytes);
        }
        let has_cursor = read.is_some();
        let segment_max = settings.budget.div_euclid(SEGMENTS_MIN).min(SEGMENT_BYTES_MAX);
        let mut spool = Self {
            disk,
            settings,
            ids: Box::new(ids),
            has_failed: false,
            window_log: Log::new("windows", segment_max),
            batch_log: Log::new("batches", segment_max),
            windows: BTreeMap::new(),
            batches: [BTreeMap::new(), BTreeMap::new()],
            cursor: read.unwrap_or_default(),
            cursor_bytes,
            source_state: Vec::new(),
            doomed: Vec::new(),
            worst: PressureState::Fine,
        };
        let mut edges = Edges::default();
        spool.read_batches(&names, &mut edges)?;
        spool.read_windows(&names, &mut edges)?;
        spool.settle_lanes(has_cursor);
        spool.fill_missing(&edges, has_cursor)?;
        for lane in Lane::ALL {
            if spool.lane(lane).stream.is_none() {
                spool.begin_stream(lane, Name::fixed("the spool is new"))?;
            }
        }
        spool.drop_done_windows();
        Ok(spool)
    }

    fn read_batches(&mut self, names: &[String], edges: &mut Edges) -> Result<(), SpoolError> {
        for first in segments_of(&self.batch_log, names) {
            let file = self.batch_log.file(first);
            let bytes = self.disk.read(&file).map_err(log::io("read", &file))?;
            let scan = frame::scan(&bytes);
            for found in &scan.frames {
                let Some(record) = BatchRecord::of(found) else { continue };
                self.cursor.next_batch = self.cursor.next_batch.max(record.number().saturating_add(1));
                match record {
                    BatchRecord::Stream { lane, stream, .. } => self.know_stream(lane, stream),
                    BatchRecord::Batch { lane, lane_number, stream, windows, span, .. } => {
                        self.know_stream(lane, stream);
                        let place = place(first, &found.at);
                        self.hold(lane, lane_number, BatchEntry { span, place });
                        if let Some(state) = self.cursor.lanes.get_mut(lane.index()) {
                            state.formed = state.formed.max(lane_number);
                        }
                        if let (Some(from), Some(to)) = (windows.first(), windows.last()) {
                            edges.note((from.0, to.1), span);
                        }
                        for range in windows {
                            self.cursor.done.add(range);
                        }
                        self.cursor.last_edge = self.cursor.last_edge.max(Some(span.end()));
                    }
                }
            }
            let good = scan.good;
            if good == 0 {
                drop(self.disk.unlink(&file));
                continue;
            }
            cut(&mut self.disk, &file, &bytes, good)?;
            self.batch_log.segments.insert(first, segment(good, false));
        }
        Ok(())
    }

    fn know_stream(&mut self, lane: Lane, stream: Stream) {
        if let Some(state) = self.cursor.lanes.get_mut(lane.index()) {
            let known = state.stream.as_ref().map_or(0, |known| known.generation);
            if known < stream.generation {
                // A stream begins behind what is acknowledged.
                state.acknowledged = state.acknowledged.max(stream.base);
                state.stream = Some(stream);
            }
        }
    }

    fn read_windows(&mut self, names: &[String], edges: &mut Edges) -> Result<(), SpoolError> {
        let mut known = Ranges::default();
        let firsts = segments_of(&self.window_log, names);
        for (at, first) in firsts.iter().enumerate() {
            let file = self.window_log.file(*first);
            let bytes = self.disk.read(&file).map_err(log::io("read", &file))?;
            let scan = frame::scan(&bytes);
            let mut last = *first;
            let mut is_whole = !scan.is_damaged && scan.good == bytes.len();
            for found in &scan.frames {
                let record = WindowRecord::of(found).filter(|record| record.first >= *first);
                let Some(record) = record else {
                    is_whole = false;
                    continue;
                };
                let numbers = (record.first, record.last);
                last = last.max(record.last);
                if known.missing(numbers) != [numbers] {
                    // An earlier file took it over: this one was to be removed.
                    continue;
                }
                known.add(numbers);
                edges.note(numbers, record.span);
                self.cursor.last_edge = self.cursor.last_edge.max(Some(record.span.end()));
                if !record.state.is_empty() {
                    self.source_state.clone_from(&record.state);
                }
                self.know_window(&record, place(*first, &found.at));
            }
            if !is_whole {
                let next = firsts.get(at.saturating_add(1)).map(|next| next.saturating_sub(1));
                edges.suspect.add((*first, next.unwrap_or(last)));
            }
            self.cursor.next_window = self.cursor.next_window.max(last.saturating_add(1));
            if scan.good == 0 {
                drop(self.disk.unlink(&file));
                continue;
            }
            cut(&mut self.disk, &file, &bytes, scan.good)?;
            self.window_log.segments.insert(*first, segment(scan.good, scan.is_damaged));
        }
        if let Some(last) = self.cursor.done.last() {
            self.cursor.next_window = self.cursor.next_window.max(last.saturating_add(1));
        }
        Ok(())
    }

    /// Without a cursor, all that is held counts as not acknowledged, but for what a stream's base says.
    fn settle_lanes(&mut self, has_cursor: bool) {
        for (state, held) in self.cursor.lanes.iter_mut().zip(&self.batches) {
            let base = state.stream.as_ref().map_or(0, |stream| stream.base);
            let oldest = held.keys().next().map_or(0, |number| number.saturating_sub(1));
            let known = if has_cursor { state.acknowledged } else { oldest };
            state.acknowledged = known.max(base);
            state.formed = state.formed.max(state.acknowledged);
        }
    }

    /// Writes gaps for windows that have to be there and are not.
    fn fill_missing(&mut self, edges: &Edges, has_cursor: bool) -> Result<(), SpoolError> {
        let mut known = self.cursor.done.clone();
        for (first, entry) in &self.windows {
            known.add((*first, entry.last));
        }
        let Some(newest) = self.cursor.next_window.checked_sub(1) else { return Ok(()) };
        // Without a cursor, a number that is nowhere may as well be one that was acknowledged long ago.
        let asked: Vec<Range> = if has_cursor {
            let oldest = known.iter().map(|(from, _)| from).chain(edges.suspect.iter().map(|(from, _)| from));
            oldest.min().map(|oldest| (oldest, newest)).into_iter().collect()
        } else {
            edges.suspect.iter().collect()
        };
        let state = self.source_state.clone();
        for missing in asked.into_iter().flat_map(|range| known.missing(range)) {
            for numbers in split_at(missing, self.cursor.live_from) {
                let span = edges.between(numbers, self.cursor.last_edge);
                let gap = self.gap_record(numbers, span, &damaged(), state.clone())?;
                let mut records = vec![gap];
                // A file of that name has other records behind the damage.
                records.extend(self.records(numbers.0)?.into_iter().map(|(_, record)| record));
                self.replace_segment(numbers.0, &records)?;
            }
        }
        Ok(())
    }
}

/// The part of a range below a number, and the part from it on.
fn split_at((from, to): Range, at: u64) -> Vec<Range> {
    if from < at && at <= to { vec![(from, at.saturating_sub(1)), (at, to)] } else { vec![(from, to)] }
}

fn segments_of(log: &Log, names: &[String]) -> Vec<u64> {
    let mut firsts: Vec<u64> = names.iter().filter_map(|name| log.first_of(name)).collect();
    firsts.sort_unstable();
    firsts
}

fn place(segment: u64, at: &std::ops::Range<usize>) -> Place {
    let number = |value: usize| u64::try_from(value).unwrap_or(u64::MAX);
    Place { segment, offset: number(at.start), length: number(at.len()) }
}

fn segment(bytes: usize, is_closed: bool) -> Segment {
    Segment { bytes: u64::try_from(bytes).unwrap_or(u64::MAX), is_closed, is_merged: false }
}

/// Cuts what is behind the last good frame.
fn cut(disk: &mut impl Disk, file: &str, bytes: &[u8], good: usize) -> Result<(), SpoolError> {
    if good == bytes.len() {
        return Ok(());
    }
    let good = u64::try_from(good).unwrap_or(u64::MAX);
    disk.truncate(file, good).map_err(log::io("cut", file))?;
    disk.sync(file).map_err(log::sync("sync", file))
}
