//! Memory of the recorder's own for the moment when the machine has none left: there, Rust would end the process.
//!
//! A program whose host memory is full goes on with Python's `MemoryError`, and so it does under the recorder: what the system refuses comes from a few
//! megabytes that are part of the library. They are pages that nobody touches until then. Boundary: whose memory it is, is not known here.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

/// A recording holds some hundred kilobytes between two writes; this is many times that.
const BYTES: usize = 8 << 20;

/// Everything that this library allocates.
#[global_allocator]
pub(crate) static MEMORY: WithReserve = WithReserve::new();

/// The system's allocator, and behind it a reserve.
pub(crate) struct WithReserve {
    is_taken: AtomicBool,
    used: UnsafeCell<Used>,
    bytes: UnsafeCell<[u8; BYTES]>,
}

/// What is handed out of the reserve: everything below `end`, in `blocks` that are not freed yet.
struct Used {
    end: usize,
    blocks: usize,
}

// SAFETY: both cells are read and written only between `lock` and its end; blocks of the bytes belong to those who were given them.
unsafe impl Sync for WithReserve {}

impl WithReserve {
    pub(crate) const fn new() -> Self {
        Self {
            is_taken: AtomicBool::new(false),
            used: UnsafeCell::new(Used { end: 0, blocks: 0 }),
            bytes: UnsafeCell::new([0; BYTES]),
        }
    }

    /// No lock of the standard library: those may allocate.
    fn lock<T>(&self, change: impl FnOnce(&mut Used) -> T) -> T {
        while self.is_taken.swap(true, Ordering::Acquire) {
            std::hint::spin_loop();
        }
        // SAFETY: one thread at a time is here.
        let result = change(unsafe { &mut *self.used.get() });
        self.is_taken.store(false, Ordering::Release);
        result
    }

    /// Called in a forked child, where whoever was between the lock and its end is not there to end it.
    ///
    /// What such a thread left half done harms nobody: the block was its own, and is never used or given back in the child. Counted
    /// once too often, it keeps the reserve from becoming whole again; not counted, it may be handed out.
    pub(crate) fn forked(&self) {
        self.is_taken.store(false, Ordering::Release);
    }

    fn start(&self) -> *mut u8 {
        self.bytes.get().cast()
    }

    fn holds(&self, block: *mut u8) -> bool {
        let first = self.start() as usize;
        (first..first + BYTES).contains(&(block as usize))
    }

    fn take(&self, layout: Layout) -> *mut u8 {
        self.lock(|used| {
            let first = self.start() as usize;
            let Some(begin) = (first + used.end).checked_next_multiple_of(layout.align()) else {
                return std::ptr::null_mut();
            };
            let begin = begin - first;
            match begin.checked_add(layout.size()) {
                Some(end) if end <= BYTES => {
                    *used = Used { end, blocks: used.blocks + 1 };
                    self.start().wrapping_add(begin)
                }
                _ => std::ptr::null_mut(),
            }
        })
    }

    /// The last block makes room for others at once; once all are back, the whole is free.
    fn give_back(&self, block: *mut u8, size: usize) {
        self.lock(|used| {
            let begin = (block as usize).saturating_sub(self.start() as usize);
            used.blocks = used.blocks.saturating_sub(1);
            if used.blocks == 0 {
                used.end = 0;
            } else if begin.saturating_add(size) == used.end {
                used.end = begin;
            }
        });
    }

    /// Whether a block of the reserve could become so large where it is, and then is.
    fn resize(&self, block: *mut u8, old: usize, new: usize) -> bool {
        self.lock(|used| {
            let begin = (block as usize).saturating_sub(self.start() as usize);
            let is_last = begin.saturating_add(old) == used.end;
            let end = begin.saturating_add(new);
            if is_last && end <= BYTES {
                used.end = end;
            }
            new <= old || (is_last && end <= BYTES)
        })
    }
}

