//! A recording read as a program: what it asked of the allocator, in order, without what the allocator then did.
//!
//! Events are read in place, one at a time; what is kept here is linear in segments and in live blocks, not in events.
//! What a recording does not say is worked out in `clues`.

use crate::allocator::{Allocator, Handle, Refusal, Request};
use crate::clues::{
    LivePools, PrivateChange, Proven, Release, pools_of_ooms, private_changes, releases, state_before,
};
use crate::torch::{ImportedSegment, Torch};
use hashbrown::HashMap;
use oomph_settings::conf::Conf;
use oomph_trace::{Action, DEFAULT_POOL, Device, History, PoolId};

/// What a device's program asked for.
#[derive(Clone, Debug)]
pub struct Program<'a> {
    pub(crate) device: &'a Device,
    /// Whether frees come in two events; a recorder can be set to leave the second out.
    completes: bool,
    /// The times that segments went back.
    pub(crate) releases: Vec<Release>,
    /// What the device is known to have had.
    pub(crate) proven: Proven,
    /// Memory of private pools coming and going: (event, taken, address, end, pool).
    private: Vec<PrivateChange>,
    /// Whether only a pool that is no longer used gives memory back.
    retires_pools: bool,
    /// The pools of out-of-memories that were not in the default pool, by event.
    pool_of_oom: HashMap<u32, PoolId>,
    /// What was there before the first event.
    pub(crate) before: Vec<ImportedSegment>,
}

/// How a program went.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Where it could not go on, although the recorded program could.
    pub died: Option<Death>,
    /// Recorded out-of-memories that happened again.
    pub ooms: Vec<Death>,
    /// Recorded out-of-memories that did not happen.
    pub ooms_avoided: Vec<u32>,
    /// Blocks that lie elsewhere than recorded.
    pub address_mismatches: u64,
    /// The first event whose block lies elsewhere.
    pub first_mismatch: Option<u32>,
    /// The event at which most was allocated, and reserved.
    pub peak_allocated_at: u32,
    /// The event at which most was reserved.
    pub peak_reserved_at: u32,
    /// Frees that waited for another stream.
    pub deferred_frees: u64,
    /// Frees of blocks that were not allocated.
    pub unknown_frees: u64,
    /// Blocks allocated where one was alive: its free is missing.
    pub missing_frees: u64,
    /// How it went over time.
    pub timeline: Vec<Sample>,
}

/// A request that was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Death {
    /// The event whose request was not served.
    pub event: u32,
    /// The bytes that the program asked for.
    pub size: u64,
    pub refusal: Refusal,
    pub reserved: u64,
    pub allocated: u64,
    /// Free in pieces that the request could have used.
    pub usable_free: u64,
    /// The largest of those pieces.
    pub largest_free: u64,
}

/// The most of a stretch of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// The first event of the stretch.
    pub event: u32,
    /// Most bytes allocated.
    pub allocated: u64,
    /// Most bytes reserved.
    pub reserved: u64,
}

/// A change to the program: what if it had asked for less, or freed earlier?
#[derive(Default)]
pub struct Change<'c> {
    /// The bytes that the request of an event asks for instead, whether it was served or not; 0 leaves it out.
    pub resize: Option<&'c dyn Fn(usize, u64) -> u64>,
    /// Blocks to free earlier, in order: (event before which, event that allocated it).
    pub free_early: &'c [(u32, u32)],
    /// Leaves out the requests that were not served, which left no trace to be changed.
    pub without_ooms: bool,
}

impl Change<'_> {
    /// Whether nothing is to be different.
    pub(crate) fn is_none(&self) -> bool {
        self.resize.is_none() && self.free_early.is_empty() && !self.without_ooms
    }
}

/// How to go through a program.
#[derive(Default)]
pub struct Options<'c> {
    /// Whether to compare addresses with the recorded ones.
    pub compare: bool,
    /// How many samples to take over time.
    pub samples: usize,
    pub change: Change<'c>,
}

impl<'a> Program<'a> {
    /// Reads a device's events as a program.
    pub fn of(device: &'a Device, history: &History, conf: &Conf) -> Self {
        let events = &device.events;
        let reserved_before = history.reserved_at(0).iter().map(|range| range.size).sum();
        let proven = Proven::of(device, reserved_before, conf);
        let private = private_changes(history, !events.pool.is_empty());
        Self {
            device,
            completes: events.action.contains(&Action::FreeCompleted),
            releases: releases(device, reserved_before, proven.allowed, conf),
            proven,
            retires_pools: conf.max_split_size.is_none(),
            pool_of_oom: pools_of_ooms(device, &private),
            private,
            before: state_before(history),
        }
    }

