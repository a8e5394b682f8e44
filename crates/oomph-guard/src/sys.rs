//! The few functions of the C library that are needed, declared here so that no dependency is.

use std::ffi::{CStr, c_char, c_int, c_void};

pub(crate) const RTLD_NOW: c_int = 2;

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Opens a library; null if there is none.
pub(crate) fn open(name: &CStr) -> *mut c_void {
    // SAFETY: a string that ends with a zero; what a library does when it is loaded is the library's.
    unsafe { dlopen(name.as_ptr(), RTLD_NOW) }
}

/// A library's symbol; null if it has none of that name.
pub(crate) fn symbol(library: *mut c_void, name: &CStr) -> *mut c_void {
    if library.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: a handle that `open` gave, and a string that ends with a zero.
    unsafe { dlsym(library, name.as_ptr()) }
}

/// The symbol that would be found were this library not there; null if there is none.
pub(crate) fn next(name: &CStr) -> *mut c_void {
    const RTLD_NEXT: *mut c_void = usize::MAX as *mut c_void;
    // SAFETY: a string that ends with a zero.
    unsafe { dlsym(RTLD_NEXT, name.as_ptr()) }
}
