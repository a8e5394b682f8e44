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
use crate::recording::{Action, BlockState, DEFAULT_POOL, Device, PoolId, Recording, Settings};
use crate::rounding::{SEGMENT_QUANTUM, SMALL_LIMIT, SMALL_SEGMENT, UNSPLIT_REMAINDER, round_size};
use hashbrown::HashMap;
use std::collections::BTreeMap;

/// A state between two events: how many events came before it.
pub type Moment = u32;

/// The end of a block that was still alive at the end.
pub const NEVER: Moment = Moment::MAX;

/// The lifetimes of a device's blocks.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// All blocks that lived, those from before the recording first.
    pub allocations: Allocations,
    /// Allocated bytes after each event.
    pub allocated: Vec<u64>,
    /// The highest values, and when they were first reached.
    pub peak: Peaks,
    /// Values when the recording begins.
    pub start: Totals,
    /// Values when it ends.
    pub end: Totals,
    /// Blocks that were there before the first event.
    pub born_before: usize,
    /// How far `allocated` may be too low, because true sizes of blocks from before are not known.
    pub uncertainty: u64,
    /// Events that contradict each other or the final state.
    pub contradictions: u64,
    /// Blocks alive at the end whose worked-out size differs from the true one.
    pub mismatches: u64,
    segments: SegmentLog,
}

/// Lifetimes in columns.
#[derive(Clone, Debug, Default)]
pub struct Allocations {
    /// Where.
    pub address: Vec<u64>,
    /// What the program asked for.
    pub requested: Vec<u64>,
    /// What the block took.
    pub size: Vec<u64>,
    /// Index into [`Device::streams`].
    pub stream: Vec<u32>,
    /// Who allocated it.
    pub stack: Vec<StackId>,
    /// The first moment at which it is alive; 0 if it was there before.
    pub born: Vec<Moment>,
    /// The first moment at which the program has let go of it.
    pub freed: Vec<Moment>,
    /// The first moment at which it is back in its pool.
    pub completed: Vec<Moment>,
}

impl Allocations {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.address.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.address.is_empty()
    }

    /// Whether allocation `index` is alive at `moment`.
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
    /// Bytes.
    pub bytes: u64,
    /// When.
    pub moment: Moment,
}

/// The highest values.
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
    /// Where it starts.
    pub address: u64,
    /// Its bytes.
    pub size: u64,
    /// Index into [`Device::streams`].
    pub stream: u32,
    /// Its pool.
    pub pool: PoolId,
    /// Whether it grows and shrinks by pages.
    pub expandable: bool,
    /// Whether it serves requests of at most 1 MiB.
    pub small: bool,
    /// Who made it.
    pub stack: StackId,
}

impl Reserved {
    /// Where it ends.
    pub fn end(&self) -> u64 {
        self.address.saturating_add(self.size)
    }
}

impl History {
    /// Works out the lifetimes of a device of a recording.
    pub fn of(recording: &Recording, device: &Device) -> Self {
        // A file cut off in the middle lacks its newest events, so its final state belongs to a later
        // moment than its last event and says nothing about the first one.
        let trusted = device.has_final_state && !recording.source.truncated;
        let segments = SegmentLog::of(device, trusted);
        let first = Pass::run(device, &recording.settings, &segments, &[], trusted);
        if first.unborn.is_empty() {
            return first.finish(segments);
        }
        // Blocks from before lie between the others and bound them: once they are known, the
        // sizes are worked out again with them in place.
        Pass::run(device, &recording.settings, &segments, &first.unborn, trusted).finish(segments)
    }

    /// The allocations that are alive at `moment`.
    pub fn alive_at(&self, moment: Moment) -> Vec<u32> {
        let all = &self.allocations;
        (0..all.len() as u32)
            .filter(|&i| all.born[i as usize] <= moment && moment < all.freed[i as usize])
            .collect()
    }

    /// Allocations that the program has let go of, but that another stream still holds at `moment`.
    pub fn pending_at(&self, moment: Moment) -> Vec<u32> {
        let all = &self.allocations;
        (0..all.len() as u32)
            .filter(|&i| all.freed[i as usize] <= moment && moment < all.completed[i as usize])
            .collect()
    }

    /// What is taken from the device at `moment`, by address.
    pub fn reserved_at(&self, moment: Moment) -> Vec<Reserved> {
        self.segments.at(moment)
    }

