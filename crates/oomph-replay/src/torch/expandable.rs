//! Expandable segments: a range of addresses that memory is mapped into page by page.

use super::blocks::{Block, BlockId, NONE, State};
use super::{Lane, Torch};
use crate::allocator::Refusal;
use oomph_settings::rounding::SMALL_SEGMENT;

impl Torch {
    pub(super) fn page(&self, lane: u32) -> u64 {
        if self.lanes[lane as usize].small { SMALL_SEGMENT } else { self.conf.large_segment_size }
    }

    /// Room for the whole card and an eighth more, in whole pages.
    pub(super) fn range_of_segment(&self, page: u64) -> u64 {
        (self.total + self.total / 8).div_ceil(page) * page
    }

    /// Makes a free block of at least `size` by mapping pages, or fails; what was mapped stays.
    pub(super) fn expand(&mut self, lane: u32, size: u64, segment: u64) -> Option<BlockId> {
        let refused = Refusal::Device { segment };
        if size > self.range_of_segment(self.page(lane)) {
            self.last_refusal = refused;
            return None;
        }
        let mut block = self.find_expandable(lane, size);
        if self.blocks[block].state == State::Unmapped {
            let needed = size.min(self.blocks[block].size);
            if !self.map(block, needed) {
                self.last_refusal = refused;
                return None;
            }
        }
        while self.blocks[block].size < size {
            let next = self.blocks[block].next;
            let needed = (size - self.blocks[block].size).min(self.blocks[next].size);
            if !self.map(next, needed) {
                self.last_refusal = refused;
                return None;
            }
            block = next; // it has taken the block before it in
        }
        self.remove_free(block);
        Some(block)
    }

    /// The first place, by address, where `size` bytes in a row are free, with memory behind them or not.
    fn find_expandable(&mut self, lane: u32, size: u64) -> BlockId {
        let free = |id: BlockId| id != NONE && matches!(self.blocks[id].state, State::Free | State::Unmapped);
        for &unmapped in self.lanes[lane as usize].unmapped.values() {
            let before = self.blocks[unmapped].prev;
            let start = if free(before) { before } else { unmapped };
            let (mut at, mut room) = (start, 0u64);
            while room < size && free(at) {
                room += self.blocks[at].size;
                at = self.blocks[at].next;
            }
            if room >= size {
                return start;
            }
        }
        let page = self.page(lane);
        let range = self.range_of_segment(page);
        let base = self.addresses.range(range);
        self.add_range(lane, base, page, range)
    }

    /// A new expandable segment with nothing mapped.
    pub(super) fn add_range(&mut self, lane: u32, base: u64, page: u64, range: u64) -> BlockId {
        let segment = self.add_segment(base, page);
        let block = self.make_block(lane, segment, base, range);
        self.insert_unmapped(block);
        block
    }

    pub(super) fn insert_unmapped(&mut self, id: BlockId) {
        let block = &mut self.blocks[id];
        block.state = State::Unmapped;
        let (lane, address) = (block.lane, block.address);
        self.lanes[lane as usize].unmapped.insert(address, id);
    }

    fn remove_unmapped(&mut self, id: BlockId) {
        let Block { lane, address, .. } = self.blocks[id];
        self.lanes[lane as usize].unmapped.remove(&address);
    }

    /// Puts memory behind the front of an unmapped block; all of it or none.
    fn map(&mut self, id: BlockId, size: u64) -> bool {
        let Block { lane, segment, address, size: whole, next, .. } = self.blocks[id];
        let page = self.segments[segment as usize].page;
        let mapped = size.div_ceil(page) * page;
        if mapped > self.free_physical {
            return false;
        }
        self.free_physical -= mapped;
        self.addresses.mapped(address, mapped);
        self.remove_unmapped(id);
        if mapped < whole {
            let rest = self.make_block(lane, segment, address.wrapping_add(mapped), whole - mapped);
            self.blocks[rest].prev = id;
            self.blocks[rest].next = next;
            if next != NONE {
                self.blocks[next].prev = rest;
            }
            self.blocks[id].next = rest;
            self.blocks[id].size = mapped;
            self.insert_unmapped(rest);
        }
        self.merge_neighbours(id, State::Free);
        self.insert_free(id);
        self.usage.reserved.add(mapped);
        self.usage.device_allocs += 1;
        true
    }

    fn merge_neighbours(&mut self, id: BlockId, state: State) {
        let prev = self.blocks[id].prev;
        self.merge(id, prev, state);
        let next = self.blocks[id].next;
        self.merge(id, next, state);
    }

    /// Takes the memory of all whole pages of a free block away.
    pub(super) fn unmap(&mut self, id: BlockId) {
        let Block { lane, segment, address, size, .. } = self.blocks[id];
        let facts = self.segments[segment as usize];
        let start = address.wrapping_sub(facts.base);
        let (first, last) = (start.div_ceil(facts.page), (start + size) / facts.page);
        if first >= last {
            return;
        }
        self.remove_free(id);
        let from = facts.base.wrapping_add(first * facts.page);
        let unmapped = (last - first) * facts.page;
        let before = from.wrapping_sub(address);
        let after = size - before - unmapped;
        if before > 0 {
            let piece = self.make_block(lane, segment, address, before);
            let prev = self.blocks[id].prev;
            self.blocks[piece].prev = prev;
            self.blocks[piece].next = id;
            if prev != NONE {
                self.blocks[prev].next = piece;
            }
            self.blocks[id].prev = piece;
            self.insert_free(piece);
        }
        if after > 0 {
            let piece = self.make_block(lane, segment, from.wrapping_add(unmapped), after);
            let next = self.blocks[id].next;
            self.blocks[piece].prev = id;
            self.blocks[piece].next = next;
            if next != NONE {
                self.blocks[next].prev = piece;
            }
            self.blocks[id].next = piece;
            self.insert_free(piece);
        }
        self.blocks[id].address = from;
        self.blocks[id].size = unmapped;
        self.merge_neighbours(id, State::Unmapped);
        self.insert_unmapped(id);
        self.free_physical += unmapped;
        self.usage.reserved.take(unmapped);
        self.usage.device_frees += 1;
    }

    /// A range with nothing mapped is given up.
    pub(super) fn drop_if_empty(&mut self, id: BlockId) {
        let block = &self.blocks[id];
        if block.state == State::Unmapped && !block.is_split() {
            let segment = block.segment;
            self.remove_unmapped(id);
            self.blocks.remove(id);
            self.vacant_segments.push(segment);
        }
    }
}

impl Lane {
    /// Its free blocks, in order.
    pub(super) fn free_blocks(&self) -> Vec<BlockId> {
        self.free.values().copied().collect()
    }
}
