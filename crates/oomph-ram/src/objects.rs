//! Python's own allocators: most objects never reach the C library, which sees only arenas of a MiB.
//!
//! Their functions are replaced by ours, as Python offers for that, and passed on. What they themselves ask the system for until they return is not noted: the objects are.
//!
//! Boundary: only with the interpreter's lock, once; a Python without that lock has other allocators, and is left alone.

use crate::elf;
use crate::hooks::{changed, given, given_back};
use crate::layout::How;
use crate::scope::Scope;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

type Pointer = *mut c_void;

/// CPython's `PyMemAllocatorEx`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Allocator {
    context: Pointer,
    malloc: extern "C" fn(Pointer, usize) -> Pointer,
    calloc: extern "C" fn(Pointer, usize, usize) -> Pointer,
    realloc: extern "C" fn(Pointer, Pointer, usize) -> Pointer,
    free: extern "C" fn(Pointer, Pointer),
}

type Exchange = extern "C" fn(c_int, *mut Allocator);

/// Python's numbers of its allocators for buffers and for objects. The third goes straight to the C library.
const DOMAINS: [c_int; 2] = [1, 2];

/// Who came before us, for each.
struct Before([UnsafeCell<Option<Allocator>>; 2]);

// SAFETY: each is written once, before its functions can be called.
unsafe impl Sync for Before {}

static BEFORE: Before = Before([UnsafeCell::new(None), UnsafeCell::new(None)]);
static DONE: AtomicBool = AtomicBool::new(false);
/// An address in Python itself: that is who has asked.
static PYTHON: AtomicUsize = AtomicUsize::new(0);

/// Stands before Python's allocators. With the interpreter's lock.
pub(crate) fn stand_before() {
    let (Some(get), Some(set)) = (elf::find(c"PyMem_GetAllocator"), elf::find(c"PyMem_SetAllocator")) else {
        return;
    };
    if DONE.swap(true, Relaxed) {
        return;
    }
    PYTHON.store(get, Relaxed);
    // SAFETY: CPython's functions of these names.
    let (get, set) = unsafe { (transmute::<usize, Exchange>(get), transmute::<usize, Exchange>(set)) };
    for (domain, place) in DOMAINS.into_iter().zip(&BEFORE.0) {
        extern "C" fn nothing(_: Pointer, _: usize) -> Pointer {
            std::ptr::null_mut()
        }
        extern "C" fn nothing_of_many(_: Pointer, _: usize, _: usize) -> Pointer {
            std::ptr::null_mut()
        }
        extern "C" fn nothing_changed(_: Pointer, _: Pointer, _: usize) -> Pointer {
            std::ptr::null_mut()
        }
        extern "C" fn nothing_freed(_: Pointer, _: Pointer) {}
        let mut found = Allocator {
            context: std::ptr::null_mut(),
            malloc: nothing,
            calloc: nothing_of_many,
            realloc: nothing_changed,
            free: nothing_freed,
        };
        get(domain, &raw mut found);
        // SAFETY: nobody reads it yet, and this is done once.
        unsafe { *place.get() = Some(found) };
        let mut ours = Allocator { context: place.get().cast(), malloc, calloc, realloc, free };
        set(domain, &raw mut ours);
    }
}

/// # Safety
/// `context` is one of [`BEFORE`], as `stand_before` has handed it out.
#[inline]
unsafe fn before(context: Pointer) -> &'static Allocator {
    // SAFETY: it was filled before its address was given to anybody.
    unsafe { (*context.cast::<Option<Allocator>>()).as_ref().unwrap_unchecked() }
}

extern "C" fn malloc(context: Pointer, size: usize) -> Pointer {
    // SAFETY: Python hands back what it was given.
    let next = unsafe { before(context) };
    let Some(scope) = Scope::enter() else { return (next.malloc)(next.context, size) };
    let block = (next.malloc)(next.context, size);
    given(&scope, block, size, How::Object, PYTHON.load(Relaxed));
    block
}

extern "C" fn calloc(context: Pointer, count: usize, size: usize) -> Pointer {
    // SAFETY: as above.
    let next = unsafe { before(context) };
    let Some(scope) = Scope::enter() else { return (next.calloc)(next.context, count, size) };
    let block = (next.calloc)(next.context, count, size);
    given(&scope, block, count.saturating_mul(size), How::Object, PYTHON.load(Relaxed));
    block
}

extern "C" fn realloc(context: Pointer, block: Pointer, size: usize) -> Pointer {
    // SAFETY: as above.
    let next = unsafe { before(context) };
    let Some(scope) = Scope::enter() else { return (next.realloc)(next.context, block, size) };
    changed(&scope, block, size, How::Object, PYTHON.load(Relaxed), || {
        (next.realloc)(next.context, block, size)
    })
}

extern "C" fn free(context: Pointer, block: Pointer) {
    // SAFETY: as above.
    let next = unsafe { before(context) };
    given_back(block, || (next.free)(next.context, block));
}
