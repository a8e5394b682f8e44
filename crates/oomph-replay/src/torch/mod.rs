//! PyTorch's native caching allocator, to the byte: which block is handed out, which segment is taken, what is given
//! back, and when it gives up.
//!
//! Here: requests and frees. Expandable segments are in `expandable`, giving memory back is in `release`, the
//! arena that blocks live in is in `blocks`, and taking over a state that was recorded is in `import`.
//!
//! Memory is linear in live blocks and segments, however long the replay.

mod blocks;
mod expandable;
mod import;
mod release;
#[cfg(test)]
mod tests;

pub use import::{ImportedBlock, ImportedSegment};

use crate::addresses::Addresses;
use crate::allocator::{Allocator, FreePieces, Handle, Memory, Refusal, Request, Usage};
use blocks::{Block, BlockId, Blocks, Key, NONE, State};
use hashbrown::HashMap;
use oomph_settings::conf::Conf;
use oomph_settings::rounding::{LARGEST_SIZE, MIN_BLOCK, SEGMENT_QUANTUM, SMALL_LIMIT, UNSPLIT_REMAINDER};
use oomph_settings::version::{TieBreak, Version};
use oomph_trace::{DEFAULT_POOL, PoolId};
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub struct Torch {
    conf: Conf,
    version: Version,
    total: u64,
    limit: Option<u64>,
    free_physical: u64,
    max_split: u64,
    max_non_split_rounding: u64,
    blocks: Blocks,
    segments: Vec<SegmentFacts>,
    vacant_segments: Vec<u32>,
    lanes: Vec<Lane>,
    lane_pairs: HashMap<(u32, u32), u32>,
    /// Free blocks of all lanes that could be given back.
    releasable: usize,
    /// The last pair that was looked up: programs stay on a stream.
    last_pair: ((u32, u32), u32),
    pools: Vec<Pool>,
    /// Blocks that the program has freed and that another stream still holds, oldest first; among them some that are
    /// back already.
    pending: Vec<Handle>,
    still_pending: usize,
    addresses: Addresses,
    serial: u32,
    blocks_made: u64,
    segments_made: u64,
    last_refusal: Refusal,
    usage: Usage,
}

/// Free blocks of one size class of one stream of one pool.
#[derive(Clone, Debug)]
struct Lane {
    pool: u32,
    stream: u32,
    small: bool,
    free: BTreeMap<Key, BlockId>,
    /// How many of them could be given back, in whole or in part: segments of their own, and pieces of expandable ones.
    releasable: usize,
    /// Parts of expandable segments that have no memory behind them, by address.
    unmapped: BTreeMap<u64, BlockId>,
}

#[derive(Clone, Debug)]
struct Pool {
    id: PoolId,
    /// Whether what is free in it may be given back.
    releasable: bool,
    /// How often a free block was looked for, among small and among large ones: the clock of garbage collection.
    calls: [u64; 2],
}

/// What all blocks of a segment share.
#[derive(Clone, Copy, Debug)]
struct SegmentFacts {
    base: u64,
    /// The size of a page; 0 for a segment that does not expand.
    page: u64,
    age: u64,
}

impl Torch {
    /// An allocator that has done nothing yet.
    pub fn new(conf: Conf, version: Version, memory: Memory, addresses: Addresses) -> Self {
        let memory = memory.clamped();
        let conf = Conf { large_segment_size: conf.large_segment_size.min(LARGEST_SIZE), ..conf };
        let limit = memory.limit.or_else(|| conf.limit(version, memory.total));
        let large_segment = conf.large_segment_size;
        let max_non_split_rounding = conf.max_non_split_rounding.unwrap_or(large_segment);
        Self {
            version,
            total: memory.total,
            limit,
            free_physical: memory.free,
            max_split: conf.max_split_size.unwrap_or(u64::MAX),
            max_non_split_rounding,
            blocks: Blocks::default(),
            segments: Vec::new(),
            vacant_segments: Vec::new(),
            lanes: Vec::new(),
            lane_pairs: HashMap::new(),
            releasable: 0,
            last_pair: ((u32::MAX, u32::MAX), 0),
            pools: vec![Pool { id: DEFAULT_POOL, releasable: true, calls: [0; 2] }],
            pending: Vec::new(),
            still_pending: 0,
            addresses,
            serial: 0,
            blocks_made: 0,
            segments_made: 0,
            last_refusal: Refusal::Device { segment: 0 },
            usage: Usage::default(),
            conf,
        }
    }