    /// How often memory was taken from the device, and how often given back.
    pub fn segment_traffic(&self) -> (usize, usize) {
        let taken = self.segments.changes.iter().filter(|change| change.taken).count();
        (taken, self.segments.changes.len() - taken)
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
            for change in log.changes.iter().rev() {
                if change.taken {
                    log.contradictions += u64::from(!log.initial.remove(change.range));
                } else {
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
            ranges.apply(change);
        }
        ranges.0.into_values().collect()
    }
}

/// Ranges by address. Expandable ones merge with their neighbours and can be cut.
#[derive(Clone, Debug, Default)]
struct Ranges(BTreeMap<u64, Reserved>);

impl Ranges {
    fn apply(&mut self, change: &SegmentChange) {
        if change.taken {
            self.add(change.range);
        } else {
            self.remove(change.range);
        }
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
        self.segment(address).map_or(size % (10 * SEGMENT_QUANTUM) != 0, |segment| segment.small)
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

struct Pass<'a> {
    settings: &'a Settings,
    allocations: Allocations,
    /// Open blocks by address.
    open: HashMap<u64, u32>,
    /// Open blocks of the large pool by address, with their ends: they bound each other.
    large: BTreeMap<u64, u64>,
    reserved: Ranges,
    now: Totals,
    start: Totals,
    allocated: Vec<u64>,
    peak: Peaks,
    unborn: Vec<Unborn>,
    born_before: usize,
    uncertainty: u64,
    contradictions: u64,
    mismatches: u64,
}

impl<'a> Pass<'a> {
    fn run(
        device: &Device,
        settings: &'a Settings,
        segments: &SegmentLog,
        before: &[Unborn],
        trusted: bool,
    ) -> Self {
        let events = &device.events;
        let count = events.len();
        let mut pass = Self {
            settings,
            allocations: Allocations::with_capacity(before.len() + count / 3 + 1),
            open: HashMap::new(),
            large: BTreeMap::new(),
            reserved: segments.initial.clone(),
            now: Totals::default(),
            start: Totals::default(),
            allocated: Vec::with_capacity(count),
            peak: Peaks::default(),
            unborn: Vec::new(),
            born_before: before.len(),
            uncertainty: 0,
            contradictions: segments.contradictions,
            mismatches: 0,
        };
        pass.now.reserved = pass.reserved.0.values().map(|range| range.size).sum();
        for block in before {
            pass.place(block);
        }
        pass.start = pass.now;
        pass.peak = Peaks {
            requested: Peak { bytes: pass.now.requested, moment: 0 },
            allocated: Peak { bytes: pass.now.allocated, moment: 0 },
            reserved: Peak { bytes: pass.now.reserved, moment: 0 },
        };
        let mut changes = segments.changes.iter().peekable();
        for row in 0..count {
            let moment = row as Moment + 1;
            match events.action[row] {
                Action::Alloc => pass.alloc(
                    moment,
                    events.address[row],
                    events.size[row],
                    events.stream[row],
                    events.stack[row],
                ),
                Action::FreeRequested => {
                    pass.free(moment, events.address[row], events.size[row], events.stream[row], false);
                }
                Action::FreeCompleted => {
                    pass.free(moment, events.address[row], events.size[row], events.stream[row], true);
                }
                Action::SegmentAlloc | Action::SegmentMap | Action::SegmentFree | Action::SegmentUnmap => {
                    if let Some(change) = changes.next_if(|change| change.moment == moment) {
                        pass.reserved.apply(change);
                        if change.taken {
                            pass.now.reserved = pass.now.reserved.saturating_add(change.range.size);
                        } else {
                            pass.now.reserved = pass.now.reserved.saturating_sub(change.range.size);
                        }
                    }
                }
                _ => {}
            }
            pass.allocated.push(pass.now.allocated);
            for (peak, now) in [
                (&mut pass.peak.requested, pass.now.requested),
                (&mut pass.peak.allocated, pass.now.allocated),
                (&mut pass.peak.reserved, pass.now.reserved),
            ] {
                if now > peak.bytes {
                    *peak = Peak { bytes: now, moment };
                }
            }
        }
        if trusted {
            pass.compare_with_end(device);
        }
        pass
    }

    /// Puts a block from before the first event where it is.
    fn place(&mut self, block: &Unborn) {
        let rounded = round_size(block.requested, self.settings);
        let size = block.size.unwrap_or(rounded);
        if block.size.is_none() && rounded > SMALL_LIMIT {
            self.uncertainty = self.uncertainty.saturating_add(UNSPLIT_REMAINDER);
        }
        self.add(0, block.address, block.requested, size, block.stream, block.stack);
    }

    #[inline]
    fn add(
        &mut self,
        born: Moment,
        address: u64,
        requested: u64,
        size: u64,
        stream: u32,
        stack: StackId,
    ) -> u32 {
        let index = self.allocations.push(address, requested, size, stream, stack, born);
        if self.open.insert(address, index).is_some() {
            self.contradictions += 1;
        }
        if size > SMALL_LIMIT {
            self.large.insert(address, address.saturating_add(size));
        }
        self.now.allocated = self.now.allocated.saturating_add(size);
        self.now.requested = self.now.requested.saturating_add(requested);
        index
    }

