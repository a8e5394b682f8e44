//! What the Python side of `oomph predict` asks of the library: which reads are true, what was called, what was used.

use crate::card::Card;
use crate::dnn::{estimate, search};
use crate::{calls, memory, nccl, put, twister};
use std::ffi::{c_char, c_int};

/// From now on the host reads zeros from device memory, except where it says that the bytes are true.
#[unsafe(no_mangle)]
pub extern "C" fn oomph_guard(on: c_int) {
    memory::guard(on != 0);
}

/// Whether this thread's reads are of bytes that are known to be true.
#[unsafe(no_mangle)]
pub extern "C" fn oomph_allow_reads(allowed: c_int) {
    let _ = memory::READS.try_with(|reads| reads.borrow_mut().allowed = allowed != 0);
}

/// What this thread's next read of at most eight bytes gives: how many elements are nonzero, say, which PyTorch's own
/// kernel would have counted.
#[unsafe(no_mangle)]
pub extern "C" fn oomph_script_read(value: i64) {
    let _ = memory::READS.try_with(|reads| reads.borrow_mut().scripted.insert(0, value));
}

/// Whether anything has asked what card this is: from then on it is no other, whatever the environment says.
#[unsafe(no_mangle)]
pub extern "C" fn oomph_card_is_known() -> c_int {
    c_int::from(Card::is_known())
}

/// Whether bytes of device memory can be true here.
#[unsafe(no_mangle)]
pub extern "C" fn oomph_has_bytes() -> c_int {
    c_int::from(memory::has_bytes())
}

/// How many small reads were answered with zeros since this was asked last.
#[unsafe(no_mangle)]
pub extern "C" fn oomph_guessed() -> u64 {
    memory::guessed()
}

/// Drops scripted values that were not read; returns how many there were.
#[unsafe(no_mangle)]
pub extern "C" fn oomph_end_script() -> c_int {
    memory::READS
        .try_with(|reads| {
            let mut reads = reads.borrow_mut();
            let left = reads.scripted.len();
            reads.scripted.clear();
            left as c_int
        })
        .unwrap_or(0)
}

/// Moves a saved state of PyTorch's CPU generator on, as if so many numbers had been drawn; 0 if it is not one.
///
/// # Safety
/// `state` has [`twister::LENGTH`] bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_advance_random(state: *mut [u8; twister::LENGTH], draws: u64) -> c_int {
    // SAFETY: the caller's bytes; null is answered.
    match unsafe { state.as_mut() } {
        Some(state) => c_int::from(twister::advance(state, draws)),
        None => 0,
    }
}

/// The most bytes of a device that were taken at once, without the context.
#[unsafe(no_mangle)]
pub extern "C" fn oomph_peak(device: c_int) -> u64 {
    memory::peak(usize::try_from(device).unwrap_or(usize::MAX))
}

/// The most bytes of managed memory (`cudaMallocManaged`) that there were at once: the host's, and charged to no device.
#[unsafe(no_mangle)]
pub extern "C" fn oomph_managed() -> u64 {
    memory::managed_peak()
}

/// Workspaces of convolutions that were estimated: how many, the largest, and the most that one may be.
///
/// # Safety
/// `place` has room for three numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_estimated(place: *mut [u64; 3]) {
    let all = estimate::all();
    // SAFETY: the caller's place.
    unsafe { put(place, [all.count, all.bytes, all.most]) };
}

/// Convolutions whose plans were tried for their time: how many, and the most bytes that another plan needs less, and more, than the one that was taken.
///
/// # Safety
/// `place` has room for three numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_tried(place: *mut [u64; 3]) {
    let tried = search::tried();
    // SAFETY: the caller's place.
    unsafe { put(place, [tried.count, tried.less, tried.more]) };
}

/// The most bytes of a device that were taken at once after the last of those trials, without the context.
#[unsafe(no_mangle)]
pub extern "C" fn oomph_settled_peak(device: c_int) -> u64 {
    memory::settled_peak(usize::try_from(device).unwrap_or(usize::MAX))
}

/// What NCCL took of the card: how many communicators were made, the most bytes at once, and the most that it may have been.
///
/// # Safety
/// `place` has room for three numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_nccl(place: *mut [u64; 3]) {
    // SAFETY: the caller's place.
    unsafe { put(place, nccl::account()) };
}

/// A part of a communicator that is about to be split off: its colour, how many ranks it has, which this is, and how many are on this machine.
#[unsafe(no_mangle)]
pub extern "C" fn oomph_nccl_part(color: c_int, count: c_int, rank: c_int, here: c_int) {
    nccl::part(color, count, rank, here);
}

/// A group that is about to be made: how many ranks it has, and how many of them are on this machine.
#[unsafe(no_mangle)]
pub extern "C" fn oomph_nccl_group(count: c_int, here: c_int) {
    nccl::group(count, here);
}

/// The communicators that were made, `ranks here times` a line, cut to `length`; returns the length of the whole.
///
/// # Safety
/// `place` has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_nccl_sizes(place: *mut c_char, length: usize) -> usize {
    // SAFETY: the caller's buffer.
    unsafe { write(&nccl::sizes(), place, length) }
}

/// The calls of NCCL, `function ranks times bytes` a line, cut to `length`; returns the length of the whole.
///
/// # Safety
/// `place` has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_nccl_calls(place: *mut c_char, length: usize) -> usize {
    // SAFETY: the caller's buffer.
    unsafe { write(&nccl::calls(), place, length) }
}

/// The calls without a model, `name count` a line, cut to `length`; returns the length of the whole.
///
/// # Safety
/// `place` has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_unmodelled(place: *mut c_char, length: usize) -> usize {
    // SAFETY: the caller's buffer.
    unsafe { write(&calls::text(), place, length) }
}

/// The libraries that do not take the card, `library version` a line, cut to `length`; returns the length of the whole.
///
/// # Safety
/// `place` has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_refused(place: *mut c_char, length: usize) -> usize {
    // SAFETY: the caller's buffer.
    unsafe { write(&calls::refusals(), place, length) }
}

/// # Safety
/// `place` is null or has `length` bytes.
unsafe fn write(text: &str, place: *mut c_char, length: usize) -> usize {
    let count = text.len().min(length);
    if !place.is_null() {
        // SAFETY: the caller's buffer.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), place, count) };
    }
    text.len()
}
