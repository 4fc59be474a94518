//! How fast device-hours are attributed, pure and with storage, beside a bare in-memory hash roll-up of as many
//! rows, in one run. Absolute figures move with the machine; the ratios are what to compare.
//!
//! One core: processor time of the whole process is counted, so threads do not flatter.

#![allow(clippy::print_stdout, clippy::panic, reason = "a bench prints, and ends where it cannot measure")]

use std::collections::HashMap;
use std::hint::black_box;
use std::io::Cursor;
use std::sync::Arc;

use fatia::domain::allocation::{DeviceFacts, divide};
use fatia::domain::cost::DaySums;
use fatia::domain::device::{Device, SharingMode};
use fatia::domain::ids::Name;
use fatia::domain::mapping::MappingRules;
use fatia::domain::period::{BillingZone, Span};
use fatia::domain::price::PriceBook;
use fatia::domain::segment::Claims;
use fatia::domain::units::{Instant, MICROS_PER_HOUR};
use fatia::domain::usage::{
    Batch, Coverage, CoverageOf, Evidence, EvidenceField, Row, Slice, SliceSize, Source, SourceRank,
};
use fatia::services::ctx::{BillingSettings, Clock, Platform};
use fatia::services::derive::{Worker, derive_all};
use fatia::services::imports::{ImportRequest, import_intervals};
use fatia::store::Store;

const DEVICES: usize = 8;
const NODES: usize = 6;
const DAYS: i64 = 10;
const PAIRS: usize = 5;
/// Holdings change hands this often, at minutes that are on no hour's edge.
const HOLDING_US: i64 = 3 * MICROS_PER_HOUR + 7 * 60_000_000;

fn main() {
    let device_hours = NODES * DEVICES * usize::try_from(DAYS * 24).unwrap_or(0);
    let whole = fleet(1);
    let shared = fleet(4);
    println!("{device_hours} device-hours a run, {PAIRS} runs interleaved, processor seconds");
    let mut times: HashMap<&str, Vec<f64>> = HashMap::new();
    for _ in 0..PAIRS {
        let rows = roll_up_rows(&whole);
        note(&mut times, "roll-up", 400, || roll_up(&rows));
        note(&mut times, "pure, whole devices", 4, || attribute(&whole));
        note(&mut times, "pure, four declared shares", 4, || attribute(&shared));
        note(&mut times, "with storage, whole devices", 1, || with_storage(&whole));
    }
    let rate = |name: &str| {
        let mut all = times.get(name).cloned().unwrap_or_default();
        all.sort_by(f64::total_cmp);
        let per_second = |seconds: f64| device_hours as f64 / seconds.max(1e-9);
        let middle = all.get(all.len() / 2).copied().unwrap_or(f64::NAN);
        let (least, most) =
            (all.first().copied().unwrap_or(f64::NAN), all.last().copied().unwrap_or(f64::NAN));
        println!(
            "{name:<30} {:>12.0} device-hours/s on one core (min {:.0}, max {:.0})",
            per_second(middle),
            per_second(most),
            per_second(least)
        );
        per_second(middle)
    };
    let roll_up = rate("roll-up");
    let pure = rate("pure, whole devices");
    let shared = rate("pure, four declared shares");
    let stored = rate("with storage, whole devices");
    println!("ratio pure / roll-up           {:.4}", pure / roll_up);
    println!("ratio shares / whole, pure     {:.4}", shared / pure);
    println!("ratio with storage / pure      {:.4}", stored / pure);
    println!("ratio with storage / roll-up   {:.5}", stored / roll_up);
}

/// Times `repeats` runs together, since one may be below the clock's tick, and notes the time of one.
fn note(times: &mut HashMap<&'static str, Vec<f64>>, name: &'static str, repeats: u32, work: impl Fn()) {
    let before = processor_seconds();
    (0..repeats).for_each(|_| work());
    times.entry(name).or_default().push((processor_seconds() - before) / f64::from(repeats));
}

