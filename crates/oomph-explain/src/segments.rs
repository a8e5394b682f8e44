//! Who made the allocator take a segment.

use crate::finding::Place;
use crate::sources::Sources;
use hashbrown::HashMap;
use oomph_trace::{Action, Recording, StackId};

/// Segments of a recording by address; of several at one address, the last.
pub struct SegmentLines<'a> {
    recording: &'a Recording,
    sources: Sources,
    stacks: HashMap<u64, StackId>,
}

impl<'a> SegmentLines<'a> {
    /// Looks over the events once.
    pub fn of(recording: &'a Recording) -> Self {
        let mut stacks = HashMap::new();
        for events in recording.devices.iter().map(|device| &device.events) {
            for row in 0..events.len() {
                if matches!(events.action[row], Action::SegmentAlloc | Action::SegmentMap) {
                    stacks.insert(events.address[row], events.stack[row]);
                }
            }
        }
        Self { recording, sources: Sources::of(recording), stacks }
    }

    /// The line that asked for the first block of the segment at this address.
    pub fn place(&self, address: u64) -> Option<Place> {
        let facts = self.sources.of_stack(*self.stacks.get(&address)?);
        let Some(frame) = facts.place.map(|frame| self.recording.stacks.frame(frame)) else {
            return Some(Place::Backward);
        };
        Some(Place::Line {
            file: self.recording.strings.get(frame.file).to_owned(),
            line: frame.line,
            function: self.recording.strings.get(frame.name).to_owned(),
            own: facts.own,
        })
    }
}
