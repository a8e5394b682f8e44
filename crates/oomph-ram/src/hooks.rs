//! The C library's functions that give memory, under their own names: each is passed on to whoever comes next, and noted.
//!
//! Whoever comes next is asked for at the first call, and asking may itself need memory: that comes from a small store. Nothing here changes `errno`, which callers of `free` may be
//! in the middle of reading.

use crate::layout::How;
use crate::live::may_hold;
use crate::python;
use crate::scope::{Scope, looking};
use crate::session;
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn __errno_location() -> *mut c_int;
}

const NEXT: *mut c_void = -1isize as *mut c_void;
/// From this size on each block is recorded.
pub const LARGE: usize = 64 << 10;
const NO_MEMORY: c_int = 12;

type Pointer = *mut c_void;

/// A function that comes next, once it has been looked for.
struct Function {
    name: &'static CStr,
    address: AtomicUsize,
}

impl Function {
    const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicUsize::new(0) }
    }

    #[inline]
    fn get(&self) -> Option<usize> {
        match self.address.load(Relaxed) {
            0 => self.find(),
            address => Some(address),
        }
    }

    #[cold]
    fn find(&self) -> Option<usize> {
        // Looking may ask for memory itself: whoever comes here from there is served from the store.
        // SAFETY: a string of C's, and a function of this name in whatever library comes next.
        let found = looking(|| unsafe { dlsym(NEXT, self.name.as_ptr()) } as usize)?;
        self.address.store(found, Relaxed);
        (found != 0).then_some(found)
    }
}

/// A function of C's that comes next: its static, its type and its name.
macro_rules! next {
    ($($place:ident $name:literal ($($argument:ty),*) -> $result:ty;)*) => {
        $(static $place: Function = Function::new($name);)*
        mod next {
            use super::*;
            $(
                #[allow(non_snake_case)]
                #[inline]
                pub fn $place() -> Option<unsafe extern "C" fn($($argument),*) -> $result> {
                    // SAFETY: the function of this name has this type, by the C library's manual.
                    super::$place.get().map(|address| unsafe { std::mem::transmute::<usize, unsafe extern "C" fn($($argument),*) -> $result>(address) })
                }
            )*
        }
    };
}

next! {
    MALLOC c"malloc" (usize) -> Pointer;
    CALLOC c"calloc" (usize, usize) -> Pointer;
    REALLOC c"realloc" (Pointer, usize) -> Pointer;
    FREE c"free" (Pointer) -> ();
    MEMALIGN c"memalign" (usize, usize) -> Pointer;
    ALIGNED_ALLOC c"aligned_alloc" (usize, usize) -> Pointer;
    POSIX_MEMALIGN c"posix_memalign" (*mut Pointer, usize, usize) -> c_int;
    VALLOC c"valloc" (usize) -> Pointer;
    PVALLOC c"pvalloc" (usize) -> Pointer;
    MMAP c"mmap" (Pointer, usize, c_int, c_int, c_int, i64) -> Pointer;
    MUNMAP c"munmap" (Pointer, usize) -> c_int;
    MREMAP c"mremap" (Pointer, usize, usize, c_int, Pointer) -> Pointer;
}

/// Memory for whoever asks before the next allocator is known. It is never given back.
struct Store {
    bytes: UnsafeCell<[u8; STORE]>,
    used: AtomicUsize,
}

const STORE: usize = 64 << 10;

// SAFETY: each byte is handed out once.
unsafe impl Sync for Store {}

static EARLY: Store = Store { bytes: UnsafeCell::new([0; STORE]), used: AtomicUsize::new(0) };

impl Store {
    /// Zeros, as large and as aligned as is asked.
    #[cold]
    fn take(&self, size: usize, align: usize) -> Pointer {
        let align = align.max(16);
        let padded = size.saturating_add(align);
        let at = self.used.fetch_add(padded, Relaxed);
        match at.checked_add(padded) {
            Some(end) if end <= STORE => (self.bytes.get() as usize + at).next_multiple_of(align) as Pointer,
            _ => std::ptr::null_mut(),
        }
    }