    /// How far the addresses that were fed do not agree with what the model did.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// How many blocks there ever were at once: what the model's memory is linear in.
    pub fn block_slots(&self) -> usize {
        self.blocks.slots()
    }

    fn collects_garbage(&self) -> bool {
        self.limit.is_some() && self.conf.garbage_collection_threshold > 0.0
    }

    // --- pools and lanes -----------------------------------------------------------------------------------

    fn pool_index(&mut self, id: PoolId) -> u32 {
        if id == DEFAULT_POOL {
            return 0;
        }
        if let Some(found) = self.pools.iter().position(|pool| pool.id == id) {
            return found as u32;
        }
        self.pools.push(Pool { id, releasable: false, calls: [0; 2] });
        self.pools.len() as u32 - 1
    }

    fn lane_index(&mut self, pool: u32, stream: u32, small: bool) -> u32 {
        let key = (pool, stream);
        if self.last_pair.0 != key {
            let lanes = &mut self.lanes;
            let first = *self.lane_pairs.entry(key).or_insert_with(|| {
                for small in [false, true] {
                    lanes.push(Lane {
                        pool,
                        stream,
                        small,
                        free: BTreeMap::new(),
                        releasable: 0,
                        unmapped: BTreeMap::new(),
                    });
                }
                lanes.len() as u32 - 2
            });
            self.last_pair = (key, first);
        }
        self.last_pair.1 + u32::from(small)
    }

    fn calls(&self, lane: u32) -> u64 {
        let lane = &self.lanes[lane as usize];
        self.pools[lane.pool as usize].calls[usize::from(lane.small)]
    }

    /// Whether events are not waited for: the cache cannot be emptied on behalf of such a request.
    fn captures(&self, pool: u32) -> bool {
        let (graph, _) = self.pools[pool as usize].id;
        // Up to 2.12 any pool scope counted as a capture.
        pool != 0 && (graph != 0 || !self.version.at_least(13))
    }

    fn is_expandable(&self, block: BlockId) -> bool {
        self.segments[self.blocks[block].segment as usize].page != 0
    }

    fn add_segment(&mut self, base: u64, page: u64) -> u32 {
        self.segments_made += 1;
        let facts = SegmentFacts { base, page, age: self.segments_made };
        match self.vacant_segments.pop() {
            Some(vacant) => {
                self.segments[vacant as usize] = facts;
                vacant
            }
            None => {
                self.segments.push(facts);
                self.segments.len() as u32 - 1
            }
        }
    }

    /// The rank among equal blocks that a block made now, out of this segment, has.
    fn rank(&mut self, segment: u32) -> u64 {
        match self.version.tie_break() {
            TieBreak::Address => 0,
            TieBreak::BlockAge => {
                self.blocks_made += 1;
                self.blocks_made
            }
            TieBreak::SegmentAge => self.segments[segment as usize].age,
        }
    }

    fn make_block(&mut self, lane: u32, segment: u32, address: u64, size: u64) -> BlockId {
        let rank = self.rank(segment);
        self.blocks.add(Block {
            address,
            size,
            requested: 0,
            rank,
            age_base: 0,
            lane,
            segment,
            prev: NONE,
            next: NONE,
            serial: 0,
            state: State::Free,
        })
    }

    // --- free blocks ---------------------------------------------------------------------------------------

    fn insert_free(&mut self, id: BlockId) {
        let lane = self.blocks[id].lane;
        let calls = self.calls(lane);
        let block = &mut self.blocks[id];
        block.age_base = calls;
        block.state = State::Free;
        let key = block.key();
        let releasable = self.is_releasable(id);
        let lane = &mut self.lanes[lane as usize];
        lane.free.insert(key, id);
        lane.releasable += usize::from(releasable);
        self.releasable += usize::from(releasable);
    }

