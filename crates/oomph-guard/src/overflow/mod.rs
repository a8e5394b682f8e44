//! Memory beyond the budget: segments whose backing is on the device or on the host, part by part, at one address.
//!
//! A segment is a range of addresses, in parts of up to 32 MiB: changing what is behind a part costs calls of the driver,
//! the more the more parts there are. Each part is backed by one piece of device memory, by one of host memory that the GPU
//! reaches over the bus, or, where nothing lives in it, by nothing. This module keeps the books; [`pool`] has the free pieces,
//! [`store`] moves backing, [`policy`] decides what is moved and when, [`trial`] which of several ways to do so is the
//! fastest, [`curve`] remembers how much lived at which moment of a step. All sizes are in granules unless they are called bytes.
//!
//! What must hold at all times, and what the tests hold it to:
//! - a part in which a block lives has backing, and its bytes are what was written;
//! - there is at least as much backing as there are segments, so that a block can always be served;
//! - backing is changed only while the GPU is idle, unless the part had none.

pub mod curve;
pub mod policy;
pub mod pool;
#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]
mod simulation;
pub mod store;
#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::expect_used)]
mod tests;
pub mod trial;

use crate::GRANULE;
use curve::Curve;
use pool::{Pool, power_within};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};
use trial::Trial;

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Device,
    /// In host memory that the device reaches.
    Host,
}

impl Place {
    fn other(self) -> Place {
        match self {
            Place::Device => Place::Host,
            Place::Host => Place::Device,
        }
    }
}

/// What is needed of a driver: pieces of physical memory, addresses, and copies. `false` and `None` are failures.
pub trait Driver {
    /// A piece of physical memory.
    fn create(&mut self, place: Place, bytes: u64) -> Option<u64>;
    fn release(&mut self, piece: u64);
    /// Addresses with nothing behind them.
    fn reserve(&mut self, bytes: u64) -> Option<u64>;
    /// Gives addresses back.
    fn give_back(&mut self, address: u64, bytes: u64);
    /// Puts a whole piece behind addresses.
    fn map(&mut self, address: u64, piece: u64, bytes: u64) -> bool;
    /// Takes away the whole piece that is behind addresses.
    fn unmap(&mut self, address: u64, bytes: u64) -> bool;
    /// Lets the device read and write a range that has one piece behind it.
    fn allow(&mut self, address: u64, bytes: u64) -> bool;
    /// Lets the CPU read and write host memory too, where that can be: the driver may copy with it.
    fn open_to_host(&mut self, _address: u64, _bytes: u64) {}
    /// Begins to copy.
    fn copy(&mut self, to: u64, from: u64, bytes: u64) -> bool;
    fn finish_copies(&mut self) -> bool;
    /// Waits until the GPU is idle.
    fn synchronize(&mut self) -> bool;
    /// The time, from any beginning.
    fn now(&self) -> Duration;
}

/// What is behind a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Nothing: no block lives there.
    Nothing,
    /// A piece of device memory.
    Device(u64),
    /// A piece of host memory.
    Host(u64),
}

impl Backing {
    fn of(place: Place, piece: u64) -> Backing {
        match place {
            Place::Device => Backing::Device(piece),
            Place::Host => Backing::Host(piece),
        }
    }

    /// The piece, if it is of that place.
    fn at(self, place: Place) -> Option<u64> {
        match (self, place) {
            (Backing::Device(piece), Place::Device) | (Backing::Host(piece), Place::Host) => Some(piece),
            _ => None,
        }
    }
}

/// What lives in a block, as the recorder knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Kind {
    #[default]
    Unknown,
    Parameter,
    Gradient,
    /// What the optimizer keeps, touched only in its step.
    State,
}

/// One part of a segment: as much as one piece of memory is behind.
#[derive(Clone, Debug)]
struct Part {
    /// Where in the segment it begins, and how large it is.
    offset: usize,
    size: usize,
    backing: Backing,
    /// How many live blocks overlap it.
    blocks: u32,
    /// Of which kind most of its bytes are, and how many.
    kind: Kind,
    kind_bytes: u64,
    /// The event at which a block last came or went.
    last: u64,
    uses: Uses,
}

