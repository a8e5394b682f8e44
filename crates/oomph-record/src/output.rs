//! The file as the recorder sees it: chunks in their order, the one that is written anew, and the room at the end.
//!
//! Boundary: says whether a chunk was written; what to do about one that was not is the recorder's.

use crate::encode;
use crate::event::{Annotation, Event};
use crate::file::{File, Kind};
use crate::ledger::Device;
use crate::state::Segment;

/// Rows of a chunk of events, as the format's other writer has them.
const ROWS: usize = 64 << 10;

/// Where chunks go.
pub(crate) struct Output {
    file: File,
    /// The file's end is being written.
    at_the_end: bool,
    /// From where to where the chunk is that counts repeated steps.
    repeats: Option<(u64, u64)>,
}

impl Output {
    pub(crate) fn new(file: File) -> Self {
        Self { file, at_the_end: false, repeats: None }
    }

    /// Events that wait at most: what waits must fit at a file's end.
    pub(crate) fn most_rows(&self) -> usize {
        usize::try_from(self.file.most() / 256).unwrap_or(ROWS).clamp(64, ROWS)
    }

    /// From here on there is the room that is kept for the end.
    pub(crate) fn begin_the_end(&mut self) {
        self.at_the_end = true;
    }

    /// It was not the end, if it was. Whether it was.
    pub(crate) fn take_back_the_end(&mut self) -> bool {
        std::mem::take(&mut self.at_the_end)
    }

    pub(crate) fn is_at_the_end(&self) -> bool {
        self.at_the_end
    }

    /// Whether something is missing in the file.
    pub(crate) fn is_full(&self) -> bool {
        self.file.is_full()
    }

    /// Whether a chunk of so many bytes can be appended without making the file too large.
    pub(crate) fn has_room(&self, content: usize) -> bool {
        self.file.has_room(content)
    }

    /// Writes nothing more.
    pub(crate) fn give_up(&mut self) {
        self.file.give_up();
    }

    /// Whether it was written.
    pub(crate) fn chunk(&mut self, kind: Kind, content: &[u8]) -> bool {
        let before = self.file.length();
        if self.at_the_end {
            self.file.last_chunk(kind, content);
        } else {
            self.file.chunk(kind, content);
        }
        self.file.length() > before
    }

    /// A device and its streams.
    pub(crate) fn describe(&mut self, device: &mut Device) {
        device.described = device.streams.len();
        self.chunk(Kind::Device, &encode::description(device).0);
    }

    /// Events of a device, whose streams are known then. Whether they were written.
    pub(crate) fn events(&mut self, device: &mut Device, events: &[Event]) -> bool {
        if events.is_empty() {
            return true;
        }
        if device.described < device.streams.len() {
            self.describe(device);
        }
        self.chunk(Kind::Events, &encode::events(device.ordinal, events).0)
    }

    pub(crate) fn annotations(&mut self, annotations: &[Annotation]) {
        if !annotations.is_empty() {
            self.chunk(Kind::Annotations, &encode::annotations(annotations).0);
        }
    }

    /// The final state of a device.
    pub(crate) fn state(&mut self, device: &mut Device, segments: &[Segment]) {
        let content = encode::state(device, segments);
        self.describe(device);
        self.chunk(Kind::State, &content.0);
    }

    /// The chunk that counts repeated steps is the last one, or is written again.
    pub(crate) fn repeats(&mut self, steps: u64, events: u64) {
        if let Some((from, to)) = self.repeats
            && to == self.file.length()
        {
            self.file.truncate(from);
        }
        let from = self.file.length();
        self.chunk(Kind::Repeats, &encode::repeats(steps, events).0);
        self.repeats = Some((from, self.file.length()));
    }

    /// The allocator's settings, which are never a part of the end.
    pub(crate) fn settings(&mut self, json: &[u8]) {
        self.file.chunk(Kind::Settings, json);
    }

    /// Ends the file. Whether it is whole.
    pub(crate) fn finish(mut self) -> bool {
        if !self.file.is_full() {
            self.file.chunk(Kind::End, &[]);
        }
        !self.file.is_full()
    }
}
