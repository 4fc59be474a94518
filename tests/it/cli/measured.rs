//! A price book that charges for what was used: who used more, who less, and what was held beside that.
//!
//! Expected figures are written as in [`boards`](super::boards).

use super::boards::{Boards, check, policy, shares};
use super::program::Fatia;

/// Ten hours in seconds, and four tenths of them.
const ALL: i64 = 36_000;
const FORTY: i64 = 14_400;

/// A board of 24 GiB, four replicas of no declared number: one that was active for so many seconds and held 12 GiB, and
/// three that did nothing.
fn sleepers(active: i64) -> Boards {
    let mut boards = Boards::new();
    let busy = format!("busy mode=time_slicing sm_active_seconds={active} memory_gib_seconds={}\n", 12 * ALL);
    let asleep = ["s0", "s1", "s2"]
        .map(|name| format!("{name} mode=time_slicing sm_active_seconds=0 memory_gib_seconds=0\n"));
    boards.add_with_memory("n", "MI300X", "24", &format!("{busy}{}", asleep.concat()));
    boards
}

fn on(mode: &str, basis: &str, weighting: &str) -> String {
    policy(&format!("weighting = \"{weighting}\"\n[policy.basis]\n{mode} = \"{basis}\""))
}

/// The parts of the busy one, used and held, and of each sleeper.
fn parts(busy: &[&str], sleepers: &[&str]) -> String {
    let of = |name: &str, states: &[&str]| -> String {
        states.iter().map(|state| state.replacen(' ', &format!(" {name} time_slicing "), 1) + ";").collect()
    };
    let all: String = ["s0", "s1", "s2"].iter().map(|name| of(name, sleepers)).collect();
    (of("busy", busy) + &all).trim_end_matches(';').to_owned()
}

#[test]
fn one_busy_and_three_sleeping_replicas_by_each_basis() {
    let check_all = |active: i64, table: &[(&str, &str, String)]| {
        let fatia = sleepers(active).imported();
        check(&shares(&fatia), "n", &parts(&["used 1/4"], &["used 1/4"]));
        for (basis, weighting, wanted) in table {
            fatia.price(&on("time_slicing", basis, weighting)).good();
            println!("{active} {basis} {weighting}");
            check(&shares(&fatia), "n", wanted);
        }
    };
    let allocated = parts(&["used 1/4"], &["used 1/4"]);
    // Half of 1 and half of 12/24 GiB are 3/4 used; of what all hold 1/4 is left, to those who stayed below.
    let table = [
        ("allocation", "blended", allocated.clone()),
        ("usage", "blended", parts(&["used 3/4"], &["held_unused 1/12"])),
        // One used all of it: nothing is left for the others to hold.
        ("usage", "compute", "used busy time_slicing 1".to_owned()),
        ("usage", "memory", parts(&["used 1/2"], &["held_unused 1/6"])),
        // 3/4 and three times 1/4 are 3/2.
        ("larger", "blended", parts(&["used 1/2"], &["used 1/6"])),
        ("larger", "compute", parts(&["used 4/7"], &["used 1/7"])),
    ];
    check_all(ALL, &table);
    check_all(
        FORTY,
        &[
            ("allocation", "blended", allocated),
            // Half of 4/10 and half of 1/2 are 9/20.
            ("usage", "blended", parts(&["used 9/20"], &["held_unused 11/60"])),
            ("usage", "compute", parts(&["used 2/5"], &["held_unused 1/5"])),
            // 9/20 and three times 5/20 are 24/20.
            ("larger", "blended", parts(&["used 3/8"], &["used 5/24"])),
        ],
    );
    // Who is below its own share has a part of what is left too: 3/20 of 18/20 below, and 5/20 each of the others.
    check_all(
        3_600,
        &[
            ("usage", "compute", parts(&["used 1/10", "held_unused 3/20"], &["held_unused 1/4"])),
            ("larger", "compute", parts(&["used 1/4"], &["used 1/4"])),
        ],
    );
}

