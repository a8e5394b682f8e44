//! Decides what is on the device and what on the host.
//!
//! - **Dead granules** (of segments whose blocks are all known, with no block in them) need no backing: theirs is taken
//!   first, from those that by the step before will be used again last.
//! - **Optimizer state** is touched only in the optimizer's step. When that ends, as much of it goes to the host as the
//!   step before had too little device memory; when it begins, it comes back to where activations were.
//! - **What still does not fit** is the coldest of this step's blocks: those made early in the forward pass, which
//!   the backward pass needs last. They go out when memory runs short, in batches, and come back, latest first, as soon as
//!   what the step before says is still to come leaves room.
//! - Before the first step is over, nothing is known: what does not fit begins on the host and stays there.
//!
//! Moves wait for the GPU. They are left off while a graph is captured, and for good once the driver refused one.

use super::{Backing, Driver, Kind, Overflow, Tracking, granules, runs};
use crate::GRANULE;

impl<D: Driver> Overflow<D> {
    /// Whether backing of what lives may be moved now.
    fn can_move(&self) -> bool {
        self.may_move && self.capturing == 0
    }

    /// Whether what is cold is known, too.
    fn knows_what_is_cold(&self) -> bool {
        self.can_move() && self.steps > 0
    }

    /// Looks for so many free pieces of the device: makes them, takes those of the dead, moves the coldest out.
    pub(super) fn find_device(&mut self, count: usize) {
        while self.free_device.len() < count && self.create_device() {}
        if self.free_device.len() < count {
            let lacks = count - self.free_device.len();
            self.steal(lacks);
        }
        if self.free_device.len() < count && self.knows_what_is_cold() {
            let lacks = count - self.free_device.len();
            self.evict(lacks.max(self.batch));
        }
    }

    /// Takes device memory from dead granules.
    pub(super) fn steal(&mut self, count: usize) {
        if self.capturing > 0 {
            return;
        }
        let at = self.event - self.step_began;
        let mut dead: Vec<(u64, u64)> = Vec::new();
        for (base, segment) in &self.segments {
            for (index, granule) in (0_u64..).zip(&segment.granules) {
                if matches!(granule.backing, Backing::Device(_))
                    && !Self::lives(segment.tracking, granule.blocks)
                {
                    let next = granule.uses.next(self.steps, at, self.step_length);
                    dead.push((u64::MAX - next, base + index * GRANULE));
                }
            }
        }
        let chosen = lowest(dead, count.max(self.batch));
        self.detach(&chosen);
    }

    /// Moves the coldest that lives on the device to the host.
    pub(super) fn evict(&mut self, count: usize) {
        if self.capturing > 0 || !self.may_move {
            return;
        }
        let mut live: Vec<((u8, u64), u64)> = Vec::new();
        for (base, segment) in &self.segments {
            for (index, granule) in (0_u64..).zip(&segment.granules) {
                if matches!(granule.backing, Backing::Device(_))
                    && Self::lives(segment.tracking, granule.blocks)
                {
                    let class = match granule.kind {
                        Kind::State if !self.in_optimizer => 0,
                        Kind::State | Kind::Unknown if granule.last >= self.step_began => 1,
                        Kind::State | Kind::Unknown => 2,
                        Kind::Parameter | Kind::Gradient => 3,
                    };
                    live.push(((class, granule.last), base + index * GRANULE));
                }
            }
        }
        let chosen = lowest(live, count);
        self.move_out(&chosen);
    }

    /// Brings back what was moved out in this step, if what is still to come leaves room for a batch of it.
    pub(super) fn restore(&mut self) {
        if self.on_host == 0 || self.nothing_to_restore || self.in_optimizer || !self.knows_what_is_cold() {
            return;
        }
        let to_come = self.before.still_to_come(self.event - self.step_began).max(self.live) - self.live;
        let room = self.device_limit.saturating_sub(self.live - self.on_host.min(self.live) + to_come);
        if room < 2 * self.batch {
            return;
        }
        self.synchronized = false;
        let found = self.on_the_host(|kind| match kind {
            Kind::State => None,
            Kind::Parameter | Kind::Gradient => Some(0),
            Kind::Unknown => Some(1),
        });
        self.nothing_to_restore = found.is_empty();
        self.bring_in(found, room);
    }

