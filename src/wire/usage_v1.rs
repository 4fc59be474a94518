//! The usage message, version 1: tables of devices, slices and evidence, then rows that point into them.
//!
//! JSON. Instants are microseconds since 1970 UTC. A row is `[slice, evidence, from, to, uncut_from,
//! uncut_to]`; `uncut` is the whole holding of which the row is a piece. Coverage is
//! `[device, from, to, "holding" | "use"]`. Where a sender knows them: `layout`, the slices that exist, as `[slice,
//! from, to, uncut_from, uncut_to]`; `usage`, what was measured, as `[slice, evidence | null, from, to,
//! uncut_from, active nanoseconds | null, byte-seconds held | null]`; `energy` as `[device, from, to, millijoules]`;
//! `clocks` as `[from, to, boot, monotonic nanoseconds, wall microseconds, offset microseconds]`, the readings at its
//! end; `gaps` as `[from, to, reason]`.
//!
//! May never change: the meaning of a field that was released. A new meaning is a new version.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::ack::Refusal;
use super::body::ROWS_MAX;
use crate::domain::device::SharingMode;
use crate::domain::ids::{Name, ScopeKind, ScopeName};
use crate::domain::period::Span;
use crate::domain::units::Instant;
use crate::domain::usage::{
    Batch, ClockRow, Coverage, CoverageOf, EnergyRow, Evidence, EvidenceField, Gap, LayoutRow,
    POOL_DEVICES_MAX, Row, Slice, SliceSize, Source, SourceRank, UseRow, VgpuScheduler, WATTS_MAX,
};

/// Into how many equal parts a slice's parent may be divided.
pub const PARTS_MAX: u32 = 1_000;

/// The version's word.
pub const VERSION: &str = "usage_v1";

/// The message; `D`, `S`, `E`, `R`, `C`, `L`, `U`, `J`, `K` and `G` are its entries, typed or still raw.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Message<'a, D, S, E, R, C, L, U, J, K, G> {
    #[serde(borrow)]
    v: Cow<'a, str>,
    #[serde(borrow)]
    scope: ScopeMessage<'a>,
    #[serde(borrow)]
    source: SourceMessage<'a>,
    devices: Vec<D>,
    slices: Vec<S>,
    evidence: Vec<E>,
    rows: Vec<R>,
    coverage: Vec<C>,
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    layout: Vec<L>,
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    usage: Vec<U>,
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    energy: Vec<J>,
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    clocks: Vec<K>,
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    gaps: Vec<G>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum ScopeMessage<'a> {
    Node(#[serde(borrow)] Cow<'a, str>),
    Pool(#[serde(borrow)] Cow<'a, str>),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SourceMessage<'a> {
    #[serde(borrow)]
    rank: Cow<'a, str>,
    #[serde(borrow)]
    sender: Cow<'a, str>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SliceMessage<'a> {
    device: usize,
    #[serde(borrow)]
    mode: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    share_ppm: Option<u32>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    profile: Option<Cow<'a, str>>,
    /// One of so many equal parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    one_of: Option<u32>,
    /// As much as each of its like.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    even: bool,
    /// So many whole devices of a pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    devices: Option<u32>,
    /// An MPS client's active thread percentage, and its memory limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    percent: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory_mib: Option<u32>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    id: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    parent: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    start: Option<u16>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    scheduler: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    powered_off: bool,
}

/// Fields by their words, in the words' order; a field that stands twice is refused.
#[derive(Debug, Default)]
struct EvidenceMessage<'a>(BTreeMap<Cow<'a, str>, Cow<'a, str>>);

impl Serialize for EvidenceMessage<'_> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_map(&self.0)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for EvidenceMessage<'a> {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct Fields<'a>(PhantomData<&'a ()>);
        impl<'de: 'a, 'a> Visitor<'de> for Fields<'a> {
            type Value = EvidenceMessage<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of evidence fields")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
                let mut seen = BTreeMap::new();
                while let Some((word, value)) = fields.next_entry::<Text<'a>, Text<'a>>()? {
                    if seen.contains_key(&word.0) {
                        return Err(A::Error::custom(format!("field `{}` stands twice", word.0)));
                    }
                    seen.insert(word.0, value.0);
                }
                Ok(EvidenceMessage(seen))
            }
        }
        input.deserialize_map(Fields(PhantomData))
    }
}

/// A text that is borrowed from the message where it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

