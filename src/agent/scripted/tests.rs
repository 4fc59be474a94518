//! Rules of scripted fleets.

use super::*;
use crate::agent::source::Presence;
use crate::domain::usage::VgpuScheduler;

const SMALL: &str = include_str!("../../../tests/fixtures/agent/small.toml");
const DENSE: &str = include_str!("../../../tests/fixtures/agent/dense.toml");

/// The start of the fixtures.
const START: &str = "2026-06-01T00:00:00Z";

fn after(seconds: i64) -> Instant {
    Instant::parse(START).unwrap().plus_micros(seconds * 1_000_000)
}

fn open(text: &str) -> ScriptedSource {
    let nodes = nodes(text).unwrap();
    ScriptedSource::open(text, &nodes[0]).unwrap()
}

fn look(source: &mut ScriptedSource, at: Instant) -> Sample {
    let mut sample = Sample::default();
    source.sample(at, &mut sample).unwrap();
    sample
}

/// Everything that a run of samples measured: by slice and holder, and the energy of each device.
fn sums(source: &mut ScriptedSource, instants: impl IntoIterator<Item = Instant>) -> Vec<(String, i64, i64)> {
    let mut sums = std::collections::BTreeMap::<String, (i64, i64)>::new();
    let mut sample = Sample::default();
    for at in instants {
        source.sample(at, &mut sample).unwrap();
        for look in &sample.devices {
            let device = look.standing.device.to_string();
            sums.entry(device).or_default().0 += look.millijoules.unwrap_or_default();
            let metered = (0..look.amounts.len()).filter_map(|at| metered(&look.measured_of, at));
            let amounts = metered.zip(&look.amounts).map(|((slice, seen), amount)| (slice, seen, amount));
            let newcomers =
                look.newcomers.iter().map(|each| (&each.slice, each.evidence.as_ref(), &each.amount));
            for (slice, seen, amount) in amounts.chain(newcomers) {
                let sum = sums.entry(format!("{slice:?} {seen:?}")).or_default();
                sum.0 += amount.active_nanos.unwrap_or_default();
                sum.1 += amount.memory_byte_seconds.unwrap_or_default();
            }
        }
    }
    sums.into_iter().filter(|(_, sum)| *sum != (0, 0)).map(|(key, sum)| (key, sum.0, sum.1)).collect()
}

/// A fleet of one device in a mode, with more text behind.
fn fleet(device: &str, rest: &str) -> String {
    format!(
        "seed = 1\nstart = \"{START}\"\n[[node]]\nname = \"n\"\n[[node.device]]\n\
         model = \"NVIDIA H100 80GB HBM3\"\nwatts = {{ idle = 100, busy = 700 }}\n{device}\n{rest}\n"
    )
}

const WHOLE: &str = "mode = \"dedicated\"";
const ALWAYS: &str = "[[node.habit]]\nwho = { pod = \"p-{n}\" }\non = [\"0\"]\nbusy = 500\nmemory_mib = 1024";

#[test]
fn sums_do_not_depend_on_how_often_one_looks() {
    for (text, hours) in [(SMALL, 26), (DENSE, 1)] {
        let from = if text == SMALL { 8 * 3_600 } else { 0 };
        let end = from + hours * 3_600;
        let every = |step: usize| (from..=end).step_by(step).map(after);
        let seconds = sums(&mut open(text), every(1));
        let minutes = sums(&mut open(text), every(60));
        assert!(seconds.len() > 10, "{}", seconds.len());
        assert_eq!(seconds, minutes);
        // Instants between the seconds round nothing away.
        let odd = (0..).map(|at| after(from).plus_micros(at * 7_777_777)).take_while(|at| *at < after(end));
        assert_eq!(sums(&mut open(text), odd.chain([after(end)])), minutes);
        assert_eq!(sums(&mut open(text), [after(from), after(end)]), minutes);
    }
}

#[test]
fn a_habit_is_its_rate_times_the_time() {
    let mut source = open(&fleet(WHOLE, ALWAYS));
    let first = look(&mut source, after(0));
    assert_eq!((first.since, first.devices[0].millijoules), (None, None));
    let second = look(&mut source, after(10));
    assert_eq!(second.since, Some(after(0)));
    let amount = second.devices[0].amounts[0];
    assert_eq!(amount.active_nanos, Some(5_000_000_000));
    assert_eq!(amount.memory_byte_seconds, Some(10 << 30));
    // Half of the way from 100 W to 700 W, for ten seconds.
    assert_eq!(second.devices[0].millijoules, Some(4_000_000));
}

