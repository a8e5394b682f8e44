//! Strings, frames and stacks, each stored once and named by a small integer.
//!
//! A recording repeats the same few thousand source lines millions of times. Everything above this module
//! compares and groups by id; text is looked up only when something is printed.

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use std::hash::BuildHasher;

/// Names a string of a [`Strings`] table.
pub type StringId = u32;
/// Names a frame of a [`Stacks`] table.
pub type FrameId = u32;
/// Names a stack of a [`Stacks`] table. [`NO_STACK`] is the empty one.
pub type StackId = u32;

/// The stack of an event that was recorded without one (also what autograd's own threads give).
pub const NO_STACK: StackId = 0;

/// An append-only set of strings. Id 0 is always the empty string.
#[derive(Clone, Debug)]
pub struct Strings {
    text: String,
    ends: Vec<usize>,
    table: HashTable<StringId>,
    hasher: DefaultHashBuilder,
}

impl Default for Strings {
    fn default() -> Self {
        let mut strings = Self {
            text: String::new(),
            ends: Vec::new(),
            table: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
        };
        strings.intern("");
        strings
    }
}

impl Strings {
    /// The id of `text`, adding it if it is new.
    pub fn intern(&mut self, text: &str) -> StringId {
        let hash = self.hasher.hash_one(text);
        if let Some(id) = self.table.find(hash, |&id| self.get(id) == text) {
            return *id;
        }
        let id = self.ends.len() as StringId;
        self.text.push_str(text);
        self.ends.push(self.text.len());
        let Self { text: all, ends, table, hasher } = self;
        table.insert_unique(hash, id, |&id| hasher.hash_one(slice(all, ends, id)));
        id
    }

    /// The text behind `id`; empty for an id that was never given out.
    pub fn get(&self, id: StringId) -> &str {
        slice(&self.text, &self.ends, id)
    }

    /// How many strings there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is nothing but the empty string.
    pub fn is_empty(&self) -> bool {
        self.ends.len() <= 1
    }
}

fn slice<'a>(text: &'a str, ends: &[usize], id: StringId) -> &'a str {
    let id = id as usize;
    let start = if id == 0 { 0 } else { ends.get(id - 1).copied().unwrap_or(0) };
    let end = ends.get(id).copied().unwrap_or(start);
    text.get(start..end).unwrap_or("")
}

/// One line of one function of one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Function name.
    pub name: StringId,
    /// File name as recorded.
    pub file: StringId,
    /// Line number, 0 when unknown.
    pub line: u32,
}

/// An append-only set of stacks (innermost frame first) over an append-only set of frames.
#[derive(Clone, Debug)]
pub struct Stacks {
    frames: Vec<Frame>,
    frame_ids: HashMap<Frame, FrameId>,
    items: Vec<FrameId>,
    ends: Vec<usize>,
    table: HashTable<StackId>,
    hasher: DefaultHashBuilder,
}

impl Default for Stacks {
    fn default() -> Self {
        let mut stacks = Self {
            frames: Vec::new(),
            frame_ids: HashMap::new(),
            items: Vec::new(),
            ends: Vec::new(),
            table: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
        };
        stacks.intern(&[]);
        stacks
    }
}

impl Stacks {
    /// The id of a frame, adding it if it is new.
    pub fn intern_frame(&mut self, frame: Frame) -> FrameId {
        let Self { frames, frame_ids, .. } = self;
        *frame_ids.entry(frame).or_insert_with(|| {
            frames.push(frame);
            (frames.len() - 1) as FrameId
        })
    }

    /// The next id, for a frame of a file: two that have been given the same name stay two.
    pub(crate) fn push_frame(&mut self, frame: Frame) {
        self.frame_ids.entry(frame).or_insert(self.frames.len() as FrameId);
        self.frames.push(frame);
    }

    /// The id of a stack, adding it if it is new.
    pub fn intern(&mut self, stack: &[FrameId]) -> StackId {
        let hash = self.hasher.hash_one(stack);
        if let Some(id) = self.table.find(hash, |&id| self.get(id) == stack) {
            return *id;
        }
        let id = self.ends.len() as StackId;
        self.items.extend_from_slice(stack);
        self.ends.push(self.items.len());
        let Self { items, ends, table, hasher, .. } = self;
        table.insert_unique(hash, id, |&id| hasher.hash_one(stack_slice(items, ends, id)));
        id
    }

    /// The frames of a stack, innermost first; empty for an id that was never given out.
    pub fn get(&self, id: StackId) -> &[FrameId] {
        stack_slice(&self.items, &self.ends, id)
    }

    /// A frame by id; an unknown id gives the empty frame.
    pub fn frame(&self, id: FrameId) -> Frame {
        self.frames.get(id as usize).copied().unwrap_or_default()
    }

    /// Gives a frame another name. Two may be alike afterwards; they stay two.
    pub(crate) fn rename(&mut self, id: FrameId, name: StringId) {
        if let Some(frame) = self.frames.get_mut(id as usize) {
            frame.name = name;
        }
    }

    /// All frames in id order.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// How many stacks there are, the empty one included.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is nothing but the empty stack.
    pub fn is_empty(&self) -> bool {
        self.ends.len() <= 1
    }
}

fn stack_slice<'a>(items: &'a [FrameId], ends: &[usize], id: StackId) -> &'a [FrameId] {
    let id = id as usize;
    let start = if id == 0 { 0 } else { ends.get(id - 1).copied().unwrap_or(0) };
    let end = ends.get(id).copied().unwrap_or(start);
    items.get(start..end).unwrap_or(&[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_strings_share_an_id_and_unknown_ids_are_empty() {
        let mut strings = Strings::default();
        let a = strings.intern("alloc");
        assert_eq!(strings.intern("alloc"), a);
        assert_ne!(strings.intern("free"), a);
        assert_eq!(strings.get(a), "alloc");
        assert_eq!(strings.get(99), "");
        assert_eq!(strings.intern(""), 0);
    }

    #[test]
    fn stacks_are_compared_by_content() {
        let mut stacks = Stacks::default();
        let f = |line| Frame { name: 1, file: 2, line };
        let (a, b) = (stacks.intern_frame(f(1)), stacks.intern_frame(f(2)));
        assert_eq!(stacks.intern_frame(f(1)), a);
        let ab = stacks.intern(&[a, b]);
        assert_eq!(stacks.intern(&[a, b]), ab);
        assert_ne!(stacks.intern(&[b, a]), ab);
        assert_eq!(stacks.get(ab), &[a, b]);
        assert_eq!(stacks.intern(&[]), NO_STACK);
        assert_eq!(stacks.get(1234), &[] as &[FrameId]);
    }
}