type RowMessage = (usize, usize, i64, i64, i64, i64);
type CoverageMessage<'a> = (usize, i64, i64, Cow<'a, str>);
type LayoutMessage = (usize, i64, i64, i64, i64);
type UseMessage = (usize, Option<usize>, i64, i64, i64, Option<i64>, Option<i64>);
type EnergyMessage = (usize, i64, i64, i64);
type ClockMessage<'a> = (i64, i64, Cow<'a, str>, i64, i64, i64);
type GapMessage<'a> = (i64, i64, Cow<'a, str>);

/// Why a message cannot be read at all; its batch is set aside.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Not JSON of this shape, or with a field that this version does not have.
    #[error("the message is not {VERSION}: {0}")]
    NotThisShape(#[source] serde_json::Error),
    /// Another version.
    #[error("the message is `{version}`, not {VERSION}")]
    OtherVersion {
        /// As given.
        version: String,
    },
    /// The signature is for another node or pool.
    #[error("the message speaks for another node or pool than its signature")]
    OtherScope,
    /// More rows in one table than a batch may have.
    #[error("the message has {rows} rows; at most {ROWS_MAX} are taken")]
    TooManyRows {
        /// How many.
        rows: usize,
    },
    /// A head field is malformed.
    #[error("{pointer} {reason}")]
    BadHead {
        /// Where.
        pointer: &'static str,
        /// Why.
        reason: String,
    },
}

/// A decoded message: what can be taken, and what cannot with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decoded {
    /// Who sent it.
    pub source: Source,
    /// The good rows. `row_numbers` has each one's place in the message.
    pub batch: Batch,
    /// For each row of the batch, its place in the message.
    pub row_numbers: Vec<usize>,
    /// For each span of coverage, its place in the message.
    pub coverage_numbers: Vec<usize>,
    /// The same for each row of the layout.
    pub layout_numbers: Vec<usize>,
    /// The same for each row of use.
    pub usage_numbers: Vec<usize>,
    /// The same for each row of energy.
    pub energy_numbers: Vec<usize>,
    /// What was refused.
    pub refused: Vec<Refusal>,
}

/// Writes a batch as a message. The bytes depend on the batch alone.
///
/// # Errors
/// Never for values of the domain; the serializer's error type is passed on.
pub fn encode(scope: &ScopeName, source: &Source, batch: &Batch) -> Result<Vec<u8>, serde_json::Error> {
    let devices: Vec<&Name> = batch.devices().collect();
    let number = |device: &Name| devices.binary_search(&device).unwrap_or_default();
    let name = Cow::Borrowed(scope.name.as_str());
    let message = Message {
        v: Cow::Borrowed(VERSION),
        scope: match scope.kind {
            ScopeKind::Node => ScopeMessage::Node(name),
            ScopeKind::Pool => ScopeMessage::Pool(name),
        },
        source: SourceMessage {
            rank: Cow::Borrowed(source.rank.word()),
            sender: Cow::Borrowed(source.sender.as_str()),
        },
        devices: devices.iter().map(|device| Cow::Borrowed(device.as_str())).collect(),
        slices: batch.slices.iter().map(|slice| slice_message(slice, number(&slice.device))).collect(),
        evidence: batch
            .evidence
            .iter()
            .map(|seen| {
                let fields = seen.iter();
                EvidenceMessage(
                    fields.map(|(field, value)| (field.word().into(), value.as_str().into())).collect(),
                )
            })
            .collect::<Vec<EvidenceMessage<'_>>>(),
        rows: batch
            .rows
            .iter()
            .map(|row| {
                let (span, uncut) = (row.span, row.uncut);
                let edges = (
                    span.start().micros(),
                    span.end().micros(),
                    uncut.start().micros(),
                    uncut.end().micros(),
                );
                (row.slice, row.evidence, edges.0, edges.1, edges.2, edges.3)
            })
            .collect::<Vec<RowMessage>>(),
        coverage: batch
            .coverage
            .iter()
            .map(|each| {
                let (from, to) = (each.span.start().micros(), each.span.end().micros());
                (number(&each.device), from, to, Cow::Borrowed(each.of.word()))
            })
            .collect::<Vec<CoverageMessage<'_>>>(),
        layout: batch
            .layout
            .iter()
            .map(|row| {
                let (from, to) = edges(row.span);
                let (uncut_from, uncut_to) = edges(row.uncut);
                (row.slice, from, to, uncut_from, uncut_to)
            })
            .collect::<Vec<LayoutMessage>>(),
        usage: batch
            .usage
            .iter()
            .map(|row| {
                let (from, to) = edges(row.span);
                {
                    let uncut_from = row.uncut_start.micros();
                    let (active, held) = (row.active_nanos, row.memory_byte_seconds);
                    (row.slice, row.evidence, from, to, uncut_from, active, held)
                }
            })
            .collect::<Vec<UseMessage>>(),
        energy: batch
            .energy
            .iter()
            .map(|row| {
                let (from, to) = edges(row.span);
                (number(&row.device), from, to, row.millijoules)
            })
            .collect::<Vec<EnergyMessage>>(),
        clocks: batch
            .clocks
            .iter()
            .map(|row| {
                let (from, to) = edges(row.span);
                let boot = Cow::Borrowed(row.boot.as_str());
                (from, to, boot, row.monotonic_nanos, row.wall_micros, row.offset_micros)
            })
            .collect::<Vec<ClockMessage<'_>>>(),
        gaps: batch
            .gaps
            .iter()
            .map(|gap| {
                let (from, to) = edges(gap.span);
                (from, to, Cow::Borrowed(gap.reason.as_str()))
            })
            .collect::<Vec<GapMessage<'_>>>(),
    };
    serde_json::to_vec(&message)
}

