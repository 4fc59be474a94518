//! Batches of a lane: forming, handing out, acknowledging; streams and what to do when the service was set back.

use super::disk::Disk;
use super::log::{self, Place};
use super::merge;
use super::ranges::Range;
use super::record::{BatchRecord, Content, Cursor, LaneState, Stream, WindowRecord};
use super::{
    BatchEntry, BatchLimits, Lane, OutBody, Outgoing, Rewound, Spool, SpoolError, WindowEntry, damaged, hull,
};
use crate::domain::ids::Name;
use crate::domain::period::Span;
use crate::domain::units::{Instant, MICROS_PER_HOUR};
use crate::domain::usage::Batch;
use crate::wire::body::{PACKED_BYTES_MAX, ROWS_MAX};

/// Most runs of dropped batches that a lane remembers one by one. The oldest are told together.
const DROPPED_MAX: usize = 64;
/// Most windows that are read for one batch, whatever the limits say.
const WINDOWS_MAX: usize = 512;
/// In how many parts the time is told for which acknowledged batches are kept.
const KEEP_PARTS: i64 = 48;

/// A batch before it has a number.
struct Draft {
    windows: Vec<Range>,
    span: Span,
    content: Content,
}

/// What a batch speaks of, and its packed message; none: it is a skip.
pub type KeptBody = (Span, Option<Vec<u8>>);

impl<D: Disk> Spool<D> {
    /// What the lane has to send: its oldest batch that is not acknowledged, the same one until it is; else a new one
    /// of untried windows. Its bytes are durable when this returns.
    ///
    /// With `close` whatever waits is sent; else a batch is formed once it is as large as `limits` let it be.
    ///
    /// # Errors
    /// [`SpoolError`]; nothing is lost then.
    pub fn next_batch(
        &mut self,
        lane: Lane,
        limits: BatchLimits,
        close: bool,
    ) -> Result<Option<Outgoing>, SpoolError> {
        self.guard(|spool| {
            let state = spool.lane(lane);
            if state.acknowledged < state.formed {
                return spool.oldest_waiting(lane).map(Some);
            }
            let Some(draft) = spool.draft(lane, limits, close)? else { return Ok(None) };
            spool.form(lane, draft)?;
            spool.drop_done_windows();
            spool.oldest_waiting(lane).map(Some)
        })
    }

    /// The newest number of the lane's stream that was formed; 0: none.
    #[must_use]
    pub fn formed(&self, lane: Lane) -> i64 {
        self.sequence(lane, self.lane(lane).formed)
    }

    /// The lane's batches that are held, acknowledged or not, in the order of their numbers. For whoever compares: nothing
    /// changes by it.
    ///
    /// # Errors
    /// [`SpoolError`] when the disk cannot be read.
    pub fn kept(&mut self, lane: Lane) -> Result<Vec<KeptBody>, SpoolError> {
        let entries: Vec<BatchEntry> = self.held(lane).values().cloned().collect();
        let mut kept = Vec::with_capacity(entries.len());
        for entry in entries {
            kept.push(match self.read_batch(&entry.place)? {
                Some(Content::Body(body)) => (entry.span, Some(body)),
                Some(Content::Skip(_)) | None => (entry.span, None),
            });
        }
        Ok(kept)
    }

    /// Bytes of what the service has not acknowledged: no room is made by dropping them without a loss.
    pub(super) fn unsent(&self) -> u64 {
        let waiting = Lane::ALL.into_iter().flat_map(|lane| {
            let after = self.lane(lane).acknowledged.saturating_add(1);
            self.held(lane).range(after..).map(|(_, entry)| entry.place.length)
        });
        waiting.fold(self.window_log.bytes(), u64::saturating_add)
    }

    /// Everything of the lane up to a number is durable at the service. What was acknowledged long enough before `now`
    /// is dropped.
    ///
    /// # Errors
    /// [`SpoolError::NotWaiting`] for a number that was never formed: see [`Spool::new_stream`].
    pub fn acknowledge(&mut self, lane: Lane, sequence: i64, now: Instant) -> Result<(), SpoolError> {
        self.guard(|spool| {
            let state = spool.lane(lane);
            let number = spool.lane_number(lane, sequence);
            let number = number.filter(|number| *number <= state.formed);
            let Some(number) = number else { return Err(spool.not_waiting(lane, sequence)) };
            if number <= state.acknowledged {
                return Ok(());
            }
            let mut next = spool.cursor.clone();
            let part = spool.settings.keep_acknowledged_micros.div_euclid(KEEP_PARTS).max(1);
            let kept_from = spool.kept_from(now);
            if let Some(state) = next.lanes.get_mut(lane.index()) {
                state.acknowledged = number;
                note_acknowledged(&mut state.acknowledged_at, number, now, part);
                forget_times(&mut state.acknowledged_at, kept_from);
            }
            spool.save(next)?;
            spool.drop_old_batches(now)
        })
    }

