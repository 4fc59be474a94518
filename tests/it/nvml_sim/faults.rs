//! What goes wrong on a host: drivers that are not there, boards that are lost, and scenarios that cannot be.

use nvml_wrapper::error::NvmlError;

use super::{HOUR, START, from_start, one_board};
use crate::support::nvml::Sim;

const TWO: &str = "
[[board]]
type = \"L4\"
uuid = \"GPU-a\"
power_mw = 20000
lost = [{ from = \"1h\", until = \"2h\" }]
absent = [{ from = \"2h\", until = \"3h\" }]
index = [[\"3h\", 9]]

[[board]]
type = \"L4\"
uuid = \"GPU-b\"
power_mw = 30000
reset_required = [{ from = \"3h\" }]
";

#[test]
fn a_driver_that_is_not_loaded_is_told_at_the_start_and_may_come_later() {
    let sim =
        Sim::new(&format!("init = [{{ code = 9, until = \"1h\" }}]\n{}", one_board("type = \"L4\"")), START);
    assert!(matches!(sim.load().unwrap_err(), NvmlError::DriverNotLoaded));
    sim.pass(HOUR);
    assert_eq!(sim.load().unwrap().device_count().unwrap(), 1);
}

#[test]
fn a_host_without_boards_counts_none() {
    let sim = Sim::new(&from_start(""), START);
    let nvml = sim.load().unwrap();
    assert_eq!(nvml.device_count().unwrap(), 0);
    assert!(matches!(nvml.device_by_index(0), Err(NvmlError::InvalidArg)));
}

#[test]
fn a_board_that_is_lost_comes_back_under_another_index_and_stops_no_other() {
    let sim = Sim::new(&from_start(TWO), START);
    let nvml = sim.load().unwrap();
    let uuids = || -> Vec<Option<String>> {
        let indices = 0..nvml.device_count().unwrap();
        indices.map(|index| nvml.device_by_index(index).ok()?.uuid().ok()).collect()
    };
    let (a, b) = (Some("GPU-a".to_owned()), Some("GPU-b".to_owned()));
    let lost = nvml.device_by_index(0).unwrap();
    assert_eq!(uuids(), [a.clone(), b.clone()]);
    sim.pass(HOUR);
    assert_eq!(uuids(), [None, b.clone()], "it is counted");
    assert!(matches!(lost.power_usage(), Err(NvmlError::GpuLost)));
    assert!(matches!(nvml.device_by_index(0), Err(NvmlError::GpuLost)));
    sim.pass(HOUR);
    assert_eq!(uuids(), [b], "it is not counted any more");
    assert!(matches!(lost.power_usage(), Err(NvmlError::GpuLost)));
    assert!(matches!(nvml.device_by_uuid("GPU-a"), Err(NvmlError::NotFound)));
    sim.pass(HOUR);
    assert_eq!(uuids(), [None, a], "it is the second now, and the other one wants a reset");
    assert_eq!((lost.index().unwrap(), lost.power_usage().unwrap()), (1, 20_000));
    assert!(matches!(nvml.device_by_index(0), Err(NvmlError::ResetRequired)));
}

#[test]
fn any_function_can_fail_for_a_while() {
    let faults = "fault = [\
        { symbol = \"nvmlDeviceGetPowerUsage\", device = \"GPU-a\", \
          from = \"10m\", until = \"20m\", code = 17 }, \
        { symbol = \"*\", from = \"30m\", until = \"40m\", code = 18 }]";
    let sim = Sim::new(&format!("{faults}\n{}", from_start(TWO)), START);
    let nvml = sim.load().unwrap();
    let [one, other] = [nvml.device_by_index(0).unwrap(), nvml.device_by_index(1).unwrap()];
    assert!(one.power_usage().is_ok());
    sim.pass(HOUR / 6);
    assert!(matches!(one.power_usage(), Err(NvmlError::OperatingSystem)));
    assert!(one.uuid().is_ok() && other.power_usage().is_ok());
    sim.pass(HOUR / 6);
    assert!(one.power_usage().is_ok());
    sim.pass(HOUR / 6);
    assert!(matches!(nvml.device_count(), Err(NvmlError::LibRmVersionMismatch)));
    assert!(matches!(sim.load(), Err(NvmlError::LibRmVersionMismatch)));
}

#[test]
fn a_new_scenario_goes_on_with_the_handles_of_the_one_before() {
    let sim = Sim::new(&one_board("type = \"L4\"\npower_mw = 1"), START);
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    sim.rewrite(&one_board("type = \"L4\"\npower_mw = 2"));
    assert_eq!(device.power_usage().unwrap(), 2);
    sim.rewrite(&from_start(""));
    assert!(matches!(device.power_usage(), Err(NvmlError::InvalidArg)));
}

#[test]
fn a_scenario_that_cannot_be_is_refused_with_its_reason() {
    let instance = |gi, start, slot| {
        format!(
            "{{ gi = {gi}, profile = \"3g.40gb\", start = {start}, \
             compute = [{{ uuid = \"M\", slot = {slot} }}] }}"
        )
    };
    let cut =
        |one, other| one_board(&format!("type = \"H100-80GB\"\nmig = true\ninstance = [{one}, {other}]"));
    let percent =
        |steps| one_board(&format!("type = \"L4\"\nprocess = [{{ pid = 1, percent = {{ sm = {steps} }} }}]"));
    for (scenario, reason) in [
        (one_board("type = \"L5\""), "type \"L5\" is unknown"),
        (one_board("type = \"L4\"\nwatts = 5"), "unknown field"),
        (one_board("type = \"L4\"\nmig = true"), "no MIG"),
        (from_start("fault = [{ symbol = \"nvmlDeviceGetPower\", code = 3 }]"), "no function"),
        (one_board("type = \"L4\"\npower_mw = [[\"2s\", 1], [\"1s\", 2]]"), "power_mw"),
        (cut(instance(1, 0, 0), instance(2, 0, 1)), "in its place"),
        (cut(instance(1, 0, 0), instance(2, 4, 0)), "two MIG devices"),
        (cut(instance(1, 0, 0), instance(2, 2, 1)), "cannot start there"),
        (percent("[[\"1500ms\", 5]]"), "between two samples"),
        (format!("{}\n[[board]]\ntype = \"L4\"\nuuid = \"GPU-1\"", one_board("type = \"L4\"")), "twice"),
    ] {
        let refused = std::panic::catch_unwind(|| Sim::new(&scenario, START)).expect_err(reason);
        let message = refused.downcast::<String>().expect("a message");
        assert!(message.contains(reason), "{message}");
    }
}

#[test]
fn the_example_of_the_format_can_be_read() {
    let source = include_str!("../../nvml-sim/scenario/mod.rs");
    let lines = source.lines().map_while(|line| line.strip_prefix("//!"));
    let example = lines.skip_while(|line| *line != " ```toml").skip(1).take_while(|line| *line != " ```");
    let sim = Sim::new(&example.collect::<Vec<_>>().join("\n"), START);
    sim.pass(HOUR);
    assert_eq!(sim.load().unwrap().device_count().unwrap(), 2);
}
