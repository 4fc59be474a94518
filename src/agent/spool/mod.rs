//! The spool: an agent's durable log between what it measured and what the service has.
//!
//! Two logs of segment files lie in one folder, `windows-*` and `batches-*`, beside a small `cursor` that is replaced
//! whole. A window is durable when [`Spool::append`] returns. A batch takes windows, and its bytes are durable before
//! they are handed out; they are never encoded again. What may be lost to a damaged disk or a full budget is said as a
//! gap, never passed over.
//!
//! Always true: a window is in one batch, or untried, or inside a gap. A number of a stream has one body. The
//! acknowledged edge is durable before what lies behind it is removed.
//!
//! Does not own: clocks, the network, signatures, threads. Calls block; the caller keeps the lock around it.

mod batches;
mod budget;
mod disk;
mod frame;
mod log;
mod merge;
mod ranges;
mod record;
mod recover;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::{fmt, io};

use uuid::Uuid;

pub use self::batches::Kept;
pub use self::disk::{Disk, FolderError, RealDisk};
use self::log::{Log, Place};
use self::ranges::Range;
use self::record::{Cursor, WindowRecord};
use crate::domain::ids::{Name, ScopeName};
use crate::domain::period::Span;
use crate::domain::units::{Instant, MICROS_PER_HOUR};
use crate::domain::usage::{Batch, Gap, Source};
use crate::wire::ack::Refusal;
use crate::wire::body;
use crate::wire::usage_v1::{self, Sender};

/// How much disk a spool takes where nobody says otherwise, in bytes.
pub const BUDGET_BYTES: u64 = 256 << 20;
/// How long acknowledged batches are kept where nobody says otherwise: a service that was restored asks for them.
pub const KEEP_ACKNOWLEDGED_MICROS: i64 = 48 * MICROS_PER_HOUR;
/// Largest segment file in bytes; with a small budget it is a sixteenth of it.
const SEGMENT_BYTES_MAX: u64 = 4 << 20;
/// Longest [`Window::source_state`] in bytes.
pub const SOURCE_STATE_BYTES_MAX: usize = 1 << 20;
/// When the service is reached again, untried windows older than this go to the backlog.
const LIVE_MICROS: i64 = 10 * 60 * 1_000_000;

/// What a spool has to know to open.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Whose windows these are.
    pub scope: ScopeName,
    /// Who measured them.
    pub source: Source,
    /// Most bytes of all segment files. A file that is being rewritten is beside it for a moment: one segment more.
    pub budget: u64,
    /// How long acknowledged batches are kept, where the budget has room, in microseconds.
    pub keep_acknowledged_micros: i64,
}

/// What was measured in one cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// When; not empty.
    pub span: Span,
    /// What.
    pub batch: Batch,
    /// Where the source's buffers were read to; opaque, at most [`SOURCE_STATE_BYTES_MAX`]. Given back after a restart.
    pub source_state: Vec<u8>,
}

/// What became of a window that is now durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Appended {
    /// Rows that no service would take, with the reasons: they are not in the window.
    pub refused: Vec<Refusal>,
    /// Why the window is a gap: it fits no message.
    pub lost: Option<Name>,
}

/// Which way a batch goes. Each has a stream of its own, so that an outage's history does not hold up the present.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Windows as they come.
    Live,
    /// Windows that an outage left behind.
    Backlog,
}

impl Lane {
    /// Both lanes.
    pub const ALL: [Self; 2] = [Self::Live, Self::Backlog];

    const fn index(self) -> usize {
        match self {
            Self::Live => 0,
            Self::Backlog => 1,
        }
    }
}

/// Most that one batch holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchLimits {
    /// Rows of a table.
    pub rows_max: usize,
    /// Bytes of the packed body.
    pub bytes_max: usize,
    /// Microseconds from the first window's start to the last one's end.
    pub span_max_micros: i64,
    /// Windows.
    pub windows_max: usize,
}

/// What is to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// Its lane.
    pub lane: Lane,
    /// The lane's stream.
    pub stream: Uuid,
    /// Its number in the stream, from 1; a skip's last number.
    pub sequence: i64,
    /// The time it speaks of.
    pub span: Span,
    /// What it says.
    pub body: OutBody,
}

