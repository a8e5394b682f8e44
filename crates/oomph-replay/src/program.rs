//! A recording read as a program: what it asked of the allocator, in order, without what the allocator then did.
//!
//! Events are read in place, one at a time; what is kept here is linear in segments and in live blocks, not in events.
//! What a recording does not say is worked out: that `empty_cache` was called (segments go back and the same call does
//! not take any), which private pool a request went to (the segment that its block lies in), what was there before.

use crate::allocator::{Allocator, Handle, Refusal, Request};
use crate::conf::Conf;
use crate::torch::{ImportedBlock, ImportedSegment, Torch};
use hashbrown::HashMap;
use oomph_trace::rounding::{LARGEST_SIZE, SMALL_LIMIT, SMALL_SEGMENT};
use oomph_trace::{Action, DEFAULT_POOL, Device, History, NO_STACK, PoolId, Reserved, StackId};
use std::collections::BTreeMap;

/// What a device's program asked for.
#[derive(Clone, Debug)]
pub struct Program<'a> {
    pub(crate) device: &'a Device,
    /// Whether frees come in two events; a recorder can be told to leave the second out.
    completes: bool,
    /// The times that segments went back.
    pub(crate) releases: Vec<Release>,
    /// What the device is known to have had.
    pub(crate) proven: Proven,
    /// Memory of private pools coming and going: (event, taken, address, end, pool).
    private: Vec<PrivateChange>,
    /// Whether only a pool that nobody uses any longer gives memory back.
    retires_pools: bool,
    /// The pools of out-of-memories that were not in the default pool, by event.
    pool_of_oom: HashMap<u32, PoolId>,
    /// What was there before the first event.
    pub(crate) before: Vec<ImportedSegment>,
}

#[derive(Clone, Copy, Debug)]
struct PrivateChange {
    row: u32,
    taken: bool,
    address: u64,
    end: u64,
    pool: PoolId,
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
    /// Frees of blocks that nobody allocated.
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
    /// Why.
    pub refusal: Refusal,
    /// Reserved then.
    pub reserved: u64,
    /// Allocated then.
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

/// A change to the program: what if it had asked for less, or let go earlier?
#[derive(Default)]
pub struct Change<'c> {
    /// The bytes that the request of an event asks for instead; 0 leaves it out.
    pub resize: Option<&'c dyn Fn(usize, u64) -> u64>,
    /// Blocks to free earlier, in order: (event before which, event that allocated it).
    pub free_early: &'c [(u32, u32)],
    /// Leaves out the requests that were not served, which left no trace to be changed.
    pub without_ooms: bool,
}

