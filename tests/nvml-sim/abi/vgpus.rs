//! vGPUs: which run, whose they are, what they use, and how the board's time is divided among them.

use std::os::raw::{c_char, c_uint, c_ulonglong};

use chrono::{DateTime, Datelike, Timelike};
use nvml_wrapper_sys::bindings::{
    nvmlAccountingStats_t, nvmlDevice_t, nvmlGridLicensableFeatures_t, nvmlGridLicenseExpiry_t, nvmlValue_t,
    nvmlVgpuHeterogeneousMode_t, nvmlVgpuInstanceUtilizationInfo_v1_t, nvmlVgpuInstanceUtilizationSample_t,
    nvmlVgpuInstancesUtilizationInfo_t, nvmlVgpuLicenseExpiry_t, nvmlVgpuLicenseInfo_t,
    nvmlVgpuPlacementId_t, nvmlVgpuProcessUtilizationInfo_v1_t, nvmlVgpuProcessUtilizationSample_t,
    nvmlVgpuProcessesUtilizationInfo_t, nvmlVgpuSchedulerCapabilities_t, nvmlVgpuSchedulerGetState_t,
    nvmlVgpuSchedulerLog_t, nvmlVgpuSchedulerParams_t, nvmlVgpuSchedulerParams_t__bindgen_ty_1,
    nvmlVgpuSchedulerParams_t__bindgen_ty_2,
};

use super::vgpu_types::{frames, host};
use super::{
    NONE, Sizing, array, check_version, exports, number, processes, put, put_list, put_sized_text, put_text,
    take,
};
use crate::boards;
use crate::scenario::{At, Board, Expiry, License, LicenseState, Policy, Scheduler, Vm};
use crate::state::{Answer, Call, Code, GuestSample, MIB, Sample};

/// `NVML_VALUE_TYPE_UNSIGNED_INT`: what utilization of vGPUs comes as.
const UNSIGNED_INT: u32 = 1;
/// Time slices that a scheduler can have, in nanoseconds.
const TIMESLICES_NS: (u32, u32) = (1_000_000, 30_000_000);

fn unsigned(value: u32) -> nvmlValue_t {
    nvmlValue_t { uiVal: value }
}

fn sample(sample: &Sample) -> nvmlVgpuInstanceUtilizationSample_t {
    let [sm, memory, encoder, decoder, _, _] = sample.percent.map(unsigned);
    nvmlVgpuInstanceUtilizationSample_t {
        vgpuInstance: sample.whose,
        timeStamp: sample.stamp,
        smUtil: sm,
        memUtil: memory,
        encUtil: encoder,
        decUtil: decoder,
    }
}

fn newer_sample(sample: &Sample) -> nvmlVgpuInstanceUtilizationInfo_v1_t {
    let [sm, memory, encoder, decoder, jpeg, optical_flow] = sample.percent.map(unsigned);
    nvmlVgpuInstanceUtilizationInfo_v1_t {
        timeStamp: sample.stamp,
        vgpuInstance: sample.whose,
        smUtil: sm,
        memUtil: memory,
        encUtil: encoder,
        decUtil: decoder,
        jpgUtil: jpeg,
        ofaUtil: optical_flow,
    }
}

fn guest_sample(guest: &GuestSample) -> nvmlVgpuProcessUtilizationSample_t {
    let [sm, memory, encoder, decoder, _, _] = guest.sample.percent;
    nvmlVgpuProcessUtilizationSample_t {
        vgpuInstance: guest.vgpu,
        pid: guest.sample.whose,
        processName: array(&guest.name),
        timeStamp: guest.sample.stamp,
        smUtil: sm,
        memUtil: memory,
        encUtil: encoder,
        decUtil: decoder,
    }
}

fn newer_guest_sample(guest: &GuestSample) -> nvmlVgpuProcessUtilizationInfo_v1_t {
    let [sm, memory, encoder, decoder, jpeg, optical_flow] = guest.sample.percent;
    nvmlVgpuProcessUtilizationInfo_v1_t {
        processName: array(&guest.name),
        timeStamp: guest.sample.stamp,
        vgpuInstance: guest.vgpu,
        pid: guest.sample.whose,
        smUtil: sm,
        memUtil: memory,
        encUtil: encoder,
        decUtil: decoder,
        jpgUtil: jpeg,
        ofaUtil: optical_flow,
    }
}

