//! Processes: which there are, what they used, and what accounting keeps of them.

use std::os::raw::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlAccountingStats_t, nvmlDevice_t, nvmlProcessInfo_t, nvmlProcessUtilizationInfo_v1_t,
    nvmlProcessUtilizationSample_t, nvmlProcessesUtilizationInfo_t,
};

use super::{NONE, Sizing, check_version, exports, number, put, put_list, take};
use crate::scenario::{Accounted, Board, Process, ProcessKind};
use crate::state::{Answer, Call, Code, Device, MIB, Sample, memory_of};

/// What memory is where the driver does not say.
const UNKNOWN_MEMORY: u64 = u64::MAX;
/// How many processes accounting keeps.
const ACCOUNTING_BUFFER: u32 = 4_000;

fn info(call: &Call<'_>, process: &Process) -> nvmlProcessInfo_t {
    nvmlProcessInfo_t {
        pid: process.pid,
        usedGpuMemory: memory_of(process, call.now).unwrap_or(UNKNOWN_MEMORY),
        gpuInstanceId: process.gi.unwrap_or(NONE),
        computeInstanceId: process.ci.unwrap_or(NONE),
    }
}

fn put_processes(
    call: &Call<'_>,
    kind: ProcessKind,
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut nvmlProcessInfo_t,
) -> Answer {
    let device = call.device(number(device))?;
    if let Device::Board(board) = device
        && call.check_undivided(board).is_err()
    {
        // What instances do is told to those who administrate them.
        call.check_privilege()?;
    }
    let of_kind = call.processes(device).filter(|process| process.kinds.contains(&kind));
    let infos_now: Vec<nvmlProcessInfo_t> = of_kind.map(|process| info(call, process)).collect();
    put_list(call, infos, count, &infos_now, Sizing::TooShort)
}

fn sample(sample: &Sample) -> nvmlProcessUtilizationSample_t {
    let [sm, memory, encoder, decoder, _, _] = sample.percent;
    nvmlProcessUtilizationSample_t {
        pid: sample.whose,
        timeStamp: sample.stamp,
        smUtil: sm,
        memUtil: memory,
        encUtil: encoder,
        decUtil: decoder,
    }
}

fn newer_sample(sample: &Sample) -> nvmlProcessUtilizationInfo_v1_t {
    let [sm, memory, encoder, decoder, jpeg, optical_flow] = sample.percent;
    nvmlProcessUtilizationInfo_v1_t {
        timeStamp: sample.stamp,
        pid: sample.whose,
        smUtil: sm,
        memUtil: memory,
        encUtil: encoder,
        decUtil: decoder,
        jpgUtil: jpeg,
        ofaUtil: optical_flow,
    }
}

/// Whether accounting is on: never while the board is cut.
fn is_accounting(call: &Call<'_>, board: &Board) -> bool {
    let is_on = board.accounting.as_ref().and_then(|steps| steps.at(call.now)).copied().unwrap_or(false);
    is_on && call.check_undivided(board).is_ok()
}

pub(super) fn accounted_pids(call: &Call<'_>, accounted: &[Accounted]) -> Vec<u32> {
    accounted.iter().filter(|one| one.start.0 <= call.now).map(|one| one.pid).collect()
}

/// What is kept of a process; of a pid that came again, the newest.
pub(super) fn stats(call: &Call<'_>, accounted: &[Accounted], pid: u32) -> Answer<nvmlAccountingStats_t> {
    let of_pid = accounted.iter().filter(|one| one.pid == pid && one.start.0 <= call.now);
    let one = of_pid.max_by_key(|one| one.start).ok_or(Code::NOT_FOUND)?;
    let end = one.end.filter(|end| end.0 <= call.now);
    let milliseconds = end.map_or(0, |end| (end.0 - one.start.0) / 1_000);
    Ok(nvmlAccountingStats_t {
        gpuUtilization: one.gpu.unwrap_or(u32::MAX),
        memoryUtilization: one.memory.unwrap_or(u32::MAX),
        maxMemoryUsage: one.max_memory_mib.map_or(UNKNOWN_MEMORY, |mib| mib * MIB),
        time: u64::try_from(milliseconds).unwrap_or(0),
        startTime: call.stamp(one.start.0),
        isRunning: u32::from(end.is_none()),
        reserved: [0; 5],
    })
}

exports! {
    fn nvmlDeviceGetComputeRunningProcesses_v3(
        call, device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_t,
    ) {
        put_processes(call, ProcessKind::Compute, device, count, infos)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v3(
        call, device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_t,
    ) {
        put_processes(call, ProcessKind::Graphics, device, count, infos)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
        call, device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_t,
    ) {
        put_processes(call, ProcessKind::Mps, device, count, infos)
    }

    fn nvmlDeviceGetProcessUtilization(
        call,
        device: nvmlDevice_t,
        samples: *mut nvmlProcessUtilizationSample_t,
        count: *mut c_uint,
        seen: c_ulonglong,
    ) {
        let board = call.board(number(device))?;
        let kept: Vec<_> = call.process_samples(board, seen)?.iter().map(sample).collect();
        put_list(call, samples, count, &kept, Sizing::TooShort)
    }

    fn nvmlDeviceGetProcessesUtilizationInfo(
        call, device: nvmlDevice_t, info: *mut nvmlProcessesUtilizationInfo_t,
    ) {
        let board = call.board(number(device))?;
        let mut asked = take(info)?;
        check_version::<nvmlProcessesUtilizationInfo_t>(asked.version, 1)?;
        let samples = call.process_samples(board, asked.lastSeenTimeStamp)?;
        let kept: Vec<_> = samples.iter().map(newer_sample).collect();
        let (to, count) = (asked.procUtilArray, &raw mut asked.processSamplesCount);
        let answer = put_list(call, to, count, &kept, Sizing::TooShort);
        put(info, asked)?;
        answer
    }

    fn nvmlDeviceGetAccountingMode(call, device: nvmlDevice_t, mode: *mut c_uint) {
        let board = call.board(number(device))?;
        if board.accounting.is_none() {
            return Err(Code::NOT_SUPPORTED);
        }
        put(mode, u32::from(is_accounting(call, board)))
    }

    fn nvmlDeviceGetAccountingBufferSize(call, device: nvmlDevice_t, size: *mut c_uint) {
        let board = call.board(number(device))?;
        if board.accounting.is_none() {
            return Err(Code::NOT_SUPPORTED);
        }
        put(size, ACCOUNTING_BUFFER)
    }

    fn nvmlDeviceGetAccountingPids(call, device: nvmlDevice_t, count: *mut c_uint, pids: *mut c_uint) {
        let board = call.board(number(device))?;
        if !is_accounting(call, board) {
            return Err(Code::NOT_SUPPORTED);
        }
        put_list(call, pids, count, &accounted_pids(call, &board.accounted), Sizing::TooShort)
    }

    fn nvmlDeviceGetAccountingStats(
        call, device: nvmlDevice_t, pid: c_uint, to: *mut nvmlAccountingStats_t,
    ) {
        let board = call.board(number(device))?;
        if !is_accounting(call, board) {
            return Err(Code::NOT_SUPPORTED);
        }
        put(to, stats(call, &board.accounted, pid)?)
    }
}