    /// How many events there are.
    pub fn len(&self) -> usize {
        self.device.events.len()
    }

    pub fn is_empty(&self) -> bool {
        self.device.events.is_empty()
    }

    /// Goes through the program with an allocator that has served what came before the first event (see
    /// [`Program::place_before`] and [`Program::import_before`]), until the end or until it cannot go on.
    pub fn play<A: Allocator>(&self, allocator: &mut A, mut open: OpenBlocks, options: &Options) -> Outcome {
        let events = &self.device.events;
        let mut outcome = Outcome::default();
        let mut pools = LivePools::of(&self.private);
        let mut empties =
            self.releases.iter().filter(|release| release.asked_for).map(|release| release.row).peekable();
        let mut early = EarlyFrees::of(options.change.free_early);
        let stretch = if options.samples == 0 { usize::MAX } else { self.len().div_ceil(options.samples) };
        let (mut next_sample, mut sample) = (stretch.min(self.len()), Sample::default());
        let (mut most_allocated, mut most_reserved) = (0, 0);
        let mut row = 0;
        while row < self.len() {
            if row >= next_sample {
                outcome.timeline.push(sample);
                let usage = allocator.usage();
                sample = Sample {
                    event: row as u32,
                    allocated: usage.allocated.now,
                    reserved: usage.reserved.now,
                };
                next_sample += stretch;
            }
            if empties.next_if(|&at| at as usize <= row).is_some() {
                allocator.empty_cache();
            }
            early.free_until(row as u32, allocator);
            let address = events.address[row];
            match events.action[row] {
                Action::Alloc => {
                    let recorded = events.size[row];
                    let size = options.change.resize.map_or(recorded, |resize| resize(row, recorded));
                    if size > 0 || recorded == 0 {
                        let pool = pools.holding(row as u32, address, |pool| {
                            if self.retires_pools {
                                allocator.retire_pool(pool);
                            }
                        });
                        let request = Request { size, stream: events.stream[row], pool };
                        match allocator.malloc(request) {
                            Ok(block) => {
                                if options.compare && allocator.address(block) != address {
                                    outcome.address_mismatches += 1;
                                    outcome.first_mismatch.get_or_insert(row as u32);
                                }
                                early.watch(row as u32, block);
                                if let Some(old) = open.blocks.insert(address, block) {
                                    outcome.missing_frees += 1;
                                    allocator.free(old);
                                }
                            }
                            Err(refusal) => {
                                outcome.died = Some(death(row, request, refusal, allocator));
                                break;
                            }
                        }
                    }
                    let usage = allocator.usage();
                    if usage.allocated.now > most_allocated {
                        most_allocated = usage.allocated.now;
                        outcome.peak_allocated_at = row as u32;
                    }
                    if usage.reserved.now > most_reserved {
                        most_reserved = usage.reserved.now;
                        outcome.peak_reserved_at = row as u32;
                    }
                    sample.allocated = sample.allocated.max(usage.allocated.now);
                    sample.reserved = sample.reserved.max(usage.reserved.now);
                }
                Action::FreeRequested => {
                    // Nearly always the block is back at once: then the two events are one.
                    let at_once = !self.completes
                        || (events.action.get(row + 1) == Some(&Action::FreeCompleted)
                            && events.address[row + 1] == address);
                    if at_once {
                        match open.blocks.remove(&address) {
                            Some(block) => allocator.free(block),
                            None => outcome.unknown_frees += u64::from(options.change.resize.is_none()),
                        }
                        row += usize::from(self.completes);
                    } else {
                        match open.blocks.get(&address) {
                            Some(&block) => {
                                outcome.deferred_frees += 1;
                                allocator.free_later(block);
                            }
                            None => outcome.unknown_frees += u64::from(options.change.resize.is_none()),
                        }
                    }
                }
                Action::FreeCompleted => {
                    if let Some(block) = open.blocks.remove(&address) {
                        allocator.complete(block);
                        allocator.free(block); // if its free was never requested, which only a damaged recording has
                    }
                }
                Action::OutOfMemory if !options.change.without_ooms => {
                    let recorded = events.size[row];
                    let size = options.change.resize.map_or(recorded, |resize| resize(row, recorded));
                    if size > 0 {
                        let pool = self.pool_of_oom.get(&(row as u32)).copied().unwrap_or(DEFAULT_POOL);
                        let request = Request { size, stream: events.stream[row], pool };
                        match allocator.malloc(request) {
                            // What the program would have done with it is not known: it is freed at once.
                            Ok(block) => {
                                sample.allocated = sample.allocated.max(allocator.usage().allocated.now);
                                sample.reserved = sample.reserved.max(allocator.usage().reserved.now);
                                allocator.free(block);
                                outcome.ooms_avoided.push(row as u32);
                            }
                            Err(refusal) => outcome.ooms.push(death(row, request, refusal, allocator)),
                        }
                    }
                }
                _ => {}
            }
            row += 1;
        }
        if options.samples > 0 && !self.is_empty() {
            outcome.timeline.push(sample);
        }
        outcome
    }

