//! GPM: samples, and what two of them tell. Its structures have 1 as their version word, without their size.

use std::os::raw::c_uint;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlGpmMetricsGet_t, nvmlGpmSample_t, nvmlGpmSupport_t};

use super::{exports, handle, number, put, size, take};
use crate::state::{Answer, Code, Device};

const VERSION: u32 = 1;

fn check_gpm_version(word: u32) -> Answer {
    if word == VERSION { Ok(()) } else { Err(Code::VERSION_MISMATCH) }
}

exports! {
    fn nvmlGpmQueryDeviceSupport(call, device: nvmlDevice_t, support: *mut nvmlGpmSupport_t) {
        let board = call.device(number(device))?.board();
        let version = take(support)?.version;
        check_gpm_version(version)?;
        put(support, nvmlGpmSupport_t { version, isSupportedDevice: u32::from(call.has_gpm(board)?) })
    }

    fn nvmlGpmSampleAlloc(call, sample: *mut nvmlGpmSample_t) {
        let made = call.make_sample();
        put(sample, handle(made))
    }

    fn nvmlGpmSampleFree(call, sample: nvmlGpmSample_t) {
        call.free_sample(number(sample))
    }

    fn nvmlGpmSampleGet(call, device: nvmlDevice_t, sample: nvmlGpmSample_t) {
        let device = call.device(number(device))?;
        let gi = match device {
            Device::Board(_) => None,
            Device::Mig(device) => Some(device.parent.instance.gi),
        };
        call.take_sample(device.board(), gi, number(sample))
    }

    fn nvmlGpmMigSampleGet(call, device: nvmlDevice_t, gi: c_uint, sample: nvmlGpmSample_t) {
        let board = call.mig_board(number(device))?;
        let found = call.instances(board).find(|one| one.instance.gi == gi);
        found.ok_or(Code::INVALID_ARGUMENT)?;
        call.take_sample(board, Some(gi), number(sample))
    }

    fn nvmlGpmMetricsGet(call, request: *mut nvmlGpmMetricsGet_t) {
        let asked = take(request)?;
        check_gpm_version(asked.version)?;
        if size(asked.numMetrics) > asked.metrics.len() {
            return Err(Code::INVALID_ARGUMENT);
        }
        let measured = call.measured(number(asked.sample1), number(asked.sample2))?;
        let mut answer = asked;
        for metric in answer.metrics.iter_mut().take(size(asked.numMetrics)) {
            match measured.average(metric.metricId) {
                Ok(value) => {
                    metric.value = value;
                    metric.nvmlReturn = 0;
                }
                Err(Code(code)) => metric.nvmlReturn = code,
            }
        }
        put(request, answer)
    }
}
