//! The CUDA runtime: `cudaMalloc` and its neighbours.
//!
//! Streams and events are handles; when their work counts as done is for [`queue`]. What the runtime says without a device (versions, error names) is left to the installed library.

use crate::card::Card;
use crate::{driver, guarded, handle, lock, memory, put, queue, sys};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

pub const SUCCESS: c_int = 0;
pub const INVALID_VALUE: c_int = 1;
pub const OUT_OF_MEMORY: c_int = 2;
pub const INVALID_DEVICE: c_int = 101;
pub const NOT_READY: c_int = 600;
pub const NOT_SUPPORTED: c_int = 801;
pub const SYMBOL_NOT_FOUND: c_int = 500;

type Handle = *mut c_void;

thread_local! {
    static DEVICE: Cell<c_int> = const { Cell::new(0) };
    static LAST_ERROR: Cell<c_int> = const { Cell::new(0) };
}

/// Streams that capture a graph, with the capture's number.
static CAPTURES: Mutex<BTreeMap<usize, u64>> = Mutex::new(BTreeMap::new());
/// Devices whose context was made by use, as PyTorch asks the driver.
static USED: Mutex<BTreeSet<c_int>> = Mutex::new(BTreeSet::new());

/// The current device of this thread.
pub fn device() -> usize {
    let device = DEVICE.try_with(Cell::get).unwrap_or(0);
    usize::try_from(device).unwrap_or(0)
}

/// Whether a device has a context.
pub fn has_context(device: c_int) -> bool {
    lock(&USED).contains(&device)
}

/// Gives the current device a context.
pub fn make_context() {
    lock(&USED).insert(device() as c_int);
}

fn fail(code: c_int) -> c_int {
    let _ = LAST_ERROR.try_with(|last| last.set(code));
    code
}

fn new_handle(place: *mut Handle) -> c_int {
    // SAFETY: C's caller gives a place for a handle.
    unsafe { put(place, handle() as Handle) };
    SUCCESS
}

// ----------------------------------------------------------------------------------------------- devices

