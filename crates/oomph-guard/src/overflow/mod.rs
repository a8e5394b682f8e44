//! Memory beyond the budget: segments whose backing is on the device or on the host, granule by granule, at one address.
//!
//! A segment is a range of addresses. Each of its granules is backed by device memory, by host memory that the GPU reaches
//! over the bus, or, where nothing lives in it, by nothing. This module keeps the books; [`store`] moves backing,
//! [`policy`] decides what is moved and when, [`curve`] remembers how much lived at which moment of a step.
//!
//! What must hold at all times, and what the tests hold it to:
//! - a granule in which a block lives has backing, and its bytes are what was written;
//! - there are at least as many pieces of backing as granules, so that a block can always be served;
//! - backing is changed only while the GPU is idle, unless the granule had none.

pub mod curve;
pub mod policy;
pub mod store;
#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests;

use crate::GRANULE;
use curve::Curve;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, Instant};

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the device.
    Device,
    /// In host memory that the device reaches.
    Host,
}

/// What is needed of a driver: pieces of one granule, addresses, and copies. `false` and `None` are failures.
pub trait Driver {
    /// A piece of physical memory of one granule.
    fn create(&mut self, place: Place) -> Option<u64>;
    /// Gives a piece back.
    fn release(&mut self, piece: u64);
    /// Addresses with nothing behind them.
    fn reserve(&mut self, bytes: u64) -> Option<u64>;
    /// Gives addresses back.
    fn give_back(&mut self, address: u64, bytes: u64);
    /// Puts a piece behind a granule of addresses.
    fn map(&mut self, address: u64, piece: u64) -> bool;
    /// Takes away what is behind addresses; all granules of the range have something.
    fn unmap(&mut self, address: u64, bytes: u64) -> bool;
    /// Lets the device read and write a range whose granules all have something behind them.
    fn allow(&mut self, address: u64, bytes: u64) -> bool;
    /// Lets the CPU read and write host memory too, where that can be: the driver may copy with it.
    fn open_to_host(&mut self, _address: u64, _bytes: u64) {}
    /// Begins to copy.
    fn copy(&mut self, to: u64, from: u64, bytes: u64) -> bool;
    /// Waits for the copies.
    fn finish_copies(&mut self) -> bool;
    /// Waits until the GPU is idle.
    fn synchronize(&mut self) -> bool;
}

/// What is behind a granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Nothing: no block lives there.
    Nothing,
    /// A piece of device memory.
    Device(u64),
    /// A slot of host memory.
    Host(u32),
}

/// What lives in a block, as the recorder knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Kind {
    /// Nobody said.
    #[default]
    Unknown,
    /// Weights.
    Parameter,
    /// Gradients.
    Gradient,
    /// What the optimizer keeps, touched only in its step.
    State,
}

/// One granule of a segment.
#[derive(Clone, Copy, Debug)]
pub struct Granule {
    backing: Backing,
    /// How many live blocks overlap it.
    blocks: u32,
    /// Of which kind most of its bytes are, and how many.
    kind: Kind,
    kind_bytes: u32,
    /// The event at which a block last came or went.
    last: u64,
    uses: Uses,
}

/// When of a step a granule came to life: first and last, in this step and in the one before.
#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    step: u64,
    first: u64,
    last: u64,
    first_before: u64,
    last_before: u64,
}