/// What a number of a stream says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutBody {
    /// A packed usage message.
    Bytes(Vec<u8>),
    /// Nothing: these numbers have no body.
    Skip {
        /// The first number.
        from: i64,
        /// The last.
        to: i64,
        /// Why, for people.
        reason: Name,
        /// The time that is lost with them.
        span: Span,
    },
}

/// Where sending goes on after the service was set back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rewound {
    /// With this number, which is still held.
    To(i64),
    /// With a skip of these numbers, which are held no more. [`Spool::next_batch`] hands it out.
    NeedsSkip {
        /// The first number.
        from: i64,
        /// The last.
        to: i64,
        /// The time that they spoke of.
        span: Span,
    },
}

/// How far the budget is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pressure {
    /// Bytes on the disk.
    pub used: u64,
    /// Of these, bytes that are not acknowledged.
    pub unsent: u64,
    /// Bytes that there may be.
    pub budget: u64,
    /// What it has come to.
    pub state: PressureState,
}

impl Pressure {
    /// Whether what is not acknowledged takes half of the budget or more.
    #[must_use]
    pub const fn is_half_unsent(&self) -> bool {
        self.unsent.saturating_mul(2) >= self.budget
    }
}

/// What the budget has come to since half of it was last free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PressureState {
    /// Less than half is used.
    Fine,
    /// More than half is used.
    Half,
    /// Windows were merged into quarter-hours.
    Merging,
    /// Windows were dropped, and gaps stand for them.
    Dropping,
}

/// What can go wrong with a spool.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// A call to the disk failed; nothing of the spool changed, and the same call may be made again.
    #[error("cannot {what} {file} of the spool")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file.
        file: String,
        /// What the disk said.
        #[source]
        source: io::Error,
    },
    /// What is on the disk is not known any more. The process has to end and open the spool anew.
    #[error("cannot {what} {file} of the spool: what is on the disk is not known any more")]
    Sync {
        /// What was tried.
        what: &'static str,
        /// The file.
        file: String,
        /// What the disk said.
        #[source]
        source: io::Error,
    },
    /// An earlier call ended with [`SpoolError::Sync`].
    #[error("the spool failed before and has to be opened anew")]
    Failed,
    /// A window is empty or begins before the newest one ends.
    #[error("the window {span} is empty or begins before {edge}, where the newest one ends")]
    NotAfter {
        /// The window.
        span: Span,
        /// The newest edge.
        edge: Instant,
    },
    /// A window's source state is longer than [`SOURCE_STATE_BYTES_MAX`].
    #[error("the source's state has {bytes} bytes; at most {SOURCE_STATE_BYTES_MAX} are kept")]
    StateTooLong {
        /// Its length.
        bytes: usize,
    },
    /// A batch cannot be written as a message.
    #[error("cannot write a message")]
    Encode(#[source] serde_json::Error),
    /// A number is not one that was formed and waits for its acknowledgement.
    #[error(
        "number {sequence} of the stream is not waiting: {acknowledged} is acknowledged, {formed} the last formed"
    )]
    NotWaiting {
        /// The number.
        sequence: i64,
        /// The last that was acknowledged.
        acknowledged: i64,
        /// The last that was formed.
        formed: i64,
    },
}

impl SpoolError {
    const fn is_fatal(&self) -> bool {
        matches!(self, Self::Sync { .. } | Self::Failed)
    }
}

/// A window record in a segment.
#[derive(Debug, Clone)]
struct WindowEntry {
    /// Its last number; merged windows and gaps have several.
    last: u64,
    span: Span,
    is_gap: bool,
    place: Place,
}

/// A batch record in a segment.
#[derive(Debug, Clone)]
struct BatchEntry {
    span: Span,
    place: Place,
}

/// The spool. One lives in a folder at a time; see the module's text.
pub struct Spool<D> {
    disk: D,
    settings: Settings,
    ids: Box<dyn FnMut() -> Uuid + Send>,
    has_failed: bool,
    window_log: Log,
    batch_log: Log,
    /// By first number: what window segments hold, tried or not.
    windows: BTreeMap<u64, WindowEntry>,
    /// By lane and number in the lane: the batches that are held.
    batches: [BTreeMap<u64, BatchEntry>; 2],
    /// As it is now. The file is written where the segments would not say it.
    cursor: Cursor,
    cursor_bytes: u64,
    source_state: Vec<u8>,
    /// Files that nobody needs and that could not be removed yet.
    doomed: Vec<String>,
    worst: PressureState,
}

