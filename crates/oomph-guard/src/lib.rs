//! The library that is put under CUDA programs on a real GPU: it holds them to a budget, and serves what no longer fits
//! from host memory.
//!
//! Whatever a program uses (PyTorch, cuBLAS, a library of its own), its device memory comes from the driver. This library
//! exports the driver's functions that take and give memory ([`entry`]), so that they are found before the driver's own,
//! and calls the driver ([`driver`]) for the rest. What it counts is in [`ledger`]; what moves between host and device is
//! decided and done in [`overflow`], which knows the driver only by a trait, while other threads are held back ([`gate`],
//! [`launches`]); [`report`] writes what happened.
//! `OOMPH_GUARD` says what to do ([`settings`]); without it every call passes through.
//!
//! It runs in another program's process: no dependency, no panic, no thread, no output but the report that was asked for.
//! Where anything is not as expected, calls pass through to the driver.

#![allow(non_snake_case)]

pub mod context;
pub mod driver;
pub mod entry;
pub mod gate;
pub mod guard;
pub mod launches;
pub mod ledger;
pub mod overflow;
pub mod report;
pub mod settings;
mod sys;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The driver hands memory out, and maps it, in pieces of this size.
pub const GRANULE: u64 = 2 << 20;

/// A lock that a panic elsewhere cannot make unusable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes an out parameter, which callers may leave null.
///
/// # Safety
/// `place` is null or valid for a write of `T`.
unsafe fn put<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: not null, and the caller vouches for the rest; C gives no more alignment than its type has.
        unsafe { place.write_unaligned(value) }
    }
}
