//! Devices: how many, which is current, what they are, and the last error.

use crate::card::Card;
use crate::state::{self, INVALID_DEVICE, NOT_FOUND, SUCCESS, device, fail};
use crate::{guarded, loaded, put};
use std::ffi::{c_char, c_int, c_uint, c_void};

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
    state::set_device(device);
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
        // A number of its own for each device, as libraries distinguish devices by it.
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

#[unsafe(no_mangle)]
pub extern "C" fn cudaDeviceGetAttribute(value: *mut c_int, number: c_int, _device: c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(value, Card::get().attribute(number)) };
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
    unsafe { put(version, loaded::version()) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGetLastError() -> c_int {
    state::take_last_error()
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaPeekAtLastError() -> c_int {
    state::last_error()
}

fn give_entry_point(name: *const c_char, place: *mut *mut c_void, status: *mut c_int) -> c_int {
    let found = loaded::entry_point(name);
    // SAFETY: out parameters of C.
    unsafe {
        put(place, found);
        put(status, c_int::from(found.is_null()));
    }
    if found.is_null() { fail(NOT_FOUND) } else { SUCCESS }
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

does_nothing! {
    cudaDeviceReset cudaDeviceEnablePeerAccess cudaDeviceDisablePeerAccess cudaDeviceSetLimit
    cudaDeviceSetCacheConfig cudaSetDeviceFlags cudaProfilerStart cudaProfilerStop
    cudaCtxResetPersistingL2Cache
}
