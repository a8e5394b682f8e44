//! Whose function of a name it is that a program calls.
//!
//! The dynamic loader says, with one exception: a program that is linked to run at a fixed address (the Python of Debian and of Ubuntu is) and uses a function's address has a stub of its own under that name,
//! and that is what the loader finds. The stub leads to the next library that has such a function, which may be ours: to call it for that one would never end.

use crate::elf;
use std::ffi::{CStr, c_char, c_int, c_void};

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlclose(handle: *mut c_void) -> c_int;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dladdr1(
        address: *const c_void,
        information: *mut [usize; 4],
        symbol: *mut *const [u64; 3],
        flags: c_int,
    ) -> c_int;
}

const ANY: *mut c_void = std::ptr::null_mut();
const NEXT: *mut c_void = -1isize as *mut c_void;

/// What the loader knows of an address.
struct Known {
    /// Where its library begins.
    library: usize,
    /// Whether it stands for a function of another library.
    is_stub: bool,
    /// Bytes of the function or the thing that is there, if it has a name.
    size: Option<usize>,
}

fn known(address: usize) -> Option<Known> {
    const SYMBOL: c_int = 1;
    let (mut information, mut symbol) = ([0usize; 4], std::ptr::null::<[u64; 3]>());
    // SAFETY: it writes what it is given places for.
    let is_known =
        unsafe { dladdr1(address as *const c_void, &raw mut information, &raw mut symbol, SYMBOL) } != 0;
    // Name, kind and number of the section in the first of three words, the size in the last; no section is 0.
    // SAFETY: an entry of a loaded library's table of symbols, or null.
    let symbol = unsafe { symbol.as_ref() };
    let is_stub = symbol.is_some_and(|symbol| symbol[0] >> 48 == 0);
    is_known.then_some(Known {
        library: information[1],
        is_stub,
        size: symbol.map(|symbol| symbol[2] as usize),
    })
}

/// How long the function is that is at an address, if its library says so.
pub(crate) fn size(address: usize) -> Option<usize> {
    known(address)?.size
}

/// Whether an address is in this library. A function's own name does not say: it stands for what everybody finds.
pub(crate) fn is_ours(address: usize) -> bool {
    let library_of = |address| known(address).map(|known| known.library);
    address != 0 && library_of(address) == library_of(is_ours as *const () as usize)
}

/// The function that everybody calls by this name; 0 if there is none.
pub(crate) fn called_by_all(name: &CStr) -> usize {
    match found_by_all(name) {
        stub if known(stub).is_some_and(|known| known.is_stub) => {
            defined_by_a_library(name).unwrap_or_else(|| next(name))
        }
        found => found,
    }
}

/// What the loader finds by this name: the function, or the program's stub.
pub(crate) fn found_by_all(name: &CStr) -> usize {
    // SAFETY: a string of C's.
    unsafe { dlsym(ANY, name.as_ptr()) as usize }
}

/// The function of this name that comes after ours.
pub(crate) fn next(name: &CStr) -> usize {
    // SAFETY: a string of C's.
    unsafe { dlsym(NEXT, name.as_ptr()) as usize }
}

/// The first library that has it, in the loader's order, the program aside.
fn defined_by_a_library(name: &CStr) -> Option<usize> {
    /// Nothing is loaded by looking for it.
    const IF_LOADED: c_int = 1 | 4;
    elf::libraries().into_iter().find_map(|library| {
        // SAFETY: a path of the loader's own.
        let handle = unsafe { dlopen(library.path.as_ptr(), IF_LOADED) };
        if handle.is_null() {
            return None;
        }
        // SAFETY: a handle of the loader's, given back once. The library was there before, and stays.
        let found = unsafe {
            let found = dlsym(handle, name.as_ptr()) as usize;
            dlclose(handle);
            found
        };
        // Libraries that it needs are searched with it; they have their turn.
        library.addresses.contains(&found).then_some(found)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_have_their_own_functions() {
        let malloc = defined_by_a_library(c"malloc");
        let library =
            elf::libraries().into_iter().find(|one| malloc.is_some_and(|at| one.addresses.contains(&at)));
        assert!(library.is_some_and(|one| one.path.to_string_lossy().contains("libc.so")));
        assert_eq!(defined_by_a_library(c"no_such_function"), None);
        assert!(is_ours(is_ours as *const () as usize) && !malloc.is_some_and(is_ours) && !is_ours(0));
    }
}
