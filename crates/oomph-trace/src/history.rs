//! From events to lifetimes: which block lived from when to when, and how large it really was.
//!
//! Events carry requested sizes only. A block's true size follows from the allocator's splitting rule and
//! from what lay behind it at that moment, so it is worked out here exactly; the blocks that are alive at
//! the end, whose true sizes the file has, prove it (`mismatches`).
//!
//! Recordings are often incomplete: a ring buffer forgot the beginning, or recording began late. Then the
//! state at the start is worked out backwards from the final segments: what is alive at the end and was
//! never allocated, or is freed without having been allocated, was there before.
//!
//! Time is counted in *moments*: moment `m` is the state after the first `m` events.

use crate::intern::{NO_STACK, StackId};
use crate::recording::{Action, BlockState, DEFAULT_POOL, Device, Events, PoolId, Recording, Settings};
use hashbrown::HashMap;
use oomph_settings::rounding::{
    MIN_BLOCK, SEGMENT_QUANTUM, SMALL_LIMIT, SMALL_SEGMENT, UNSPLIT_REMAINDER, round_size,
};
use std::collections::{BTreeMap, BTreeSet};

/// A state between two events: how many events came before it.
pub type Moment = u32;

/// The end of a block that was still alive at the end.
pub const NEVER: Moment = Moment::MAX;

/// The lifetimes of a device's blocks.
#[derive(Clone, Debug)]
pub struct History<'a> {
    /// All blocks that lived, those from before the recording first, then in order of birth.
    pub allocations: Allocations<'a>,
    /// The highest values, and when they were first reached.
    pub peak: Peaks,
    /// Values when the recording begins.
    pub start: Totals,
    /// Values when it ends.
    pub end: Totals,
    /// How far `allocated` may be too low, because true sizes of blocks from before are not known.
    pub uncertainty: u64,
    /// Events that contradict each other or the final state.
    pub contradictions: u64,
    /// Blocks alive at the end whose worked-out size differs from the true one.
    pub mismatches: u64,
    allocated: Vec<u32>,
    segments: SegmentLog,
}

/// Lifetimes in columns. What the allocating event says is not copied but looked up there.
#[derive(Clone, Debug)]
pub struct Allocations<'a> {
    events: &'a Events,
    before: Vec<Unborn>,
    size: Vec<u64>,
    born: Vec<Moment>,
    freed: Vec<Moment>,
    /// When a block came back to its pool, where that was not at once.
    deferred: HashMap<u32, Moment>,
    /// Stacks that only the final state has (`context="state"` records none on events).
    stacks_at_end: HashMap<u32, StackId>,
}

impl Allocations<'_> {
    pub fn len(&self) -> usize {
        self.size.len()
    }

    pub fn is_empty(&self) -> bool {
        self.size.is_empty()
    }

    /// Those that were not back in their pool as soon as the program freed them, and the moment at which they were.
    pub fn deferred(&self) -> Vec<(u32, Moment)> {
        let mut deferred: Vec<(u32, Moment)> =
            self.deferred.iter().map(|(&index, &at)| (index, at)).collect();
        deferred.sort_unstable();
        deferred
    }

    /// How many of them were there before the first event.
    pub fn born_before(&self) -> usize {
        self.before.len()
    }

    /// The event that made it; `None` if it was there before.
    #[inline]
    fn row(&self, index: usize) -> Result<usize, &Unborn> {
        match self.before.get(index) {
            Some(unborn) => Err(unborn),
            None => Ok(self.born[index] as usize - 1),
        }
    }

    #[inline]
    pub fn address(&self, index: usize) -> u64 {
        self.row(index).map_or_else(|unborn| unborn.address, |row| self.events.address[row])
    }

    /// What the program asked for.
    #[inline]
    pub fn requested(&self, index: usize) -> u64 {
        self.row(index).map_or_else(|unborn| unborn.requested, |row| self.events.size[row])
    }

    /// What the block takes.
    #[inline]
    pub fn size(&self, index: usize) -> u64 {
        self.size[index]
    }

    /// Index into [`Device::streams`].
    #[inline]
    pub fn stream(&self, index: usize) -> u32 {
        self.row(index).map_or_else(|unborn| unborn.stream, |row| self.events.stream[row])
    }

    /// Who allocated it.
    #[inline]
    pub fn stack(&self, index: usize) -> StackId {
        match self.row(index).map_or_else(|unborn| unborn.stack, |row| self.events.stack[row]) {
            NO_STACK => self.stacks_at_end.get(&(index as u32)).copied().unwrap_or(NO_STACK),
            stack => stack,
        }
    }

    /// The first moment at which it is alive; 0 if it was there before.
    #[inline]
    pub fn born(&self, index: usize) -> Moment {
        self.born[index]
    }

    /// The first moment at which the program has freed it; [`NEVER`] if it lives on.
    #[inline]
    pub fn freed(&self, index: usize) -> Moment {
        self.freed[index]
    }

    /// The most bytes that some of them had at once, each with as many as `size` says.
    pub fn most_at_once(&self, some: impl IntoIterator<Item = usize>, size: impl Fn(usize) -> u64) -> u64 {
        let changes = some.into_iter().flat_map(|index| {
            [(self.born(index), true, size(index)), (self.freed(index), false, size(index))]
        });
        let mut changes: Vec<(Moment, bool, u64)> = changes.collect();
        changes.sort_unstable(); // what is freed at a moment goes first
        let (mut now, mut most) = (0u64, 0u64);
        for (_, made, bytes) in changes {
            now = if made { now.saturating_add(bytes) } else { now.saturating_sub(bytes) };
            most = most.max(now);
        }
        most
    }

    /// The event at which the program freed it, if that is in the recording.
    #[inline]
    pub fn freeing_event(&self, index: usize) -> Option<usize> {
        match self.freed[index] {
            0 | NEVER => None,
            freed => Some(freed as usize - 1),
        }
    }

    /// Whether it is alive at `moment`.
    #[inline]
    pub fn alive(&self, index: usize, moment: Moment) -> bool {
        self.born[index] <= moment && moment < self.freed[index]
    }
}