// SAFETY: what the system's allocator gives is passed on; blocks of the reserve are aligned, do not overlap, and stay until they are given back.
unsafe impl GlobalAlloc for WithReserve {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout.
        let block = unsafe { System.alloc(layout) };
        if block.is_null() { self.take(layout) } else { block }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if self.holds(block) {
            self.give_back(block, layout.size());
        } else {
            // SAFETY: not from the reserve, so from the system.
            unsafe { System.dealloc(block, layout) };
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if self.holds(block) {
            if self.resize(block, layout.size(), size) {
                return block;
            }
        } else {
            // SAFETY: not from the reserve, so from the system.
            let moved = unsafe { System.realloc(block, layout, size) };
            if !moved.is_null() {
                return moved;
            }
        }
        let Ok(wanted) = Layout::from_size_align(size, layout.align()) else { return std::ptr::null_mut() };
        // SAFETY: the caller's layout with the caller's size.
        let moved = unsafe { self.alloc(wanted) };
        if !moved.is_null() {
            // SAFETY: two blocks that do not overlap, each at least this long.
            unsafe { std::ptr::copy_nonoverlapping(block, moved, layout.size().min(size)) };
            // SAFETY: the caller's block, which nobody uses from here on.
            unsafe { self.dealloc(block, layout) };
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::ffi::c_int;

    unsafe extern "C" {
        fn fork() -> c_int;
        fn waitpid(child: c_int, status: *mut c_int, options: c_int) -> c_int;
        fn alarm(seconds: u32) -> u32;
        fn _exit(status: c_int) -> !;
    }

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap_or(Layout::new::<u8>())
    }

    #[test]
    fn a_forked_child_does_not_wait_for_a_thread_that_it_does_not_have() {
        let (is_held, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                MEMORY.lock(|_| {
                    is_held.store(true, Ordering::Release);
                    while !is_over.load(Ordering::Acquire) {
                        std::thread::yield_now();
                    }
                });
            });
            while !is_held.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            let small = layout(64, 8);
            // SAFETY: the child takes no lock of anybody else's, and ends without going back.
            let child = unsafe { fork() };
            if child == 0 {
                // SAFETY: one that waits for ever is ended by the alarm.
                unsafe {
                    alarm(20);
                    crate::session::forked();
                    _exit(c_int::from(MEMORY.take(small).is_null()));
                }
            }
            let mut status = -1;
            // SAFETY: a child of ours.
            let ended = unsafe { waitpid(child, &raw mut status, 0) };
            is_over.store(true, Ordering::Release);
            assert_eq!((ended, status), (child, 0));
        });
    }

    #[test]
    fn blocks_are_aligned_and_apart_and_all_come_back() {
        static RESERVE: WithReserve = WithReserve::new();
        for _ in 0..3 {
            let layouts: Vec<Layout> = (0..200).map(|i| layout(1 + 37 * i, 1 << (i % 8))).collect();
            let blocks: Vec<*mut u8> = layouts.iter().map(|layout| RESERVE.take(*layout)).collect();
            for (layout, block) in layouts.iter().zip(&blocks) {
                assert!(!block.is_null() && (*block as usize).is_multiple_of(layout.align()));
            }
            for ((block, layout), next) in blocks.iter().zip(&layouts).zip(blocks.iter().skip(1)) {
                assert!(*block as usize + layout.size() <= *next as usize);
            }
            blocks.iter().zip(&layouts).for_each(|(block, layout)| RESERVE.give_back(*block, layout.size()));
            assert_eq!(RESERVE.lock(|used| used.end), 0);
        }
    }

    #[test]
    fn one_block_that_stays_does_not_use_up_the_rest() {
        static RESERVE: WithReserve = WithReserve::new();
        let stays = RESERVE.take(layout(100, 8));
        // More in all than there is.
        for _ in 0..100 {
            let block = RESERVE.take(layout(1 << 20, 8));
            assert!(!block.is_null());
            assert!(RESERVE.resize(block, 1 << 20, 2 << 20), "the last grows where it is");
            assert!(RESERVE.resize(block, 2 << 20, 1 << 10), "and shrinks");
            RESERVE.give_back(block, 1 << 10);
        }
        let after = RESERVE.take(layout(8, 8));
        assert!(!RESERVE.resize(stays, 100, 200), "another lies behind it");
        assert!(RESERVE.resize(stays, 100, 50));
        RESERVE.give_back(after, 8);
        RESERVE.give_back(stays, 50);
        assert_eq!(RESERVE.lock(|used| (used.end, used.blocks)), (0, 0));
    }

    #[test]
    fn more_than_there_is_is_refused() {
        static RESERVE: WithReserve = WithReserve::new();
        assert!(RESERVE.take(layout(BYTES + 1, 1)).is_null());
        assert!(!RESERVE.take(layout(BYTES, 1)).is_null());
        assert!(RESERVE.take(layout(1, 1)).is_null());
    }

    #[test]
    fn a_block_moves_from_the_reserve_to_the_system_with_what_is_in_it() {
        static RESERVE: WithReserve = WithReserve::new();
        let small = layout(16, 8);
        let block = RESERVE.take(small);
        let behind = RESERVE.take(small);
        // SAFETY: sixteen bytes that were just given, then moved to where there is room for more.
        unsafe {
            block.copy_from_nonoverlapping(b"sixteen bytes...".as_ptr(), 16);
            let moved = RESERVE.realloc(block, small, 4096);
            assert!(!RESERVE.holds(moved));
            assert_eq!(std::slice::from_raw_parts(moved, 16), b"sixteen bytes...");
            RESERVE.dealloc(moved, layout(4096, 8));
        }
        RESERVE.give_back(behind, 16);
        assert_eq!(RESERVE.lock(|used| used.blocks), 0);
    }
}
