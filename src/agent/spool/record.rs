//! Records: what a frame's payload says, to and from bytes. Numbers are little-endian; a text is its length and UTF-8.
//!
//! A record that does not read is none: callers treat it as damage.

use uuid::Uuid;

use super::Lane;
use super::frame::{self, Found};
use super::ranges::{Range, Ranges};
use crate::domain::ids::Name;
use crate::domain::period::Span;
use crate::domain::units::Instant;

/// The cursor's file.
pub(super) const CURSOR_FILE: &str = "cursor";

const WINDOW: u8 = 1;
const BATCH: u8 = 2;
const STREAM: u8 = 3;
const CURSOR: u8 = 4;

/// A window as it is stored; several, once they were merged; or a gap in the place of some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WindowRecord {
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) span: Span,
    /// How many cuts it is of; 0 for a gap.
    pub(super) minutes: u32,
    pub(super) is_gap: bool,
    pub(super) state: Vec<u8>,
    /// A packed message.
    pub(super) body: Vec<u8>,
}

/// A lane's stream: `sequence = number in the lane − base`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stream {
    pub(super) id: Uuid,
    pub(super) base: u64,
    /// Counts the lane's streams: of two, the higher is the present one.
    pub(super) generation: u64,
}

/// What a batch says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    /// A packed message.
    Body(Vec<u8>),
    /// Nothing, for this reason.
    Skip(Name),
}

/// A record of the batch log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BatchRecord {
    /// A batch, or what takes the place of an earlier one of the same number.
    Batch {
        /// Its number in the log.
        number: u64,
        lane: Lane,
        /// Its number in the lane.
        lane_number: u64,
        stream: Stream,
        /// The windows in it.
        windows: Vec<Range>,
        span: Span,
        content: Content,
    },
    /// A lane has a new stream.
    Stream { number: u64, lane: Lane, stream: Stream, reason: Name },
}

/// What segments do not say, or not once they are gone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Cursor {
    pub(super) next_window: u64,
    pub(super) next_batch: u64,
    pub(super) last_edge: Option<Instant>,
    /// Untried windows from this number on are the live lane's, those below the backlog's.
    pub(super) live_from: u64,
    /// Windows that are in a batch.
    pub(super) done: Ranges,
    pub(super) lanes: [LaneState; 2],
}

/// A lane's part of the cursor.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct LaneState {
    /// None: it had none yet.
    pub(super) stream: Option<Stream>,
    /// The number of the lane's last batch; the first is 1.
    pub(super) formed: u64,
    /// All up to this number are durable at the service.
    pub(super) acknowledged: u64,
    /// When numbers up to each one had been acknowledged, at the latest; both rise.
    pub(super) acknowledged_at: Vec<(u64, Instant)>,
    /// Batches that are held no more, with what they spoke of.
    pub(super) dropped: Vec<(Range, Span)>,
}

impl WindowRecord {
    pub(super) fn frame(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u64(self.first);
        out.u64(self.last);
        out.span(self.span);
        out.u32(self.minutes);
        out.flag(self.is_gap);
        out.bytes(&self.state);
        out.bytes(&self.body);
        frame::frame(WINDOW, &out.0)
    }

    pub(super) fn read(frame: &[u8]) -> Option<Self> {
        Self::of(&frame::read_at(frame, 0)?)
    }

    pub(super) fn of(found: &Found<'_>) -> Option<Self> {
        let mut from = Reader(found.payload);
        let record = Self {
            first: from.u64()?,
            last: from.u64()?,
            span: from.span()?,
            minutes: from.u32()?,
            is_gap: from.flag()?,
            state: from.bytes()?.to_vec(),
            body: from.bytes()?.to_vec(),
        };
        (found.kind == WINDOW && from.0.is_empty() && record.first <= record.last).then_some(record)
    }
}

impl BatchRecord {
    pub(super) const fn number(&self) -> u64 {
        match self {
            Self::Batch { number, .. } | Self::Stream { number, .. } => *number,
        }
    }