/// Bytes, four ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Asked for by the program, in blocks not yet back in their pool.
    pub requested: u64,
    /// In blocks that the program holds.
    pub allocated: u64,
    /// Taken from the device.
    pub reserved: u64,
}

/// A highest value and when it was first reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    pub bytes: u64,
    pub moment: Moment,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peaks {
    /// See [`Totals::requested`].
    pub requested: Peak,
    /// See [`Totals::allocated`].
    pub allocated: Peak,
    /// See [`Totals::reserved`].
    pub reserved: Peak,
}

/// A contiguous piece of memory taken from the device, at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    pub address: u64,
    /// Its bytes.
    pub size: u64,
    /// Index into [`Device::streams`].
    pub stream: u32,
    pub pool: PoolId,
    /// Whether it grows and shrinks by pages.
    pub expandable: bool,
    /// Whether it serves requests of at most 1 MiB.
    pub small: bool,
    /// Who made it.
    pub stack: StackId,
}

impl Reserved {
    pub fn end(&self) -> u64 {
        self.address.saturating_add(self.size)
    }
}

impl<'a> History<'a> {
    /// Works out the lifetimes of a device of a recording.
    pub fn of(recording: &Recording, device: &'a Device) -> Self {
        // A file cut off in the middle lacks its newest events, so its final state belongs to a later
        // moment than its last event and says nothing about the first one.
        let trusted = device.has_final_state && !recording.source.truncated;
        let segments = SegmentLog::of(device, trusted);
        let mut pass = Pass::run(device, &recording.settings, &segments, Vec::new(), trusted);
        if !pass.unborn.is_empty() {
            // Blocks from before lie between the others and bound them: now that they are known, the
            // sizes are worked out again with them in place.
            let before = std::mem::take(&mut pass.unborn);
            pass = Pass::run(device, &recording.settings, &segments, before, trusted);
        }
        pass.finish(segments)
    }

    /// Allocated bytes at `moment`.
    pub fn allocated_at(&self, moment: Moment) -> u64 {
        match (moment as usize).checked_sub(1) {
            None => self.start.allocated,
            Some(row) => {
                self.allocated.get(row).map_or(self.end.allocated, |&blocks| u64::from(blocks) * MIN_BLOCK)
            }
        }
    }

    /// The most that was allocated at any moment of `moments`.
    pub fn most_allocated(&self, moments: std::ops::Range<Moment>) -> u64 {
        let rows = self.allocated.get((moments.start as usize).saturating_sub(1)..).unwrap_or_default();
        let rows = &rows[..rows.len().min(moments.len())];
        rows.iter().max().map_or(self.allocated_at(moments.start), |&blocks| u64::from(blocks) * MIN_BLOCK)
    }

