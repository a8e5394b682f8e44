//! The driver's functions that start work: each passes the gate, and is the driver's otherwise.
//!
//! Copies that wait for their end are here too: they read and write memory as kernels do.

use crate::driver::{Handle, current_device};
use crate::gate::GATE;
use crate::real;
use std::ffi::{c_int, c_uint};

macro_rules! starts_work {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name($($argument: $type),*) -> c_int {
                GATE.pass(current_device, || real!($name($($argument),*)))
            }
        )*

        /// Their names and addresses.
        pub const ALL: &[(&std::ffi::CStr, Function)] = &[
            $((
                // SAFETY: the literal ends with the one zero that it has.
                unsafe { std::ffi::CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) },
                Function($name as *const ()),
            ),)*
        ];
    };
}

/// A function's address, which may be shared.
#[derive(Clone, Copy)]
pub struct Function(pub *const ());

// SAFETY: the address of code.
unsafe impl Sync for Function {}

starts_work! {
    cuLaunchKernel(function: Handle, x: c_uint, y: c_uint, z: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle, arguments: Handle, more: Handle);
    cuLaunchKernel_ptsz(function: Handle, x: c_uint, y: c_uint, z: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle, arguments: Handle, more: Handle);
    cuLaunchKernelEx(how: Handle, function: Handle, arguments: Handle, more: Handle);
    cuLaunchKernelEx_ptsz(how: Handle, function: Handle, arguments: Handle, more: Handle);
    cuLaunchCooperativeKernel(function: Handle, x: c_uint, y: c_uint, z: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle, arguments: Handle);
    cuLaunchCooperativeKernel_ptsz(function: Handle, x: c_uint, y: c_uint, z: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle, arguments: Handle);
    cuGraphLaunch(graph: Handle, stream: Handle);
    cuGraphLaunch_ptsz(graph: Handle, stream: Handle);
    cuMemcpyAsync(to: u64, from: u64, size: usize, stream: Handle);
    cuMemcpyAsync_ptsz(to: u64, from: u64, size: usize, stream: Handle);
    cuMemcpyHtoDAsync_v2(to: u64, from: Handle, size: usize, stream: Handle);
    cuMemcpyHtoDAsync_v2_ptsz(to: u64, from: Handle, size: usize, stream: Handle);
    cuMemcpyDtoHAsync_v2(to: Handle, from: u64, size: usize, stream: Handle);
    cuMemcpyDtoHAsync_v2_ptsz(to: Handle, from: u64, size: usize, stream: Handle);
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, size: usize, stream: Handle);
    cuMemcpyDtoDAsync_v2_ptsz(to: u64, from: u64, size: usize, stream: Handle);
    cuMemcpyHtoD_v2(to: u64, from: Handle, size: usize);
    cuMemcpyHtoD_v2_ptds(to: u64, from: Handle, size: usize);
    cuMemcpyDtoH_v2(to: Handle, from: u64, size: usize);
    cuMemcpyDtoH_v2_ptds(to: Handle, from: u64, size: usize);
    cuMemcpyDtoD_v2(to: u64, from: u64, size: usize);
    cuMemcpyDtoD_v2_ptds(to: u64, from: u64, size: usize);
    cuMemcpy2DAsync_v2(what: Handle, stream: Handle);
    cuMemcpy2DAsync_v2_ptsz(what: Handle, stream: Handle);
    cuMemcpy3DAsync_v2(what: Handle, stream: Handle);
    cuMemcpy3DAsync_v2_ptsz(what: Handle, stream: Handle);
    cuMemsetD8Async(to: u64, value: u8, count: usize, stream: Handle);
    cuMemsetD8Async_ptsz(to: u64, value: u8, count: usize, stream: Handle);
    cuMemsetD16Async(to: u64, value: u16, count: usize, stream: Handle);
    cuMemsetD16Async_ptsz(to: u64, value: u16, count: usize, stream: Handle);
    cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: Handle);
    cuMemsetD32Async_ptsz(to: u64, value: c_uint, count: usize, stream: Handle);
}
