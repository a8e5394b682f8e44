//! Strings, frames and stacks, each once: events refer to them by number.
//!
//! Boundary: numbers are given in order, and what is new waits here until it is in the file. What a chunk is, the caller knows.

use crate::file::{Content, Kind};
use crate::layout::FORWARD_FOLLOWS;
use crate::places::Places;
use crate::python::{Frame, Stack};
use crate::spread::Map;
use crate::stacks;
use std::collections::HashMap;
use std::sync::Arc;

/// Every string, frame and stack so far.
pub(crate) struct Tables {
    strings: HashMap<String, u32>,
    frames: HashMap<(u32, u32, u32), u32>,
    stacks: HashMap<Arc<[u32]>, u32>,
    /// The frames of each stack, in order of their numbers.
    by_id: Vec<Arc<[u32]>>,
    /// Stacks that stand for backward passes, by the stack of the forward and the node's name.
    backwards: Map<(u32, u32), u32>,
    by_hash: Map<u64, u32>,
    places: Places,
    new_strings: Unwritten,
    new_frames: Unwritten,
    new_stacks: Unwritten,
}

/// Entries of a table that are not in the file yet.
#[derive(Default)]
struct Unwritten {
    count: u64,
    body: Content,
}

impl Tables {
    pub(crate) fn new() -> Self {
        Self {
            strings: HashMap::new(),
            frames: HashMap::new(),
            stacks: HashMap::new(),
            by_id: Vec::new(),
            backwards: Map::default(),
            by_hash: Map::default(),
            places: Places::new(),
            new_strings: Unwritten::default(),
            new_frames: Unwritten::default(),
            new_stacks: Unwritten::default(),
        }
    }

    /// The lines of all stacks.
    pub(crate) fn places(&self) -> &Places {
        &self.places
    }

    /// A string's number; 0 is the empty one.
    pub(crate) fn string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        if let Some(id) = self.strings.get(text) {
            return *id;
        }
        let id = self.strings.len() as u32 + 1;
        self.strings.insert(text.to_owned(), id);
        self.new_strings.body.text(text);
        self.new_strings.count += 1;
        id
    }

    /// A stack's number; 0 is none.
    pub(crate) fn stack(&mut self, stack: &Stack) -> u32 {
        if stack.hash == 0 {
            return 0;
        }
        if let Some(id) = self.by_hash.get(&stack.hash) {
            return *id;
        }
        self.add_stack(stack.hash, stacks::recorded(stack.frames()))
    }

    pub(crate) fn add_stack(&mut self, hash: u64, frames: Vec<Frame>) -> u32 {
        let id = self.stack_of(frames);
        self.by_hash.insert(hash, id);
        id
    }

    /// The stack that stands for the backward pass of what another one made, by a node of this name.
    pub(crate) fn backward_of(&mut self, forward: u32, name: &str) -> u32 {
        let name = self.string(name);
        if let Some(id) = self.backwards.get(&(forward, name)) {
            return *id;
        }
        let file = self.string(FORWARD_FOLLOWS);
        let mut ids = vec![self.frame((name, file, 0))];
        ids.extend(
            forward
                .checked_sub(1)
                .and_then(|at| self.by_id.get(at as usize))
                .into_iter()
                .flat_map(|ids| ids.iter()),
        );
        let id = self.number_of(ids, |places, _| places.add_same_as(forward));
        self.backwards.insert((forward, name), id);
        id
    }

    /// Two places in one line are one stack.
    fn stack_of(&mut self, frames: Vec<Frame>) -> u32 {
        let mut ids = Vec::with_capacity(frames.len());
        for frame in &frames {
            let key = (self.string(&frame.name), self.string(&frame.file), frame.line);
            ids.push(self.frame(key));
        }
        if ids.is_empty() {
            return 0;
        }
        self.number_of(ids, |places, ids| places.add(&frames, ids))
    }

    /// The number of a frame: function, file, line.
    fn frame(&mut self, key: (u32, u32, u32)) -> u32 {
        let next = self.frames.len() as u32;
        let id = *self.frames.entry(key).or_insert(next);
        if id == next {
            for number in [key.0, key.1, key.2] {
                self.new_frames.body.varint(u64::from(number));
            }
            self.new_frames.count += 1;
        }
        id
    }

    /// The number of the stack of these frames; a new one gets its line by `place`.
    fn number_of(&mut self, ids: Vec<u32>, place: impl FnOnce(&mut Places, &[u32])) -> u32 {
        if let Some(id) = self.stacks.get(ids.as_slice()) {
            return *id;
        }
        self.new_stacks.body.varint(ids.len() as u64);
        for id in &ids {
            self.new_stacks.body.varint(u64::from(*id));
        }
        self.new_stacks.count += 1;
        place(&mut self.places, &ids);
        let ids: Arc<[u32]> = ids.into();
        self.by_id.push(Arc::clone(&ids));
        let id = self.by_id.len() as u32;
        self.stacks.insert(ids, id);
        id
    }

    /// Writes what is new with `chunk`, which says whether it was written. Whether all is written that events refer to.
    pub(crate) fn write(&mut self, mut chunk: impl FnMut(Kind, &[u8]) -> bool) -> bool {
        let tables = [
            (Kind::Strings, &mut self.new_strings),
            (Kind::Frames, &mut self.new_frames),
            (Kind::Stacks, &mut self.new_stacks),
        ];
        for (kind, new) in tables {
            if new.count == 0 {
                continue;
            }
            let mut content = Content::default();
            content.varint(new.count);
            content.0.extend_from_slice(&new.body.0);
            if !chunk(kind, &content.0) {
                return false;
            }
            *new = Unwritten::default();
        }
        true
    }
}
