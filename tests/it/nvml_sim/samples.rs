//! What the simulator says over time is what its scenario says: integrals and samples, worked out a second
//! time.

use std::collections::BTreeMap;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessUtilizationSample;
use nvml_wrapper::{Device, Nvml};

use super::{HOUR, SECOND, START, one_board};
use crate::support::nvml::Sim;

/// Two processes whose use changes, and one that uses nothing.
const BUSY: &str = "type = \"L4\"
process = [
    { pid = 1, from = \"2s\", until = \"9s\", percent = { sm = [[\"0s\", 30], [\"5s\", 70]], dec = 5 } },
    { pid = 2, percent = { mem = [[\"4s\", 90], [\"6s\", 0]] } },
    { pid = 3, memory_mib = 100 },
]";

/// What the processes use in the second that begins at `second`: of SMs and of memory.
fn busy(pid: u32, second: i64) -> Option<(u32, u32)> {
    match (pid, second) {
        (1, 2..=4) => Some((30, 0)),
        (1, 5..=8) => Some((70, 0)),
        (2, 4..=5) => Some((0, 90)),
        _ => None,
    }
}

fn told(sim: &Sim, device: &Device<'_>, seen: Option<u64>) -> Vec<(u32, i64, u32, u32)> {
    let origin = sim.now() - sim.now() % HOUR;
    let samples = match device.process_utilization_stats(seen) {
        Ok(samples) => samples,
        Err(NvmlError::NotFound) => vec![],
        Err(error) => panic!("{error:?}"),
    };
    let told = |one: ProcessUtilizationSample| {
        let after = i64::try_from(one.timestamp).unwrap() - origin;
        assert_eq!(after % SECOND, 0, "samples lie on the grid");
        (one.pid, after / SECOND, one.sm_util, one.mem_util)
    };
    samples.into_iter().map(told).collect()
}

fn expected(until: i64) -> Vec<(u32, i64, u32, u32)> {
    let seconds = (0..until).flat_map(|second| [1, 2, 3].map(|pid| (pid, second)));
    seconds.filter_map(|(pid, at)| busy(pid, at).map(|(sm, memory)| (pid, at + 1, sm, memory))).collect()
}

#[test]
fn samples_are_what_was_used_in_each_period() {
    let sim = Sim::new(&one_board(BUSY), START);
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    for second in 0..12 {
        assert_eq!(told(&sim, &device, None), expected(second), "after {second} s");
        sim.pass(SECOND / 2);
        assert_eq!(told(&sim, &device, None), expected(second), "a period counts when it is over");
        sim.pass(SECOND / 2);
    }
}

#[test]
fn a_reader_that_hands_back_the_last_stamp_misses_none_and_has_none_twice() {
    let sim = Sim::new(&one_board(BUSY), START);
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    let (mut all, mut seen) = (vec![], 0);
    for micros in [1_700_000, 2_400_000, 900_000, 50_000, 6_950_000] {
        sim.pass(micros);
        for sample in device.process_utilization_stats(seen).unwrap_or_default() {
            seen = seen.max(sample.timestamp);
            all.push((sample.pid, sample.timestamp));
        }
    }
    assert_eq!(all.len(), expected(12).len());
    all.dedup();
    assert_eq!(all.len(), expected(12).len());
}

#[test]
fn only_the_last_samples_are_kept() {
    let board = "type = \"L4\"\nprocess = [{ pid = 1, percent = { sm = 1 } }]";
    let sim = Sim::new(&format!("sample_buffer = 5\nsample_every_ms = 2000\n{}", one_board(board)), START);
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    sim.pass(100 * SECOND);
    let stamps: Vec<i64> = told(&sim, &device, None).into_iter().map(|(_, at, _, _)| at).collect();
    assert_eq!(stamps, [92, 94, 96, 98, 100]);
}

#[test]
fn samples_at_fault_come_reversed_doubled_or_again() {
    let fault =
        |kind| format!("{BUSY}\nsample_fault = [{{ kind = \"{kind}\", from = \"8s\", until = \"1h\" }}]");
    let read = |kind, seen: i64| {
        let sim = Sim::new(&one_board(&fault(kind)), START);
        sim.pass(8 * SECOND);
        let nvml = sim.load().unwrap();
        let seen = u64::try_from(sim.now() - seen * SECOND).unwrap();
        told(&sim, &nvml.device_by_index(0).unwrap(), Some(seen))
    };
    assert_eq!(read("out_of_order", 2), [(1, 8, 70, 0), (1, 7, 70, 0)]);
    assert_eq!(read("doubled", 1), [(1, 8, 70, 0), (1, 8, 70, 0)]);
    assert_eq!(read("replayed", 0), expected(8));
    assert_eq!(read("latest_only", 8), [(1, 8, 70, 0), (2, 6, 0, 90)]);
}

#[test]
fn the_energy_counter_is_the_integral_of_power_and_begins_anew_with_the_driver() {
    let board =
        "type = \"L4\"\nenergy_mj = 1000\npower_mw = [[\"0s\", 16333], [\"90s\", 71999], [\"2h\", 20001]]";
    let sim = Sim::new(&format!("reloads = [\"1h\"]\n{}", one_board(board)), START);
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    let mut at = 0;
    for micros in [0, 1, 61_234_567, 28_765_432, 600_000_001, 2_910_000_000, 17, 5_000_000_001] {
        sim.pass(micros);
        at += micros;
        // Microsecond by microsecond would be the definition; piece by piece is the same.
        let from = if at < HOUR { 0 } else { HOUR };
        let held = |begin: i64, end: i64| (at.min(end) - from.max(begin)).max(0);
        let pieces = 16_333 * held(0, 90 * SECOND)
            + 71_999 * held(90 * SECOND, 2 * HOUR)
            + 20_001 * held(2 * HOUR, i64::MAX);
        let before = if at < HOUR { 1_000 } else { 0 };
        let expected = u64::try_from(before + pieces / 1_000_000).unwrap();
        assert_eq!(device.total_energy_consumption().unwrap(), expected, "after {at} us");
    }
}

#[test]
fn what_is_true_at_an_instant_does_not_depend_on_what_was_asked_before() {
    let board = format!("{BUSY}\npower_mw = [[\"0s\", 10], [\"5s\", 70000]]\ntemperature = 40");
    let all = |nvml: &Nvml, sim: &Sim| {
        let device = nvml.device_by_index(0).unwrap();
        (told(sim, &device, None), device.total_energy_consumption().unwrap(), device.power_usage().unwrap())
    };
    let forward: BTreeMap<i64, _> = {
        let sim = Sim::new(&one_board(&board), START);
        let nvml = sim.load().unwrap();
        (0..12)
            .map(|second| {
                let seen = (second, all(&nvml, &sim));
                sim.pass(SECOND);
                seen
            })
            .collect()
    };
    let sim = Sim::new(&one_board(&board), "2026-06-01T00:00:11Z");
    let nvml = sim.load().unwrap();
    for second in (0..12).rev() {
        assert_eq!(forward[&second], all(&nvml, &sim), "after {second} s");
        sim.pass(-SECOND);
    }
}
