//! The recorder of host memory: what a process asks the C library and the kernel for, from which line of Python, written to an `.oomph` file that can be read
//! whenever the process dies.
//!
//! It is preloaded, and stands before `malloc` and its like ([`hooks`]). Large requests are recorded one by one, small ones by sampling ([`sampling`]). Of blocks that
//! come and go between two writes only those are written that were live when most was ([`ticks`]), so that a file stays small and its peak is exact. What the kernel
//! counts is read beside it ([`resident`]).
//!
//! Boundary: like `oomph-record`, of which it shares the files that read Python's frames and write chunks, it is loaded into other people's processes and depends on nothing.
//! It has no thread: what it does, it does in the calls that it stands before. It never takes memory from the allocator that it watches ([`memory`]), waits for no
//! lock that the program may hold, and when it is short of memory itself, it stops recording and the program goes on.

mod attach;
mod definitions;
#[path = "../../oomph-record/src/elf.rs"]
mod elf;
#[path = "../../oomph-record/src/file.rs"]
#[allow(dead_code)]
mod file;
mod hooks;
mod keeper;
#[allow(dead_code, unreachable_pub)] // a reader needs more of it, and shows it
#[path = "../../oomph-trace/src/layout.rs"]
mod layout;
mod libraries;
#[allow(unreachable_pub)] // shown by the crate whose file it is
#[path = "../../oomph-words/src/library_code.rs"]
mod library_code;
mod live;
mod memory;
mod objects;
mod origin;
mod pinned;
#[path = "../../oomph-record/src/places.rs"]
#[allow(dead_code)] // what a process says of itself is the other recorder's
mod places;
#[path = "../../oomph-record/src/python.rs"]
#[allow(dead_code)]
mod python;
mod recorder;
mod resident;
mod sampling;
mod scope;
mod session;
#[path = "../../oomph-record/src/spread.rs"]
mod spread;
#[path = "../../oomph-record/src/stacks.rs"]
#[allow(dead_code)]
mod stacks;
#[path = "../../oomph-record/src/tables.rs"]
#[allow(dead_code)]
mod tables;
mod ticks;
mod touched;

use std::ffi::{CStr, c_char, c_int};

/// What `places` takes of the other recorder's: nothing is said here while the process runs.
#[allow(dead_code)]
mod status {
    pub(crate) const MOST_LINES: usize = 0;
}

/// Learns how this Python lays out its frames, and stands before its allocators. With the interpreter's lock, from a Python function. 0: lines are known from now on.
#[unsafe(no_mangle)]
pub extern "C" fn oomph_ram_learn() -> c_int {
    let _scope = scope::Scope::enter();
    let is_known = python::learn();
    origin::learn();
    if is_known {
        objects::stand_before();
    }
    c_int::from(!is_known)
}

/// Frames of files that begin with this are oomph's own, and no line of the program's.
///
/// # Safety
/// `own` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_ram_leave_out(own: *const c_char) {
    let _scope = scope::Scope::enter();
    // SAFETY: as the caller says.
    stacks::leave_out(&unsafe { CStr::from_ptr(own) }.to_string_lossy());
}

/// Stands before the functions of a PyTorch that is loaded which give pinned memory.
#[unsafe(no_mangle)]
pub extern "C" fn oomph_ram_pinned() {
    let _scope = scope::Scope::enter();
    pinned::stand_before();
}

/// Makes recordings possible in this process, which runs already: to be called again when libraries have been loaded. With the interpreter's lock, from a Python function. 0: done; 1: not here.
#[unsafe(no_mangle)]
pub extern "C" fn oomph_ram_attach() -> c_int {
    let is_unknown = oomph_ram_learn();
    let _scope = scope::Scope::enter();
    let is_done = attach::is_preloaded() || attach::redirect();
    pinned::stand_before();
    c_int::from(!is_done) | is_unknown
}

/// Begins a recording: of what is asked for from here on. 0, or the number of an error of the operating system.
///
/// # Safety
/// `path` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_ram_start(path: *const c_char, most: u64) -> c_int {
    let Some(_scope) = scope::Scope::enter() else { return session::BUSY };
    // SAFETY: as the caller says.
    session::start(unsafe { CStr::from_ptr(path) }, most).err().unwrap_or(0)
}

/// Ends the recording by itself when the file is gone, or nobody holds it locked: at the next write after that.
///
/// # Safety
/// `path` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_ram_while(path: *const c_char) -> c_int {
    let Some(_scope) = scope::Scope::enter() else { return session::BUSY };
    // SAFETY: as the caller says.
    let keeper = keeper::Keeper::new(unsafe { CStr::from_ptr(path) });
    session::with(|recorder| recorder.keep_by(keeper));
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn oomph_ram_flush() -> c_int {
    let Some(_scope) = scope::Scope::enter() else { return session::BUSY };
    session::uncancelled(|| session::with(recorder::Recorder::write));
    0
}

/// A step of the program has ended.
#[unsafe(no_mangle)]
pub extern "C" fn oomph_ram_step() -> c_int {
    let Some(_scope) = scope::Scope::enter() else { return session::BUSY };
    session::uncancelled(|| session::with(recorder::Recorder::step));
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn oomph_ram_stop() -> c_int {
    let Some(_scope) = scope::Scope::enter() else { return session::BUSY };
    session::stop();
    0
}

/// Bytes that are asked for and not given back.
#[unsafe(no_mangle)]
pub extern "C" fn oomph_ram_asked() -> u64 {
    let Some(_scope) = scope::Scope::enter() else { return 0 };
    session::with(|recorder| recorder.held()).unwrap_or(0)
}

/// The most that these were at once.
#[unsafe(no_mangle)]
pub extern "C" fn oomph_ram_peak() -> u64 {
    let Some(_scope) = scope::Scope::enter() else { return 0 };
    session::with(|recorder| recorder.most_held()).unwrap_or(0)
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = session::end;

extern "C" fn begin() {
    let _scope = scope::Scope::enter();
    session::begin();
    session::watch_forks();
}
