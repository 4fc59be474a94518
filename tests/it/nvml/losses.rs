//! What goes wrong with a GPU: it is lost and back, its counters begin anew, one of its calls fails.

use fatia::agent::source::Source as _;

use super::rig::{NANOS, Rig, SECOND, from_start, lost, one_board};

const TWO: &str = "
[[board]]
type = \"L4\"
uuid = \"GPU-a\"
power_mw = 20000
lost = [{ from = \"1m\", until = \"2m\" }]
absent = [{ from = \"2m\", until = \"3m\" }]
index = [[\"3m\", 9]]
xid = [{ at = \"1m\", xid = 31 }, { at = \"1m\", xid = 79 }]
process = [{ pid = 11, percent = { sm = 50 } }]

[[board]]
type = \"L4\"
uuid = \"GPU-b\"
power_mw = 30000
reset_required = [{ from = \"4m\" }]
";

#[test]
fn a_gpu_that_is_lost_says_why_stops_no_other_and_is_itself_under_another_index() {
    let mut rig = Rig::new(&from_start(TWO));
    rig.folders.process(11, "/kubepods/pod-a", "python", 1);
    let index = |rig: &mut Rig| {
        let found = rig.on.inventory().unwrap().devices;
        found.into_iter().find(|device| device.uuid.as_str() == "GPU-a").unwrap().index
    };
    for second in 0..60 {
        assert_eq!(lost(&rig.device(second * SECOND, "GPU-a").standing), None);
    }
    assert_eq!(index(&mut rig), 0);
    let look = rig.device(60 * SECOND, "GPU-a");
    assert_eq!(lost(&look.standing).unwrap(), "Xid 79: the GPU has fallen off the bus");
    assert!(look.amounts.is_empty() && look.millijoules.is_none() && !look.standing.sees_holders);
    assert_eq!(rig.device(61 * SECOND, "GPU-b").millijoules, Some(30_000));
    // Not counted any more: still there, still lost.
    assert!(lost(&rig.device(121 * SECOND, "GPU-a").standing).is_some());
    let order = |rig: &Rig| -> Vec<String> {
        rig.sample.devices.iter().map(|look| look.standing.device.to_string()).collect()
    };
    assert_eq!(order(&rig), ["GPU-a", "GPU-b"]);
    let back = rig.device(180 * SECOND, "GPU-a");
    assert_eq!((lost(&back.standing), back.millijoules, back.amounts.len()), (None, None, 0));
    assert!(lost(&back.measured_of).is_some(), "what was there before was nothing");
    assert_eq!((order(&rig), index(&mut rig)), (vec!["GPU-a".to_owned(), "GPU-b".to_owned()], 1));
    let next = rig.device(181 * SECOND, "GPU-a");
    assert_eq!((next.millijoules, next.amounts[0].active_nanos), (Some(20_000), Some(NANOS / 2)));
    assert_eq!(lost(&rig.device(240 * SECOND, "GPU-b").standing).unwrap(), "the GPU requires a reset");
    let xids: Vec<u64> =
        rig.on.source.health(&look.standing.device).unwrap().xids.iter().map(|one| one.1).collect();
    assert_eq!(xids, [31, 79]);
}

#[test]
fn windows_of_a_lost_gpu_vouch_for_nothing_and_for_all_around_it() {
    let mut rig = Rig::new(&from_start(TWO));
    rig.folders.process(11, "/kubepods/pod-a", "python", 1);
    let windows = rig.windows(0, 200);
    let covered = windows.iter().flat_map(|window| &window.batch.coverage);
    let of_a = covered.filter(|each| each.device.as_str() == "GPU-a").map(|each| each.span);
    let seconds: Vec<(i64, i64)> =
        fatia::domain::usage::merged(of_a).into_iter().map(|span| rig.seconds(span)).collect();
    assert_eq!(seconds, [(0, 60), (180, 200)]);
}

#[test]
fn an_energy_counter_that_falls_measures_nothing_for_one_look() {
    let mut rig = Rig::new(&format!(
        "reloads = [\"5s\"]\n{}",
        one_board("type = \"L4\"\nenergy_mj = 900000\npower_mw = 72000")
    ));
    let taken: Vec<Option<i64>> =
        (0..9).map(|second| rig.device(second * SECOND, "GPU-1").millijoules).collect();
    let second = Some(72_000);
    assert_eq!(taken, [None, second, second, second, second, None, second, second, second]);
}

#[test]
fn a_board_without_a_counter_takes_no_known_energy() {
    let mut rig = Rig::new(&one_board("type = \"L4\""));
    assert!((0..3).all(|second| rig.device(second * SECOND, "GPU-1").millijoules.is_none()));
}

#[test]
fn looks_that_fail_are_made_up_for_by_the_next() {
    let faults =
        "fault = [{ symbol = \"nvmlDeviceGetCount_v2\", from = \"3s\", until = \"6s\", code = 999 }]";
    let board = "type = \"L4\"\npower_mw = 10000\nprocess = [{ pid = 11, percent = { sm = 40 } }]";
    let mut rig = Rig::new(&format!("{faults}\n{}", one_board(board)));
    rig.folders.process(11, "/kubepods/pod-a", "python", 1);
    for second in 0..3 {
        rig.look(second * SECOND);
    }
    for second in 3..6 {
        let at = rig.at(second * SECOND);
        rig.on.sample(at, &mut rig.sample).unwrap_err();
    }
    let look = rig.device(6 * SECOND, "GPU-1");
    assert_eq!(rig.sample.since, Some(rig.at(2 * SECOND)));
    assert_eq!((look.millijoules, look.amounts[0].active_nanos), (Some(40_000), Some(4 * NANOS * 4 / 10)));
}

#[test]
fn what_a_board_cannot_tell_is_not_asked_again_until_its_driver_changes() {
    // It fails as not supported for a minute: asked again, it would answer.
    let faults = "fault = [{ symbol = \"nvmlDeviceGetTotalEnergyConsumption\", device = \"GPU-1\", \
                  until = \"10s\", code = 3 }]";
    let scenario = |driver: &str| {
        format!("driver = \"{driver}\"\n{faults}\n{}", one_board("type = \"L4\"\npower_mw = 10000"))
    };
    let mut rig = Rig::new(&scenario("580.95.05"));
    let told = |rig: &mut Rig, second: i64| rig.device(second * SECOND, "GPU-1").millijoules;
    assert!((0..90).all(|second| told(&mut rig, second).is_none()));
    rig.on.sim.rewrite(&scenario("590.10"));
    assert!((90..200).any(|second| told(&mut rig, second) == Some(10_000)));
}

#[test]
fn one_call_that_fails_on_one_board_costs_that_figure_alone() {
    for code in [2, 17, 19, 20, 21, 999] {
        let faults = format!(
            "fault = [{{ symbol = \"nvmlDeviceGetTotalEnergyConsumption\", device = \"GPU-1\", from = \"2s\", \
             until = \"3s\", code = {code} }}]"
        );
        let board = "type = \"L4\"\npower_mw = 10000\nprocess = [{ pid = 11, percent = { sm = 40 } }]";
        let mut rig = Rig::new(&format!("{faults}\n{}", one_board(board)));
        rig.folders.process(11, "/kubepods/pod-a", "python", 1);
        let looks: Vec<_> = (0..5).map(|second| rig.device(second * SECOND, "GPU-1")).collect();
        let energy: Vec<_> = looks.iter().map(|look| look.millijoules).collect();
        assert_eq!(energy, [None, Some(10_000), None, None, Some(10_000)], "{code}");
        assert!(
            looks.iter().skip(1).all(|look| look.amounts[0].active_nanos == Some(NANOS * 4 / 10)),
            "{code}"
        );
    }
}

#[test]
fn processes_that_cannot_be_listed_leave_the_holders_unknown() {
    let faults = "fault = [{ symbol = \"nvmlDeviceGetComputeRunningProcesses_v3\", device = \"GPU-1\", \
                  from = \"2s\", until = \"4s\", code = 999 }]";
    let mut rig = Rig::new(&format!("{faults}\n{}", one_board("type = \"L4\"\nprocess = [{ pid = 11 }]")));
    rig.folders.process(11, "/kubepods/pod-a", "python", 1);
    let seen: Vec<(bool, usize)> = (0..6)
        .map(|second| rig.standing(second * SECOND))
        .map(|standing| (standing.sees_holders, standing.holders.len()))
        .collect();
    assert_eq!(seen, [(true, 1), (true, 1), (false, 0), (false, 0), (true, 1), (true, 1)]);
}

#[test]
fn a_list_that_fails_for_a_moment_changes_no_layout() {
    let mig = "type = \"A100-40GB\"\nmig = true\ninstance = [{ gi = 3, profile = \"3g.20gb\", start = 0, \
               compute = [{ uuid = \"MIG-a\", slot = 2 }] }]\nprocess = [{ pid = 11, gi = 3, ci = 0 }]";
    let host = "type = \"L40S\"\nvirtualization = \"host\"\nvgpu_types = [\"L40S-12Q\"]\n\
                scheduler = { policy = \"equal_share\" }\n\
                vgpu = [{ id = 21, type = \"L40S-12Q\", uuid = \"vgpu-a\", vm = { uuid = \"vm-a\" } }]";
    for (board, symbol, still_sees) in [
        (mig, "nvmlDeviceGetMigMode", true),
        (mig, "nvmlDeviceGetMaxMigDeviceCount", false),
        (mig, "nvmlDeviceGetMigDeviceHandleByIndex", false),
        (mig, "nvmlDeviceGetComputeRunningProcesses_v3", false),
        (mig, "nvmlDeviceGetMPSComputeRunningProcesses_v3", false),
        (host, "nvmlDeviceGetActiveVgpus", false),
        (host, "nvmlDeviceGetVgpuSchedulerState", true),
    ] {
        let device = if symbol.contains("Processes") { "MIG-a" } else { "GPU-1" };
        let fault = format!(
            "fault = [{{ symbol = \"{symbol}\", device = \"{device}\", from = \"2s\", until = \"4s\", code = 999 }}]"
        );
        let mut rig = Rig::new(&format!("{fault}\n{}", one_board(board)));
        rig.folders.process(11, "/kubepods/pod-a", "python", 1);
        let layouts: Vec<_> = (0..6).map(|second| rig.standing(second * SECOND)).collect();
        assert!(
            layouts.iter().all(|one| one.slices == layouts[0].slices && one.slices.len() == 1),
            "{symbol}"
        );
        let sees: Vec<bool> = layouts.iter().map(|one| one.sees_holders).collect();
        assert_eq!(sees, [true, true, still_sees, still_sees, true, true], "{symbol}");
        assert!(layouts.iter().all(|one| one.is_present()), "{symbol}");
    }
    let fault = "fault = [{ symbol = \"nvmlVgpuInstanceGetUUID\", vgpu = 21, from = \"2s\", until = \"4s\", code = 999 }]";
    let mut rig = Rig::new(&format!("{fault}\n{}", one_board(host)));
    assert!((0..6).all(|second| rig.standing(second * SECOND).holders.len() == 1));
}

#[test]
fn events_are_heard_again_after_the_library_was_loaded_anew() {
    let faults = "fault = [{ symbol = \"*\", from = \"10s\", until = \"20s\", code = 9 }]";
    let board = "type = \"L4\"\nlost = [{ from = \"200s\", until = \"1h\" }]\nxid = [{ at = \"5s\", xid = 48 }, { at = \"200s\", xid = 119 }]";
    let mut rig = Rig::new(&format!("{faults}\n{}", one_board(board)));
    for second in 0..200 {
        rig.look(second * SECOND);
    }
    let reason = lost(&rig.standing(200 * SECOND)).unwrap();
    assert_eq!(reason, "Xid 119: the GPU's system processor does not answer");
    assert_eq!(
        lost(&rig.standing(3_599 * SECOND)),
        Some(reason),
        "an hour later it is lost for nothing else"
    );
    assert_eq!(lost(&rig.standing(3_600 * SECOND)), None);
}