fn edges(span: Span) -> (i64, i64) {
    (span.start().micros(), span.end().micros())
}

fn slice_message(slice: &Slice, device: usize) -> SliceMessage<'_> {
    let text = |name: &'_ Name| -> Cow<'static, str> { Cow::Owned(name.as_str().to_owned()) };
    let mut message = SliceMessage {
        device,
        mode: Cow::Borrowed(slice.mode.word()),
        share_ppm: None,
        profile: None,
        one_of: None,
        even: false,
        devices: None,
        percent: None,
        memory_mib: None,
        id: slice.id.as_ref().map(text),
        parent: slice.parent.as_ref().map(text),
        start: slice.start,
        scheduler: slice.scheduler.map(|each| Cow::Borrowed(each.word())),
        powered_off: slice.is_powered_off,
    };
    match &slice.size {
        SliceSize::Whole => {}
        SliceSize::Declared(ppm) => message.share_ppm = Some(*ppm),
        SliceSize::Profile(profile) => message.profile = Some(Cow::Borrowed(profile.as_str())),
        SliceSize::OneOf(count) => message.one_of = Some(*count),
        SliceSize::Even => message.even = true,
        SliceSize::Devices(count) => message.devices = Some(*count),
        SliceSize::Threads { percent, memory_mib } => {
            message.percent = Some(*percent);
            message.memory_mib = *memory_mib;
        }
    }
    message
}

/// Reads a message against the scope and span that were signed for it.
///
/// Rows and entries that are malformed, lie outside the signed span or claim what their sender may not are
/// refused one by one.
///
/// # Errors
/// [`DecodeError`] when nothing can be read.
pub fn decode(message: &[u8], scope: &ScopeName, within: Span) -> Result<Decoded, DecodeError> {
    decode_from(message, scope, within, Sender::Reporter)
}

/// Who sent a message, as its signature proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// An import of this installation: it may declare who pays, whatever the rank of its source.
    Importer,
    /// Anybody else: only the rank of imports may.
    Reporter,
}

/// The same for a sender of whom more is known.
///
/// # Errors
/// [`DecodeError`] when nothing can be read.
pub fn decode_from(
    message: &[u8],
    scope: &ScopeName,
    within: Span,
    sender: Sender,
) -> Result<Decoded, DecodeError> {
    type Typed<'a> = Message<
        'a,
        Cow<'a, str>,
        SliceMessage<'a>,
        EvidenceMessage<'a>,
        RowMessage,
        CoverageMessage<'a>,
        LayoutMessage,
        UseMessage,
        EnergyMessage,
        ClockMessage<'a>,
        GapMessage<'a>,
    >;
    type Value<'a> = &'a RawValue;
    type Raw<'a> = Message<
        'a,
        Value<'a>,
        Value<'a>,
        Value<'a>,
        Value<'a>,
        Value<'a>,
        Value<'a>,
        Value<'a>,
        Value<'a>,
        Value<'a>,
        Value<'a>,
    >;
    // The common case reads each entry once. Only where one does not fit is every entry tried on its own.
    if let Ok(typed) = serde_json::from_slice::<Typed<'_>>(message) {
        return Reader::new(scope, within, sender).read(typed.map(Ok, Ok, Ok, Ok, Ok, Ok, Ok, Ok, Ok, Ok));
    }
    let raw = serde_json::from_slice::<Raw<'_>>(message).map_err(DecodeError::NotThisShape)?;
    Reader::new(scope, within, sender)
        .read(raw.map(entry, entry, entry, entry, entry, entry, entry, entry, entry, entry))
}

