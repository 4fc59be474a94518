//! A week at one look a second, with buffers that are given out in every wrong way, and a restart in its
//! middle.

use fatia::agent::source::Source as _;

use super::rig::{MIB, NANOS, Rig, SECOND, Sums, add, one_board};
use crate::support::is_long;

const WEEK_SECONDS: i64 = 604_800;

/// Percent of a process in a second; 0: it leaves no sample.
fn percent(pid: u32, second: i64) -> i64 {
    let (phase, hour) = (second % 600, second / 3_600);
    match pid {
        // A trainer that is always busy, more by day.
        11 if hour % 24 >= 8 => 90,
        11 => 55,
        // A server with pauses: nobody else may be there to show the grid.
        12 if phase < 200 => 7,
        12 if (300..301).contains(&phase) => 3,
        _ => 0,
    }
}

fn steps(pid: u32, seconds: i64) -> String {
    let mut steps = Vec::new();
    let mut last = -1;
    for second in 0..seconds {
        let now = percent(pid, second);
        if now != last {
            steps.push(format!("[\"{second}s\", {now}]"));
            last = now;
        }
    }
    format!("[{}]", steps.join(", "))
}

#[test]
fn a_week_at_one_look_a_second_comes_to_what_its_scenario_has() {
    let seconds = if is_long() { WEEK_SECONDS } else { WEEK_SECONDS / 10 };
    let faults: Vec<String> = ["out_of_order", "doubled", "replayed"]
        .iter()
        .zip([1, 2, 3])
        .flat_map(|(kind, hour)| (0..seconds / 14_400 + 1).map(move |turn| (kind, turn * 4 + hour)))
        .map(|(kind, hour)| format!("{{ kind = \"{kind}\", from = \"{hour}h\", until = \"{}h 30m\" }}", hour))
        .collect();
    let board = format!(
        "type = \"L4\"\npower_mw = [[\"0s\", 30000], [\"7h\", 65001]]\nsample_fault = [{}]\nprocess = [
            {{ pid = 11, memory_mib = 2000, percent = {{ sm = {} }} }},
            {{ pid = 12, memory_mib = 100, percent = {{ sm = {} }} }},
        ]",
        faults.join(", "),
        steps(11, seconds),
        steps(12, seconds),
    );
    let mut rig = Rig::new(&one_board(&board));
    rig.folders.process(11, "/kubepods/pod-a", "python", 100);
    rig.folders.process(12, "/kubepods/pod-b", "python", 200);
    let began = std::time::Instant::now();
    let (mut sums, mut energy, restart) = (Sums::new(), 0_i64, seconds / 2);
    for second in 0..=seconds {
        rig.look(second * SECOND);
        add(&mut sums, &rig.sample);
        energy += rig.sample.devices[0].millijoules.unwrap_or_default();
        if second == restart {
            let state = rig.on.state();
            rig.restart(&state);
        }
    }
    let took = began.elapsed();
    println!("{seconds} looks in {took:?}: {:?} a look", took / u32::try_from(seconds).unwrap());
    // The second from the last look before the restart to the first after it was nobody's to see.
    let missed = restart;
    let expected = |pid: u32| {
        let all = (0..seconds).filter(|second| *second != missed).map(|second| percent(pid, second));
        all.sum::<i64>() * (NANOS / 100)
    };
    for (pid, pod, memory) in [(11, "pod-a", 2_000), (12, "pod-b", 100)] {
        let (active, held) = sums[&format!("time_slicing/even /kubepods/{pod}")];
        let near = |found: Option<i64>, expected: i64| {
            let off = (found.unwrap() - expected).abs();
            assert!(
                i128::from(off) * 1_000_000_000 <= i128::from(expected),
                "{pod}: {found:?}, and not {expected}"
            );
        };
        near(active, expected(pid));
        near(held, (seconds - 1) * memory * MIB);
    }
    let watts = |second: i64| if second < 7 * 3_600 { 30_000 } else { 65_001 };
    let all: i64 = (0..seconds).filter(|second| *second != missed).map(watts).sum();
    assert_eq!(energy, all);
}
