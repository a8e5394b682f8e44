//! The recording of this process: there is one or none, and a forked child begins its own.
//!
//! Boundary: what a recording is, the [`Recorder`] knows; calls come from [`crate::hooks`].

use crate::memory;
use crate::origin;
use crate::recorder::{Place, Recorder};
use crate::scope::{self, Scope};
use std::cell::UnsafeCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};

unsafe extern "C" {
    fn getenv(name: *const c_char) -> *const c_char;
    fn getpid() -> c_int;
    fn getppid() -> c_int;
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn pthread_atfork(
        before: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
    fn sched_yield() -> c_int;
    fn nanosleep(time: *const [i64; 2], left: *mut [i64; 2]) -> c_int;
}

/// Where recordings go, how long they may become, and who has started the program: `PID:BYTES:/path/without/extension`.
const VARIABLE: &CStr = c"OOMPH_RAM";
/// Set if functions of C are wanted too.
const NATIVE: &CStr = c"OOMPH_RAM_NATIVE";
/// A recording is under way.
pub(crate) const BUSY: c_int = 16;

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
/// Whether it is one that the program itself has begun: its children have none.
static IS_OWN: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_recording() -> bool {
    RECORDING.load(Ordering::Relaxed)
}

fn lock() {
    const PATIENCE: u32 = 100;
    let mut tries = 0;
    while SESSION.is_taken.swap(true, Ordering::Acquire) {
        tries += 1;
        // SAFETY: gives the thread's time to whoever holds it; for a while, lest one of higher priority keeps that one from running.
        unsafe {
            match tries % PATIENCE {
                0 => nanosleep(&[0, 50_000], std::ptr::null_mut()),
                _ => sched_yield(),
            }
        };
    }
}

fn unlock() {
    SESSION.is_taken.store(false, Ordering::Release);
}

/// Does something with the recording that is under way. Never called within itself: whoever comes here is inside already.
pub(crate) fn with<T>(work: impl FnOnce(&mut Recorder) -> T) -> Option<T> {
    if !is_recording() {
        return None;
    }
    lock();
    // SAFETY: the lock is held.
    let result = unsafe { (*SESSION.recorder.get()).as_mut() }.map(|recorder| {
        let result = work(recorder);
        if recorder.is_over() {
            RECORDING.store(false, Ordering::Relaxed);
        }
        result
    });
    unlock();
    result
}

struct Wanted {
    starter: c_int,
    most: u64,
    /// A path, without its extension: any bytes.
    stem: Vec<u8>,
}

fn wanted() -> Option<Wanted> {
    // SAFETY: nobody changes the environment while the library is loaded or a child begins.
    let text = unsafe {
        let text = getenv(VARIABLE.as_ptr());
        (!text.is_null()).then(|| CStr::from_ptr(text))
    }?;
    let mut parts = text.to_bytes().splitn(3, |byte| *byte == b':');
    let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse::<u64>().ok();
    let (starter, most) = (number()?, number()?);
    Some(Wanted { starter: c_int::try_from(starter).ok()?, most, stem: parts.next()?.to_owned() })
}

/// Begins this process's recording, if one is wanted.
pub(crate) fn begin() {
    let Some(wanted) = wanted() else { return };
    // SAFETY: as in `wanted`.
    if !unsafe { getenv(NATIVE.as_ptr()) }.is_null() {
        origin::want_calls();
    }
    // SAFETY: they always succeed.
    let (own, parent) = unsafe { (getpid(), getppid()) };
    let is_first = parent == wanted.starter;
    let mut path = wanted.stem;
    path.extend_from_slice(if is_first { String::new() } else { format!("-{own}") }.as_bytes());
    path.extend_from_slice(b".oomph");
    let Ok(path) = CString::new(path) else { return };
    let place = Place { path, most: wanted.most, at_once: is_first };
    // SAFETY: nobody else is here yet: a process that begins, or a child after its fork, has one thread.
    unsafe { *SESSION.recorder.get() = Some(Recorder::new(place)) };
    RECORDING.store(true, Ordering::Relaxed);
}

/// Begins a recording in the middle of a process. The error is the operating system's.
pub(crate) fn start(path: &CStr, most: u64) -> Result<(), c_int> {
    let place = Place { path: path.to_owned(), most, at_once: true };
    lock();
    // SAFETY: the lock is held.
    let current = unsafe { &mut *SESSION.recorder.get() };
    if let Some(left) = current.take_if(|recorder| recorder.is_left()) {
        uncancelled(|| left.finish());
    }
    let result = match current {
        Some(_) => Err(BUSY),
        None => {
            crate::live::forget_all();
            let recorder = current.insert(Recorder::new(place));
            uncancelled(|| recorder.create()).inspect_err(|_| *current = None)
        }
    };
    unlock();
    if result.is_ok() {
        IS_OWN.store(true, Ordering::Relaxed);
        RECORDING.store(true, Ordering::Relaxed);
    }
    result
}

/// Ends the recording that `start` has begun.
pub(crate) fn stop() {
    if IS_OWN.swap(false, Ordering::Relaxed) {
        finish();
    }
}

pub(crate) fn watch_forks() {
    // SAFETY: functions that live as long as the library, which is never unloaded.
    unsafe { pthread_atfork(Some(before_fork), Some(after_fork), Some(in_the_child)) };
}

/// Ends the recording. Not by a signal's handler that ends the program in the middle of one of our calls: it would wait for itself.
pub(crate) extern "C" fn end() {
    let Some(_scope) = Scope::enter() else { return };
    finish();
}

/// The same, from within.
fn finish() {
    RECORDING.store(false, Ordering::Relaxed);
    lock();
    // SAFETY: the lock is held.
    let recorder = unsafe { (*SESSION.recorder.get()).take() };
    unlock();
    if let Some(recorder) = recorder {
        uncancelled(|| recorder.finish());
    }
}

/// What a thread does here that is ended by another would never be done: the lock would stay taken.
pub(crate) fn uncancelled<T>(work: impl FnOnce() -> T) -> T {
    const DISABLED: c_int = 1;
    let mut before: c_int = 0;
    // SAFETY: this thread's own state, which is put back.
    unsafe { pthread_setcancelstate(DISABLED, &raw mut before) };
    let result = work();
    // SAFETY: as above.
    unsafe { pthread_setcancelstate(before, std::ptr::null_mut()) };
    result
}

/// No lock is taken for a fork: others may be held by whoever waits for ours. The child does not use what it finds.
extern "C" fn before_fork() {
    scope::before_fork();
}

extern "C" fn after_fork() {
    if scope::is_forking() {
        scope::after_fork();
    }
}

extern "C" fn in_the_child() {
    RECORDING.store(false, Ordering::Relaxed);
    origin::in_the_child();
    if !scope::is_forking() {
        // A signal's handler has forked in the middle of one of our calls, which goes on in the child too when the handler returns. Nothing new is recorded there.
        memory::let_go();
        return;
    }
    memory::begin_anew();
    // SAFETY: the child's only thread. The recording that lies there may be half changed, and its file is the parent's: it is left as it is.
    unsafe { SESSION.recorder.get().write(None) };
    unlock();
    crate::live::forget_all();
    begin();
    scope::after_fork();
}