    fn remove_free(&mut self, id: BlockId) {
        let (lane, key) = (self.blocks[id].lane, self.blocks[id].key());
        self.remove_key(lane, key, id);
    }

    #[inline]
    fn remove_key(&mut self, lane: u32, key: Key, id: BlockId) {
        let releasable = self.is_releasable(id);
        let lane = &mut self.lanes[lane as usize];
        if lane.free.remove(&key).is_some() {
            lane.releasable -= usize::from(releasable);
            self.releasable -= usize::from(releasable);
        }
    }

    /// Whether a free block could go back to the device. It stays so while it is free: its neighbours, if any, are in use.
    #[inline]
    fn is_releasable(&self, id: BlockId) -> bool {
        let block = &self.blocks[id];
        !block.is_split() || self.segments[block.segment as usize].page != 0
    }

    fn take_free(&mut self, lane: u32, size: u64, expandable: bool) -> Option<BlockId> {
        if self.collects_garbage() {
            let lane = &self.lanes[lane as usize];
            self.pools[lane.pool as usize].calls[usize::from(lane.small)] += 1;
        }
        let mut candidates = self.lanes[lane as usize].free.range(Key::at_least(size)..);
        let (mut key, mut chosen) = candidates.next().map(|(&key, &id)| (key, id))?;
        if self.is_expandable(chosen) {
            if expandable {
                // Blocks that cannot grow are preferred, but only among neighbours in the order.
                while self.is_expandable(chosen)
                    && let Some((&next_key, &next)) = candidates.next()
                    && self.extent(next) < self.extent(chosen)
                {
                    (key, chosen) = (next_key, next);
                }
            } else {
                (key, chosen) = candidates
                    .by_ref()
                    .map(|(&key, &id)| (key, id))
                    .find(|&(_, id)| !self.is_expandable(id))?;
            }
        }
        if self.version.tie_break() == TieBreak::Address && self.is_tied(lane, key, chosen) {
            self.usage.ties += 1;
        }
        let found = key.size();
        if size < self.max_split && found >= self.max_split {
            return None; // a block that is meant to stay whole is not cut for a small request
        }
        if size >= self.max_split && found >= size.saturating_add(self.max_non_split_rounding) {
            return None;
        }
        self.remove_key(lane, key, chosen);
        Some(chosen)
    }

    /// Whether made-up addresses decided which of several equal blocks is taken, and it may make a difference: between
    /// segments that are free as a whole it does not, unless garbage is collected by age.
    fn is_tied(&self, lane: u32, key: Key, chosen: BlockId) -> bool {
        /// Where more are equal, it is taken to make a difference.
        const MOST_CHECKED: usize = 8;
        if self.addresses.are_real() {
            return false;
        }
        let by_age = self.collects_garbage();
        let chosen = &self.blocks[chosen];
        let mut equals = (self.lanes[lane as usize].free.range(key..).skip(1))
            .take_while(|(other, _)| other.size() == key.size())
            .map(|(_, &id)| &self.blocks[id]);
        for _ in 0..MOST_CHECKED {
            let Some(other) = equals.next() else { return false };
            if other.segment != chosen.segment && (by_age || chosen.is_split() || other.is_split()) {
                return true;
            }
        }
        equals.next().is_some()
    }

    /// What a free block could grow to.
    fn extent(&self, id: BlockId) -> u64 {
        let block = &self.blocks[id];
        let behind = (block.next != NONE).then(|| &self.blocks[block.next]);
        block.size + behind.filter(|next| next.state == State::Unmapped).map_or(0, |next| next.size)
    }

    // --- taking memory from the device -----------------------------------------------------------------------

