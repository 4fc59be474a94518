//! The library itself: its start and its end, versions, and what its errors are called.

use std::ffi::CStr;
use std::os::raw::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::nvmlReturn_t;

use super::{exports, put, put_text};
use crate::state::{Code, initialise, shut_down};

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    initialise("nvmlInit_v2")
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> nvmlReturn_t {
    initialise("nvmlInitWithFlags")
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    shut_down()
}

/// The one function that answers without being initialised.
#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    let text: &'static CStr = match result {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        15 => c"GPU is lost",
        16 => c"GPU requires reset",
        25 => c"Argument version mismatch",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

exports! {
    fn nvmlSystemGetDriverVersion(call, version: *mut c_char, length: c_uint) {
        put_text(version, length, &call.scenario.driver)
    }

    fn nvmlSystemGetNVMLVersion(call, version: *mut c_char, length: c_uint) {
        let of_driver = || format!("{}.{}", call.scenario.cuda / 1_000, call.scenario.driver);
        put_text(version, length, &call.scenario.nvml.clone().unwrap_or_else(of_driver))
    }

    fn nvmlSystemGetCudaDriverVersion(call, version: *mut c_int) {
        put(version, call.scenario.cuda)
    }

    fn nvmlSystemGetCudaDriverVersion_v2(call, version: *mut c_int) {
        put(version, call.scenario.cuda)
    }

    fn nvmlSystemGetProcessName(call, pid: c_uint, name: *mut c_char, length: c_uint) {
        let processes = call.scenario.board.iter().flat_map(|board| &board.process);
        let mut alive = processes.filter(|one| one.pid == pid && one.span().holds(call.now));
        let found = alive.find_map(|one| one.name.as_deref()).ok_or(Code::NOT_FOUND)?;
        put_text(name, length, found)
    }
}