fn entry<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> Result<T, String> {
    serde_json::from_str(raw.get()).map_err(|error| {
        // The position is inside the entry and would mislead.
        let text = error.to_string();
        text.split(" at line ").next().unwrap_or_default().to_owned()
    })
}

impl<'a, D, S, E, R, C, L, U, J, K, G> Message<'a, D, S, E, R, C, L, U, J, K, G> {
    #[expect(clippy::too_many_arguments, reason = "one for each table")]
    fn map<D2, S2, E2, R2, C2, L2, U2, J2, K2, G2>(
        self,
        device: impl Fn(D) -> D2,
        slice: impl Fn(S) -> S2,
        evidence: impl Fn(E) -> E2,
        row: impl Fn(R) -> R2,
        coverage: impl Fn(C) -> C2,
        layout: impl Fn(L) -> L2,
        usage: impl Fn(U) -> U2,
        energy: impl Fn(J) -> J2,
        clock: impl Fn(K) -> K2,
        gap: impl Fn(G) -> G2,
    ) -> Message<'a, D2, S2, E2, R2, C2, L2, U2, J2, K2, G2> {
        Message {
            v: self.v,
            scope: self.scope,
            source: self.source,
            devices: self.devices.into_iter().map(device).collect(),
            slices: self.slices.into_iter().map(slice).collect(),
            evidence: self.evidence.into_iter().map(evidence).collect(),
            rows: self.rows.into_iter().map(row).collect(),
            coverage: self.coverage.into_iter().map(coverage).collect(),
            layout: self.layout.into_iter().map(layout).collect(),
            usage: self.usage.into_iter().map(usage).collect(),
            energy: self.energy.into_iter().map(energy).collect(),
            clocks: self.clocks.into_iter().map(clock).collect(),
            gaps: self.gaps.into_iter().map(gap).collect(),
        }
    }
}

type Entries<'a> = Message<
    'a,
    Result<Cow<'a, str>, String>,
    Result<SliceMessage<'a>, String>,
    Result<EvidenceMessage<'a>, String>,
    Result<RowMessage, String>,
    Result<CoverageMessage<'a>, String>,
    Result<LayoutMessage, String>,
    Result<UseMessage, String>,
    Result<EnergyMessage, String>,
    Result<ClockMessage<'a>, String>,
    Result<GapMessage<'a>, String>,
>;

/// Turns entries into domain values and collects what is refused.
struct Reader<'a> {
    scope: &'a ScopeName,
    within: Span,
    sender: Sender,
    refused: Vec<Refusal>,
}

impl<'a> Reader<'a> {
    const fn new(scope: &'a ScopeName, within: Span, sender: Sender) -> Self {
        Self { scope, within, sender, refused: Vec::new() }
    }