/// When a license ends, with NVML's number of how that is known.
fn expiry(call: &Call<'_>, expires: Expiry) -> nvmlVgpuLicenseExpiry_t {
    let never = nvmlVgpuLicenseExpiry_t { year: 0, month: 0, day: 0, hour: 0, min: 0, sec: 0, status: 0 };
    let status = |status| nvmlVgpuLicenseExpiry_t { status, ..never };
    let At(after) = match expires {
        Expiry::NotAvailable => return status(0),
        Expiry::Invalid => return status(1),
        Expiry::At(at) => at,
        Expiry::NotApplicable => return status(3),
        Expiry::Permanent => return status(4),
    };
    let Some(at) = DateTime::from_timestamp_micros(call.scenario.origin + after) else {
        return status(1);
    };
    let small = |number: u32| u16::try_from(number).unwrap_or(0);
    nvmlVgpuLicenseExpiry_t {
        year: u32::try_from(at.year()).unwrap_or(0),
        month: small(at.month()),
        day: small(at.day()),
        hour: small(at.hour()),
        min: small(at.minute()),
        sec: small(at.second()),
        status: 2,
    }
}

fn license_state(state: LicenseState) -> u32 {
    match state {
        LicenseState::Unknown => 0,
        LicenseState::Uninitialized => 1,
        LicenseState::UnlicensedUnrestricted => 2,
        LicenseState::UnlicensedRestricted => 3,
        LicenseState::Unlicensed => 4,
        LicenseState::Licensed => 5,
    }
}

/// The scheduler of a board, which there is none of under MIG.
fn scheduler(call: &Call<'_>, board: &Board) -> Answer<Scheduler> {
    call.check_undivided(board)?;
    board.scheduler.as_ref().and_then(|steps| steps.at(call.now)).copied().ok_or(Code::NOT_SUPPORTED)
}

/// NVML's numbers of a scheduler: policy, adaptive round robin, and parameters.
fn scheduling(scheduler: Scheduler) -> (u32, u32, nvmlVgpuSchedulerParams_t) {
    let policy = match scheduler.policy {
        Policy::BestEffort => 1,
        Policy::EqualShare => 2,
        Policy::FixedShare => 3,
    };
    let timeslice = scheduler.timeslice_ns;
    match scheduler.average_factor {
        Some(factor) => {
            let data = nvmlVgpuSchedulerParams_t__bindgen_ty_1 { avgFactor: factor, timeslice };
            (policy, 2, nvmlVgpuSchedulerParams_t { vgpuSchedDataWithARR: data })
        }
        None => {
            let data = nvmlVgpuSchedulerParams_t__bindgen_ty_2 { timeslice };
            (policy, 1, nvmlVgpuSchedulerParams_t { vgpuSchedData: data })
        }
    }
}

