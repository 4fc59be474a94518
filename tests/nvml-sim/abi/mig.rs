//! MIG: the mode, the instances, and what else would fit.

use std::os::raw::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t,
    nvmlComputeInstanceProfileInfo_t, nvmlDevice_t, nvmlDeviceAttributes_t, nvmlGpuInstance_t,
    nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_t,
    nvmlGpuInstanceProfileInfo_v2_t, nvmlGpuInstanceProfileInfo_v3_st,
};

use super::{Sizing, array, check_version, exports, handle, number, put, put_list, size, take};
use crate::boards::{self, Profile};
use crate::scenario::Board;
use crate::state::{Answer, Call, Code, Device, Instance, MigDevice};

/// As many places as the enumeration of GPU instance profiles has.
const PROFILES: u32 = 17;
/// Compute instance profiles by their place in the enumeration: how many slices they have.
const COMPUTE_SLICES: [u32; 7] = [1, 2, 3, 4, 7, 8, 6];

fn is_on(call: &Call<'_>, board: &Board) -> bool {
    board.mig.as_ref().and_then(|steps| steps.at(call.now)).copied().unwrap_or(false)
}

/// The profile at a place of the enumeration.
fn profile(board: &Board, index: u32) -> Answer<&'static Profile> {
    if index >= PROFILES {
        return Err(Code::INVALID_ARGUMENT);
    }
    let mut profiles = boards::profiles(&board.r#type);
    profiles.find(|profile| profile.index == Some(index)).ok_or(Code::NOT_SUPPORTED)
}

fn profile_by_id(board: &Board, id: u32) -> Answer<&'static Profile> {
    boards::profile_by_id(&board.r#type, id).ok_or(Code::INVALID_ARGUMENT)
}

fn known(number: Option<u32>) -> u32 {
    number.unwrap_or(0)
}

fn profile_info(profile: &Profile) -> nvmlGpuInstanceProfileInfo_t {
    nvmlGpuInstanceProfileInfo_t {
        id: known(profile.id),
        isP2pSupported: 0,
        sliceCount: profile.slices,
        instanceCount: profile.max,
        multiprocessorCount: known(profile.sms),
        copyEngineCount: known(profile.copy_engines),
        decoderCount: known(profile.decoders),
        encoderCount: known(profile.encoders),
        jpegCount: known(profile.jpegs),
        ofaCount: known(profile.ofas),
        memorySizeMB: profile.memory_mib(),
    }
}

