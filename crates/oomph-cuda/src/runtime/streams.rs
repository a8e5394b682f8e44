//! Streams and events: handles. When their work counts as done is for [`queue`].

use crate::state::{Handle, NOT_READY, SUCCESS, device, fail, new_handle};
use crate::{put, queue};
use std::ffi::{c_int, c_uint, c_void};

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamCreate(place: *mut Handle) -> c_int {
    new_handle(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamCreateWithFlags(place: *mut Handle, _flags: c_uint) -> c_int {
    new_handle(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamCreateWithPriority(
    place: *mut Handle,
    _flags: c_uint,
    _priority: c_int,
) -> c_int {
    new_handle(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamGetPriority(_stream: Handle, priority: *mut c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(priority, 0) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamGetFlags(_stream: Handle, flags: *mut c_uint) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(flags, 1) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamGetId(stream: Handle, id: *mut u64) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(id, stream as u64) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamGetDevice(_stream: Handle, place: *mut c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, device() as c_int) };
    SUCCESS
}

type HostFunction = Option<unsafe extern "C" fn(*mut c_void)>;
type StreamCallback = Option<unsafe extern "C" fn(Handle, c_int, *mut c_void)>;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaLaunchHostFunc(
    _stream: Handle,
    function: HostFunction,
    data: *mut c_void,
) -> c_int {
    if let Some(function) = function {
        // SAFETY: the caller gave the function for this.
        unsafe { function(data) }
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaStreamAddCallback(
    stream: Handle,
    callback: StreamCallback,
    data: *mut c_void,
    _flags: c_uint,
) -> c_int {
    if let Some(callback) = callback {
        // SAFETY: the caller gave the function for this.
        unsafe { callback(stream, SUCCESS, data) }
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaEventCreate(place: *mut Handle) -> c_int {
    new_handle(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaEventCreateWithFlags(place: *mut Handle, _flags: c_uint) -> c_int {
    new_handle(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaEventElapsedTime(milliseconds: *mut f32, start: Handle, end: Handle) -> c_int {
    // A millisecond, where nothing is known to have taken time.
    let time = queue::elapsed(start as usize, end as usize).map_or(1.0, |time| time as f32 / 1e6);
    // SAFETY: an out parameter of C.
    unsafe { put(milliseconds, time) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaEventElapsedTime_v2(milliseconds: *mut f32, start: Handle, end: Handle) -> c_int {
    cudaEventElapsedTime(milliseconds, start, end)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaEventRecord(event: Handle, stream: Handle) -> c_int {
    queue::record(event as usize, stream as usize);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaEventRecordWithFlags(event: Handle, stream: Handle, _flags: c_uint) -> c_int {
    cudaEventRecord(event, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaEventQuery(event: Handle) -> c_int {
    if queue::is_done(event as usize) { SUCCESS } else { fail(NOT_READY) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaEventSynchronize(event: Handle) -> c_int {
    queue::finish_event(event as usize);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaEventDestroy(event: Handle) -> c_int {
    queue::forget(event as usize);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) -> c_int {
    queue::wait(stream as usize, event as usize);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamSynchronize(stream: Handle) -> c_int {
    queue::finish_stream(stream as usize);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaDeviceSynchronize() -> c_int {
    queue::finish_all();
    SUCCESS
}

does_nothing! {
    cudaStreamDestroy cudaStreamQuery cudaStreamSetAttribute cudaStreamCopyAttributes
}
