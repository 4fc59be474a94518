//! What an agent would report, in words: for who installs it, before there is a service to report to.
//!
//! Always true here: what could not be told is said to be unknown, and never 0.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::source::{Amount, DeviceInfo, DeviceSample, Inventory, Sample, Standing};
use crate::domain::period::Span;
use crate::domain::units::Instant;
use crate::domain::usage::{Slice, SliceSize};

/// What a node has, and what was seen of it by a look at `at`, in lines of text.
#[must_use]
pub fn describe(node: &str, inventory: &Inventory, sample: &Sample, at: Instant) -> String {
    let mut text = String::new();
    let driver = inventory.driver.as_ref();
    let driver = driver.map_or_else(|| "no driver".to_owned(), |driver| format!("driver {driver}"));
    let count = inventory.devices.len();
    let _written = writeln!(text, "{node}: {count} GPU{}, {driver}", if count == 1 { "" } else { "s" });
    for device in &inventory.devices {
        let look = sample.devices.iter().find(|look| look.standing.device == device.uuid);
        let since = sample.since.map(|since| Span::clamped(since, at));
        show_device(&mut text, device, look, since);
    }
    text
}

fn show_device(text: &mut String, device: &DeviceInfo, look: Option<&DeviceSample>, measured: Option<Span>) {
    let memory = match device.memory_mib {
        0 => "memory unknown".to_owned(),
        mib => format!("{mib} MiB"),
    };
    let place = device.pci.as_ref().map_or_else(String::new, |pci| format!("  {pci}"));
    let _written =
        writeln!(text, "\nGPU {}  {}  {memory}  {}{place}", device.index, device.model, device.uuid);
    let Some(look) = look else {
        text.push_str("  was not looked at: its time would be unknown\n");
        return;
    };
    let standing = &look.standing;
    if !standing.is_present() {
        let _written = writeln!(text, "  {}: its time would be unknown", standing.presence);
        return;
    }
    if let Some(scheduler) = standing.scheduler {
        let _written = writeln!(text, "  scheduler {}", scheduler.word());
    }
    if !standing.sees_holders {
        text.push_str("  who holds it cannot be seen: its time would be unknown\n");
    }
    let amounts = amounts(look);
    for (number, slice) in standing.slices.iter().enumerate() {
        let _written = write!(text, "  {}", named(slice));
        let own: Vec<usize> =
            (0..standing.holders.len()).filter(|at| holder_slice(standing, *at) == Some(number)).collect();
        if own.is_empty() && standing.sees_holders {
            text.push_str("  nobody");
        }
        if let Some(amount) = amounts.get(&(number, None)) {
            text.push_str(&used(*amount, measured));
        }
        text.push('\n');
        for at in own {
            let Some(holder) = standing.holders.get(at) else { continue };
            let amount = amounts.get(&(number, Some(at)));
            let seen = if holder.evidence.is_empty() {
                "somebody of whom nothing is known".to_owned()
            } else {
                holder.evidence.to_string()
            };
            let _written = writeln!(
                text,
                "    held by {seen}{}",
                amount.map_or_else(String::new, |amount| used(*amount, measured))
            );
        }
    }
    if standing.sees_holders && standing.slices.is_empty() {
        text.push_str("  the whole GPU  nobody\n");
    }
    if let (Some(millijoules), Some(measured)) = (look.millijoules, measured) {
        let micros = measured.end().micros_since(measured.start()).max(1);
        // Millijoules in microseconds are kilowatts.
        let watts = millijoules.saturating_mul(1_000).div_euclid(micros);
        let _written = writeln!(text, "  {watts} W");
    } else {
        text.push_str("  energy is not measured\n");
    }
}

fn holder_slice(standing: &Standing, at: usize) -> Option<usize> {
    standing.holders.get(at).map(|holder| holder.slice)
}

/// What was measured, by slice and holder of what stands now.
fn amounts(look: &DeviceSample) -> BTreeMap<(usize, Option<usize>), Amount> {
    let meters = look.measured_of.meters.iter().zip(&look.amounts);
    if look.measured_of != look.standing {
        return BTreeMap::new();
    }
    meters.map(|(meter, amount)| ((meter.slice, meter.holder), *amount)).collect()
}