impl Uses {
    fn note(&mut self, step: u64, at: u64) {
        if self.step != step {
            let fresh = if self.step + 1 == step { (self.first, self.last) } else { (u64::MAX, u64::MAX) };
            (self.first_before, self.last_before) = fresh;
            (self.step, self.first) = (step, at);
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
    granules: Vec<Granule>,
    tracking: Tracking,
}

/// A request that met the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Served {
    /// Where.
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
    /// Pieces of device memory with no granule.
    free_device: Vec<u64>,
    created_device: usize,
    /// Host slots: each piece has an address of its own for copies, in a window that is reserved once.
    host_pieces: Vec<u64>,
    free_host: BTreeSet<u32>,
    window: Option<u64>,
    /// Limits, in granules.
    device_limit: usize,
    host_limit: usize,
    /// The host's share with nothing lent.
    window_size: usize,
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
    totals: Totals,
    told: HashSet<(u64, u64)>,
}

impl<D: Driver> Overflow<D> {
    /// An overflow of so many bytes. `may_move` is whether backing moves; `batch` how many granules at once at least.
    pub fn new(driver: D, host_bytes: u64, may_move: bool, batch: usize) -> Self {
        Overflow {
            driver,
            segments: BTreeMap::new(),
            free_device: Vec::new(),
            created_device: 0,
            host_pieces: Vec::new(),
            free_host: BTreeSet::new(),
            window: None,
            device_limit: 0,
            host_limit: granules(host_bytes / GRANULE),
            window_size: granules(host_bytes / GRANULE),
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
            totals: Totals::default(),
            told: HashSet::new(),
        }
    }

    /// How many bytes of device memory it may hold. What it holds already stays.
    pub fn set_device_limit(&mut self, bytes: u64) {
        self.device_limit = granules(bytes / GRANULE);
    }

    /// Bytes of device memory that it holds.
    pub fn device_bytes(&self) -> u64 {
        self.created_device as u64 * GRANULE
    }

    /// Bytes of its segments that neither the device nor the host has promised yet.
    pub fn left(&self) -> u64 {
        (self.device_limit.max(self.created_device) + self.host_limit).saturating_sub(self.promised) as u64
            * GRANULE
    }

    /// The driver.
    pub fn driver(&self) -> &D {
        &self.driver
    }

    /// What happened so far.
    pub fn totals(&self) -> Totals {
        let mut totals = self.totals.clone();
        if let Some(since) = self.on_host_since {
            totals.on_host += since.elapsed();
        }
        totals
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
            return None;
        }
        let length = count as u64 * GRANULE;
        let address = self.driver.reserve(length)?;
        self.find_device(count);
        let mut segment = Segment { granules: Vec::with_capacity(count), tracking: Tracking::New };
        for index in 0..count {
            match self.take_piece(address + index as u64 * GRANULE) {
                Some(backing) => segment.granules.push(Granule {
                    backing,
                    blocks: 0,
                    kind: Kind::Unknown,
                    kind_bytes: 0,
                    last: self.event,
                    uses: Uses::default(),
                }),
                None => break,
            }
        }
        let whole = segment.granules.len() == count && self.driver.allow(address, length);
        self.promised += segment.granules.len();
        self.live += segment.granules.len();
        self.segments.insert(address, segment);
        if !whole {
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
        let Some(segment) = self.segments.remove(&address) else { return false };
        let count = segment.granules.len();
        let backed: Vec<u64> = (0_u64..)
            .zip(&segment.granules)
            .filter(|(_, granule)| granule.backing != Backing::Nothing)
            .map(|(index, _)| address + index * GRANULE)
            .collect();
        for (start, length) in runs(&backed) {
            self.driver.unmap(start, length);
        }
        for granule in &segment.granules {
            if segment.tracking != Tracking::Tracked || granule.blocks > 0 {
                self.live -= 1;
            }
            self.put_piece(granule.backing);
        }
        if count > 0 {
            self.driver.give_back(address, count as u64 * GRANULE);
        }
        self.promised -= count;
        self.release_surplus();
        true
    }

