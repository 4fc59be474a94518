//! vGPU types: what a board can be shared as, and what it takes.

use std::os::raw::{c_char, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::nvmlDevice_t;

use super::{NONE, Sizing, exports, number, put, put_list, put_sized_text, put_text};
use crate::boards::{self, VgpuType};
use crate::scenario::{Board, HostVgpuMode, Virtualization};
use crate::state::{Answer, Call, Code, MIB};

/// Capabilities of a device are numbered to here.
const CAPABILITIES: u32 = 12;
const DRIVER_CAPABILITIES: u32 = 2;
/// Frames a second of the types for desktops, and of all others.
const DESKTOP_FRAMES: u32 = 45;
const FRAMES: u32 = 60;
/// How many vGPUs of a type one VM may have, where it may have several.
const PER_VM: u32 = 16;

/// The board of a handle, if vGPUs are made on it.
pub(super) fn host<'a>(call: &Call<'a>, device: nvmlDevice_t) -> Answer<&'a Board> {
    let board = call.board(number(device))?;
    if board.virtualization == Virtualization::Host { Ok(board) } else { Err(Code::NOT_SUPPORTED) }
}

fn kind(id: u32) -> Answer<&'static VgpuType> {
    boards::vgpu_type_by_id(id).ok_or(Code::INVALID_ARGUMENT)
}

/// The letter that says what a type is for.
fn series(kind: &VgpuType) -> char {
    let name = kind.r#type.trim_end_matches("ME").trim_end_matches(|letter: char| letter.is_ascii_digit());
    name.chars().last().unwrap_or('Q')
}

fn class(kind: &VgpuType) -> &'static str {
    match series(kind) {
        'C' => "Compute",
        'Q' => "Quadro",
        _ => "NVS",
    }
}

pub(super) fn frames(kind: &VgpuType) -> u32 {
    if series(kind) == 'B' { DESKTOP_FRAMES } else { FRAMES }
}

/// The driver's number of the profile that a type needs, which its board's profiles tell.
fn profile_id(kind: &VgpuType, boards: &[Board]) -> u32 {
    let Some(name) = kind.gi_profile.as_deref() else {
        return NONE;
    };
    let found = boards.iter().find_map(|board| boards::profile(&board.r#type, name));
    found.and_then(|profile| profile.id).unwrap_or(NONE)
}

exports! {
    fn nvmlGetVgpuDriverCapabilities(call, capability: c_uint, result: *mut c_uint) {
        if capability >= DRIVER_CAPABILITIES {
            return Err(Code::INVALID_ARGUMENT);
        }
        put(result, u32::from(call.scenario.vgpu_driver_capabilities.contains(&capability)))
    }

    fn nvmlDeviceGetHostVgpuMode(call, device: nvmlDevice_t, mode: *mut c_uint) {
        let board = host(call, device)?;
        put(mode, match board.host_vgpu_mode.ok_or(Code::NOT_SUPPORTED)? {
            HostVgpuMode::NonSriov => 0,
            HostVgpuMode::Sriov => 1,
        })
    }

    fn nvmlDeviceGetVgpuCapabilities(call, device: nvmlDevice_t, capability: c_uint, result: *mut c_uint) {
        let board = host(call, device)?;
        if capability >= CAPABILITIES {
            return Err(Code::INVALID_ARGUMENT);
        }
        put(result, u32::from(board.vgpu_capabilities.contains(&capability)))
    }

    fn nvmlDeviceGetSupportedVgpus(call, device: nvmlDevice_t, count: *mut c_uint, ids: *mut c_uint) {
        let board = host(call, device)?;
        let types = board.vgpu_types.iter().filter_map(|name| boards::vgpu_type(name));
        let known: Vec<u32> = types.map(|kind| kind.id).collect();
        put_list(call, ids, count, &known, Sizing::TooShort)
    }

    fn nvmlDeviceGetCreatableVgpus(call, device: nvmlDevice_t, count: *mut c_uint, ids: *mut c_uint) {
        let board = host(call, device)?;
        let known: Vec<u32> = call.creatable(board).into_iter().map(|kind| kind.id).collect();
        put_list(call, ids, count, &known, Sizing::TooShort)
    }

    fn nvmlVgpuTypeGetName(_call, id: c_uint, name: *mut c_char, size: *mut c_uint) {
        put_sized_text(name, size, &format!("NVIDIA {}", kind(id)?.r#type))
    }

    fn nvmlVgpuTypeGetClass(_call, id: c_uint, name: *mut c_char, size: *mut c_uint) {
        put_sized_text(name, size, class(kind(id)?))
    }

    fn nvmlVgpuTypeGetLicense(_call, id: c_uint, text: *mut c_char, size: c_uint) {
        put_text(text, size, &kind(id)?.license)
    }

    fn nvmlVgpuTypeGetFramebufferSize(_call, id: c_uint, bytes: *mut c_ulonglong) {
        put(bytes, kind(id)?.framebuffer_mib * MIB)
    }

    fn nvmlVgpuTypeGetMaxInstances(call, device: nvmlDevice_t, id: c_uint, count: *mut c_uint) {
        host(call, device)?;
        put(count, kind(id)?.max.ok_or(Code::NOT_SUPPORTED)?)
    }

    fn nvmlVgpuTypeGetMaxInstancesPerVm(_call, id: c_uint, count: *mut c_uint) {
        put(count, if matches!(series(kind(id)?), 'A' | 'B') { 1 } else { PER_VM })
    }

    fn nvmlVgpuTypeGetGpuInstanceProfileId(call, id: c_uint, profile: *mut c_uint) {
        put(profile, profile_id(kind(id)?, &call.scenario.board))
    }

    fn nvmlVgpuTypeGetFrameRateLimit(_call, id: c_uint, limit: *mut c_uint) {
        put(limit, frames(kind(id)?))
    }
}