/// User and system time of this process. Source: proc(5), fields 14 and 15 of stat, in hundredths of a second.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks: f64 =
        after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks / 100.0
}

/// One node's month: its devices, and one batch of everything that was held.
struct Node {
    name: Name,
    devices: Vec<Device>,
    batch: Batch,
}

fn start() -> Instant {
    Instant::parse("2026-09-01T00:00:00Z").unwrap_or(Instant::MIN)
}

fn whole_span() -> Span {
    Span::clamped(start(), start().plus_micros(DAYS * 24 * MICROS_PER_HOUR))
}

fn name(text: String) -> Name {
    Name::parse(&text).unwrap_or_else(|_| Name::fixed("bench"))
}

/// A fleet on which each device has `holders` at a time: one whole, or equal declared shares.
fn fleet(holders: usize) -> Vec<Node> {
    let size = if holders == 1 {
        SliceSize::Whole
    } else {
        SliceSize::Declared(1_000_000 / u32::try_from(holders).unwrap_or(1))
    };
    let mode = if holders == 1 { SharingMode::Dedicated } else { SharingMode::TimeSlicing };
    (0..NODES)
        .map(|node| {
            let devices: Vec<Device> = (0..DEVICES)
                .map(|device| Device {
                    uuid: name(format!("GPU-{node:03}-{device}")),
                    model: Name::fixed("A10"),
                })
                .collect();
            let mut batch = Batch::default();
            for (at, device) in devices.iter().enumerate() {
                batch.slices.push(Slice { device: device.uuid.clone(), mode, size: size.clone() });
                batch.coverage.push(Coverage {
                    device: device.uuid.clone(),
                    span: whole_span(),
                    of: CoverageOf::Holding,
                });
                for holder in 0..holders {
                    let shift = i64::try_from(at * 11 + holder * 17).unwrap_or(0) * 60_000_000;
                    let mut from = start();
                    while from < whole_span().end() {
                        let to = from.plus_micros(HOLDING_US + shift).min(whole_span().end());
                        let number = batch.evidence.len();
                        batch.evidence.push(evidence(node, number));
                        let span = Span::clamped(from, to);
                        batch.rows.push(Row { slice: at, evidence: number, span, uncut: span });
                        from = to;
                    }
                }
            }
            Node { name: name(format!("node-{node:03}")), devices, batch }
        })
        .collect()
}

fn evidence(node: usize, number: usize) -> Evidence {
    [
        (EvidenceField::Workload, name(format!("w-{node}-{number}"))),
        (EvidenceField::Tenant, name(format!("tenant-{}", number % 20))),
        (EvidenceField::Project, name(format!("project-{}", number % 60))),
    ]
    .into_iter()
    .collect()
}

/// Fold, divide and sum: everything but storage.
fn attribute(nodes: &[Node]) {
    let source = Source { rank: SourceRank::Import, sender: Name::fixed("bench") };
    let (rules, book) = (MappingRules::default(), PriceBook::default());
    for node in nodes {
        for day in BillingZone::UTC.days_meeting(whole_span()) {
            let day_span = BillingZone::UTC.day_span(day);
            let mut claims = Claims::new();
            // As stored: a day's batch has the day's rows.
            let mut batch = node.batch.clone();
            batch.rows.retain(|row| row.span.meets(day_span));
            claims.add(&source, 1, &batch);
            let hours: Vec<Span> = BillingZone::UTC.hours_of(day).collect();
            let mut sums = DaySums::default();
            for hour in claims.fold(&hours) {
                let in_service = [hour.hour];
                let mut divided = Vec::with_capacity(node.devices.len());
                for device in &node.devices {
                    let facts = DeviceFacts { device, in_service: &in_service, states: &[] };
                    let of_device = hour.devices.iter().find(|each| each.device == device.uuid);
                    divided.extend(divide(&facts, &hour, of_device, &rules));
                }
                let _fits = sums.add(hour.hour, &divided, &hour.evidence, &book);
            }
            black_box(sums.len());
        }
    }
}