    /// An optimizer's step begins.
    pub fn optimizer_begins(&mut self) {
        self.synchronized = false;
        self.in_optimizer = true;
        self.optimizer_peak_before = std::mem::replace(&mut self.optimizer_peak, self.live);
        if self.on_host == 0 || !self.can_move() {
            return;
        }
        self.drop_dead_slots();
        let to_come = self.optimizer_peak_before.max(self.live) - self.live;
        let room = self.device_limit.saturating_sub(self.live - self.on_host.min(self.live) + to_come);
        let found = self.on_the_host(|kind| match kind {
            Kind::State => Some(0),
            Kind::Parameter | Kind::Gradient => Some(1),
            Kind::Unknown => Some(2),
        });
        self.bring_in(found, room);
    }

    /// An optimizer's step has ended, and with it the step.
    pub fn optimizer_ended(&mut self) {
        self.synchronized = false;
        self.in_optimizer = false;
        self.steps += 1;
        self.before = std::mem::take(&mut self.now).closed();
        self.step_length = self.event - self.step_began;
        self.step_began = self.event;
        if !self.can_move() {
            return;
        }
        if self.on_host > 0 {
            self.drop_dead_slots();
        }
        // What is on the host already is part of what lived at the peak.
        let lacks = self.before.peak().saturating_sub(self.device_limit);
        let lacks = lacks.saturating_sub(self.on_host);
        let mut state: Vec<u64> = Vec::new();
        for (base, segment) in &self.segments {
            for (index, granule) in (0_u64..).zip(&segment.granules) {
                if granule.kind == Kind::State && matches!(granule.backing, Backing::Device(_)) {
                    state.push(base + index * GRANULE);
                }
            }
        }
        let chosen = longest_runs(&state, lacks);
        self.move_out(&chosen);
    }

    /// Host slots of dead granules are free: the next block there is served anew.
    fn drop_dead_slots(&mut self) {
        let mut dead = Vec::new();
        for (base, segment) in &self.segments {
            for (index, granule) in (0_u64..).zip(&segment.granules) {
                if matches!(granule.backing, Backing::Host(_))
                    && !Self::lives(segment.tracking, granule.blocks)
                {
                    dead.push(base + index * GRANULE);
                }
            }
        }
        self.detach(&dead);
    }

    /// Granules on the host in which something lives, by class and then the latest first.
    fn on_the_host(&self, class_of: impl Fn(Kind) -> Option<u8>) -> Vec<((u8, u64), u64)> {
        let mut found = Vec::new();
        for (base, segment) in &self.segments {
            for (index, granule) in (0_u64..).zip(&segment.granules) {
                if matches!(granule.backing, Backing::Host(_))
                    && Self::lives(segment.tracking, granule.blocks)
                    && let Some(class) = class_of(granule.kind)
                {
                    found.push(((class, u64::MAX - granule.last), base + index * GRANULE));
                }
            }
        }
        found
    }

    /// Moves the first of these to the device, as many as there is room for without moving others out.
    fn bring_in(&mut self, found: Vec<((u8, u64), u64)>, room: usize) {
        let count = found.len().min(room);
        if count == 0 {
            return;
        }
        while self.free_device.len() < count && self.create_device() {}
        if self.free_device.len() < count {
            let lacks = count - self.free_device.len();
            self.steal(lacks);
        }
        let chosen = lowest(found, count.min(self.free_device.len()));
        self.move_in(&chosen);
    }

    /// Whether blocks of that segment are known. For tests and the report.
    pub fn is_tracked(&self, base: u64) -> bool {
        self.segments.get(&base).is_some_and(|segment| segment.tracking == Tracking::Tracked)
    }
}

/// The addresses of the `count` lowest keys, sorted by address.
fn lowest<K: Ord>(mut keyed: Vec<(K, u64)>, count: usize) -> Vec<u64> {
    if count < keyed.len() && count > 0 {
        keyed.select_nth_unstable(count - 1);
    }
    keyed.truncate(count);
    let mut addresses: Vec<u64> = keyed.into_iter().map(|(_, address)| address).collect();
    addresses.sort_unstable();
    addresses
}

/// `count` of the granules, out of as few runs as possible: each run costs calls of the driver.
fn longest_runs(addresses: &[u64], count: usize) -> Vec<u64> {
    let mut runs = runs(addresses);
    runs.sort_by_key(|(start, length)| (std::cmp::Reverse(*length), *start));
    let mut chosen: Vec<u64> = runs
        .into_iter()
        .flat_map(|(start, length)| (0..length / GRANULE).map(move |index| start + index * GRANULE))
        .take(count)
        .collect();
    chosen.sort_unstable();
    debug_assert!(chosen.len() <= granules(count as u64));
    chosen
}
