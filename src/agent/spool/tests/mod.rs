//! The spool under test: a world that measures minute by minute, and a service that takes what it is sent.

mod calls;
mod damage;
mod life;
mod merging;
mod volume;

use std::collections::BTreeMap;

use uuid::Uuid;

use super::record::CURSOR_FILE;
use super::sim::SimDisk;
use super::*;
use crate::domain::device::SharingMode;
use crate::domain::ids::ScopeKind;
use crate::domain::usage::{
    ClockRow, Coverage, CoverageOf, EnergyRow, Evidence, EvidenceField, LayoutRow, Row, Slice, SliceSize,
    SourceRank, UseRow,
};

const MINUTE: i64 = 60_000_000;
/// 2026-06-01T00:00:00Z.
const BEGIN: i64 = 1_780_272_000_000_000;
const LIMITS: BatchLimits =
    BatchLimits { rows_max: 5_000, bytes_max: 1 << 20, span_max_micros: 5 * MINUTE, windows_max: 10 };
const HOUR: BatchLimits =
    BatchLimits { rows_max: 5_000, bytes_max: 1 << 20, span_max_micros: 60 * MINUTE, windows_max: 200 };

fn at(minute: i64) -> Instant {
    Instant::from_micros(BEGIN + minute * MINUTE)
}

fn minutes(from: i64, to: i64) -> Span {
    Span::new(at(from), at(to)).unwrap()
}

fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

fn settings(budget: u64) -> Settings {
    let node = name("gpu-node-0123.rack-7.fra2.example.internal");
    Settings {
        scope: ScopeName { kind: ScopeKind::Node, name: node.clone() },
        source: Source { rank: SourceRank::HostAgent, sender: node },
        budget,
        keep_acknowledged_micros: KEEP_ACKNOWLEDGED_MICROS,
    }
}

/// Ids of streams: never one twice in a test, whoever opens the spool.
fn ids() -> impl FnMut() -> Uuid + Send + 'static {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    || {
        let next = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Uuid::from_u64_pair(0x5eed, next)
    }
}

fn open(disk: &SimDisk, budget: u64) -> Result<Spool<SimDisk>, SpoolError> {
    Spool::open(disk.clone(), settings(budget), ids())
}

/// A number that looks random and is the same each time.
fn noise(of: i64) -> u64 {
    let mut x = u64::from_le_bytes(of.to_le_bytes()).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn below(of: i64, limit: i64) -> i64 {
    i64::try_from(noise(of) % limit.unsigned_abs()).unwrap()
}

/// One minute of a node: `gpus` × `slices`, holders that change every `change` minutes, each at its own minute.
fn measured(minute: i64, gpus: i64, slices: i64, change: i64) -> Window {
    let span = minutes(minute, minute + 1);
    let mut batch = Batch::default();
    for gpu in 0..gpus {
        let uuid = |kind: &str, n: i64| {
            let (a, b) = (noise(n * 7 + 1), noise(n * 7 + 2));
            name(&format!("{kind}-{}", Uuid::from_u64_pair(a, b)))
        };
        let device = uuid("GPU", gpu);
        for slice in 0..slices {
            let key = gpu * 100 + slice;
            let index = batch.slices.len();
            batch.slices.push(Slice {
                id: Some(uuid("MIG", 1_000 + key)),
                start: u16::try_from(slice).ok(),
                ..Slice::plain(device.clone(), SharingMode::Mig, SliceSize::Profile(name("1g.10gb")))
            });
            batch.layout.push(LayoutRow { slice: index, span, uncut: span });
            let tenure = (minute + key * 13) / change;
            batch.evidence.push(Evidence::from_iter([
                (EvidenceField::Namespace, name(&format!("team-{}-research", below(key, 9)))),
                (EvidenceField::Pod, name(&format!("training-job-{key}-{tenure}-worker-0"))),
            ]));
            batch.rows.push(Row { slice: index, evidence: index, span, uncut: span });
            batch.usage.push(UseRow {
                slice: index,
                evidence: Some(index),
                span,
                uncut_start: span.start(),
                active_nanos: Some(below(minute * 1_000 + key, span.nanos())),
                memory_byte_seconds: Some(below(minute * 1_000 + key + 500, 10 * (1 << 30) * 60)),
            });
        }
        batch.energy.push(EnergyRow {
            device: device.clone(),
            span,
            millijoules: below(minute * 31 + gpu, 700 * 60 * 1_000),
        });
        for of in [CoverageOf::Holding, CoverageOf::Use] {
            batch.coverage.push(Coverage { device: device.clone(), span, of });
        }
    }
    batch.clocks.push(ClockRow {
        span,
        boot: name("0d4c6a36-7b2f-4f27-9d4b-1f1f6a0f0c55"),
        monotonic_nanos: minute * 60_000_000_000,
        wall_micros: BEGIN + minute * MINUTE + 250,
        offset_micros: -250,
    });
    Window { span, batch, source_state: minute.to_le_bytes().to_vec() }
}

fn decoded(body: &[u8]) -> Batch {
    let message = body::unpack(body).unwrap();
    let read = usage_v1::decode_from(&message, &settings(1).scope, Span::ALWAYS, Sender::Reporter).unwrap();
    assert_eq!(read.refused, []);
    read.batch
}

/// What the service answers.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Taken,
    /// The number comes after one that was never seen; this is the mark.
    Ahead(i64),
}