impl Part {
    fn overlaps(&self, first: usize, last: usize) -> bool {
        self.offset <= last && first < self.offset + self.size
    }
}

/// When of a step a part came to life: first and last, in this step and in the one before.
#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    step: u64,
    first: u64,
    last: u64,
    first_before: u64,
    last_before: u64,
    /// Bytes of blocks that came, in that step.
    handed: u64,
}

impl Uses {
    /// A block of so many bytes came; `anew` if nothing lived there.
    fn came(&mut self, step: u64, at: u64, bytes: u64, anew: bool) {
        if anew {
            self.note(step, at);
        } else if self.step != step {
            self.note(step, u64::MAX);
        }
        self.handed = self.handed.saturating_add(bytes);
    }

    /// Bytes of blocks that came in that step; nothing if it was not used then.
    fn handed_in(&self, step: u64) -> Option<u64> {
        (self.step == step && self.handed > 0).then_some(self.handed)
    }

    fn note(&mut self, step: u64, at: u64) {
        if self.step != step {
            let fresh = if self.step + 1 == step { (self.first, self.last) } else { (u64::MAX, u64::MAX) };
            (self.first_before, self.last_before) = fresh;
            (self.step, self.first, self.handed) = (step, at, 0);
        }
        self.last = at;
    }

    /// When it is expected to come to life next, in events from the beginning of this step; a step has `length` of them.
    /// What was not used in the step before comes last.
    fn next(&self, step: u64, at: u64, length: u64) -> u64 {
        let (first, last) = match step - self.step {
            0 => (self.first_before, self.last_before),
            1 => (self.first, self.last),
            _ => return u64::MAX,
        };
        if at < first {
            first
        } else if at < last {
            at
        } else {
            let again = if self.step == step { self.first } else { first };
            length.saturating_add(again)
        }
    }
}

/// Whether blocks are known to come and go in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tracking {
    /// New: the allocator that made it says its first block next, if it is one that is watched.
    New,
    /// Every block is known.
    Tracked,
    /// Not watched: everything may live at any time.
    Fixed,
}

/// A range of addresses.
#[derive(Debug)]
struct Segment {
    size: usize,
    /// In order, without gaps.
    parts: Vec<Part>,
    tracking: Tracking,
}

impl Segment {
    /// The part that has the byte at an offset.
    fn index_of(&self, offset: u64) -> Option<usize> {
        let at = granules(offset / GRANULE);
        self.parts.partition_point(|part| part.offset <= at).checked_sub(1)
    }

    /// The parts that have granules from `first` to `last`.
    fn within(&self, first: usize, last: usize) -> impl Iterator<Item = &Part> {
        let begin = self.parts.partition_point(|part| part.offset + part.size <= first);
        self.parts.iter().skip(begin).take_while(move |part| part.offset <= last)
    }

    fn within_mut(&mut self, first: usize, last: usize) -> impl Iterator<Item = &mut Part> {
        let begin = self.parts.partition_point(|part| part.offset + part.size <= first);
        self.parts.iter_mut().skip(begin).take_while(move |part| part.offset <= last)
    }
}

/// A request that met the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Served {
    pub address: u64,
    /// How many bytes.
    pub size: u64,
    /// Seconds since the process began to use memory.
    pub seconds: f64,
    /// Whether it was moved there after having been on the device.
    pub moved: bool,
}

/// How many of those are kept; a program has fewer lines that matter.
const SERVED: usize = 1000;

/// What happened, for the report.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// The most granules that were on the host.
    pub host_peak: usize,
    /// Granules moved from device to host.
    pub moved_out: u64,
    /// Granules moved from host to device.
    pub moved_in: u64,
    /// How often something was moved.
    pub moves: u64,
    /// How often the driver refused a move.
    pub failures: u64,
    /// Time spent on moves, waiting for the GPU included.
    pub moving: Duration,
    /// Time with anything on the host.
    pub on_host: Duration,
    /// Requests that met the host.
    pub served: Vec<Served>,
}