/// Use beyond what is held comes out of what nobody holds, and never out of a neighbour who is charged by allocation.
#[test]
fn use_beyond_what_is_held_comes_out_of_what_is_idle() {
    let mut boards = Boards::new();
    let lines = |more: &str| {
        format!(
            "a mode=time_slicing replicas=4 sm_active_seconds=28800 memory_gib_seconds=0
             {more}"
        )
    };
    boards.add_with_memory("alone", "MI300X", "24", &lines("")).add_with_memory(
        "beside",
        "MI300X",
        "24",
        &lines("b mode=partition replicas=2"),
    );
    let fatia = boards.imported();
    fatia.price(&on("time_slicing", "usage", "compute")).good();
    let report = shares(&fatia);
    check(&report, "alone", "used a time_slicing 4/5; idle none none 1/5");
    check(&report, "beside", "used a time_slicing 1/2; used b partition 1/2");
}

/// Where something was not measured the declared share stands in for it, and the sum stays the whole.
#[test]
fn what_was_not_measured_is_charged_as_declared() {
    let mut boards = Boards::new();
    boards
        // No activity: 1/4 as declared; and 6 of 24 GiB, which is 1/4 too.
        .add_with_memory(
            "no-activity",
            "MI300X",
            "24",
            "a mode=time_slicing replicas=4 memory_gib_seconds=216000",
        )
        // Activity 1/2; how much memory it held is not known.
        .add_with_memory(
            "no-memory",
            "MI300X",
            "24",
            "a mode=time_slicing replicas=4 sm_active_seconds=18000",
        )
        .add_with_memory("nothing", "MI300X", "24", "a mode=time_slicing replicas=4")
        // How much memory the board has is not known.
        .add(
            "no-board",
            "MI300X",
            "a mode=time_slicing replicas=4 sm_active_seconds=18000 memory_gib_seconds=216000",
        );
    let fatia = boards.imported();
    fatia.price(&on("time_slicing", "usage", "blended")).good();
    let report = shares(&fatia);
    for node in ["no-activity", "nothing"] {
        check(&report, node, "used a time_slicing 1/4; idle none none 3/4");
    }
    for node in ["no-memory", "no-board"] {
        check(&report, node, "used a time_slicing 3/8; idle none none 5/8");
    }
}

/// Of a MIG instance activity is of the instance itself, of a whole device of the device; a VM that holds all of it and
/// uses little holds the rest unused.
#[test]
fn activity_of_an_instance_is_of_the_instance() {
    let mut boards = Boards::new();
    boards
        .add(
            "mig",
            "H100-80GB",
            "a mode=mig profile=3g.40gb placement=4 sm_active_seconds=18000 memory_gib_seconds=720000",
        )
        .add("whole", "H100-80GB", "a mode=passthrough sm_active_seconds=9000 memory_gib_seconds=1440000");
    let fatia = boards.imported();
    fatia.price(&policy("[policy.basis]\nmig = \"usage\"\npassthrough = \"usage\"")).good();
    let report = shares(&fatia);
    // Half of 3/7, and 20 of 80 GiB: 3/28 and 1/8 of 13/28.
    check(&report, "mig", "used a mig 13/56; held_unused a mig 13/56; idle none mig 15/28");
    // A quarter of the time, and half of the memory.
    check(&report, "whole", "used a passthrough 3/8; held_unused a passthrough 5/8");
}

/// The sum of what was used is cut by time at billing hours, whatever the holding's edges are.
#[test]
fn what_was_measured_is_cut_by_time() {
    let mut boards = Boards::new();
    boards.add_with_memory(
        "n",
        "MI300X",
        "24",
        "a mode=time_slicing start=00:30 end=02:30 sm_active_seconds=3600 memory_gib_seconds=86400",
    );
    let fatia: Fatia = boards.imported();
    fatia.price(&on("time_slicing", "usage", "blended")).good();
    // Half of the time, and half of the memory: half of two hours.
    let report = shares(&fatia);
    assert_eq!(report.sum(&[("workload", "a"), ("state", "used")]), 1_000_000);
    assert_eq!(report.sum(&[("workload", "a"), ("state", "held_unused")]), 1_000_000);
    assert_eq!(report.total("idle"), 8_000_000);
}
