//! The blocks and segments that are there, on every device.
//!
//! Boundary: keeps the account and says what a change of it was; events of it are the recorder's to write. While a pattern of steps is
//! followed ([`crate::repeats`]), blocks of that pattern are not accounted for here.

use crate::event::Event;
use crate::places::{Place, sum_of};
use crate::spread::{Map, Spread};
use std::collections::BTreeMap;
use std::hash::Hasher;

/// A block that is there.
pub(crate) struct Live {
    pub(crate) requested: u64,
    pub(crate) stream: u32,
    pub(crate) stack: u32,
    /// A string's id, or 0.
    pub(crate) kind: u32,
    pub(crate) place: Place,
}

impl Live {
    /// What tells it from another block at the same address.
    pub(crate) fn key(&self) -> (u64, u32) {
        (self.requested, self.stack)
    }
}

/// A block that is there, in one number.
fn fingerprint(device: u32, address: u64, live: &Live) -> u64 {
    let mut hasher = Spread::default();
    for part in [u64::from(device), address, live.requested, u64::from(live.stack)] {
        hasher.write_u64(part);
    }
    hasher.finish()
}

/// A segment that is there.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    pub(crate) size: u64,
    pub(crate) stream: u32,
    pub(crate) stack: u32,
    /// Mapped into an expandable segment: on a real card nobody says where, only how much.
    pub(crate) mapped: bool,
}

impl Held {
    /// Whether it is mapped like another, from the same place.
    fn is_like(&self, other: &Held) -> bool {
        self.mapped == other.mapped && self.stream == other.stream && self.stack == other.stack
    }
}

/// What is known of a device.
#[derive(Default)]
pub(crate) struct Device {
    pub(crate) ordinal: u32,
    /// Events that are not written yet.
    pub(crate) events: Vec<Event>,
    pub(crate) streams: Vec<i64>,
    /// Streams that the file knows.
    pub(crate) described: usize,
    pub(crate) live: Map<u64, Live>,
    pub(crate) segments: BTreeMap<u64, Held>,
    pub(crate) reserved: u64,
    /// The file has its final state.
    pub(crate) is_final: bool,
    /// What lines hold, by their numbers: of the live blocks.
    pub(crate) held: Vec<u64>,
    /// The peak of the last step that ended.
    pub(crate) last_peak: Option<u64>,
}

impl Device {
    /// A stream's number in this recording.
    pub(crate) fn stream(&mut self, number: i64) -> u32 {
        let known = self.streams.iter().position(|stream| *stream == number);
        known.unwrap_or_else(|| {
            self.streams.push(number);
            self.streams.len() - 1
        }) as u32
    }

    pub(crate) fn add_segment(&mut self, address: u64, held: Held) {
        self.reserved += held.size;
        self.segments.insert(address, held);
    }

    /// Expandable segments grow without a call that is heard: how much is known by what is reserved in all. They grow at their
    /// end, for a block that begins before it. Where one grew and by how much, if one did.
    pub(crate) fn grow_to(
        &mut self,
        reserved: u64,
        block: u64,
        stream: u32,
        stack: u32,
    ) -> Option<(u64, u64)> {
        if reserved <= self.reserved {
            return None;
        }
        let size = reserved - self.reserved;
        let before = self.segments.range(..=block).next_back().filter(|(_, held)| held.mapped);
        let end = before.map(|(address, held)| address + held.size).filter(|end| block <= *end);
        let address = end.unwrap_or(block);
        self.add_segment(address, Held { size, stream, stack, mapped: true });
        Some((address, size))
    }

    /// They shrink in the same way; where is not known. What is gone of one of them: to be asked until there is no more.
    pub(crate) fn shrink_to(&mut self, reserved: u64) -> Option<(u64, Held)> {
        if reserved >= self.reserved {
            return None;
        }
        let last = self.segments.iter().rev().find(|(_, held)| held.mapped);
        let Some((&address, &held)) = last else {
            // A segment went in a way that nobody heard.
            self.reserved = reserved;
            return None;
        };
        let size = held.size.min(self.reserved - reserved);
        if size == held.size {
            self.segments.remove(&address);
        } else if let Some(held) = self.segments.get_mut(&address) {
            held.size -= size;
        }
        self.reserved -= size;
        Some((address, Held { size, ..held }))
    }