    #[inline]
    fn holds(&self, block: Pointer) -> bool {
        (block as usize).wrapping_sub(self.bytes.get() as usize) < STORE
    }
}

/// Does something that may change `errno`, and puts it back.
fn unnoticed<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: this thread's own.
    let place = unsafe { __errno_location() };
    // SAFETY: as above.
    let before = unsafe { *place };
    let result = work();
    // SAFETY: as above.
    unsafe { *place = before };
    result
}

/// Notes a block that was given.
#[inline]
fn given(scope: &Scope, block: Pointer, size: usize) {
    if block.is_null() {
        return;
    }
    if size >= LARGE {
        begin(block as usize, size as u64, How::Large);
    } else if let Some(stands_for) = scope.sample(size) {
        begin(block as usize, stands_for, How::Sampled);
    }
}

#[cold]
#[inline(never)]
fn begin(address: usize, size: u64, how: How) {
    if session::is_recording() {
        unnoticed(|| {
            let stack = python::walk(0, python::DEEPEST);
            session::with(|recorder| recorder.begin(address, size, how, &stack));
        });
    }
}

#[cold]
#[inline(never)]
fn end(address: usize) -> Option<crate::live::Block> {
    unnoticed(|| session::with(|recorder| recorder.end(address)).flatten())
}

macro_rules! asks {
    ($place:ident, $size:expr, $align:expr, $($argument:expr),*) => {{
        let Some(next) = next::$place() else { return EARLY.take($size, $align) };
        // SAFETY: the caller's arguments.
        let Some(scope) = Scope::enter() else { return unsafe { next($($argument),*) } };
        // SAFETY: as above.
        let block = unsafe { next($($argument),*) };
        given(&scope, block, $size);
        block
    }};
}

#[unsafe(no_mangle)]
pub extern "C" fn malloc(size: usize) -> Pointer {
    asks!(MALLOC, size, 16, size)
}

#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, size: usize) -> Pointer {
    asks!(CALLOC, count.saturating_mul(size), 16, count, size)
}

#[unsafe(no_mangle)]
pub extern "C" fn memalign(align: usize, size: usize) -> Pointer {
    asks!(MEMALIGN, size, align, align, size)
}

#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(align: usize, size: usize) -> Pointer {
    asks!(ALIGNED_ALLOC, size, align, align, size)
}

#[unsafe(no_mangle)]
pub extern "C" fn valloc(size: usize) -> Pointer {
    asks!(VALLOC, size, 4096, size)
}

