//! Giving memory back to the device: garbage collection, and the two releases that come before giving up.

use super::Torch;
use super::blocks::{BlockId, Key, State};
use oomph_settings::rounding::SEGMENT_QUANTUM;

impl Torch {
    /// Gives a whole segment back.
    fn release_block(&mut self, id: BlockId) {
        self.remove_free(id);
        let block = self.blocks[id];
        self.free_physical += block.size.div_ceil(SEGMENT_QUANTUM).saturating_mul(SEGMENT_QUANTUM);
        self.usage.reserved.take(block.size);
        self.usage.segments.take(1);
        self.usage.device_frees += 1;
        self.addresses.release(block.address, block.size);
        self.vacant_segments.push(block.segment);
        self.blocks.remove(id);
    }

    fn release_lanes(&mut self, pool: u32, small: bool) {
        let lanes = self.lanes_of(pool, small);
        let mut shrink = Vec::new();
        for lane in lanes {
            if self.lanes[lane].releasable == 0 {
                continue;
            }
            for id in self.lanes[lane].free_blocks() {
                if self.is_expandable(id) {
                    shrink.push(id);
                } else if !self.blocks[id].is_split() {
                    self.release_block(id);
                }
            }
        }
        for id in shrink {
            self.unmap(id);
            self.drop_if_empty(id);
        }
    }

    /// The lanes of all streams that have free blocks, by stream.
    fn lanes_of(&self, pool: u32, small: bool) -> Vec<usize> {
        let wanted = |lane: &super::Lane| lane.pool == pool && lane.small == small && !lane.free.is_empty();
        let mut lanes: Vec<usize> = (0..self.lanes.len()).filter(|&lane| wanted(&self.lanes[lane])).collect();
        lanes.sort_unstable_by_key(|&lane| self.lanes[lane].stream);
        lanes
    }

    /// Waits for all streams and gives back every segment that is free as a whole.
    pub(super) fn release_cached(&mut self) {
        self.still_pending = 0;
        for handle in std::mem::take(&mut self.pending) {
            if self.is_live(handle, State::Pending) {
                self.free_block(handle.slot);
            }
        }
        if self.releasable == 0 {
            return;
        }
        self.release_lanes(0, false);
        self.release_lanes(0, true);
        for pool in 1..self.pools.len() as u32 {
            if self.pools[pool as usize].releasable {
                self.release_lanes(pool, true);
                self.release_lanes(pool, false);
            }
        }
    }

    /// With `max_split_size_mb`: gives back blocks that are never cut, until a request has room.
    pub(super) fn release_available(&mut self, lane: u32, rounded: u64) -> bool {
        if self.conf.max_split_size.is_none() {
            return false;
        }
        let needed = rounded.max(self.max_split);
        let from = Key::at_least(needed);
        let blocks = &self.lanes[lane as usize].free;
        if let Some((_, &fits)) = blocks.range(from..).next()
            && !self.is_expandable(fits)
        {
            return self.release_whole(fits) > 0;
        }
        // None is large enough: the largest ones together may be.
        let smaller: Vec<BlockId> = (blocks.range(..from).rev().map(|(_, &id)| id))
            .take_while(|&id| self.blocks[id].size >= self.max_split)
            .collect();
        let mut released = 0;
        for id in smaller {
            if released >= needed {
                break;
            }
            released += self.release_whole(id);
        }
        released >= needed
    }

    /// Gives a block back if it is a segment of its own. PyTorch does not ask; but with one setting all along, blocks
    /// of that size are never cut.
    fn release_whole(&mut self, id: BlockId) -> u64 {
        let block = self.blocks[id];
        if block.is_split() || self.is_expandable(id) {
            return 0;
        }
        self.release_block(id);
        block.size
    }

    /// Gives back free segments that have not been used for longest, once the threshold is passed.
    pub(super) fn garbage_collect(&mut self) {
        let Some(limit) = self.limit else { return };
        let threshold = (self.conf.garbage_collection_threshold * limit as f64) as u64;
        let reserved = self.usage.reserved.now;
        if reserved <= threshold {
            return;
        }
        let target = reserved - threshold;
        let clock = self.pools[0].calls[0];
        let mut candidates: Vec<(BlockId, u64)> = Vec::new();
        let (mut total_age, mut count) = (0u64, 0u64);
        for lane in self.lanes_of(0, false) {
            for id in self.lanes[lane].free_blocks() {
                let block = &self.blocks[id];
                if block.is_split() {
                    continue;
                }
                let age = clock - block.age_base;
                total_age += age;
                count += 1; // expandable ones count towards the mean, though they are not given back
                if !self.is_expandable(id) {
                    candidates.push((id, age));
                }
            }
        }
        let (mut reclaimed, mut freed) = (0, true);
        while reclaimed < target && freed && count > 0 {
            let mean = total_age as f64 / count as f64;
            let (old, young): (Vec<_>, Vec<_>) = candidates.iter().partition(|&&(_, age)| age as f64 >= mean);
            freed = !old.is_empty();
            for (id, age) in old {
                reclaimed += self.blocks[id].size;
                total_age -= age;
                count -= 1;
                self.release_block(id);
            }
            candidates = young;
        }
    }
}