    /// A block came (`size` above 0) or went, by that thread.
    pub fn block(&mut self, address: u64, size: i64, thread: u64) {
        self.event += 1;
        let Some((&base, segment)) = self.segments.range_mut(..=address).next_back() else { return };
        let end = base + segment.granules.len() as u64 * GRANULE;
        let length = size.unsigned_abs();
        if address >= end || length == 0 {
            return;
        }
        let came = size > 0;
        if segment.tracking == Tracking::New {
            if came && self.fresh == Some((thread, base)) {
                segment.tracking = Tracking::Tracked;
                self.live -= segment.granules.len();
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
        for granule in segment.granules.iter_mut().take(last + 1).skip(first) {
            granule.last = event;
            if came {
                if granule.blocks == 0 {
                    self.live += 1;
                    granule.uses.note(self.steps, at);
                }
                granule.blocks += 1;
                missing |= granule.backing == Backing::Nothing;
                on_host |= matches!(granule.backing, Backing::Host(_));
            } else if granule.blocks > 0 {
                granule.blocks -= 1;
                if granule.blocks == 0 {
                    self.live -= 1;
                    granule.kind = Kind::Unknown;
                    granule.kind_bytes = 0;
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
            self.tell(address, length, false);
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
        for (index, granule) in (0_u64..).zip(segment.granules.iter_mut()) {
            let start = base + index * GRANULE;
            let covered = end.min(start + GRANULE).saturating_sub(address.max(start));
            let covered = u32::try_from(covered).unwrap_or(0);
            if covered == 0 {
                continue;
            }
            if granule.kind == kind {
                granule.kind_bytes = (granule.kind_bytes + covered).min(GRANULE as u32);
            } else if covered > granule.kind_bytes {
                granule.kind = kind;
                granule.kind_bytes = covered;
            }
        }
    }

    /// A stream began (or ended) to capture a graph.
    pub fn capture(&mut self, begins: bool) {
        self.capturing = if begins { self.capturing + 1 } else { self.capturing.saturating_sub(1) };
    }

    /// Gives up so many bytes of device memory, for somebody who cannot use the host. False if it cannot.
    pub fn make_room(&mut self, bytes: u64) -> bool {
        self.synchronized = false;
        let count = granules(bytes.div_ceil(GRANULE));
        for _ in 0..count {
            if self.created_device == 0 {
                return false;
            }
            if self.pieces() <= self.promised && !self.create_host() {
                return false;
            }
            if self.free_device.is_empty() {
                self.steal(1);
            }
            if self.free_device.is_empty() {
                self.evict(1);
            }
            let Some(piece) = self.free_device.pop() else { return false };
            self.driver.release(piece);
            self.created_device -= 1;
        }
        true
    }

    /// Lends so many bytes of the host's share to somebody who maps them himself. False if there are not so many.
    pub fn lend(&mut self, bytes: u64) -> bool {
        let count = granules(bytes.div_ceil(GRANULE));
        let unused = self.host_limit.saturating_sub(self.host_pieces.len());
        let fits = count <= unused;
        self.host_limit -= if fits { count } else { 0 };
        fits
    }

    /// Takes back what was lent.
    pub fn take_back(&mut self, bytes: u64) {
        self.host_limit += granules(bytes.div_ceil(GRANULE));
    }

    /// From now on everything may live in that segment at any time.
    fn fix(&mut self, base: u64) {
        let Some(segment) = self.segments.get_mut(&base) else { return };
        segment.tracking = Tracking::Fixed;
        let dead = segment.granules.iter().filter(|granule| granule.blocks == 0).count();
        let last = segment.granules.len().saturating_sub(1);
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

    fn tell(&mut self, address: u64, size: u64, moved: bool) {
        if self.totals.served.len() < SERVED && self.told.insert((address, size)) {
            let seconds = self.started.elapsed().as_secs_f64();
            self.totals.served.push(Served { address, size, seconds, moved });
        }
    }

    fn granule(&mut self, address: u64) -> Option<&mut Granule> {
        let (base, segment) = self.segments.range_mut(..=address).next_back()?;
        segment.granules.get_mut(granules((address - base) / GRANULE))
    }
}

/// A count of granules: there are never more than memory could hold.
fn granules(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// Neighbours among sorted addresses of granules, as start and length in bytes.
fn runs(addresses: &[u64]) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for address in addresses {
        match runs.last_mut() {
            Some((start, length)) if *start + *length == *address => *length += GRANULE,
            _ => runs.push((*address, GRANULE)),
        }
    }
    runs
}