    pub(super) fn frame(&self) -> Vec<u8> {
        let mut out = Writer::default();
        match self {
            Self::Batch { number, lane, lane_number, stream, windows, span, content } => {
                out.u64(*number);
                out.lane(*lane);
                out.u64(*lane_number);
                out.stream(stream);
                out.list(windows, |out, range| out.range(*range));
                out.span(*span);
                match content {
                    Content::Body(body) => {
                        out.flag(true);
                        out.bytes(body);
                    }
                    Content::Skip(reason) => {
                        out.flag(false);
                        out.bytes(reason.as_str().as_bytes());
                    }
                }
                frame::frame(BATCH, &out.0)
            }
            Self::Stream { number, lane, stream, reason } => {
                out.u64(*number);
                out.lane(*lane);
                out.stream(stream);
                out.bytes(reason.as_str().as_bytes());
                frame::frame(STREAM, &out.0)
            }
        }
    }

    pub(super) fn read(frame: &[u8]) -> Option<Self> {
        Self::of(&frame::read_at(frame, 0)?)
    }

    pub(super) fn of(found: &Found<'_>) -> Option<Self> {
        let mut from = Reader(found.payload);
        let record = match found.kind {
            BATCH => Self::Batch {
                number: from.u64()?,
                lane: from.lane()?,
                lane_number: from.u64()?,
                stream: from.stream()?,
                windows: from.list(Reader::range)?,
                span: from.span()?,
                content: if from.flag()? {
                    Content::Body(from.bytes()?.to_vec())
                } else {
                    Content::Skip(from.name()?)
                },
            },
            STREAM => Self::Stream {
                number: from.u64()?,
                lane: from.lane()?,
                stream: from.stream()?,
                reason: from.name()?,
            },
            _ => return None,
        };
        from.0.is_empty().then_some(record)
    }
}

impl Cursor {
    pub(super) fn frame(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u64(self.next_window);
        out.u64(self.next_batch);
        out.option(self.last_edge.as_ref(), |out, edge| out.instant(*edge));
        out.u64(self.live_from);
        let done: Vec<Range> = self.done.iter().collect();
        out.list(&done, |out, range| out.range(*range));
        for lane in &self.lanes {
            out.option(lane.stream.as_ref(), Writer::stream);
            out.u64(lane.formed);
            out.u64(lane.acknowledged);
            out.list(&lane.acknowledged_at, |out, (number, at)| {
                out.u64(*number);
                out.instant(*at);
            });
            out.list(&lane.dropped, |out, (range, span)| {
                out.range(*range);
                out.span(*span);
            });
        }
        frame::frame(CURSOR, &out.0)
    }