exports! {
    fn nvmlDeviceGetActiveVgpus(call, device: nvmlDevice_t, count: *mut c_uint, ids: *mut c_uint) {
        let board = host(call, device)?;
        let running: Vec<u32> = call.vgpus(board).into_iter().map(|(id, _)| id).collect();
        put_list(call, ids, count, &running, Sizing::TooShort)
    }

    fn nvmlVgpuInstanceGetVmID(call, id: c_uint, text: *mut c_char, size: c_uint, kind: *mut c_uint) {
        let (_, vgpu) = call.vgpu(id)?;
        let (number, of_vm) = match &vgpu.vm {
            Vm::Domain(domain) => (0, domain),
            Vm::Uuid(uuid) => (1, uuid),
        };
        put(kind, number)?;
        put_text(text, size, of_vm)
    }

    fn nvmlVgpuInstanceGetUUID(call, id: c_uint, uuid: *mut c_char, size: c_uint) {
        put_text(uuid, size, &call.vgpu(id)?.1.uuid)
    }

    fn nvmlVgpuInstanceGetMdevUUID(call, id: c_uint, uuid: *mut c_char, size: c_uint) {
        put_text(uuid, size, call.vgpu(id)?.1.mdev.as_deref().ok_or(Code::NOT_SUPPORTED)?)
    }

    fn nvmlVgpuInstanceGetVmDriverVersion(call, id: c_uint, version: *mut c_char, length: c_uint) {
        let driver = call.vgpu(id)?.1.guest_driver.as_ref().and_then(|steps| steps.at(call.now));
        put_text(version, length, driver.map_or("Not Available", String::as_str))
    }

    fn nvmlVgpuInstanceGetFbUsage(call, id: c_uint, bytes: *mut c_ulonglong) {
        let used = call.vgpu(id)?.1.fb_used_mib.as_ref().and_then(|steps| steps.at(call.now));
        put(bytes, used.copied().unwrap_or(0) * MIB)
    }

    fn nvmlVgpuInstanceGetType(call, id: c_uint, kind: *mut c_uint) {
        let (_, vgpu) = call.vgpu(id)?;
        put(kind, boards::vgpu_type(&vgpu.r#type).ok_or(Code::UNKNOWN)?.id)
    }

    fn nvmlVgpuInstanceGetLicenseInfo_v2(call, id: c_uint, info: *mut nvmlVgpuLicenseInfo_t) {
        let (_, vgpu) = call.vgpu(id)?;
        let guest = vgpu.guest_driver.as_ref().and_then(|steps| steps.at(call.now));
        guest.ok_or(Code::DRIVER_NOT_LOADED)?;
        let untold = License { state: LicenseState::Uninitialized, expires: Expiry::NotAvailable };
        let license = vgpu.license.as_ref().and_then(|steps| steps.at(call.now)).copied().unwrap_or(untold);
        put(info, nvmlVgpuLicenseInfo_t {
            isLicensed: u8::from(license.state == LicenseState::Licensed),
            licenseExpiry: expiry(call, license.expires),
            currentState: license_state(license.state),
        })
    }

    fn nvmlVgpuInstanceGetGpuInstanceId(call, id: c_uint, gi: *mut c_uint) {
        put(gi, call.vgpu(id)?.1.gi.unwrap_or(NONE))
    }

    fn nvmlVgpuInstanceGetGpuPciId(call, id: c_uint, bus: *mut c_char, length: *mut c_uint) {
        call.vgpu(id)?;
        // Where the guest sees it: the first free slot of a usual VM.
        put_sized_text(bus, length, "00000000:02:00.0")
    }

    fn nvmlVgpuInstanceGetFrameRateLimit(call, id: c_uint, limit: *mut c_uint) {
        let (_, vgpu) = call.vgpu(id)?;
        let kind = boards::vgpu_type(&vgpu.r#type).ok_or(Code::UNKNOWN)?;
        put(limit, vgpu.frame_rate_limit.unwrap_or_else(|| frames(kind)))
    }

    fn nvmlVgpuInstanceGetPlacementId(call, id: c_uint, placement: *mut nvmlVgpuPlacementId_t) {
        let (_, vgpu) = call.vgpu(id)?;
        let version = take(placement)?.version;
        check_version::<nvmlVgpuPlacementId_t>(version, 1)?;
        put(placement, nvmlVgpuPlacementId_t { version, placementId: vgpu.placement.unwrap_or(NONE) })
    }

    fn nvmlVgpuInstanceGetAccountingMode(call, id: c_uint, mode: *mut c_uint) {
        put(mode, u32::from(call.vgpu(id)?.1.accounting))
    }

    fn nvmlVgpuInstanceGetAccountingPids(call, id: c_uint, count: *mut c_uint, pids: *mut c_uint) {
        let (_, vgpu) = call.vgpu(id)?;
        let known = processes::accounted_pids(call, &vgpu.accounted);
        put_list(call, pids, count, &known, Sizing::TooShort)
    }

    fn nvmlVgpuInstanceGetAccountingStats(call, id: c_uint, pid: c_uint, to: *mut nvmlAccountingStats_t) {
        let (_, vgpu) = call.vgpu(id)?;
        put(to, processes::stats(call, &vgpu.accounted, pid)?)
    }

    fn nvmlDeviceGetVgpuUtilization(
        call,
        device: nvmlDevice_t,
        seen: c_ulonglong,
        kind: *mut c_uint,
        count: *mut c_uint,
        samples: *mut nvmlVgpuInstanceUtilizationSample_t,
    ) {
        let kept: Vec<_> = call.vgpu_samples(host(call, device)?, seen)?.iter().map(sample).collect();
        put(kind, UNSIGNED_INT)?;
        put_list(call, samples, count, &kept, Sizing::TooShort)
    }

    fn nvmlDeviceGetVgpuInstancesUtilizationInfo(
        call, device: nvmlDevice_t, info: *mut nvmlVgpuInstancesUtilizationInfo_t,
    ) {
        let board = host(call, device)?;
        let mut asked = take(info)?;
        check_version::<nvmlVgpuInstancesUtilizationInfo_t>(asked.version, 1)?;
        let samples = call.vgpu_samples(board, asked.lastSeenTimeStamp)?;
        let kept: Vec<_> = samples.iter().map(newer_sample).collect();
        asked.sampleValType = UNSIGNED_INT;
        let (to, count) = (asked.vgpuUtilArray, &raw mut asked.vgpuInstanceCount);
        let answer = put_list(call, to, count, &kept, Sizing::TooShort);
        put(info, asked)?;
        answer
    }

    fn nvmlDeviceGetVgpuProcessUtilization(
        call,
        device: nvmlDevice_t,
        seen: c_ulonglong,
        count: *mut c_uint,
        samples: *mut nvmlVgpuProcessUtilizationSample_t,
    ) {
        let kept: Vec<_> = call.guest_samples(host(call, device)?, seen)?.iter().map(guest_sample).collect();
        put_list(call, samples, count, &kept, Sizing::TooShort)
    }

    fn nvmlDeviceGetVgpuProcessesUtilizationInfo(
        call, device: nvmlDevice_t, info: *mut nvmlVgpuProcessesUtilizationInfo_t,
    ) {
        let board = host(call, device)?;
        let mut asked = take(info)?;
        check_version::<nvmlVgpuProcessesUtilizationInfo_t>(asked.version, 1)?;
        let samples = call.guest_samples(board, asked.lastSeenTimeStamp)?;
        let kept: Vec<_> = samples.iter().map(newer_guest_sample).collect();
        let (to, count) = (asked.vgpuProcUtilArray, &raw mut asked.vgpuProcessCount);
        let answer = put_list(call, to, count, &kept, Sizing::TooShort);
        put(info, asked)?;
        answer
    }

    fn nvmlDeviceGetVgpuHeterogeneousMode(
        call, device: nvmlDevice_t, mode: *mut nvmlVgpuHeterogeneousMode_t,
    ) {
        let board = host(call, device)?;
        let version = take(mode)?.version;
        check_version::<nvmlVgpuHeterogeneousMode_t>(version, 1)?;
        call.check_undivided(board)?;
        let is_on = board.heterogeneous.as_ref().and_then(|steps| steps.at(call.now));
        let is_on = *is_on.ok_or(Code::NOT_SUPPORTED)?;
        put(mode, nvmlVgpuHeterogeneousMode_t { version, mode: u32::from(is_on) })
    }

    fn nvmlDeviceGetVgpuSchedulerState(
        call, device: nvmlDevice_t, state: *mut nvmlVgpuSchedulerGetState_t,
    ) {
        let (policy, arr, parameters) = scheduling(scheduler(call, host(call, device)?)?);
        put(state, nvmlVgpuSchedulerGetState_t {
            schedulerPolicy: policy,
            arrMode: arr,
            schedulerParams: parameters,
        })
    }

    fn nvmlDeviceGetVgpuSchedulerLog(call, device: nvmlDevice_t, log: *mut nvmlVgpuSchedulerLog_t) {
        let (policy, arr, parameters) = scheduling(scheduler(call, host(call, device)?)?);
        // SAFETY: the structure is of numbers and of unions of numbers, which may all be zero.
        let empty: nvmlVgpuSchedulerLog_t = unsafe { std::mem::zeroed() };
        put(log, nvmlVgpuSchedulerLog_t {
            engineId: 1,
            schedulerPolicy: policy,
            arrMode: arr,
            schedulerParams: parameters,
            ..empty
        })
    }

    fn nvmlDeviceGetVgpuSchedulerCapabilities(
        call, device: nvmlDevice_t, capabilities: *mut nvmlVgpuSchedulerCapabilities_t,
    ) {
        scheduler(call, host(call, device)?)?;
        put(capabilities, nvmlVgpuSchedulerCapabilities_t {
            supportedSchedulers: [1, 2, 3],
            maxTimeslice: TIMESLICES_NS.1,
            minTimeslice: TIMESLICES_NS.0,
            isArrModeSupported: 1,
            maxFrequencyForARR: 960,
            minFrequencyForARR: 1,
            maxAvgFactorForARR: 60,
            minAvgFactorForARR: 1,
        })
    }

    fn nvmlDeviceGetGridLicensableFeatures_v4(
        call, device: nvmlDevice_t, features: *mut nvmlGridLicensableFeatures_t,
    ) {
        let board = call.board(number(device))?;
        let license = board.guest_license.as_ref().and_then(|steps| steps.at(call.now));
        let license = license.ok_or(Code::NOT_SUPPORTED)?;
        // SAFETY: the structure is of numbers, which may all be zero.
        let mut told: nvmlGridLicensableFeatures_t = unsafe { std::mem::zeroed() };
        told.isGridLicenseSupported = 1;
        told.licensableFeaturesCount = 1;
        let [feature, _, _] = &mut told.gridLicensableFeatures;
        let expiry = expiry(call, license.expires);
        let nvmlVgpuLicenseExpiry_t { year, month, day, hour, min, sec, status } = expiry;
        feature.featureCode = license.feature;
        feature.featureState = u32::from(license.enabled);
        feature.featureEnabled = 1;
        feature.productName = array(&license.product);
        feature.licenseExpiry = nvmlGridLicenseExpiry_t { year, month, day, hour, min, sec, status };
        put(features, told)
    }
}
