//! Decides what is on the device and what on the host.
//!
//! - **Dead parts** (of segments whose blocks are all known, with no block in them) need no backing: theirs is taken
//!   first, from those that by the step before will be used again last.
//! - **Optimizer state** is touched only in the optimizer's step. When that ends, as much of it goes to the host as the
//!   step before had too little device memory; when it begins, it comes back to where activations were.
//! - **What still does not fit** is the coldest of this step's blocks: those made early in the forward pass, which
//!   the backward pass needs last. They go out when memory runs short, in batches, and come back, latest first, as soon as
//!   what the step before says is still to come leaves room.
//! - Or some of that is left off ([`super::trial`] measures what is best): optimizer state stays on the host; or
//!   parts that see the fewest blocks are on the host for good, and nothing else moves.
//! - Before the first step is over, nothing is known: what does not fit begins on the host and stays there.
//!
//! Moves wait for the GPU. They are left off while a graph is captured, and for good once the driver refused one.

use super::trial::Pattern;
use super::{Backing, Driver, Kind, Overflow, Part, Place};
use crate::GRANULE;
use std::cmp::Reverse;
use std::collections::HashSet;

/// A part that may be chosen: what it is sorted by, its address and its size.
type Choice<K> = (K, u64, usize);

impl<D: Driver> Overflow<D> {
    /// Whether backing of what lives may be moved now.
    fn can_move(&self) -> bool {
        self.may_move && self.capturing == 0
    }

    /// Whether what is cold is known, too.
    fn knows_what_is_cold(&self) -> bool {
        self.can_move() && self.steps > 0
    }

    /// Parts for which there is a key, with whether something lives in them.
    fn choices<K>(&self, key: impl Fn(&Part, bool) -> Option<K>) -> Vec<Choice<K>> {
        let mut found = Vec::new();
        for (base, segment) in &self.segments {
            for part in &segment.parts {
                if let Some(key) = key(part, Self::lives(segment.tracking, part.blocks)) {
                    found.push((key, base + part.offset as u64 * GRANULE, part.size));
                }
            }
        }
        found
    }

    /// Whether parts are on the host for good.
    fn stays(&self) -> bool {
        !self.trial.policy().rest_moves
    }

    /// Looks for so much free device memory: makes it, takes that of the dead, moves the coldest out.
    pub(super) fn find_device(&mut self, wanted: usize) {
        if self.stays() {
            return;
        }
        let lacks = |overflow: &Self| wanted.saturating_sub(overflow.device.available());
        if lacks(self) > 0 {
            self.steal(lacks(self));
        }
        if lacks(self) > 0 && self.knows_what_is_cold() {
            self.evict(lacks(self).max(self.batch));
        }
    }

    /// Takes device memory from dead parts.
    pub(super) fn steal(&mut self, wanted: usize) {
        if self.capturing > 0 {
            return;
        }
        let at = self.event - self.step_began;
        let dead = self.choices(|part, lives| {
            let next = part.uses.next(self.steps, at, self.step_length);
            (part.backing.at(Place::Device).is_some() && !lives).then_some(Reverse(next))
        });
        self.detach(&at_least(dead, wanted.max(self.batch)));
    }

    /// Moves the coldest that lives on the device to the host.
    pub(super) fn evict(&mut self, wanted: usize) {
        if !self.can_move() {
            return;
        }
        let live = self.choices(|part, lives| {
            let class = match part.kind {
                Kind::State if !self.in_optimizer => 0,
                Kind::State | Kind::Unknown if part.last >= self.step_began => 1,
                Kind::State | Kind::Unknown => 2,
                Kind::Parameter | Kind::Gradient => 3,
            };
            (part.backing.at(Place::Device).is_some() && lives).then_some((class, part.last))
        });
        self.move_out(&at_least(live, wanted));
    }

