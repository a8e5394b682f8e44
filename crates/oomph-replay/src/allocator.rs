//! What an allocator is, to whoever replays a recording: the trait, and the words it speaks.

use oomph_trace::{DEFAULT_POOL, PoolId};

/// A model of an allocator. It hands out addresses, never memory.
pub trait Allocator {
    /// Hands out a block, or says why it cannot.
    fn malloc(&mut self, request: Request) -> Result<Handle, Refusal>;

    /// Takes a block back at once. A handle that is not alive is ignored.
    fn free(&mut self, block: Handle);

    /// The program has freed a block, but another stream may still use it: it stays taken until
    /// [`Allocator::complete`], or until the allocator waits for all streams.
    fn free_later(&mut self, block: Handle) {
        self.free(block);
    }

    /// No stream uses the block any longer. Ignored if it is back already.
    fn complete(&mut self, _block: Handle) {}

    /// What `torch.cuda.empty_cache()` asks for.
    fn empty_cache(&mut self) {}

    /// A private pool's owner is gone: what is free in it may be given back from now on.
    fn retire_pool(&mut self, _pool: PoolId) {}

    /// Where a live block lies.
    fn address(&self, block: Handle) -> u64;

    /// How much is in use, and how much was.
    fn usage(&self) -> &Usage;

    /// All free pieces that a request of this kind could use, and the largest of them.
    fn free_pieces(&self, request: Request) -> FreePieces;
}

/// What a program asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Bytes, as the program says.
    pub size: u64,
    /// The stream, as an index that stays the same for a stream.
    pub stream: u32,
    pub pool: PoolId,
}

impl Request {
    /// On the first stream, from the default pool.
    pub fn of(size: u64) -> Self {
        Self { size, stream: 0, pool: DEFAULT_POOL }
    }
}

/// A block that was handed out. Two blocks never have the same handle, even one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    pub(crate) slot: u32,
    pub(crate) serial: u32,
}

/// Why nothing was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The device has no room for a segment of that many bytes.
    Device {
        /// The segment that was asked of the device.
        segment: u64,
    },
    /// The process may not take as much (`set_per_process_memory_fraction`).
    Limit {
        /// The segment that would have gone beyond.
        segment: u64,
    },
    /// `throw_on_cudamalloc_oom`: refused before asking.
    Rejected {
        /// The segment that was not asked for.
        segment: u64,
    },
}

impl Refusal {
    /// The name for scripts.
    pub fn key(self) -> &'static str {
        match self {
            Self::Device { .. } => "device",
            Self::Limit { .. } => "limit",
            Self::Rejected { .. } => "rejected",
        }
    }

    /// The segment that could not be had.
    pub fn segment(self) -> u64 {
        match self {
            Self::Device { segment } | Self::Limit { segment } | Self::Rejected { segment } => segment,
        }
    }
}

/// A number with its highest value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauge {
    pub now: u64,
    /// At most so far.
    pub peak: u64,
}

impl Gauge {
    #[inline]
    pub(crate) fn add(&mut self, amount: u64) {
        self.now = self.now.saturating_add(amount);
        self.peak = self.peak.max(self.now);
    }

    #[inline]
    pub(crate) fn take(&mut self, amount: u64) {
        self.now = self.now.saturating_sub(amount);
    }

    /// Adds what is positive, takes what is negative, in one step.
    #[inline]
    pub(crate) fn change(&mut self, by: i64) {
        if by >= 0 { self.add(by as u64) } else { self.take(by.unsigned_abs()) }
    }
}

/// An allocator's statistics, under the names that PyTorch gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of blocks that the program holds.
    pub allocated: Gauge,
    /// Bytes taken from the device.
    pub reserved: Gauge,
    /// Bytes of blocks that are not yet back in their pool.
    pub active: Gauge,
    /// Bytes asked for, of those blocks.
    pub requested: Gauge,
    /// Free bytes in segments that are cut up (not of expandable ones).
    pub inactive_split: Gauge,
    /// Segments, expandable ones not counted.
    pub segments: Gauge,
    /// How often everything cached was given back to find room: each waits for the device.
    pub retries: u64,
    /// Requests that could not be served.
    pub ooms: u64,
    /// How often memory was taken from the device.
    pub device_allocs: u64,
    /// How often memory was given back.
    pub device_frees: u64,
    /// How often two equal blocks of different segments were free, so that real addresses decided.
    pub ties: u64,
}

/// Free memory that a request could have used, had it been one piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreePieces {
    pub total: u64,
    pub largest: u64,
}

/// What the device gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// What the card has in all (fractions are of this, and expandable segments reserve room for it).
    pub total: u64,
    /// What segments can be made of: the total less the context and other processes.
    pub free: u64,
    /// What this process may take, if it is limited (a fraction was set).
    pub limit: Option<u64>,
}

impl Memory {
    /// More than any program takes.
    pub const UNLIMITED: Self = Self { total: 1 << 44, free: 1 << 44, limit: None };

    /// The same, within what arithmetic on it can bear.
    pub(crate) fn clamped(self) -> Self {
        let most = Self::UNLIMITED.free;
        Self { total: self.total.min(most), free: self.free.min(most), limit: self.limit }
    }

    /// A card with this much left for segments.
    pub fn of(free: u64) -> Self {
        Self { total: free, free, limit: None }
    }
}
