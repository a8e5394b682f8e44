//! The recording of this process: there is one or none, a thread of ours that writes it, and forked children that have nothing to do with it.
//!
//! Boundary: what a recording is, the [`Recorder`] knows.

use crate::file::{File, Owner};
use crate::gauges;
use crate::recorder::{Extent, Recorder};
use crate::reserve::MEMORY;
use crate::status::{self, Publisher};
use std::ffi::{CStr, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often what was seen is written.
const EVERY: Duration = Duration::from_millis(100);

static RECORDER: Mutex<Option<Recorder>> = Mutex::new(None);
static NOBODY: Mutex<Option<Recorder>> = Mutex::new(None);
static RECORDING: AtomicBool = AtomicBool::new(false);
/// A forked child has no thread to write with, and the file is its parent's.
static FORKED: AtomicBool = AtomicBool::new(false);
/// Says what is true at the moment. Taken before [`RECORDER`], if both are.
static PUBLISHER: Mutex<Option<Publisher>> = Mutex::new(None);
/// Which recording the writing thread is for.
static TURN: AtomicU64 = AtomicU64::new(0);

/// Whether events are wanted.
pub(crate) fn is_recording() -> bool {
    RECORDING.load(Relaxed)
}

/// The recording that is under way.
pub(crate) fn lock() -> MutexGuard<'static, Option<Recorder>> {
    let which = if FORKED.load(Relaxed) { &NOBODY } else { &RECORDER };
    which.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Never in a forked child: the file is its parent's.
fn publisher() -> MutexGuard<'static, Option<Publisher>> {
    PUBLISHER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Called in a forked child.
pub(crate) extern "C" fn forked() {
    MEMORY.forked();
    FORKED.store(true, Relaxed);
    RECORDING.store(false, Relaxed);
}

unsafe extern "C" {
    fn pthread_sigmask(how: c_int, new: *const [u64; 16], old: *mut [u64; 16]) -> c_int;
    fn pthread_setname_np(thread: *mut c_void, name: *const std::ffi::c_char) -> c_int;
    fn pthread_self() -> *mut c_void;
}

/// Whether this is a forked child.
pub(crate) fn is_forked() -> bool {
    FORKED.load(Relaxed)
}

/// Begins a recording; one that was under way ends.
pub(crate) fn start(path: &CStr, most_bytes: u64, extent: Extent, owner: Owner) -> c_int {
    if FORKED.load(Relaxed) {
        return 1;
    }
    stop();
    let file = match File::create(path, most_bytes, owner) {
        Ok(file) => file,
        Err(error) => return error,
    };
    gauges::begin();
    *lock() = Some(Recorder::new(file, extent));
    *publisher() = match extent {
        Extent::News => Publisher::new(Path::new(OsStr::from_bytes(path.to_bytes()))),
        // It is over before anybody looks, and no card is taken.
        Extent::Whole => None,
    };
    let turn = TURN.fetch_add(1, Relaxed) + 1;
    RECORDING.store(true, Relaxed);
    // Signals are the program's business: this thread takes none.
    let (all, mut before) = ([!0u64; 16], [0u64; 16]);
    // SAFETY: sets of signals are 128 bytes long; 2 is SIG_SETMASK.
    unsafe { pthread_sigmask(2, &raw const all, &raw mut before) };
    let begun = std::thread::Builder::new().spawn(move || keep_writing(turn));
    // SAFETY: as above.
    unsafe { pthread_sigmask(2, &raw const before, std::ptr::null_mut()) };
    if begun.is_err() { 11 } else { 0 }
}

fn keep_writing(turn: u64) {
    // SAFETY: this thread, and a name of fewer than 16 bytes.
    unsafe { pthread_setname_np(pthread_self(), c"oomph-recorder".as_ptr()) };
    let mut published: Option<Instant> = None;
    while TURN.load(Relaxed) == turn {
        std::thread::sleep(EVERY);
        if TURN.load(Relaxed) == turn
            && let Some(recorder) = lock().as_mut()
        {
            recorder.flush();
        }
        if published.is_none_or(|when| when.elapsed() >= status::EVERY) {
            published = Some(Instant::now());
            publish(turn);
        }
    }
}

fn publish(turn: u64) {
    let mut publisher = publisher();
    let Some(publisher) = publisher.as_mut().filter(|_| TURN.load(Relaxed) == turn) else { return };
    // The program waits for the recorder's lock, not for the disk.
    let status = lock().as_mut().map(Recorder::status);
    if let Some(status) = status {
        publisher.publish(&status);
    }
}

/// Ends the recording that is under way, if there is one.
pub(crate) fn stop() -> c_int {
    RECORDING.store(false, Relaxed);
    TURN.fetch_add(1, Relaxed);
    let recorder = lock().take();
    if !FORKED.load(Relaxed) {
        // Whoever publishes is done, and nobody does again.
        publisher().take();
    }
    match recorder {
        Some(recorder) => c_int::from(!recorder.finish()),
        None => 1,
    }
}
