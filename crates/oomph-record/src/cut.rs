//! A file that has become too large: what it knew to be allocated then, so that its end can list what has come and gone since.

use crate::event::Event;
use crate::layout::Action;
use crate::ledger::{Device, Live};
use crate::spread::Map;
use std::collections::BTreeMap;

/// Where the file stopped.
#[derive(Default)]
pub(crate) struct Cut {
    known: Option<Vec<Known>>,
    /// Events for which there was no room, by device.
    unwritten: Vec<(u32, Vec<Event>)>,
}

impl Cut {
    /// Whether the file has stopped.
    pub(crate) fn is_there(&self) -> bool {
        self.known.is_some()
    }

    /// The file stops here, with these blocks and segments.
    pub(crate) fn here(&mut self, devices: &[Device]) {
        self.known = Some(devices.iter().map(Known::of).collect());
    }

    /// For these events there was no room.
    pub(crate) fn had_no_room_for(&mut self, device: u32, events: Vec<Event>) {
        self.unwritten.push((device, events));
    }

    /// What the file knew, if it has stopped. It goes on.
    pub(crate) fn mend(&mut self) -> Option<Vec<Known>> {
        self.known.take()
    }

    /// The events for which there was no room.
    pub(crate) fn take_unwritten(&mut self) -> Vec<(u32, Vec<Event>)> {
        std::mem::take(&mut self.unwritten)
    }
}

/// What the file knew to be there on a device.
pub(crate) struct Known {
    pub(crate) device: u32,
    /// Requested bytes and stack.
    blocks: Map<u64, (u64, u32)>,
    /// Bytes.
    segments: BTreeMap<u64, u64>,
}

/// What an event must have: action, address, size, stream and stack.
pub(crate) type Change = (Action, u64, u64, u32, u32);

impl Known {
    fn of(device: &Device) -> Self {
        Self {
            device: device.ordinal,
            blocks: device.live.iter().map(|(address, live)| (*address, live.key())).collect(),
            segments: device.segments.iter().map(|(address, held)| (*address, held.size)).collect(),
        }
    }

    /// What has come and gone since, as if all at once: blocks before their segments go, and after theirs come.
    pub(crate) fn changes(&self, here: &Device) -> Vec<Change> {
        let gone = (self.blocks.iter())
            .filter(|(address, known)| here.live.get(address).map(Live::key) != Some(**known))
            .map(|(address, known)| (Action::FreeRequested, *address, known.0, 0, 0));
        let freed = (self.segments.iter())
            .filter(|(address, size)| here.segments.get(address).map(|held| held.size) != Some(**size))
            .map(|(address, size)| (Action::SegmentFree, *address, *size, 0, 0));
        let taken = (here.segments.iter())
            .filter(|(address, held)| self.segments.get(address) != Some(&held.size))
            .map(|(address, held)| (Action::SegmentAlloc, *address, held.size, held.stream, held.stack));
        let come = (here.live.iter())
            .filter(|(address, live)| self.blocks.get(address) != Some(&live.key()))
            .map(|(address, live)| (Action::Alloc, *address, live.requested, live.stream, live.stack));
        gone.chain(freed).chain(taken).chain(come).collect()
    }
}
