//! TensorFlow's (and XLA's) BFC allocator: best fit with coalescing, regions that double in size.
//!
//! One stream, as TensorFlow has: a block can be reused as soon as it is freed. Spatial partitioning, timestamps and
//! region coalescing, which are off on GPUs, are left out.

use crate::allocator::{Allocator, FreePieces, Handle, Memory, Refusal, Request, Usage};
use std::collections::BTreeMap;

const MIN_ALLOCATION: u64 = 256;
const FIRST_REGION: u64 = 2 << 20;
/// A chunk with this much to spare is cut even if it is less than twice the request.
const MAX_INTERNAL_FRAGMENTATION: u64 = 128 << 20;
/// What the device hands out in.
const PHYSICAL_QUANTUM: u64 = 2 << 20;
const NONE: u32 = u32::MAX;

#[derive(Clone, Debug)]
pub struct Bfc {
    limit: u64,
    free_physical: u64,
    next_region: u64,
    next_address: u64,
    chunks: Vec<Chunk>,
    vacant: Vec<u32>,
    free: BTreeMap<(u64, u64), u32>,
    serial: u32,
    usage: Usage,
}

#[derive(Clone, Copy, Debug)]
struct Chunk {
    address: u64,
    size: u64,
    requested: u64,
    prev: u32,
    next: u32,
    /// The handle's serial while it is in use; 0 when free.
    serial: u32,
}

impl Bfc {
    /// TensorFlow on a GPU with `allow_growth`: regions are taken as they are needed, and free ones are given back
    /// before giving up.
    pub fn growing(memory: Memory) -> Self {
        let memory = memory.clamped();
        let limit = memory.limit.unwrap_or(u64::MAX).min(memory.free);
        Self {
            limit,
            free_physical: memory.free,
            next_region: rounded(limit.min(FIRST_REGION)),
            next_address: 0x7000_0000_0000,
            chunks: Vec::new(),
            vacant: Vec::new(),
            free: BTreeMap::new(),
            serial: 0,
            usage: Usage::default(),
        }
    }

    fn add(&mut self, chunk: Chunk) -> u32 {
        match self.vacant.pop() {
            Some(slot) => {
                self.chunks[slot as usize] = chunk;
                slot
            }
            None => {
                self.chunks.push(chunk);
                self.chunks.len() as u32 - 1
            }
        }
    }

    fn insert_free(&mut self, id: u32) {
        let chunk = &mut self.chunks[id as usize];
        chunk.serial = 0;
        self.free.insert((chunk.size, chunk.address), id);
    }

    fn remove_free(&mut self, id: u32) {
        let chunk = self.chunks[id as usize];
        self.free.remove(&(chunk.size, chunk.address));
    }

    fn is_free(&self, id: u32) -> bool {
        id != NONE && self.chunks[id as usize].serial == 0
    }

    fn find(&mut self, size: u64, requested: u64) -> Option<Handle> {
        let (&key, &id) = self.free.range((size, 0)..).next()?;
        self.free.remove(&key);
        let chunk = self.chunks[id as usize];
        if chunk.size >= size.saturating_mul(2) || chunk.size - size >= MAX_INTERNAL_FRAGMENTATION {
            let rest = self.add(Chunk {
                address: chunk.address.wrapping_add(size),
                size: chunk.size - size,
                requested: 0,
                prev: id,
                next: chunk.next,
                serial: 0,
            });
            if chunk.next != NONE {
                self.chunks[chunk.next as usize].prev = rest;
            }
            self.chunks[id as usize].next = rest;
            self.chunks[id as usize].size = size;
            self.insert_free(rest);
        }
        self.serial = self.serial.wrapping_add(1).max(1);
        let chunk = &mut self.chunks[id as usize];
        chunk.serial = self.serial;
        chunk.requested = requested;
        let taken = chunk.size;
        self.usage.allocated.add(taken);
        self.usage.active.add(taken);
        self.usage.requested.add(requested);
        Some(Handle { slot: id, serial: self.serial })
    }

