//! How fast device-hours are attributed, pure and with storage, beside a bare in-memory hash roll-up of as many
//! rows, in one run. Absolute figures move with the machine; the ratios are what to compare.
//!
//! One core: processor time of the whole process is counted, so threads do not flatter.

#![allow(clippy::print_stdout, clippy::panic, reason = "a bench prints, and ends where it cannot measure")]

use std::collections::HashMap;
use std::hint::black_box;
use std::io::Cursor;
use std::sync::Arc;

use fatia::domain::allocation::{DeviceFacts, Divider};
use fatia::domain::catalogue::Catalogue;
use fatia::domain::cost::DaySums;
use fatia::domain::device::{Device, SharingMode};
use fatia::domain::ids::Name;
use fatia::domain::mapping::MappingRules;
use fatia::domain::period::{BillingZone, Day, Span};
use fatia::domain::policy::Policy;
use fatia::domain::price::PriceBook;
use fatia::domain::segment::Claims;
use fatia::domain::units::{Instant, MICROS_PER_HOUR};
use fatia::domain::usage::{
    Batch, Coverage, CoverageOf, Evidence, EvidenceField, LayoutRow, Row, Slice, SliceSize, Source,
    SourceRank,
};
use fatia::services::ctx::{BillingSettings, Clock, Platform};
use fatia::services::derive::{Worker, derive_all};
use fatia::services::imports::{ImportRequest, Tables, import_intervals};
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
    let modes = fleet_of_all_modes(Density::Usual);
    let dense = fleet_of_all_modes(Density::Full);
    println!("{device_hours} device-hours a run, {PAIRS} runs interleaved, processor seconds");
    let mut times: HashMap<&str, Vec<f64>> = HashMap::new();
    for _ in 0..PAIRS {
        let rows = roll_up_rows(&whole);
        note(&mut times, "roll-up", 400, || roll_up(&rows));
        note(&mut times, "pure, whole devices", 40, || attribute(&whole));
        note(&mut times, "pure, four declared shares", 16, || attribute(&shared));
        note(&mut times, "pure, all modes", 24, || attribute(&modes));
        note(&mut times, "pure, all modes, dense", 16, || attribute(&dense));
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
    let four = rate("pure, four declared shares");
    let nested = rate("pure, all modes");
    let crowded = rate("pure, all modes, dense");
    let stored = rate("with storage, whole devices");
    println!("ratio pure / roll-up           {:.4}", pure / roll_up);
    println!("ratio shares / whole, pure     {:.4}", four / pure);
    println!("ratio all modes / whole, pure  {:.4}", nested / pure);
    println!("ratio dense modes / whole      {:.4}", crowded / pure);
    for (name, fleet) in [("whole", &whole), ("shares", &shared), ("all modes", &modes), ("dense", &dense)] {
        let parts = f64::from(count_parts(fleet)) / device_hours as f64;
        println!("parts of a device-hour, {name:<10} {parts:.2}");
    }
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
    /// As stored: a batch a day, with the day's rows and what these name.
    days: Vec<(Day, Batch)>,
}

impl Node {
    fn new(name: Name, devices: Vec<Device>, batch: Batch) -> Self {
        let days =
            BillingZone::UTC.days_meeting(whole_span()).map(|day| (day, of_day(&batch, day))).collect();
        Self { name, devices, batch, days }
    }
}

fn of_day(batch: &Batch, day: Day) -> Batch {
    let span = BillingZone::UTC.day_span(day);
    let mut evidence: Vec<usize> = Vec::new();
    let mut of_day = Batch { slices: batch.slices.clone(), ..Batch::default() };
    for row in batch.rows.iter().filter(|row| row.span.meets(span)) {
        if !evidence.contains(&row.evidence) {
            evidence.push(row.evidence);
            of_day.evidence.extend(batch.evidence.get(row.evidence).cloned());
        }
        let number = evidence.iter().position(|each| *each == row.evidence).unwrap_or(0);
        of_day.rows.push(Row { evidence: number, span: row.span.clip(span), ..row.clone() });
    }
    of_day.layout =
        batch.layout.iter().map(|row| LayoutRow { span: row.span.clip(span), ..row.clone() }).collect();
    of_day.coverage =
        batch.coverage.iter().map(|each| Coverage { span: each.span.clip(span), ..each.clone() }).collect();
    of_day
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
                batch.slices.push(Slice::plain(device.uuid.clone(), mode, size.clone()));
                batch.coverage.push(Coverage {
                    device: device.uuid.clone(),
                    span: whole_span(),
                    of: CoverageOf::Holding,
                });
                for holder in 0..holders {
                    hold(&mut batch, node, at, at * 11 + holder * 17);
                }
            }
            Node::new(name(format!("node-{node:03}")), devices, batch)
        })
        .collect()
}