    /// The allocations that are alive at `moment`.
    pub fn alive_at(&self, moment: Moment) -> Vec<u32> {
        let all = &self.allocations;
        // In order of birth: those born later need not be checked.
        let end = all.born.partition_point(|&born| born <= moment);
        (0..end as u32).filter(|&i| moment < all.freed[i as usize]).collect()
    }

    /// Allocations that the program has freed, but that another stream still holds at `moment`.
    pub fn pending_at(&self, moment: Moment) -> Vec<u32> {
        let all = &self.allocations;
        let mut pending: Vec<u32> = (all.deferred.iter())
            .filter(|&(&i, &completed)| all.freed[i as usize] <= moment && moment < completed)
            .map(|(&i, _)| i)
            .collect();
        pending.sort_unstable();
        pending
    }

    /// Every change to what is taken from the device, in order: the moment after it, whether memory was taken (or given
    /// back), and which.
    pub fn reserved_changes(&self) -> impl Iterator<Item = (Moment, bool, &Reserved)> {
        self.segments.changes.iter().map(|change| (change.moment, change.taken, &change.range))
    }

    /// What is taken from the device at `moment`, by address.
    pub fn reserved_at(&self, moment: Moment) -> Vec<Reserved> {
        self.segments.at(moment)
    }
}

// --- segments -------------------------------------------------------------------------------------------

/// What is reserved at the start, and every change to it.
#[derive(Clone, Debug, Default)]
struct SegmentLog {
    initial: Ranges,
    changes: Vec<SegmentChange>,
    contradictions: u64,
}

#[derive(Clone, Copy, Debug)]
struct SegmentChange {
    moment: Moment,
    taken: bool,
    range: Reserved,
}

impl SegmentLog {
    fn of(device: &Device, trusted: bool) -> Self {
        let events = &device.events;
        let mut pools = PoolFinder::of(device);
        let mut log = Self::default();
        for (row, &action) in events.action.iter().enumerate() {
            let (taken, expandable) = match action {
                Action::SegmentAlloc => (true, false),
                Action::SegmentFree => (false, false),
                Action::SegmentMap => (true, true),
                Action::SegmentUnmap => (false, true),
                _ => continue,
            };
            let (address, size) = (events.address[row], events.size[row]);
            if size == 0 || address.checked_add(size).is_none() {
                log.contradictions += 1;
                continue;
            }
            let range = Reserved {
                address,
                size,
                stream: events.stream[row],
                pool: pools.pool_of(device, row as u32, address),
                expandable,
                small: if expandable { pools.is_small(address, size) } else { size == SMALL_SEGMENT },
                stack: events.stack[row],
            };
            log.changes.push(SegmentChange { moment: row as Moment + 1, taken, range });
        }
        if trusted {
            for segment in &device.segments {
                if segment.size > 0 && segment.address.checked_add(segment.size).is_some() {
                    log.initial.add(Reserved {
                        address: segment.address,
                        size: segment.size,
                        stream: segment.stream,
                        pool: segment.pool,
                        expandable: segment.expandable,
                        small: segment.small,
                        stack: segment.stack,
                    });
                }
            }
            // Backwards, so that a range that was used again by another pool is not mistaken for its own past.
            for change in log.changes.iter_mut().rev() {
                let named = events.pool.binary_search_by_key(&(change.moment - 1), |&(row, _)| row).is_ok();
                if change.taken {
                    let holder = log.initial.holding(change.range.address).map(|holder| holder.pool);
                    if !named {
                        change.range.pool = holder.unwrap_or(DEFAULT_POOL);
                    }
                    log.contradictions += u64::from(!log.initial.remove(change.range));
                } else {
                    if !named {
                        change.range.pool = DEFAULT_POOL;
                    }
                    log.initial.add(change.range);
                }
            }
        } else {
            // Without a final state: what is given back without having been taken was there before.
            let mut known = Ranges::default();
            for change in &log.changes {
                if change.taken {
                    known.add(change.range);
                } else if !known.remove(change.range) {
                    log.initial.add(change.range);
                }
            }
        }
        log
    }

    fn at(&self, moment: Moment) -> Vec<Reserved> {
        let mut ranges = self.initial.clone();
        for change in self.changes.iter().take_while(|change| change.moment <= moment) {
            ranges.change(change.taken, change.range);
        }
        ranges.into_ranges()
    }
}

/// What is taken from the device, by address. Expandable ranges merge with their neighbours and can be cut.
#[derive(Clone, Debug, Default)]
pub struct Ranges(BTreeMap<u64, Reserved>);