    #[inline]
    fn alloc(&mut self, moment: Moment, address: u64, requested: u64, stream: u32, stack: StackId) {
        if let Some(&index) = self.open.get(&address) {
            // The free of what was here is missing from the recording.
            self.contradictions += 1;
            self.close(moment, address, index);
        }
        let rounded = round_size(requested, self.settings);
        let size = if rounded <= SMALL_LIMIT { rounded } else { self.large_block(address, rounded) };
        self.add(moment, address, requested, size, stream, stack);
    }

    /// A block of the large pool keeps a remainder that is too small to be split off.
    fn large_block(&self, address: u64, rounded: u64) -> u64 {
        let Some(segment) = self.reserved.holding(address) else { return rounded };
        if segment.expandable {
            return rounded; // split down to the quantum
        }
        let next = self.large.range(address + 1..).next().map_or(u64::MAX, |(&start, _)| start);
        let room = next.min(segment.end()) - address;
        let Some(remainder) = room.checked_sub(rounded) else { return rounded };
        let splits = remainder > UNSPLIT_REMAINDER
            && self.settings.max_split_size.is_none_or(|max_split_size| rounded < max_split_size);
        if splits { rounded } else { room }
    }

    #[inline]
    fn free(&mut self, moment: Moment, address: u64, requested: u64, stream: u32, completes: bool) {
        let index = match self.open.get(&address) {
            Some(&index) => index,
            None => {
                // Freed without having been allocated: it was there before the first event. This pass
                // counts it only; the next one starts with it.
                self.unborn.push(Unborn { address, requested, size: None, stream, stack: NO_STACK });
                let rounded = round_size(requested, self.settings);
                self.add(0, address, requested, rounded, stream, NO_STACK)
            }
        };
        if completes {
            self.close(moment, address, index);
        } else if self.allocations.freed[index as usize] == NEVER {
            self.allocations.freed[index as usize] = moment;
            self.now.allocated = self.now.allocated.saturating_sub(self.allocations.size[index as usize]);
        } else {
            self.contradictions += 1;
        }
    }

    fn close(&mut self, moment: Moment, address: u64, index: u32) {
        let i = index as usize;
        let size = self.allocations.size[i];
        if self.allocations.freed[i] == NEVER {
            self.allocations.freed[i] = moment;
            self.now.allocated = self.now.allocated.saturating_sub(size);
        }
        self.allocations.completed[i] = moment;
        self.now.requested = self.now.requested.saturating_sub(self.allocations.requested[i]);
        self.open.remove(&address);
        if size > SMALL_LIMIT {
            self.large.remove(&address);
        }
    }

    /// The final state is true: it has the blocks from before that are still there, and proves the rest.
    fn compare_with_end(&mut self, device: &Device) {
        let mut seen = 0usize;
        for segment in &device.segments {
            for block in &device.blocks[segment.blocks.clone()] {
                if block.state == BlockState::Free {
                    continue;
                }
                match self.open.get(&block.address) {
                    Some(&index) => {
                        seen += 1;
                        let i = index as usize;
                        self.mismatches += u64::from(self.allocations.size[i] != block.size);
                        if self.allocations.stack[i] == NO_STACK {
                            self.allocations.stack[i] = block.stack;
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

    fn finish(self, segments: SegmentLog) -> History {
        History {
            allocations: self.allocations,
            allocated: self.allocated,
            peak: self.peak,
            start: self.start,
            end: self.now,
            born_before: self.born_before,
            uncertainty: self.uncertainty,
            contradictions: self.contradictions,
            mismatches: self.mismatches,
            segments,
        }
    }
}

impl Allocations {
    fn with_capacity(count: usize) -> Self {
        Self {
            address: Vec::with_capacity(count),
            requested: Vec::with_capacity(count),
            size: Vec::with_capacity(count),
            stream: Vec::with_capacity(count),
            stack: Vec::with_capacity(count),
            born: Vec::with_capacity(count),
            freed: Vec::with_capacity(count),
            completed: Vec::with_capacity(count),
        }
    }

    #[inline]
    fn push(&mut self, address: u64, requested: u64, size: u64, stream: u32, stack: StackId, born: Moment) -> u32 {
        self.address.push(address);
        self.requested.push(requested);
        self.size.push(size);
        self.stream.push(stream);
        self.stack.push(stack);
        self.born.push(born);
        self.freed.push(NEVER);
        self.completed.push(NEVER);
        (self.address.len() - 1) as u32
    }
}
