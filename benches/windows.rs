//! What a look a second costs the agent, of a node as full as one can be: 8 GPUs × 56 slices × 64 holders, each
//! measured by itself; and of one with as many slices and holders in all. The aim: well under a hundredth of one core, and
//! 30 MiB of memory.

#![allow(clippy::print_stdout, clippy::panic, reason = "a bench prints, and ends where it cannot measure")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant as Watch};

use fatia::agent::scripted::ScriptedSource;
use fatia::agent::sender::LIMITS;
use fatia::agent::source::{Amount, DeviceSample, Holder, Meter, Presence, Sample, Source, Standing};
use fatia::agent::spool::{self, Lane, RealDisk, Spool};
use fatia::agent::window::{Stamp, Windower};
use fatia::domain::device::SharingMode;
use fatia::domain::ids::{Name, ScopeKind, ScopeName};
use fatia::domain::period::Span;
use fatia::domain::units::Instant;
use fatia::domain::usage::{self, ClockRow, Evidence, EvidenceField, Slice, SliceSize, SourceRank};
use fatia::wire::body::ROWS_MAX;

const DEVICES: usize = 8;
const SLICES: usize = 56;
const HOLDERS: usize = 64;
/// Ten minutes, a look a second.
const LOOKS: i64 = 600;
/// 2026-06-01T00:00:00Z, in seconds.
const START: i64 = 1_780_272_000;

struct Nothing;

impl Stamp for Nothing {
    fn clocks(&self, _: Span) -> Option<ClockRow> {
        None
    }

    fn source_state(&self) -> Vec<u8> {
        Vec::new()
    }
}

fn main() {
    // Memory that was used once stays with the process: the smaller one first.
    full_node(DEVICES, SLICES / DEVICES, HOLDERS / DEVICES);
    full_node(DEVICES, SLICES, HOLDERS);
    dense_fleet();
}

fn name(text: &str) -> Name {
    match Name::parse(text) {
        Ok(name) => name,
        Err(error) => panic!("`{text}` {error}"),
    }
}

fn at(second: i64) -> Instant {
    // A little after the second, so that minutes are cut inside a look.
    Instant::from_micros((START + second) * 1_000_000 + 300_000)
}

fn standing(device: usize, slices: usize, holders_of_slice: usize) -> Standing {
    let uuid = name(&format!("GPU-{device}"));
    let size = SliceSize::Profile(name("1g.10gb"));
    let slice = |number: usize| Slice {
        id: Some(name(&format!("MIG-{device}-{number}"))),
        ..Slice::plain(uuid.clone(), SharingMode::Mig, size.clone())
    };
    let holder = |number: usize| {
        let pod = name(&format!("pod-{device}-{number}"));
        let fields = [(EvidenceField::Namespace, name("team")), (EvidenceField::Pod, pod)];
        Holder { slice: number / holders_of_slice, evidence: fields.into_iter().collect::<Evidence>() }
    };
    let holders: Vec<Holder> = (0..slices * holders_of_slice).map(holder).collect();
    let meter = |(at, holder): (usize, &Holder)| Meter { slice: holder.slice, holder: Some(at) };
    Standing {
        device: uuid.clone(),
        presence: Presence::Present,
        scheduler: None,
        sees_holders: true,
        slices: (0..slices).map(slice).collect(),
        meters: holders.iter().enumerate().map(meter).collect(),
        holders,
    }
}

