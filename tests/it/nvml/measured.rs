//! What is counted over restarts, doubled looks and clocks that go back.

use fatia::agent::source::Source as _;

use super::rig::{MIB, NANOS, Rig, SECOND, Sums, add, one_board};

const BUSY: &str = "type = \"L4\"\nprocess = [
    { pid = 11, memory_mib = 100, percent = { sm = [[\"0s\", 30], [\"25s\", 70]] } },
    { pid = 12, memory_mib = 10, from = \"12s\", until = \"33s\", percent = { sm = 20 } },
]";

fn busy(faults: &str) -> Rig {
    let rig = Rig::new(&one_board(&format!("{BUSY}\n{faults}")));
    rig.folders.process(11, "/kubepods/pod-a", "python", 100);
    rig.folders.process(12, "/kubepods/pod-b", "python", 200);
    rig
}

/// What the scenario has of both pods between two seconds, in hundredths of a second of activity.
fn scripted(from: i64, until: i64) -> (i64, i64) {
    let seconds = || from..until;
    let a = seconds().map(|second| if second < 25 { 30 } else { 70 }).sum();
    (a, seconds().filter(|second| (12..33).contains(second)).count() as i64 * 20)
}

/// What was counted of both pods, whatever it was a part of.
fn counted(sums: &Sums) -> (i64, i64) {
    let of = |pod: &str| {
        let all = sums.iter().filter(|(key, _)| key.ends_with(pod)).filter_map(|(_, sum)| sum.0);
        all.sum::<i64>() / (NANOS / 100)
    };
    (of("pod-a"), of("pod-b"))
}

#[test]
fn buffers_at_fault_are_counted_as_if_they_were_not() {
    for kind in ["out_of_order", "doubled", "replayed"] {
        let mut rig = busy(&format!("sample_fault = [{{ kind = \"{kind}\" }}]"));
        assert_eq!(counted(&rig.sums(0, 60)), scripted(0, 60), "{kind}");
    }
    let all =
        ["out_of_order", "doubled", "replayed"].map(|kind| format!("{{ kind = \"{kind}\" }}")).join(", ");
    let mut rig = busy(&format!("sample_fault = [{all}]"));
    assert_eq!(counted(&rig.sums(0, 60)), scripted(0, 60));
}

#[test]
fn a_restart_counts_nothing_twice() {
    let mut rig = busy("sample_fault = [{ kind = \"replayed\" }]");
    let mut all = rig.sums(0, 20);
    let state = rig.on.state();
    assert!(state.len() < 1 << 20);
    rig.restart(&state);
    // The first look only says where to count from: who held what meanwhile nobody saw.
    let first = rig.sums(21, 21);
    assert!(first.values().all(|sum| *sum == (None, None)), "{first:?}");
    for (key, sum) in rig.sums(22, 60) {
        let known = all.entry(key).or_default();
        known.0 = known.0.map_or(sum.0, |a| Some(a + sum.0.unwrap_or_default()));
    }
    let (a, b) = scripted(0, 60);
    let (lost_a, lost_b) = scripted(20, 21);
    assert_eq!(counted(&all), (a - lost_a, b - lost_b));
}

#[test]
fn a_state_that_cannot_be_read_is_none() {
    let mut rig = busy("");
    rig.restart(b"{\"boards\":17}");
    assert_eq!(counted(&rig.sums(0, 30)), scripted(0, 30));
}

#[test]
fn a_look_that_is_doubled_or_late_measures_nothing_and_loses_nothing() {
    let mut rig = busy("");
    let mut sums = Sums::new();
    for second in [0, 5, 5, 9, 9, 9, 14, 20, 60] {
        rig.look(second * SECOND);
        add(&mut sums, &rig.sample);
    }
    assert_eq!(counted(&sums), scripted(0, 60));
    // Server time is set back: nothing is measured of time that was measured already.
    let at = rig.at(50 * SECOND);
    let since = rig.sample.since;
    rig.on.source.sample(at, &mut rig.sample).unwrap();
    assert!(since.is_some() && rig.sample.since == Some(at));
    assert!(rig.sample.devices.iter().all(|look| look.amounts.is_empty()));
}

#[test]
fn memory_is_what_was_held_from_look_to_look() {
    let mut rig = busy("");
    let mut sums = Sums::new();
    // At any distance, what each look shows stands until the next.
    for micros in [0, 1_300_000, 2_000_001, 7_777_777, 11_000_000] {
        rig.look(micros);
        add(&mut sums, &rig.sample);
    }
    assert_eq!(sums["device /kubepods/pod-a"].1, Some(1_100 * MIB));
}
