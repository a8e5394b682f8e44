//! What is loaded into the process: the driver's functions by their names, and how new the runtime is.

use crate::state::SUCCESS;
use crate::{guarded, sys};
use std::ffi::{CStr, CString, c_char, c_int, c_void};

/// The driver is as new as the runtime that is installed.
pub fn version() -> c_int {
    // SAFETY: dlsym gives null or the runtime's function, which has this type and needs no device.
    unsafe {
        let address = sys::dlsym(sys::RTLD_DEFAULT, c"cudaRuntimeGetVersion".as_ptr());
        if !address.is_null() {
            let ask: unsafe extern "C" fn(*mut c_int) -> c_int = std::mem::transmute(address);
            let mut version = 0;
            if ask(&raw mut version) == SUCCESS && version > 0 {
                return version;
            }
        }
    }
    13_000
}

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