    fn alloc_block(&mut self, lane: u32, rounded: u64, segment: u64, expandable: bool) -> Option<BlockId> {
        if self.limit.is_some_and(|limit| self.usage.reserved.now.saturating_add(segment) > limit) {
            self.last_refusal = Refusal::Limit { segment };
            return None;
        }
        if self.conf.throw_on_cudamalloc_oom && self.version.at_least(12) {
            let allowed = (self.conf.per_process_memory_fraction * self.total as f64) as u64;
            if self.usage.reserved.now.saturating_add(segment) > allowed {
                self.last_refusal = Refusal::Rejected { segment };
                return None;
            }
        }
        if expandable {
            return self.expand(lane, rounded, segment);
        }
        let physical = segment.div_ceil(SEGMENT_QUANTUM).saturating_mul(SEGMENT_QUANTUM);
        if physical > self.free_physical {
            self.last_refusal = Refusal::Device { segment };
            return None;
        }
        self.free_physical -= physical;
        let base = self.addresses.segment(segment);
        let facts = self.add_segment(base, 0);
        self.usage.reserved.add(segment);
        self.usage.segments.add(1);
        self.usage.device_allocs += 1;
        Some(self.make_block(lane, facts, base, segment))
    }

    fn find_or_make(&mut self, lane: u32, pool: u32, rounded: u64) -> Result<BlockId, Refusal> {
        let expandable = self.conf.expandable_segments && (pool == 0 || self.version.at_least(5));
        if let Some(found) = self.take_free(lane, rounded, expandable) {
            return Ok(found);
        }
        if self.collects_garbage() {
            self.garbage_collect();
        }
        let segment = self.conf.segment_size(rounded);
        if let Some(made) = self.alloc_block(lane, rounded, segment, expandable) {
            return Ok(made);
        }
        if matches!(self.last_refusal, Refusal::Rejected { .. }) {
            return Err(self.last_refusal);
        }
        if self.release_available(lane, rounded)
            && let Some(made) = self.alloc_block(lane, rounded, segment, expandable)
        {
            return Ok(made);
        }
        if !self.captures(pool) {
            // PyTorch does not look among free blocks again after that (issue 189504).
            self.release_cached();
            self.usage.retries += 1;
            if let Some(made) = self.alloc_block(lane, rounded, segment, expandable) {
                return Ok(made);
            }
        }
        Err(self.last_refusal)
    }

    fn should_split(&self, lane: u32, block: u64, rounded: u64) -> bool {
        let remainder = block - rounded;
        let lane = &self.lanes[lane as usize];
        if lane.small || self.conf.expandable_segments {
            remainder >= MIN_BLOCK
        } else {
            rounded < self.max_split && remainder > UNSPLIT_REMAINDER
        }
    }

    /// Cuts a block to size and hands it out.
    fn hand_out(&mut self, mut id: BlockId, rounded: u64, requested: u64) -> Handle {
        let Block { lane, segment, size, address, prev, .. } = self.blocks[id];
        let was_split = self.blocks[id].is_split();
        let counts_splits = self.segments[segment as usize].page == 0;
        if self.should_split(lane, size, rounded) {
            // The front goes to the caller as a new block, the rest stays what it was.
            let front = self.make_block(lane, segment, address, rounded);
            self.blocks[front].prev = prev;
            self.blocks[front].next = id;
            if prev != NONE {
                self.blocks[prev].next = front;
            }
            let rest = &mut self.blocks[id];
            rest.prev = front;
            rest.address = address.wrapping_add(rounded);
            rest.size = size - rounded;
            self.insert_free(id);
            if counts_splits {
                if was_split {
                    self.usage.inactive_split.take(rounded);
                } else {
                    self.usage.inactive_split.add(size - rounded);
                }
            }
            id = front;
        } else if was_split && counts_splits {
            self.usage.inactive_split.take(size);
        }
        self.serial = self.serial.wrapping_add(1);
        let block = &mut self.blocks[id];
        block.state = State::Allocated;
        block.requested = requested;
        block.serial = self.serial;
        let size = block.size;
        self.usage.allocated.add(size);
        self.usage.active.add(size);
        self.usage.requested.add(requested);
        Handle { slot: id, serial: self.serial }
    }

    // --- freeing ---------------------------------------------------------------------------------------------

    fn is_live(&self, handle: Handle, state: State) -> bool {
        (self.blocks.get(handle.slot))
            .is_some_and(|block| block.serial == handle.serial && block.state == state)
    }