#[test]
fn the_same_file_gives_the_same_whoever_asks_and_whenever() {
    let (mut run, mut jump) = (open(SMALL), open(SMALL));
    for second in (0..4 * 86_400).step_by(600) {
        look(&mut run, after(second));
    }
    let at = after(4 * 86_400 + 7);
    assert_eq!(look(&mut run, at).devices[0].standing, look(&mut jump, at).devices[0].standing);
    let other = SMALL.replacen("seed = 7", "seed = 8", 1);
    let times = |text: &str| {
        let source = open(text);
        let mut at = after(0);
        std::iter::repeat_with(|| {
            at = source.next_change(at).unwrap();
            at
        })
        .take(40)
        .collect::<Vec<_>>()
    };
    assert_eq!(times(SMALL), times(SMALL));
    assert_ne!(times(SMALL), times(&other));
}

#[test]
fn a_restored_source_goes_on_where_it_was() {
    let all = || (0..=3_600).step_by(30).map(after);
    let whole = sums(&mut open(DENSE), all());
    for cut in [1, 17, 60, 119] {
        let mut source = open(DENSE);
        let mut parts = sums(&mut source, all().take(cut));
        let mut restored = open(DENSE);
        restored.restore(&source.state());
        parts.extend(sums(&mut restored, all().skip(cut)));
        parts.sort();
        let mut merged: Vec<(String, i64, i64)> = Vec::new();
        for part in parts {
            match merged.last_mut() {
                Some(last) if last.0 == part.0 => (last.1, last.2) = (last.1 + part.1, last.2 + part.2),
                _ => merged.push(part),
            }
        }
        assert_eq!(merged, whole, "{cut}");
    }
    let mut broken = open(DENSE);
    broken.restore(b"{\"last_micros\":");
    assert_eq!(look(&mut broken, after(0)).since, None);
}

#[test]
fn nothing_changes_before_the_next_change() {
    let mut source = open(SMALL);
    let mut at = after(0);
    for _ in 0..60 {
        let next = source.next_change(at).unwrap();
        assert!(next > at);
        let standings = |source: &mut ScriptedSource, at| {
            look(source, at).devices.into_iter().map(|each| each.standing).collect::<Vec<_>>()
        };
        let before = standings(&mut source, at);
        assert_eq!(before, standings(&mut source, next.plus_micros(-1)));
        assert_ne!(before, standings(&mut source, next));
        at = next;
    }
    assert_eq!(open(&fleet(WHOLE, ALWAYS)).next_change(after(0)), None);
}

#[test]
fn what_does_not_change_is_the_same_handle() {
    let mut source = open(SMALL);
    let (a, b) = (look(&mut source, after(9 * 3_600)), look(&mut source, after(9 * 3_600 + 1)));
    assert!(Arc::ptr_eq(&a.devices[0].standing, &b.devices[0].standing));
    assert!(Arc::ptr_eq(&a.devices[0].standing, &b.devices[0].measured_of));
}

#[test]
fn a_lost_device_says_so_and_uses_nothing() {
    let lost = "[[node.fault]]\nkind = \"lost\"\ndevice = 0\nat = \"60s\"\nfor = \"1m\"\nreason = \"Xid 79\"";
    let mut source = open(&fleet(WHOLE, &format!("{ALWAYS}\n{lost}")));
    look(&mut source, after(50));
    let gone = look(&mut source, after(70));
    assert_eq!(gone.devices[0].standing.presence, Presence::Lost(Name::fixed("Xid 79")));
    assert_eq!(gone.devices[0].amounts[0].active_nanos, Some(5_000_000_000), "ten seconds until it was lost");
    let back = look(&mut source, after(120));
    assert!(back.devices[0].standing.is_present());
    assert_eq!(back.devices[0].millijoules, Some(0));
}

#[test]
fn holders_that_cannot_be_seen_are_not_measured() {
    let hidden = "[[node.fault]]\nkind = \"holders_hidden\"\ndevice = 0\nat = \"60s\"\nfor = \"1m\"";
    let mut source = open(&fleet(WHOLE, &format!("{ALWAYS}\n{hidden}")));
    look(&mut source, after(50));
    let blind = look(&mut source, after(70));
    assert!(!blind.devices[0].standing.sees_holders);
    assert!(blind.devices[0].standing.holders.is_empty());
    assert!(blind.devices[0].amounts.is_empty(), "a part of the time is no amount");
    assert_eq!(blind.devices[0].millijoules, Some(8_000_000), "the board's counter goes on");
    let seen = look(&mut source, after(130));
    assert!(seen.devices[0].standing.sees_holders && seen.devices[0].newcomers.is_empty());
}

