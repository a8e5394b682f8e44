//! Memory of the recorder's own: pages from the kernel, so that nothing it does is seen by the hooks or waits for the allocator that it watches.
//!
//! Small blocks are powers of two from chunks and never go back to the kernel; large ones are mapped and unmapped. What the kernel refuses comes from a reserve,
//! and [`is_low`] says so from then on: the recorder stops, because Rust ends a process that gets nothing.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ffi::c_long;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const SMALLEST: usize = 16;
const CLASSES: usize = 13;
/// 64 KiB: what is larger is mapped by itself.
const LARGEST: usize = SMALLEST << (CLASSES - 1);
const CHUNK: usize = 1 << 20;
const RESERVE: usize = 12 << 20;
/// A round is finished with what is left, whatever the kernel says.
const _: () = assert!(RESERVE >= crate::ticks::MOST_BYTES + (2 << 20));
const PAGE: usize = 4096;

const MMAP: c_long = 9;
const MUNMAP: c_long = 11;

unsafe extern "C" {
    // Not the C library's mmap: that name is ours.
    fn syscall(number: c_long, ...) -> c_long;
}

/// Everything that this library allocates.
#[global_allocator]
static MEMORY: Own = Own {
    is_taken: AtomicBool::new(false),
    free: UnsafeCell::new(Free { lists: [0; CLASSES], chunk: 0, left: 0 }),
    reserve: UnsafeCell::new([0; RESERVE]),
    of_reserve: AtomicUsize::new(0),
};

/// The kernel has refused: there is only the reserve.
static LOW: AtomicBool = AtomicBool::new(false);

/// Whether the recorder must stop asking for memory.
pub(crate) fn is_low() -> bool {
    LOW.load(Ordering::Relaxed)
}

/// In a forked child, where whoever was in the middle of an allocation is gone: what had come back is left, and new chunks are begun.
pub(crate) fn begin_anew() {
    // SAFETY: the child's only thread.
    unsafe { *MEMORY.free.get() = Free { lists: [0; CLASSES], chunk: 0, left: 0 } };
    MEMORY.unlock();
}

/// In a forked child whose thread is in the middle of one of our calls, which goes on.
pub(crate) fn let_go() {
    MEMORY.unlock();
}

struct Own {
    is_taken: AtomicBool,
    free: UnsafeCell<Free>,
    reserve: UnsafeCell<[u8; RESERVE]>,
    of_reserve: AtomicUsize,
}

/// Blocks that came back, by class, each holding the address of the next; and the rest of the chunk that is being cut up.
struct Free {
    lists: [usize; CLASSES],
    chunk: usize,
    left: usize,
}

// SAFETY: `free` is used only between `lock` and `unlock`; each byte of the reserve is handed out once.
unsafe impl Sync for Own {}

impl Own {
    /// No lock of the standard library: a fork must be able to hold it and let it go on the other side.
    fn lock(&self) {
        while self.is_taken.swap(true, Ordering::Acquire) {
            std::hint::spin_loop();
        }
    }

    fn unlock(&self) {
        self.is_taken.store(false, Ordering::Release);
    }

    fn small(&self, class: usize) -> *mut u8 {
        let size = SMALLEST << class;
        self.lock();
        // SAFETY: between lock and unlock.
        let free = unsafe { &mut *self.free.get() };
        let block = match free.lists.get_mut(class) {
            Some(list) if *list != 0 => {
                let block = *list;
                // SAFETY: a block of ours that nobody has; its first word is the next one's address.
                *list = unsafe { (block as *const usize).read() };
                block
            }
            _ => self.cut(free, size),
        };
        self.unlock();
        block as *mut u8
    }

    fn cut(&self, free: &mut Free, size: usize) -> usize {
        let begin = free.chunk.next_multiple_of(size);
        let skipped = begin - free.chunk;
        if free.left >= skipped + size {
            free.chunk = begin + size;
            free.left -= skipped + size;
            return begin;
        }
        let chunk = map(CHUNK).unwrap_or(0);
        if chunk == 0 {
            return self.cut_reserve(size, size);
        }
        // Chunks begin on pages, and blocks of up to a page on multiples of their size; larger ones need no more than a page's.
        (free.chunk, free.left) = (chunk + size, CHUNK - size);
        chunk
    }

    fn cut_reserve(&self, size: usize, align: usize) -> usize {
        LOW.store(true, Ordering::Relaxed);
        let first = self.reserve.get() as usize;
        let padded = size.saturating_add(align.min(PAGE));
        let at = self.of_reserve.fetch_add(padded, Ordering::Relaxed);
        match at.checked_add(padded) {
            Some(end) if end <= RESERVE => (first + at).next_multiple_of(align.min(PAGE)),
            _ => 0,
        }
    }

    fn is_of_reserve(&self, block: usize) -> bool {
        let first = self.reserve.get() as usize;
        (first..first + RESERVE).contains(&block)
    }
}

fn map(size: usize) -> Option<usize> {
    const READ_WRITE: c_long = 3;
    const PRIVATE_ANONYMOUS: c_long = 0x22;
    // SAFETY: new pages, at a place that the kernel chooses.
    let address =
        unsafe { syscall(MMAP, 0 as c_long, size, READ_WRITE, PRIVATE_ANONYMOUS, -1 as c_long, 0 as c_long) };
    usize::try_from(address).ok().filter(|address| *address != 0)
}

fn class_of(layout: Layout) -> Option<usize> {
    let size = layout.size().max(layout.align()).max(SMALLEST).next_power_of_two();
    (size <= LARGEST && layout.align() <= PAGE).then(|| (size / SMALLEST).trailing_zeros() as usize)
}

// SAFETY: blocks do not overlap, are as large and as aligned as was asked, and stay until they are given back.
unsafe impl GlobalAlloc for Own {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class_of(layout) {
            Some(class) => self.small(class),
            None if layout.align() > PAGE => std::ptr::null_mut(),
            None => {
                let size = layout.size().next_multiple_of(PAGE);
                map(size).unwrap_or_else(|| self.cut_reserve(layout.size(), layout.align())) as *mut u8
            }
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if self.is_of_reserve(block as usize) {
            return;
        }
        match class_of(layout) {
            Some(class) => {
                self.lock();
                // SAFETY: between lock and unlock; the block is long enough for a word, and nobody has it any more.
                unsafe {
                    if let Some(list) = (*self.free.get()).lists.get_mut(class) {
                        (block as *mut usize).write(*list);
                        *list = block as usize;
                    }
                }
                self.unlock();
            }
            None => {
                let size = layout.size().next_multiple_of(PAGE);
                // SAFETY: mapped by itself, with this size.
                unsafe { syscall(MUNMAP, block, size) };
            }
        }
    }
}