/// How to go through a program.
#[derive(Default)]
pub struct Options<'c> {
    /// Whether to compare addresses with the recorded ones.
    pub compare: bool,
    /// How many samples to take over time.
    pub samples: usize,
    /// What to do differently.
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

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.device.events.is_empty()
    }

    /// Goes through the program with an allocator that has served what came before the first event (see
    /// [`Program::place_before`] and [`Program::import_before`]), until the end or until it cannot go on.
    pub fn play<A: Allocator>(&self, allocator: &mut A, mut open: OpenBlocks, options: &Options) -> Outcome {
        let events = &self.device.events;
        let mut outcome = Outcome::default();
        let mut pools = LivePools { changes: &self.private, next: 0, ranges: BTreeMap::new() };
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
                        allocator.free(block); // if it was never let go of, which only a damaged recording has
                    }
                }
                Action::OutOfMemory if !options.change.without_ooms => {
                    let pool = self.pool_of_oom.get(&(row as u32)).copied().unwrap_or(DEFAULT_POOL);
                    let request = Request { size: events.size[row], stream: events.stream[row], pool };
                    match allocator.malloc(request) {
                        // What the program would have done with it is not known: it is let go of at once.
                        Ok(block) => {
                            sample.allocated = sample.allocated.max(allocator.usage().allocated.now);
                            sample.reserved = sample.reserved.max(allocator.usage().reserved.now);
                            allocator.free(block);
                            outcome.ooms_avoided.push(row as u32);
                        }
                        Err(refusal) => outcome.ooms.push(death(row, request, refusal, allocator)),
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

/// Memory of private pools, as it comes and goes.
///
/// Events name their pool from 2.12 on. Before that, only the final state does; a segment that was given back is taken to
/// be of the pool that other segments from the same place in the program are of.
fn private_changes(history: &History, named: bool) -> Vec<PrivateChange> {
    let start = history.reserved_at(0);
    let mut changes: Vec<(u32, bool, Reserved)> = (start.iter().map(|&range| (0, true, range)))
        .chain(history.reserved_changes().map(|(moment, taken, &range)| (moment - 1, taken, range)))
        .collect();
    if changes.iter().all(|(.., range)| range.pool == DEFAULT_POOL) {
        return Vec::new();
    }
    if !named {
        let mut last: HashMap<u64, usize> = HashMap::new();
        for (index, (.., range)) in changes.iter().enumerate() {
            last.insert(range.address, index);
        }
        let survives: Vec<bool> = (changes.iter().enumerate())
            .map(|(index, (_, taken, range))| *taken && last.get(&range.address) == Some(&index))
            .collect();
        let mut pool_of_stack: HashMap<StackId, Option<PoolId>> = HashMap::new();
        for (index, (.., range)) in changes.iter().enumerate() {
            if range.stack != NO_STACK && survives[index] {
                let known = pool_of_stack.entry(range.stack).or_insert(Some(range.pool));
                if *known != Some(range.pool) {
                    *known = None;
                }
            }
        }
        let mut guessed: HashMap<u64, PoolId> = HashMap::new();
        for index in 0..changes.len() {
            let (_, taken, range) = changes[index];
            let pool = match taken {
                true if survives[index] => continue,
                true => pool_of_stack.get(&range.stack).copied().flatten(),
                false => guessed.remove(&range.address),
            };
            let Some(pool) = pool.filter(|&pool| pool != DEFAULT_POOL) else { continue };
            changes[index].2.pool = pool;
            if taken {
                guessed.insert(range.address, pool);
            }
        }
    }
    (changes.into_iter())
        .filter(|(.., range)| range.pool != DEFAULT_POOL)
        .map(|(row, taken, range)| PrivateChange {
            row,
            taken,
            address: range.address,
            end: range.end(),
            pool: range.pool,
        })
        .collect()
}

/// Events name their pool from 2.12 on. Before that, a request that failed left no address to tell its pool by; but its
/// stack does, if other requests from there were served by a private pool, and only by it.
fn pools_of_ooms(device: &Device, private: &[PrivateChange]) -> HashMap<u32, PoolId> {
    let events = &device.events;
    let named = &events.pool;
    let mut found = HashMap::new();
    if private.is_empty() && named.is_empty() {
        return found;
    }
    let mut pools = LivePools { changes: private, next: 0, ranges: BTreeMap::new() };
    let mut pool_of_stack: HashMap<StackId, Option<PoolId>> = HashMap::new();
    for row in 0..events.len() {
        if events.action[row] == Action::Alloc && events.stack[row] != NO_STACK {
            let pool = pools.holding(row as u32, events.address[row], |_| {});
            let known = pool_of_stack.entry(events.stack[row]).or_insert(Some(pool));
            if *known != Some(pool) {
                *known = None;
            }
        }
    }
    for row in (0..events.len()).filter(|&row| events.action[row] == Action::OutOfMemory) {
        let by_name = named.binary_search_by_key(&(row as u32), |&(at, _)| at).ok().map(|at| named[at].1);
        let by_stack = pool_of_stack.get(&events.stack[row]).copied().flatten();
        if let Some(pool) = by_name.or(by_stack) {
            found.insert(row as u32, pool);
        }
    }
    found
}

/// What the device is known to have had.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Proven {
    /// The most that was ever reserved.
    pub(crate) reserved: u64,
    /// The most that ever passed the check of a limit. Pages are checked as the whole segment that the request stands
    /// for, and may then go beyond.
    pub(crate) allowed: u64,
}

impl Proven {
    fn of(device: &Device, reserved_before: u64, conf: &Conf) -> Self {
        let events = &device.events;
        let mut reserved = reserved_before;
        let mut proven = Self { reserved, allowed: 0 };
        for row in 0..events.len() {
            let size = events.size[row];
            match events.action[row] {
                Action::SegmentAlloc | Action::SegmentMap => {
                    let checked = checked_segment(device, row, conf);
                    proven.allowed =
                        proven.allowed.max(checked.map_or(0, |size| reserved.saturating_add(size)));
                    reserved = reserved.saturating_add(size);
                    proven.reserved = proven.reserved.max(reserved);
                }
                Action::SegmentFree | Action::SegmentUnmap => reserved = reserved.saturating_sub(size),
                _ => {}
            }
        }
        proven
    }
}

/// The segment size that a limit was checked with before memory was taken at this event; `None` if it was not checked
/// again, or is not known.
fn checked_segment(device: &Device, row: usize, conf: &Conf) -> Option<u64> {
    let events = &device.events;
    let maps = |&at: &usize| events.action[at] == Action::SegmentMap;
    if !maps(&row) {
        return Some(events.size[row]);
    }
    if row > 0 && maps(&(row - 1)) {
        return None; // the second mapping for one request
    }
    let request =
        (row + 1..events.len()).find(|at| !maps(at)).filter(|&at| events.action[at] == Action::Alloc)?;
    Some(conf.segment_size(conf.round(events.size[request].min(LARGEST_SIZE))))
}

/// Why segments went back to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Release {
    /// Its first event.
    pub(crate) row: u32,
    /// Whether the program asked for it; otherwise the allocator was short of memory.
    pub(crate) asked_for: bool,
    /// What was reserved before.
    pub(crate) reserved: u64,
    /// The segment that was short, if one was taken right after.
    pub(crate) segment: Option<u64>,
}