/// The overflow of one device.
pub struct Overflow<D> {
    driver: D,
    segments: BTreeMap<u64, Segment>,
    /// Memory of either place.
    device: Pool,
    host: Pool,
    /// The address that each piece of the host has of its own, for copies.
    windows: HashMap<u64, u64>,
    /// How large a part is at most.
    largest_part: usize,
    /// All granules of all segments.
    promised: usize,
    /// Granules in which something lives or may live.
    live: usize,
    /// Granules that are backed by the host.
    on_host: usize,
    on_host_since: Option<Instant>,
    started: Instant,
    /// A segment whose first block must come next, from that thread.
    fresh: Option<(u64, u64)>,
    /// Events so far, and at which of them this step began.
    event: u64,
    step_began: u64,
    step_length: u64,
    /// What lived when, in the step before and in this one.
    before: Curve,
    now: Curve,
    in_optimizer: bool,
    optimizer_peak: usize,
    optimizer_peak_before: usize,
    steps: u64,
    capturing: u32,
    may_move: bool,
    batch: usize,
    synchronized: bool,
    /// A search found nothing on the host that should come back, and nothing went there since.
    nothing_to_restore: bool,
    trial: Trial,
    totals: Totals,
    noted: HashSet<(u64, u64)>,
}

impl<D: Driver> Overflow<D> {
    /// An overflow of so many bytes. `may_move` is whether backing moves; `batch` how many granules at once at least;
    /// `largest_part` how many have one piece behind them at most.
    pub fn new(driver: D, host_bytes: u64, may_move: bool, batch: usize, largest_part: usize) -> Self {
        Overflow {
            driver,
            segments: BTreeMap::new(),
            device: Pool::default(),
            host: Pool::up_to(granules(host_bytes / GRANULE)),
            windows: HashMap::new(),
            largest_part: power_within(largest_part),
            promised: 0,
            live: 0,
            on_host: 0,
            on_host_since: None,
            started: Instant::now(),
            fresh: None,
            event: 0,
            step_began: 0,
            step_length: 0,
            before: Curve::default(),
            now: Curve::default(),
            in_optimizer: false,
            optimizer_peak: 0,
            optimizer_peak_before: 0,
            steps: 0,
            capturing: 0,
            may_move,
            batch,
            synchronized: false,
            nothing_to_restore: false,
            trial: Trial::default(),
            totals: Totals::default(),
            noted: HashSet::new(),
        }
    }

    /// How many bytes of device memory it may hold. What it holds already stays.
    pub fn set_device_limit(&mut self, bytes: u64) {
        self.device.limit = granules(bytes / GRANULE);
    }

    /// Bytes of device memory that it holds.
    pub fn device_bytes(&self) -> u64 {
        self.device.created as u64 * GRANULE
    }

    /// Bytes of its segments that neither the device nor the host has promised yet.
    pub fn left(&self) -> u64 {
        (self.device.limit.max(self.device.created) + self.host.limit).saturating_sub(self.promised) as u64
            * GRANULE
    }

    pub fn driver(&self) -> &D {
        &self.driver
    }

    pub fn totals(&self) -> Totals {
        let mut totals = self.totals.clone();
        if let Some(since) = self.on_host_since {
            totals.on_host += since.elapsed();
        }
        totals
    }

    /// Which way to use the host is in use, and what was measured of each.
    pub fn trial(&self) -> &Trial {
        &self.trial
    }

    /// Granules that are on the host now.
    pub fn on_host(&self) -> usize {
        self.on_host
    }

