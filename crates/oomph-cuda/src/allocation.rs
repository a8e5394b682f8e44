//! What the driver gives and takes back, with CUDA's error codes: the driver's functions and the runtime's answer alike.
//!
//! Boundary: which device a thread uses and which error it saw last is [`crate::state`]'s, addresses and accounting [`memory`]'s. Whether a guard stands
//! before the driver, the runtime asks.

use crate::card::Card;
use crate::state::{Handle, INVALID_VALUE, OUT_OF_MEMORY, SUCCESS, device, fail, make_context};
use crate::{memory, put};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

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

/// Host memory that the GPU can reach.
pub fn give_pinned(place: *mut *mut c_void, size: usize) -> c_int {
    let memory = memory::pin(size);
    // SAFETY: an out parameter of C.
    unsafe { put(place, memory) };
    if memory.is_null() { fail(OUT_OF_MEMORY) } else { SUCCESS }
}

/// Memory whose pages move between the host and the devices.
pub fn give_managed(place: *mut *mut c_void, size: usize) -> c_int {
    make_context();
    let memory = memory::manage(size);
    // SAFETY: an out parameter of C.
    unsafe { put(place, memory) };
    if memory.is_null() { fail(OUT_OF_MEMORY) } else { SUCCESS }
}

pub fn take_pinned(address: *mut c_void) -> c_int {
    if address.is_null() || memory::unpin(address) { SUCCESS } else { fail(INVALID_VALUE) }
}

/// The default pools' handles; a device follows from its own.
const POOLS: usize = 0x6f00;

/// The device of a pool. Pools that a program makes share their device's.
pub fn device_of_pool(pool: Handle) -> usize {
    let index = (pool as usize).wrapping_sub(POOLS);
    if index < Card::get().visible() as usize { index } else { device() }
}

/// The handle of a device's default pool.
pub fn default_pool(device: c_int) -> Handle {
    (POOLS + device as usize) as Handle
}

/// Bytes that every device variable is said to have.
pub const VARIABLE: usize = 8;

/// Device variables of a program: one place for all, since nothing computes with them.
pub fn give_variable(place: *mut *mut c_void, size: *mut usize) -> c_int {
    static VARIABLES: AtomicU64 = AtomicU64::new(0);
    let mut address = VARIABLES.load(Ordering::Relaxed);
    if address == 0 {
        address = memory::reserve(memory::UNIT).unwrap_or(0);
        VARIABLES.store(address, Ordering::Relaxed);
    }
    // SAFETY: out parameters of C.
    unsafe {
        put(size, VARIABLE);
        put(place, address as *mut c_void);
    }
    SUCCESS
}