    /// Brings back what was moved out in this step, if what is still to come leaves room for a batch of it.
    pub(super) fn restore(&mut self) {
        let nothing = self.on_host == 0 || self.nothing_to_restore;
        if nothing || self.in_optimizer || self.stays() || !self.knows_what_is_cold() {
            return;
        }
        let to_come = self.before.still_to_come(self.event - self.step_began).max(self.live) - self.live;
        let room = self.device.limit.saturating_sub(self.live - self.on_host.min(self.live) + to_come);
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

    pub fn optimizer_begins(&mut self) {
        self.synchronized = false;
        self.in_optimizer = true;
        self.optimizer_peak_before = std::mem::replace(&mut self.optimizer_peak, self.live);
        if self.on_host == 0 || !self.can_move() {
            return;
        }
        let (state_moves, stays) = (self.trial.policy().state_moves, self.stays());
        if !stays {
            self.drop_dead_slots();
        }
        let to_come = self.optimizer_peak_before.max(self.live) - self.live;
        let room = self.device.limit.saturating_sub(self.live - self.on_host.min(self.live) + to_come);
        let found = self.on_the_host(|kind| match kind {
            Kind::State => state_moves.then_some(0),
            _ if stays => None,
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
        self.try_ways();
        if self.on_host > 0 && !self.stays() {
            self.drop_dead_slots();
        }
        // What is on the host already is part of what lived at the peak; what stays has its place whether it lives or not.
        let needs = if self.stays() { self.promised } else { self.before.peak() };
        let lacks = needs.saturating_sub(self.device.limit).saturating_sub(self.on_host);
        let state = self.choices(|part, _| {
            (part.kind == Kind::State && part.backing.at(Place::Device).is_some())
                .then_some(Reverse(part.size))
        });
        self.move_out(&at_least(state, lacks));
    }

    /// Goes on with finding out how the host is best used, if the program needs it.
    fn try_ways(&mut self) {
        let peak = self.before.peak();
        let has_state =
            self.segments.values().any(|segment| segment.parts.iter().any(|part| part.kind == Kind::State));
        let overflows = peak > self.device.limit;
        let pattern = Pattern { events: self.step_length, peak, overflows, has_state };
        let before = self.trial.policy();
        let driver = &mut self.driver;
        self.trial.step_ended(pattern, || {
            driver.synchronize();
            driver.now()
        });
        if self.trial.policy() != before && self.stays() {
            self.place();
        }
    }

    /// Gives every part its place: optimizer state is on the host first, then what saw the fewest bytes in the step before.
    pub(super) fn place(&mut self) {
        let all = self.choices(|part, _| {
            let handed = part.uses.handed_in(self.steps - 1);
            Some(match (part.kind, handed) {
                (Kind::State, _) => (0, 0),
                (Kind::Unknown, Some(bytes)) => (1, bytes / part.size as u64),
                (Kind::Unknown, None) => (2, 0),
                (Kind::Parameter | Kind::Gradient, _) => (3, 0),
            })
        });
        let wanted = self.promised.saturating_sub(self.device.limit);
        let to_host: HashSet<u64> = at_least(all, wanted).into_iter().collect();
        let dead = self.addresses(|part, lives| part.backing != Backing::Nothing && !lives);
        self.detach(&dead);
        let mut out = self.addresses(|part, lives| part.backing.at(Place::Device).is_some() && lives);
        out.retain(|address| to_host.contains(address));
        self.move_out(&out);
        let mut back = self.addresses(|part, lives| part.backing.at(Place::Host).is_some() && lives);
        back.retain(|address| !to_host.contains(address));
        self.move_in(&back);
        let unplaced = self.choices(|part, _| (part.backing == Backing::Nothing).then_some(()));
        for ((), address, size) in unplaced {
            let place = if to_host.contains(&address) { Place::Host } else { Place::Device };
            if let Some(backing) = self.take_piece_of(place, address, size) {
                self.set_backing(address, backing);
            }
        }
    }

    /// Addresses of the parts that are so.
    fn addresses(&self, is_so: impl Fn(&Part, bool) -> bool) -> Vec<u64> {
        let found = self.choices(|part, lives| is_so(part, lives).then_some(()));
        found.into_iter().map(|((), address, _)| address).collect()
    }

    /// Host memory of dead parts is free: the next block there is served anew.
    fn drop_dead_slots(&mut self) {
        let dead = self.addresses(|part, lives| part.backing.at(Place::Host).is_some() && !lives);
        self.detach(&dead);
    }

    /// Parts on the host in which something lives, by class and then the latest first.
    fn on_the_host(&self, class_of: impl Fn(Kind) -> Option<u8>) -> Vec<Choice<(u8, Reverse<u64>)>> {
        self.choices(|part, lives| {
            let class = class_of(part.kind).filter(|_| part.backing.at(Place::Host).is_some() && lives);
            class.map(|class| (class, Reverse(part.last)))
        })
    }

    /// Moves the first of these to the device, as many as there is room for without moving others out.
    fn bring_in<K: Ord>(&mut self, found: Vec<Choice<K>>, room: usize) {
        let sum: usize = found.iter().map(|(_, _, size)| size).sum();
        let lacks = sum.min(room).saturating_sub(self.device.available());
        if lacks > 0 {
            self.steal(lacks);
        }
        let room = room.min(self.device.available());
        self.move_in(&at_most(found, room));
    }

    /// Whether blocks of that segment are known.
    #[cfg(test)]
    pub fn is_tracked(&self, base: u64) -> bool {
        self.segments.get(&base).is_some_and(|segment| segment.tracking == super::Tracking::Tracked)
    }
}

/// Addresses of the parts with the lowest keys, until they are so large together.
fn at_least<K: Ord>(mut choices: Vec<Choice<K>>, wanted: usize) -> Vec<u64> {
    choices.sort_unstable_by(|one, other| (&one.0, one.1).cmp(&(&other.0, other.1)));
    let mut sum = 0;
    let enough = |(_, address, size): Choice<K>| {
        let chosen = (sum < wanted).then_some(address);
        sum += size;
        chosen
    };
    choices.into_iter().map_while(enough).collect()
}

/// Addresses of the parts with the lowest keys, as far as they fit together.
fn at_most<K: Ord>(mut choices: Vec<Choice<K>>, room: usize) -> Vec<u64> {
    choices.sort_unstable_by(|one, other| (&one.0, one.1).cmp(&(&other.0, other.1)));
    let mut left = room;
    let mut fits = |(_, address, size): Choice<K>| {
        left = left.checked_sub(size)?;
        Some(address)
    };
    choices.into_iter().filter_map(&mut fits).collect()
}
