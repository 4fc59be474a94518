//! Calls that the wrapper does not make, or makes so that no strict library answers them.
#![allow(unsafe_code, reason = "what the wrapper does not wrap is a C function")]

use std::ptr::null_mut;

use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings as c;

use super::{SECOND, START, one_board};
use crate::support::nvml::Sim;

const INSUFFICIENT_SIZE: u32 = 7;
const VERSION_MISMATCH: u32 = 25;

fn word<T>(version: u32) -> u32 {
    u32::try_from(size_of::<T>()).unwrap() | (version << 24)
}

fn handle(device: &Device<'_>) -> c::nvmlDevice_t {
    // SAFETY: the handle is used while the library is loaded.
    unsafe { device.handle() }
}

/// The ids of a MIG device, which the wrapper does not tell.
pub(super) fn instance_ids(nvml: &Nvml, device: &Device<'_>) -> (u32, u32) {
    let (mut gi, mut ci) = (0, 0);
    // SAFETY: both functions write one number.
    unsafe {
        assert_eq!(nvml.lib().nvmlDeviceGetGpuInstanceId(handle(device), &raw mut gi), 0);
        assert_eq!(nvml.lib().nvmlDeviceGetComputeInstanceId(handle(device), &raw mut ci), 0);
    }
    (gi, ci)
}

/// The ids of the running vGPUs, which the wrapper keeps to itself.
pub(super) fn active_vgpus(nvml: &Nvml, device: &Device<'_>) -> Vec<u32> {
    let mut ids = vec![0; 32];
    let mut count = 32;
    // SAFETY: the buffer has as many places as `count` says.
    let code =
        unsafe { nvml.lib().nvmlDeviceGetActiveVgpus(handle(device), &raw mut count, ids.as_mut_ptr()) };
    assert_eq!(code, 0);
    ids.truncate(usize::try_from(count).unwrap());
    ids
}

/// Samples of vGPUs: id, stamp and percent of SMs.
pub(super) fn vgpu_samples(nvml: &Nvml, device: &Device<'_>, seen: u64) -> Result<Vec<(u32, u64, u32)>, u32> {
    let (mut kind, mut count) = (0, 0);
    // SAFETY: without a buffer only the numbers are written; the second call has a buffer of as many as it
    // says.
    unsafe {
        let lib = nvml.lib();
        let code =
            lib.nvmlDeviceGetVgpuUtilization(handle(device), seen, &raw mut kind, &raw mut count, null_mut());
        if code != INSUFFICIENT_SIZE {
            return Err(code);
        }
        let mut samples: Vec<c::nvmlVgpuInstanceUtilizationSample_t> =
            vec![std::mem::zeroed(); usize::try_from(count).unwrap()];
        let to = samples.as_mut_ptr();
        let code = lib.nvmlDeviceGetVgpuUtilization(handle(device), seen, &raw mut kind, &raw mut count, to);
        assert_eq!(code, 0);
        assert_eq!(kind, c::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT);
        Ok(samples.iter().map(|one| (one.vgpuInstance, one.timeStamp, one.smUtil.uiVal)).collect())
    }
}

#[test]
fn placements_of_a_profile_are_told_to_who_asks_as_c_does() {
    let sim = Sim::new(&one_board("type = \"H100-80GB\"\nmig = true"), START);
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    let mut placements = [c::nvmlGpuInstancePlacement_t { start: 0, size: 0 }; 8];
    let mut count = 8;
    // SAFETY: the buffer has eight places.
    let code = unsafe {
        nvml.lib().nvmlDeviceGetGpuInstancePossiblePlacements_v2(
            handle(&device),
            9,
            placements.as_mut_ptr(),
            &raw mut count,
        )
    };
    assert_eq!(code, 0);
    let told: Vec<(u32, u32)> = placements.iter().take(2).map(|one| (one.start, one.size)).collect();
    assert_eq!((count, told), (2, vec![(0, 4), (4, 4)]));
}