/// How one board of a node of all modes is shared: its model, the slices that exist, and the slices that are held.
struct Board {
    model: &'static str,
    existing: Vec<Slice>,
    held: Vec<Slice>,
}

/// How full the boards of a fleet of all modes are.
#[derive(Clone, Copy, PartialEq)]
enum Density {
    /// Two of three MIG instances held, two vGPUs, two replicas, two MPS clients, two partitions of four.
    Usual,
    /// Five of seven MIG instances held, three vGPUs, two replicas on each of two instances, three of the others.
    Full,
}

fn boards(device: &dyn Fn(usize) -> Name, density: Density) -> Vec<Board> {
    use SharingMode::{Dedicated, Mig, MigVgpu, Mps, Partition, Passthrough, TimeSlicing, Vgpu};
    let profile = |text: &'static str| SliceSize::Profile(Name::fixed(text));
    let slice = |at: usize, mode, size| Slice::plain(device(at), mode, size);
    let named = |id: &'static str, slice: Slice| Slice { id: Some(Name::fixed(id)), ..slice };
    let inside = |parent: &'static str, slice: Slice| Slice { parent: Some(Name::fixed(parent)), ..slice };
    let at_slot = |start: u16, slice: Slice| Slice { start: Some(start), ..slice };
    let sevenths: Vec<Slice> = ["m0", "m1", "m2", "m3", "m4", "m5", "m6"]
        .into_iter()
        .zip(0..)
        .map(|(id, start)| at_slot(start, named(id, slice(2, Mig, profile("1g.10gb")))))
        .collect();
    let halves = |at, mode| {
        vec![
            at_slot(0, named("h0", slice(at, mode, profile("3g.40gb")))),
            at_slot(4, named("h1", slice(at, mode, profile("3g.40gb")))),
        ]
    };
    let three = vec![
        at_slot(4, named("t0", slice(2, Mig, profile("3g.40gb")))),
        at_slot(0, named("t1", slice(2, Mig, profile("2g.20gb")))),
        at_slot(2, named("t2", slice(2, Mig, profile("2g.20gb")))),
    ];
    let is_full = density == Density::Full;
    let several = if is_full { 3 } else { 2 };
    let replicas = |parent| vec![inside(parent, slice(5, TimeSlicing, SliceSize::OneOf(2))); 2];
    vec![
        Board { model: "A10", existing: vec![], held: vec![slice(0, Dedicated, SliceSize::Whole)] },
        Board { model: "A10", existing: vec![], held: vec![slice(1, Passthrough, SliceSize::Whole)] },
        if is_full {
            Board { model: "H100-80GB", held: sevenths.iter().take(5).cloned().collect(), existing: sevenths }
        } else {
            Board { model: "H100-80GB", held: three.iter().take(2).cloned().collect(), existing: three }
        },
        Board { model: "L40S", existing: vec![], held: vec![slice(3, Vgpu, profile("L40S-12Q")); several] },
        Board {
            model: "H100-80GB",
            existing: halves(4, MigVgpu),
            held: vec![inside("h0", slice(4, MigVgpu, profile("H100XM-3-40C")))],
        },
        Board {
            model: "H100-80GB",
            existing: halves(5, Mig),
            held: if is_full { [replicas("h0"), replicas("h1")].concat() } else { replicas("h0") },
        },
        Board {
            model: "A10",
            existing: vec![],
            held: vec![slice(6, Mps, SliceSize::Threads { percent: 50, memory_mib: None }); several],
        },
        Board {
            model: "A10",
            existing: vec![],
            held: vec![slice(7, Partition, SliceSize::OneOf(4)); several],
        },
    ]
}

