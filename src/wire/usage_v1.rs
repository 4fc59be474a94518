//! The usage message, version 1: tables of devices, slices and evidence, then rows that point into them.
//!
//! JSON. Instants are microseconds since 1970 UTC. A row is `[slice, evidence, from, to, uncut_from,
//! uncut_to]`; `uncut` is the whole holding of which the row is a piece. Coverage is
//! `[device, from, to, "holding" | "use"]`.
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
    Batch, Coverage, CoverageOf, Evidence, EvidenceField, Row, Slice, SliceSize, Source, SourceRank,
};

/// The version's word.
pub const VERSION: &str = "usage_v1";

/// The message; `D`, `S`, `E`, `R` and `C` are its entries, typed or still raw.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Message<'a, D, S, E, R, C> {
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
    /// More rows than a batch may have.
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
        slices: batch
            .slices
            .iter()
            .map(|slice| SliceMessage {
                device: number(&slice.device),
                mode: Cow::Borrowed(slice.mode.word()),
                share_ppm: match slice.size {
                    SliceSize::Declared(ppm) => Some(ppm),
                    SliceSize::Whole | SliceSize::Profile(_) => None,
                },
                profile: match &slice.size {
                    SliceSize::Profile(profile) => Some(Cow::Borrowed(profile.as_str())),
                    SliceSize::Whole | SliceSize::Declared(_) => None,
                },
            })
            .collect(),
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
    };
    serde_json::to_vec(&message)
}

/// Reads a message against the scope and span that were signed for it.
///
/// Rows and entries that are malformed, lie outside the signed span or claim what their sender may not are
/// refused one by one.
///
/// # Errors
/// [`DecodeError`] when nothing can be read.
pub fn decode(message: &[u8], scope: &ScopeName, within: Span) -> Result<Decoded, DecodeError> {
    type Typed<'a> =
        Message<'a, Cow<'a, str>, SliceMessage<'a>, EvidenceMessage<'a>, RowMessage, CoverageMessage<'a>>;
    type Raw<'a> = Message<'a, &'a RawValue, &'a RawValue, &'a RawValue, &'a RawValue, &'a RawValue>;
    // The common case reads each entry once. Only where one does not fit is every entry tried on its own.
    if let Ok(typed) = serde_json::from_slice::<Typed<'_>>(message) {
        return Reader::new(scope, within).read(typed.map(Ok, Ok, Ok, Ok, Ok));
    }
    let raw = serde_json::from_slice::<Raw<'_>>(message).map_err(DecodeError::NotThisShape)?;
    Reader::new(scope, within).read(raw.map(entry, entry, entry, entry, entry))
}

fn entry<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> Result<T, String> {
    serde_json::from_str(raw.get()).map_err(|error| {
        // The position is inside the entry and would mislead.
        let text = error.to_string();
        text.split(" at line ").next().unwrap_or_default().to_owned()
    })
}

impl<'a, D, S, E, R, C> Message<'a, D, S, E, R, C> {
    fn map<D2, S2, E2, R2, C2>(
        self,
        device: impl Fn(D) -> D2,
        slice: impl Fn(S) -> S2,
        evidence: impl Fn(E) -> E2,
        row: impl Fn(R) -> R2,
        coverage: impl Fn(C) -> C2,
    ) -> Message<'a, D2, S2, E2, R2, C2> {
        Message {
            v: self.v,
            scope: self.scope,
            source: self.source,
            devices: self.devices.into_iter().map(device).collect(),
            slices: self.slices.into_iter().map(slice).collect(),
            evidence: self.evidence.into_iter().map(evidence).collect(),
            rows: self.rows.into_iter().map(row).collect(),
            coverage: self.coverage.into_iter().map(coverage).collect(),
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
>;

/// Turns entries into domain values and collects what is refused.
struct Reader<'a> {
    scope: &'a ScopeName,
    within: Span,
    refused: Vec<Refusal>,
}

impl<'a> Reader<'a> {
    fn new(scope: &'a ScopeName, within: Span) -> Self {
        Self { scope, within, refused: Vec::new() }
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
        if message.rows.len() > ROWS_MAX {
            return Err(DecodeError::TooManyRows { rows: message.rows.len() });
        }
        let source = read_source(&message.source)?;
        let mut batch = Batch::default();
        let devices = self
            .each("devices", message.devices, |text| Name::parse(&text?).map_err(|error| error.to_string()));
        let slices = self.each("slices", message.slices, |slice| read_slice(slice?, &devices));
        let slices = keep(slices, &mut batch.slices);
        let evidence = self.each("evidence", message.evidence, |seen| read_evidence(seen?, source.rank));
        let evidence = keep(evidence, &mut batch.evidence);
        let within = self.within;
        let rows = self.each("rows", message.rows, |row| read_row(row?, &slices, &evidence, within));
        let coverage = self.each("coverage", message.coverage, |each| read_coverage(each?, &devices, within));
        let row_numbers = keep_numbered(rows, &mut batch.rows);
        let coverage_numbers = keep_numbered(coverage, &mut batch.coverage);
        Ok(Decoded { source, batch, row_numbers, coverage_numbers, refused: self.refused })
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
    let size = match (slice.share_ppm, slice.profile) {
        (None, None) => SliceSize::Whole,
        (Some(ppm), None) if (1..=1_000_000).contains(&ppm) => SliceSize::Declared(ppm),
        (Some(ppm), None) => return Err(format!("share_ppm {ppm} is not between 1 and 1000000")),
        (None, Some(profile)) => {
            SliceSize::Profile(Name::parse(&profile).map_err(|error| format!("profile {error}"))?)
        }
        (Some(_), Some(_)) => return Err("has both a share and a profile".to_owned()),
    };
    Ok(Slice { device: device.clone(), mode, size })
}

fn read_evidence(seen: EvidenceMessage<'_>, rank: SourceRank) -> Result<Evidence, String> {
    seen.0
        .into_iter()
        .map(|(word, value)| {
            let field = EvidenceField::parse(&word).map_err(|error| error.to_string())?;
            if field.is_declaration() && rank != SourceRank::Import {
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
