//! Event sets, and waiting for what happens.

use std::os::raw::{c_uint, c_ulonglong};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t, nvmlReturn_t};

use super::{NONE, exports, handle, number, put};
use crate::state::{Answer, Call, Code, Device, Event, MIG_CHANGE, XID, enter};

/// How long a wait sleeps before it looks at the clock again.
const POLL: Duration = Duration::from_millis(1);

fn data(call: &mut Call<'_>, event: &Event) -> Answer<nvmlEventData_t> {
    let (_, board) = call.scenario.board(&event.board).ok_or(Code::UNKNOWN)?;
    Ok(nvmlEventData_t {
        device: handle(call.board_handle(board)),
        eventType: event.kind,
        eventData: event.data,
        gpuInstanceId: event.gi.unwrap_or(NONE),
        computeInstanceId: event.ci.unwrap_or(NONE),
    })
}

exports! {
    fn nvmlEventSetCreate(call, set: *mut nvmlEventSet_t) {
        let made = call.make_set();
        put(set, handle(made))
    }

    fn nvmlEventSetFree(call, set: nvmlEventSet_t) {
        call.free_set(number(set))
    }

    fn nvmlDeviceGetSupportedEventTypes(call, device: nvmlDevice_t, kinds: *mut c_ulonglong) {
        let board = call.board(number(device))?;
        let of_mig = call.kind(board)?.mig_slots.map_or(0, |_| MIG_CHANGE);
        put(kinds, XID | of_mig)
    }

    fn nvmlDeviceRegisterEvents(call, device: nvmlDevice_t, kinds: c_ulonglong, set: nvmlEventSet_t) {
        let Device::Board(board) = call.device(number(device))? else {
            return Err(Code::INVALID_ARGUMENT);
        };
        if call.check_undivided(board).is_err() {
            call.check_privilege()?;
        }
        call.register(number(set), board, kinds)
    }
}

/// Looks again and again, without holding the library: others go on, and one of them may move the clock.
///
/// It ends when the time is up by the scenario's clock or by the machine's, whichever is first.
#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetWait_v2(
    set: nvmlEventSet_t,
    to: *mut nvmlEventData_t,
    milliseconds: c_uint,
) -> nvmlReturn_t {
    let limit = Duration::from_millis(u64::from(milliseconds));
    let began = Instant::now();
    let mut deadline = None;
    loop {
        let mut is_late = false;
        let code = enter("nvmlEventSetWait_v2", |call| {
            let until = *deadline.get_or_insert(call.now + i64::from(milliseconds) * 1_000);
            is_late = call.now >= until;
            let event = call.next_event(number(set))?;
            let data = data(call, &event)?;
            put(to, data)
        });
        if code != Code::TIMEOUT.0 || is_late || began.elapsed() >= limit {
            return code;
        }
        sleep(POLL);
    }
}