#[test]
fn a_counter_that_began_anew_measured_nothing() {
    let reset = "[[node.fault]]\nkind = \"counters_reset\"\ndevice = 0\nat = \"60s\"";
    let mut source = open(&fleet(WHOLE, &format!("{ALWAYS}\n{reset}")));
    look(&mut source, after(50));
    let over = look(&mut source, after(61));
    assert!(over.devices[0].amounts.is_empty());
    assert_eq!(over.devices[0].millijoules, None, "not 0");
    assert_eq!(look(&mut source, after(62)).devices[0].amounts[0].active_nanos, Some(500_000_000));
}

#[test]
fn a_replayed_buffer_reaches_back_over_what_was_measured_already() {
    let replay = "[[node.fault]]\nkind = \"buffer_replayed\"\nat = \"60s\"\nfor = \"30s\"";
    let mut source = open(&fleet(WHOLE, &format!("{ALWAYS}\n{replay}")));
    look(&mut source, after(59));
    let again = look(&mut source, after(61));
    assert_eq!(again.since, Some(after(31)));
    assert_eq!(again.devices[0].amounts[0].active_nanos, Some(15_000_000_000));
    assert_eq!(look(&mut source, after(62)).since, Some(after(61)), "once");
}

#[test]
fn a_board_that_is_cut_otherwise_has_other_slices() {
    let mut source = open(SMALL);
    let (before, then) = (look(&mut source, after(302_399)), look(&mut source, after(302_400)));
    let ids = |sample: &Sample| -> Vec<Option<Name>> {
        sample.devices[0].standing.slices.iter().map(|slice| slice.id.clone()).collect()
    };
    assert_eq!((ids(&before).len(), ids(&then).len()), (7, 3));
    assert!(ids(&then).iter().all(|id| id.is_some() && !ids(&before).contains(id)));
}

#[test]
fn each_mode_has_its_slices() {
    let slices = |device: &str, habit: &str| {
        let mut source = open(&fleet(device, habit));
        look(&mut source, after(0)).devices[0].standing.slices.clone()
    };
    let on = |on: &str, more: &str| {
        format!("[[node.habit]]\nwho = {{ vm = \"v\" }}\non = [\"{on}\"]\nbusy = 10\n{more}")
    };
    assert_eq!(slices("mode = \"passthrough\"", &on("0", ""))[0].path(), "device");
    assert_eq!(slices("mode = \"time_slicing\"\nreplicas = 4", &on("0", ""))[0].path(), "time_slicing/1of4");
    assert_eq!(slices("mode = \"time_slicing\"", &on("0", ""))[0].path(), "time_slicing/even");
    assert_eq!(slices("mode = \"mps\"", &on("0", "percent = 25"))[0].path(), "mps/25percent");
    let vgpu =
        "mode = \"vgpu\"\nscheduler = \"equal_share\"\nlayout = [{ vgpu = \"H100XM-20C\", count = 4 }]";
    let vgpus = slices(vgpu, &on("0.0.3", ""));
    assert_eq!((vgpus.len(), vgpus[3].scheduler), (4, Some(VgpuScheduler::EqualShare)));
    let nested =
        "mode = \"mig_vgpu\"\nlayout = [{ profile = \"3g.40gb\", start = 0, vgpu = \"H100XM-3-40C\" }]";
    let nested = slices(nested, &on("0.0", ""));
    assert_eq!(nested[0].path(), "mig/3g.40gb");
    assert_eq!((nested[1].path().as_str(), &nested[1].parent), ("mig_vgpu/H100XM-3-40C", &nested[0].id));
}

#[test]
fn a_scheduler_that_changes_is_a_change() {
    let device = "mode = \"vgpu\"\nscheduler = \"best_effort\"\nlayout = [{ vgpu = \"H100XM-20C\" }]";
    let fault =
        "[[node.fault]]\nkind = \"reconfigure\"\ndevice = 0\nat = \"1m\"\nscheduler = \"fixed_share\"";
    let mut source = open(&fleet(device, fault));
    assert_eq!(source.next_change(after(0)), Some(after(60)));
    let (before, then) = (look(&mut source, after(59)), look(&mut source, after(60)));
    let of = |sample: &Sample| sample.devices[0].standing.slices[0].clone();
    assert_eq!(of(&before).id, of(&then).id, "the vGPU is the same");
    assert_eq!(of(&then).scheduler, Some(VgpuScheduler::FixedShare));
}

