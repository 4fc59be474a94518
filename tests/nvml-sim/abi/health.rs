//! How a board is: power, heat, throttling, memory errors, and field values.

use std::os::raw::{c_int, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlFieldValue_t, nvmlUtilization_t, nvmlValue_t};

use super::{exports, number, put, take};
use crate::scenario::{Board, Steps};
use crate::state::fields::{self, Value};
use crate::state::{Answer, Call, Code};

/// How long NVML says that its own utilization samples take.
const SAMPLING_PERIOD_US: u32 = 166_000;
/// `NVML_VALUE_TYPE_UNSIGNED_INT` and `NVML_VALUE_TYPE_UNSIGNED_LONG_LONG`.
const UNSIGNED_INT: u32 = 1;
const UNSIGNED_LONG_LONG: u32 = 3;
/// `NVML_MEMORY_ERROR_TYPE_CORRECTED`, `NVML_VOLATILE_ECC`, `NVML_MEMORY_LOCATION_DEVICE_MEMORY`.
const CORRECTED: u32 = 0;
const VOLATILE: u32 = 0;
const DEVICE_MEMORY: u32 = 2;

fn told<T: Copy>(call: &Call<'_>, steps: Option<&Steps<T>>) -> Answer<T> {
    steps.and_then(|steps| steps.at(call.now)).copied().ok_or(Code::NOT_SUPPORTED)
}

/// Memory errors; volatile ones are those since the driver was loaded.
fn errors(call: &Call<'_>, board: &Board, kind: u32, counter: u32) -> Answer<u64> {
    if board.ecc != Some(true) {
        return Err(Code::NOT_SUPPORTED);
    }
    if kind > 1 || counter > 1 {
        return Err(Code::INVALID_ARGUMENT);
    }
    let steps = if kind == CORRECTED { &board.ecc_corrected } else { &board.ecc_uncorrected };
    let until = |at| steps.as_ref().and_then(|steps| steps.at(at)).copied().unwrap_or(0);
    let (loaded, _) = call.scenario.last_load(call.now);
    let before = if counter == VOLATILE { loaded.map_or(0, until) } else { 0 };
    Ok(until(call.now).saturating_sub(before))
}

fn field(call: &Call<'_>, board: &Board, asked: nvmlFieldValue_t) -> nvmlFieldValue_t {
    let stamp = i64::try_from(call.stamp(call.now)).unwrap_or(0);
    let answered = nvmlFieldValue_t { timestamp: stamp, latencyUsec: 0, ..asked };
    match fields::value(call, board, asked.fieldId) {
        Ok(Value::Unsigned(value)) => nvmlFieldValue_t {
            valueType: UNSIGNED_INT,
            nvmlReturn: 0,
            value: nvmlValue_t { uiVal: value },
            ..answered
        },
        Ok(Value::Long(value)) => nvmlFieldValue_t {
            valueType: UNSIGNED_LONG_LONG,
            nvmlReturn: 0,
            value: nvmlValue_t { ullVal: value },
            ..answered
        },
        Err(Code(code)) => nvmlFieldValue_t { nvmlReturn: code, ..answered },
    }
}