    fn read(mut self, message: Entries<'_>) -> Result<Decoded, DecodeError> {
        if message.v != VERSION {
            return Err(DecodeError::OtherVersion { version: message.v.into_owned() });
        }
        let (kind, name) = match &message.scope {
            ScopeMessage::Node(name) => (ScopeKind::Node, name),
            ScopeMessage::Pool(name) => (ScopeKind::Pool, name),
        };
        if kind != self.scope.kind || **name != *self.scope.name.as_str() {
            return Err(DecodeError::OtherScope);
        }
        let tables = [
            message.rows.len(),
            message.layout.len(),
            message.usage.len(),
            message.energy.len(),
            message.clocks.len(),
            message.gaps.len(),
        ];
        if let Some(rows) = tables.into_iter().find(|rows| *rows > ROWS_MAX) {
            return Err(DecodeError::TooManyRows { rows });
        }
        let source = read_source(&message.source)?;
        let may_declare = source.rank == SourceRank::Import || self.sender == Sender::Importer;
        let mut batch = Batch::default();
        let devices = self
            .each("devices", message.devices, |text| Name::parse(&text?).map_err(|error| error.to_string()));
        let slices = self.each("slices", message.slices, |slice| read_slice(slice?, &devices));
        let slices = keep(slices, &mut batch.slices);
        let evidence = self.each("evidence", message.evidence, |seen| read_evidence(seen?, may_declare));
        let evidence = keep(evidence, &mut batch.evidence);
        let within = self.within;
        let rows = self.each("rows", message.rows, |row| read_row(row?, &slices, &evidence, within));
        let coverage = self.each("coverage", message.coverage, |each| read_coverage(each?, &devices, within));
        let named: Vec<bool> = batch.slices.iter().map(|slice| slice.id.is_some()).collect();
        let layout = self.each("layout", message.layout, |row| read_layout(row?, &slices, &named, within));
        let usage = self.each("usage", message.usage, |row| read_use(row?, &slices, &evidence, within));
        let energy = self.each("energy", message.energy, |row| read_energy(row?, &devices, within));
        let clocks = self.each("clocks", message.clocks, |row| read_clock(row?, within));
        batch.clocks.extend(clocks.into_iter().flatten());
        let gaps = self.each("gaps", message.gaps, |row| read_gap(row?, within));
        batch.gaps.extend(gaps.into_iter().flatten());
        Ok(Decoded {
            source,
            row_numbers: keep_numbered(rows, &mut batch.rows),
            coverage_numbers: keep_numbered(coverage, &mut batch.coverage),
            layout_numbers: keep_numbered(layout, &mut batch.layout),
            usage_numbers: keep_numbered(usage, &mut batch.usage),
            energy_numbers: keep_numbered(energy, &mut batch.energy),
            batch,
            refused: self.refused,
        })
    }

    /// Reads each entry of a table; one that is refused leaves a hole, so that indexes keep their meaning.
    fn each<T, U>(
        &mut self,
        table: &str,
        entries: Vec<T>,
        read: impl Fn(T) -> Result<U, String>,
    ) -> Vec<Option<U>> {
        let mut kept = Vec::with_capacity(entries.len());
        for (number, entry) in entries.into_iter().enumerate() {
            kept.push(match read(entry) {
                Ok(value) => Some(value),
                Err(reason) => {
                    self.refused.push(Refusal { pointer: format!("/{table}/{number}"), reason });
                    None
                }
            });
        }
        kept
    }
}

/// Moves what is there into `table`; returns the new index of each old one.
fn keep<T>(entries: Vec<Option<T>>, table: &mut Vec<T>) -> Vec<Option<usize>> {
    entries
        .into_iter()
        .map(|entry| {
            entry.map(|value| {
                table.push(value);
                table.len().saturating_sub(1)
            })
        })
        .collect()
}

/// Moves what is there into `table`; returns the old index of each new one.
fn keep_numbered<T>(entries: Vec<Option<T>>, table: &mut Vec<T>) -> Vec<usize> {
    let mut numbers = Vec::with_capacity(entries.len());
    for (number, entry) in entries.into_iter().enumerate() {
        if let Some(value) = entry {
            numbers.push(number);
            table.push(value);
        }
    }
    numbers
}

fn read_source(source: &SourceMessage<'_>) -> Result<Source, DecodeError> {
    let bad = |pointer, reason: String| DecodeError::BadHead { pointer, reason };
    Ok(Source {
        rank: SourceRank::parse(&source.rank).map_err(|error| bad("/source/rank", error.to_string()))?,
        sender: Name::parse(&source.sender).map_err(|error| bad("/source/sender", error.to_string()))?,
    })
}

fn read_slice(slice: SliceMessage<'_>, devices: &[Option<Name>]) -> Result<Slice, String> {
    let device =
        devices.get(slice.device).and_then(Option::as_ref).ok_or("names a device that is not there")?;
    let mode = SharingMode::parse(&slice.mode).map_err(|error| format!("mode {error}"))?;
    let name = |field: &str, text: Option<Cow<'_, str>>| {
        text.map(|text| Name::parse(&text)).transpose().map_err(|error| format!("{field} {error}"))
    };
    let scheduler = slice.scheduler.as_deref().map(VgpuScheduler::parse).transpose();
    Ok(Slice {
        device: device.clone(),
        mode,
        size: read_size(&slice)?,
        id: name("id", slice.id)?,
        parent: name("parent", slice.parent)?,
        start: slice.start,
        scheduler: scheduler.map_err(|error| format!("scheduler {error}"))?,
        is_powered_off: slice.powered_off,
    })
}

