//! The wrapper's traps, each against the agent's own code: `nvml_sim` shows that they are there.

use fatia::agent::nvml::raw::{self, Placement};
use nvml_wrapper::error::NvmlError;

use super::rig::{NANOS, Rig, SECOND, holders, one_board, slices};
use crate::support::nvml::Sim;

const HOST: &str = "type = \"L40S\"
virtualization = \"host\"
vgpu_types = [\"L40S-12Q\"]
vgpu = [
    { id = 21, type = \"L40S-12Q\", uuid = \"vgpu-a\", vm = { uuid = \"vm-a\" }, placement = 3 },
    { id = 22, type = \"L40S-12Q\", uuid = \"vgpu-b\", vm = { uuid = \"vm-b\" } },
    { id = 23, type = \"L40S-12Q\", uuid = \"vgpu-c\", vm = { uuid = \"vm-c\" } },
]";

#[test]
fn possible_placements_are_found() {
    let sim = Sim::new(&one_board("type = \"H100-80GB\"\nmig = true"), super::rig::START);
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    let found = raw::possible_placements(&nvml, &device, 9).unwrap();
    assert_eq!(found, [Placement { start: 0, size: 4 }, Placement { start: 4, size: 4 }]);
    assert_eq!(raw::possible_placements(&nvml, &device, 19).unwrap().len(), 7);
    assert!(matches!(raw::possible_placements(&nvml, &device, 18), Err(NvmlError::InvalidArg)));
}

#[test]
fn a_list_of_vgpus_that_shrinks_between_two_calls_has_none_of_id_nothing() {
    let shrinks = "list_shrinks = [{ symbol = \"nvmlDeviceGetActiveVgpus\", by = 2, from = \"5s\" }]";
    let mut rig = Rig::new(&format!("{shrinks}\n{}", one_board(HOST)));
    assert_eq!(rig.standing(0).slices.len(), 3);
    assert_eq!(slices(&rig.standing(5 * SECOND)), ["vgpu/L40S-12Q vgpu-a"]);
    assert_eq!(holders(&rig.standing(6 * SECOND)).len(), 1);
}

#[test]
fn lists_that_grow_between_two_calls_are_read_in_full() {
    let grows = |by| {
        let names = ["GetActiveVgpus", "GetComputeRunningProcesses_v3", "GetMPSComputeRunningProcesses_v3"];
        let list = names.map(|name| format!("{{ symbol = \"nvmlDevice{name}\", by = {by} }}")).join(", ");
        format!("list_grows = [{list}]")
    };
    let mut rig = Rig::new(&format!("{}\n{}", grows(2), one_board(HOST)));
    assert_eq!(rig.standing(0).slices.len(), 3);
    let processes: Vec<String> =
        (11..=17).map(|pid| format!("{{ pid = {pid}, kinds = [\"compute\"] }}")).collect();
    let board = format!("type = \"L4\"\nprocess = [{}]", processes.join(", "));
    let mut rig = Rig::new(&format!("{}\n{}", grows(5), one_board(&board)));
    for pid in 11..=17 {
        rig.folders.process(pid, &format!("/kubepods/pod-{pid}"), "python", 1);
    }
    assert_eq!(rig.standing(0).holders.len(), 7);
}

#[test]
fn a_list_that_grows_without_end_is_given_up_and_says_nothing_of_holders() {
    let processes: Vec<String> = (11..=18).map(|pid| format!("{{ pid = {pid} }}")).collect();
    let board = format!("type = \"L4\"\nprocess = [{}]", processes.join(", "));
    let grows = "list_grows = [{ symbol = \"nvmlDeviceGetComputeRunningProcesses_v3\", by = 7 }]";
    let mut rig = Rig::new(&format!("{grows}\n{}", one_board(&board)));
    let standing = rig.standing(0);
    assert!(standing.is_present() && !standing.sees_holders);
}

#[test]
fn structures_are_asked_for_with_their_version() {
    let sim = Sim::new(&one_board(HOST), super::rig::START);
    let nvml = sim.load().unwrap();
    assert_eq!(raw::placement_id(&nvml, 21).unwrap(), 3);
    let sim = Sim::new(&one_board("type = \"A30-24GB\"\nmig = true"), super::rig::START);
    let nvml = sim.load().unwrap();
    let profiles = raw::profiles(&nvml, &nvml.device_by_index(0).unwrap()).unwrap();
    let told: Vec<(u32, &str)> = profiles.iter().map(|one| (one.id, one.name.as_str())).collect();
    assert_eq!(told.len(), 5, "gaps in the enumeration are no end of it");
    assert!(told.contains(&(14, "1g.6gb")), "{told:?}");
}

#[test]
fn codes_that_nobody_knows_cost_one_figure_and_no_look() {
    for code in [23, 24, 25, 26, 27, 29, 30, 4711] {
        let symbols = [
            "nvmlDeviceGetTotalEnergyConsumption",
            "nvmlDeviceGetProcessUtilization",
            "nvmlDeviceGetMigMode",
        ];
        let faults = symbols
            .map(|symbol| format!("[[fault]]\nsymbol = \"{symbol}\"\ndevice = \"GPU-1\"\ncode = {code}\n"));
        let board =
            "type = \"L4\"\npower_mw = 1000\nprocess = [{ pid = 11, memory_mib = 1, percent = { sm = 9 } }]";
        let mut rig = Rig::new(&format!("{}\n{}", one_board(board), faults.concat()));
        rig.folders.process(11, "/kubepods/pod-a", "python", 1);
        rig.look(0);
        let look = rig.device(SECOND, "GPU-1");
        assert!(look.standing.is_present() && look.standing.holders.len() == 1, "{code}");
        assert_eq!((look.millijoules, look.amounts[0].active_nanos), (None, None), "{code}");
        assert!(look.amounts[0].memory_byte_seconds.is_some(), "{code}");
    }
}

#[test]
fn no_new_sample_is_a_measured_nothing() {
    let board = "type = \"L4\"\nprocess = [{ pid = 11, percent = { sm = [[\"0s\", 0], [\"5s\", 50]] } }]";
    let mut rig = Rig::new(&one_board(board));
    rig.folders.process(11, "/kubepods/pod-a", "python", 1);
    rig.look(0);
    let active = |rig: &mut Rig, second: i64| rig.device(second * SECOND, "GPU-1").amounts[0].active_nanos;
    assert_eq!(
        (1..=7).map(|second| active(&mut rig, second)).collect::<Vec<_>>(),
        [Some(0), Some(0), Some(0), Some(0), Some(0), Some(NANOS / 2), Some(NANOS / 2)]
    );
}

#[test]
fn field_values_are_the_ones_that_were_asked_for_whatever_the_driver_numbers_them() {
    for driver in ["570.124.06", "580.65.06", "580.82.07", "595.10"] {
        let board = "type = \"L4\"\nrecovery_action = 2\nfield = [{ id = 251, value = 11 }, { id = 256, value = 22 }]";
        let mut rig = Rig::new(&format!("driver = \"{driver}\"\n{}", one_board(board)));
        let device = rig.standing(0).device.clone();
        let health = rig.on.source.health(&device).unwrap();
        assert_eq!((health.recovery, health.hot_nanos), (Some(2), Some(11)), "{driver}");
    }
}

#[test]
fn ids_that_the_wrapper_keeps_to_itself_are_read() {
    let sim = Sim::new(&one_board(super::layouts::MIXED), super::rig::START);
    let nvml = sim.load().unwrap();
    let board = nvml.device_by_index(0).unwrap();
    assert_eq!(raw::instance_ids(&nvml, &nvml.device_by_uuid("MIG-c").unwrap()).unwrap(), (3, 1));
    let instance = raw::gpu_instance(&nvml, &board, 13).unwrap();
    assert_eq!((instance.placement.start, instance.placement.size), (6, 1));
    assert!(matches!(raw::gpu_instance(&nvml, &board, 14), Err(NvmlError::NotFound)));
    let sim = Sim::new(&one_board(HOST), super::rig::START);
    let nvml = sim.load().unwrap();
    assert_eq!(raw::active_vgpus(&nvml, &nvml.device_by_index(0).unwrap()).unwrap(), [21, 22, 23]);
}

#[test]
fn functions_that_an_old_library_lacks_are_figures_that_it_does_not_tell() {
    let gone = [
        "nvmlGpmQueryDeviceSupport",
        "nvmlDeviceGetGpuInstanceId",
        "nvmlDeviceGetGpuInstanceProfileInfoV",
        "nvmlDeviceGetActiveVgpus",
        "nvmlDeviceGetSerial",
        "nvmlEventSetCreate",
        "nvmlDeviceGetFieldValues",
    ];
    let mut rig = Rig::on(Sim::without(&one_board(super::layouts::MIXED), super::rig::START, &gone));
    rig.folders.process(21, "/kubepods/pod-a", "python", 1);
    rig.folders.process(22, "/kubepods/pod-b", "python", 2);
    let standing = rig.standing(0);
    assert_eq!(slices(&standing), ["mig/1g.5gb MIG-a", "mig/1c.3g.20gb MIG-b", "mig/2c.3g.20gb MIG-c"]);
    assert_eq!(standing.holders.len(), 2);
}