    /// The block goes back to its pool, as one with its free neighbours.
    fn free_block(&mut self, id: BlockId) {
        let Block { size, requested, prev, next, segment, .. } = self.blocks[id];
        self.blocks[id].serial = 0;
        let mut freed = 0i64;
        for neighbour in [prev, next] {
            freed -= self.merge(id, neighbour, State::Free) as i64;
        }
        self.insert_free(id);
        let block = &self.blocks[id];
        if block.is_split() {
            freed += block.size as i64;
        }
        if self.segments[segment as usize].page == 0 {
            self.usage.inactive_split.change(freed);
        }
        self.usage.active.take(size);
        self.usage.requested.take(requested);
    }

    /// Takes a neighbour in this state into a block; the bytes that it had.
    fn merge(&mut self, into: BlockId, neighbour: BlockId, state: State) -> u64 {
        if neighbour == NONE || self.blocks[neighbour].state != state {
            return 0;
        }
        if state == State::Free {
            self.remove_free(neighbour);
        } else {
            let Block { lane, address, .. } = self.blocks[neighbour];
            self.lanes[lane as usize].unmapped.remove(&address);
        }
        let Block { address, size, prev, next, .. } = self.blocks[neighbour];
        let block = &mut self.blocks[into];
        block.size += size;
        if block.prev == neighbour {
            block.address = address;
            block.prev = prev;
            if prev != NONE {
                self.blocks[prev].next = into;
            }
        } else {
            block.next = next;
            if next != NONE {
                self.blocks[next].prev = into;
            }
        }
        self.blocks.remove(neighbour);
        size
    }
}

impl Allocator for Torch {
    fn malloc(&mut self, request: Request) -> Result<Handle, Refusal> {
        let rounded = self.conf.round(request.size);
        if rounded > LARGEST_SIZE {
            self.usage.ooms += 1;
            return Err(Refusal::Device { segment: rounded });
        }
        let pool = self.pool_index(request.pool);
        let lane = self.lane_index(pool, request.stream, rounded <= SMALL_LIMIT);
        match self.find_or_make(lane, pool, rounded) {
            Ok(block) => Ok(self.hand_out(block, rounded, request.size)),
            Err(refusal) => {
                self.usage.ooms += 1;
                Err(refusal)
            }
        }
    }

    #[inline]
    fn free(&mut self, block: Handle) {
        if self.is_live(block, State::Allocated) {
            self.usage.allocated.take(self.blocks[block.slot].size);
            self.free_block(block.slot);
        }
    }

    fn free_later(&mut self, block: Handle) {
        if self.is_live(block, State::Allocated) {
            self.usage.allocated.take(self.blocks[block.slot].size);
            self.blocks[block.slot].state = State::Pending;
            self.still_pending += 1;
            self.pending.push(block);
        }
    }

    fn complete(&mut self, block: Handle) {
        if self.is_live(block, State::Pending) {
            self.still_pending -= 1;
            self.free_block(block.slot);
            if self.pending.len() > 2 * self.still_pending + 16 {
                let mut pending = std::mem::take(&mut self.pending);
                pending.retain(|&other| self.is_live(other, State::Pending));
                self.pending = pending;
            }
        }
    }

    fn empty_cache(&mut self) {
        self.release_cached();
    }

    fn retire_pool(&mut self, pool: PoolId) {
        let index = self.pool_index(pool);
        self.pools[index as usize].releasable = true;
    }

    #[inline]
    fn address(&self, block: Handle) -> u64 {
        self.blocks[block.slot].address
    }

    #[inline]
    fn usage(&self) -> &Usage {
        &self.usage
    }

    fn free_pieces(&self, request: Request) -> FreePieces {
        let rounded = self.conf.round(request.size);
        let pool = self.pools.iter().position(|pool| pool.id == request.pool);
        let pair = pool.and_then(|pool| self.lane_pairs.get(&(pool as u32, request.stream)));
        let Some(&first) = pair else { return FreePieces::default() };
        let lane = &self.lanes[(first + u32::from(rounded <= SMALL_LIMIT)) as usize];
        let total = lane.free.values().map(|&id| self.blocks[id].size).sum();
        FreePieces { total, largest: lane.free.keys().next_back().map_or(0, |key| key.size()) }
    }
}
