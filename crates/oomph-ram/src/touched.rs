//! How much of a mapped range is really there.
//!
//! Allocators of other languages map far more than they use (mimalloc a GiB at a time), so what was asked of the kernel says little: pages that were touched count.

use std::ffi::{c_long, c_uchar};

/// From this size on it is looked at which pages are there. Smaller ranges count whole.
pub(crate) const LOOKED_AT: usize = 8 << 20;
/// Of larger ranges only parts are looked at, evenly spaced: the kernel takes half a second for a TiB.
const MOST: usize = 16 << 30;
const MINCORE: c_long = 27;
const PAGE: usize = 4096;
/// Pages that are asked about at once.
const AT_ONCE: usize = 1 << 14;

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
}

/// Looks, with room for the answer: a thread's stack may have little.
pub(crate) struct Pages(Vec<c_uchar>);

impl Pages {
    pub(crate) fn new() -> Self {
        Self(vec![0; AT_ONCE])
    }

    /// Bytes of a range of whole pages that count.
    pub(crate) fn bytes(&mut self, begin: usize, length: usize) -> u64 {
        if length < LOOKED_AT {
            return length as u64;
        }
        let part = AT_ONCE * PAGE;
        // One of so many parts.
        let every = length.div_ceil(MOST);
        let (mut there, mut looked_at) = (0u64, 0u64);
        let mut at = 0;
        while at < length {
            let bytes = part.min(length - at);
            // What is not mapped any more counts: somebody is about to say so.
            there += self.there(begin.saturating_add(at), bytes).unwrap_or(bytes as u64);
            looked_at += bytes as u64;
            at = at.saturating_add(part.saturating_mul(every));
        }
        (there as u128 * length as u128 / u128::from(looked_at.max(1))) as u64
    }

    fn there(&mut self, begin: usize, bytes: usize) -> Option<u64> {
        let pages = bytes.div_ceil(PAGE);
        let answer = self.0.get_mut(..pages)?;
        // SAFETY: one byte is written for each page, and there is room for so many.
        let error = unsafe { syscall(MINCORE, begin, bytes, answer.as_mut_ptr()) };
        (error == 0).then(|| answer.iter().filter(|page| **page & 1 != 0).count() as u64 * PAGE as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_that_were_touched_count() {
        let length = 32 << 20;
        let mut block: Vec<u8> = Vec::with_capacity(length + PAGE);
        let begin = (block.as_mut_ptr() as usize).next_multiple_of(PAGE);
        let mut pages = Pages::new();
        let before = pages.bytes(begin, length);
        for page in 0..1000 {
            // SAFETY: within what was reserved.
            unsafe { (begin as *mut u8).add(page * PAGE * 3).write(1) };
        }
        let after = pages.bytes(begin, length);
        // Huge pages may come whole.
        assert!(after - before >= 1000 * PAGE as u64 && after <= length as u64, "{before} {after}");
        assert_eq!(pages.bytes(begin, 4 << 20), 4 << 20);
    }
}