/// A fleet whose nodes have one board of each mode, MIG and what nests in it among them.
fn fleet_of_all_modes(density: Density) -> Vec<Node> {
    (0..NODES)
        .map(|node| {
            let uuid = |device: usize| name(format!("GPU-{node:03}-{device}"));
            let boards = boards(&uuid, density);
            let mut batch = Batch::default();
            let mut devices = Vec::new();
            for (at, board) in boards.into_iter().enumerate() {
                devices.push(Device { uuid: uuid(at), model: Name::fixed(board.model) });
                batch.coverage.push(Coverage {
                    device: uuid(at),
                    span: whole_span(),
                    of: CoverageOf::Holding,
                });
                for slice in board.existing {
                    let number = batch.slices.len();
                    batch.slices.push(slice);
                    batch.layout.push(LayoutRow { slice: number, span: whole_span(), uncut: whole_span() });
                }
                for (holder, slice) in board.held.into_iter().enumerate() {
                    let number = batch.slices.len();
                    batch.slices.push(slice);
                    hold(&mut batch, node, number, at * 11 + holder * 17);
                }
            }
            Node::new(name(format!("node-{node:03}")), devices, batch)
        })
        .collect()
}

/// One holder after another on a slice.
fn hold(batch: &mut Batch, node: usize, slice: usize, shift: usize) {
    let shift = i64::try_from(shift).unwrap_or(0) * 60_000_000;
    let mut from = start();
    while from < whole_span().end() {
        let to = from.plus_micros(HOLDING_US + shift).min(whole_span().end());
        let number = batch.evidence.len();
        batch.evidence.push(evidence(node, number));
        let span = Span::clamped(from, to);
        batch.rows.push(Row { slice, evidence: number, span, uncut: span });
        from = to;
    }
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
    let (rules, book, policy) = (MappingRules::default(), PriceBook::default(), Policy::default());
    for node in nodes {
        for (day, batch) in &node.days {
            let mut claims = Claims::new();
            claims.add(&source, 1, batch);
            let hours: Vec<Span> = BillingZone::UTC.hours_of(*day).collect();
            let mut sums = DaySums::default();
            let mut divider = Divider::new(Catalogue::embedded(), &rules);
            for hour in claims.fold(&hours) {
                let in_service = [hour.hour];
                let mut divided = Vec::with_capacity(node.devices.len());
                for device in &node.devices {
                    let facts =
                        DeviceFacts { device, memory_mib: None, in_service: &in_service, states: &[] };
                    let of_device = hour.devices.iter().find(|each| each.device == device.uuid);
                    divided.extend(divider.divide(&facts, &hour, of_device, &policy));
                }
                let _fits = sums.add(hour.hour, &divided, &hour.evidence, &book);
            }
            black_box(sums.len());
        }
    }
}

/// How many parts the device-hours of a fleet have.
fn count_parts(nodes: &[Node]) -> u32 {
    let source = Source { rank: SourceRank::Import, sender: Name::fixed("bench") };
    let (rules, policy) = (MappingRules::default(), Policy::default());
    let mut parts = 0;
    for node in nodes {
        for (day, batch) in &node.days {
            let mut claims = Claims::new();
            claims.add(&source, 1, batch);
            let mut divider = Divider::new(Catalogue::embedded(), &rules);
            for hour in claims.fold(&BillingZone::UTC.hours_of(*day).collect::<Vec<_>>()) {
                let in_service = [hour.hour];
                for device in &node.devices {
                    let facts =
                        DeviceFacts { device, memory_mib: None, in_service: &in_service, states: &[] };
                    let of_device = hour.devices.iter().find(|each| each.device == device.uuid);
                    let divided = divider.divide(&facts, &hour, of_device, &policy);
                    parts += divided.map_or(0, |divided| u32::try_from(divided.parts.len()).unwrap_or(0));
                }
            }
        }
    }
    parts
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
        let request = ImportRequest {
            source: Source { rank: SourceRank::Import, sender: Name::fixed("bench") },
            covers: None,
        };
        let tables = Tables {
            inventory: ("i".to_owned(), Cursor::new(inventory)),
            slices: None::<(String, Cursor<String>)>,
            intervals: ("f".to_owned(), Cursor::new(intervals)),
        };
        let outcome = import_intervals(&platform, &request, tables, Arc::new(|_| ())).await;
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