    /// Drops what has been kept long enough at `now`, and removes files that could not be removed before.
    ///
    /// # Errors
    /// [`SpoolError`].
    pub fn maintain(&mut self, now: Instant) -> Result<(), SpoolError> {
        self.guard(|spool| {
            spool.drop_done_windows();
            spool.drop_old_batches(now)
        })
    }

    /// The service was set back: its mark of the lane's stream is below ours. Sending goes on behind that mark.
    ///
    /// # Errors
    /// [`SpoolError::NotWaiting`] for a mark that is not below ours.
    pub fn rewind(&mut self, lane: Lane, mark: i64) -> Result<Rewound, SpoolError> {
        self.guard(|spool| {
            let number = spool.lane_number(lane, mark.max(0));
            let number = number.filter(|number| *number <= spool.lane(lane).acknowledged);
            let Some(number) = number else { return Err(spool.not_waiting(lane, mark)) };
            if number < spool.lane(lane).acknowledged {
                let mut next = spool.cursor.clone();
                if let Some(state) = next.lanes.get_mut(lane.index()) {
                    state.acknowledged = number;
                    let at = state.acknowledged_at.iter().find(|(upto, _)| *upto >= number).copied();
                    state.acknowledged_at.retain(|(upto, _)| *upto < number);
                    state.acknowledged_at.extend(at.map(|(_, at)| (number, at)));
                }
                spool.save(next)?;
            }
            let after = number.saturating_add(1);
            if after > spool.lane(lane).formed || spool.held(lane).contains_key(&after) {
                return Ok(Rewound::To(mark.max(0).saturating_add(1)));
            }
            let (range, span) = spool.missing(lane, after);
            let (from, to) = (spool.sequence(lane, range.0), spool.sequence(lane, range.1));
            Ok(Rewound::NeedsSkip { from, to, span })
        })
    }

    /// The service holds something else under our numbers, or more than we sent: the lane begins a new stream, and all
    /// that is not acknowledged is sent again in it, from 1, with the same bytes.
    ///
    /// # Errors
    /// [`SpoolError`]; the old stream goes on then.
    pub fn new_stream(&mut self, lane: Lane, reason: Name) -> Result<(), SpoolError> {
        self.guard(|spool| spool.begin_stream(lane, reason))
    }

    /// The service will never take a number's body: the number becomes a skip.
    ///
    /// # Errors
    /// [`SpoolError::NotWaiting`] for a number that is acknowledged or not held.
    pub fn replace_with_skip(&mut self, lane: Lane, sequence: i64, reason: Name) -> Result<(), SpoolError> {
        self.guard(|spool| {
            let waiting = spool.lane_number(lane, sequence);
            let waiting = waiting.filter(|number| *number > spool.lane(lane).acknowledged);
            let held = waiting.and_then(|number| Some((number, spool.held(lane).get(&number)?.span)));
            let Some((lane_number, span)) = held else { return Err(spool.not_waiting(lane, sequence)) };
            let draft = Draft { windows: Vec::new(), span, content: Content::Skip(reason) };
            spool.write_batch(lane, lane_number, draft)
        })
    }

    pub(super) fn begin_stream(&mut self, lane: Lane, reason: Name) -> Result<(), SpoolError> {
        let id = (self.ids)();
        let state = self.lane(lane);
        let generation = state.stream.as_ref().map_or(0, |stream| stream.generation).saturating_add(1);
        let stream = Stream { id, base: state.acknowledged, generation };
        let number = self.cursor.next_batch;
        let record = BatchRecord::Stream { number, lane, stream: stream.clone(), reason };
        self.batch_log.append(&mut self.disk, number, &record.frame())?;
        self.cursor.next_batch = number.saturating_add(1);
        if let Some(state) = self.cursor.lanes.get_mut(lane.index()) {
            state.stream = Some(stream);
        }
        Ok(())
    }

