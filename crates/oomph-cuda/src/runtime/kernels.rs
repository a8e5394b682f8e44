//! Kernels: names that are never run, how they would be launched, and libraries of them.

use crate::allocation::give_variable;
use crate::card::Card;
use crate::put;
use crate::state::{Handle, SUCCESS, new_handle};
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::AtomicU64;

#[repr(C)]
pub struct FunctionAttributes {
    shared: usize,
    constant: usize,
    local: usize,
    max_threads: c_int,
    registers: c_int,
    ptx: c_int,
    binary: c_int,
    cache_mode: c_int,
    max_dynamic_shared: c_int,
    carveout: c_int,
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaFuncGetAttributes(place: *mut FunctionAttributes, _function: *const c_void) -> c_int {
    let card = Card::get();
    let attributes = FunctionAttributes {
        shared: 0,
        constant: 0,
        local: 0,
        max_threads: 1024,
        registers: 32,
        ptx: card.built_for(),
        binary: card.built_for(),
        cache_mode: 0,
        max_dynamic_shared: 49152,
        carveout: -1,
    };
    // SAFETY: an out parameter of C; the struct's later fields, which are left as they are, came after these.
    unsafe { put(place, attributes) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: *mut c_int,
    _function: *const c_void,
    threads: c_int,
    _shared: usize,
) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(blocks, Card::get().occupancy(threads)) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    blocks: *mut c_int,
    _function: *const c_void,
    threads: c_int,
    _shared: usize,
    _flags: c_uint,
) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(blocks, Card::get().occupancy(threads)) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaOccupancyMaxActiveClusters(
    clusters: *mut c_int,
    _function: *const c_void,
    _configuration: *const c_void,
) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(clusters, Card::get().sms) };
    SUCCESS
}

/// Nothing is registered: kernels are names that are never launched.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterFatBinary(_binary: *mut c_void) -> *mut *mut c_void {
    static PLACE: AtomicU64 = AtomicU64::new(0);
    PLACE.as_ptr().cast()
}

/// The configuration of a launch travels through the runtime: what was pushed is popped.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Dimensions {
    x: c_uint,
    y: c_uint,
    z: c_uint,
}

thread_local! {
    static CONFIGURATION: Cell<(Dimensions, Dimensions, usize, usize)> =
        const { Cell::new((Dimensions { x: 1, y: 1, z: 1 }, Dimensions { x: 1, y: 1, z: 1 }, 0, 0)) };
}

#[unsafe(no_mangle)]
pub extern "C" fn __cudaPushCallConfiguration(
    grid: Dimensions,
    block: Dimensions,
    shared: usize,
    stream: Handle,
) -> c_uint {
    let _ = CONFIGURATION.try_with(|place| place.set((grid, block, shared, stream as usize)));
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn __cudaPopCallConfiguration(
    grid: *mut Dimensions,
    block: *mut Dimensions,
    shared: *mut usize,
    stream: *mut Handle,
) -> c_int {
    let (one, other, size, of) = CONFIGURATION.try_with(Cell::get).unwrap_or((
        Dimensions { x: 1, y: 1, z: 1 },
        Dimensions { x: 1, y: 1, z: 1 },
        0,
        0,
    ));
    // SAFETY: out parameters of C.
    unsafe {
        put(grid, one);
        put(block, other);
        put(shared, size);
        put(stream, of as Handle);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn __cudaGetKernel(place: *mut Handle, function: *const c_void) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, function as Handle) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaLibraryLoadData(place: *mut Handle) -> c_int {
    new_handle(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaLibraryLoadFromFile(place: *mut Handle) -> c_int {
    new_handle(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaLibraryGetKernel(place: *mut Handle, _library: Handle, _name: *const c_char) -> c_int {
    new_handle(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaLibraryGetUnifiedFunction(
    place: *mut Handle,
    _library: Handle,
    _name: *const c_char,
) -> c_int {
    new_handle(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaLibraryGetKernelCount(count: *mut c_uint, _library: Handle) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(count, 0) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaLibraryGetGlobal(place: *mut *mut c_void, size: *mut usize, _library: Handle) -> c_int {
    give_variable(place, size)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaLibraryGetManaged(place: *mut *mut c_void, size: *mut usize, library: Handle) -> c_int {
    cudaLibraryGetGlobal(place, size, library)
}

launches! {
    __cudaLaunchKernel __cudaLaunchKernel_ptsz cudaLaunchKernel cudaLaunchKernelExC cudaLaunchCooperativeKernel
}

does_nothing! {
    __cudaRegisterFatBinaryEnd __cudaUnregisterFatBinary __cudaRegisterFunction __cudaRegisterVar
    __cudaRegisterManagedVar __cudaInitModule __cudaRegisterHostVar cudaFuncSetAttribute
    cudaFuncSetCacheConfig cudaFuncSetSharedMemConfig cudaLibraryUnload
}
