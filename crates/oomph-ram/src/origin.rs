//! Where a request comes from: the frames of Python, the library that asked, and on request the functions of C between the two.
//!
//! Frames of C are found by the tables that the compiler writes for exceptions, with the C library's own unwinder. It may wait for the dynamic loader, so it is never called while the
//! recording's lock is held. What is kept are addresses; their names are found after the process has ended.

use crate::python::{self, Stack};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

unsafe extern "C" {
    fn _Unwind_Backtrace(step: extern "C" fn(*mut c_void, *mut c_void) -> c_int, data: *mut c_void) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

/// No more of the innermost frames of C are kept.
const MOST: usize = 40;
const GO_ON: c_int = 0;
const STOP: c_int = 4;

static IS_WANTED: AtomicBool = AtomicBool::new(false);
/// Where the unwinder is. When it asks for memory itself, it holds a lock of its own.
static UNWINDER: (AtomicUsize, AtomicUsize) = (AtomicUsize::new(0), AtomicUsize::new(0));
/// Threads that are in it.
static INSIDE: AtomicUsize = AtomicUsize::new(0);
/// In a child whose parent had another thread in it: the lock stays taken.
static IS_LOCKED: AtomicBool = AtomicBool::new(false);
/// The function of the interpreter that runs Python's code: what is further out, Python's own frames say.
static EVALUATES: (AtomicUsize, AtomicUsize) = (AtomicUsize::new(0), AtomicUsize::new(0));

/// Frames of C are kept from now on.
pub(crate) fn want_calls() {
    let place = _Unwind_Backtrace as *const () as usize;
    let unwinder = crate::elf::libraries().into_iter().find(|library| library.addresses.contains(&place));
    // Where it is not known, it might be waited for.
    let Some(unwinder) = unwinder else { return };
    UNWINDER.0.store(unwinder.addresses.start, Relaxed);
    UNWINDER.1.store(unwinder.addresses.end, Relaxed);
    IS_WANTED.store(!IS_LOCKED.load(Relaxed), Relaxed);
}

/// After a fork, in the child.
pub(crate) fn in_the_child() {
    if INSIDE.swap(0, Relaxed) > 0 {
        IS_LOCKED.store(true, Relaxed);
        IS_WANTED.store(false, Relaxed);
    }
}

/// Learns where the interpreter runs Python's code.
pub(crate) fn learn() {
    let Some(begin) = crate::elf::find(c"_PyEval_EvalFrameDefault") else { return };
    if let Some(size) = crate::definitions::size(begin) {
        EVALUATES.0.store(begin, Relaxed);
        EVALUATES.1.store(begin.saturating_add(size), Relaxed);
    }
}

/// Addresses that calls of C return to, innermost first.
pub(crate) struct Calls {
    places: [usize; MOST],
    count: usize,
}

impl Calls {
    const NONE: Self = Self { places: [0; MOST], count: 0 };

    /// Those of this thread, from the function on that returns to `caller`.
    fn here(caller: usize) -> Self {
        let mut calls = Self::NONE;
        let unwinder = UNWINDER.0.load(Relaxed)..UNWINDER.1.load(Relaxed);
        if IS_WANTED.load(Relaxed) && !unwinder.contains(&caller) {
            INSIDE.fetch_add(1, Relaxed);
            // SAFETY: the callback gets the list back, which lives until this returns.
            unsafe { _Unwind_Backtrace(step, (&raw mut calls).cast()) };
            INSIDE.fetch_sub(1, Relaxed);
            // Ours are innermost.
            if let Some(ours) = calls.get().iter().position(|place| *place == caller) {
                calls.places.copy_within(ours..calls.count, 0);
                calls.count -= ours;
            }
        }
        calls
    }

    pub(crate) fn get(&self) -> &[usize] {
        self.places.get(..self.count).unwrap_or_default()
    }

    /// As a number: the same for the same places.
    fn hash(&self) -> u64 {
        const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
        self.get()
            .iter()
            .fold(0, |hash: u64, place| (hash.rotate_left(5) ^ *place as u64).wrapping_mul(FACTOR))
    }
}

extern "C" fn step(context: *mut c_void, calls: *mut c_void) -> c_int {
    // SAFETY: as `here` passed it; the unwinder's own description of a frame.
    let (calls, place) = unsafe { (&mut *calls.cast::<Calls>(), _Unwind_GetIP(context)) };
    let is_python = (EVALUATES.0.load(Relaxed)..EVALUATES.1.load(Relaxed)).contains(&place);
    match calls.places.get_mut(calls.count) {
        Some(free) if !is_python && place != 0 => *free = place,
        _ => return STOP,
    }
    calls.count += 1;
    GO_ON
}

/// Who has asked.
pub(crate) struct Origin {
    pub(crate) stack: Stack,
    /// Where the function returns to that gave the memory: in the library that asked.
    pub(crate) caller: usize,
    pub(crate) calls: Calls,
}

impl Origin {
    #[inline]
    pub(crate) fn here(caller: usize) -> Self {
        Self { stack: python::walk_both_ends(), caller, calls: Calls::here(caller) }
    }

    /// Of the frames of Python and of C.
    pub(crate) fn hash(&self) -> u64 {
        self.stack.hash ^ self.calls.hash()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_c_are_found_from_the_caller_on() {
        #[inline(never)]
        fn outer(look: fn() -> Calls) -> Calls {
            std::hint::black_box(look())
        }
        fn look() -> Calls {
            Calls::here(0)
        }
        assert!(outer(look).get().is_empty());
        IS_WANTED.store(true, Relaxed);
        let all = outer(look);
        // The outermost are the same; from one of them on is less than all.
        let [_, _, .., from, outermost] = *all.get() else { panic!("{} calls", all.get().len()) };
        let few = Calls::here(from);
        IS_WANTED.store(false, Relaxed);
        assert_eq!(few.get(), [from, outermost]);
    }
}
