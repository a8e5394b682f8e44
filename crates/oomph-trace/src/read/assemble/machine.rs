//! The stack machine that front ends drive: values are pushed, lists, tuples and dictionaries closed.
//!
//! Boundary: lists that turn out to be rows or stacks are kept as such; what a dictionary is, [`super::typed`] says.

use super::value::{Value, View, known};
use crate::intern::{FrameId, NO_STACK, StackId, Stacks, StringId, Strings};
use crate::recording::{Block, Events, Segment};
use hashbrown::HashMap;

/// What a finished dictionary turned out to be.
#[derive(Clone, Copy, Debug)]
pub(super) enum DictState {
    Empty,
    Event(u32),
    Frame(FrameId),
    Block(u32),
    Segment(u32),
    /// Anything else: index into `pairs`.
    Pairs(u32),
}

/// What a list holds so far.
#[derive(Clone, Copy, Debug)]
pub(super) enum ListState {
    Empty,
    /// Frames, interned.
    Stack(StackId),
    /// Rows of one table, one after the other.
    Rows(Rows, u32, u32),
    /// Anything else: index into `items`.
    Items(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rows {
    Events,
    Blocks,
    Segments,
}

/// What was passed over, by reason.
#[derive(Default)]
pub(super) struct Skipped {
    pub(super) events: u64,
    pub(super) segments: u64,
    pub(super) blocks: u64,
    pub(super) shared: u64,
    pub(super) devices: u64,
}

/// The machine: a stack of values, and what finished ones turned out to be.
pub struct Assembler {
    pub(super) stack: Vec<Value>,
    pub(super) marks: Vec<u32>,
    pub(super) wide: Vec<i128>,
    pub(super) floats: Vec<f64>,
    pub(super) lists: Vec<ListState>,
    pub(super) dicts: Vec<DictState>,
    pub(super) tuples: Vec<Box<[Value]>>,
    pub(super) items: Vec<Vec<Value>>,
    pub(super) pairs: Vec<Vec<(Value, Value)>>,
    pub(super) strings: Strings,
    pub(super) stacks: Stacks,
    pub(super) events: Events,
    pub(super) segments: Vec<RawSegment>,
    pub(super) blocks: Vec<Block>,
    pub(super) streams: Vec<i64>,
    pub(super) stream_ids: HashMap<i64, u32>,
    pub(super) last_stream: (i64, u32),
    pub(super) frame_buffer: Vec<FrameId>,
    pub(super) skipped: Skipped,
}

/// A segment, and the number of its device as the file has it.
pub(super) struct RawSegment {
    pub(super) device: i64,
    pub(super) segment: Segment,
}

impl Assembler {
    pub fn new() -> Self {
        let mut strings = Strings::default();
        for text in known::TEXTS {
            strings.intern(text);
        }
        let mut assembler = Self {
            stack: Vec::new(),
            marks: Vec::new(),
            wide: Vec::new(),
            floats: Vec::new(),
            lists: Vec::new(),
            dicts: Vec::new(),
            tuples: Vec::new(),
            items: Vec::new(),
            pairs: Vec::new(),
            strings,
            stacks: Stacks::default(),
            events: Events::default(),
            segments: Vec::new(),
            blocks: Vec::new(),
            streams: Vec::new(),
            stream_ids: HashMap::new(),
            last_stream: (0, 0),
            frame_buffer: Vec::new(),
            skipped: Skipped::default(),
        };
        assembler.stream(0);
        assembler
    }

    #[inline]
    pub fn push(&mut self, value: Value) {
        self.stack.push(value);
    }

    #[inline]
    pub fn push_int(&mut self, value: i64) {
        match Value::int(value) {
            Some(value) => self.stack.push(value),
            None => self.push_wide(i128::from(value)),
        }
    }

    pub fn push_wide(&mut self, value: i128) {
        match i64::try_from(value).ok().and_then(Value::int) {
            Some(small) => self.stack.push(small),
            None => {
                self.stack.push(Value::tagged(3, self.wide.len() as u64));
                self.wide.push(value);
            }
        }
    }

    pub fn push_float(&mut self, value: f64) {
        self.stack.push(Value::tagged(4, self.floats.len() as u64));
        self.floats.push(value);
    }

    pub fn push_text(&mut self, text: &str) {
        let id = self.strings.intern(text);
        self.stack.push(Value::text(id));
    }

    pub fn intern(&mut self, text: &str) -> StringId {
        self.strings.intern(text)
    }

    #[inline]
    pub fn push_new_list(&mut self) -> u32 {
        let id = self.lists.len() as u32;
        self.stack.push(Value::list(id));
        self.lists.push(ListState::Empty);
        id
    }

    #[inline]
    pub fn push_new_dict(&mut self) {
        self.stack.push(Value::dict(self.dicts.len() as u32));
        self.dicts.push(DictState::Empty);
    }

    #[inline]
    pub fn mark(&mut self) {
        self.marks.push(self.stack.len() as u32);
    }

    #[inline]
    pub fn top(&self) -> Option<Value> {
        // A value below the innermost mark is not on top of anything.
        let floor = self.marks.last().map_or(0, |&m| m as usize);
        if self.stack.len() > floor { self.stack.last().copied() } else { None }
    }

    pub fn pop(&mut self) -> Option<Value> {
        let top = self.top();
        if top.is_some() {
            self.stack.pop();
        }
        top
    }

    pub fn pop_mark(&mut self) -> Option<usize> {
        self.marks.pop().map(|m| m as usize)
    }

    /// How many values are on the stack.
    pub fn len(&self) -> usize {
        self.stack.len()
    }

    pub fn truncate(&mut self, length: usize) {
        self.stack.truncate(length);
    }

    /// Where the topmost `count` values start, if that many lie above the innermost mark.
    #[inline]
    pub fn above_mark(&self, count: usize) -> Option<usize> {
        let floor = self.marks.last().map_or(0, |&m| m as usize);
        self.stack.len().checked_sub(count).filter(|&start| start >= floor)
    }

    pub fn depth_is_one(&self) -> bool {
        self.stack.len() == 1 && self.marks.is_empty()
    }

    pub fn describe(&self, value: Value) -> &str {
        match value.view() {
            View::Text(id) => self.strings.get(id),
            _ => "?",
        }
    }

    /// `start..` are the elements of a tuple.
    pub fn close_tuple(&mut self, start: usize) {
        let start = start.min(self.stack.len());
        let elements: Box<[Value]> = self.stack.drain(start..).collect();
        self.stack.push(Value::tagged(8, self.tuples.len() as u64));
        self.tuples.push(elements);
    }

    /// `start..` are items for the list below `start`. False if there is no list there.
    #[inline]
    pub fn append_items(&mut self, start: usize) -> bool {
        let Some(View::List(list)) = start.checked_sub(1).and_then(|i| self.stack.get(i)).map(|v| v.view())
        else {
            return false;
        };
        self.extend_list(list as usize, start, self.stack.len());
        self.stack.truncate(start);
        true
    }

    pub(super) fn extend_list(&mut self, list: usize, start: usize, end: usize) {
        if start == end {
            return;
        }
        if self.append_rows(list, start, end) || self.append_frames(list, start, end) {
            return;
        }
        let index = self.items_of(list);
        self.items[index].extend_from_slice(&self.stack[start..end]);
    }

    /// Rows of one table that follow on from what the list holds: only the range grows.
    fn append_rows(&mut self, list: usize, start: usize, end: usize) -> bool {
        let (kind, first, mut next) = match (self.lists[list], self.row(self.stack[start])) {
            (ListState::Rows(kind, first, end), _) => (kind, first, end),
            (ListState::Empty, Some((kind, row))) => (kind, row, row),
            _ => return false,
        };
        for &value in &self.stack[start..end] {
            if self.row(value) != Some((kind, next)) {
                return false;
            }
            next += 1;
        }
        self.lists[list] = ListState::Rows(kind, first, next);
        true
    }

    #[inline]
    pub(super) fn row(&self, value: Value) -> Option<(Rows, u32)> {
        let dict = match value.view() {
            View::Event(row) => return Some((Rows::Events, row)),
            View::Dict(dict) => dict,
            _ => return None,
        };
        match *self.dicts.get(dict as usize)? {
            DictState::Event(row) => Some((Rows::Events, row)),
            DictState::Block(row) => Some((Rows::Blocks, row)),
            DictState::Segment(row) => Some((Rows::Segments, row)),
            _ => None,
        }
    }

    fn append_frames(&mut self, list: usize, start: usize, end: usize) -> bool {
        let before = match self.lists[list] {
            ListState::Empty => NO_STACK,
            ListState::Stack(stack) => stack,
            _ => return false,
        };
        self.frame_buffer.clear();
        self.frame_buffer.extend_from_slice(self.stacks.get(before));
        for &value in &self.stack[start..end] {
            let View::Dict(dict) = value.view() else { return false };
            let Some(DictState::Frame(frame)) = self.dicts.get(dict as usize) else { return false };
            self.frame_buffer.push(*frame);
        }
        self.lists[list] = ListState::Stack(self.stacks.intern(&self.frame_buffer));
        true
    }

    /// Turns whatever the list holds into plain items, and gives their index.
    fn items_of(&mut self, list: usize) -> usize {
        let items = match self.lists[list] {
            ListState::Items(index) => return index as usize,
            ListState::Empty => Vec::new(),
            ListState::Stack(stack) => {
                let frames: Vec<FrameId> = self.stacks.get(stack).to_vec();
                frames.into_iter().map(|frame| self.new_dict(DictState::Frame(frame))).collect()
            }
            ListState::Rows(kind, first, end) => (first..end)
                .map(|row| match kind {
                    Rows::Events => Value::event(row),
                    Rows::Blocks => self.new_dict(DictState::Block(row)),
                    Rows::Segments => self.new_dict(DictState::Segment(row)),
                })
                .collect(),
        };
        self.items.push(items);
        self.lists[list] = ListState::Items((self.items.len() - 1) as u32);
        self.items.len() - 1
    }

    fn new_dict(&mut self, state: DictState) -> Value {
        self.dicts.push(state);
        Value::dict((self.dicts.len() - 1) as u32)
    }

    /// `start..` are keys and values for the dictionary below `start`. False if there is none, or one
    /// value is without its key.
    #[inline]
    pub fn set_items(&mut self, start: usize) -> bool {
        let Some(View::Dict(dict)) = start.checked_sub(1).and_then(|i| self.stack.get(i)).map(|v| v.view())
        else {
            return false;
        };
        let end = self.stack.len();
        if !(end - start).is_multiple_of(2) {
            return false;
        }
        if end > start {
            self.extend_dict(dict as usize, start, end);
        }
        self.stack.truncate(start);
        true
    }

    fn extend_dict(&mut self, dict: usize, start: usize, end: usize) {
        if matches!(self.dicts[dict], DictState::Empty) {
            if let Some(state) = self.recognise(start, end) {
                self.dicts[dict] = state;
                return;
            }
            self.pairs.push(Vec::with_capacity((end - start) / 2));
            self.dicts[dict] = DictState::Pairs((self.pairs.len() - 1) as u32);
        }
        // A dictionary that grows after it was recognised keeps what it was: no writer does this.
        if let DictState::Pairs(index) = self.dicts[dict] {
            let pairs = &mut self.pairs[index as usize];
            pairs.extend(self.stack[start..end].chunks_exact(2).map(|p| (p[0], p[1])));
        }
    }

    /// The stack that a value stands for, if it is a list that can be one.
    #[inline]
    pub fn stack_of(&self, value: Value) -> Option<StackId> {
        match value.view() {
            View::Stack(stack) => Some(stack),
            View::List(list) => match self.lists.get(list as usize)? {
                ListState::Stack(stack) => Some(*stack),
                ListState::Empty => Some(NO_STACK),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether the value on top is a finished event.
    pub fn top_is_event(&self) -> bool {
        self.top().is_some_and(|value| matches!(self.row(value), Some((Rows::Events, _))))
    }
}