impl<D> fmt::Debug for Spool<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spool")
            .field("settings", &self.settings)
            .field("has_failed", &self.has_failed)
            .field("cursor", &self.cursor)
            .finish_non_exhaustive()
    }
}

impl<D: Disk> Spool<D> {
    /// Where the source's buffers were read to when the newest window was cut; empty before the first. Where damage took
    /// that window it is an older one's: what the source finds before [`Spool::last_edge`] has to be left out.
    #[must_use]
    pub fn source_state(&self) -> &[u8] {
        &self.source_state
    }

    /// The end of the newest window, also when all were sent and removed. Never goes back.
    #[must_use]
    pub fn last_edge(&self) -> Option<Instant> {
        self.cursor.last_edge
    }

    /// Keeps a window. It is durable when this returns.
    ///
    /// # Errors
    /// [`SpoolError`]; the window is not kept then.
    pub fn append(&mut self, window: &Window) -> Result<Appended, SpoolError> {
        self.guard(|spool| spool.append_inner(window))
    }

    fn append_inner(&mut self, window: &Window) -> Result<Appended, SpoolError> {
        let edge = self.cursor.last_edge.unwrap_or(Instant::MIN);
        // What is too much for one message comes as several windows of one span.
        let is_part = self.windows.last_key_value().is_some_and(|(_, newest)| newest.span == window.span);
        if window.span.is_empty() || (window.span.start() < edge && !is_part) {
            return Err(SpoolError::NotAfter { span: window.span, edge });
        }
        if window.source_state.len() > SOURCE_STATE_BYTES_MAX {
            return Err(SpoolError::StateTooLong { bytes: window.source_state.len() });
        }
        let message = usage_v1::encode(&self.settings.scope, &self.settings.source, &window.batch)
            .map_err(SpoolError::Encode)?;
        let read = usage_v1::decode_from(&message, &self.settings.scope, window.span, Sender::Reporter);
        let packed = body::pack(&message);
        let (body, appended) = match (read, packed) {
            (Ok(read), Ok(body)) if fits(&read.batch) => {
                (body, Appended { refused: read.refused, lost: None })
            }
            (Ok(_) | Err(_), Ok(_) | Err(_)) => {
                let reason = Name::fixed("the window is too large for a message");
                let body = self.gap_body(window.span, &reason)?;
                (body, Appended { refused: Vec::new(), lost: Some(reason) })
            }
        };
        let number = self.cursor.next_window;
        let record = WindowRecord {
            first: number,
            last: number,
            span: window.span,
            minutes: 1,
            is_gap: appended.lost.is_some(),
            state: window.source_state.clone(),
            body,
        };
        let frame = record.frame();
        self.make_room(frame.len())?;
        let place = self.window_log.append(&mut self.disk, number, &frame)?;
        self.windows
            .insert(number, WindowEntry { last: number, span: record.span, is_gap: record.is_gap, place });
        self.cursor.next_window = number.saturating_add(1);
        self.cursor.last_edge = Some(window.span.end());
        self.source_state.clone_from(&window.source_state);
        Ok(appended)
    }

    /// The service has just been reached: untried windows that ended more than ten minutes before `now` become the
    /// backlog's, and the live lane goes on behind them.
    ///
    /// # Errors
    /// [`SpoolError`]; nothing changes then.
    pub fn split(&mut self, now: Instant) -> Result<(), SpoolError> {
        self.guard(|spool| {
            let edge = now.plus_micros(LIVE_MICROS.saturating_neg());
            let old = spool.untried(Lane::Live).take_while(|(_, entry)| entry.span.end() < edge).last();
            let Some((_, entry)) = old else { return Ok(()) };
            let next = Cursor { live_from: entry.last.saturating_add(1), ..spool.cursor.clone() };
            spool.save(next)
        })
    }

    /// How far the budget is used.
    #[must_use]
    pub fn pressure(&self) -> Pressure {
        let (used, budget) = (self.used(), self.settings.budget);
        let half = budget.div_euclid(2);
        let state = if used < half { PressureState::Fine } else { self.worst.max(PressureState::Half) };
        Pressure { used, unsent: self.unsent(), budget, state }
    }