    fn extend(&mut self, size: u64) -> bool {
        let available = (self.limit - self.usage.reserved.now) / MIN_ALLOCATION * MIN_ALLOCATION;
        if size > available {
            return false;
        }
        let mut grown = false;
        while size > self.next_region {
            self.next_region = self.next_region.saturating_mul(2);
            grown = true;
        }
        let mut bytes = self.next_region.min(available);
        let physical = |bytes: u64| bytes.div_ceil(PHYSICAL_QUANTUM) * PHYSICAL_QUANTUM;
        while physical(bytes) > self.free_physical {
            // The device refused: a tenth less, in single precision as TensorFlow reckons.
            let less = rounded((bytes as f32 * 0.9) as u64);
            bytes = if less >= bytes { bytes - MIN_ALLOCATION } else { less };
            if bytes < size {
                return false;
            }
        }
        self.free_physical -= physical(bytes);
        if !grown {
            self.next_region = self.next_region.saturating_mul(2);
        }
        let address = self.next_address;
        self.next_address = address.wrapping_add(physical(bytes)).wrapping_add(PHYSICAL_QUANTUM);
        self.usage.reserved.add(bytes);
        self.usage.segments.add(1);
        self.usage.device_allocs += 1;
        let chunk = Chunk { address, size: bytes, requested: 0, prev: NONE, next: NONE, serial: 0 };
        let id = self.add(chunk);
        self.insert_free(id);
        true
    }

    /// Gives back every region that is free as a whole, if that could help.
    fn collect_regions(&mut self, size: u64) -> bool {
        let whole: Vec<u32> = (self.free.values().copied())
            .filter(|&id| {
                let chunk = &self.chunks[id as usize];
                chunk.prev == NONE && chunk.next == NONE
            })
            .collect();
        let total: u64 = whole.iter().map(|&id| self.chunks[id as usize].size).sum();
        if total == 0 || size > self.limit - self.usage.reserved.now + total {
            return false;
        }
        for id in whole {
            self.remove_free(id);
            let bytes = self.chunks[id as usize].size;
            self.free_physical += bytes.div_ceil(PHYSICAL_QUANTUM) * PHYSICAL_QUANTUM;
            self.usage.reserved.take(bytes);
            self.usage.segments.take(1);
            self.usage.device_frees += 1;
            self.vacant.push(id);
        }
        self.usage.retries += 1;
        true
    }

    fn absorb(&mut self, into: u32, gone: u32) {
        let Chunk { size, next, .. } = self.chunks[gone as usize];
        self.chunks[into as usize].size += size;
        self.chunks[into as usize].next = next;
        if next != NONE {
            self.chunks[next as usize].prev = into;
        }
        self.vacant.push(gone);
    }
}

fn rounded(bytes: u64) -> u64 {
    bytes.div_ceil(MIN_ALLOCATION).saturating_mul(MIN_ALLOCATION)
}

impl Allocator for Bfc {
    fn malloc(&mut self, request: Request) -> Result<Handle, Refusal> {
        let size = rounded(request.size.max(1));
        if let Some(found) = self.find(size, request.size) {
            return Ok(found);
        }
        if (self.extend(size) || (self.collect_regions(size) && self.extend(size)))
            && let Some(found) = self.find(size, request.size)
        {
            return Ok(found);
        }
        self.usage.ooms += 1;
        Err(Refusal::Device { segment: size })
    }

    fn free(&mut self, block: Handle) {
        let live = |chunk: &&Chunk| chunk.serial == block.serial && block.serial != 0;
        let Some(&Chunk { size, requested, prev, next, .. }) =
            self.chunks.get(block.slot as usize).filter(live)
        else {
            return;
        };
        self.usage.allocated.take(size);
        self.usage.active.take(size);
        self.usage.requested.take(requested);
        let mut id = block.slot;
        if self.is_free(next) {
            self.remove_free(next);
            self.absorb(id, next);
        }
        if self.is_free(prev) {
            self.remove_free(prev);
            self.chunks[id as usize].serial = 0;
            self.absorb(prev, id);
            id = prev;
        }
        self.insert_free(id);
    }