/// Looks, windows and what is kept of them on a disk.
fn full_node(devices: usize, slices: usize, holders: usize) {
    let amount = Amount { active_nanos: Some(5_000_000), memory_byte_seconds: Some(1 << 30) };
    let look = |device| {
        let standing = Arc::new(standing(device, slices, holders));
        DeviceSample {
            amounts: vec![amount; standing.meters.len()],
            millijoules: Some(500_000),
            ..DeviceSample::unmeasured(standing)
        }
    };
    let mut sample = Sample { since: None, devices: (0..devices).map(look).collect() };
    let mut windower = Windower::new(at(0));
    let folder = match tempfile::tempdir() {
        Ok(folder) => folder,
        Err(error) => panic!("{error}"),
    };
    let mut spool = spool(folder.path());
    let (mut quiet, mut closing, mut windows, mut rows, mut keeping) =
        (Vec::new(), Vec::new(), 0, 0, Duration::ZERO);
    for second in 0..LOOKS {
        let watch = Watch::now();
        let closed = windower.add(at(second), &sample, &Nothing);
        let took = watch.elapsed();
        if closed.is_empty() {
            quiet.push(took)
        } else {
            closing.push(took)
        }
        windows += closed.len();
        rows += closed.iter().map(|window| window.batch.usage.len()).sum::<usize>();
        sample.since = Some(at(second));
        let watch = Watch::now();
        for part in closed.into_iter().flat_map(|window| window.parts(ROWS_MAX)) {
            let kept = spool::Window { span: part.span, batch: part.batch, source_state: part.source_state };
            if let Err(error) = spool.append(&kept) {
                panic!("{error}");
            }
        }
        if second % 300 == 299 {
            send(&mut spool);
        }
        keeping += watch.elapsed();
    }
    let all: Duration = quiet.iter().chain(&closing).sum();
    println!("{devices} GPUs × {slices} slices × {holders} holders, a look a second for {LOOKS} s:");
    println!("  a look that closes nothing: {} µs (median of {})", median(&mut quiet), quiet.len());
    println!("  a look that closes a window: {} µs (median of {})", median(&mut closing), closing.len());
    println!("  {windows} windows with {rows} rows of use");
    let looks = u128::from(LOOKS.unsigned_abs());
    println!("  of one core: {} millionths", all.as_micros() / looks);
    println!(
        "  kept, and made batches of, on a disk: {} millionths more of the time",
        keeping.as_micros() / looks
    );
    println!("  most memory of the process up to here: {}", resident_most());
}

fn spool(folder: &Path) -> Spool<RealDisk> {
    let settings = spool::Settings {
        scope: ScopeName { kind: ScopeKind::Node, name: name("n1") },
        source: usage::Source { rank: SourceRank::HostAgent, sender: name("agent-1") },
        budget: spool::BUDGET_BYTES,
        keep_acknowledged_micros: 0,
    };
    let disk = match RealDisk::open(&folder.join("spool")) {
        Ok(disk) => disk,
        Err(error) => panic!("{error}"),
    };
    match Spool::open(disk, settings, uuid::Uuid::nil) {
        Ok(spool) => spool,
        Err(error) => panic!("{error}"),
    }
}

/// Makes batches of all that waits, and has them acknowledged.
fn send(spool: &mut Spool<RealDisk>) {
    loop {
        match spool.next_batch(Lane::Live, LIMITS, true) {
            Ok(Some(out)) => {
                if let Err(error) = spool.acknowledge(out.lane, out.sequence, out.span.end()) {
                    panic!("{error}");
                }
            }
            Ok(None) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// As the kernel counts it.
fn resident_most() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.unwrap_or("not told here").trim().to_owned()
}

/// The scripted fleet: what a source and its windows take together.
fn dense_fleet() {
    let text = include_str!("../tests/fixtures/agent/dense.toml");
    let mut source = match ScriptedSource::open(text, &name("dense-1")) {
        Ok(source) => source,
        Err(error) => panic!("{error}"),
    };
    let (mut windower, mut sample, mut windows) = (Windower::new(at(0)), Sample::default(), 0);
    let watch = Watch::now();
    for second in 0..3_600 {
        if let Err(error) = source.sample(at(second), &mut sample) {
            panic!("{error}");
        }
        windows += windower.add(at(second), &sample, &Nothing).len();
    }
    let took = watch.elapsed().as_micros() / 3_600;
    println!("dense.toml, a look a second for an hour: {took} millionths of one core, {windows} windows");
}

fn median(all: &mut [Duration]) -> u128 {
    all.sort_unstable();
    all.get(all.len() / 2).map_or(0, Duration::as_micros)
}