#[unsafe(no_mangle)]
pub extern "C" fn cudaGetDeviceCount(count: *mut c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(count, Card::get().visible()) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGetDevice(place: *mut c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, device() as c_int) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaSetDevice(device: c_int) -> c_int {
    if !(0..Card::get().visible()).contains(&device) {
        return fail(INVALID_DEVICE);
    }
    let _ = DEVICE.try_with(|current| current.set(device));
    make_context();
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaInitDevice(device: c_int, _flags: c_uint, _more: c_uint) -> c_int {
    if (0..Card::get().visible()).contains(&device) { SUCCESS } else { fail(INVALID_DEVICE) }
}

/// Offsets of `cudaDeviceProp` that differ between CUDA 12 and 13; those before `multiProcessorCount` are the same.
struct Layout {
    size: usize,
    sms: usize,
    can_map: usize,
    concurrent: usize,
    pci_bus: usize,
    engines: usize,
    unified: usize,
    bus_width: usize,
    l2: usize,
    threads_per_sm: usize,
    priorities: usize,
    shared_per_sm: usize,
    registers_per_sm: usize,
    managed: usize,
    concurrent_managed: usize,
    cooperative: usize,
    shared_optin: usize,
    blocks_per_sm: usize,
    reserved_shared: usize,
    pools: usize,
}

const CUDA_12: Layout = Layout {
    size: 1032,
    sms: 388,
    can_map: 400,
    concurrent: 576,
    pci_bus: 584,
    engines: 600,
    unified: 604,
    bus_width: 612,
    l2: 616,
    threads_per_sm: 624,
    priorities: 628,
    shared_per_sm: 640,
    registers_per_sm: 648,
    managed: 652,
    concurrent_managed: 676,
    cooperative: 688,
    shared_optin: 696,
    blocks_per_sm: 712,
    reserved_shared: 720,
    pools: 744,
};

const CUDA_13: Layout = Layout {
    size: 1008,
    sms: 384,
    can_map: 392,
    concurrent: 560,
    pci_bus: 568,
    engines: 584,
    unified: 588,
    bus_width: 592,
    l2: 596,
    threads_per_sm: 604,
    priorities: 608,
    shared_per_sm: 624,
    registers_per_sm: 632,
    managed: 636,
    concurrent_managed: 656,
    cooperative: 668,
    shared_optin: 672,
    blocks_per_sm: 688,
    reserved_shared: 696,
    pools: 720,
};

/// Writes a `cudaDeviceProp`.
///
/// # Safety
/// `place` has `layout.size` bytes.
unsafe fn properties(place: *mut u8, index: c_int, layout: &Layout) {
    let card = Card::get();
    let architecture = card.architecture();
    let mut total = card.memory as usize;
    if let Some(ask) = guarded::total() {
        ask(&raw mut total, index);
    }
    // SAFETY: every offset lies within the struct's size, which the caller vouches for.
    unsafe {
        place.write_bytes(0, layout.size);
        let name = card.name.as_bytes();
        std::ptr::copy_nonoverlapping(name.as_ptr(), place, name.len().min(255));
        // A number of its own for each device, as libraries tell devices apart by it.
        place.add(256).copy_from(b"oomph-virtual-gp".as_ptr(), 15);
        place.add(271).write(index as u8);
        let int = |offset: usize, value: c_int| put(place.add(offset).cast::<c_int>(), value);
        let size = |offset: usize, value: u64| put(place.add(offset).cast::<u64>(), value);
        size(288, total as u64);
        size(296, 49152);
        int(304, 65536);
        int(308, 32);
        size(312, 0x7fff_ffff);
        int(320, 1024);
        for (offset, value) in
            [(324, 1024), (328, 1024), (332, 64), (336, 0x7fff_ffff), (340, 65535), (344, 65535)]
        {
            int(offset, value);
        }
        size(352, 65536);
        int(360, card.major);
        int(364, card.minor);
        int(layout.sms, card.sms);
        int(layout.can_map, 1);
        int(layout.concurrent, 1);
        int(layout.pci_bus, index + 1);
        int(layout.engines, 3);
        int(layout.unified, 1);
        int(layout.bus_width, 5120);
        int(layout.l2, architecture.l2);
        int(layout.threads_per_sm, architecture.threads_per_sm);
        int(layout.priorities, 1);
        size(layout.shared_per_sm, architecture.shared_per_sm as u64);
        int(layout.registers_per_sm, 65536);
        int(layout.managed, 1);
        int(layout.concurrent_managed, 1);
        int(layout.cooperative, 1);
        size(layout.shared_optin, architecture.shared_per_block_optin as u64);
        int(layout.blocks_per_sm, architecture.blocks_per_sm);
        size(layout.reserved_shared, 1024);
        int(layout.pools, 1);
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGetDeviceProperties_v2(place: *mut u8, device: c_int) -> c_int {
    // SAFETY: this symbol is CUDA 12's.
    unsafe { properties(place, device, &CUDA_12) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGetDeviceProperties(place: *mut u8, device: c_int) -> c_int {
    // SAFETY: programs built with CUDA 12 call the other one; this is CUDA 13's.
    unsafe { properties(place, device, &CUDA_13) };
    SUCCESS
}

/// `cudaDeviceAttr` and `CUdevice_attribute` have the same numbers.
pub fn attribute(number: c_int) -> c_int {
    let card = Card::get();
    let architecture = card.architecture();
    match number {
        1..=3 => 1024,
        4 => 64,
        5 => 0x7fff_ffff,
        6 | 7 => 65535,
        8 => 49152,
        9 => 65536,
        10 => 32,
        11 => 0x7fff_ffff,
        12 => 65536,
        13 => 1_500_000,
        14 => 512,
        16 => card.sms,
        18 | 26 => 0,
        15 | 19 | 31 | 41 => 1,
        33 => 1,
        36 => 3_000_000,
        37 => 5120,
        38 => architecture.l2,
        39 => architecture.threads_per_sm,
        40 => 3,
        75 => card.major,
        76 => card.minor,
        78..=80 => 1,
        81 => architecture.shared_per_sm,
        82 => 65536,
        83 => 1,
        86 | 88 | 89 | 91 => 1,
        95 => 1,
        97 => architecture.shared_per_block_optin,
        98 | 102 | 103 => 1,
        106 => architecture.blocks_per_sm,
        111 => 1024,
        115 => 1,
        120 => c_int::from(card.major >= 9),
        // Multicast, fabric handles, host NUMA: one card in a plain machine has none.
        _ => 0,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaDeviceGetAttribute(value: *mut c_int, number: c_int, _device: c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(value, attribute(number)) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaDeviceGetPCIBusId(text: *mut c_char, length: c_int, device: c_int) -> c_int {
    let id = format!("0000:{:02x}:00.0\0", device + 1);
    let length = usize::try_from(length).unwrap_or(0).min(id.len());
    if !text.is_null() && length > 0 {
        // SAFETY: the caller's buffer has `length` bytes; the last becomes the end.
        unsafe {
            std::ptr::copy_nonoverlapping(id.as_ptr().cast(), text, length);
            text.add(length - 1).write(0);
        }
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaDeviceGetByPCIBusId(device: *mut c_int, _id: *const c_char) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(device, 0) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaDeviceCanAccessPeer(can: *mut c_int, one: c_int, other: c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(can, c_int::from(one != other)) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaDeviceGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> c_int {
    // SAFETY: out parameters of C.
    unsafe {
        put(least, 0);
        put(greatest, -5);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaDeviceGetLimit(value: *mut usize, limit: c_int) -> c_int {
    // Stack, printf buffer, heap: the defaults.
    let size = match limit {
        0 => 1024,
        1 => 1 << 20,
        2 => 8 << 20,
        _ => 0,
    };
    // SAFETY: an out parameter of C.
    unsafe { put(value, size) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaDriverGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(version, driver::version()) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGetLastError() -> c_int {
    LAST_ERROR.try_with(|last| last.replace(0)).unwrap_or(0)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaPeekAtLastError() -> c_int {
    LAST_ERROR.try_with(Cell::get).unwrap_or(0)
}

// ------------------------------------------------------------------------------------------------ memory

/// What the driver gives, without a guard in front of it.
pub fn give_memory(place: *mut *mut c_void, size: usize) -> c_int {
    make_context();
    give(place, memory::allocate(device(), size as u64))
}

/// What the driver gives of a device's pool.
pub fn give_pooled_memory(place: *mut *mut c_void, size: usize, device: usize) -> c_int {
    make_context();
    give(place, memory::allocate_pooled(device, size as u64))
}

fn give(place: *mut *mut c_void, address: Option<u64>) -> c_int {
    match address {
        Some(address) => {
            // SAFETY: an out parameter of C.
            unsafe { put(place, address as *mut c_void) };
            SUCCESS
        }
        None => {
            // SAFETY: an out parameter of C.
            unsafe { put(place, std::ptr::null_mut()) };
            fail(OUT_OF_MEMORY)
        }
    }
}

/// What the driver takes back.
pub fn take_memory(address: *mut c_void) -> c_int {
    if address.is_null() || memory::release(address as u64) || memory::unpin(address) {
        SUCCESS
    } else {
        fail(INVALID_VALUE)
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaMalloc(place: *mut *mut c_void, size: usize) -> c_int {
    match guarded::allocate() {
        Some(allocate) => check(allocate(place, size)),
        None => give_memory(place, size),
    }
}

/// Remembers an error of the driver's, as the runtime does.
fn check(code: c_int) -> c_int {
    if code == SUCCESS { SUCCESS } else { fail(code) }
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
pub extern "C" fn cudaMallocManaged(place: *mut *mut c_void, size: usize, _flags: c_uint) -> c_int {
    cudaMallocHost(place, size)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaMallocHost(place: *mut *mut c_void, size: usize) -> c_int {
    let memory = memory::pin(size);
    // SAFETY: an out parameter of C.
    unsafe { put(place, memory) };
    if memory.is_null() { fail(OUT_OF_MEMORY) } else { SUCCESS }
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaHostAlloc(place: *mut *mut c_void, size: usize, _flags: c_uint) -> c_int {
    cudaMallocHost(place, size)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaFreeHost(address: *mut c_void) -> c_int {
    if address.is_null() || memory::unpin(address) { SUCCESS } else { fail(INVALID_VALUE) }
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

/// What the driver says.
pub fn give_info(free: *mut usize, total: *mut usize) -> c_int {
    make_context();
    let (unused, all) = memory::info(device());
    // SAFETY: out parameters of C.
    unsafe {
        put(free, unused as usize);
        put(total, all as usize);
    }
    SUCCESS
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
    } else if memory::is_pinned(address) {
        let device = device() as c_int;
        PointerAttributes { kind: 1, device, device_pointer: address, host_pointer: address }
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

/// Device variables of a program: one place for all, since nothing computes with them.
#[unsafe(no_mangle)]
pub extern "C" fn cudaGetSymbolAddress(place: *mut *mut c_void, _symbol: *const c_void) -> c_int {
    static VARIABLES: AtomicU64 = AtomicU64::new(0);
    let mut address = VARIABLES.load(Ordering::Relaxed);
    if address == 0 {
        address = memory::reserve(memory::UNIT).unwrap_or(0);
        VARIABLES.store(address, Ordering::Relaxed);
    }
    // SAFETY: an out parameter of C.
    unsafe { put(place, address as *mut c_void) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGetSymbolSize(size: *mut usize, _symbol: *const c_void) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(size, 8) };
    SUCCESS
}

/// The default pools' handles; a device follows from its own.
const POOLS: usize = 0x6f00;

/// The device of a pool. Pools that a program makes share their device's.
pub fn device_of_pool(pool: Handle) -> usize {
    let index = (pool as usize).wrapping_sub(POOLS);
    if index < Card::get().visible() as usize { index } else { device() }
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaDeviceGetDefaultMemPool(place: *mut Handle, device: c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, (POOLS + device as usize) as Handle) };
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

/// As above.
#[unsafe(no_mangle)]
pub extern "C" fn cudaIpcOpenMemHandle() -> c_int {
    fail(NOT_SUPPORTED)
}

/// As above.
#[unsafe(no_mangle)]
pub extern "C" fn cudaIpcGetEventHandle() -> c_int {
    fail(NOT_SUPPORTED)
}

/// As above.
#[unsafe(no_mangle)]
pub extern "C" fn cudaIpcOpenEventHandle() -> c_int {
    fail(NOT_SUPPORTED)
}

/// Graphs take no memory of their own: PyTorch captures with its own allocator.
#[unsafe(no_mangle)]
pub extern "C" fn cudaDeviceGetGraphMemAttribute(
    _device: c_int,
    _attribute: c_int,
    value: *mut u64,
) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(value, 0) };
    SUCCESS
}

// ------------------------------------------------------------------------------------ streams, events, graphs

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
pub extern "C" fn cudaEventElapsedTime(milliseconds: *mut f32, _start: Handle, _end: Handle) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(milliseconds, 1.0) };
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

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamBeginCapture(stream: Handle, _mode: c_int) -> c_int {
    lock(&CAPTURES).insert(stream as usize, handle() as u64);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamBeginCaptureToGraph(stream: Handle) -> c_int {
    cudaStreamBeginCapture(stream, 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamEndCapture(stream: Handle, graph: *mut Handle) -> c_int {
    lock(&CAPTURES).remove(&(stream as usize));
    new_handle(graph)
}

fn capture(stream: Handle) -> Option<u64> {
    lock(&CAPTURES).get(&(stream as usize)).copied()
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamIsCapturing(stream: Handle, status: *mut c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(status, c_int::from(capture(stream).is_some())) };
    SUCCESS
}

fn capture_info(
    stream: Handle,
    status: *mut c_int,
    id: *mut u64,
    graph: *mut Handle,
    dependencies: *mut usize,
) -> c_int {
    let number = capture(stream);
    // SAFETY: out parameters of C.
    unsafe {
        put(status, c_int::from(number.is_some()));
        put(id, number.unwrap_or(0));
        put(graph, number.unwrap_or(0) as Handle);
        put(dependencies, 0);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamGetCaptureInfo_v2(
    stream: Handle,
    status: *mut c_int,
    id: *mut u64,
    graph: *mut Handle,
    _nodes: *mut c_void,
    count: *mut usize,
) -> c_int {
    capture_info(stream, status, id, graph, count)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamGetCaptureInfo_v3(
    stream: Handle,
    status: *mut c_int,
    id: *mut u64,
    graph: *mut Handle,
    _nodes: *mut c_void,
    _edges: *mut c_void,
    count: *mut usize,
) -> c_int {
    capture_info(stream, status, id, graph, count)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamGetCaptureInfo(
    stream: Handle,
    status: *mut c_int,
    id: *mut u64,
    graph: *mut Handle,
    _nodes: *mut c_void,
    _edges: *mut c_void,
    count: *mut usize,
) -> c_int {
    capture_info(stream, status, id, graph, count)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGraphCreate(place: *mut Handle, _flags: c_uint) -> c_int {
    new_handle(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGraphInstantiate(place: *mut Handle, _graph: Handle, _flags: u64) -> c_int {
    new_handle(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGraphInstantiateWithFlags(place: *mut Handle, _graph: Handle, _flags: u64) -> c_int {
    new_handle(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGraphGetNodes(_graph: Handle, _nodes: *mut Handle, count: *mut usize) -> c_int {
    // SAFETY: an out parameter of C. One: PyTorch warns of empty graphs.
    unsafe { put(count, 1) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGraphAddEmptyNode(place: *mut Handle) -> c_int {
    new_handle(place)
}

/// `cudaGraphNodeParams`, as far as nodes that hold graphs use it.
#[repr(C)]
pub struct NodeParameters {
    kind: c_int,
    reserved: [c_int; 3],
    condition: u64,
    condition_kind: c_int,
    count: c_uint,
    graphs: *const Handle,
}

/// `cudaGraphNodeTypeConditional`.
const CONDITIONAL: c_int = 13;

/// CUDA 13's form; PyTorch uses it for conditional nodes only, whose graphs the runtime makes and keeps.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaGraphAddNode(
    place: *mut Handle,
    _graph: Handle,
    _dependencies: *const Handle,
    _edges: *const c_void,
    _count: usize,
    parameters: *mut NodeParameters,
) -> c_int {
    // SAFETY: null, or the caller's struct.
    if let Some(parameters) = unsafe { parameters.as_mut() }
        && parameters.kind == CONDITIONAL
    {
        let graphs: Vec<Handle> = (0..parameters.count).map(|_| handle() as Handle).collect();
        parameters.graphs = graphs.leak().as_ptr();
    }
    new_handle(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGraphConditionalHandleCreate(place: *mut u64) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, handle() as u64) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGraphNodeGetType(_node: Handle, kind: *mut c_int) -> c_int {
    // SAFETY: an out parameter of C. A kernel.
    unsafe { put(kind, 0) };
    SUCCESS
}

/// Nodes depend on nothing. CUDA 13 has one argument more before the count.
#[unsafe(no_mangle)]
pub extern "C" fn cudaGraphNodeGetDependencies(
    _node: Handle,
    _dependencies: *mut Handle,
    third: *mut usize,
    fourth: *mut usize,
) -> c_int {
    let count = if driver::version() >= 13_000 { fourth } else { third };
    // SAFETY: an out parameter of C.
    unsafe { put(count, 0) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaUserObjectCreate(place: *mut Handle) -> c_int {
    new_handle(place)
}

// ----------------------------------------------------------------------------------------------- kernels

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

/// Blocks that fit on a multiprocessor by their threads alone: registers are not known.
pub fn occupancy(threads: c_int) -> c_int {
    let architecture = Card::get().architecture();
    (architecture.threads_per_sm / threads.max(1)).clamp(1, architecture.blocks_per_sm)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: *mut c_int,
    _function: *const c_void,
    threads: c_int,
    _shared: usize,
) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(blocks, occupancy(threads)) };
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
    unsafe { put(blocks, occupancy(threads)) };
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

/// Nothing is registered: kernels are names that nobody launches.
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
    cudaGetSymbolSize(size, std::ptr::null());
    cudaGetSymbolAddress(place, std::ptr::null())
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaLibraryGetManaged(place: *mut *mut c_void, size: *mut usize, library: Handle) -> c_int {
    cudaLibraryGetGlobal(place, size, library)
}

macro_rules! launches {
    ($($name:ident)*) => {$(
        /// A kernel that does nothing.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            queue::launch();
            SUCCESS
        }
    )*};
}

// Arguments that are not read need not be declared: C's callers clean up after themselves.
launches! {
    __cudaLaunchKernel __cudaLaunchKernel_ptsz cudaLaunchKernel cudaLaunchKernelExC cudaLaunchCooperativeKernel
    cudaGraphLaunch
}

macro_rules! does_nothing {
    ($($name:ident)*) => {$(
        /// Succeeds; there is nothing to do.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            SUCCESS
        }
    )*};
}

does_nothing! {
    __cudaRegisterFatBinaryEnd __cudaUnregisterFatBinary __cudaRegisterFunction __cudaRegisterVar
    __cudaRegisterManagedVar __cudaInitModule __cudaRegisterHostVar

    cudaFuncSetAttribute cudaFuncSetCacheConfig cudaFuncSetSharedMemConfig
    cudaDeviceReset cudaDeviceEnablePeerAccess cudaDeviceDisablePeerAccess
    cudaDeviceSetLimit cudaDeviceSetCacheConfig cudaSetDeviceFlags cudaDeviceSetMemPool
    cudaStreamDestroy cudaStreamQuery cudaStreamSetAttribute
    cudaStreamAttachMemAsync cudaStreamCopyAttributes cudaThreadExchangeStreamCaptureMode

    cudaGraphDestroy cudaGraphExecDestroy cudaGraphUpload cudaGraphDebugDotPrint
    cudaGraphRetainUserObject cudaUserObjectRelease cudaLibraryUnload cudaStreamUpdateCaptureDependencies
    cudaDeviceSetGraphMemAttribute cudaIpcCloseMemHandle
    cudaMemPoolSetAccess cudaMemPoolDestroy
    cudaMemAdvise cudaMemAdvise_v2 cudaMemPrefetchAsync cudaMemPrefetchAsync_v2
    cudaMemcpyToSymbol cudaMemcpyToSymbolAsync cudaMemcpyFromSymbol cudaMemcpyFromSymbolAsync
    cudaProfilerStart cudaProfilerStop cudaCtxResetPersistingL2Cache
}

// -------------------------------------------------------------------------------------- the driver's functions

/// The driver's function of a name: ours, or a stub made for it.
pub fn entry_point(name: *const c_char) -> *mut c_void {
    if name.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: a C string of the caller.
    let wanted = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    // The driver answers with the newest form of a function; those have a suffix.
    for suffix in ["_v2", ""] {
        let Ok(full) = CString::new(format!("{wanted}{suffix}")) else { break };
        let mut found = guarded::find(&full);
        if found.is_null() {
            // SAFETY: a C string; dlsym gives null for what is not there.
            found = unsafe { sys::dlsym(sys::RTLD_DEFAULT, full.as_ptr()) };
        }
        if !found.is_null() {
            return found;
        }
    }
    std::ptr::null_mut()
}

fn give_entry_point(name: *const c_char, place: *mut *mut c_void, status: *mut c_int) -> c_int {
    let found = entry_point(name);
    // SAFETY: out parameters of C.
    unsafe {
        put(place, found);
        put(status, c_int::from(found.is_null()));
    }
    if found.is_null() { fail(SYMBOL_NOT_FOUND) } else { SUCCESS }
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGetDriverEntryPoint(
    name: *const c_char,
    place: *mut *mut c_void,
    _flags: u64,
    status: *mut c_int,
) -> c_int {
    give_entry_point(name, place, status)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGetDriverEntryPointByVersion(
    name: *const c_char,
    place: *mut *mut c_void,
    _version: c_uint,
    _flags: u64,
    status: *mut c_int,
) -> c_int {
    give_entry_point(name, place, status)
}