    /// Takes a segment; nothing if device and host have no more. `thread` is who asks.
    pub fn allocate(&mut self, bytes: u64, thread: u64) -> Option<u64> {
        self.synchronized = false;
        let count = granules(bytes.checked_next_multiple_of(GRANULE)? / GRANULE).max(1);
        if !self.ensure_pieces(self.promised.checked_add(count)?) {
            self.release_surplus();
            return None;
        }
        let length = count as u64 * GRANULE;
        let address = self.driver.reserve(length)?;
        self.find_device(count);
        let mut segment = Segment { size: count, parts: Vec::new(), tracking: Tracking::New };
        let mut offset = 0;
        let mut largest = self.largest_part;
        while offset < count && largest > 0 {
            let mut size = power_within(largest.min(count - offset));
            // What is left of the device is used before the host is, be it in small parts.
            let left = self.device.available();
            if (1..size).contains(&left) {
                size = power_within(left);
            }
            match self.take_piece(address + offset as u64 * GRANULE, size) {
                Some(backing) => {
                    let uses = Uses::default();
                    segment.parts.push(Part {
                        offset,
                        size,
                        backing,
                        blocks: 0,
                        kind: Kind::Unknown,
                        kind_bytes: 0,
                        last: self.event,
                        uses,
                    });
                    offset += size;
                }
                None => largest = size / 2,
            }
        }
        self.promised += count;
        self.live += offset;
        self.segments.insert(address, segment);
        if offset < count {
            self.free(address);
            return None;
        }
        self.fresh = Some((thread, address));
        self.note_live();
        Some(address)
    }

    /// Gives a segment back; false if it is not one of these.
    pub fn free(&mut self, address: u64) -> bool {
        self.synchronized = false;
        if !self.segments.contains_key(&address) {
            return false;
        }
        // As `cuMemFree` does: what still runs may use it.
        self.driver.synchronize();
        let Some(mut segment) = self.segments.remove(&address) else { return false };
        let mut whole = true;
        for part in &mut segment.parts {
            if Self::lives(segment.tracking, part.blocks) {
                self.live -= part.size;
            }
            let start = address + part.offset as u64 * GRANULE;
            if part.backing == Backing::Nothing || self.driver.unmap(start, part.size as u64 * GRANULE) {
                self.put_piece(std::mem::replace(&mut part.backing, Backing::Nothing), part.size);
            } else {
                whole = false;
            }
        }
        if !whole {
            // What the driver does not release is never used for anything else.
            self.totals.failures += 1;
            segment.tracking = Tracking::Fixed;
            self.live += segment.parts.iter().map(|part| part.size).sum::<usize>();
            self.segments.insert(address, segment);
            return true;
        }
        self.driver.give_back(address, segment.size as u64 * GRANULE);
        self.promised -= segment.size;
        self.release_surplus();
        true
    }

    /// A block came (`size` above 0) or went, by that thread.
    pub fn block(&mut self, address: u64, size: i64, thread: u64) {
        self.event += 1;
        let Some((&base, segment)) = self.segments.range_mut(..=address).next_back() else { return };
        let end = base + segment.size as u64 * GRANULE;
        let length = size.unsigned_abs();
        if address >= end || length == 0 {
            return;
        }
        let came = size > 0;
        if segment.tracking == Tracking::New {
            if came && self.fresh == Some((thread, base)) {
                segment.tracking = Tracking::Tracked;
                self.live -= segment.size;
            } else {
                segment.tracking = Tracking::Fixed;
            }
        }
        self.fresh = None;
        if segment.tracking == Tracking::Fixed {
            return;
        }
        // A graph that was captured uses memory whose blocks are free; what does not add up is left alone from here on.
        if self.capturing > 0 || address + length > end {
            self.fix(base);
            return;
        }
        let first = granules((address - base) / GRANULE);
        let last = granules((address + length - 1 - base) / GRANULE);
        let event = self.event;
        let at = event - self.step_began;
        let mut missing = false;
        let mut on_host = false;
        let mut wrong = false;
        for part in segment.within_mut(first, last) {
            part.last = event;
            if came {
                part.uses.came(self.steps, at, length.min(part.size as u64 * GRANULE), part.blocks == 0);
                if part.blocks == 0 {
                    self.live += part.size;
                }
                part.blocks += 1;
                missing |= part.backing == Backing::Nothing;
                on_host |= matches!(part.backing, Backing::Host(_));
            } else if part.blocks > 0 {
                part.blocks -= 1;
                if part.blocks == 0 {
                    self.live -= part.size;
                    part.kind = Kind::Unknown;
                    part.kind_bytes = 0;
                }
            } else {
                wrong = true;
            }
        }
        if wrong {
            self.fix(base);
            return;
        }
        if missing {
            on_host |= self.attach(base, first, last);
        }
        if on_host {
            self.note_served(address, length, false);
        }
        self.note_live();
        if !came {
            self.restore();
        }
    }