/// What was used over a span.
fn used(amount: Amount, measured: Option<Span>) -> String {
    let Some(measured) = measured.filter(|span| !span.is_empty()) else { return String::new() };
    let micros = measured.end().micros_since(measured.start());
    let activity = amount.active_nanos.map_or_else(
        || "activity not measured".to_owned(),
        |nanos| {
            // Nanoseconds in microseconds are thousandths.
            let per_mille = nanos.div_euclid(micros);
            format!("active {}.{} %", per_mille.div_euclid(10), per_mille.rem_euclid(10))
        },
    );
    let memory = amount.memory_byte_seconds.map_or_else(
        || "memory not measured".to_owned(),
        |byte_seconds| {
            let bytes = i128::from(byte_seconds) * 1_000_000 / i128::from(micros);
            format!("{} MiB", bytes >> 20)
        },
    );
    format!("  {activity}, {memory}")
}

/// A slice in words.
fn named(slice: &Slice) -> String {
    let mode = slice.mode.word();
    let size = match &slice.size {
        SliceSize::Whole => "the whole GPU".to_owned(),
        SliceSize::Declared(ppm) => format!("{ppm} millionths"),
        SliceSize::Profile(profile) => profile.to_string(),
        SliceSize::OneOf(count) => format!("one of {count}"),
        SliceSize::Even => "as much as each of the others".to_owned(),
        SliceSize::Threads { percent, .. } => format!("{percent} % of the threads"),
        SliceSize::Devices(count) => format!("{count} GPUs"),
    };
    let start = slice.start.map_or_else(String::new, |start| format!(" at {start}"));
    let id = slice.id.as_ref().map_or_else(String::new, |id| format!("  {id}"));
    format!("{mode}  {size}{start}{id}")
}

#[cfg(test)]
mod tests {
    use super::super::scripted::ScriptedSource;
    use super::super::source::Source as _;
    use super::*;
    use crate::domain::ids::Name;

    const SMALL: &str = include_str!("../../tests/fixtures/agent/small.toml");

    fn shown(from: &str, to: &str) -> String {
        let mut source = ScriptedSource::open(SMALL, &Name::fixed("node-1")).unwrap();
        let (from, to) = (Instant::parse(from).unwrap(), Instant::parse(to).unwrap());
        let mut sample = Sample::default();
        source.sample(from, &mut sample).unwrap();
        source.sample(to, &mut sample).unwrap();
        describe("node-1", &source.inventory().unwrap(), &sample, to)
    }

    #[test]
    fn what_would_be_reported_is_told_in_words() {
        let text = shown("2026-06-01T10:00:00Z", "2026-06-01T10:00:10Z");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "node-1: 2 GPUs, driver 580.65.06");
        assert!(lines[2].starts_with("GPU 0  NVIDIA H100 80GB HBM3  81920 MiB  GPU-"), "{text}");
        assert!(lines[3].starts_with("  mig  1g.10gb at 0  MIG-"), "{text}");
        assert!(lines[3].ends_with("  active 35.0 %, 6144 MiB"), "{text}");
        assert_eq!(lines[4], "    held by namespace=search pod=embedder-0-0", "{text}");
        let unheld = lines.iter().find(|line| line.contains("1g.10gb at 6")).unwrap();
        assert!(unheld.ends_with("  nobody  active 0.0 %, 0 MiB"), "{unheld}");
        assert!(lines.iter().any(|line| line.starts_with("  time_slicing  one of 4")), "{text}");
        assert!(
            lines.contains(&"    held by namespace=legacy pod=forgotten-0  active 0.0 %, 512 MiB"),
            "{text}"
        );
        assert!(lines.iter().any(|line| line.ends_with(" W")), "{text}");
    }

    #[test]
    fn what_cannot_be_told_is_unknown() {
        // The first board fell off the bus, and nobody sees who holds the second.
        let lost = shown("2026-06-03T03:14:50Z", "2026-06-03T03:15:00Z");
        assert!(
            lost.contains("lost: Xid 79: GPU has fallen off the bus: its time would be unknown"),
            "{lost}"
        );
        let hidden = shown("2026-06-02T11:01:00Z", "2026-06-02T11:01:10Z");
        assert!(hidden.contains("who holds it cannot be seen"), "{hidden}");
    }
}