    /// The windows of the next batch, and what it says.
    fn draft(&mut self, lane: Lane, limits: BatchLimits, close: bool) -> Result<Option<Draft>, SpoolError> {
        let (chosen, mut is_full) = self.choose(lane, limits);
        // A gap of days is longer than any batch may be: it is told by a number that will never come.
        if let Some((first, entry)) = chosen.first().filter(|(_, entry)| {
            entry.is_gap && entry.span.end().micros_since(entry.span.start()) > limits.span_max_micros
        }) {
            let (first, entry) = (*first, entry.clone());
            let record = self.window(first, &entry)?;
            let reason = self.contents(&record).gaps.first().map_or_else(damaged, |gap| gap.reason.clone());
            let windows = vec![(first, entry.last)];
            return Ok(Some(Draft { windows, span: entry.span, content: Content::Skip(reason) }));
        }
        let rows_max = limits.rows_max.min(ROWS_MAX);
        let mut windows: Vec<(Range, Span, Batch)> = Vec::new();
        let mut measures: usize = 0;
        for (first, entry) in chosen {
            let record = self.window(first, &entry)?;
            let contents = self.contents(&record);
            // Measures stay a row for each window, so what is too many here is too many together: a full node's
            // windows are not all read for each batch.
            measures = measures.saturating_add(contents.usage.len());
            if measures > rows_max && !windows.is_empty() {
                is_full = true;
                break;
            }
            windows.push(((first, entry.last), entry.span, contents));
        }
        let bytes_max = limits.bytes_max.min(PACKED_BYTES_MAX);
        while let Some(span) = hull(windows.iter().map(|(_, span, _)| *span)) {
            let contents: Vec<Batch> = windows.iter().map(|(_, _, batch)| batch.clone()).collect();
            let joined = merge::join(&contents);
            let ranges: Vec<Range> = windows.iter().map(|(range, _, _)| *range).collect();
            let is_small = merge::largest_table(&joined) <= rows_max;
            let body = if is_small { self.packed(&joined)? } else { None };
            match body.filter(|body| body.len() <= bytes_max) {
                Some(body) if is_full || close => {
                    return Ok(Some(Draft { windows: ranges, span, content: Content::Body(body) }));
                }
                Some(_) => return Ok(None),
                None if windows.len() == 1 => {
                    let content = Content::Skip(Name::fixed("the window is too large for a batch"));
                    return Ok(Some(Draft { windows: ranges, span, content }));
                }
                None => {
                    // Fewer windows; at least one goes each time.
                    is_full = true;
                    let kept = windows.len().saturating_mul(3).div_euclid(4).max(1);
                    windows.truncate(kept.min(windows.len().saturating_sub(1)));
                }
            }
        }
        Ok(None)
    }

    /// The lane's oldest windows that go into one batch by their number and time, and whether no more would.
    fn choose(&self, lane: Lane, limits: BatchLimits) -> (Vec<(u64, WindowEntry)>, bool) {
        let mut chosen: Vec<(u64, WindowEntry)> = Vec::new();
        let windows_max = limits.windows_max.min(WINDOWS_MAX);
        let hour = |instant: Instant| instant.micros().div_euclid(MICROS_PER_HOUR);
        for (first, entry) in self.untried(lane) {
            if let Some((_, oldest)) = chosen.first() {
                let start = oldest.span.start();
                let last = Instant::from_micros(entry.span.end().micros().saturating_sub(1));
                let is_far = entry.span.end().micros_since(start) > limits.span_max_micros
                    || (lane == Lane::Backlog && hour(last) != hour(start));
                if is_far || chosen.len() >= windows_max {
                    return (chosen, true);
                }
            }
            chosen.push((first, entry.clone()));
        }
        let length = hull(chosen.iter().map(|(_, entry)| entry.span))
            .map_or(0, |span| span.end().micros_since(span.start()));
        let is_full = length >= limits.span_max_micros || chosen.len() >= windows_max;
        (chosen, is_full)
    }

    fn form(&mut self, lane: Lane, draft: Draft) -> Result<(), SpoolError> {
        let windows = draft.windows.clone();
        let lane_number = self.lane(lane).formed.saturating_add(1);
        self.write_batch(lane, lane_number, draft)?;
        for range in windows {
            self.cursor.done.add(range);
        }
        if let Some(state) = self.cursor.lanes.get_mut(lane.index()) {
            state.formed = lane_number;
        }
        Ok(())
    }

    fn write_batch(&mut self, lane: Lane, lane_number: u64, draft: Draft) -> Result<(), SpoolError> {
        let number = self.cursor.next_batch;
        let Draft { windows, span, content } = draft;
        // `open` gives each lane a stream.
        let stream = self.lane(lane).stream.clone().ok_or(SpoolError::Failed)?;
        let record = BatchRecord::Batch { number, lane, lane_number, stream, windows, span, content };
        let place = self.batch_log.append(&mut self.disk, number, &record.frame())?;
        self.cursor.next_batch = number.saturating_add(1);
        self.hold(lane, lane_number, BatchEntry { span, place });
        Ok(())
    }

