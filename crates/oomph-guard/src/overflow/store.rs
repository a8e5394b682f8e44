//! Moves backing: takes and gives pieces, puts them behind parts, copies what lives.
//!
//! What to move is for [`super::policy`]. Every function here leaves all that lives readable at its address, whatever
//! the driver refuses on the way.

use super::pool::{Pool, power_within};
use super::{Backing, Driver, Overflow, Place, Tracking};
use crate::GRANULE;
use std::time::Instant;

impl<D: Driver> Overflow<D> {
    fn pool(&mut self, place: Place) -> &mut Pool {
        match place {
            Place::Device => &mut self.device,
            Place::Host => &mut self.host,
        }
    }

    /// All that there is of either place, in granules.
    pub(super) fn pieces(&self) -> usize {
        self.device.created + self.host.created
    }

    /// Makes pieces until there are so many granules, of the device as far as the limit goes. False if there are not enough.
    pub(super) fn ensure_pieces(&mut self, wanted: usize) -> bool {
        for place in [Place::Device, Place::Host] {
            let lacks = wanted.saturating_sub(self.pieces());
            self.make_free(place, lacks);
        }
        self.pieces() >= wanted
    }

    /// Makes free pieces of so many granules together, as far as the limit goes.
    pub(super) fn make_free(&mut self, place: Place, wanted: usize) {
        let to_make = self.pool(place).to_make();
        self.remake(place, wanted.min(to_make));
    }

    /// Makes free pieces of so many granules together, as large as can be, whatever the limit: they were there before.
    fn remake(&mut self, place: Place, mut left: usize) {
        let mut largest = self.largest_part;
        while left > 0 && largest > 0 {
            let size = power_within(left.min(largest));
            match self.make(place, size) {
                Some(piece) => {
                    self.pool(place).push(size, piece);
                    left -= size;
                }
                None => largest = size / 2,
            }
        }
    }

    /// A new piece. One of the host has an address of its own, for copies.
    fn make(&mut self, place: Place, size: usize) -> Option<u64> {
        let bytes = size as u64 * GRANULE;
        let piece = self.driver.create(place, bytes)?;
        if place == Place::Host && !self.open_window(piece, bytes) {
            self.driver.release(piece);
            return None;
        }
        self.pool(place).created += size;
        Some(piece)
    }

    fn open_window(&mut self, piece: u64, bytes: u64) -> bool {
        let Some(window) = self.driver.reserve(bytes) else { return false };
        if self.driver.map(window, piece, bytes) {
            if self.driver.allow(window, bytes) {
                self.driver.open_to_host(window, bytes);
                self.windows.insert(piece, window);
                return true;
            }
            self.driver.unmap(window, bytes);
        }
        self.driver.give_back(window, bytes);
        false
    }

    /// Gives a piece back that is behind nothing; false, and it is free still, if the driver refuses.
    pub(super) fn unmake(&mut self, place: Place, size: usize, piece: u64) -> bool {
        let bytes = size as u64 * GRANULE;
        if let Some(window) = self.windows.get(&piece).copied().filter(|_| place == Place::Host) {
            if !self.driver.unmap(window, bytes) {
                self.pool(place).push(size, piece);
                return false;
            }
            self.windows.remove(&piece);
            self.driver.give_back(window, bytes);
        }
        self.driver.release(piece);
        self.pool(place).created -= size;
        true
    }

    /// A free piece of that size: there is one, it is made, or others are made into one.
    pub(super) fn obtain(&mut self, place: Place, size: usize) -> Option<u64> {
        let pool = self.pool(place);
        if let Some(piece) = pool.pop(size) {
            return Some(piece);
        }
        let (to_make, before) = (pool.to_make(), pool.created);
        if size <= to_make {
            return self.make(place, size);
        }
        let given = if pool.available() < size { Vec::new() } else { pool.pop_enough(size - to_make, size) };
        for (size, piece) in given {
            self.unmake(place, size, piece);
        }
        let freed = before - self.pool(place).created;
        let piece = if freed + to_make < size { None } else { self.make(place, size) };
        // Never fewer than there were: they are promised.
        let lost = before.saturating_sub(self.pool(place).created);
        self.remake(place, lost);
        piece
    }

    /// Makes host memory until so much can be given up without breaking what is promised, as far as there is any.
    pub(super) fn ensure_spare(&mut self, wanted: usize) {
        let lacks = (self.promised + wanted).saturating_sub(self.pieces());
        self.make_free(Place::Host, lacks);
    }

    /// Gives up free device memory, so much of it at most; false if none can be.
    pub(super) fn give_up_device(&mut self, most: usize) -> bool {
        if let Some((size, piece)) = self.device.pop_within(most) {
            return self.unmake(Place::Device, size, piece);
        }
        let Some((size, piece)) = self.device.pop_enough(1, 1).pop().filter(|_| most > 0) else {
            return false;
        };
        self.unmake(Place::Device, size, piece);
        self.remake(Place::Device, size - most);
        true
    }

