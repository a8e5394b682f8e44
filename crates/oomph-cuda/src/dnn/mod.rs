//! cuDNN. Descriptors are the installed library's own wherever that needs no device.
//!
//! - [`absent`]: descriptors, where cuDNN is not installed.
//! - [`backend`]: graphs, heuristics and plans, answered by the installed library for the card's properties: engines
//!   and workspaces are the true ones.
//! - [`clusters`]: the workspaces that the installed library cannot know from a card's properties.
//! - [`descriptor`]: what both of them know of the installed library's descriptors.
//! - [`estimate`]: workspaces of convolutions, where there is no cuDNN that could be asked.
//! - [`legacy`]: batch normalisation, dropout, CTC; sizes by rules measured on a GPU.
//! - [`search`]: plans that are tried for their time.
//! - [`rnn`]: LSTM, GRU and RNN: layout of weights and sizes of workspaces.

pub mod absent;
pub mod backend;
pub mod clusters;
pub mod descriptor;
pub mod estimate;
pub mod legacy;
pub mod rnn;
pub mod search;

use crate::card::Card;
use crate::sys;
use std::ffi::{CStr, CString, c_int, c_void};
use std::sync::OnceLock;

pub const SUCCESS: c_int = 0;
pub const BAD_PARAM: c_int = 2000;

/// The installed library, whose functions are hidden under this one's: by path, since its name leads here.
struct Installed(*mut c_void);

// SAFETY: a handle of dlopen, which every thread may use.
unsafe impl Send for Installed {}
// SAFETY: as above.
unsafe impl Sync for Installed {}

/// A function of the installed library, or null. Without one, that which answers in its place.
pub fn installed(name: &CStr) -> *mut c_void {
    static LIBRARY: OnceLock<Installed> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        let path = CString::new(Card::get().cudnn.as_str()).unwrap_or_default();
        if path.is_empty() {
            return Installed(std::ptr::null_mut());
        }
        // SAFETY: a C string, and not an empty one, which would be the program itself.
        Installed(unsafe { sys::dlopen(path.as_ptr(), sys::RTLD_LAZY) })
    });
    if library.0.is_null() {
        return absent::function(name);
    }
    // SAFETY: a handle of dlopen and a C string.
    unsafe { sys::dlsym(library.0, name.as_ptr()) }
}

/// The installed library's version, such as 91900; 0 without one.
pub fn version() -> usize {
    static VERSION: OnceLock<usize> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let address = installed(c"cudnnGetVersion");
        if address.is_null() {
            return 0;
        }
        // SAFETY: the function of that name has this type.
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> usize>(address)() }
    })
}
