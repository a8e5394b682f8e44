//! Moves backing: takes and gives pieces, puts them behind granules, copies what lives.
//!
//! What to move is for [`super::policy`]. Every function here leaves all that lives readable at its address, whatever
//! the driver refuses on the way.

use super::{Backing, Driver, Overflow, Place, Tracking, granules, runs};
use crate::GRANULE;
use std::time::Instant;

impl<D: Driver> Overflow<D> {
    /// All pieces that there are.
    pub(super) fn pieces(&self) -> usize {
        self.created_device + self.host_pieces.len()
    }

    /// Makes pieces until there are so many, of the device as far as the limit goes. False if there are not enough.
    pub(super) fn ensure_pieces(&mut self, wanted: usize) -> bool {
        while self.pieces() < wanted {
            if !self.create_device() && !self.create_host() {
                return false;
            }
        }
        true
    }

    pub(super) fn create_device(&mut self) -> bool {
        if self.created_device >= self.device_limit {
            return false;
        }
        let Some(piece) = self.driver.create(Place::Device) else { return false };
        self.free_device.push(piece);
        self.created_device += 1;
        true
    }

    /// A new host slot, with its address in the window.
    pub(super) fn create_host(&mut self) -> bool {
        let slot = self.host_pieces.len();
        if slot >= self.host_limit {
            return false;
        }
        if self.window.is_none() {
            self.window = self.driver.reserve(self.window_size as u64 * GRANULE);
        }
        let Some(window) = self.window else { return false };
        let Some(piece) = self.driver.create(Place::Host) else { return false };
        let address = window + slot as u64 * GRANULE;
        let Ok(number) = u32::try_from(slot) else { return false };
        if self.driver.map(address, piece) {
            if self.driver.allow(address, GRANULE) {
                self.driver.open_to_host(address, GRANULE);
                self.host_pieces.push(piece);
                self.free_host.insert(number);
                return true;
            }
            self.driver.unmap(address, GRANULE);
        }
        self.driver.release(piece);
        false
    }

    fn slot_address(&self, slot: u32) -> u64 {
        self.window.unwrap_or(0) + u64::from(slot) * GRANULE
    }

    fn slot_piece(&self, slot: u32) -> u64 {
        self.host_pieces.get(slot as usize).copied().unwrap_or(0)
    }

    /// Puts a piece behind a granule that has none: a free one of the device, or of the host.
    pub(super) fn take_piece(&mut self, address: u64) -> Option<Backing> {
        if let Some(piece) = self.free_device.pop() {
            if self.driver.map(address, piece) {
                return Some(Backing::Device(piece));
            }
            self.free_device.push(piece);
        }
        if self.free_host.is_empty() {
            self.create_host();
        }
        let slot = self.free_host.pop_first()?;
        if self.driver.map(address, self.slot_piece(slot)) {
            self.count_on_host(1);
            return Some(Backing::Host(slot));
        }
        self.free_host.insert(slot);
        None
    }

    /// Takes a piece back that is behind nothing any more.
    pub(super) fn put_piece(&mut self, backing: Backing) {
        match backing {
            Backing::Nothing => {}
            Backing::Device(piece) => self.free_device.push(piece),
            Backing::Host(slot) => {
                self.free_host.insert(slot);
                self.count_off_host(1);
            }
        }
    }

    fn count_on_host(&mut self, count: usize) {
        self.on_host += count;
        self.nothing_to_restore = false;
        self.totals.host_peak = self.totals.host_peak.max(self.on_host);
        self.on_host_since.get_or_insert_with(Instant::now);
    }

    fn count_off_host(&mut self, count: usize) {
        self.on_host -= count;
        if self.on_host == 0
            && let Some(since) = self.on_host_since.take()
        {
            self.totals.on_host += since.elapsed();
        }
    }

    /// Gives pieces back that no segment needs, those of the host first: device memory serves better, and is needed by
    /// others only if the host's are gone.
    pub(super) fn release_surplus(&mut self) {
        while self.pieces() > self.promised {
            let last = self.host_pieces.len().checked_sub(1).and_then(|last| u32::try_from(last).ok());
            if let Some(slot) = last.filter(|slot| self.free_host.contains(slot)) {
                self.free_host.remove(&slot);
                let piece = self.slot_piece(slot);
                self.driver.unmap(self.slot_address(slot), GRANULE);
                self.driver.release(piece);
                self.host_pieces.pop();
            } else if let Some(piece) = self.free_device.pop() {
                self.driver.release(piece);
                self.created_device -= 1;
            } else {
                return;
            }
        }
    }

