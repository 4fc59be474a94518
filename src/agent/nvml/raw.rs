//! The calls that nvml-wrapper does not make, or makes so that no strict library answers them, and what
//! outlives the wrapper's borrows: GPM samples and event sets.
//!
//! The only file of the program with unsafe code. Always true here: a function that the library does not
//! have is an error and no panic; a list is cut to the count that came with it; a handle that is kept keeps
//! its library loaded.
#![allow(unsafe_code, reason = "functions of a C library read and write through pointers")]

use std::os::raw::c_uint;
use std::ptr::null_mut;
use std::sync::Arc;

use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::gpm::GpmSample;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings as c;

/// How often a list that grew while it was read is read anew.
const TRIES: u32 = 4;
/// Room beside what was announced, for what comes between two calls.
const HEADROOM: usize = 8;
/// More profiles than any board has: the enumeration ends before.
const PROFILES_MAX: u32 = 64;
/// The event of a critical error.
pub const XID: u64 = 0x8;
/// The event of instances that were made or unmade.
pub const MIG_CHANGE: u64 = 0x100;

/// Where an instance lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// The first memory slot.
    pub start: u32,
    /// How many.
    pub size: u32,
}

/// A GPU instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuInstance {
    /// Its id on the board.
    pub id: u32,
    /// The driver's number of its profile.
    pub profile: u32,
    /// Where it lies.
    pub placement: Placement,
}

/// How a board's time is divided among vGPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scheduling {
    /// NVML's number of the policy: 1 best effort, 2 equal share, 3 fixed share.
    pub policy: u32,
    /// How long a turn is, in nanoseconds; 0: the driver's default.
    pub timeslice_nanos: u32,
    /// Turns that adaptive round robin averages over; none: it is off.
    pub average_factor: Option<u32>,
}

/// What somebody used in one period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// A pid, or the id of a vGPU.
    pub whose: u32,
    /// When the period ended, by the driver's clock, in microseconds.
    pub stamp: u64,
    /// Percent of SM time.
    pub percent: u32,
}

/// Something that happened to a board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// [`XID`] or [`MIG_CHANGE`].
    pub kind: u64,
    /// The Xid.
    pub data: u64,
}

fn handle(device: &Device<'_>) -> c::nvmlDevice_t {
    // SAFETY: the handle is used while the device, and with it the library, is borrowed.
    unsafe { device.handle() }
}

/// What tells a device from others as long as the library is loaded.
#[must_use]
pub fn address(device: &Device<'_>) -> usize {
    handle(device).addr()
}

/// The version word of a structure: its size, and the version in the highest byte.
fn word<T>(version: u32) -> c_uint {
    c_uint::try_from(size_of::<T>()).unwrap_or_default() | (version << 24)
}

/// Calls that want one place to write to.
fn one<T: Default>(ask: impl FnOnce(*mut T) -> c::nvmlReturn_t) -> Result<T, NvmlError> {
    let mut value = T::default();
    nvml_try(ask(&raw mut value))?;
    Ok(value)
}

/// Reads a list by NVML's protocol: how long it is, then all of it, and again where it grew meanwhile. `ask`
/// is given a buffer, or none, and the count to read and write.
fn list<T: Copy>(
    empty: T,
    mut ask: impl FnMut(*mut T, *mut c_uint) -> c::nvmlReturn_t,
) -> Result<Vec<T>, NvmlError> {
    let mut told: c_uint = 0;
    match NvmlError::from(ask(null_mut(), &raw mut told)) {
        // Code 0 has no variant of its own.
        NvmlError::UnexpectedVariant(0) | NvmlError::InsufficientSize(_) => {}
        error => return Err(error),
    }
    for _ in 0..TRIES {
        if told == 0 {
            return Ok(Vec::new());
        }
        let room = usize::try_from(told).unwrap_or_default().saturating_add(HEADROOM);
        let mut all = vec![empty; room];
        let mut count = c_uint::try_from(room).unwrap_or(c_uint::MAX);
        match nvml_try(ask(all.as_mut_ptr(), &raw mut count)) {
            Ok(()) => {
                all.truncate(usize::try_from(count).unwrap_or_default());
                return Ok(all);
            }
            Err(NvmlError::InsufficientSize(_)) => told = count.max(told.saturating_mul(2)),
            Err(error) => return Err(error),
        }
    }
    Err(NvmlError::InsufficientSize(None))
}