    /// The recorded segments and mappings, (address, size), in order: what [`Addresses::recorded`] takes.
    ///
    /// [`Addresses::recorded`]: crate::addresses::Addresses::recorded
    pub fn segment_addresses(&self) -> (Vec<(u64, u64)>, Vec<(u64, u64)>) {
        let events = &self.device.events;
        let of = |action: Action| {
            (0..events.len())
                .filter(|&row| events.action[row] == action)
                .map(|row| (events.address[row], events.size[row]))
                .collect()
        };
        (of(Action::SegmentAlloc), of(Action::SegmentMap))
    }

    /// Puts what was there before the first event where it was.
    pub fn import_before(&self, torch: &mut Torch) -> OpenBlocks {
        let handles = torch.import(&self.before);
        let addresses =
            self.before.iter().flat_map(|segment| segment.blocks.iter().map(|block| block.address));
        let blocks =
            addresses.zip(handles).filter_map(|(address, handle)| Some((address, handle?))).collect();
        OpenBlocks { blocks }
    }

    /// Asks for what was there before the first event, by address: how it came there is not known.
    pub fn place_before<A: Allocator>(&self, allocator: &mut A) -> Result<OpenBlocks, Death> {
        let mut open = OpenBlocks::default();
        for segment in &self.before {
            for block in &segment.blocks {
                let request = Request { size: block.requested, stream: segment.stream, pool: segment.pool };
                let handle =
                    allocator.malloc(request).map_err(|refusal| death(0, request, refusal, allocator))?;
                open.blocks.insert(block.address, handle);
            }
        }
        Ok(open)
    }

    /// Whether it uses private pools that the recording does not name.
    pub(crate) fn infers_pools(&self) -> bool {
        !self.private.is_empty() && self.device.events.pool.is_empty()
    }

    /// Blocks that were there before the first event.
    pub(crate) fn blocks_before(&self) -> u64 {
        self.before.iter().map(|segment| segment.blocks.len() as u64).sum()
    }

    /// Bytes that were reserved before the first event.
    pub(crate) fn reserved_before(&self) -> u64 {
        self.before.iter().map(|segment| segment.size).sum()
    }
}

/// Blocks that are alive, by the address that they were recorded at.
#[derive(Clone, Debug, Default)]
pub struct OpenBlocks {
    blocks: HashMap<u64, Handle>,
}

fn death<A: Allocator>(row: usize, request: Request, refusal: Refusal, allocator: &A) -> Death {
    let (usage, free) = (allocator.usage(), allocator.free_pieces(request));
    Death {
        event: row as u32,
        size: request.size,
        refusal,
        reserved: usage.reserved.now,
        allocated: usage.allocated.now,
        usable_free: free.total,
        largest_free: free.largest,
    }
}

/// Blocks that are to be freed earlier than the program did.
struct EarlyFrees<'c> {
    order: &'c [(u32, u32)],
    next: usize,
    watched: HashMap<u32, Option<Handle>>,
}

impl<'c> EarlyFrees<'c> {
    fn of(order: &'c [(u32, u32)]) -> Self {
        Self { order, next: 0, watched: order.iter().map(|&(_, born)| (born, None)).collect() }
    }

    #[inline]
    fn watch(&mut self, row: u32, block: Handle) {
        if !self.order.is_empty()
            && let Some(entry) = self.watched.get_mut(&row)
        {
            *entry = Some(block);
        }
    }

    #[inline]
    fn free_until<A: Allocator>(&mut self, row: u32, allocator: &mut A) {
        while let Some(&(_, born)) = self.order.get(self.next).filter(|&&(at, _)| at <= row) {
            if let Some(Some(block)) = self.watched.get(&born) {
                allocator.free(*block); // the recorded free then finds it gone
            }
            self.next += 1;
        }
    }
}