    /// Puts a piece behind a part that has none: of the device, or else of the host.
    pub(super) fn take_piece(&mut self, address: u64, size: usize) -> Option<Backing> {
        [Place::Device, Place::Host].into_iter().find_map(|place| self.take_piece_of(place, address, size))
    }

    pub(super) fn take_piece_of(&mut self, place: Place, address: u64, size: usize) -> Option<Backing> {
        let piece = self.obtain(place, size)?;
        let bytes = size as u64 * GRANULE;
        if !self.driver.map(address, piece, bytes) {
            self.pool(place).push(size, piece);
            return None;
        }
        if !self.driver.allow(address, bytes) {
            self.totals.failures += 1;
        }
        if place == Place::Host {
            self.count_on_host(size);
        }
        Some(Backing::of(place, piece))
    }

    /// Takes a piece back that is behind nothing any more.
    pub(super) fn put_piece(&mut self, backing: Backing, size: usize) {
        match backing {
            Backing::Nothing => {}
            Backing::Device(piece) => self.device.push(size, piece),
            Backing::Host(piece) => {
                self.host.push(size, piece);
                self.count_off_host(size);
            }
        }
    }

    fn count_on_host(&mut self, size: usize) {
        self.on_host += size;
        self.nothing_to_restore = false;
        self.totals.host_peak = self.totals.host_peak.max(self.on_host);
        self.on_host_since.get_or_insert_with(Instant::now);
    }

    fn count_off_host(&mut self, size: usize) {
        self.on_host -= size;
        if self.on_host == 0
            && let Some(since) = self.on_host_since.take()
        {
            self.totals.on_host += since.elapsed();
        }
    }

    /// Gives pieces back that no segment needs, those of the host first: device memory serves better, and is needed by
    /// others only if the host's are gone.
    pub(super) fn release_surplus(&mut self) {
        for place in [Place::Host, Place::Device] {
            loop {
                let surplus = self.pieces().saturating_sub(self.promised);
                let Some((size, piece)) = self.pool(place).pop_within(surplus) else { break };
                if !self.unmake(place, size, piece) {
                    break;
                }
            }
        }
    }

    /// Gives backing to those parts of a segment that have none and granules from `first` to `last` in them. True if any
    /// came from the host.
    pub(super) fn attach(&mut self, base: u64, first: usize, last: usize) -> bool {
        self.synchronized = false;
        let Some(segment) = self.segments.get(&base) else { return false };
        let mut missing: Vec<(u64, usize)> = segment
            .within(first, last)
            .filter(|part| part.backing == Backing::Nothing)
            .map(|part| (base + part.offset as u64 * GRANULE, part.size))
            .collect();
        self.find_device(missing.iter().map(|(_, size)| size).sum());
        let mut from_host = false;
        while let Some((address, size)) = missing.pop() {
            if let Some(backing) = self.take_piece(address, size) {
                from_host |= matches!(backing, Backing::Host(_));
                self.set_backing(address, backing);
            } else if size > 1 {
                // Neither place has as much in one piece; both together have.
                let needed = self.split(address, first, last);
                missing.extend(needed.into_iter().flatten());
            } else {
                // The driver does not release what is free: rather beyond the limit than not at all.
                self.totals.failures += 1;
                self.remake(Place::Host, size);
                let backing = self.take_piece(address, size).unwrap_or(Backing::Nothing);
                self.set_backing(address, backing);
            }
        }
        from_host
    }

    /// Halves a part with nothing behind it. Gives the halves that granules from `first` to `last` are in; in the other
    /// nothing lives.
    fn split(&mut self, address: u64, first: usize, last: usize) -> [Option<(u64, usize)>; 2] {
        let Some((&base, segment)) = self.segments.range_mut(..=address).next_back() else {
            return [None; 2];
        };
        let Some(index) = segment.index_of(address - base) else { return [None; 2] };
        let tracking = segment.tracking;
        let Some(left) = segment.parts.get_mut(index) else { return [None; 2] };
        left.size /= 2;
        let mut right = left.clone();
        right.offset += left.size;
        let mut needed = [None; 2];
        for (half, needed) in [&mut *left, &mut right].into_iter().zip(&mut needed) {
            if half.overlaps(first, last) {
                *needed = Some((base + half.offset as u64 * GRANULE, half.size));
            } else if Self::lives(tracking, half.blocks) {
                half.blocks = 0;
                self.live -= if tracking == Tracking::Tracked { half.size } else { 0 };
            }
        }
        segment.parts.insert(index + 1, right);
        needed
    }

    /// Waits until the GPU is idle, once for each call from outside. False if moves must not be made.
    pub(super) fn quiet(&mut self) -> bool {
        if !self.synchronized {
            let began = Instant::now();
            self.synchronized = self.driver.synchronize();
            self.totals.moving += began.elapsed();
        }
        self.synchronized
    }

