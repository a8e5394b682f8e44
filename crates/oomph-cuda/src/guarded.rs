//! The way to the driver when the guard stands in front of it.
//!
//! NVIDIA's runtime takes memory from the driver, by the driver's exported functions; so whoever stands in front of those
//! sees every request. Here runtime and driver are one library, and a call would not leave it: where `liboomph_guard.so` is loaded,
//! the runtime's functions ask for its functions first.

use crate::sys;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// A function of the guard's; null if it has none of that name, or there is no guard.
pub fn find(name: &CStr) -> *mut c_void {
    static LIBRARY: OnceLock<usize> = OnceLock::new();
    let library = *LIBRARY.get_or_init(|| {
        if std::env::var_os("OOMPH_GUARD").is_none() {
            return 0;
        }
        // SAFETY: a C string; only asks whether the library is there.
        unsafe { sys::dlopen(c"liboomph_guard.so".as_ptr(), sys::RTLD_LAZY | sys::RTLD_NOLOAD) as usize }
    });
    if library == 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: a library that is loaded, and a C string.
    unsafe { sys::dlsym(library as *mut c_void, name.as_ptr()) }
}

macro_rules! functions {
    ($($name:ident is $symbol:literal: fn($($type:ty),*);)*) => {$(
        pub fn $name() -> Option<extern "C" fn($($type),*) -> c_int> {
            static ADDRESS: OnceLock<usize> = OnceLock::new();
            let address = *ADDRESS.get_or_init(|| find($symbol) as usize);
            // SAFETY: null or the guard's function of that name, which has the type of the driver's.
            unsafe { std::mem::transmute::<usize, Option<extern "C" fn($($type),*) -> c_int>>(address) }
        }
    )*};
}

functions! {
    allocate is c"cuMemAlloc_v2": fn(*mut *mut c_void, usize);
    free is c"cuMemFree_v2": fn(*mut c_void);
    allocate_pooled is c"cuMemAllocAsync": fn(*mut *mut c_void, usize, *mut c_void);
    allocate_from_pool is c"cuMemAllocFromPoolAsync": fn(*mut *mut c_void, usize, *mut c_void, *mut c_void);
    allocate_managed is c"cuMemAllocManaged": fn(*mut *mut c_void, usize, c_uint);
    free_pooled is c"cuMemFreeAsync": fn(*mut c_void, *mut c_void);
    info is c"cuMemGetInfo_v2": fn(*mut usize, *mut usize);
    total is c"cuDeviceTotalMem_v2": fn(*mut usize, c_int);
}