    /// Reads the file's bytes; none: it is damaged.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let found = frame::read_at(bytes, 0).filter(|found| found.kind == CURSOR)?;
        let mut from = Reader(found.payload);
        let mut cursor = Self {
            next_window: from.u64()?,
            next_batch: from.u64()?,
            last_edge: from.option(Reader::instant)?,
            live_from: from.u64()?,
            ..Self::default()
        };
        for range in from.list(Reader::range)? {
            cursor.done.add(range);
        }
        for lane in &mut cursor.lanes {
            *lane = LaneState {
                stream: from.option(Reader::stream)?,
                formed: from.u64()?,
                acknowledged: from.u64()?,
                acknowledged_at: from.list(|from| Some((from.u64()?, from.instant()?)))?,
                dropped: from.list(|from| Some((from.range()?, from.span()?)))?,
            };
        }
        from.0.is_empty().then_some(cursor)
    }
}

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    fn flag(&mut self, value: bool) {
        self.0.push(u8::from(value));
    }

    fn instant(&mut self, value: Instant) {
        self.0.extend(value.micros().to_le_bytes());
    }

    fn span(&mut self, value: Span) {
        self.instant(value.start());
        self.instant(value.end());
    }

    fn range(&mut self, (from, to): Range) {
        self.u64(from);
        self.u64(to);
    }

    fn bytes(&mut self, value: &[u8]) {
        // A payload that is too long is no frame: `frame::PAYLOAD_MAX` is far below.
        self.u32(u32::try_from(value.len()).unwrap_or(u32::MAX));
        self.0.extend(value);
    }

    fn lane(&mut self, lane: Lane) {
        self.flag(lane == Lane::Backlog);
    }

    fn stream(&mut self, stream: &Stream) {
        self.0.extend(stream.id.as_bytes());
        self.u64(stream.base);
        self.u64(stream.generation);
    }

    fn list<T>(&mut self, all: &[T], write: impl Fn(&mut Self, &T)) {
        self.u32(u32::try_from(all.len()).unwrap_or(u32::MAX));
        for each in all {
            write(self, each);
        }
    }

    fn option<T>(&mut self, value: Option<&T>, write: impl Fn(&mut Self, &T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.take()? {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }

    fn instant(&mut self) -> Option<Instant> {
        self.take().map(|bytes| Instant::from_micros(i64::from_le_bytes(bytes)))
    }

    fn span(&mut self) -> Option<Span> {
        Span::new(self.instant()?, self.instant()?).ok()
    }

    fn range(&mut self) -> Option<Range> {
        Some((self.u64()?, self.u64()?))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.u32()?).ok()?;
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn name(&mut self) -> Option<Name> {
        Name::parse(std::str::from_utf8(self.bytes()?).ok()?).ok()
    }

    fn lane(&mut self) -> Option<Lane> {
        Some(if self.flag()? { Lane::Backlog } else { Lane::Live })
    }

    fn stream(&mut self) -> Option<Stream> {
        Some(Stream { id: Uuid::from_bytes(self.take()?), base: self.u64()?, generation: self.u64()? })
    }

    fn list<T>(&mut self, read: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let length = self.u32()?;
        // Not reserved up front: the length is only believed as far as there are bytes.
        (0..length).map(|_| read(self)).collect()
    }

    fn option<T>(&mut self, read: impl Fn(&mut Self) -> Option<T>) -> Option<Option<T>> {
        if self.flag()? { read(self).map(Some) } else { Some(None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(from: i64, to: i64) -> Span {
        Span::clamped(Instant::from_micros(from), Instant::from_micros(to))
    }

    fn stream() -> Stream {
        Stream { id: Uuid::from_bytes([7; 16]), base: (1 << 32) + 5, generation: 3 }
    }

    #[test]
    fn records_read_back_at_full_widths() {
        let window = WindowRecord {
            first: u64::MAX - 2,
            last: u64::MAX - 1,
            span: span(1, 7_258_118_400_000_000),
            minutes: u32::MAX,
            is_gap: true,
            state: vec![1; 300],
            body: vec![2; 70_000],
        };
        assert_eq!(WindowRecord::read(&window.frame()), Some(window));
        for content in [Content::Body(vec![9; 100]), Content::Skip(Name::parse(&"é".repeat(128)).unwrap())] {
            let batch = BatchRecord::Batch {
                number: 1 << 40,
                lane: Lane::Backlog,
                lane_number: 1 << 33,
                stream: stream(),
                windows: vec![(3, 9), (1 << 34, u64::MAX)],
                span: span(5, 9),
                content,
            };
            assert_eq!(BatchRecord::read(&batch.frame()), Some(batch));
        }
        let begun =
            BatchRecord::Stream { number: 4, lane: Lane::Live, stream: stream(), reason: Name::fixed("why") };
        assert_eq!(BatchRecord::read(&begun.frame()), Some(begun));
        let mut cursor = Cursor {
            next_window: 1 << 35,
            next_batch: 12,
            last_edge: Some(Instant::from_micros(99)),
            live_from: 1 << 33,
            ..Cursor::default()
        };
        cursor.done.add((0, 1 << 32));
        cursor.done.add((1 << 33, 1 << 34));
        cursor.lanes[1] = LaneState {
            stream: Some(stream()),
            formed: 9,
            acknowledged: 8,
            acknowledged_at: vec![(8, Instant::from_micros(3))],
            dropped: vec![((1, 4), span(2, 3))],
        };
        assert_eq!(Cursor::read(&cursor.frame()), Some(cursor));
    }

    #[test]
    fn a_record_of_another_kind_or_length_is_none() {
        let begun =
            BatchRecord::Stream { number: 4, lane: Lane::Live, stream: stream(), reason: Name::fixed("why") };
        assert_eq!(WindowRecord::read(&begun.frame()), None);
        let frame = Cursor::default().frame();
        let payload = &frame[frame::HEAD..];
        for cut in 0..payload.len() {
            assert_eq!(Cursor::read(&frame::frame(CURSOR, &payload[..cut])), None, "{cut}");
        }
        let longer: Vec<u8> = payload.iter().copied().chain([0]).collect();
        assert_eq!(Cursor::read(&frame::frame(CURSOR, &longer)), None);
    }
}
