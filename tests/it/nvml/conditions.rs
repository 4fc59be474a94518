//! Nodes without a library, a driver, a GPU or the right to see one: normal ones.

use fatia::agent::nvml::library::Condition;
use fatia::agent::nvml::{NvmlOptions, NvmlSource};
use fatia::agent::source::{Sample, Source};

use super::rig::{Folders, MINUTE, Rig, SECOND, from_start, lost, one_board};

fn init(code: u32, until: &str) -> String {
    format!("init = [{{ code = {code}, until = \"{until}\" }}]\n{}", one_board("type = \"L4\""))
}

#[test]
fn a_node_without_a_library_is_looked_at_again_and_says_what_would_help() {
    let folders = Folders::new();
    let library = Some(folders.path().join("nowhere.so"));
    let mut source = NvmlSource::new(NvmlOptions { library, roots: folders.roots() });
    assert_eq!(source.condition(), None);
    assert!(source.inventory().unwrap().devices.is_empty());
    let mut sample = Sample::default();
    for second in 0..180 {
        let at = fatia::domain::units::Instant::from_micros(second * SECOND);
        source.sample(at, &mut sample).unwrap();
        assert!(sample.devices.is_empty());
        assert_eq!(source.condition(), Some(&Condition::NoLibrary));
    }
    let remedy = source.condition().unwrap().remedy();
    assert!(remedy.contains("--nvml-library"), "{remedy}");
    assert!(
        !source.condition().unwrap().to_string().contains("nowhere"),
        "the path is the operator's business"
    );
}

#[test]
fn what_keeps_a_library_from_starting_is_told_apart_and_gone_within_a_minute() {
    for (code, condition) in
        [(9, Condition::DriverNotLoaded), (4, Condition::NoPermission), (18, Condition::VersionMismatch)]
    {
        let mut rig = Rig::new(&init(code, "90s"));
        assert!(rig.on.inventory().unwrap().devices.is_empty());
        for second in 0..90 {
            assert!(rig.look(second * SECOND).devices.is_empty());
            assert_eq!(rig.on.source.condition(), Some(&condition));
            assert!(!condition.remedy().is_empty());
        }
        let found = (90..=150).find(|second| !rig.look(second * SECOND).devices.is_empty());
        assert_eq!((found, rig.on.source.condition()), (Some(120), Some(&Condition::Ready)), "{condition}");
        assert_eq!(rig.on.inventory().unwrap().devices.len(), 1);
    }
    let mut rig = Rig::new(&init(999, "90s"));
    rig.look(0);
    assert!(matches!(rig.on.source.condition(), Some(Condition::Failed(_))));
}

#[test]
fn a_host_without_gpus_has_none_until_it_has() {
    let mut rig = Rig::new(&from_start(""));
    assert!(rig.look(0).devices.is_empty());
    assert_eq!(rig.on.source.condition(), Some(&Condition::NoGpu));
    rig.on.sim.rewrite(&one_board("type = \"L4\""));
    assert_eq!(rig.look(SECOND).devices.len(), 1);
    assert_eq!(rig.on.source.condition(), Some(&Condition::Ready));
}

#[test]
fn a_driver_that_goes_while_the_agent_runs_takes_its_gpus_with_it_and_brings_them_back() {
    let faults = "fault = [{ symbol = \"*\", from = \"10s\", until = \"100s\", code = 18 }]";
    let mut rig = Rig::new(&format!(
        "{faults}\n{}",
        one_board("type = \"L4\"\npower_mw = 5000\nprocess = [{ pid = 11 }]")
    ));
    rig.folders.process(11, "/kubepods/pod-a", "python", 1);
    for second in 0..10 {
        assert_eq!(lost(&rig.standing(second * SECOND)), None);
    }
    for second in 10..100 {
        let reason = lost(&rig.standing(second * SECOND)).unwrap();
        assert!(reason.contains("different versions"), "{reason}");
    }
    assert_eq!(rig.on.source.condition(), Some(&Condition::VersionMismatch));
    let back = (100..200).find(|second| lost(&rig.standing(second * SECOND)).is_none()).unwrap();
    assert!(back * SECOND <= 100 * SECOND + MINUTE, "{back}");
    assert_eq!(rig.device((back + 1) * SECOND, "GPU-1").millijoules, Some(5_000));
}

#[test]
fn a_driver_that_goes_between_two_boards_of_one_look_leaves_each_once() {
    let faults = "fault = [{ symbol = \"nvmlDeviceGetComputeRunningProcesses_v3\", device = \"GPU-2\", \
                  from = \"5s\", until = \"6s\", code = 9 }]";
    let boards = "[[board]]\nuuid = \"GPU-1\"\ntype = \"L4\"\n[[board]]\nuuid = \"GPU-2\"\ntype = \"L4\"\n";
    let mut rig = Rig::new(&from_start(&format!("{faults}\n{boards}")));
    for second in 0..5 {
        assert!(rig.look(second * SECOND).devices.iter().all(|look| look.standing.is_present()));
    }
    let seen: Vec<(String, bool)> = rig
        .look(5 * SECOND)
        .devices
        .iter()
        .map(|look| (look.standing.device.to_string(), look.standing.is_present()))
        .collect();
    assert_eq!(seen, [("GPU-1".to_owned(), false), ("GPU-2".to_owned(), false)]);
}