#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(size: usize) -> Pointer {
    asks!(PVALLOC, size, 4096, size)
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(place: *mut Pointer, align: usize, size: usize) -> c_int {
    let Some(next) = next::POSIX_MEMALIGN() else {
        let block = EARLY.take(size, align);
        if block.is_null() {
            return NO_MEMORY;
        }
        // SAFETY: the caller's.
        unsafe { place.write(block) };
        return 0;
    };
    // SAFETY: the caller's arguments.
    let Some(scope) = Scope::enter() else { return unsafe { next(place, align, size) } };
    // SAFETY: as above.
    let error = unsafe { next(place, align, size) };
    if error == 0 {
        // SAFETY: it was just written.
        given(&scope, unsafe { place.read() }, size);
    }
    error
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: Pointer) {
    if EARLY.holds(block) {
        return;
    }
    let Some(next) = next::FREE() else { return };
    if may_hold(block as usize)
        && !block.is_null()
        && let Some(_scope) = Scope::enter()
    {
        // Before it is given back: after that it is somebody else's.
        end(block as usize);
        // SAFETY: the caller's block.
        unsafe { next(block) };
        return;
    }
    // SAFETY: the caller's block.
    unsafe { next(block) };
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: Pointer, size: usize) -> Pointer {
    if EARLY.holds(block) {
        let moved = malloc(size);
        if !moved.is_null() {
            let rest = EARLY.bytes.get() as usize + STORE - block as usize;
            // SAFETY: within the store, and within what was just given.
            unsafe { std::ptr::copy_nonoverlapping(block.cast::<u8>(), moved.cast(), size.min(rest)) };
        }
        return moved;
    }
    let Some(next) = next::REALLOC() else { return EARLY.take(size, 16) };
    // SAFETY: the caller's arguments.
    let Some(scope) = Scope::enter() else { return unsafe { next(block, size) } };
    let known = if may_hold(block as usize) { end(block as usize) } else { None };
    // SAFETY: as above.
    let moved = unsafe { next(block, size) };
    match known {
        // It is where it was.
        Some(known) if moved.is_null() && size > 0 => {
            unnoticed(|| session::with(|recorder| recorder.take_back(block as usize, known)));
        }
        // A sample goes on to be one: it stands for bytes, of which there are more now, or fewer.
        Some(known) if !moved.is_null() && known.kind == How::Sampled as u8 && size < LARGE => {
            unnoticed(|| session::with(|recorder| recorder.take_back(moved as usize, known)));
        }
        _ => given(&scope, moved, size),
    }
    moved
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(block: Pointer, count: usize, size: usize) -> Pointer {
    match count.checked_mul(size) {
        // SAFETY: the caller's block.
        Some(bytes) => unsafe { realloc(block, bytes) },
        None => {
            // SAFETY: this thread's own.
            unsafe { *__errno_location() = NO_MEMORY };
            std::ptr::null_mut()
        }
    }
}

const SHARED: c_int = 1;
const FIXED: c_int = 0x10;
const ANONYMOUS: c_int = 0x20;
const FAILED: usize = usize::MAX;

/// Whether it is memory that this process holds: not pages of a file, and not an address without pages behind it.
fn how(protection: c_int, flags: c_int) -> Option<How> {
    match (protection, flags & ANONYMOUS, flags & SHARED) {
        (0, ..) | (_, 0, _) => None,
        (_, _, 0) => Some(How::Mapped),
        _ => Some(How::Shared),
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    at: Pointer,
    size: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    from: i64,
) -> Pointer {
    let Some(next) = next::MMAP() else { return FAILED as Pointer };
    // SAFETY: the caller's arguments.
    let scope = Scope::enter();
    // SAFETY: the caller's arguments.
    let address = unsafe { next(at, size, protection, flags, file, from) };
    if scope.is_some() && address as usize != FAILED && session::is_recording() {
        let bytes = size.next_multiple_of(4096);
        match how(protection, flags) {
            Some(how) if size >= LARGE => unnoticed(|| {
                let stack = python::walk(0, python::DEEPEST);
                session::with(|recorder| recorder.map(address as usize, bytes, how, &stack));
            }),
            // In the place of what may be known.
            _ if flags & FIXED != 0 => {
                unnoticed(|| session::with(|recorder| recorder.unmap(address as usize, bytes)));
            }
            _ => {}
        }
    }
    address
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    at: Pointer,
    size: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    from: i64,
) -> Pointer {
    // SAFETY: the same function on this machine.
    unsafe { mmap(at, size, protection, flags, file, from) }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(address: Pointer, size: usize) -> c_int {
    let Some(next) = next::MUNMAP() else { return -1 };
    if session::is_recording()
        && let Some(_scope) = Scope::enter()
    {
        unnoticed(|| session::with(|recorder| recorder.unmap(address as usize, size.next_multiple_of(4096))));
        // SAFETY: the caller's arguments.
        return unsafe { next(address, size) };
    }
    // SAFETY: the caller's arguments.
    unsafe { next(address, size) }
}

/// # Safety
/// As the C library's; the last argument is there only with a flag.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    old: Pointer,
    old_size: usize,
    new_size: usize,
    flags: c_int,
    at: Pointer,
) -> Pointer {
    let Some(next) = next::MREMAP() else { return FAILED as Pointer };
    let scope = Scope::enter();
    // SAFETY: the caller's arguments.
    let new = unsafe { next(old, old_size, new_size, flags, at) };
    if scope.is_some() && new as usize != FAILED && session::is_recording() {
        let page = |size: usize| size.next_multiple_of(4096);
        unnoticed(|| {
            session::with(|recorder| {
                recorder.remap((old as usize, page(old_size)), (new as usize, page(new_size)))
            })
        });
    }
    new
}