/// What a plain roll-up reads: (hour, device, holder, nanoseconds), one row a device-hour and holder.
fn roll_up_rows(nodes: &[Node]) -> Vec<(i64, u32, u32, i64)> {
    let mut rows = Vec::new();
    for (number, node) in (0_u32..).zip(nodes) {
        for row in &node.batch.rows {
            for hour in BillingZone::UTC.hours_meeting(row.span) {
                let device = number * 64 + u32::try_from(row.slice).unwrap_or(0);
                let holder = u32::try_from(row.evidence).unwrap_or(0);
                rows.push((hour.start().micros(), device, holder, row.span.clip(hour).nanos()));
            }
        }
    }
    rows
}

/// The bare roll-up.
fn roll_up(rows: &[(i64, u32, u32, i64)]) {
    let mut sums: HashMap<(i64, u32, u32), i64> = HashMap::new();
    for (hour, device, holder, nanos) in rows {
        *sums.entry((*hour, *device, *holder)).or_insert(0) += nanos;
    }
    black_box(sums.len());
}

/// Import, fold, divide, price and sum on an embedded database in a temporary folder.
fn with_storage(nodes: &[Node]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let (Ok(runtime), Ok(folder)) = (runtime, tempfile::tempdir()) else { return };
    let (inventory, intervals) = tables(nodes);
    let done = runtime.block_on(async {
        let store = Store::open(folder.path(), "bench").await.map_err(|error| error.to_string())?;
        let clock = Arc::new(Fixed(whole_span().end()));
        let platform = Platform::open(store, "bench".to_owned(), clock, BillingSettings::default(), [7; 32])
            .await
            .map_err(|error| error.to_string())?;
        let request = ImportRequest { source: Name::fixed("bench"), covers: None };
        let (inventory, intervals) = (("i", Cursor::new(inventory)), ("f", Cursor::new(intervals)));
        let outcome = import_intervals(&platform, &request, inventory, intervals, Arc::new(|_| ())).await;
        outcome.map_err(|error| error.to_string())?;
        let worker = Worker { holder: "bench".to_owned(), lease_seconds: 600 };
        derive_all(&platform, &worker, &|_| ()).await.map_err(|error| error.to_string())
    });
    match done {
        Ok(derived) => {
            assert_eq!(derived.days, u64::try_from(NODES).unwrap_or(0) * u64::try_from(DAYS).unwrap_or(0))
        }
        Err(error) => panic!("{error}"),
    }
}

struct Fixed(Instant);

impl Clock for Fixed {
    fn now(&self) -> Instant {
        self.0
    }
}

fn tables(nodes: &[Node]) -> (String, String) {
    let mut inventory = "node,gpu_uuid,gpu_model,in_service_from,in_service_to\n".to_owned();
    let mut intervals = "workload,tenant,project,node,gpu_uuid,mode,share_ppm,start,end\n".to_owned();
    for node in nodes {
        for device in &node.devices {
            let (from, to) = (whole_span().start(), whole_span().end());
            inventory.push_str(&format!("{},{},{},{from},{to}\n", node.name, device.uuid, device.model));
        }
        for row in &node.batch.rows {
            let (Some(slice), Some(seen)) =
                (node.batch.slices.get(row.slice), node.batch.evidence.get(row.evidence))
            else {
                continue;
            };
            let field = |field| seen.get(field).map(ToString::to_string).unwrap_or_default();
            let (workload, tenant, project) =
                (field(EvidenceField::Workload), field(EvidenceField::Tenant), field(EvidenceField::Project));
            let (from, to, mode) = (row.span.start(), row.span.end(), slice.mode.word());
            intervals.push_str(&format!(
                "{workload},{tenant},{project},{},{},{mode},,{from},{to}\n",
                node.name, slice.device
            ));
        }
    }
    (inventory, intervals)
}