    /// Takes the backing of parts in which nothing lives.
    pub(super) fn detach(&mut self, addresses: &[u64]) {
        if addresses.is_empty() || !self.quiet() {
            return;
        }
        let began = Instant::now();
        for address in addresses {
            let Some((size, backing)) = self.part(*address).map(|part| (part.size, part.backing)) else {
                continue;
            };
            if !self.driver.unmap(*address, size as u64 * GRANULE) {
                self.stop_moving();
                break;
            }
            self.set_backing(*address, Backing::Nothing);
            self.put_piece(backing, size);
        }
        self.totals.moving += began.elapsed();
    }

    /// Moves parts on the device to the host, as far as there is memory.
    pub(super) fn move_out(&mut self, addresses: &[u64]) {
        self.change(addresses, Place::Host);
    }

    /// Moves parts on the host to the device, as far as there is memory.
    pub(super) fn move_in(&mut self, addresses: &[u64]) {
        self.change(addresses, Place::Device);
    }

    fn change(&mut self, addresses: &[u64], to: Place) {
        if addresses.is_empty() || !self.quiet() {
            return;
        }
        let began = Instant::now();
        let mut moves: Vec<Move> = Vec::with_capacity(addresses.len());
        for address in addresses {
            let Some((size, from)) = self.part(*address).map(|part| (part.size, part.backing)) else {
                continue;
            };
            if let (Some(old), Some(new)) = (from.at(to.other()), self.obtain(to, size)) {
                moves.push(Move { address: *address, size, old, new });
            }
        }
        let moved = match to {
            Place::Host => self.out(&moves),
            Place::Device => self.back_in(&moves),
        };
        match to {
            Place::Host => self.totals.moved_out += moved as u64,
            Place::Device => self.totals.moved_in += moved as u64,
        }
        self.totals.moves += 1;
        self.totals.moving += began.elapsed();
    }

    /// Copies by the address that host memory has of its own, then changes the backing, while the next is being copied.
    fn out(&mut self, moves: &[Move]) -> usize {
        let mut begun = moves.first().is_some_and(|one| self.copy_out(one));
        let mut moved = 0;
        for (index, one) in moves.iter().enumerate() {
            let copied = self.driver.finish_copies() && begun;
            begun = copied && moves.get(index + 1).is_some_and(|next| self.copy_out(next));
            if !copied {
                self.stop_moving();
            }
            let done = self.remap(one, one.old, one.new);
            self.close(one, Place::Host, done);
            if done {
                self.note_served(one.address, one.bytes(), true);
                moved += one.size;
            }
        }
        moved
    }

    fn copy_out(&mut self, one: &Move) -> bool {
        self.driver.copy(self.window(one.new), one.address, one.bytes())
    }

    /// The backing changes first, and back again if the copies fail.
    fn back_in(&mut self, moves: &[Move]) -> usize {
        let mut copied = true;
        let mut changed = Vec::with_capacity(moves.len());
        for one in moves {
            let done = self.remap(one, one.old, one.new);
            copied &= !done || self.driver.copy(one.address, self.window(one.old), one.bytes());
            changed.push(done);
        }
        copied &= self.driver.finish_copies();
        let mut moved = 0;
        for (one, changed) in moves.iter().zip(changed) {
            let done = changed && (copied || !self.remap(one, one.new, one.old));
            self.close(one, Place::Device, done);
            moved += if done { one.size } else { 0 };
        }
        if !copied {
            self.stop_moving();
        }
        moved
    }

    /// Puts another piece behind a part, or else leaves it as it was.
    fn remap(&mut self, one: &Move, from: u64, to: u64) -> bool {
        if !self.may_move || !self.driver.unmap(one.address, one.bytes()) {
            self.stop_moving();
            return false;
        }
        let done = self.driver.map(one.address, to, one.bytes());
        if !done {
            self.driver.map(one.address, from, one.bytes());
        }
        if !self.driver.allow(one.address, one.bytes()) || !done {
            self.stop_moving();
        }
        done
    }

    /// Books a move: the piece that is no longer needed is free.
    fn close(&mut self, one: &Move, to: Place, done: bool) {
        if !done {
            self.pool(to).push(one.size, one.new);
            return;
        }
        self.set_backing(one.address, Backing::of(to, one.new));
        self.pool(to.other()).push(one.size, one.old);
        match to {
            Place::Host => self.count_on_host(one.size),
            Place::Device => self.count_off_host(one.size),
        }
    }

    fn window(&self, piece: u64) -> u64 {
        self.windows.get(&piece).copied().unwrap_or(0)
    }

    pub(super) fn set_backing(&mut self, address: u64, backing: Backing) {
        if let Some(part) = self.part(address) {
            part.backing = backing;
        }
    }

    /// The driver refused something: what is where it is stays there.
    fn stop_moving(&mut self) {
        self.totals.failures += 1;
        self.may_move = false;
    }

    /// Whether something lives, or may live, in a part of such a segment.
    pub(super) fn lives(tracking: Tracking, blocks: u32) -> bool {
        tracking != Tracking::Tracked || blocks > 0
    }
}

/// A part whose backing changes.
struct Move {
    address: u64,
    size: usize,
    old: u64,
    new: u64,
}

impl Move {
    fn bytes(&self) -> u64 {
        self.size as u64 * GRANULE
    }
}
