//! The recorder: every block that PyTorch's caching allocator hands out or takes back, from which line of Python, written
//! to an `.oomph` file that can be read whenever the process dies.
//!
//! PyTorch has a recorder of its own, which costs a quarter of a small step: it takes the interpreter's lock for every
//! stack and keeps everything in memory. This one listens where the allocator reports to the profiler
//! ([`hooks`]), reads the frames of the calling thread in place, without the lock ([`python`]), and appends to a file
//! ([`recorder`], [`file`]). A step that is the same as one before it, address by address, is counted instead of written
//! ([`repeats`]). What is true at the moment is said in a small file beside it, for whoever watches ([`status`]).
//!
//! Boundary: this crate knows the format that `oomph-trace` reads, but does not depend on it, nor on anything else: it is
//! loaded into other people's processes. It changes nothing there but three entries of a table of imported functions,
//! and passes every call on. What it cannot understand it leaves out; it never stops the program.

mod backward;
mod cut;
mod elf;
mod encode;
mod event;
mod file;
mod gauges;
mod hooks;
#[allow(dead_code, unreachable_pub)] // a reader needs more of it, and shows it
#[path = "../../oomph-trace/src/layout.rs"]
mod layout;
mod ledger;
#[allow(unreachable_pub)] // shown by the crate whose file it is
#[path = "../../oomph-words/src/library_code.rs"]
mod library_code;
mod output;
mod places;
mod python;
mod recorder;
mod repeats;
mod reserve;
mod session;
mod spread;
mod stacks;
mod state;
mod status;
mod tables;

use file::Owner;
use recorder::{Extent, Recorder};
use session::lock;
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Puts the hooks under the allocator of the PyTorch that is loaded, and learns how this Python lays out its frames.
/// Call with the interpreter's lock, from a Python function. 0: done; 1: no PyTorch with CUDA; 2: done, but lines will not
/// be known.
#[unsafe(no_mangle)]
pub extern "C" fn oomph_record_attach() -> c_int {
    let frames = python::learn();
    if !hooks::attach() {
        return 1;
    }
    if frames { 0 } else { 2 }
}

/// Begins a file. 0, or the number of an error of the operating system. With `whole` everything is written: see [`recorder::Extent`].
/// With `claimed` the file is that of whoever has started the program: see [`file::Owner`].
///
/// # Safety
/// `path` is a string of C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_record_start(
    path: *const c_char,
    most_bytes: u64,
    whole: c_int,
    claimed: c_int,
) -> c_int {
    if path.is_null() {
        return 22;
    }
    // SAFETY: the caller's string.
    let path = unsafe { CStr::from_ptr(path) };
    let extent = if whole == 0 { Extent::News } else { Extent::Whole };
    let owner = if claimed == 0 { Owner::Nobody } else { Owner::Starter };
    session::start(path, most_bytes, extent, owner)
}

/// Whether a file could be begun, which is made if it is not there. 0, or the number of an error of the operating system.
///
/// # Safety
/// `path` is a string of C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_record_check(path: *const c_char) -> c_int {
    if path.is_null() {
        return 22;
    }
    // SAFETY: the caller's string.
    let path = unsafe { CStr::from_ptr(path) };
    Owner::Nobody.take(Path::new(OsStr::from_bytes(path.to_bytes()))).err().unwrap_or(0)
}

/// Files that begin with this are oomph's own, and left out of stacks.
///
/// # Safety
/// `own` is a string of C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_record_leave_out(own: *const c_char) {
    if !own.is_null() && !session::is_forked() {
        // SAFETY: the caller's string.
        stacks::leave_out(&unsafe { CStr::from_ptr(own) }.to_string_lossy());
    }
}

/// What the lines of a generated file were made from: see [`stacks::made_from`].
///
/// # Safety
/// `file` and `lines` are strings of C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_record_made_from(file: *const c_char, lines: *const c_char) {
    if !file.is_null() && !lines.is_null() && !session::is_forked() {
        // SAFETY: the caller's strings.
        let (file, lines) = unsafe { (CStr::from_ptr(file), CStr::from_ptr(lines)) };
        stacks::made_from(&file.to_string_lossy(), &lines.to_string_lossy());
    }
}

/// The node of autograd's graph with this number has been made, where the calling thread is. Of several such calls the first is right. Below 0 there are
/// none.
#[unsafe(no_mangle)]
pub extern "C" fn oomph_record_forward(number: i64) {
    if let (Ok(number), Some(recorder)) = (u64::try_from(number), lock().as_mut()) {
        recorder.forward(number, || python::walk(0, python::DEEPEST));
    }
}

/// The calling thread runs the node with this number and name, until it runs another.
///
/// # Safety
/// `name` is a string of C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_record_backward(number: u64, name: *const c_char) {
    if name.is_null() {
        return;
    }
    // SAFETY: the caller's string.
    let name = unsafe { CStr::from_ptr(name) };
    if let Some(recorder) = lock().as_mut() {
        recorder.backward(number, &name.to_string_lossy());
    }
}

/// Segments and blocks as they are: at the beginning, what was there before the recording; at the end, its final state.
/// `numbers`: for each segment its address, size, flags (1 small, 2 expandable), pool (two numbers), stream, count of blocks; then
/// for each block its size, what was requested, and its state (0 free, 1 allocated, 2 waiting).
///
/// # Safety
/// `numbers` has `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_record_state(
    device: u32,
    numbers: *const u64,
    count: usize,
    at_the_end: c_int,
) -> c_int {
    if numbers.is_null() && count > 0 {
        return 1;
    }
    let numbers = match count {
        0 => &[],
        // SAFETY: the caller's array.
        _ => unsafe { std::slice::from_raw_parts(numbers, count) },
    };
    let Some(segments) = state::segments_of(numbers) else { return 1 };
    let mut recorder = lock();
    let Some(recorder) = recorder.as_mut() else { return 1 };
    if at_the_end == 0 {
        recorder.begin_with(device, &segments);
    } else {
        recorder.end_with(device, &segments);
    }
    0
}