    /// Whether windows wait in a lane that are in no batch yet.
    #[must_use]
    pub fn has_untried(&self, lane: Lane) -> bool {
        self.untried(lane).next().is_some()
    }

    /// The untried windows of a lane, in order.
    fn untried(&self, lane: Lane) -> impl Iterator<Item = (u64, &WindowEntry)> {
        let from = self.cursor.live_from;
        let range = match lane {
            Lane::Live => from..u64::MAX,
            Lane::Backlog => 0..from,
        };
        let all = self.windows.range(range).map(|(first, entry)| (*first, entry));
        all.filter(|(first, entry)| !self.cursor.done.holds((*first, entry.last)))
    }

    /// Runs a call, unless an earlier one left the disk unknown.
    fn guard<T>(&mut self, call: impl FnOnce(&mut Self) -> Result<T, SpoolError>) -> Result<T, SpoolError> {
        if self.has_failed {
            return Err(SpoolError::Failed);
        }
        let done = call(self);
        self.has_failed = done.as_ref().is_err_and(SpoolError::is_fatal);
        done
    }

    /// Replaces the cursor file, then believes it.
    fn save(&mut self, next: Cursor) -> Result<(), SpoolError> {
        let frame = next.frame();
        log::replace(&mut self.disk, record::CURSOR_FILE, &frame)?;
        self.cursor_bytes = log::bytes_of(&frame);
        self.cursor = next;
        Ok(())
    }

    fn used(&self) -> u64 {
        self.window_log.bytes().saturating_add(self.batch_log.bytes()).saturating_add(self.cursor_bytes)
    }

    /// The packed message that says that a span is lost; of an empty span it says nothing.
    fn gap_body(&self, span: Span, reason: &Name) -> Result<Vec<u8>, SpoolError> {
        self.packed(&gap(span, reason)).map(Option::unwrap_or_default)
    }

    /// A batch as a packed message; none: it is too large for one.
    fn packed(&self, batch: &Batch) -> Result<Option<Vec<u8>>, SpoolError> {
        let message = usage_v1::encode(&self.settings.scope, &self.settings.source, batch);
        Ok(body::pack(&message.map_err(SpoolError::Encode)?).ok())
    }

    /// What a window record says; a gap over its span where it does not read.
    fn contents(&self, record: &WindowRecord) -> Batch {
        let message = body::unpack(&record.body).ok();
        let read = message.and_then(|message| {
            usage_v1::decode_from(&message, &self.settings.scope, record.span, Sender::Reporter).ok()
        });
        read.map_or_else(|| gap(record.span, &damaged()), |read| read.batch)
    }

    /// A window record from the disk; a gap in its place where it is damaged by now.
    fn window(&mut self, first: u64, entry: &WindowEntry) -> Result<WindowRecord, SpoolError> {
        let frame = self.window_log.read(&mut self.disk, &entry.place)?;
        let read = frame.as_deref().and_then(WindowRecord::read).filter(|read| read.first == first);
        match read {
            Some(record) => Ok(record),
            None => self.gap_record((first, entry.last), entry.span, &damaged(), Vec::new()),
        }
    }

    fn gap_record(
        &self,
        numbers: Range,
        span: Span,
        reason: &Name,
        state: Vec<u8>,
    ) -> Result<WindowRecord, SpoolError> {
        let body = self.gap_body(span, reason)?;
        Ok(WindowRecord { first: numbers.0, last: numbers.1, span, minutes: 0, is_gap: true, state, body })
    }
}

/// Whether each table has at most as many rows as one message may have.
fn fits(batch: &Batch) -> bool {
    merge::largest_table(batch) <= body::ROWS_MAX
}

fn gap(span: Span, reason: &Name) -> Batch {
    let gaps = if span.is_empty() { Vec::new() } else { vec![Gap { span, reason: reason.clone() }] };
    Batch { gaps, ..Batch::default() }
}

fn damaged() -> Name {
    Name::fixed("the record on the agent's disk was damaged")
}

/// The span from the first one's start to the last one's end.
fn hull(spans: impl IntoIterator<Item = Span>) -> Option<Span> {
    spans
        .into_iter()
        .reduce(|all, each| Span::clamped(all.start().min(each.start()), all.end().max(each.end())))
}