    /// The device gives addresses anew only after what was mapped there has gone, which nobody heard. One that has gone: to be
    /// asked until there is no more.
    pub(crate) fn unmap_within(&mut self, address: u64, size: u64) -> Option<(u64, Held)> {
        let end = address.saturating_add(size);
        let (start, held) = (self.segments.range(..end).rev())
            .take_while(|(start, held)| start.saturating_add(held.size) > address)
            .find(|(_, held)| held.mapped)
            .map(|(&start, &held)| (start, held))?;
        self.remove_segment(start);
        Some((start, held))
    }

    /// So much was mapped there, and is a part of what it adjoins if that was mapped from the same place.
    pub(crate) fn map(&mut self, address: u64, held: Held) {
        self.reserved += held.size;
        let before = self.segments.range_mut(..address).next_back();
        match before.filter(|(start, before)| **start + before.size == address && before.is_like(&held)) {
            Some((_, before)) => before.size += held.size,
            None => {
                self.segments.insert(address, held);
            }
        }
    }

    /// So much is no longer mapped there, if it was.
    fn unmap(&mut self, address: u64, size: u64) -> Option<Held> {
        let (&start, &held) = self.segments.range(..=address).next_back()?;
        let (end, held_to) = (address.saturating_add(size), start.saturating_add(held.size));
        if !held.mapped || end > held_to {
            return None;
        }
        self.segments.remove(&start);
        if start < address {
            self.segments.insert(start, Held { size: address - start, ..held });
        }
        if end < held_to {
            self.segments.insert(end, Held { size: held_to - end, ..held });
        }
        self.reserved = self.reserved.saturating_sub(size);
        Some(Held { size, ..held })
    }

    /// A segment is gone, if it was there.
    fn remove_segment(&mut self, address: u64) -> Option<Held> {
        let held = self.segments.remove(&address)?;
        self.reserved = self.reserved.saturating_sub(held.size);
        Some(held)
    }
}

/// Every device, and what is there on it.
#[derive(Default)]
pub(crate) struct Ledger {
    devices: Vec<Device>,
    /// The blocks that are there, in one number.
    around: u64,
}

impl Ledger {
    /// The blocks that are there, in one number: the same blocks give the same.
    pub(crate) fn around(&self) -> u64 {
        self.around
    }

    /// Those that were heard of, in the order in which they were.
    pub(crate) fn devices(&self) -> &[Device] {
        &self.devices
    }

    pub(crate) fn devices_mut(&mut self) -> &mut [Device] {
        &mut self.devices
    }

    /// A device, which is known from here on.
    pub(crate) fn device(&mut self, ordinal: u32) -> &mut Device {
        let index = match self.devices.iter().position(|device| device.ordinal == ordinal) {
            Some(index) => index,
            None => {
                self.devices.push(Device { ordinal, streams: vec![0], ..Device::default() });
                self.devices.len() - 1
            }
        };
        #[allow(clippy::indexing_slicing)] // found or pushed above
        &mut self.devices[index]
    }

    /// A block that is there.
    pub(crate) fn live(&self, device: u32, address: u64) -> Option<&Live> {
        self.devices.iter().find(|known| known.ordinal == device)?.live.get(&address)
    }

    pub(crate) fn put(&mut self, device: u32, address: u64, live: Live) {
        self.around ^= fingerprint(device, address, &live);
        let here = self.device(device);
        if let Some(sum) = sum_of(&mut here.held, live.place) {
            *sum += live.requested;
        }
        if let Some(before) = here.live.insert(address, live) {
            if let Some(sum) = sum_of(&mut here.held, before.place) {
                *sum = sum.saturating_sub(before.requested);
            }
            self.around ^= fingerprint(device, address, &before);
        }
    }

    /// A block is gone, if it was there.
    pub(crate) fn take(&mut self, device: u32, address: u64) -> Option<Live> {
        let here = self.device(device);
        let live = here.live.remove(&address)?;
        if let Some(sum) = sum_of(&mut here.held, live.place) {
            *sum = sum.saturating_sub(live.requested);
        }
        self.around ^= fingerprint(device, address, &live);
        Some(live)
    }

    /// So much is no longer mapped there, if it was: from which device.
    pub(crate) fn unmap(&mut self, address: u64, size: u64) -> Option<(u32, Held)> {
        self.devices.iter_mut().find_map(|device| Some((device.ordinal, device.unmap(address, size)?)))
    }

    /// A segment is gone, if it was there: from which device.
    pub(crate) fn take_segment(&mut self, address: u64) -> Option<(u32, Held)> {
        self.devices.iter_mut().find_map(|device| Some((device.ordinal, device.remove_segment(address)?)))
    }
}
