//! Host memory that PyTorch pins for copies to and from the GPU: it asks CUDA for it, not the C library.
//!
//! Only the entries of PyTorch's own libraries are led here. Memory that is pinned after it was allocated is known already, as what it was.

use crate::elf::{self, Redirect};
use crate::hooks::{begin, given_back};
use crate::layout::How;
use crate::scope::Scope;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::transmute;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

type Pointer = *mut c_void;
type Alloc = extern "C" fn(*mut Pointer, usize, c_uint) -> c_int;
type Free = extern "C" fn(Pointer) -> c_int;

const LIBRARIES: [&str; 2] = ["libtorch_cuda.so", "libc10_cuda.so"];
/// Nothing is loaded by looking for it.
const IF_LOADED: c_int = 1 | 4;

static NEXT_ALLOC: AtomicUsize = AtomicUsize::new(0);
static NEXT_FREE: AtomicUsize = AtomicUsize::new(0);
static LIBRARY: AtomicUsize = AtomicUsize::new(0);

/// Once PyTorch is loaded.
pub(crate) fn stand_before() {
    if NEXT_ALLOC.load(Relaxed) != 0 {
        return;
    }
    for library in LIBRARIES {
        let Some(path) = elf::path_of(library) else { continue };
        // SAFETY: a path of the loader's own; it only finds what is loaded.
        let handle = unsafe { dlopen(path.as_ptr(), IF_LOADED) };
        let of_library = |name: &CStr| {
            // SAFETY: a handle of the loader's; the name is a string.
            let found = unsafe { dlsym(handle, name.as_ptr()) } as usize;
            (found != 0).then_some(found)
        };
        // What is preloaded comes first, as it does for everybody.
        let of = |name: &CStr| elf::find(name).or_else(|| of_library(name));
        let (Some(alloc), Some(free)) = (of(c"cudaHostAlloc"), of(c"cudaFreeHost")) else { continue };
        NEXT_ALLOC.store(alloc, Relaxed);
        NEXT_FREE.store(free, Relaxed);
        LIBRARY.store(handle_address(handle, library), Relaxed);
        let to = |name, to: usize| Redirect { name, to, from: &[], done: false };
        let mut redirects = [
            to(c"cudaHostAlloc", host_alloc as *const () as usize),
            to(c"cudaFreeHost", free_host as *const () as usize),
        ];
        elf::redirect(library, &mut redirects);
    }
}

/// An address in the library: who has asked.
fn handle_address(handle: Pointer, library: &str) -> usize {
    // Any function of its own will do.
    let own = if library.starts_with("libc10") {
        c"_ZN3c104cuda20CUDACachingAllocator9allocatorE"
    } else {
        c"_ZN2at4cuda21getPinnedMemoryAllocatorEv"
    };
    // SAFETY: a handle of the loader's; the name is a string.
    unsafe { dlsym(handle, own.as_ptr()) as usize }
}

extern "C" fn host_alloc(place: *mut Pointer, size: usize, flags: c_uint) -> c_int {
    // SAFETY: CUDA's function; without it nothing was led here.
    let next = unsafe { transmute::<usize, Alloc>(NEXT_ALLOC.load(Relaxed)) };
    let Some(_scope) = Scope::enter() else { return next(place, size, flags) };
    let error = next(place, size, flags);
    if error == 0 && !place.is_null() {
        // SAFETY: it was just written.
        let block = unsafe { place.read() };
        begin(block as usize, size as u64, How::Pinned, LIBRARY.load(Relaxed));
    }
    error
}

extern "C" fn free_host(block: Pointer) -> c_int {
    // SAFETY: as above.
    let next = unsafe { transmute::<usize, Free>(NEXT_FREE.load(Relaxed)) };
    let mut error = 0;
    given_back(block, || error = next(block));
    error
}
