//! Taking over a state that was recorded: segments and blocks that were there before the first event.

use super::Torch;
use super::blocks::{BlockId, NONE, State};
use crate::allocator::Handle;
use oomph_settings::rounding::{MIN_BLOCK, SEGMENT_QUANTUM};
use oomph_trace::PoolId;

/// A segment (or a mapped piece of an expandable one) that is there already.
#[derive(Clone, Debug)]
pub struct ImportedSegment {
    pub address: u64,
    /// Its bytes.
    pub size: u64,
    pub stream: u32,
    pub pool: PoolId,
    /// Whether it serves requests of at most 1 MiB.
    pub small: bool,
    /// Whether it is a mapped piece of an expandable segment.
    pub expandable: bool,
    /// The blocks in it that are taken, by address.
    pub blocks: Vec<ImportedBlock>,
}

/// A block that is taken already.
#[derive(Clone, Copy, Debug)]
pub struct ImportedBlock {
    pub address: u64,
    /// Its bytes.
    pub size: u64,
    /// What the program asked for.
    pub requested: u64,
}

impl Torch {
    /// Takes segments over, by address. The handles of all blocks in them, in order; `None` for a block that does
    /// not lie in its segment or on another.
    pub fn import(&mut self, segments: &[ImportedSegment]) -> Vec<Option<Handle>> {
        let mut handles = Vec::new();
        let mut last_range: Option<(u32, BlockId)> = None;
        for segment in segments {
            let pool = self.pool_index(segment.pool);
            let lane = self.lane_index(pool, segment.stream, segment.small);
            let first = if segment.expandable {
                self.import_mapped(lane, segment, &mut last_range)
            } else {
                let facts = self.add_segment(segment.address, 0);
                self.usage.segments.add(1);
                Some(self.make_block(lane, facts, segment.address, segment.size))
            };
            let Some(whole) = first else {
                handles.extend(segment.blocks.iter().map(|_| None));
                continue;
            };
            let physical = segment.size.div_ceil(SEGMENT_QUANTUM) * SEGMENT_QUANTUM;
            self.free_physical = self.free_physical.saturating_sub(physical);
            self.usage.reserved.add(segment.size);
            let last = self.import_blocks(whole, segment, &mut handles);
            if segment.expandable {
                last_range = Some((lane, last));
            }
        }
        handles
    }

    /// Puts memory behind a piece of the range that the last piece lies in, or of a new one; the block that covers it.
    fn import_mapped(
        &mut self,
        lane: u32,
        segment: &ImportedSegment,
        last_range: &mut Option<(u32, BlockId)>,
    ) -> Option<BlockId> {
        let page = self.page(lane);
        // The range that goes on behind the last piece, if this piece lies in it.
        let tail = last_range.filter(|&(of, _)| of == lane).map(|(_, last)| self.blocks[last].next);
        let behind = tail.filter(|&id| {
            id != NONE && {
                let block = &self.blocks[id];
                segment.address >= block.address
                    && segment.address - block.address + segment.size <= block.size
            }
        });
        let unmapped = match behind {
            Some(id) => id,
            None => {
                let range = self.range_of_segment(page).max(segment.size.div_ceil(page) * page);
                self.add_range(lane, segment.address, page, range)
            }
        };
        let block = self.blocks[unmapped];
        let offset = segment.address - block.address;
        self.lanes[lane as usize].unmapped.remove(&block.address);
        let mut at = unmapped;
        if offset > 0 {
            at = self.cut(unmapped, offset);
            self.insert_unmapped(unmapped);
        }
        let after = self.blocks[at].size.checked_sub(segment.size)?;
        if after > 0 {
            let rest = self.cut(at, segment.size);
            self.insert_unmapped(rest);
        }
        Some(at)
    }

    /// Cuts a block in two; the second one.
    fn cut(&mut self, id: BlockId, front: u64) -> BlockId {
        let block = self.blocks[id];
        let rest = self.make_block(block.lane, block.segment, block.address + front, block.size - front);
        self.blocks[rest].prev = id;
        self.blocks[rest].next = block.next;
        if block.next != NONE {
            self.blocks[block.next].prev = rest;
        }
        self.blocks[id].next = rest;
        self.blocks[id].size = front;
        rest
    }

    /// Cuts a mapped block into what is taken and what is free between; the last piece.
    fn import_blocks(
        &mut self,
        whole: BlockId,
        segment: &ImportedSegment,
        handles: &mut Vec<Option<Handle>>,
    ) -> BlockId {
        let mut rest = whole;
        let mut last = whole;
        let mut done = false;
        for block in &segment.blocks {
            let at = self.blocks[rest].address;
            let room = self.blocks[rest].size;
            let offset = block.address.wrapping_sub(at);
            let fits = !done
                && block.size > 0
                && block.size.is_multiple_of(MIN_BLOCK)
                && block.address >= at
                && offset.is_multiple_of(MIN_BLOCK)
                && offset.checked_add(block.size).is_some_and(|end| end <= room);
            if !fits {
                handles.push(None);
                continue;
            }
            let mut taken = rest;
            if offset > 0 {
                taken = self.cut(rest, offset);
                self.insert_free(rest);
            }
            if self.blocks[taken].size > block.size {
                rest = self.cut(taken, block.size);
            } else {
                done = true;
            }
            self.serial = self.serial.wrapping_add(1);
            let serial = self.serial;
            let entry = &mut self.blocks[taken];
            entry.state = State::Allocated;
            entry.requested = block.requested;
            entry.serial = serial;
            last = taken;
            self.usage.allocated.add(block.size);
            self.usage.active.add(block.size);
            self.usage.requested.add(block.requested);
            handles.push(Some(Handle { slot: taken, serial }));
        }
        if !done {
            self.insert_free(rest);
            last = rest;
        }
        if !segment.expandable {
            let split = self.blocks[whole].is_split();
            let taken: u64 = self.taken_in(whole);
            self.usage.inactive_split.add(if split { segment.size - taken } else { 0 });
        }
        last
    }

    fn taken_in(&self, first: BlockId) -> u64 {
        let (mut sum, mut at) = (0, first);
        while at != NONE {
            let block = &self.blocks[at];
            sum += if block.state == State::Allocated { block.size } else { 0 };
            at = block.next;
        }
        sum
    }
}