/// How many instances of a profile could be put beside those that exist.
fn room(call: &Call<'_>, board: &Board, profile: &Profile) -> Answer<u32> {
    let slices = call.kind(board)?.mig_slots.unwrap_or(0);
    let instances = board.instance.iter().filter(|one| one.span().holds(call.now));
    let taken: Vec<&Profile> =
        instances.clone().filter_map(|one| boards::profile(&board.r#type, &one.profile)).collect();
    let used: u32 = taken.iter().map(|other| other.slices).sum();
    let (mut end, mut free) = (0, 0);
    for start in profile.starts.iter().copied() {
        let is_free = instances
            .clone()
            .zip(&taken)
            .all(|(one, other)| start + profile.size <= one.start || one.start + other.size <= start);
        if is_free && start >= end {
            end = start + profile.size;
            free += 1;
        }
    }
    let by_slices = slices.saturating_sub(used) / profile.slices.max(1);
    Ok(by_slices.min(free).min(profile.max))
}

/// The place in the enumeration of a compute instance's profile.
fn compute_profile(slices: u32) -> u32 {
    let place = COMPUTE_SLICES.iter().position(|other| *other == slices);
    super::short(place.unwrap_or(0))
}

fn computes<'a>(call: &Call<'a>, instance: Instance<'a>) -> impl Iterator<Item = MigDevice<'a>> + use<'a> {
    let gi = instance.instance.gi;
    call.mig_devices(instance.board).filter(move |device| device.parent.instance.gi == gi)
}

fn mig(call: &Call<'_>, device: nvmlDevice_t) -> Answer<(u32, u32)> {
    match call.device(number(device))? {
        Device::Board(_) => Err(Code::INVALID_ARGUMENT),
        Device::Mig(device) => Ok((device.parent.instance.gi, device.compute.ci)),
    }
}

exports! {
    fn nvmlDeviceGetMigMode(call, device: nvmlDevice_t, current: *mut c_uint, pending: *mut c_uint) {
        let board = call.mig_board(number(device))?;
        let now = is_on(call, board);
        let next = board.mig_pending.as_ref().and_then(|steps| steps.at(call.now)).copied();
        put(current, u32::from(now))?;
        put(pending, u32::from(next.unwrap_or(now)))
    }

    fn nvmlDeviceGetMaxMigDeviceCount(call, device: nvmlDevice_t, count: *mut c_uint) {
        let board = call.board(number(device))?;
        let slots = call.kind(board)?.mig_slots.filter(|_| is_on(call, board));
        put(count, slots.unwrap_or(0))
    }

    fn nvmlDeviceGetMigDeviceHandleByIndex(
        call, device: nvmlDevice_t, index: c_uint, to: *mut nvmlDevice_t,
    ) {
        let board = call.mig_board(number(device))?;
        if call.kind(board)?.mig_slots.is_none_or(|slots| index >= slots) {
            return Err(Code::INVALID_ARGUMENT);
        }
        let found = call.mig_devices(board).find(|device| device.compute.slot == index);
        let found = call.mig_handle(found.ok_or(Code::NOT_FOUND)?);
        put(to, handle(found))
    }

    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(call, device: nvmlDevice_t, to: *mut nvmlDevice_t) {
        let Device::Mig(device) = call.device(number(device))? else {
            return Err(Code::INVALID_ARGUMENT);
        };
        let parent = call.board_handle(device.parent.board);
        put(to, handle(parent))
    }

    fn nvmlDeviceIsMigDeviceHandle(call, device: nvmlDevice_t, is_mig: *mut c_uint) {
        let device = call.device(number(device))?;
        put(is_mig, u32::from(matches!(device, Device::Mig(_))))
    }

    fn nvmlDeviceGetGpuInstanceId(call, device: nvmlDevice_t, id: *mut c_uint) {
        put(id, mig(call, device)?.0)
    }

    fn nvmlDeviceGetComputeInstanceId(call, device: nvmlDevice_t, id: *mut c_uint) {
        put(id, mig(call, device)?.1)
    }

    fn nvmlDeviceGetAttributes_v2(call, device: nvmlDevice_t, attributes: *mut nvmlDeviceAttributes_t) {
        let Device::Mig(device) = call.device(number(device))? else {
            return Err(Code::INVALID_ARGUMENT);
        };
        let profile = device.parent.profile;
        put(attributes, nvmlDeviceAttributes_t {
            multiprocessorCount: device.sms(),
            sharedCopyEngineCount: known(profile.copy_engines),
            sharedDecoderCount: known(profile.decoders),
            sharedEncoderCount: known(profile.encoders),
            sharedJpegCount: known(profile.jpegs),
            sharedOfaCount: known(profile.ofas),
            gpuInstanceSliceCount: profile.slices,
            computeInstanceSliceCount: device.slices(),
            memorySizeMB: device.parent.memory_mib(),
        })
    }

    fn nvmlDeviceGetGpuInstanceProfileInfo(
        call, device: nvmlDevice_t, index: c_uint, info: *mut nvmlGpuInstanceProfileInfo_t,
    ) {
        let board = call.mig_board(number(device))?;
        put(info, profile_info(profile(board, index)?))
    }

    fn nvmlDeviceGetGpuInstanceProfileInfoV(
        call, device: nvmlDevice_t, index: c_uint, info: *mut nvmlGpuInstanceProfileInfo_v2_t,
    ) {
        let board = call.mig_board(number(device))?;
        // Versions 2 and 3 begin with their word, and are told apart by it.
        let version = take(info.cast::<c_uint>())?;
        let found = profile(board, index)?;
        let old = profile_info(found);
        if check_version::<nvmlGpuInstanceProfileInfo_v3_st>(version, 3).is_ok() {
            return put(info.cast(), nvmlGpuInstanceProfileInfo_v3_st {
                version,
                id: old.id,
                sliceCount: old.sliceCount,
                instanceCount: old.instanceCount,
                multiprocessorCount: old.multiprocessorCount,
                copyEngineCount: old.copyEngineCount,
                decoderCount: old.decoderCount,
                encoderCount: old.encoderCount,
                jpegCount: old.jpegCount,
                ofaCount: old.ofaCount,
                memorySizeMB: old.memorySizeMB,
                name: array(&format!("MIG {}", found.profile)),
                capabilities: 0,
            });
        }
        check_version::<nvmlGpuInstanceProfileInfo_v2_t>(version, 2)?;
        put(info, nvmlGpuInstanceProfileInfo_v2_t {
            version,
            id: old.id,
            isP2pSupported: old.isP2pSupported,
            sliceCount: old.sliceCount,
            instanceCount: old.instanceCount,
            multiprocessorCount: old.multiprocessorCount,
            copyEngineCount: old.copyEngineCount,
            decoderCount: old.decoderCount,
            encoderCount: old.encoderCount,
            jpegCount: old.jpegCount,
            ofaCount: old.ofaCount,
            memorySizeMB: old.memorySizeMB,
            name: array(&format!("MIG {}", found.profile)),
        })
    }

    fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        call,
        device: nvmlDevice_t,
        id: c_uint,
        placements: *mut nvmlGpuInstancePlacement_t,
        count: *mut c_uint,
    ) {
        let board = call.mig_board(number(device))?;
        let profile = profile_by_id(board, id)?;
        let place = |start: &u32| nvmlGpuInstancePlacement_t { start: *start, size: profile.size };
        let possible: Vec<_> = profile.starts.iter().map(place).collect();
        // Where there is no buffer, nobody says how long it is.
        if placements.is_null() {
            return put(count, super::short(possible.len()));
        }
        put_list(call, placements, count, &possible, Sizing::Told)
    }

    fn nvmlDeviceGetGpuInstanceRemainingCapacity(
        call, device: nvmlDevice_t, id: c_uint, count: *mut c_uint,
    ) {
        let board = call.mig_board(number(device))?;
        call.check_privilege()?;
        if !is_on(call, board) {
            return Err(Code::NOT_SUPPORTED);
        }
        put(count, room(call, board, profile_by_id(board, id)?)?)
    }

    fn nvmlDeviceGetGpuInstances(
        call, device: nvmlDevice_t, id: c_uint, instances: *mut nvmlGpuInstance_t, count: *mut c_uint,
    ) {
        let board = call.mig_board(number(device))?;
        call.check_privilege()?;
        if !is_on(call, board) {
            return Err(Code::NOT_SUPPORTED);
        }
        profile_by_id(board, id)?;
        // The caller's buffer holds as many as the profile allows; only how many there are is told.
        let of_profile: Vec<_> = call.instances(board).filter(|one| one.profile.id == Some(id)).collect();
        for (place, one) in of_profile.iter().enumerate() {
            let found = call.instance_handle(*one);
            if instances.is_null() {
                return Err(Code::INVALID_ARGUMENT);
            }
            put(instances.wrapping_add(place), handle(found))?;
        }
        put(count, super::short(of_profile.len()))
    }

    fn nvmlDeviceGetGpuInstanceById(
        call, device: nvmlDevice_t, id: c_uint, instance: *mut nvmlGpuInstance_t,
    ) {
        let board = call.mig_board(number(device))?;
        call.check_privilege()?;
        let found = call.instances(board).find(|one| one.instance.gi == id).ok_or(Code::NOT_FOUND)?;
        let found = call.instance_handle(found);
        put(instance, handle(found))
    }

    fn nvmlGpuInstanceGetInfo(call, instance: nvmlGpuInstance_t, info: *mut nvmlGpuInstanceInfo_t) {
        let one = call.instance(number(instance))?;
        let device = handle(call.board_handle(one.board));
        let placement = nvmlGpuInstancePlacement_t { start: one.instance.start, size: one.profile.size };
        put(info, nvmlGpuInstanceInfo_t {
            device,
            id: one.instance.gi,
            profileId: known(one.profile.id),
            placement,
        })
    }

    fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
        call,
        instance: nvmlGpuInstance_t,
        profile: c_uint,
        engines: c_uint,
        info: *mut nvmlComputeInstanceProfileInfo_t,
    ) {
        let one = call.instance(number(instance))?;
        let slices = COMPUTE_SLICES.get(size(profile)).copied().ok_or(Code::INVALID_ARGUMENT)?;
        if engines != 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        if slices > one.profile.slices {
            return Err(Code::NOT_SUPPORTED);
        }
        put(info, nvmlComputeInstanceProfileInfo_t {
            id: profile,
            sliceCount: slices,
            instanceCount: one.profile.slices / slices,
            multiprocessorCount: one.sms() * slices / one.profile.slices.max(1),
            sharedCopyEngineCount: known(one.profile.copy_engines),
            sharedDecoderCount: known(one.profile.decoders),
            sharedEncoderCount: known(one.profile.encoders),
            sharedJpegCount: known(one.profile.jpegs),
            sharedOfaCount: known(one.profile.ofas),
        })
    }

    fn nvmlGpuInstanceGetComputeInstances(
        call,
        instance: nvmlGpuInstance_t,
        profile: c_uint,
        to: *mut nvmlComputeInstance_t,
        count: *mut c_uint,
    ) {
        call.check_privilege()?;
        let one = call.instance(number(instance))?;
        let of_profile: Vec<_> =
            computes(call, one).filter(|device| compute_profile(device.slices()) == profile).collect();
        for (place, device) in of_profile.iter().enumerate() {
            if to.is_null() {
                return Err(Code::INVALID_ARGUMENT);
            }
            let found = call.compute_handle(*device);
            put(to.wrapping_add(place), handle(found))?;
        }
        put(count, super::short(of_profile.len()))
    }

    fn nvmlGpuInstanceGetComputeInstanceById(
        call, instance: nvmlGpuInstance_t, id: c_uint, to: *mut nvmlComputeInstance_t,
    ) {
        call.check_privilege()?;
        let one = call.instance(number(instance))?;
        let found = computes(call, one).find(|device| device.compute.ci == id).ok_or(Code::NOT_FOUND)?;
        let found = call.compute_handle(found);
        put(to, handle(found))
    }

    fn nvmlComputeInstanceGetInfo_v2(
        call, instance: nvmlComputeInstance_t, info: *mut nvmlComputeInstanceInfo_t,
    ) {
        let one = call.compute(number(instance))?;
        let device = handle(call.board_handle(one.parent.board));
        let parent = handle(call.instance_handle(one.parent));
        let placement = nvmlComputeInstancePlacement_t { start: one.compute.start, size: one.slices() };
        put(info, nvmlComputeInstanceInfo_t {
            device,
            gpuInstance: parent,
            id: one.compute.ci,
            profileId: compute_profile(one.slices()),
            placement,
        })
    }
}