    /// Gives backing to those granules of a segment, from `first` to `last`, that have none. True if any came from the host.
    pub(super) fn attach(&mut self, base: u64, first: usize, last: usize) -> bool {
        self.synchronized = false;
        let Some(segment) = self.segments.get(&base) else { return false };
        let missing: Vec<u64> = (0_u64..)
            .zip(&segment.granules)
            .take(last + 1)
            .skip(first)
            .filter(|(_, granule)| granule.backing == Backing::Nothing)
            .map(|(index, _)| base + index * GRANULE)
            .collect();
        self.find_device(missing.len());
        let mut from_host = false;
        let mut done = Vec::with_capacity(missing.len());
        for address in missing {
            let Some(backing) = self.take_piece(address) else {
                self.totals.failures += 1;
                continue;
            };
            from_host |= matches!(backing, Backing::Host(_));
            if let Some(granule) = self.granule(address) {
                granule.backing = backing;
            }
            done.push(address);
        }
        for (start, length) in runs(&done) {
            if !self.driver.allow(start, length) {
                self.totals.failures += 1;
            }
        }
        from_host
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

    /// Takes the backing of granules in which nothing lives.
    pub(super) fn detach(&mut self, addresses: &[u64]) {
        if addresses.is_empty() || !self.quiet() {
            return;
        }
        for (start, length) in runs(addresses) {
            if !self.driver.unmap(start, length) {
                self.stop_moving();
                return;
            }
            for index in 0..length / GRANULE {
                let Some(granule) = self.granule(start + index * GRANULE) else { continue };
                let backing = std::mem::replace(&mut granule.backing, Backing::Nothing);
                self.put_piece(backing);
            }
        }
    }

    /// Moves granules (sorted, on the device) to the host, as far as there are slots.
    pub(super) fn move_out(&mut self, addresses: &[u64]) {
        if addresses.is_empty() || !self.quiet() {
            return;
        }
        let began = Instant::now();
        let mut moves: Vec<(u64, u32)> = Vec::with_capacity(addresses.len());
        for address in addresses {
            if self.free_host.is_empty() && !self.create_host() {
                break;
            }
            let Some(slot) = self.free_host.pop_first() else { break };
            moves.push((*address, slot));
        }
        let copied = self.copy(&moves, Place::Host);
        let addresses: Vec<u64> = moves.iter().map(|(address, _)| *address).collect();
        let mut moved = 0;
        let mut pairs = moves.into_iter();
        for (start, length) in runs(&addresses) {
            let count = granules(length / GRANULE);
            let part: Vec<(u64, u32)> = pairs.by_ref().take(count).collect();
            if !copied || !self.may_move || !self.driver.unmap(start, length) {
                self.stop_moving();
                self.free_host.extend(part.iter().map(|(_, slot)| *slot));
                continue;
            }
            for (address, slot) in part {
                let Some(Backing::Device(piece)) = self.granule(address).map(|granule| granule.backing)
                else {
                    continue;
                };
                if self.driver.map(address, self.slot_piece(slot)) {
                    self.set_backing(address, Backing::Host(slot));
                    self.free_device.push(piece);
                    self.count_on_host(1);
                    moved += 1;
                } else {
                    self.driver.map(address, piece);
                    self.free_host.insert(slot);
                    self.stop_moving();
                }
            }
            if !self.driver.allow(start, length) {
                self.stop_moving();
            }
            self.tell(start, length, true);
        }
        self.totals.moved_out += moved;
        self.count_move(began);
    }

    /// Moves granules (sorted, on the host) to the device, as far as there are free pieces.
    pub(super) fn move_in(&mut self, addresses: &[u64]) {
        let addresses = addresses.get(..addresses.len().min(self.free_device.len())).unwrap_or_default();
        if addresses.is_empty() || !self.quiet() {
            return;
        }
        let began = Instant::now();
        let mut moves: Vec<(u64, u32)> = Vec::with_capacity(addresses.len());
        for (start, length) in runs(addresses) {
            if !self.may_move || !self.driver.unmap(start, length) {
                self.stop_moving();
                break;
            }
            for index in 0..length / GRANULE {
                let address = start + index * GRANULE;
                let Some(Backing::Host(slot)) = self.granule(address).map(|granule| granule.backing) else {
                    continue;
                };
                let Some(piece) = self.free_device.pop() else { continue };
                if self.driver.map(address, piece) {
                    self.set_backing(address, Backing::Device(piece));
                    moves.push((address, slot));
                } else {
                    self.driver.map(address, self.slot_piece(slot));
                    self.free_device.push(piece);
                    self.stop_moving();
                }
            }
            if !self.driver.allow(start, length) {
                self.stop_moving();
            }
        }
        if !self.copy(&moves, Place::Device) {
            self.stop_moving();
        }
        self.totals.moved_in += moves.len() as u64;
        self.count_off_host(moves.len());
        self.free_host.extend(moves.into_iter().map(|(_, slot)| slot));
        self.count_move(began);
    }

    /// Copies granules to or from their slots, neighbours at once, and waits.
    fn copy(&mut self, moves: &[(u64, u32)], to: Place) -> bool {
        let mut fine = true;
        let mut at = 0;
        while let Some((address, slot)) = moves.get(at).copied() {
            let mut count = 1;
            while moves.get(at + count).is_some_and(|(next, next_slot)| {
                *next == address + count as u64 * GRANULE && *next_slot as usize == slot as usize + count
            }) {
                count += 1;
            }
            let window = self.slot_address(slot);
            let bytes = count as u64 * GRANULE;
            fine &= match to {
                Place::Host => self.driver.copy(window, address, bytes),
                Place::Device => self.driver.copy(address, window, bytes),
            };
            at += count;
        }
        self.driver.finish_copies() && fine
    }

    fn set_backing(&mut self, address: u64, backing: Backing) {
        if let Some(granule) = self.granule(address) {
            granule.backing = backing;
        }
    }

    fn count_move(&mut self, began: Instant) {
        self.totals.moves += 1;
        self.totals.moving += began.elapsed();
    }

    /// The driver refused something: what is where it is stays there.
    fn stop_moving(&mut self) {
        self.totals.failures += 1;
        self.may_move = false;
    }

    /// Whether something lives, or may live, in a granule of such a segment.
    pub(super) fn lives(tracking: Tracking, blocks: u32) -> bool {
        tracking != Tracking::Tracked || blocks > 0
    }
}
