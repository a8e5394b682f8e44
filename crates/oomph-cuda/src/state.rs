//! What a thread and the process are to CUDA: the current device, the last error, which devices have a context. And its numbers.

use crate::{handle, lock, put};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::sync::Mutex;

pub const SUCCESS: c_int = 0;
pub const INVALID_VALUE: c_int = 1;
pub const OUT_OF_MEMORY: c_int = 2;
pub const INVALID_DEVICE: c_int = 101;
/// `cudaErrorSymbolNotFound`, `CUDA_ERROR_NOT_FOUND`.
pub const NOT_FOUND: c_int = 500;
pub const NOT_READY: c_int = 600;
pub const NOT_SUPPORTED: c_int = 801;

pub type Handle = *mut c_void;

thread_local! {
    static DEVICE: Cell<c_int> = const { Cell::new(0) };
    static LAST_ERROR: Cell<c_int> = const { Cell::new(0) };
}

/// Devices whose context was made by use, as PyTorch asks the driver.
static USED: Mutex<BTreeSet<c_int>> = Mutex::new(BTreeSet::new());

/// The current device of this thread.
pub fn device() -> usize {
    let device = DEVICE.try_with(Cell::get).unwrap_or(0);
    usize::try_from(device).unwrap_or(0)
}

/// Makes a device the current one of this thread, with a context.
pub fn set_device(device: c_int) {
    let _ = DEVICE.try_with(|current| current.set(device));
    make_context();
}

/// Whether a device has a context.
pub fn has_context(device: c_int) -> bool {
    lock(&USED).contains(&device)
}

/// Gives the current device a context.
pub fn make_context() {
    lock(&USED).insert(device() as c_int);
}

/// Remembers an error, as the runtime does.
pub fn fail(code: c_int) -> c_int {
    let _ = LAST_ERROR.try_with(|last| last.set(code));
    code
}

/// Remembers it if it is one.
pub fn check(code: c_int) -> c_int {
    if code == SUCCESS { SUCCESS } else { fail(code) }
}

/// The last error of this thread.
pub fn last_error() -> c_int {
    LAST_ERROR.try_with(Cell::get).unwrap_or(0)
}

/// The same, which is forgotten.
pub fn take_last_error() -> c_int {
    LAST_ERROR.try_with(|last| last.replace(0)).unwrap_or(0)
}

/// Writes a handle behind which nothing lies.
pub fn new_handle(place: *mut Handle) -> c_int {
    // SAFETY: C's caller gives a place for a handle.
    unsafe { put(place, handle() as Handle) };
    SUCCESS
}