fn read_size(slice: &SliceMessage<'_>) -> Result<SliceSize, String> {
    let sizes = [
        slice.share_ppm.is_some(),
        slice.profile.is_some(),
        slice.one_of.is_some(),
        slice.even,
        slice.percent.is_some(),
        slice.devices.is_some(),
    ];
    if sizes.into_iter().filter(|given| *given).count() > 1 {
        return Err("has more than one of share_ppm, profile, one_of, even, percent and devices".to_owned());
    }
    if slice.memory_mib.is_some() && slice.percent.is_none() {
        return Err("has memory_mib without percent".to_owned());
    }
    let inside = |field: &str, value: u32, range: std::ops::RangeInclusive<u32>| {
        let (least, most) = (range.start(), range.end());
        if range.contains(&value) {
            Ok(value)
        } else {
            Err(format!("{field} {value} is not between {least} and {most}"))
        }
    };
    if let Some(ppm) = slice.share_ppm {
        return inside("share_ppm", ppm, 1..=1_000_000).map(SliceSize::Declared);
    }
    if let Some(profile) = &slice.profile {
        return Name::parse(profile).map(SliceSize::Profile).map_err(|error| format!("profile {error}"));
    }
    if let Some(count) = slice.one_of {
        return inside("one_of", count, 1..=PARTS_MAX).map(SliceSize::OneOf);
    }
    if slice.even {
        return Ok(SliceSize::Even);
    }
    if let Some(count) = slice.devices {
        return inside("devices", count, 1..=POOL_DEVICES_MAX).map(SliceSize::Devices);
    }
    let Some(percent) = slice.percent else { return Ok(SliceSize::Whole) };
    let memory_mib = match slice.memory_mib {
        Some(0) => return Err("memory_mib 0 is not above 0".to_owned()),
        memory_mib => memory_mib,
    };
    Ok(SliceSize::Threads { percent: inside("percent", percent, 1..=100)?, memory_mib })
}

fn read_evidence(seen: EvidenceMessage<'_>, may_declare: bool) -> Result<Evidence, String> {
    seen.0
        .into_iter()
        .map(|(word, value)| {
            let field = EvidenceField::parse(&word).map_err(|error| error.to_string())?;
            if field.is_declaration() && !may_declare {
                return Err(format!("names a {word}, which only an import may"));
            }
            Ok((field, Name::parse(&value).map_err(|error| format!("{word} {error}"))?))
        })
        .collect()
}

fn read_row(
    (slice, evidence, from, to, uncut_from, uncut_to): RowMessage,
    slices: &[Option<usize>],
    all_evidence: &[Option<usize>],
    within: Span,
) -> Result<Row, String> {
    let slice =
        slices.get(slice).copied().flatten().ok_or("names a slice that was refused or is not there")?;
    let evidence = all_evidence
        .get(evidence)
        .copied()
        .flatten()
        .ok_or("names evidence that was refused or is not there")?;
    let span = read_span(from, to)?;
    let uncut = read_span(uncut_from, uncut_to)?;
    if span.clip(uncut) != span {
        return Err("lies outside its own uncut span".to_owned());
    }
    if span.start() < within.start() || within.end() < span.end() {
        return Err("lies outside the signed span".to_owned());
    }
    Ok(Row { slice, evidence, span, uncut })
}

fn read_within(from: i64, to: i64, within: Span) -> Result<Span, String> {
    let span = read_span(from, to)?;
    if span.start() < within.start() || within.end() < span.end() {
        return Err("lies outside the signed span".to_owned());
    }
    Ok(span)
}

fn read_layout(
    (slice, from, to, uncut_from, uncut_to): LayoutMessage,
    slices: &[Option<usize>],
    named: &[bool],
    within: Span,
) -> Result<LayoutRow, String> {
    let slice =
        slices.get(slice).copied().flatten().ok_or("names a slice that was refused or is not there")?;
    if named.get(slice) != Some(&true) {
        return Err("names a slice without an id".to_owned());
    }
    let span = read_within(from, to, within)?;
    let uncut = read_span(uncut_from, uncut_to)?;
    if span.clip(uncut) != span {
        return Err("lies outside its own uncut span".to_owned());
    }
    Ok(LayoutRow { slice, span, uncut })
}