/// The ids of a MIG device: of its GPU instance and of its compute instance.
///
/// # Errors
/// NVML's; no permission and no support among them.
pub fn instance_ids(nvml: &Nvml, device: &Device<'_>) -> Result<(u32, u32), NvmlError> {
    let of_gpu = nvml_sym(nvml.lib().nvmlDeviceGetGpuInstanceId.as_ref())?;
    let of_compute = nvml_sym(nvml.lib().nvmlDeviceGetComputeInstanceId.as_ref())?;
    // SAFETY: each writes one number to where its pointer is.
    let gi = one(|to| unsafe { of_gpu(handle(device), to) })?;
    // SAFETY: as above.
    let ci = one(|to| unsafe { of_compute(handle(device), to) })?;
    Ok((gi, ci))
}

/// Where instances of a profile, by the driver's number, can lie at all. The wrapper's own call finds none,
/// ever.
///
/// # Errors
/// NVML's.
pub fn possible_placements(
    nvml: &Nvml,
    device: &Device<'_>,
    profile: u32,
) -> Result<Vec<Placement>, NvmlError> {
    let ask = nvml_sym(nvml.lib().nvmlDeviceGetGpuInstancePossiblePlacements_v2.as_ref())?;
    let empty = c::nvmlGpuInstancePlacement_t { start: 0, size: 0 };
    // SAFETY: the buffer has as many places as the count says, or is none.
    let all = list(empty, |to, count| unsafe { ask(handle(device), profile, to, count) })?;
    Ok(all.into_iter().map(placement).collect())
}

const fn placement(of: c::nvmlGpuInstancePlacement_t) -> Placement {
    Placement { start: of.start, size: of.size }
}

/// A GPU instance by its id: its profile and where it lies. For the privileged.
///
/// # Errors
/// NVML's; `NotFound` where there is none of the id.
pub fn gpu_instance(nvml: &Nvml, device: &Device<'_>, id: u32) -> Result<GpuInstance, NvmlError> {
    let find = nvml_sym(nvml.lib().nvmlDeviceGetGpuInstanceById.as_ref())?;
    let mut found: c::nvmlGpuInstance_t = null_mut();
    // SAFETY: it writes one handle.
    nvml_try(unsafe { find(handle(device), id, &raw mut found) })?;
    about(nvml, found)
}

fn about(nvml: &Nvml, instance: c::nvmlGpuInstance_t) -> Result<GpuInstance, NvmlError> {
    let ask = nvml_sym(nvml.lib().nvmlGpuInstanceGetInfo.as_ref())?;
    let nowhere = c::nvmlGpuInstancePlacement_t { start: 0, size: 0 };
    let mut info = c::nvmlGpuInstanceInfo_t { device: null_mut(), id: 0, profileId: 0, placement: nowhere };
    // SAFETY: the handle was given out by this library, and one structure is written.
    nvml_try(unsafe { ask(instance, &raw mut info) })?;
    Ok(GpuInstance { id: info.id, profile: info.profileId, placement: placement(info.placement) })
}

/// A profile of GPU instances that a board has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// The driver's number.
    pub id: u32,
    /// As the driver names it, without `MIG `.
    pub name: String,
    /// How many instances of it a board has at most.
    pub instances: u32,
}

