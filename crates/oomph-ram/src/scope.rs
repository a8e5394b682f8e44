//! What a thread is doing: whether it is in one of our calls already, and how far it is from its next sample.

use crate::sampling::Sampler;
use std::arch::{asm, global_asm};
use std::cell::Cell;

/// It begins as zeros, and nothing in it is dropped: it is there from a thread's first instruction to its last.
struct Thread {
    is_inside: Cell<bool>,
    is_looking: Cell<bool>,
    is_forking: Cell<bool>,
    sampler: Sampler,
}

// Rust's own thread-locals are looked up by a function of the dynamic loader, which asks for memory the first time: by our malloc, where a program's stub leads to it, and so without end.
// This one has its place in each thread from the thread's beginning, at a distance from its pointer that the loader fills in.
const SIZE: usize = 64;
const _: () = assert!(size_of::<Thread>() <= SIZE);
global_asm!(
    ".pushsection .tbss.oomph_ram_thread, \"awT\", @nobits",
    ".globl oomph_ram_thread",
    ".hidden oomph_ram_thread",
    ".type oomph_ram_thread, @object",
    ".size oomph_ram_thread, {size}",
    ".p2align 4",
    "oomph_ram_thread: .zero {size}",
    ".popsection",
    size = const SIZE,
);

/// Where the thread's own is.
#[inline]
fn thread() -> *const Thread {
    let place;
    // SAFETY: the thread's pointer is where fs begins, and points to itself.
    unsafe {
        asm!(
            "mov {place}, qword ptr fs:[0]",
            "add {place}, qword ptr [rip + oomph_ram_thread@GOTTPOFF]",
            place = out(reg) place,
            options(pure, readonly, nostack),
        );
    }
    place
}

/// The thread's own.
fn own() -> &'static Thread {
    // SAFETY: it is used by this thread alone, and not kept.
    unsafe { &*thread() }
}

/// A call that is not within another of ours. What the allocator and the recorder do until it is over is not recorded.
pub(crate) struct Scope(*const Thread);

impl Scope {
    /// None where the thread is inside already: the allocator's own calls, the recorder's, a signal's handler between them.
    #[inline]
    pub(crate) fn enter() -> Option<Self> {
        let place = thread();
        // SAFETY: this thread's own, which is there as long as the thread; a scope does not leave its thread.
        let is_inside = unsafe { &(*place).is_inside };
        // Not `then_some`: a scope that is made and dropped here would end the one that the thread is in.
        if is_inside.replace(true) { None } else { Some(Self(place)) }
    }

    /// What a small request stands for, if it is a sample.
    #[inline]
    pub(crate) fn sample(&self, size: usize) -> Option<u64> {
        // SAFETY: as above.
        unsafe { &(*self.0).sampler }.passes(size)
    }
}

impl Drop for Scope {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { &(*self.0).is_inside }.set(false);
    }
}

/// Begins a fork: until [`after_fork`] the thread is inside, so that whatever is called meanwhile, by a signal's handler too, waits for nothing. False where it was inside already.
pub(crate) fn before_fork() -> bool {
    let is_free = !own().is_inside.replace(true);
    own().is_forking.set(is_free);
    is_free
}

/// Whether the fork that is over was begun here.
pub(crate) fn is_forking() -> bool {
    own().is_forking.get()
}

pub(crate) fn after_fork() {
    own().is_forking.set(false);
    own().is_inside.set(false);
}

/// Whether the thread is looking for a function already. Gives what the work gives; none where it is.
pub(crate) fn looking<T>(work: impl FnOnce() -> T) -> Option<T> {
    if own().is_looking.replace(true) {
        return None;
    }
    let found = work();
    own().is_looking.set(false);
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_inside_stays_inside() {
        let scope = Scope::enter();
        // The allocator of this test is watched too, but only from outside of it.
        assert!(scope.is_some() && Scope::enter().is_none() && Scope::enter().is_none());
        drop(scope);
        assert!(Scope::enter().is_some());
        assert!(before_fork() && Scope::enter().is_none() && is_forking() && !before_fork());
        after_fork();
        assert!(Scope::enter().is_some());
    }
}
