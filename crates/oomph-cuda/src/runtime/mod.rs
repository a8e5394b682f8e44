//! The CUDA runtime: `cudaMalloc` and its neighbours, by what they are about.
//!
//! What the runtime says without a device (versions, error names) is left to the installed library. What it shares with the driver is in
//! [`crate::state`], [`crate::allocation`] and [`crate::loaded`].

pub mod devices;
pub mod graphs;
pub mod kernels;
pub mod memory;
pub mod streams;