impl Ranges {
    /// A range is taken, or given back. What is not there as a whole cannot be given back.
    pub fn change(&mut self, taken: bool, range: Reserved) {
        if taken {
            self.add(range);
        } else {
            self.remove(range);
        }
    }

    /// All of them, by address.
    pub fn into_ranges(self) -> Vec<Reserved> {
        self.0.into_values().collect()
    }

    fn add(&mut self, mut range: Reserved) {
        if range.expandable {
            if let Some((&start, before)) = self.0.range(..range.address).next_back()
                && before.expandable
                && before.end() == range.address
            {
                range = Reserved { address: start, size: before.size + range.size, ..*before };
            }
            if let Some(after) = self.0.get(&range.end())
                && after.expandable
            {
                let after = *after;
                self.0.remove(&after.address);
                range.size += after.size;
            }
        }
        self.0.insert(range.address, range);
    }

    /// Takes a range out; false if it was not there as a whole.
    fn remove(&mut self, range: Reserved) -> bool {
        let Some((&start, &holder)) = self.0.range(..=range.address).next_back() else { return false };
        if !range.expandable {
            return start == range.address && self.0.remove(&start).is_some();
        }
        if !holder.expandable || holder.end() < range.end() {
            return false;
        }
        self.0.remove(&start);
        if start < range.address {
            self.0.insert(start, Reserved { size: range.address - start, ..holder });
        }
        if range.end() < holder.end() {
            let rest = Reserved { address: range.end(), size: holder.end() - range.end(), ..holder };
            self.0.insert(rest.address, rest);
        }
        true
    }

    fn holding(&self, address: u64) -> Option<&Reserved> {
        let (_, range) = self.0.range(..=address).next_back()?;
        (address < range.end()).then_some(range)
    }
}

/// Which pool an address belongs to: events name it from about PyTorch 2.12 on, before that only the
/// final segments do.
struct PoolFinder<'a> {
    by_address: BTreeMap<u64, &'a crate::recording::Segment>,
    next: usize,
}

impl<'a> PoolFinder<'a> {
    fn of(device: &'a Device) -> Self {
        Self { by_address: device.segments.iter().map(|s| (s.address, s)).collect(), next: 0 }
    }

    fn segment(&self, address: u64) -> Option<&'a crate::recording::Segment> {
        let (_, segment) = self.by_address.range(..=address).next_back()?;
        (address - segment.address < segment.size).then_some(*segment)
    }

    fn pool_of(&mut self, device: &Device, row: u32, address: u64) -> PoolId {
        let named = &device.events.pool;
        while named.get(self.next).is_some_and(|&(r, _)| r < row) {
            self.next += 1;
        }
        match named.get(self.next) {
            Some(&(r, pool)) if r == row => pool,
            _ => self.segment(address).map_or(DEFAULT_POOL, |segment| segment.pool),
        }
    }

    fn is_small(&self, address: u64, size: u64) -> bool {
        // Pages of the small pool are 2 MiB, of the large pool 20 MiB.
        self.segment(address).map_or(!size.is_multiple_of(10 * SEGMENT_QUANTUM), |segment| segment.small)
    }
}

// --- blocks -----------------------------------------------------------------------------------------------

/// A block from before the first event, as far as it is known.
#[derive(Clone, Copy, Debug)]
struct Unborn {
    address: u64,
    requested: u64,
    /// The true size, if the block is alive at the end.
    size: Option<u64>,
    stream: u32,
    stack: StackId,
}

/// Stands for a block that is freed without having been allocated.
const UNKNOWN: u32 = u32::MAX;

struct Pass<'a, 's> {
    settings: &'s Settings,
    allocations: Allocations<'a>,
    /// Open blocks by address.
    open: HashMap<u64, u32>,
    /// Where open blocks of the large pool start: they bound each other.
    large: BTreeSet<u64>,
    reserved: Ranges,
    /// The segment that was taken last is an expandable one: so the program has set it, be it in the middle.
    expands: bool,
    now: Totals,
    start: Totals,
    allocated: Vec<u32>,
    peak: Peaks,
    unborn: Vec<Unborn>,
    uncertainty: u64,
    contradictions: u64,
    mismatches: u64,
}

