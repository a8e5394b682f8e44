//! The C library's functions that give memory, under their own names: each is passed on to whoever comes next, and noted.
//!
//! Whoever comes next is asked for at the first call, and asking may itself need memory: that comes from a small store. Nothing here changes `errno`, which callers of `free` may be
//! in the middle of reading.
//!
//! Where a call came from says whose memory it is: an array's, a tensor's. So each function that gives memory begins with a few instructions that hand on the address it will return to.

use crate::definitions;
use crate::layout::How;
use crate::live::{Block, may_hold};
use crate::origin::Origin;
use crate::scope::{Scope, looking};
use crate::session;
use std::arch::naked_asm;
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

unsafe extern "C" {
    fn __errno_location() -> *mut c_int;
}

/// From this size on each block is recorded.
pub(crate) const LARGE: usize = 64 << 10;
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
        let found = looking(|| match definitions::called_by_all(self.name) {
            // Because we are preloaded: who comes next.
            own if definitions::is_ours(own) => definitions::next(self.name),
            other => other,
        })?;
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
                pub(crate) fn $place() -> Option<unsafe extern "C" fn($($argument),*) -> $result> {
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

/// The functions under their own names, and the same once more in `here`, where nobody else's of that name can be meant. Each hands on where it returns to: by the register that is named, or on the stack.
macro_rules! functions {
    ($($name:ident ($($argument:ident: $type:ty),*) -> $result:ty { $($code:literal),+ } $to:ident;)*) => {
        $(
            /// # Safety
            /// As the C library's.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                naked_asm!($($code),+, sym $to)
            }
        )*
        mod here {
            use super::*;
            $(
                #[unsafe(naked)]
                pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                    naked_asm!($($code),+, sym $to)
                }
            )*
        }
        /// Each name, and where ours is.
        pub(crate) fn all() -> impl Iterator<Item = (&'static CStr, usize)> {
            [$((const { c_name(concat!(stringify!($name), "\0")) }, here::$name as *const () as usize)),*].into_iter()
        }
    };
}

const fn c_name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"",
    }
}

functions! {
    malloc(size: usize) -> Pointer { "mov rsi, [rsp]", "jmp {}" } malloc_for;
    calloc(count: usize, size: usize) -> Pointer { "mov rdx, [rsp]", "jmp {}" } calloc_for;
    realloc(block: Pointer, size: usize) -> Pointer { "mov rdx, [rsp]", "jmp {}" } realloc_for;
    reallocarray(block: Pointer, count: usize, size: usize) -> Pointer { "mov rcx, [rsp]", "jmp {}" } reallocarray_for;
    free(block: Pointer) -> () { "jmp {}" } free_for;
    memalign(align: usize, size: usize) -> Pointer { "mov rdx, [rsp]", "jmp {}" } memalign_for;
    aligned_alloc(align: usize, size: usize) -> Pointer { "mov rdx, [rsp]", "jmp {}" } aligned_alloc_for;
    posix_memalign(place: *mut Pointer, align: usize, size: usize) -> c_int { "mov rcx, [rsp]", "jmp {}" } posix_memalign_for;
    valloc(size: usize) -> Pointer { "mov rsi, [rsp]", "jmp {}" } valloc_for;
    pvalloc(size: usize) -> Pointer { "mov rsi, [rsp]", "jmp {}" } pvalloc_for;
    mmap(at: Pointer, size: usize, protection: c_int, flags: c_int, file: c_int, from: i64) -> Pointer
        { ".cfi_startproc", "push qword ptr [rsp]", ".cfi_adjust_cfa_offset 8", "call {}", "add rsp, 8", ".cfi_adjust_cfa_offset -8", "ret", ".cfi_endproc" } mmap_for;
    mmap64(at: Pointer, size: usize, protection: c_int, flags: c_int, file: c_int, from: i64) -> Pointer
        { ".cfi_startproc", "push qword ptr [rsp]", ".cfi_adjust_cfa_offset 8", "call {}", "add rsp, 8", ".cfi_adjust_cfa_offset -8", "ret", ".cfi_endproc" } mmap_for;
    munmap(address: Pointer, size: usize) -> c_int { "jmp {}" } munmap_for;
    mremap(old: Pointer, old_size: usize, new_size: usize, flags: c_int, at: Pointer) -> Pointer { "jmp {}" } mremap_for;
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
    let result = session::uncancelled(work);
    // SAFETY: as above.
    unsafe { *place = before };
    result
}

/// Notes a block that was given to `caller`.
#[inline]
pub(crate) fn given(scope: &Scope, block: Pointer, size: usize, small: How, caller: usize) {
    if block.is_null() {
        return;
    }
    if size >= LARGE {
        begin(block as usize, size as u64, How::Large, caller);
    } else if let Some(stands_for) = scope.sample(size) {
        begin(block as usize, stands_for, small, caller);
    }
}

#[cold]
#[inline(never)]
pub(crate) fn begin(address: usize, size: u64, how: How, caller: usize) {
    if session::is_recording() {
        unnoticed(|| {
            let origin = Origin::here(caller);
            session::with(|recorder| recorder.begin(address, size, how, &origin));
        });
    }
}

#[cold]
#[inline(never)]
pub(crate) fn end(address: usize) -> Option<Block> {
    unnoticed(|| session::with(|recorder| recorder.end(address)).flatten())
}

/// Gives back a block, by whoever `give_back` is. Noted before: after it the address is somebody else's.
#[inline]
pub(crate) fn given_back(block: Pointer, give_back: impl FnOnce()) {
    if may_hold(block as usize)
        && !block.is_null()
        && let Some(_scope) = Scope::enter()
    {
        end(block as usize);
        give_back();
    } else {
        give_back();
    }
}

