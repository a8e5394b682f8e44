//! What a thread is doing: whether it is in one of our calls already, and how far it is from its next sample.

use crate::sampling::Sampler;
use std::cell::Cell;

/// Nothing in it is dropped, so that it is there from a thread's first instruction to its last, and reaching it allocates nothing.
struct Thread {
    is_inside: Cell<bool>,
    is_looking: Cell<bool>,
    sampler: Sampler,
}

thread_local! {
    static THREAD: Thread = const { Thread { is_inside: Cell::new(false), is_looking: Cell::new(false), sampler: Sampler::new() } };
}

/// A call that is not within another of ours. What the allocator and the recorder do until it is over is not recorded.
pub struct Scope(());

impl Scope {
    /// None where the thread is inside already: the allocator's own calls, the recorder's, a signal's handler between them.
    #[inline]
    pub fn enter() -> Option<Self> {
        match THREAD.try_with(|thread| thread.is_inside.replace(true)) {
            Ok(false) => Some(Self(())),
            _ => None,
        }
    }

    /// What a small request stands for, if it is a sample.
    #[inline]
    pub fn sample(&self, size: usize) -> Option<u64> {
        THREAD.try_with(|thread| thread.sampler.passes(size)).ok().flatten()
    }
}

impl Drop for Scope {
    #[inline]
    fn drop(&mut self) {
        let _ = THREAD.try_with(|thread| thread.is_inside.set(false));
    }
}

/// Whether the thread is in one of our calls: a signal's handler may have interrupted it.
pub fn is_inside() -> bool {
    THREAD.try_with(|thread| thread.is_inside.get()).unwrap_or(true)
}

/// Whether the thread is looking for a function already. Gives what the work gives; none where it is.
pub fn looking<T>(work: impl FnOnce() -> T) -> Option<T> {
    let was = THREAD.try_with(|thread| thread.is_looking.replace(true));
    if was != Ok(false) {
        return None;
    }
    let found = work();
    let _ = THREAD.try_with(|thread| thread.is_looking.set(false));
    Some(found)
}