exports! {
    fn nvmlDeviceGetPowerUsage(call, device: nvmlDevice_t, power: *mut c_uint) {
        let board = call.board(number(device))?;
        put(power, told(call, board.power_mw.as_ref())?)
    }

    fn nvmlDeviceGetEnforcedPowerLimit(call, device: nvmlDevice_t, limit: *mut c_uint) {
        let board = call.board(number(device))?;
        put(limit, board.power_limit_mw.ok_or(Code::NOT_SUPPORTED)?)
    }

    fn nvmlDeviceGetTemperature(call, device: nvmlDevice_t, sensor: c_uint, temperature: *mut c_uint) {
        let board = call.board(number(device))?;
        if sensor != 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        put(temperature, told(call, board.temperature.as_ref())?)
    }

    fn nvmlDeviceGetPerformanceState(call, device: nvmlDevice_t, state: *mut c_uint) {
        let board = call.board(number(device))?;
        put(state, told(call, board.performance_state.as_ref())?)
    }

    fn nvmlDeviceGetCurrentClocksThrottleReasons(call, device: nvmlDevice_t, reasons: *mut c_ulonglong) {
        let board = call.board(number(device))?;
        put(reasons, told(call, board.throttle.as_ref())?)
    }

    fn nvmlDeviceGetCurrentClocksEventReasons(call, device: nvmlDevice_t, reasons: *mut c_ulonglong) {
        let board = call.board(number(device))?;
        put(reasons, told(call, board.throttle.as_ref())?)
    }

    fn nvmlDeviceGetUtilizationRates(call, device: nvmlDevice_t, utilization: *mut nvmlUtilization_t) {
        let board = call.board(number(device))?;
        call.check_undivided(board)?;
        let gpu = call.percent(board, board.gpu.as_ref(), 0);
        put(utilization, nvmlUtilization_t { gpu, memory: call.percent(board, board.memory.as_ref(), 1) })
    }

    fn nvmlDeviceGetEncoderUtilization(
        call, device: nvmlDevice_t, utilization: *mut c_uint, period: *mut c_uint,
    ) {
        let board = call.board(number(device))?;
        call.check_undivided(board)?;
        put(utilization, call.percent(board, board.encoder.as_ref(), 2))?;
        put(period, SAMPLING_PERIOD_US)
    }

    fn nvmlDeviceGetDecoderUtilization(
        call, device: nvmlDevice_t, utilization: *mut c_uint, period: *mut c_uint,
    ) {
        let board = call.board(number(device))?;
        call.check_undivided(board)?;
        put(utilization, call.percent(board, board.decoder.as_ref(), 3))?;
        put(period, SAMPLING_PERIOD_US)
    }

    fn nvmlDeviceGetEccMode(call, device: nvmlDevice_t, current: *mut c_uint, pending: *mut c_uint) {
        let board = call.board(number(device))?;
        let is_on = board.ecc.ok_or(Code::NOT_SUPPORTED)?;
        put(current, u32::from(is_on))?;
        put(pending, u32::from(is_on))
    }

    fn nvmlDeviceGetTotalEccErrors(
        call, device: nvmlDevice_t, kind: c_uint, counter: c_uint, count: *mut c_ulonglong,
    ) {
        let board = call.board(number(device))?;
        put(count, errors(call, board, kind, counter)?)
    }

    fn nvmlDeviceGetMemoryErrorCounter(
        call, device: nvmlDevice_t, kind: c_uint, counter: c_uint, place: c_uint, count: *mut c_ulonglong,
    ) {
        let board = call.board(number(device))?;
        let errors = errors(call, board, kind, counter)?;
        put(count, if place == DEVICE_MEMORY { errors } else { 0 })
    }

    fn nvmlDeviceGetRemappedRows(
        call,
        device: nvmlDevice_t,
        correctable: *mut c_uint,
        uncorrectable: *mut c_uint,
        pending: *mut c_uint,
        failed: *mut c_uint,
    ) {
        let board = call.board(number(device))?;
        call.check_undivided(board)?;
        let rows = told(call, board.remapped.as_ref())?;
        put(correctable, rows.correctable)?;
        put(uncorrectable, rows.uncorrectable)?;
        put(pending, u32::from(rows.pending))?;
        put(failed, u32::from(rows.failed))
    }

    fn nvmlDeviceGetFieldValues(call, device: nvmlDevice_t, count: c_int, values: *mut nvmlFieldValue_t) {
        let board = call.board(number(device))?;
        let count = usize::try_from(count).map_err(|_| Code::INVALID_ARGUMENT)?;
        if values.is_null() || count == 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        for place in 0..count {
            let slot = values.wrapping_add(place);
            put(slot, field(call, board, take(slot)?))?;
        }
        Ok(())
    }
}