/// The profiles of GPU instances that a board has.
///
/// # Errors
/// NVML's, where none can be read.
pub fn profiles(nvml: &Nvml, device: &Device<'_>) -> Result<Vec<Profile>, NvmlError> {
    type Info = c::nvmlGpuInstanceProfileInfo_v2_t;
    let ask = nvml_sym(nvml.lib().nvmlDeviceGetGpuInstanceProfileInfoV.as_ref())?;
    let mut all = Vec::new();
    for index in 0..PROFILES_MAX {
        // SAFETY: the structure is of numbers and letters, which may all be zero.
        let mut info: Info = unsafe { std::mem::zeroed() };
        info.version = word::<Info>(2);
        // SAFETY: one structure of the version that it says is written.
        match nvml_try(unsafe { ask(handle(device), index, &raw mut info) }) {
            Ok(()) => {
                let bytes: Vec<u8> = info
                    .name
                    .iter()
                    .map(|letter| letter.to_ne_bytes()[0])
                    .take_while(|byte| *byte != 0)
                    .collect();
                let name = String::from_utf8_lossy(&bytes);
                let name = name.strip_prefix("MIG ").unwrap_or(&name).to_owned();
                all.push(Profile { id: info.id, name, instances: info.instanceCount });
            }
            // A gap in the enumeration.
            Err(NvmlError::NotSupported) => {}
            Err(NvmlError::InvalidArg) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// The GPU instances of a profile that exist. For the privileged.
///
/// # Errors
/// NVML's.
pub fn gpu_instances(
    nvml: &Nvml,
    device: &Device<'_>,
    profile: &Profile,
) -> Result<Vec<GpuInstance>, NvmlError> {
    let ask = nvml_sym(nvml.lib().nvmlDeviceGetGpuInstances.as_ref())?;
    // The library writes as many as there are, which are no more than the profile allows.
    let room = usize::try_from(profile.instances).unwrap_or_default().saturating_add(HEADROOM);
    let mut found: Vec<c::nvmlGpuInstance_t> = vec![null_mut(); room];
    let mut count = c_uint::try_from(room).unwrap_or(c_uint::MAX);
    // SAFETY: the buffer has more places than the profile has instances at most.
    nvml_try(unsafe { ask(handle(device), profile.id, found.as_mut_ptr(), &raw mut count) })?;
    found.truncate(usize::try_from(count).unwrap_or_default());
    found.into_iter().map(|instance| about(nvml, instance)).collect()
}

/// The ids of the vGPUs that run on a board, each once. The wrapper's list ends in ids of nothing where it
/// shrank.
///
/// # Errors
/// NVML's.
pub fn active_vgpus(nvml: &Nvml, device: &Device<'_>) -> Result<Vec<u32>, NvmlError> {
    let ask = nvml_sym(nvml.lib().nvmlDeviceGetActiveVgpus.as_ref())?;
    // SAFETY: the buffer has as many places as the count says, or is none.
    let mut ids = list(0, |to, count| unsafe { ask(handle(device), count, to) })?;
    ids.retain(|id| *id != 0);
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// What vGPUs used since an instant of the driver's clock.
///
/// # Errors
/// NVML's; `NotFound` where there is nothing new.
pub fn vgpu_samples(nvml: &Nvml, device: &Device<'_>, seen: u64) -> Result<Vec<Sample>, NvmlError> {
    type Told = c::nvmlVgpuInstanceUtilizationSample_t;
    let ask = nvml_sym(nvml.lib().nvmlDeviceGetVgpuUtilization.as_ref())?;
    let mut kind: c::nvmlValueType_t = 0;
    // SAFETY: the structure is of numbers and unions of numbers, which may all be zero.
    let empty: Told = unsafe { std::mem::zeroed() };
    // SAFETY: the buffer has as many places as the count says, or is none.
    let all = list(empty, |to, count| unsafe { ask(handle(device), seen, &raw mut kind, count, to) })?;
    let sample = |one: &Told| {
        // SAFETY: which part of the union was written, the library says beside it; all bits are good in each.
        let percent = unsafe {
            match kind {
                c::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT => one.smUtil.uiVal,
                c::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG
                | c::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG => {
                    u32::try_from(one.smUtil.ullVal).ok()?
                }
                _ => return None,
            }
        };
        Some(Sample { whose: one.vgpuInstance, stamp: one.timeStamp, percent })
    };
    Ok(all.iter().filter_map(sample).collect())
}

/// How a board's time is divided among vGPUs, with its parameters, which the wrapper leaves in a union.
///
/// # Errors
/// NVML's.
pub fn scheduling(nvml: &Nvml, device: &Device<'_>) -> Result<Scheduling, NvmlError> {
    let ask = nvml_sym(nvml.lib().nvmlDeviceGetVgpuSchedulerState.as_ref())?;
    // SAFETY: the structure is of numbers and unions of numbers, which may all be zero.
    let mut state: c::nvmlVgpuSchedulerGetState_t = unsafe { std::mem::zeroed() };
    // SAFETY: one structure is written.
    nvml_try(unsafe { ask(handle(device), &raw mut state) })?;
    let is_adaptive = state.arrMode == 2;
    // SAFETY: both parts of the union are of numbers; the mode says which was written.
    let (timeslice_nanos, average_factor) = unsafe {
        if is_adaptive {
            let told = state.schedulerParams.vgpuSchedDataWithARR;
            (told.timeslice, Some(told.avgFactor))
        } else {
            (state.schedulerParams.vgpuSchedData.timeslice, None)
        }
    };
    Ok(Scheduling { policy: state.schedulerPolicy, timeslice_nanos, average_factor })
}

/// Where in the framebuffer a vGPU lies. The wrapper asks without a version, which strict libraries refuse.
///
/// # Errors
/// NVML's.
pub fn placement_id(nvml: &Nvml, vgpu: u32) -> Result<u32, NvmlError> {
    type Told = c::nvmlVgpuPlacementId_t;
    let ask = nvml_sym(nvml.lib().nvmlVgpuInstanceGetPlacementId.as_ref())?;
    let mut told = Told { version: word::<Told>(1), placementId: 0 };
    // SAFETY: one structure of the version that it says is written.
    nvml_try(unsafe { ask(vgpu, &raw mut told) })?;
    Ok(told.placementId)
}

/// A GPM sample that outlives the borrow of its library.
#[derive(Debug)]
pub struct GpmHeld {
    nvml: Arc<Nvml>,
    sample: c::nvmlGpmSample_t,
}

// SAFETY: NVML is thread safe; a sample is used by one thread at a time, since all its methods want it alone
// or are of its one owner. The wrapper says the same of its own.
unsafe impl Send for GpmHeld {}

impl GpmHeld {
    /// Takes a sample over.
    #[must_use]
    pub fn new(nvml: &Arc<Nvml>, sample: GpmSample<'_>) -> Self {
        Self { nvml: Arc::clone(nvml), sample: sample.into_handle() }
    }

    /// Lends both samples to a reader as the wrapper has them.
    pub fn with<T>(&self, later: &Self, read: impl FnOnce(&Nvml, &GpmSample<'_>, &GpmSample<'_>) -> T) -> T {
        // SAFETY: both handles are of this library, and neither is freed here: the lent ones are not dropped.
        let lent =
            |of: &Self| unsafe { std::mem::ManuallyDrop::new(GpmSample::from_handle(&self.nvml, of.sample)) };
        let (earlier, later) = (lent(self), lent(later));
        read(&self.nvml, &earlier, &later)
    }
}

impl Drop for GpmHeld {
    fn drop(&mut self) {
        // SAFETY: the handle was taken over in `new`, and nothing else frees it.
        drop(unsafe { GpmSample::from_handle(&self.nvml, self.sample) });
    }
}

/// A set of events that outlives the borrow of its library. Each board has its own: one that fails takes
/// none with it.
#[derive(Debug)]
pub struct Events {
    nvml: Arc<Nvml>,
    set: c::nvmlEventSet_t,
}

// SAFETY: as for samples.
unsafe impl Send for Events {}

impl Events {
    /// An empty set.
    ///
    /// # Errors
    /// NVML's.
    pub fn new(nvml: &Arc<Nvml>) -> Result<Self, NvmlError> {
        let make = nvml_sym(nvml.lib().nvmlEventSetCreate.as_ref())?;
        let mut set: c::nvmlEventSet_t = null_mut();
        // SAFETY: it writes one handle.
        nvml_try(unsafe { make(&raw mut set) })?;
        Ok(Self { nvml: Arc::clone(nvml), set })
    }

    /// Listens to what a board can tell of [`XID`] and [`MIG_CHANGE`].
    ///
    /// # Errors
    /// NVML's. After `Unknown` the set is in no known state: it has to go.
    pub fn listen(&self, device: &Device<'_>) -> Result<(), NvmlError> {
        let ask = nvml_sym(self.nvml.lib().nvmlDeviceGetSupportedEventTypes.as_ref())?;
        let register = nvml_sym(self.nvml.lib().nvmlDeviceRegisterEvents.as_ref())?;
        // SAFETY: it writes one number.
        let kinds: u64 = one(|to| unsafe { ask(handle(device), to) })?;
        // SAFETY: the set is of this library and not freed.
        nvml_try(unsafe { register(handle(device), kinds & (XID | MIG_CHANGE), self.set) })
    }

    /// The next thing that happened; none: nothing did. It does not wait.
    ///
    /// # Errors
    /// NVML's.
    pub fn next(&self) -> Result<Option<Event>, NvmlError> {
        let wait = nvml_sym(self.nvml.lib().nvmlEventSetWait_v2.as_ref())?;
        let mut data = c::nvmlEventData_t {
            device: null_mut(),
            eventType: 0,
            eventData: 0,
            gpuInstanceId: 0,
            computeInstanceId: 0,
        };
        // SAFETY: the set is of this library and not freed; one structure is written.
        match nvml_try(unsafe { wait(self.set, &raw mut data, 0) }) {
            Ok(()) => {}
            Err(NvmlError::Timeout) => return Ok(None),
            Err(error) => return Err(error),
        }
        Ok(Some(Event { kind: data.eventType, data: data.eventData }))
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if let Ok(free) = nvml_sym(self.nvml.lib().nvmlEventSetFree.as_ref()) {
            // SAFETY: the set was made in `new`, and nothing else frees it. Nobody could be told that it
            // fails.
            let _code = unsafe { free(self.set) };
        }
    }
}
