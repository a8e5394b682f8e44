//! The third allocator: one that knows the future. It asks the packer for a place for every block, and hands them out.
//!
//! What it needs is what a program needs at least, as far as the packer finds; the others are compared with it.

use crate::allocator::{Allocator, FreePieces, Handle, Memory, Refusal, Request, Usage};
use crate::packing::{Buffer, Placement, lower_bound, pack};
use crate::program::{Options, Program};
use oomph_settings::rounding::MIN_BLOCK;
use std::time::Duration;

/// An allocator that writes down when each block lives, in order of birth.
#[derive(Clone, Debug, Default)]
struct Lifetimes {
    clock: u64,
    buffers: Vec<Buffer>,
    usage: Usage,
}

impl Allocator for Lifetimes {
    fn malloc(&mut self, request: Request) -> Result<Handle, Refusal> {
        self.clock += 1;
        let size = request.size.div_ceil(MIN_BLOCK).max(1).saturating_mul(MIN_BLOCK);
        self.buffers.push(Buffer { lower: self.clock, upper: u64::MAX, size });
        Ok(Handle { slot: self.buffers.len() as u32 - 1, serial: 0 })
    }

    fn free(&mut self, block: Handle) {
        self.clock += 1;
        if let Some(buffer) =
            self.buffers.get_mut(block.slot as usize).filter(|buffer| buffer.upper == u64::MAX)
        {
            buffer.upper = self.clock;
        }
    }

    fn free_later(&mut self, _block: Handle) {}

    fn complete(&mut self, block: Handle) {
        self.free(block);
    }

    fn address(&self, _block: Handle) -> u64 {
        0
    }

    fn usage(&self) -> &Usage {
        &self.usage
    }

    fn free_pieces(&self, _request: Request) -> FreePieces {
        FreePieces::default()
    }
}

/// The lives of a program's blocks, in order of birth.
pub fn lifetimes(program: &Program) -> Vec<Buffer> {
    let mut lifetimes = Lifetimes::default();
    if let Ok(open) = program.place_before(&mut lifetimes) {
        program.play(&mut lifetimes, open, &Options::default());
    }
    let end = lifetimes.clock + 1;
    for buffer in &mut lifetimes.buffers {
        buffer.upper = buffer.upper.min(end);
    }
    lifetimes.buffers
}

/// Packs a program's blocks, within a time.
pub fn pack_program(program: &Program, patience: Duration) -> Placement {
    let buffers = lifetimes(program);
    let good_enough = nearly(lower_bound(&buffers));
    pack(&buffers, patience, good_enough)
}

/// A height that is not worth improving: within a ten-thousandth of the bound.
pub fn nearly(lower_bound: u64) -> u64 {
    lower_bound.saturating_add(lower_bound / 10_000)
}

#[derive(Clone, Debug)]
pub struct Packed {
    offsets: Vec<u64>,
    room: u64,
    live: Vec<Option<(u64, u64)>>,
    usage: Usage,
}

impl Packed {
    /// Hands out the places that were planned, as far as there is room.
    pub fn new(placement: Placement, memory: Memory) -> Self {
        let room = memory.limit.unwrap_or(u64::MAX).min(memory.free);
        let live = Vec::with_capacity(placement.offsets.len());
        Self { offsets: placement.offsets, room, live, usage: Usage::default() }
    }
}

impl Allocator for Packed {
    fn malloc(&mut self, request: Request) -> Result<Handle, Refusal> {
        let size = request.size.div_ceil(MIN_BLOCK).max(1).saturating_mul(MIN_BLOCK);
        let slot = self.live.len();
        let end = self.offsets.get(slot).map_or(u64::MAX, |offset| offset.saturating_add(size));
        if end > self.room {
            self.usage.ooms += 1;
            self.live.push(None);
            return Err(Refusal::Device { segment: size });
        }
        self.live.push(Some((size, request.size)));
        let grown = end.saturating_sub(self.usage.reserved.now);
        self.usage.reserved.add(grown);
        self.usage.allocated.add(size);
        self.usage.active.add(size);
        self.usage.requested.add(request.size);
        Ok(Handle { slot: slot as u32, serial: 0 })
    }

    fn free(&mut self, block: Handle) {
        if let Some((size, requested)) = self.live.get_mut(block.slot as usize).and_then(Option::take) {
            self.usage.allocated.take(size);
            self.usage.active.take(size);
            self.usage.requested.take(requested);
        }
    }

    fn free_later(&mut self, _block: Handle) {}

    fn complete(&mut self, block: Handle) {
        self.free(block);
    }

    fn address(&self, block: Handle) -> u64 {
        self.offsets.get(block.slot as usize).copied().unwrap_or(0)
    }

    fn usage(&self) -> &Usage {
        &self.usage
    }

    fn free_pieces(&self, _request: Request) -> FreePieces {
        let free = self.usage.reserved.now - self.usage.allocated.now.min(self.usage.reserved.now);
        FreePieces { total: free, largest: free }
    }
}
