//! The arena that blocks live in: slots that are used again, and the order among free blocks.

use oomph_settings::rounding::MIN_BLOCK;
use std::ops::{Index, IndexMut};

pub(super) type BlockId = u32;

pub(super) const NONE: BlockId = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Free,
    Allocated,
    /// Let go by the program, held until another stream has passed.
    Pending,
    /// A part of an expandable segment with no memory behind it.
    Unmapped,
}

/// A piece of a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) requested: u64,
    /// Decides among equal blocks before the address does.
    pub(super) rank: u64,
    /// What the pool's clock said when it became free.
    pub(super) age_base: u64,
    pub(super) lane: u32,
    pub(super) segment: u32,
    pub(super) prev: BlockId,
    pub(super) next: BlockId,
    /// The handle's serial while it is handed out.
    pub(super) serial: u32,
    pub(super) state: State,
}

impl Block {
    pub(super) fn is_split(&self) -> bool {
        self.prev != NONE || self.next != NONE
    }

    #[inline]
    pub(super) fn key(&self) -> Key {
        Key::of(self.size, self.rank, self.address)
    }
}

/// The order among free blocks: size, then rank, then address, in one number that compares in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(u128);

impl Key {
    /// Sizes and addresses are multiples of the quantum, which leaves 36, 44 and 48 bits for the three.
    #[inline]
    fn of(size: u64, rank: u64, address: u64) -> Self {
        const RANK: u64 = (1 << 44) - 1;
        const ADDRESS: u64 = (1 << 48) - 1;
        let size = u128::from(size / MIN_BLOCK) << 92;
        Self(size | (u128::from(rank & RANK) << 48) | u128::from((address / MIN_BLOCK) & ADDRESS))
    }

    /// Before all blocks of this size.
    #[inline]
    pub(super) fn at_least(size: u64) -> Self {
        Self::of(size, 0, 0)
    }

    #[inline]
    pub(super) fn size(self) -> u64 {
        (self.0 >> 92) as u64 * MIN_BLOCK
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Blocks {
    slots: Vec<Block>,
    vacant: Vec<BlockId>,
}

impl Blocks {
    pub(super) fn add(&mut self, block: Block) -> BlockId {
        match self.vacant.pop() {
            Some(slot) => {
                self.slots[slot as usize] = block;
                slot
            }
            None => {
                self.slots.push(block);
                self.slots.len() as BlockId - 1
            }
        }
    }

    pub(super) fn remove(&mut self, id: BlockId) {
        self.slots[id as usize].serial = 0;
        self.vacant.push(id);
    }

    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn get(&self, id: BlockId) -> Option<&Block> {
        self.slots.get(id as usize)
    }
}

impl Index<BlockId> for Blocks {
    type Output = Block;

    #[inline]
    fn index(&self, id: BlockId) -> &Block {
        &self.slots[id as usize]
    }
}

impl IndexMut<BlockId> for Blocks {
    #[inline]
    fn index_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.slots[id as usize]
    }
}