fn read_use(
    (slice, seen, from, to, uncut_from, active_nanos, memory_byte_seconds): UseMessage,
    slices: &[Option<usize>],
    evidence: &[Option<usize>],
    within: Span,
) -> Result<UseRow, String> {
    let slice =
        slices.get(slice).copied().flatten().ok_or("names a slice that was refused or is not there")?;
    let evidence = match seen {
        Some(at) => Some(
            evidence.get(at).copied().flatten().ok_or("names evidence that was refused or is not there")?,
        ),
        None => None,
    };
    let span = read_within(from, to, within)?;
    if active_nanos.is_some_and(|active| active < 0) || memory_byte_seconds.is_some_and(|held| held < 0) {
        return Err("has a negative integral".to_owned());
    }
    // SM activity is at most all of the time.
    if active_nanos.is_some_and(|active| active > span.nanos()) {
        return Err(format!(
            "is active for longer than the {} s that it spans",
            span.nanos() / 1_000_000_000
        ));
    }
    let uncut_start = Instant::from_micros(uncut_from);
    if uncut_start < Instant::MIN || uncut_start > span.start() {
        return Err("begins before its own uncut start".to_owned());
    }
    Ok(UseRow { slice, evidence, span, uncut_start, active_nanos, memory_byte_seconds })
}

fn read_energy(
    (device, from, to, millijoules): EnergyMessage,
    devices: &[Option<Name>],
    within: Span,
) -> Result<EnergyRow, String> {
    let device = devices.get(device).and_then(Option::as_ref).ok_or("names a device that is not there")?;
    let row = EnergyRow { device: device.clone(), span: read_within(from, to, within)?, millijoules };
    if row.is_plausible() {
        Ok(row)
    } else {
        Err(format!("has energy below 0, or more than {WATTS_MAX} W would take"))
    }
}

fn read_clock(
    (from, to, boot, monotonic_nanos, wall_micros, offset_micros): ClockMessage<'_>,
    within: Span,
) -> Result<ClockRow, String> {
    let boot = Name::parse(&boot).map_err(|error| format!("boot {error}"))?;
    let span = read_within(from, to, within)?;
    if monotonic_nanos < 0 {
        return Err("has a monotonic clock below 0".to_owned());
    }
    Ok(ClockRow { span, boot, monotonic_nanos, wall_micros, offset_micros })
}

fn read_gap((from, to, reason): GapMessage<'_>, within: Span) -> Result<Gap, String> {
    let reason = Name::parse(&reason).map_err(|error| format!("reason {error}"))?;
    Ok(Gap { span: read_within(from, to, within)?, reason })
}

fn read_coverage(
    (device, from, to, of): CoverageMessage<'_>,
    devices: &[Option<Name>],
    within: Span,
) -> Result<Coverage, String> {
    let device = devices.get(device).and_then(Option::as_ref).ok_or("names a device that is not there")?;
    let of = match of.as_ref() {
        "holding" => CoverageOf::Holding,
        "use" => CoverageOf::Use,
        other => return Err(format!("`{other}` is none of: holding, use")),
    };
    let span = read_span(from, to)?;
    if span.clip(within) != span {
        return Err("lies outside the signed span".to_owned());
    }
    Ok(Coverage { device: device.clone(), span, of })
}