/// A service: a mark a stream, and what it took.
#[derive(Debug, Default)]
struct Service {
    streams: BTreeMap<Uuid, Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    /// The bodies by number; a skip's numbers have their span.
    numbers: Vec<OutBody>,
    /// Set back since: numbers may be missing.
    was_restored: bool,
}

impl Service {
    fn take(&mut self, out: &Outgoing) -> Answer {
        let stream = self.streams.entry(out.stream).or_default();
        let mark = i64::try_from(stream.numbers.len()).unwrap();
        let (from, to) = match &out.body {
            OutBody::Bytes(_) => (out.sequence, out.sequence),
            OutBody::Skip { from, to, .. } => (*from, *to),
        };
        assert!(1 <= from && from <= to && to == out.sequence, "{out:?}");
        if from > mark + 1 {
            assert!(stream.was_restored, "a hole before {from}, the mark is {mark}");
            return Answer::Ahead(mark);
        }
        for number in from..=to {
            match stream.numbers.get(usize::try_from(number - 1).unwrap()) {
                Some(known) => assert!(known == &out.body, "two bodies of number {number}"),
                None => stream.numbers.push(out.body.clone()),
            }
        }
        Answer::Taken
    }

    /// Whether a number was taken.
    fn has(&self, out: &Outgoing) -> bool {
        let taken = self.streams.get(&out.stream).map_or(0, |taken| taken.numbers.len());
        usize::try_from(out.sequence).unwrap() <= taken
    }

    /// Sets a stream back by some numbers.
    fn restore(&mut self, stream: Uuid, by: usize) {
        if let Some(taken) = self.streams.get_mut(&stream) {
            let kept = taken.numbers.len().saturating_sub(by);
            taken.numbers.truncate(kept);
            taken.was_restored = true;
        }
    }

    /// The bodies, each once, and the spans that are said to be lost.
    fn heard(&self) -> (Vec<Batch>, Vec<Span>) {
        let all = self.streams.values().flat_map(|taken| &taken.numbers);
        let mut bodies: Vec<&Vec<u8>> = Vec::new();
        let mut lost = Vec::new();
        for each in all {
            match each {
                OutBody::Bytes(body) => bodies.push(body),
                OutBody::Skip { span, .. } => lost.push(*span),
            }
        }
        bodies.sort();
        bodies.dedup();
        let batches: Vec<Batch> = bodies.into_iter().map(|body| decoded(body)).collect();
        lost.extend(batches.iter().flat_map(|batch| batch.gaps.iter().map(|gap| gap.span)));
        (batches, lost)
    }

    /// Every minute is in one body, or in none and said to be lost.
    fn check(&self, measured: impl IntoIterator<Item = i64>, context: &str) -> usize {
        let (batches, lost) = self.heard();
        let lost = crate::domain::usage::merged(lost);
        let mut in_gaps = 0;
        for minute in measured {
            let span = minutes(minute, minute + 1);
            let holds = |batch: &&Batch| batch.coverage.iter().any(|each| each.span.clip(span) == span);
            let bodies = batches.iter().filter(holds).count();
            let is_lost = lost.iter().any(|gap| gap.clip(span) == span);
            assert!(bodies <= 1, "minute {minute} is in {bodies} batches; {context}");
            assert!(bodies == 1 || is_lost, "minute {minute} is nowhere; {context}");
            in_gaps += usize::from(bodies == 0);
        }
        in_gaps
    }
}

/// Sends all that a lane has, in batches that are closed, with rewinds where the service asks for them.
fn send<D: Disk>(
    spool: &mut Spool<D>,
    service: &mut Service,
    lane: Lane,
    now: Instant,
) -> Result<(), SpoolError> {
    let limits = if lane == Lane::Live { LIMITS } else { HOUR };
    while let Some(out) = spool.next_batch(lane, limits, true)? {
        match service.take(&out) {
            Answer::Taken => spool.acknowledge(lane, out.sequence, now)?,
            Answer::Ahead(mark) => {
                spool.rewind(lane, mark)?;
            }
        }
    }
    Ok(())
}