impl<'a, 's> Pass<'a, 's> {
    fn run(
        device: &'a Device,
        settings: &'s Settings,
        segments: &SegmentLog,
        before: Vec<Unborn>,
        trusted: bool,
    ) -> Self {
        let events = &device.events;
        let count = events.len();
        let expected = before.len() + count / 3 + 1;
        let mut pass = Self {
            settings,
            allocations: Allocations {
                events,
                before: Vec::new(),
                size: Vec::with_capacity(expected),
                born: Vec::with_capacity(expected),
                freed: Vec::with_capacity(expected),
                deferred: HashMap::new(),
                stacks_at_end: HashMap::new(),
            },
            open: HashMap::new(),
            large: BTreeSet::new(),
            reserved: segments.initial.clone(),
            expands: settings.expandable_segments,
            now: Totals::default(),
            start: Totals::default(),
            allocated: Vec::with_capacity(count),
            peak: Peaks::default(),
            unborn: Vec::new(),
            uncertainty: 0,
            contradictions: segments.contradictions,
            mismatches: 0,
        };
        pass.now.reserved = pass.reserved.0.values().map(|range| range.size).sum();
        pass.peak.reserved.bytes = pass.now.reserved;
        pass.allocations.before = before;
        for index in 0..pass.allocations.before.len() {
            let block = pass.allocations.before[index];
            pass.place(&block);
        }
        pass.start = pass.now;
        let mut changes = segments.changes.iter().peekable();
        // A recorder can be set to leave `free_completed` out: then a free is whole when it is requested.
        let completes = events.action.contains(&Action::FreeCompleted);
        for row in 0..count {
            let moment = row as Moment + 1;
            let (address, size) = (events.address[row], events.size[row]);
            match events.action[row] {
                Action::Alloc => pass.alloc(moment, address, size),
                Action::FreeRequested if completes => {
                    pass.request_free(moment, address, size, events.stream[row])
                }
                Action::FreeRequested => pass.complete(moment, address, size, events.stream[row]),
                Action::FreeCompleted => pass.complete(moment, address, size, events.stream[row]),
                Action::SegmentAlloc | Action::SegmentMap | Action::SegmentFree | Action::SegmentUnmap => {
                    if let Some(change) = changes.next_if(|change| change.moment == moment) {
                        pass.change_reserved(change);
                    }
                }
                _ => {}
            }
            pass.allocated.push(u32::try_from(pass.now.allocated / MIN_BLOCK).unwrap_or(u32::MAX));
        }
        if trusted {
            pass.compare_with_end(device);
        }
        pass
    }

    /// Puts a block from before the first event where it is.
    fn place(&mut self, block: &Unborn) {
        let rounded = round_size(block.requested, &self.settings.roundup_power2_divisions);
        if block.size.is_none() && rounded > SMALL_LIMIT {
            self.uncertainty = self.uncertainty.saturating_add(UNSPLIT_REMAINDER);
        }
        self.add(0, block.address, block.requested, block.size.unwrap_or(rounded));
    }

    #[inline]
    fn add(&mut self, born: Moment, address: u64, requested: u64, size: u64) {
        let index = self.allocations.size.len() as u32;
        self.allocations.size.push(size);
        self.allocations.born.push(born);
        self.allocations.freed.push(NEVER);
        if let Some(old) = self.open.insert(address, index) {
            // The free of what was here is missing from the recording.
            self.contradictions += 1;
            self.close(born, old);
        }
        if size > SMALL_LIMIT {
            self.large.insert(address);
        }
        self.now.allocated = self.now.allocated.saturating_add(size);
        self.now.requested = self.now.requested.saturating_add(requested);
        if self.now.allocated > self.peak.allocated.bytes {
            self.peak.allocated = Peak { bytes: self.now.allocated, moment: born };
        }
        if self.now.requested > self.peak.requested.bytes {
            self.peak.requested = Peak { bytes: self.now.requested, moment: born };
        }
    }

    fn change_reserved(&mut self, change: &SegmentChange) {
        self.reserved.change(change.taken, change.range);
        if !change.taken {
            self.now.reserved = self.now.reserved.saturating_sub(change.range.size);
            return;
        }
        self.now.reserved = self.now.reserved.saturating_add(change.range.size);
        self.expands = change.range.expandable;
        if self.now.reserved > self.peak.reserved.bytes {
            self.peak.reserved = Peak { bytes: self.now.reserved, moment: change.moment };
        }
    }

    #[inline]
    fn alloc(&mut self, moment: Moment, address: u64, requested: u64) {
        let rounded = round_size(requested, &self.settings.roundup_power2_divisions);
        let size = if rounded <= SMALL_LIMIT { rounded } else { self.large_block(address, rounded) };
        self.add(moment, address, requested, size);
    }