/// What a device is: its name, all of its memory, and whether it is oomph's virtual card.
///
/// # Safety
/// `name` is a string of C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_record_card(device: u32, name: *const c_char, total: u64, is_virtual: c_int) {
    if name.is_null() {
        return;
    }
    // SAFETY: the caller's string.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    if let Some(recorder) = lock().as_mut() {
        recorder.card(device, status::Card { name, total, is_virtual: is_virtual != 0 });
    }
}

/// The allocator's settings, as JSON.
///
/// # Safety
/// `json` is a string of C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_record_settings(json: *const c_char) {
    if json.is_null() {
        return;
    }
    // SAFETY: the caller's string.
    let json = unsafe { CStr::from_ptr(json) };
    if let Some(recorder) = lock().as_mut() {
        recorder.settings(json.to_bytes());
    }
}

/// An optimizer's step begins (0) or has ended (1). After an end, gives 1 if the step was new: not the same as one before.
///
/// # Safety
/// `name` is a string of C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_record_step(name: *const c_char, ended: c_int) -> c_int {
    if name.is_null() {
        return 0;
    }
    // SAFETY: the caller's string.
    let name = unsafe { CStr::from_ptr(name) };
    match lock().as_mut() {
        Some(recorder) => c_int::from(recorder.step(&name.to_string_lossy(), ended != 0)),
        None => 0,
    }
}

/// Something to remember, by name, at this moment.
///
/// # Safety
/// `name` is a string of C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_record_mark(name: *const c_char) {
    if name.is_null() {
        return;
    }
    // SAFETY: the caller's string.
    let name = unsafe { CStr::from_ptr(name) };
    if let Some(recorder) = lock().as_mut() {
        recorder.mark(&name.to_string_lossy());
    }
}

/// A range that the program has named begins (0) or has ended (1).
///
/// # Safety
/// `name` is a string of C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_record_range(name: *const c_char, ended: c_int) {
    if name.is_null() {
        return;
    }
    // SAFETY: the caller's string.
    let name = unsafe { CStr::from_ptr(name) };
    if let Some(recorder) = lock().as_mut() {
        recorder.range(&name.to_string_lossy(), ended != 0);
    }
}

/// What live blocks are: 1 parameters, 2 gradients, 3 optimizer state, 4 frozen weights, 5 weights of adapters. Addresses may lie anywhere in a block.
///
/// # Safety
/// `addresses` has `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_record_kinds(device: u32, addresses: *const u64, count: usize, kind: c_int) {
    if addresses.is_null() || count == 0 {
        return;
    }
    // SAFETY: the caller's array.
    let addresses = unsafe { std::slice::from_raw_parts(addresses, count) };
    let name = match kind {
        1 => "parameter",
        2 => "gradient",
        3 => "optimizer_state",
        4 => "frozen",
        5 => "adapter",
        _ => return,
    };
    if let Some(recorder) = lock().as_mut() {
        recorder.kinds(device, addresses, name);
    }
}

/// Out of memory: what was asked for (as far as PyTorch says) and what the device had free. `skip`: innermost frames of
/// Python that are the observer's own.
#[unsafe(no_mangle)]
pub extern "C" fn oomph_record_oom(device: u32, asked: u64, free: u64, skip: u32) {
    let stack = python::walk(skip as usize, python::DEEPEST);
    let requested = hooks::requested();
    if let Some(recorder) = lock().as_mut() {
        let size = if requested > 0 && requested <= asked { requested.next_multiple_of(512) } else { asked };
        recorder.out_of_memory(device, size, free, &stack);
    }
}

/// Who held what at the out-of-memory that was reported last, as JSON.
///
/// # Safety
/// `json` has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_record_census(json: *const u8, length: usize) {
    if json.is_null() || length == 0 {
        return;
    }
    // SAFETY: the caller's bytes.
    let json = unsafe { std::slice::from_raw_parts(json, length) };
    if let Some(recorder) = lock().as_mut() {
        recorder.census(json);
    }
}

/// Writes what is there, and ends the file.
#[unsafe(no_mangle)]
pub extern "C" fn oomph_record_stop() -> c_int {
    session::stop()
}

#[unsafe(no_mangle)]
pub extern "C" fn oomph_record_flush() {
    if let Some(recorder) = lock().as_mut() {
        recorder.flush();
    }
}

/// How many events were seen, of which so many in steps that were the same as one before.
///
/// # Safety
/// `numbers` has room for four: events, events in repeated steps, repeated steps, 1 if the file could not be written to its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_record_counts(numbers: *mut [u64; 4]) {
    let counts = lock().as_ref().map(Recorder::counts).unwrap_or_default();
    if !numbers.is_null() {
        // SAFETY: the caller's array.
        unsafe { numbers.write(counts) };
    }
}

/// Forgets the peak so far: [`oomph_record_peak`] then tells the highest since. Does not touch PyTorch's statistics.
#[unsafe(no_mangle)]
pub extern "C" fn oomph_record_mark_peak() {
    gauges::mark();
}

/// The most bytes that were allocated on a device since the mark.
#[unsafe(no_mangle)]
pub extern "C" fn oomph_record_peak(device: u32) -> u64 {
    gauges::marked(device)
}