#[test]
fn instances_and_what_else_fits_are_told_to_the_privileged() {
    let scenario = "type = \"A100-40GB\"\nmig = true\ninstance = [\
        { gi = 2, profile = \"3g.20gb\", start = 4, compute = [{ uuid = \"MIG-a\", slot = 0, ci = 1 }] }]";
    let sim =
        Sim::new(&format!("privileged = [[\"0s\", true], [\"1h\", false]]\n{}", one_board(scenario)), START);
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    let lib = nvml.lib();
    let mut instance = null_mut();
    let mut compute = null_mut();
    // SAFETY: structures of numbers and handles may be zero.
    let (mut info, mut of_compute): (c::nvmlGpuInstanceInfo_t, c::nvmlComputeInstanceInfo_t) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    let mut count = 0;
    // SAFETY: each call writes one value to where its pointer is.
    unsafe {
        assert_eq!(lib.nvmlDeviceGetGpuInstanceById(handle(&device), 2, &raw mut instance), 0);
        assert_eq!(lib.nvmlGpuInstanceGetInfo(instance, &raw mut info), 0);
        assert_eq!(lib.nvmlGpuInstanceGetComputeInstanceById(instance, 1, &raw mut compute), 0);
        assert_eq!(lib.nvmlComputeInstanceGetInfo_v2(compute, &raw mut of_compute), 0);
        assert_eq!(lib.nvmlDeviceGetGpuInstanceRemainingCapacity(handle(&device), 19, &raw mut count), 0);
    }
    assert_eq!((info.id, info.profileId), (2, 9));
    assert_eq!((info.placement.start, info.placement.size), (4, 4));
    assert_eq!((of_compute.id, of_compute.profileId, of_compute.placement.size), (1, 2, 3));
    assert_eq!(count, 4, "seven slices less three, in four slots");
    sim.pass(3_600 * SECOND);
    // SAFETY: as above.
    let code = unsafe { lib.nvmlDeviceGetGpuInstanceById(handle(&device), 2, &raw mut instance) };
    assert_eq!(code, 4);
}

#[test]
fn a_version_word_that_is_not_the_structures_is_refused() {
    let sim = Sim::new(&one_board("type = \"L4\"\nprocess = [{ pid = 1, percent = { sm = 50 } }]"), START);
    sim.pass(3 * SECOND);
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    type Info = c::nvmlProcessesUtilizationInfo_v1_t;
    let ask = |version| {
        let mut info =
            Info { version, processSamplesCount: 0, lastSeenTimeStamp: 0, procUtilArray: null_mut() };
        // SAFETY: without a buffer, only the structure is written.
        let code =
            unsafe { nvml.lib().nvmlDeviceGetProcessesUtilizationInfo(handle(&device), &raw mut info) };
        (code, info.processSamplesCount)
    };
    assert_eq!(word::<Info>(1), 0x0100_0018);
    assert_eq!(ask(word::<Info>(1)), (INSUFFICIENT_SIZE, 3));
    for version in [0, 1, word::<Info>(2)] {
        assert_eq!(ask(version).0, VERSION_MISMATCH, "{version:#x}");
    }
}

#[test]
fn a_buffer_that_is_too_short_is_refused_and_left_alone() {
    let sim = Sim::new(&one_board("type = \"L4\""), START);
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    let mut buffer = [1; 8];
    // SAFETY: the lengths are at most the buffer's.
    unsafe {
        let lib = nvml.lib();
        assert_eq!(lib.nvmlDeviceGetUUID(handle(&device), buffer.as_mut_ptr(), 5), INSUFFICIENT_SIZE);
        assert_eq!(buffer, [1; 8]);
        assert_eq!(lib.nvmlDeviceGetUUID(handle(&device), buffer.as_mut_ptr(), 6), 0);
        assert_eq!(buffer.map(c_byte), *b"GPU-1\0\x01\x01");
    }
}

#[expect(clippy::cast_sign_loss, reason = "a letter is a byte, whatever C calls it")]
fn c_byte(letter: std::os::raw::c_char) -> u8 {
    letter as u8
}

#[test]
fn a_handle_that_nobody_gave_out_is_refused() {
    let sim = Sim::new(&one_board("type = \"L4\""), START);
    let nvml = sim.load().unwrap();
    let mut index = 0;
    for invented in [0_usize, 8, 0x10_0001, 0x10_0040] {
        // SAFETY: the library looks handles up and follows none.
        let code = unsafe {
            nvml.lib().nvmlDeviceGetIndex(std::ptr::without_provenance_mut(invented), &raw mut index)
        };
        assert_eq!(code, 2, "{invented:#x}");
    }
}

#[test]
fn field_values_are_numbered_by_the_drivers_age() {
    // 251 is a clock event for old drivers, and power smoothing (the older 256) for new ones.
    for (driver, expected) in [("580.65.06", 11), ("580.82.07", 22), ("595.10", 22)] {
        let board = one_board("type = \"L4\"\nfield = [{ id = 251, value = 11 }, { id = 256, value = 22 }]");
        let sim = Sim::new(&format!("driver = \"{driver}\"\n{board}"), START);
        let nvml = sim.load().unwrap();
        let device = nvml.device_by_index(0).unwrap();
        // SAFETY: the structure is of numbers; one value is asked for.
        let value = unsafe {
            let mut asked: c::nvmlFieldValue_t = std::mem::zeroed();
            asked.fieldId = 251;
            assert_eq!(nvml.lib().nvmlDeviceGetFieldValues(handle(&device), 1, &raw mut asked), 0);
            asked.value.ullVal
        };
        assert_eq!(value, expected, "{driver}");
    }
}
