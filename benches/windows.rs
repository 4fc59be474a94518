//! What a look a second costs the agent, of a node as full as one can be: 8 GPUs × 56 slices × 64 holders, each
//! measured by itself. The aim: well under a hundredth of one core.

#![allow(clippy::print_stdout, clippy::panic, reason = "a bench prints, and ends where it cannot measure")]

use std::sync::Arc;
use std::time::{Duration, Instant as Watch};

use fatia::agent::scripted::ScriptedSource;
use fatia::agent::source::{Amount, DeviceSample, Holder, Meter, Presence, Sample, Source, Standing};
use fatia::agent::window::{Stamp, Windower};
use fatia::domain::device::SharingMode;
use fatia::domain::ids::Name;
use fatia::domain::period::Span;
use fatia::domain::units::Instant;
use fatia::domain::usage::{ClockRow, Evidence, EvidenceField, Slice, SliceSize};

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
    full_node();
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

fn standing(device: usize) -> Standing {
    let uuid = name(&format!("GPU-{device}"));
    let size = SliceSize::Profile(name("1g.10gb"));
    let slice = |number: usize| Slice {
        id: Some(name(&format!("MIG-{device}-{number}"))),
        ..Slice::plain(uuid.clone(), SharingMode::Mig, size.clone())
    };
    let holder = |number: usize| {
        let pod = name(&format!("pod-{device}-{number}"));
        let fields = [(EvidenceField::Namespace, name("team")), (EvidenceField::Pod, pod)];
        Holder { slice: number / HOLDERS, evidence: fields.into_iter().collect::<Evidence>() }
    };
    let holders: Vec<Holder> = (0..SLICES * HOLDERS).map(holder).collect();
    let meter = |(at, holder): (usize, &Holder)| Meter { slice: holder.slice, holder: Some(at) };
    Standing {
        device: uuid.clone(),
        presence: Presence::Present,
        scheduler: None,
        sees_holders: true,
        slices: (0..SLICES).map(slice).collect(),
        meters: holders.iter().enumerate().map(meter).collect(),
        holders,
    }
}

fn full_node() {
    let amount = Amount { active_nanos: Some(5_000_000), memory_byte_seconds: Some(1 << 30) };
    let look = |device| {
        let standing = Arc::new(standing(device));
        DeviceSample {
            amounts: vec![amount; standing.meters.len()],
            millijoules: Some(500_000),
            ..DeviceSample::unmeasured(standing)
        }
    };
    let mut sample = Sample { since: None, devices: (0..DEVICES).map(look).collect() };
    let mut windower = Windower::new(at(0));
    let (mut quiet, mut closing, mut windows, mut rows) = (Vec::new(), Vec::new(), 0, 0);
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
    }
    let all: Duration = quiet.iter().chain(&closing).sum();
    println!("{DEVICES} GPUs × {SLICES} slices × {HOLDERS} holders, a look a second for {LOOKS} s:");
    println!("  a look that closes nothing: {} µs (median of {})", median(&mut quiet), quiet.len());
    println!("  a look that closes a window: {} µs (median of {})", median(&mut closing), closing.len());
    println!("  {windows} windows with {rows} rows of use");
    println!("  of one core: {} millionths", all.as_micros() / u128::from(LOOKS.unsigned_abs()));
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
