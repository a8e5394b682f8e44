//! What a recording does not say, worked out from what it shows: why segments went back, which private pool a request
//! went to, how much memory there was, what was there before the first event.

use crate::torch::{ImportedBlock, ImportedSegment};
use hashbrown::HashMap;
use oomph_settings::conf::Conf;
use oomph_settings::rounding::{LARGEST_SIZE, SMALL_LIMIT, SMALL_SEGMENT};
use oomph_trace::{Action, DEFAULT_POOL, Device, History, NO_STACK, PoolId, Reserved, StackId};
use std::collections::BTreeMap;

/// Memory of a private pool, taken or given back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PrivateChange {
    row: u32,
    taken: bool,
    address: u64,
    end: u64,
    pool: PoolId,
}

/// Memory of private pools, as it comes and goes.
///
/// Events name their pool from 2.12 on. Before that, only the final state does; a segment that was given back is taken to
/// be of the pool that other segments from the same place in the program are of.
pub(crate) fn private_changes(history: &History, named: bool) -> Vec<PrivateChange> {
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

/// Events name their pool from 2.12 on. Before that, a request that failed left no address that shows its pool; but its
/// stack does, if other requests from there were served by a private pool, and only by it.
pub(crate) fn pools_of_ooms(device: &Device, private: &[PrivateChange]) -> HashMap<u32, PoolId> {
    let events = &device.events;
    let named = &events.pool;
    let mut found = HashMap::new();
    if private.is_empty() && named.is_empty() {
        return found;
    }
    let mut pools = LivePools::of(private);
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
    pub(crate) fn of(device: &Device, reserved_before: u64, conf: &Conf) -> Self {
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
/// known to have had, and none of the segments that went back would have served. Where stacks were recorded they show the
/// two apart as well.
pub(crate) fn releases(device: &Device, reserved_before: u64, proven: u64, conf: &Conf) -> Vec<Release> {
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
pub(crate) fn state_before(history: &History) -> Vec<ImportedSegment> {
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
pub(crate) struct LivePools<'p> {
    changes: &'p [PrivateChange],
    next: usize,
    ranges: BTreeMap<u64, (u64, PoolId)>,
}

impl<'p> LivePools<'p> {
    pub(crate) fn of(changes: &'p [PrivateChange]) -> Self {
        Self { changes, next: 0, ranges: BTreeMap::new() }
    }

    #[inline]
    pub(crate) fn holding(&mut self, row: u32, address: u64, mut retire: impl FnMut(PoolId)) -> PoolId {
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
