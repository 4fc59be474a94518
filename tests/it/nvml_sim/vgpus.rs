//! vGPU hosts as the wrapper sees them: VMs, licenses, schedulers, and lists that change while they are read.

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::vgpu::{VgpuLicenseState, VmId};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::vgpu::VgpuInstance;

use super::raw::{active_vgpus, vgpu_samples};
use super::{HOUR, MIB, SECOND, START, one_board};
use crate::support::nvml::Sim;

const HOST: &str = "type = \"L40S\"
virtualization = \"host\"
host_vgpu_mode = \"sriov\"
vgpu_types = [\"L40S-48Q\", \"L40S-12Q\", \"L40S-24Q\"]
scheduler = [
    [\"0s\", { policy = \"best_effort\" }],
    [\"1h\", { policy = \"fixed_share\", timeslice_ns = 2000000 }],
]

[[board.vgpu]]
id = 21
type = \"L40S-12Q\"
uuid = \"vgpu-a\"
vm = { uuid = \"vm-a\" }
mdev = \"mdev-a\"
guest_driver = [[\"10s\", \"580.95.05\"]]
license = [
    [\"0s\", { state = \"unlicensed_unrestricted\" }],
    [\"20s\", { state = \"licensed\", expires = { at = \"1d\" } }],
]
fb_used_mib = 700
percent = { sm = [[\"0s\", 0], [\"3s\", 60]] }

[[board.vgpu]]
id = 22
type = \"L40S-12Q\"
uuid = \"vgpu-b\"
vm = { domain = \"4\" }
until = \"2h\"

[[board.vgpu]]
id = 23
type = \"L40S-12Q\"
uuid = \"vgpu-c\"
vm = { domain = \"5\" }
";

/// Makes a host of a scenario, with this said first.
fn host(rest: &str) -> Sim {
    Sim::new(&format!("{rest}\n{}", one_board(HOST)), START)
}

fn names(device: &Device<'_>) -> Vec<String> {
    device.active_vgpus().unwrap().iter().map(|one| one.uuid().unwrap()).collect()
}

#[test]
fn a_vgpu_tells_its_vm_its_type_and_what_it_is_used_as() {
    let sim = host("");
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    let active = device.active_vgpus().unwrap();
    assert_eq!(active[0].vm_id().unwrap(), VmId::Uuid("vm-a".to_owned()));
    assert_eq!(active[1].vm_id().unwrap(), VmId::Domain("4".to_owned()));
    assert_eq!(active[0].mdev_uuid().unwrap(), "mdev-a");
    assert!(matches!(active[1].mdev_uuid(), Err(NvmlError::NotSupported)));
    assert_eq!(active[0].gpu_instance_id().unwrap(), u32::MAX, "time-sliced");
    assert_eq!(active[0].fb_usage().unwrap(), 700 * MIB);
    let kind = active[0].instance_type().unwrap();
    assert_eq!(kind.name().unwrap(), "NVIDIA L40S-12Q");
    assert_eq!(kind.framebuffer_size().unwrap(), 12_288 * MIB);
    assert_eq!((kind.class_name().unwrap(), kind.max_instances().unwrap()), ("Quadro".to_owned(), 4));
}

#[test]
fn types_of_another_size_cannot_be_made_beside_it() {
    let sim = host("");
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    assert_eq!(device.vgpu_supported_types().unwrap().len(), 3);
    let creatable = device.vgpu_creatable_types().unwrap();
    let creatable: Vec<String> = creatable.iter().map(|kind| kind.name().unwrap()).collect();
    assert_eq!(creatable, ["NVIDIA L40S-12Q"]);
}

#[test]
fn a_license_is_told_once_the_guests_driver_is_up() {
    let sim = host("");
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    let vgpu = VgpuInstance::new(21, &device);
    assert!(matches!(vgpu.license_info_v2(), Err(NvmlError::DriverNotLoaded)));
    assert_eq!(vgpu.driver_version().unwrap(), "Not Available");
    sim.pass(10 * SECOND);
    let license = vgpu.license_info_v2().unwrap();
    assert_eq!((license.is_licensed, license.state), (false, VgpuLicenseState::UnlicensedUnrestricted));
    assert_eq!(vgpu.driver_version().unwrap(), "580.95.05");
    sim.pass(10 * SECOND);
    let license = vgpu.license_info_v2().unwrap();
    assert_eq!((license.is_licensed, license.state), (true, VgpuLicenseState::Licensed));
    let expiry = license.expiry;
    assert_eq!((expiry.year, expiry.month, expiry.day, expiry.hour), (2026, 6, 2, 0));
}

#[test]
fn a_list_of_vgpus_that_shrinks_ends_in_vgpus_of_id_nothing() {
    let sim = host("list_shrinks = [{ symbol = \"nvmlDeviceGetActiveVgpus\", by = 2 }]");
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    let active = device.active_vgpus().unwrap();
    assert_eq!(active.len(), 3, "the wrapper does not cut what it was not given");
    assert_eq!(active[0].uuid().unwrap(), "vgpu-a");
    assert!(matches!(active[1].uuid(), Err(NvmlError::InvalidArg)));
    assert_eq!(active_vgpus(&nvml, &device), [21]);
}

#[test]
fn a_list_of_vgpus_that_grows_wants_a_retry() {
    let sim = host("list_grows = [{ symbol = \"nvmlDeviceGetActiveVgpus\", by = 1, until = \"1h\" }]");
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    assert!(matches!(device.active_vgpus(), Err(NvmlError::InsufficientSize(_))));
    sim.pass(HOUR);
    assert_eq!(names(&device), ["vgpu-a", "vgpu-b", "vgpu-c"]);
    sim.pass(HOUR);
    assert_eq!(names(&device), ["vgpu-a", "vgpu-c"]);
}

#[test]
fn the_wrapper_asks_for_placements_without_a_version() {
    let sim = host("");
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    let error = VgpuInstance::new(21, &device).placement_id().unwrap_err();
    assert!(matches!(error, NvmlError::UnexpectedVariant(25)), "{error:?}");
}

#[test]
fn a_vgpu_has_another_id_when_the_driver_is_loaded_anew() {
    let sim = host("reloads = [\"1h\"]");
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    let before = VgpuInstance::new(21, &device);
    assert_eq!(before.uuid().unwrap(), "vgpu-a");
    sim.pass(HOUR);
    assert!(matches!(before.uuid(), Err(NvmlError::InvalidArg)));
    assert_eq!(active_vgpus(&nvml, &device), [65_557, 65_558, 65_559]);
    assert_eq!(names(&device), ["vgpu-a", "vgpu-b", "vgpu-c"]);
}

#[test]
fn each_vgpu_has_a_sample_of_each_period_also_an_idle_one() {
    let sim = host("");
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    assert_eq!(vgpu_samples(&nvml, &device, 0), Err(6));
    sim.pass(4 * SECOND);
    let stamp = |second: i64| u64::try_from(sim.now() + (second - 4) * SECOND).unwrap();
    let told = vgpu_samples(&nvml, &device, stamp(2)).unwrap();
    let expected = [(21, 3, 0), (22, 3, 0), (23, 3, 0), (21, 4, 60), (22, 4, 0), (23, 4, 0)];
    assert_eq!(told, expected.map(|(id, second, sm)| (id, stamp(second), sm)));
}

#[test]
fn the_scheduler_changes_over_time() {
    let sim = host("");
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    assert_eq!(device.vgpu_scheduler_state().unwrap().scheduler_policy, 1);
    sim.pass(HOUR);
    assert_eq!(device.vgpu_scheduler_state().unwrap().scheduler_policy, 3);
}

#[test]
fn a_board_that_is_no_host_knows_no_vgpus() {
    let sim = Sim::new(&one_board("type = \"L40S\""), START);
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    assert!(matches!(device.active_vgpus(), Err(NvmlError::NotSupported)));
    assert!(matches!(device.vgpu_host_mode(), Err(NvmlError::NotSupported)));
}

#[test]
fn a_fault_can_be_of_one_vgpu() {
    let sim = host("fault = [{ symbol = \"nvmlVgpuInstanceGetVmID\", vgpu = 22, code = 999 }]");
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    assert!(VgpuInstance::new(21, &device).vm_id().is_ok());
    assert!(matches!(VgpuInstance::new(22, &device).vm_id(), Err(NvmlError::Unknown)));
    assert_eq!(VgpuInstance::new(22, &device).uuid().unwrap(), "vgpu-b");
}
