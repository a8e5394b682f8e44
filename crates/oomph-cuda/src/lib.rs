//! The library that is put under CUDA programs: a virtual GPU.
//!
//! Preloaded into a process, it answers for the CUDA runtime and driver, cuBLAS, cuDNN, cuFFT, cuSOLVER, NVML and NCCL: calls succeed,
//! kernels do nothing, memory is accounted as on the card that `OOMPH_VIRTUAL_GPU` describes. What PyTorch allocates is
//! therefore what it would allocate there. No host memory backs device memory, except where small copies were
//! written: those bytes are true (see [`memory`]).
//!
//! One module a library that is stood in for, each a list of C functions; what they share is in [`card`] (what the GPU
//! is), [`memory`] (addresses, accounting, copies), [`queue`] (what the GPU has done), [`state`] (whose turn it is, and what went wrong) and [`calls`] (calls without a model). Functions of
//! NVIDIA's libraries that are not here are answered by stubs that `oomph-predict` makes from what is installed.
//!
//! It runs in another program's process: no dependency, no panic, no thread, no output.

#![allow(non_snake_case)]

#[macro_use]
mod macros;

pub mod absent;
pub mod allocation;
pub mod blas;
pub mod calls;
pub mod card;
pub mod control;
pub mod dense;
pub mod dnn;
pub mod driver;
pub mod fft;
pub mod guarded;
pub mod loaded;
pub mod mappings;
pub mod memory;
pub mod nccl;
pub mod nvml;
pub mod queue;
pub mod runtime;
pub mod solver;
pub mod state;
mod sys;
pub mod twister;

use std::sync::{Mutex, MutexGuard, PoisonError};

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

/// A new opaque handle: a value that is never null and never repeats, behind which nothing lies.
fn handle() -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(0x6f6f_0000);
    NEXT.fetch_add(16, Ordering::Relaxed)
}
