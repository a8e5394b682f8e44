//! How much of a mapped range is really there.
//!
//! Allocators of other languages map far more than they use (mimalloc a GiB at a time), so what was asked of the kernel says little: pages that were touched count.

use std::ffi::{c_long, c_uchar};

/// From this size on it is looked at which pages are there. Smaller ranges count whole.
pub const LOOKED_AT: usize = 8 << 20;
const MINCORE: c_long = 27;
const PAGE: usize = 4096;
/// Pages that are asked about at once.
const AT_ONCE: usize = 1 << 14;

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
}

/// Bytes of a range of whole pages that count.
pub fn bytes(begin: usize, length: usize) -> u64 {
    if length < LOOKED_AT {
        return length as u64;
    }
    let mut are_there: [c_uchar; AT_ONCE] = [0; AT_ONCE];
    let (mut at, mut pages) = (begin, 0u64);
    let end = begin.saturating_add(length);
    while at < end {
        let part = (end - at).min(AT_ONCE * PAGE);
        // SAFETY: one byte is written for each page of the part, and there is room for so many.
        if unsafe { syscall(MINCORE, at, part, are_there.as_mut_ptr()) } != 0 {
            // A part of it is not mapped any more: all that is left counts.
            return pages * PAGE as u64 + (end - at) as u64;
        }
        let looked_at = are_there.get(..part.div_ceil(PAGE)).unwrap_or_default();
        pages += looked_at.iter().filter(|page| **page & 1 != 0).count() as u64;
        at += part;
    }
    pages * PAGE as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_that_were_touched_count() {
        let length = 32 << 20;
        let mut block: Vec<u8> = Vec::with_capacity(length + PAGE);
        let begin = (block.as_mut_ptr() as usize).next_multiple_of(PAGE);
        let before = bytes(begin, length);
        for page in 0..1000 {
            // SAFETY: within what was reserved.
            unsafe { (begin as *mut u8).add(page * PAGE * 3).write(1) };
        }
        let after = bytes(begin, length);
        // Huge pages may come whole.
        assert!(after - before >= 1000 * PAGE as u64 && after <= length as u64, "{before} {after}");
        assert_eq!(bytes(begin, 4 << 20), 4 << 20);
    }
}