    /// The batch behind the acknowledged ones, or a skip of the numbers there that are not held.
    fn oldest_waiting(&mut self, lane: Lane) -> Result<Outgoing, SpoolError> {
        let number = self.lane(lane).acknowledged.saturating_add(1);
        let stream = self.lane(lane).stream.clone().ok_or(SpoolError::Failed)?;
        let Some(entry) = self.held(lane).get(&number).cloned() else {
            let (range, span) = self.missing(lane, number);
            let (from, to) = (self.sequence(lane, range.0), self.sequence(lane, range.1));
            let reason = Name::fixed("the agent holds these batches no more");
            let body = OutBody::Skip { from, to, reason, span };
            return Ok(Outgoing { lane, stream: stream.id, sequence: to, span, body });
        };
        let sequence = self.sequence(lane, number);
        let skip = |reason| OutBody::Skip { from: sequence, to: sequence, reason, span: entry.span };
        let body = match self.read_batch(&entry.place)? {
            Some(Content::Body(body)) => OutBody::Bytes(body),
            Some(Content::Skip(reason)) => skip(reason),
            None => skip(damaged()),
        };
        Ok(Outgoing { lane, stream: stream.id, sequence, span: entry.span, body })
    }

    fn read_batch(&mut self, place: &Place) -> Result<Option<Content>, SpoolError> {
        let frame = self.batch_log.read(&mut self.disk, place)?;
        Ok(match frame.as_deref().and_then(BatchRecord::read) {
            Some(BatchRecord::Batch { content, .. }) => Some(content),
            Some(BatchRecord::Stream { .. }) | None => None,
        })
    }

    /// The numbers from `number` on that are not held, and the time that they may have spoken of.
    fn missing(&self, lane: Lane, number: u64) -> (Range, Span) {
        let (held, state) = (self.held(lane), self.lane(lane));
        let after = held.range(number..).next();
        let to = after.map_or(state.formed, |(next, _)| next.saturating_sub(1));
        let range = (number, to);
        let dropped = state.dropped.iter().filter(|((from, last), _)| *from <= to && number <= *last);
        let known = hull(dropped.map(|(_, span)| *span));
        let before = held.range(..number).next_back().map(|(_, entry)| entry.span.end());
        let behind = after.map(|(_, entry)| entry.span.start());
        let end = behind.or(before).or(self.cursor.last_edge).unwrap_or(Instant::MIN);
        let between = Span::clamped(before.unwrap_or(end), end);
        (range, known.unwrap_or(between))
    }

    /// Drops whole segments of batches that were acknowledged long enough before `now`.
    fn drop_old_batches(&mut self, now: Instant) -> Result<(), SpoolError> {
        let edge = self.kept_from(now);
        while let Some(segment) = self.oldest_acknowledged(Some(edge)) {
            self.drop_batches(segment)?;
        }
        self.remove_doomed();
        Ok(())
    }

    /// The oldest segment of batches, if all in it are acknowledged, before `edge` where there is one. Never the
    /// newest: it says what the streams are and which windows are in batches, should the cursor be lost.
    pub(super) fn oldest_acknowledged(&self, edge: Option<Instant>) -> Option<u64> {
        let mut segments = self.batch_log.segments.keys();
        let (oldest, _newer) = (*segments.next()?, segments.next()?);
        let is_old = |lane: Lane, number: u64| {
            let state = self.lane(lane);
            let at = state.acknowledged_at.iter().find(|(upto, _)| *upto >= number).map(|(_, at)| *at);
            number <= state.acknowledged && edge.is_none_or(|edge| at.is_none_or(|at| at <= edge))
        };
        let all_old = Lane::ALL.into_iter().all(|lane| {
            let inside = self.held(lane).iter().filter(|(_, entry)| entry.place.segment == oldest);
            inside.into_iter().all(|(number, _)| is_old(lane, *number))
        });
        all_old.then_some(oldest)
    }

    /// Removes a segment of acknowledged batches; what it alone said is in the cursor first.
    pub(super) fn drop_batches(&mut self, segment: u64) -> Result<(), SpoolError> {
        let mut next: Cursor = self.cursor.clone();
        for lane in Lane::ALL {
            let inside = self.held(lane).iter().filter(|(_, entry)| entry.place.segment == segment);
            let inside: Vec<(u64, Span)> = inside.map(|(number, entry)| (*number, entry.span)).collect();
            if let Some(state) = next.lanes.get_mut(lane.index()) {
                note_dropped(state, &inside);
            }
        }
        self.save(next)?;
        let file = self.batch_log.file(segment);
        self.disk.unlink(&file).map_err(log::io("remove", &file))?;
        self.batch_log.segments.remove(&segment);
        for held in &mut self.batches {
            held.retain(|_, entry| entry.place.segment != segment);
        }
        // A younger segment must not go before an older one: what takes a batch's place is in a younger one.
        self.disk.sync_folder().map_err(log::sync("sync the folder for", &file))
    }