#[test]
fn what_cannot_be_is_refused_with_its_line_and_key() {
    let refused = |text: &str| ScriptedSource::open(text, &Name::fixed("n")).unwrap_err().to_string();
    let check = |device: &str, rest: &str, expected: &str| {
        let message = refused(&fleet(device, rest));
        assert!(message.contains(expected), "{message}\n does not say\n{expected}");
    };
    let habit = |more: &str| format!("[[node.habit]]\nwho = {{ pod = \"p\" }}\n{more}");
    let fault = |more: &str| format!("[[node.fault]]\n{more}");
    check("mode = \"whole\"", "", "line 5 of the fleet file: `node[0].device[0].mode`");
    check("mode = \"mig\"", "", "`node[0].device[0].layout` is missing");
    check("mode = \"mig\"\nlayout = [{ profile = \"1g.10gb\", start = 7 }]", "", "cannot start at slot 7");
    check("mode = \"mig\"\nlayout = [{ profile = \"9g.10gb\", start = 0 }]", "", "layout[0].profile");
    check(
        "mode = \"mig\"\n\
         layout = [{ profile = \"4g.40gb\", start = 0 }, { profile = \"2g.20gb\", start = 2 }]",
        "",
        "same memory slot",
    );
    check("mode = \"vgpu\"\nlayout = [{ vgpu = \"H100XM-20C\", count = 5 }]", "", "there is room for 4");
    check("mode = \"vgpu\"\nlayout = [{ vgpu = \"H100XM-3-40C\" }]", "", "runs on a MIG instance only");
    check("mode = \"vgpu\"\nlayout = [{ vgpu = \"H100XM-21C\" }]", "", "no vGPU type");
    check("mode = \"dedicated\"\nreplicas = 2", "", "`node[0].device[0].replicas` is of time_slicing only");
    check("mode = \"dedicated\"\nscheduler = \"best_effort\"", "", "is of vGPUs only");
    check("mode = \"dedicated\"\ncolour = \"red\"", "", "unknown field `colour`");
    check("mode = \"dedicated\"\nmemory_mib = 1.5", "", "line 9");
    check(
        WHOLE,
        &habit("on = [\"1\"]\nbusy = 1"),
        "line 9 of the fleet file: `node[0].habit[0].on` `1` is in no layout",
    );
    check(WHOLE, &habit("on = [\"0\", \"0\"]\nbusy = 1"), "stands twice");
    check(WHOLE, &habit("on = [\"0\"]\nbusy = 1001"), "1001 is above 1000 per mille");
    check(WHOLE, &habit("on = [\"0\"]\nbusy = 1\npercent = 20"), "is of mps only");
    check("mode = \"mps\"", &habit("on = [\"0\"]\nbusy = 1"), "an mps client has one");
    check(WHOLE, &habit("on = [\"0\"]\nbusy = 1\nhours = [\"often\"]"), "is not hours such as");
    check(WHOLE, &habit("on = [\"0\"]\nbusy = 1\nfrom = \"2h\"\nuntil = \"1h\""), "node[0].habit[0].until");
    check(
        WHOLE,
        &habit("on = [\"0\"]\nbusy = 1\nbursts = { every = \"1m\", lasts = \"2m\", chance = 1 }"),
        "lasts ≤ at_most ≤ every",
    );
    check(WHOLE, "[[node.habit]]\nwho = { tenant = \"t\" }\non = [\"0\"]\nbusy = 1", "which no agent may");
    check(WHOLE, &fault("kind = \"lost\"\ndevice = 0\nat = \"1m\""), "how long does it last?");
    check(
        WHOLE,
        &fault("kind = \"lost\"\ndevice = 3\nat = \"1m\"\nfor = \"1m\""),
        "3 is none of the 1 devices",
    );
    check(WHOLE, &fault("kind = \"melted\"\ndevice = 0\nat = \"1m\""), "melted");
    check(
        WHOLE,
        &fault("kind = \"counters_reset\"\ndevice = 0\nat = \"2026-06-01T00:00:00.5Z\""),
        "whole second",
    );
    let two = "mode = \"time_slicing\"\nreplicas = 1";
    let both = format!("{}\n{}", habit("on = [\"0\"]\nbusy = 1"), habit("on = [\"0\"]\nbusy = 1"));
    check(two, &both, "more habits on device 0 than its 1 replicas");
    let elsewhere = fleet(WHOLE, "").replace("name = \"n\"", "name = \"m\"");
    assert_eq!(refused(&elsewhere), "the fleet file has no node `n`; it has: m");
}

#[test]
fn the_examples_are_what_they_say() {
    let dense = look(&mut open(DENSE), after(3_600)).devices;
    assert_eq!(dense.iter().map(|each| each.standing.slices.len()).sum::<usize>(), 56);
    let source = open(SMALL);
    assert_eq!(source.node.devices[1].info.memory_mib, 23_034);
}