/// Every time that segments went back.
///
/// They go back when the program (or a library in its name) empties the cache, and when a request finds no room; then
/// the same call takes a segment or runs out of memory next, that segment would have been more than the device is
/// known to have had, and none of the segments that went back would have served. Where stacks were recorded they tell the
/// two apart as well.
fn releases(device: &Device, reserved_before: u64, proven: u64, conf: &Conf) -> Vec<Release> {
    let events = &device.events;
    let mut releases = Vec::new();
    let (mut row, mut reserved) = (0, reserved_before);
    while row < events.len() {
        match events.action[row] {
            Action::SegmentAlloc | Action::SegmentMap => reserved = reserved.saturating_add(events.size[row]),
            Action::SegmentFree | Action::SegmentUnmap => {
                let (first, before) = (row, reserved);
                while matches!(events.action.get(row), Some(Action::SegmentFree | Action::SegmentUnmap)) {
                    reserved = reserved.saturating_sub(events.size[row]);
                    row += 1;
                }
                let same_call = row < events.len() && {
                    let (stack, next) = (events.stack[first], events.stack[row]);
                    stack == NO_STACK || next == NO_STACK || stack == next
                };
                let (mut short, segment) = match events.action.get(row) {
                    Some(Action::SegmentAlloc | Action::SegmentMap) => {
                        // Garbage is collected before room is looked for, whether there is room or not.
                        let collects = conf.collection_threshold() > 0.0;
                        let segment = checked_segment(device, row, conf);
                        let beyond = segment.is_none_or(|size| before.saturating_add(size) > proven);
                        (same_call && (collects || beyond), segment)
                    }
                    Some(Action::OutOfMemory) => (same_call, None),
                    // A range that was passed over for being larger than max_split_size_mb serves after all.
                    Some(Action::Alloc) if conf.expandable_segments && conf.max_split_size.is_some() => {
                        (same_call && events.stack[first] != NO_STACK, None)
                    }
                    _ => (false, None),
                };
                if short && conf.max_split_size.is_none() && conf.collection_threshold() == 0.0 {
                    short = !(first..row).any(|freed| would_have_served(device, freed, row, conf));
                }
                releases.push(Release { row: first as u32, asked_for: !short, reserved: before, segment });
                continue;
            }
            _ => {}
        }
        row += 1;
    }
    releases
}

/// Whether a segment that went back could have served the request for which another was then taken.
fn would_have_served(device: &Device, freed: usize, taken: usize, conf: &Conf) -> bool {
    let events = &device.events;
    if events.action[freed] != Action::SegmentFree || events.stream[freed] != events.stream[taken] {
        return false;
    }
    let request = match events.action[taken] {
        Action::OutOfMemory => events.size[taken],
        _ => match events.action.get(taken + 1) {
            Some(Action::Alloc) => events.size[taken + 1],
            _ => return false,
        },
    };
    let rounded = conf.round(request.min(LARGEST_SIZE));
    let small = events.size[freed] == SMALL_SEGMENT;
    small == (rounded <= SMALL_LIMIT) && events.size[freed] >= rounded
}

/// Segments at the first event, with the blocks in them.
fn state_before(history: &History) -> Vec<ImportedSegment> {
    let all = &history.allocations;
    let mut blocks: Vec<ImportedBlock> = (0..all.born_before())
        .map(|index| ImportedBlock {
            address: all.address(index),
            size: all.size(index),
            requested: all.requested(index),
        })
        .collect();
    blocks.sort_unstable_by_key(|block| block.address);
    let mut segments = Vec::new();
    for range in history.reserved_at(0) {
        let from = blocks.partition_point(|block| block.address < range.address);
        let to = blocks.partition_point(|block| block.address < range.end());
        segments.push(ImportedSegment {
            address: range.address,
            size: range.size,
            stream: range.stream,
            pool: range.pool,
            small: range.small,
            expandable: range.expandable,
            blocks: blocks[from..to].to_vec(),
        });
    }
    segments
}

/// Which private pool an address belongs to, as time goes by.
struct LivePools<'p> {
    changes: &'p [PrivateChange],
    next: usize,
    ranges: BTreeMap<u64, (u64, PoolId)>,
}

impl LivePools<'_> {
    #[inline]
    fn holding(&mut self, row: u32, address: u64, mut retire: impl FnMut(PoolId)) -> PoolId {
        if self.changes.is_empty() {
            return DEFAULT_POOL;
        }
        while let Some(change) = self.changes.get(self.next).filter(|change| change.row <= row) {
            if change.taken {
                self.ranges.insert(change.address, (change.end, change.pool));
            } else if self.ranges.remove(&change.address).is_some() {
                retire(change.pool);
            }
            self.next += 1;
        }
        match self.ranges.range(..=address).next_back() {
            Some((_, &(end, pool))) if address < end => pool,
            _ => DEFAULT_POOL,
        }
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