    /// What lives in a range.
    pub fn kind(&mut self, address: u64, size: u64, kind: Kind) {
        let Some((&base, segment)) = self.segments.range_mut(..=address).next_back() else { return };
        let end = address.saturating_add(size);
        for part in &mut segment.parts {
            let start = base + part.offset as u64 * GRANULE;
            let bytes = part.size as u64 * GRANULE;
            let covered = end.min(start + bytes).saturating_sub(address.max(start));
            if covered == 0 {
                continue;
            }
            if part.kind == kind {
                part.kind_bytes = (part.kind_bytes + covered).min(bytes);
            } else if covered > part.kind_bytes {
                part.kind = kind;
                part.kind_bytes = covered;
            }
        }
    }

    /// A stream began (or ended) to capture a graph.
    pub fn capture(&mut self, begins: bool) {
        self.capturing = if begins { self.capturing + 1 } else { self.capturing.saturating_sub(1) };
    }

    /// Gives up so many bytes of device memory, for a caller that cannot use the host. False if it cannot.
    pub fn make_room(&mut self, bytes: u64) -> bool {
        self.synchronized = false;
        let Some(target) = self.device.created.checked_sub(granules(bytes.div_ceil(GRANULE))) else {
            return false;
        };
        while self.device.created > target {
            let excess = self.device.created - target;
            self.ensure_spare(excess);
            if self.device.unused() < excess {
                self.steal(excess - self.device.unused());
            }
            if self.device.unused() < excess {
                self.evict(excess - self.device.unused());
            }
            let spare = (self.pieces() - self.promised).min(excess);
            if !self.give_up_device(spare) {
                return false;
            }
        }
        true
    }

    /// Lends so many bytes of the host's share to a caller that maps them itself. False if there are not so many.
    pub fn lend(&mut self, bytes: u64) -> bool {
        let count = granules(bytes.div_ceil(GRANULE));
        let fits = count <= self.host.to_make();
        self.host.limit -= if fits { count } else { 0 };
        fits
    }

    /// Takes back what was lent.
    pub fn take_back(&mut self, bytes: u64) {
        self.host.limit += granules(bytes.div_ceil(GRANULE));
    }

    /// From now on everything may live in that segment at any time.
    fn fix(&mut self, base: u64) {
        let Some(segment) = self.segments.get_mut(&base) else { return };
        segment.tracking = Tracking::Fixed;
        let dead: usize = segment.parts.iter().filter(|part| part.blocks == 0).map(|part| part.size).sum();
        let last = segment.size.saturating_sub(1);
        self.live += dead;
        self.attach(base, 0, last);
        self.note_live();
    }

    fn note_live(&mut self) {
        if self.in_optimizer {
            self.optimizer_peak = self.optimizer_peak.max(self.live);
        } else {
            self.now.note(self.event - self.step_began, self.live);
        }
    }

    fn note_served(&mut self, address: u64, size: u64, moved: bool) {
        if self.totals.served.len() < SERVED && self.noted.insert((address, size)) {
            let seconds = self.started.elapsed().as_secs_f64();
            self.totals.served.push(Served { address, size, seconds, moved });
        }
    }

    fn part(&mut self, address: u64) -> Option<&mut Part> {
        let (base, segment) = self.segments.range_mut(..=address).next_back()?;
        let index = segment.index_of(address - base)?;
        segment.parts.get_mut(index)
    }
}

/// A count of granules: there are never more than memory could hold.
fn granules(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