/// Changes a block's size, by whoever `change` is, and notes it.
#[inline]
pub(crate) fn changed(
    scope: &Scope,
    block: Pointer,
    size: usize,
    small: How,
    caller: usize,
    change: impl FnOnce() -> Pointer,
) -> Pointer {
    let known = if !block.is_null() && may_hold(block as usize) { end(block as usize) } else { None };
    let moved = change();
    match known {
        // It is where it was.
        Some(known) if moved.is_null() && size > 0 => {
            unnoticed(|| session::with(|recorder| recorder.take_back(block as usize, known)));
        }
        // Whether it was a sample says nothing of whether it is one now: it is drawn anew, as every other is that changes its size.
        _ => given(scope, moved, size, small, caller),
    }
    moved
}

macro_rules! asks {
    ($place:ident, $size:expr, $align:expr, $caller:ident, $($argument:expr),*) => {{
        let Some(next) = next::$place() else { return EARLY.take($size, $align) };
        // SAFETY: the caller's arguments.
        let Some(scope) = Scope::enter() else { return unsafe { next($($argument),*) } };
        // SAFETY: as above.
        let block = unsafe { next($($argument),*) };
        given(&scope, block, $size, How::Sampled, $caller);
        block
    }};
}

extern "C" fn malloc_for(size: usize, caller: usize) -> Pointer {
    asks!(MALLOC, size, 16, caller, size)
}

extern "C" fn calloc_for(count: usize, size: usize, caller: usize) -> Pointer {
    asks!(CALLOC, count.saturating_mul(size), 16, caller, count, size)
}

extern "C" fn memalign_for(align: usize, size: usize, caller: usize) -> Pointer {
    asks!(MEMALIGN, size, align, caller, align, size)
}

extern "C" fn aligned_alloc_for(align: usize, size: usize, caller: usize) -> Pointer {
    asks!(ALIGNED_ALLOC, size, align, caller, align, size)
}

extern "C" fn valloc_for(size: usize, caller: usize) -> Pointer {
    asks!(VALLOC, size, 4096, caller, size)
}

extern "C" fn pvalloc_for(size: usize, caller: usize) -> Pointer {
    asks!(PVALLOC, size, 4096, caller, size)
}

unsafe extern "C" fn posix_memalign_for(
    place: *mut Pointer,
    align: usize,
    size: usize,
    caller: usize,
) -> c_int {
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
        given(&scope, unsafe { place.read() }, size, How::Sampled, caller);
    }
    error
}

unsafe extern "C" fn free_for(block: Pointer) {
    if EARLY.holds(block) {
        return;
    }
    let Some(next) = next::FREE() else { return };
    // SAFETY: the caller's block.
    given_back(block, || unsafe { next(block) });
}

unsafe extern "C" fn realloc_for(block: Pointer, size: usize, caller: usize) -> Pointer {
    if EARLY.holds(block) {
        let moved = malloc_for(size, caller);
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
    // SAFETY: as above.
    changed(&scope, block, size, How::Sampled, caller, || unsafe { next(block, size) })
}

unsafe extern "C" fn reallocarray_for(block: Pointer, count: usize, size: usize, caller: usize) -> Pointer {
    match count.checked_mul(size) {
        // SAFETY: the caller's block.
        Some(bytes) => unsafe { realloc_for(block, bytes, caller) },
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
const LOCKED: c_int = 0x2000;
const POPULATE: c_int = 0x8000;
const FAILED: usize = usize::MAX;

/// Whether it is memory that this process holds: not pages of a file, and not an address without pages behind it.
fn how(protection: c_int, flags: c_int) -> Option<How> {
    match (protection, flags & ANONYMOUS, flags & SHARED) {
        (0, ..) | (_, 0, _) => None,
        (_, _, 0) => Some(How::Mapped),
        _ => Some(How::Shared),
    }
}

unsafe extern "C" fn mmap_for(
    at: Pointer,
    size: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    from: i64,
    caller: usize,
) -> Pointer {
    let Some(next) = next::MMAP() else { return FAILED as Pointer };
    let scope = Scope::enter();
    // SAFETY: the caller's arguments.
    let address = unsafe { next(at, size, protection, flags, file, from) };
    if scope.is_some() && address as usize != FAILED && session::is_recording() {
        let bytes = size.next_multiple_of(4096);
        match how(protection, flags) {
            Some(how) if size >= LARGE => unnoticed(|| {
                let origin = Origin::here(caller);
                let is_there = flags & (POPULATE | LOCKED) != 0;
                session::with(|recorder| recorder.map(address as usize, bytes, how, is_there, &origin));
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

unsafe extern "C" fn munmap_for(address: Pointer, size: usize) -> c_int {
    let Some(next) = next::MUNMAP() else { return -1 };
    // The kernel refuses what is not at the beginning of a page: nothing goes.
    let is_possible = (address as usize).is_multiple_of(4096) && size > 0;
    if is_possible
        && session::is_recording()
        && let Some(_scope) = Scope::enter()
    {
        let bytes = size.checked_next_multiple_of(4096).unwrap_or(0);
        unnoticed(|| session::with(|recorder| recorder.give_back(address as usize, bytes)));
        // SAFETY: the caller's arguments.
        return unsafe { next(address, size) };
    }
    // SAFETY: the caller's arguments.
    unsafe { next(address, size) }
}

/// The last argument is there only with a flag.
unsafe extern "C" fn mremap_for(
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