fn read_span(from: i64, to: i64) -> Result<Span, String> {
    let (from, to) = (Instant::from_micros(from), Instant::from_micros(to));
    if from < Instant::MIN || to > Instant::MAX {
        return Err("has an instant before 1970 or after 2199".to_owned());
    }
    Span::new(from, to).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope() -> ScopeName {
        ScopeName { kind: ScopeKind::Node, name: Name::fixed("node-1") }
    }

    fn read(message: &[u8]) -> Result<Decoded, DecodeError> {
        decode(message, &scope(), Span::clamped(Instant::from_micros(0), Instant::from_micros(1_000)))
    }

    const GOOD: &str = r#"{"v":"usage_v1","scope":{"node":"node-1"},"source":{"rank":"import","sender":"slurm"},"devices":["GPU-1","GPU-2"],"slices":[{"device":0,"mode":"dedicated"},{"device":1,"mode":"time_slicing","share_ppm":460000},{"device":1,"mode":"mig","profile":"1g.10gb"}],"evidence":[{"project":"lab","tenant":"acme","workload":"w1"}],"rows":[[0,0,0,500,0,900],[1,0,10,20,10,20]],"coverage":[[0,0,1000,"holding"],[1,0,1000,"holding"]]}"#;

    #[test]
    fn a_message_reads_back_to_its_own_bytes() {
        let decoded = read(GOOD.as_bytes()).unwrap();
        assert_eq!(decoded.refused, []);
        assert_eq!(decoded.batch.rows.len(), 2);
        let written = encode(&scope(), &decoded.source, &decoded.batch).unwrap();
        assert_eq!(String::from_utf8(written).unwrap(), GOOD);
    }

    fn refusals(change: &[(&str, &str)]) -> (usize, Vec<String>) {
        let mut text = GOOD.to_owned();
        for (from, to) in change {
            assert!(text.contains(from), "{from}");
            text = text.replace(from, to);
        }
        let decoded = read(text.as_bytes()).unwrap();
        let refused =
            decoded.refused.iter().map(|each| format!("{} {}", each.pointer, each.reason)).collect();
        (decoded.batch.rows.len(), refused)
    }

    #[test]
    fn good_rows_survive_a_bad_one() {
        let check = |change: &[(&str, &str)], rows: usize, reason: &str| {
            let (kept, refused) = refusals(change);
            assert_eq!(kept, rows, "{refused:?}");
            assert!(refused.iter().any(|each| each.starts_with(reason)), "{refused:?}");
        };
        check(&[("[1,0,10,20,10,20]", "[9,0,10,20,10,20]")], 1, "/rows/1 names a slice");
        check(&[("[1,0,10,20,10,20]", "[1,0,20,10,10,20]")], 1, "/rows/1 ends at");
        check(&[("[1,0,10,20,10,20]", "[1,0,10,2000,10,2000]")], 1, "/rows/1 lies outside the signed span");
        check(&[("[1,0,10,20,10,20]", "[1,0,10,20,15,20]")], 1, "/rows/1 lies outside its own uncut span");
        check(&[("[1,0,10,20,10,20]", "[1,0,10,-5,10,20]")], 1, "/rows/1 ends at");
        check(&[("[1,0,10,20,10,20]", "\"text\"")], 1, "/rows/1 invalid type");
        check(&[("[1,0,10,20,10,20]", "[1,0,10.5,20,10,20]")], 1, "/rows/1 invalid type");
        check(&[("\"share_ppm\":460000", "\"share_ppm\":0")], 1, "/slices/1 share_ppm 0");
        check(&[("\"share_ppm\":460000", "\"share_ppm\":-4")], 1, "/slices/1 invalid value");
        check(&[("\"share_ppm\":460000", "\"shares\":1")], 1, "/slices/1 unknown field");
        check(&[("\"time_slicing\"", "\"slices\"")], 1, "/slices/1 mode `slices` is none of");
        check(&[("\"workload\":\"w1\"", "\"colour\":\"red\"")], 0, "/evidence/0 `colour` is none of");
        check(
            &[("\"workload\":", "\"workload\":\"w0\",\"workload\":")],
            0,
            "/evidence/0 field `workload` stands twice",
        );
        check(&[("[1,0,1000,\"holding\"]", "[1,0,9000,\"holding\"]")], 2, "/coverage/1 lies outside");
        check(&[("\"rank\":\"import\"", "\"rank\":\"host_agent\"")], 0, "/evidence/0 names a");
    }

    #[test]
    fn what_is_not_this_message_is_refused_whole() {
        let check = |from: &str, to: &str, part: &str| {
            let error = read(GOOD.replace(from, to).as_bytes()).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        check("usage_v1", "usage_v2", "usage_v2");
        check("node-1", "node-2", "another node");
        check("{\"node\"", "{\"pool\"", "another node");
        check("\"coverage\"", "\"extra\":1,\"coverage\"", "unknown field `extra`");
        check("\"v\":", "\"v\":\"usage_v1\",\"v\":", "duplicate field `v`");
        check("\"rank\":\"import\"", "\"rank\":\"boss\"", "/source/rank `boss`");
        check("{\"v\"", "{{", "not usage_v1");
        let rows = format!("\"rows\":[{}]", vec!["[0,0,0,1,0,1]"; ROWS_MAX + 1].join(","));
        let many = GOOD.replace("\"rows\":[[0,0,0,500,0,900],[1,0,10,20,10,20]]", &rows);
        assert!(matches!(read(many.as_bytes()), Err(DecodeError::TooManyRows { .. })));
    }
}