    /// What was acknowledged until then need not be kept.
    fn kept_from(&self, now: Instant) -> Instant {
        Instant::from_micros(now.micros().saturating_sub(self.settings.keep_acknowledged_micros))
    }

    fn not_waiting(&self, lane: Lane, sequence: i64) -> SpoolError {
        let state = self.lane(lane);
        let acknowledged = self.sequence(lane, state.acknowledged);
        SpoolError::NotWaiting { sequence, acknowledged, formed: self.sequence(lane, state.formed) }
    }

    pub(super) fn hold(&mut self, lane: Lane, lane_number: u64, entry: BatchEntry) {
        if let Some(held) = self.batches.get_mut(lane.index()) {
            held.insert(lane_number, entry);
        }
    }

    pub(super) fn lane(&self, lane: Lane) -> &LaneState {
        let [live, backlog] = &self.cursor.lanes;
        match lane {
            Lane::Live => live,
            Lane::Backlog => backlog,
        }
    }

    pub(super) fn held(&self, lane: Lane) -> &std::collections::BTreeMap<u64, BatchEntry> {
        let [live, backlog] = &self.batches;
        match lane {
            Lane::Live => live,
            Lane::Backlog => backlog,
        }
    }

    fn base(&self, lane: Lane) -> u64 {
        self.lane(lane).stream.as_ref().map_or(0, |stream| stream.base)
    }

    /// A number of the stream as the lane's own; none: there is no such number.
    fn lane_number(&self, lane: Lane, sequence: i64) -> Option<u64> {
        self.base(lane).checked_add(u64::try_from(sequence).ok()?)
    }

    fn sequence(&self, lane: Lane, lane_number: u64) -> i64 {
        i64::try_from(lane_number.saturating_sub(self.base(lane))).unwrap_or(i64::MAX)
    }

    pub(super) fn records(&mut self, segment: u64) -> Result<Vec<(WindowEntry, WindowRecord)>, SpoolError> {
        let inside = self.windows.iter().filter(|(_, entry)| entry.place.segment == segment);
        let inside: Vec<(u64, WindowEntry)> = inside.map(|(first, entry)| (*first, entry.clone())).collect();
        let mut records = Vec::with_capacity(inside.len());
        for (first, entry) in inside {
            let record = self.window(first, &entry)?;
            records.push((entry, record));
        }
        Ok(records)
    }
}

/// Notes that numbers up to `number` are acknowledged at `now`, at most once for each `part` of time.
fn note_acknowledged(all: &mut Vec<(u64, Instant)>, number: u64, now: Instant, part: i64) {
    let latest = all.last().map_or(now, |(_, at)| now.max(*at));
    let of = |at: Instant| at.micros().div_euclid(part);
    match all.last_mut() {
        Some(last) if of(last.1) == of(latest) => *last = (number, latest),
        Some(_) | None => all.push((number, latest)),
    }
}

/// Forgets the times before `edge`, but for the last: it says of all before that they are old.
fn forget_times(all: &mut Vec<(u64, Instant)>, edge: Instant) {
    let old = all.iter().filter(|(_, at)| *at <= edge).count();
    all.drain(..old.saturating_sub(1));
}

/// Notes which numbers of a lane are held no more.
fn note_dropped(state: &mut LaneState, dropped: &[(u64, Span)]) {
    let numbers = dropped.iter().map(|(number, _)| *number);
    let (Some(from), Some(to)) = (numbers.clone().min(), numbers.max()) else { return };
    let Some(span) = hull(dropped.iter().map(|(_, span)| *span)) else { return };
    // Once more, where the removal did not last.
    state.dropped.retain(|(range, _)| range.1 < from || to < range.0);
    state.dropped.push(((from, to), span));
    state.dropped.sort_unstable_by_key(|(range, _)| *range);
    while state.dropped.len() > DROPPED_MAX {
        let second = state.dropped.remove(1);
        if let Some((range, span)) = state.dropped.first_mut() {
            range.1 = range.1.max(second.0.1);
            *span = hull([*span, second.1]).unwrap_or(*span);
        }
    }
}