    fn address(&self, block: Handle) -> u64 {
        self.chunks[block.slot as usize].address
    }

    fn usage(&self) -> &Usage {
        &self.usage
    }

    fn free_pieces(&self, _request: Request) -> FreePieces {
        FreePieces {
            total: self.free.keys().map(|&(size, _)| size).sum(),
            largest: self.free.keys().next_back().map_or(0, |&(size, _)| size),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn alloc(bfc: &mut Bfc, size: u64) -> Handle {
        bfc.malloc(Request::of(size)).unwrap()
    }

    #[test]
    fn regions_double_as_they_are_needed() {
        let mut bfc = Bfc::growing(Memory::of(1 << 30));
        alloc(&mut bfc, 1);
        assert_eq!((bfc.usage.reserved.now, bfc.usage.allocated.now), (2 * MIB, 256));
        assert_eq!(bfc.next_region, 4 * MIB);
        let mut bfc = Bfc::growing(Memory::of(1 << 30));
        alloc(&mut bfc, 3 * MIB); // doubled once to serve it, and not cut: 4 is less than twice 3
        assert_eq!((bfc.usage.reserved.now, bfc.usage.allocated.now), (4 * MIB, 4 * MIB));
        let mut bfc = Bfc::growing(Memory::of(1 << 30));
        for _ in 0..4 {
            alloc(&mut bfc, MIB);
        }
        assert_eq!((bfc.usage.reserved.now, bfc.usage.allocated.now), (6 * MIB, 4 * MIB));
        assert_eq!(bfc.free_pieces(Request::of(1)), FreePieces { total: 2 * MIB, largest: 2 * MIB });
        assert_eq!(bfc.next_region, 8 * MIB);
    }

    #[test]
    fn a_chunk_is_cut_at_twice_the_request_or_128_mib_to_spare() {
        let mut bfc = Bfc { next_region: 1 << 30, ..Bfc::growing(Memory::of(1 << 30)) };
        let _first = alloc(&mut bfc, 300 * MIB);
        let second = alloc(&mut bfc, 300 * MIB);
        alloc(&mut bfc, 300 * MIB);
        assert_eq!(bfc.usage.allocated.now, 1024 * MIB);
        bfc.free(second);
        for (request, taken) in [
            (200 * MIB, 300 * MIB),
            (150 * MIB, 150 * MIB),
            (172 * MIB, 172 * MIB),
            (172 * MIB + 1, 300 * MIB),
        ] {
            let before = bfc.usage.allocated.now;
            let block = alloc(&mut bfc, request);
            assert_eq!(bfc.usage.allocated.now - before, taken, "{request}");
            bfc.free(block);
        }
    }

    #[test]
    fn a_region_that_the_device_refuses_is_asked_for_smaller() {
        let memory = |physical: u64| Memory { total: 1 << 30, free: physical, limit: None };
        // The limit is the gibibyte, the device has less: as when another process sits on it.
        let mut bfc = Bfc { limit: 1 << 30, ..Bfc::growing(memory(400 * MIB)) };
        alloc(&mut bfc, 2 * MIB);
        alloc(&mut bfc, 300 * MIB);
        assert_eq!(bfc.usage.allocated.now, 393_476_352);
        let mut bfc = Bfc { limit: 1 << 30, ..Bfc::growing(memory(300 * MIB)) };
        alloc(&mut bfc, 2 * MIB);
        assert!(bfc.malloc(Request::of(300 * MIB)).is_err());
    }

    #[test]
    fn free_regions_are_given_back_before_giving_up() {
        let mut bfc = Bfc::growing(Memory::of(64 * MIB));
        let blocks: Vec<Handle> = [2, 4, 8, 16].map(|mib| alloc(&mut bfc, mib * MIB)).to_vec();
        assert_eq!(bfc.usage.reserved.now, 30 * MIB);
        for block in blocks {
            bfc.free(block);
        }
        assert_eq!(bfc.malloc(Request::of(40 * MIB)).map(|_| bfc.usage.allocated.now), Ok(64 * MIB));
    }
}
