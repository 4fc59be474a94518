//! The exported functions, by subject. Each one reads its arguments, asks `state`, and writes the answer.
//!
//! Strict where the real library may be lenient: pointers are checked, buffers that are too short are
//! refused, and so are other version words than those of the structures in nvml-wrapper-sys.
#![allow(non_snake_case, reason = "these are the names of a C library")]

mod devices;
mod events;
mod gpm;
mod health;
mod mig;
mod processes;
mod system;
mod vgpu_types;
mod vgpus;

use std::ffi::CStr;
use std::os::raw::{c_char, c_uint};

use crate::state::{Answer, Code};

/// Says for each function its C arguments and what it does while it has the library to itself.
macro_rules! exports {
    ($(fn $name:ident($call:ident $(, $argument:ident: $kind:ty)* $(,)?) $body:block)*) => {
        /// What is exported here.
        pub(super) const NAMES: &[&str] = &[$(stringify!($name)),*];

        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $kind),*) -> nvml_wrapper_sys::bindings::nvmlReturn_t {
                $crate::state::enter(stringify!($name), |$call| $body)
            }
        )*
    };
}
use exports;

/// Whether a scenario can say something of a function.
pub(crate) fn is_exported(symbol: &str) -> bool {
    let subjects = [
        devices::NAMES,
        events::NAMES,
        gpm::NAMES,
        health::NAMES,
        mig::NAMES,
        processes::NAMES,
        system::NAMES,
        vgpu_types::NAMES,
        vgpus::NAMES,
    ];
    let by_hand = ["nvmlInit_v2", "nvmlInitWithFlags", "nvmlEventSetWait_v2"];
    subjects.into_iter().flatten().chain(&by_hand).any(|name| *name == symbol)
}

/// What an id is where there is none.
const NONE: u32 = u32::MAX;

/// The number of a handle.
fn number<T>(handle: *mut T) -> usize {
    handle.addr()
}

/// A handle of a number: an address that nobody reads.
fn handle<T>(number: usize) -> *mut T {
    std::ptr::without_provenance_mut(number)
}

/// Writes a value to where the caller wants it.
fn put<T>(to: *mut T, value: T) -> Answer {
    if to.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: by the contract of the C function, a pointer that is not null is of a place for one value.
    unsafe { to.write(value) };
    Ok(())
}

/// Reads what the caller passes by pointer.
fn take<T: Copy>(from: *const T) -> Answer<T> {
    if from.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: by the contract of the C function, a pointer that is not null is of one value that was written.
    Ok(unsafe { from.read() })
}

/// Reads a text of the caller's.
fn text(from: *const c_char) -> Answer<String> {
    if from.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: by the contract of the C function, a pointer that is not null is of a text that ends with a
    // zero.
    let text = unsafe { CStr::from_ptr(from) };
    text.to_str().map(str::to_owned).map_err(|_| Code::INVALID_ARGUMENT)
}

/// Writes a text with its zero into a buffer of the caller's, if it is long enough.
fn put_text(to: *mut c_char, length: c_uint, text: &str) -> Answer {
    if to.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    if size(length) <= text.len() {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    // SAFETY: by the contract of the C function, the buffer has `length` bytes, of which this writes at most
    // all.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, text.len());
        to.add(text.len()).write(0);
    }
    Ok(())
}

/// As [`put_text`], where the length is told back.
fn put_sized_text(to: *mut c_char, length: *mut c_uint, text: &str) -> Answer {
    let room = take(length)?;
    put(length, short(text.len() + 1))?;
    put_text(to, room, text)
}

/// A text in an array of a structure, cut where it is too long.
fn array<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (place, byte) in array.iter_mut().take(N - 1).zip(text.bytes()) {
        *place = c_char::from_ne_bytes([byte]);
    }
    array
}

/// What a list answers that has no entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sizing {
    /// Asked for its size alone, a list that is not empty answers that the buffer is too short.
    TooShort,
    /// Asked for its size alone, it just tells it.
    Told,
}

/// Writes a list into the caller's buffer, or tells how long it would have to be.
fn put_list<T: Copy>(
    call: &crate::state::Call<'_>,
    to: *mut T,
    count: *mut c_uint,
    items: &[T],
    sizing: Sizing,
) -> Answer {
    let room = size(take(count)?);
    let (shrinks, grows) = call.scenario.list_change(call.symbol, call.now);
    if to.is_null() || room == 0 {
        put(count, short(items.len().saturating_sub(grows)))?;
        return match sizing {
            Sizing::TooShort if items.len() > grows => Err(Code::INSUFFICIENT_SIZE),
            _ => Ok(()),
        };
    }
    let items = items.get(..items.len().saturating_sub(shrinks)).unwrap_or_default();
    put(count, short(items.len()))?;
    if room < items.len() {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    // SAFETY: by the contract of the C function, the buffer has room for `count` items, which are no fewer
    // than these.
    unsafe { std::ptr::copy_nonoverlapping(items.as_ptr(), to, items.len()) };
    Ok(())
}

/// Checks the version word of a structure: its size, and the version in the highest byte.
fn check_version<T>(word: c_uint, version: u32) -> Answer {
    if word == short(size_of::<T>()) | (version << 24) { Ok(()) } else { Err(Code::VERSION_MISMATCH) }
}

fn short(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn size(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