    /// A block of the large pool keeps a remainder that is too small to be split off.
    fn large_block(&self, address: u64, rounded: u64) -> u64 {
        let Some(segment) = self.reserved.holding(address) else { return rounded };
        // Split down to the quantum. It is the setting that decides, of old segments too, and a program may change it.
        if segment.expandable || self.expands {
            return rounded;
        }
        let next = self.large.range(address.saturating_add(1)..).next().copied().unwrap_or(u64::MAX);
        let room = next.min(segment.end()) - address;
        let Some(remainder) = room.checked_sub(rounded) else { return rounded };
        let splits = remainder > UNSPLIT_REMAINDER
            && self.settings.max_split_size.is_none_or(|max_split_size| rounded < max_split_size);
        if splits { rounded } else { room }
    }

    /// Freed without having been allocated: it was there before the first event.
    fn was_there_before(&mut self, address: u64, requested: u64, stream: u32) {
        self.unborn.push(Unborn { address, requested, size: None, stream, stack: NO_STACK });
    }

    #[inline]
    fn request_free(&mut self, moment: Moment, address: u64, requested: u64, stream: u32) {
        match self.open.get(&address).copied() {
            Some(UNKNOWN) => self.contradictions += 1,
            Some(index) if self.allocations.freed[index as usize] == NEVER => {
                self.allocations.freed[index as usize] = moment;
                let size = self.allocations.size[index as usize];
                self.now.allocated = self.now.allocated.saturating_sub(size);
            }
            Some(_) => self.contradictions += 1,
            None => {
                self.was_there_before(address, requested, stream);
                self.open.insert(address, UNKNOWN);
            }
        }
    }

    #[inline]
    fn complete(&mut self, moment: Moment, address: u64, requested: u64, stream: u32) {
        match self.open.remove(&address) {
            Some(index) => {
                self.close(moment, index);
                if index != UNKNOWN && self.allocations.size[index as usize] > SMALL_LIMIT {
                    self.large.remove(&address);
                }
            }
            None => self.was_there_before(address, requested, stream),
        }
    }

    #[inline]
    fn close(&mut self, moment: Moment, index: u32) {
        if index == UNKNOWN {
            return;
        }
        let i = index as usize;
        match self.allocations.freed[i] {
            NEVER => {
                self.allocations.freed[i] = moment;
                self.now.allocated = self.now.allocated.saturating_sub(self.allocations.size[i]);
            }
            freed if freed + 1 != moment => {
                self.allocations.deferred.insert(index, moment);
            }
            _ => {}
        }
        self.now.requested = self.now.requested.saturating_sub(self.allocations.requested(i));
    }

    /// The final state is true: it has the blocks from before that are still there, and proves the rest.
    fn compare_with_end(&mut self, device: &Device) {
        let mut seen = 0usize;
        for segment in &device.segments {
            for block in &device.blocks[segment.blocks.clone()] {
                if block.state == BlockState::Free {
                    continue;
                }
                match self.open.get(&block.address).copied() {
                    Some(UNKNOWN) => seen += 1,
                    Some(index) => {
                        seen += 1;
                        let i = index as usize;
                        self.mismatches += u64::from(self.allocations.size[i] != block.size);
                        if block.stack != NO_STACK && self.allocations.stack(i) == NO_STACK {
                            self.allocations.stacks_at_end.insert(index, block.stack);
                        }
                        if block.state == BlockState::PendingFree && self.allocations.freed[i] == NEVER {
                            self.contradictions += 1;
                        }
                    }
                    None => self.unborn.push(Unborn {
                        address: block.address,
                        requested: block.requested,
                        size: Some(block.size),
                        stream: segment.stream,
                        stack: block.stack,
                    }),
                }
            }
        }
        self.contradictions += self.open.len().saturating_sub(seen) as u64;
    }

    fn finish(mut self, segments: SegmentLog) -> History<'a> {
        for &index in self.open.values() {
            if index != UNKNOWN && self.allocations.freed[index as usize] != NEVER {
                self.allocations.deferred.insert(index, NEVER);
            }
        }
        History {
            allocations: self.allocations,
            allocated: self.allocated,
            peak: self.peak,
            start: self.start,
            end: self.now,
            uncertainty: self.uncertainty,
            contradictions: self.contradictions,
            mismatches: self.mismatches,
            segments,
        }
    }
}
