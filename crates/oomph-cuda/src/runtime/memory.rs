//! Memory: allocations, pools, pinned host memory, copies.

use crate::allocation::{
    VARIABLE, default_pool, device_of_pool, give_info, give_managed, give_memory, give_pinned,
    give_pooled_memory, give_variable, take_memory, take_pinned,
};
use crate::state::{Handle, NOT_SUPPORTED, SUCCESS, check, device, fail, make_context, new_handle};
use crate::{guarded, memory, put, queue};
use std::ffi::{c_int, c_uint, c_void};

#[unsafe(no_mangle)]
pub extern "C" fn cudaMalloc(place: *mut *mut c_void, size: usize) -> c_int {
    match guarded::allocate() {
        Some(allocate) => check(allocate(place, size)),
        None => give_memory(place, size),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaFree(address: *mut c_void) -> c_int {
    // cudaFree(0) is how programs make a context; with an address it waits for the device.
    make_context();
    if !address.is_null() {
        queue::finish_all();
    }
    match guarded::free() {
        Some(free) if !address.is_null() => check(free(address)),
        _ => take_memory(address),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaMallocAsync(place: *mut *mut c_void, size: usize, stream: Handle) -> c_int {
    match guarded::allocate_pooled() {
        Some(allocate) => check(allocate(place, size, stream)),
        None => give_pooled_memory(place, size, device()),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaMallocFromPoolAsync(
    place: *mut *mut c_void,
    size: usize,
    pool: Handle,
    stream: Handle,
) -> c_int {
    match guarded::allocate_from_pool() {
        Some(allocate) => check(allocate(place, size, pool, stream)),
        None => give_pooled_memory(place, size, device_of_pool(pool)),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaFreeAsync(address: *mut c_void, stream: Handle) -> c_int {
    match guarded::free_pooled() {
        Some(free) => check(free(address, stream)),
        None => take_memory(address),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaMallocPitch(
    place: *mut *mut c_void,
    pitch: *mut usize,
    width: usize,
    height: usize,
) -> c_int {
    let row = width.next_multiple_of(512);
    // SAFETY: an out parameter of C.
    unsafe { put(pitch, row) };
    cudaMalloc(place, row.saturating_mul(height))
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaMallocManaged(place: *mut *mut c_void, size: usize, flags: c_uint) -> c_int {
    match guarded::allocate_managed() {
        Some(allocate) => check(allocate(place, size, flags)),
        None => give_managed(place, size),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaMallocHost(place: *mut *mut c_void, size: usize) -> c_int {
    give_pinned(place, size)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaHostAlloc(place: *mut *mut c_void, size: usize, _flags: c_uint) -> c_int {
    give_pinned(place, size)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaFreeHost(address: *mut c_void) -> c_int {
    take_pinned(address)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaHostRegister(address: *mut c_void, size: usize, _flags: c_uint) -> c_int {
    memory::register(address, size);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaHostUnregister(address: *mut c_void) -> c_int {
    memory::unregister(address);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaHostGetDevicePointer(
    place: *mut *mut c_void,
    host: *mut c_void,
    _flags: c_uint,
) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, host) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaMemGetInfo(free: *mut usize, total: *mut usize) -> c_int {
    match guarded::info() {
        Some(info) => check(info(free, total)),
        None => give_info(free, total),
    }
}

/// The first four fields of `cudaPointerAttributes`: the same in every version.
#[repr(C)]
pub struct PointerAttributes {
    kind: c_int,
    device: c_int,
    device_pointer: *const c_void,
    host_pointer: *const c_void,
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaPointerGetAttributes(place: *mut PointerAttributes, address: *const c_void) -> c_int {
    let null = std::ptr::null();
    let attributes = if memory::is_device(address as u64) {
        let device = memory::device_of(address as u64).unwrap_or(0) as c_int;
        PointerAttributes { kind: 2, device, device_pointer: address, host_pointer: null }
    } else if let Some(reached) = memory::reached_at(address) {
        let device = device() as c_int;
        let kind = if reached == memory::Reached::Managed { 3 } else { 1 };
        PointerAttributes { kind, device, device_pointer: address, host_pointer: address }
    } else {
        PointerAttributes { kind: 0, device: -1, device_pointer: null, host_pointer: address }
    };
    // SAFETY: an out parameter of C.
    unsafe { put(place, attributes) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMemcpy(
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    _kind: c_int,
) -> c_int {
    queue::finish_stream(0);
    // SAFETY: C's promise about host memory.
    unsafe { memory::copy(to, from, size) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMemcpyAsync(
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    _kind: c_int,
    _stream: Handle,
) -> c_int {
    // SAFETY: C's promise about host memory.
    unsafe { memory::copy(to, from, size) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMemcpyPeerAsync(
    to: *mut c_void,
    _to_device: c_int,
    from: *const c_void,
    _from_device: c_int,
    size: usize,
    _stream: Handle,
) -> c_int {
    // SAFETY: both ends are device memory, which is checked.
    unsafe { memory::copy(to, from, size) };
    SUCCESS
}

unsafe fn copy_rows(
    to: *mut c_void,
    to_pitch: usize,
    from: *const c_void,
    from_pitch: usize,
    width: usize,
    height: usize,
) {
    for row in 0..height {
        // SAFETY: C's promise: `height` rows of `width` bytes, `pitch` apart.
        unsafe {
            memory::copy(
                to.cast::<u8>().add(row * to_pitch).cast(),
                from.cast::<u8>().add(row * from_pitch).cast(),
                width,
            );
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMemcpy2D(
    to: *mut c_void,
    to_pitch: usize,
    from: *const c_void,
    from_pitch: usize,
    width: usize,
    height: usize,
    _kind: c_int,
) -> c_int {
    // SAFETY: C's promise.
    unsafe { copy_rows(to, to_pitch, from, from_pitch, width, height) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMemcpy2DAsync(
    to: *mut c_void,
    to_pitch: usize,
    from: *const c_void,
    from_pitch: usize,
    width: usize,
    height: usize,
    _kind: c_int,
    _stream: Handle,
) -> c_int {
    // SAFETY: C's promise.
    unsafe { copy_rows(to, to_pitch, from, from_pitch, width, height) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMemset(at: *mut c_void, value: c_int, size: usize) -> c_int {
    // SAFETY: C's promise.
    unsafe { memory::fill(at, value as u8, size) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMemsetAsync(
    at: *mut c_void,
    value: c_int,
    size: usize,
    _stream: Handle,
) -> c_int {
    // SAFETY: C's promise.
    unsafe { memory::fill(at, value as u8, size) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGetSymbolAddress(place: *mut *mut c_void, _symbol: *const c_void) -> c_int {
    give_variable(place, std::ptr::null_mut())
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGetSymbolSize(size: *mut usize, _symbol: *const c_void) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(size, VARIABLE) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaDeviceGetDefaultMemPool(place: *mut Handle, device: c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, default_pool(device)) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaDeviceGetMemPool(place: *mut Handle, device: c_int) -> c_int {
    cudaDeviceGetDefaultMemPool(place, device)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaMemPoolCreate(place: *mut Handle, _properties: *const c_void) -> c_int {
    new_handle(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaMemPoolGetAttribute(pool: Handle, attribute: c_int, value: *mut c_void) -> c_int {
    let has = memory::pool(device_of_pool(pool));
    // SAFETY: the first three attributes are ints, the rest 64 bits.
    unsafe {
        match attribute {
            1..=3 => put(value.cast::<c_int>(), 1),
            5 => put(value.cast::<u64>(), has.reserved),
            6 => put(value.cast::<u64>(), has.reserved_peak),
            7 => put(value.cast::<u64>(), has.used),
            8 => put(value.cast::<u64>(), has.used_peak),
            _ => put(value.cast::<u64>(), 0),
        }
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaMemPoolSetAttribute(pool: Handle, attribute: c_int, _value: *mut c_void) -> c_int {
    // The peaks can only be set to zero, which means what there is now.
    if matches!(attribute, 6 | 8) {
        memory::reset_pool_peaks(device_of_pool(pool));
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaMemPoolTrimTo(pool: Handle, keep: usize) -> c_int {
    memory::trim_pool(device_of_pool(pool), keep as u64);
    SUCCESS
}

/// Memory is not shared between processes here; arguments are not declared since one of them is a struct by value.
#[unsafe(no_mangle)]
pub extern "C" fn cudaIpcGetMemHandle() -> c_int {
    fail(NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaIpcOpenMemHandle() -> c_int {
    fail(NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaIpcGetEventHandle() -> c_int {
    fail(NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaIpcOpenEventHandle() -> c_int {
    fail(NOT_SUPPORTED)
}

does_nothing! {
    cudaDeviceSetMemPool cudaStreamAttachMemAsync cudaIpcCloseMemHandle cudaMemPoolSetAccess
    cudaMemPoolDestroy cudaMemAdvise cudaMemAdvise_v2 cudaMemPrefetchAsync cudaMemPrefetchAsync_v2
    cudaMemcpyToSymbol cudaMemcpyToSymbolAsync cudaMemcpyFromSymbol cudaMemcpyFromSymbolAsync
}
