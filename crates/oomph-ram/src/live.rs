//! What is live: blocks by their addresses, and mapped ranges.
//!
//! A filter in front says of most addresses, without a lock, that nothing is known of them: of every hundred blocks that a program frees, hardly one was recorded.

use crate::spread::Map;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

const BITS: u32 = 17;
const PLACES: usize = 1 << BITS;
static FILTER: [AtomicU8; PLACES] = [const { AtomicU8::new(0) }; PLACES];

fn place(address: usize) -> &'static AtomicU8 {
    // Blocks lie on multiples of sixteen.
    let spread = (address >> 4).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (usize::BITS - BITS);
    FILTER.get(spread).unwrap_or(&FILTER[0])
}

/// Whether a block at this address may be live. Whoever frees it got it from whoever was given it, so what that one noted is seen here.
#[inline]
pub(crate) fn may_hold(address: usize) -> bool {
    place(address).load(Relaxed) != 0
}

/// What is known of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// Its number in the file: no two that are live have the same.
    pub(crate) number: u64,
    /// The bytes that it stands for.
    pub(crate) size: u64,
    pub(crate) stack: u32,
    /// A number of [`crate::layout::How`].
    pub(crate) kind: u8,
    /// Where its row is, if that was not written yet: in which round, and which.
    pub(crate) row: (u32, u32),
}

/// Blocks and mapped ranges.
#[derive(Default)]
pub(crate) struct Live {
    blocks: Map<u64, Block>,
    /// By their beginnings; they do not overlap.
    ranges: BTreeMap<usize, (usize, Block)>,
}

impl Live {
    /// Whether one more can be kept without asking for memory that is not there.
    pub(crate) fn has_room(&mut self) -> bool {
        self.blocks.len() < self.blocks.capacity() || self.blocks.try_reserve(1).is_ok()
    }

    /// Another number for a block.
    pub(crate) fn renumber(&mut self, address: u64, number: u64) {
        if let Some(block) = self.blocks.get_mut(&address) {
            block.number = number;
        }
    }

    pub(crate) fn size_of(&self, address: usize) -> Option<u64> {
        self.blocks.get(&(address as u64)).map(|block| block.size)
    }

    pub(crate) fn insert(&mut self, address: usize, block: Block) -> Option<Block> {
        let before = self.blocks.insert(address as u64, block);
        if before.is_none() {
            let _ = place(address).fetch_update(Relaxed, Relaxed, |count| Some(count.saturating_add(1)));
        }
        before
    }

    pub(crate) fn remove(&mut self, address: usize) -> Option<Block> {
        let block = self.blocks.remove(&(address as u64))?;
        // A count that has once been as high as it can be stays: how many there are is not known any more.
        let _ = place(address).fetch_update(Relaxed, Relaxed, |count| (count != u8::MAX).then(|| count - 1));
        Some(block)
    }

    pub(crate) fn map(&mut self, address: usize, size: usize, block: Block) {
        self.ranges.insert(address, (size, block));
    }

    /// Mapped ranges of at least so many bytes, and what is known of them.
    pub(crate) fn ranges_from(&mut self, least: usize) -> impl Iterator<Item = (usize, usize, &mut Block)> {
        self.ranges
            .iter_mut()
            .filter(move |(_, (size, _))| *size >= least)
            .map(|(begin, (size, block))| (*begin, *size, block))
    }

    /// Takes out what is mapped in a range: each piece with its address, its bytes and what is known of it. What lies before and behind stays.
    pub(crate) fn unmap(&mut self, address: usize, size: usize) -> Vec<(usize, usize, Block)> {
        let end = address.saturating_add(size);
        let first = self.ranges.range(..=address).next_back().map_or(address, |(begin, _)| *begin);
        let touched: Vec<usize> = self
            .ranges
            .range(first..end)
            .filter(|(begin, (size, _))| **begin + size > address)
            .map(|(begin, _)| *begin)
            .collect();
        touched
            .into_iter()
            .filter_map(|begin| self.ranges.remove(&begin).map(|(size, block)| (begin, size, block)))
            .collect()
    }
}

/// In a forked child, whose recording begins with nothing.
pub(crate) fn forget_all() {
    FILTER.iter().for_each(|count| count.store(0, Relaxed));
}
