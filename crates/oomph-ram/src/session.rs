//! The recording of this process: there is one or none, and a forked child begins its own.
//!
//! Boundary: what a recording is, the [`Recorder`] knows; calls come from [`crate::hooks`].

use crate::memory;
use crate::recorder::{Place, Recorder};
use crate::scope::{Scope, is_inside};
use std::cell::UnsafeCell;
use std::ffi::{CString, c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};

unsafe extern "C" {
    fn getenv(name: *const c_char) -> *const c_char;
    fn getpid() -> c_int;
    fn getppid() -> c_int;
    fn pthread_atfork(
        before: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
    fn sched_yield() -> c_int;
}

/// Where recordings go, how long they may become, and who has started the program: `PID:BYTES:/path/without/extension`.
const VARIABLE: &std::ffi::CStr = c"OOMPH_RAM";

/// A lock that a fork can hold, and let go on both sides.
struct Session {
    is_taken: AtomicBool,
    recorder: UnsafeCell<Option<Recorder>>,
}

// SAFETY: the recorder is used only by whoever holds the lock.
unsafe impl Sync for Session {}

static SESSION: Session = Session { is_taken: AtomicBool::new(false), recorder: UnsafeCell::new(None) };
/// Whether anything is recorded: looked at before the lock.
static RECORDING: AtomicBool = AtomicBool::new(false);

pub fn is_recording() -> bool {
    RECORDING.load(Ordering::Relaxed)
}

fn lock() {
    while SESSION.is_taken.swap(true, Ordering::Acquire) {
        // SAFETY: gives the rest of the thread's time to whoever holds it.
        unsafe { sched_yield() };
    }
}

fn unlock() {
    SESSION.is_taken.store(false, Ordering::Release);
}

/// Does something with the recording that is under way. Never called within itself: whoever comes here is inside already.
pub fn with<T>(work: impl FnOnce(&mut Recorder) -> T) -> Option<T> {
    if !is_recording() {
        return None;
    }
    lock();
    // SAFETY: the lock is held.
    let result = unsafe { (*SESSION.recorder.get()).as_mut() }.map(work);
    unlock();
    result
}

struct Wanted {
    starter: c_int,
    most: u64,
    stem: String,
}

fn wanted() -> Option<Wanted> {
    // SAFETY: nobody changes the environment while the library is loaded or a child begins.
    let text = unsafe {
        let text = getenv(VARIABLE.as_ptr());
        (!text.is_null()).then(|| std::ffi::CStr::from_ptr(text))
    }?;
    let mut parts = text.to_str().ok()?.splitn(3, ':');
    Some(Wanted {
        starter: parts.next()?.parse().ok()?,
        most: parts.next()?.parse().ok()?,
        stem: parts.next()?.to_owned(),
    })
}

/// Begins this process's recording, if one is wanted.
pub fn begin() {
    let Some(wanted) = wanted() else { return };
    // SAFETY: they always succeed.
    let (own, parent) = unsafe { (getpid(), getppid()) };
    let is_first = parent == wanted.starter;
    let path = match is_first {
        true => format!("{}.oomph", wanted.stem),
        false => format!("{}-{own}.oomph", wanted.stem),
    };
    let Ok(path) = CString::new(path) else { return };
    let place = Place { path, most: wanted.most, at_once: is_first };
    // SAFETY: nobody else is here yet: a process that begins, or a child after its fork, has one thread.
    unsafe { *SESSION.recorder.get() = Some(Recorder::new(place)) };
    RECORDING.store(true, Ordering::Relaxed);
}

pub fn watch_forks() {
    // SAFETY: functions that live as long as the library, which is never unloaded.
    unsafe { pthread_atfork(Some(before_fork), Some(after_fork), Some(in_the_child)) };
}

pub extern "C" fn end() {
    let _scope = Scope::enter();
    if !RECORDING.swap(false, Ordering::Relaxed) {
        return;
    }
    lock();
    // SAFETY: the lock is held.
    let recorder = unsafe { (*SESSION.recorder.get()).take() };
    unlock();
    if let Some(recorder) = recorder {
        recorder.finish();
    }
}

/// A signal's handler that forks in the middle of one of our calls would wait for its own thread.
extern "C" fn before_fork() {
    if !is_inside() {
        lock();
        memory::before_fork();
    }
}

extern "C" fn after_fork() {
    if !is_inside() {
        memory::after_fork();
        unlock();
    }
}

extern "C" fn in_the_child() {
    let Some(_scope) = Scope::enter() else {
        // What was interrupted goes on in the child too, when the handler returns. Nothing new is recorded there.
        RECORDING.store(false, Ordering::Relaxed);
        return;
    };
    memory::after_fork();
    RECORDING.store(false, Ordering::Relaxed);
    // SAFETY: the child's only thread.
    let parents = unsafe { (*SESSION.recorder.get()).take() };
    unlock();
    if let Some(parents) = parents {
        parents.leave_to_parent();
    }
    crate::live::forget_all();
    begin();
}
