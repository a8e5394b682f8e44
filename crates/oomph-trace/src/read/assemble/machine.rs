//! The stack machine that front ends drive: values are pushed, lists, tuples and dictionaries closed.
//!
//! Boundary: lists that turn out to be rows or stacks are kept as such; what a dictionary is, [`super::typed`] says.

use super::value::{Value, View, known};
use crate::budget::{Budget, Swells};
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

/// Texts longer than this are cut: nothing in a snapshot is that long, and a name of a megabyte is useless, and is looked at again and again.
pub(crate) const LONGEST_TEXT: usize = 1 << 16;

fn cut(text: &str) -> &str {
    let end = (0..=LONGEST_TEXT).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

/// What a list holds so far.
#[derive(Clone, Copy, Debug)]
pub(super) enum ListState {
    Empty,
    /// Frames, interned.
    Stack(StackId),
    /// Frames of a list that has grown since: index into `growing`. Interned when something asks for the stack.
    Frames(u32),
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
pub(crate) struct Assembler {
    budget: Budget,
    /// Values that the stack may hold before [`Assembler::make_room`] is asked; none once the budget is spent.
    room: usize,
    pub(super) stack: Vec<Value>,
    pub(super) marks: Vec<u32>,
    pub(super) wide: Vec<i128>,
    pub(super) floats: Vec<f64>,
    pub(super) lists: Vec<ListState>,
    pub(super) dicts: Vec<DictState>,
    /// Where each tuple ends in `tuple_items`.
    tuples: Vec<usize>,
    tuple_items: Vec<Value>,
    growing: Vec<Vec<FrameId>>,
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
    pub(crate) fn new(budget: Budget) -> Self {
        let mut strings = Strings::default();
        for text in known::TEXTS {
            strings.intern(text);
        }
        let mut assembler = Self {
            budget,
            room: 0,
            stack: Vec::new(),
            marks: Vec::new(),
            wide: Vec::new(),
            floats: Vec::new(),
            lists: Vec::new(),
            dicts: Vec::new(),
            tuples: Vec::new(),
            tuple_items: Vec::new(),
            growing: Vec::new(),
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

    /// Bytes that are about to be stored. False if they must not be: nothing more is read then.
    #[inline]
    pub(crate) fn charge(&mut self, bytes: usize, what: &'static str) -> bool {
        let may = self.budget.charge(bytes, what);
        if !may {
            self.room = 0;
        }
        may
    }

    /// Steps that are about to be done. False if they must not be: nothing more is read then.
    #[inline]
    pub(crate) fn work(&mut self, steps: usize, what: &'static str) -> bool {
        let may = self.budget.work(steps, what);
        if !may {
            self.room = 0;
        }
        may
    }

    /// Whether [`Assembler::make_room`] must be asked before anything is pushed.
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        self.stack.len() >= self.room
    }

    /// Room for more values on the stack, or why there is none. (The C++ writer leaves a whole trace there before it closes the list.)
    #[cold]
    pub(crate) fn make_room(&mut self) -> Result<(), Swells> {
        const VALUES: usize = 1 << 12;
        self.check()?;
        // Twice: room grows by doubling.
        if self.charge(2 * VALUES * size_of::<Value>(), "values that nothing holds") {
            self.room = self.stack.len() + VALUES;
        }
        self.check()
    }

    /// Why nothing more may be read, if so.
    pub(crate) fn check(&self) -> Result<(), Swells> {
        self.budget.refused().map_or(Ok(()), Err)
    }

    #[inline]
    pub(crate) fn push(&mut self, value: Value) {
        self.stack.push(value);
    }

    #[inline]
    pub(crate) fn push_int(&mut self, value: i64) {
        match Value::int(value) {
            Some(value) => self.stack.push(value),
            None => self.push_wide(i128::from(value)),
        }
    }

    pub(crate) fn push_wide(&mut self, value: i128) {
        match i64::try_from(value).ok().and_then(Value::int) {
            Some(small) => self.stack.push(small),
            None => {
                self.charge(24, "large numbers");
                self.stack.push(Value::tagged(3, self.wide.len() as u64));
                self.wide.push(value);
            }
        }
    }

    pub(crate) fn push_float(&mut self, value: f64) {
        self.charge(12, "numbers");
        self.stack.push(Value::tagged(4, self.floats.len() as u64));
        self.floats.push(value);
    }

    pub(crate) fn push_text(&mut self, text: &str) {
        let id = self.intern(text);
        self.stack.push(Value::text(id));
    }

    pub(crate) fn intern(&mut self, text: &str) -> StringId {
        let text = if text.len() > LONGEST_TEXT { cut(text) } else { text };
        let before = self.strings.len();
        let id = self.strings.intern(text);
        if self.strings.len() > before {
            self.charge(2 * text.len() + 24, "texts");
        }
        id
    }

    #[inline]
    pub(crate) fn push_new_list(&mut self) -> u32 {
        let id = self.lists.len() as u32;
        self.charge(16, "lists");
        self.stack.push(Value::list(id));
        self.lists.push(ListState::Empty);
        id
    }

    #[inline]
    pub(crate) fn push_new_dict(&mut self) {
        self.charge(12, "dictionaries");
        self.stack.push(Value::dict(self.dicts.len() as u32));
        self.dicts.push(DictState::Empty);
    }

    #[inline]
    pub(crate) fn mark(&mut self) {
        self.marks.push(self.stack.len() as u32);
    }

    #[inline]
    pub(crate) fn top(&self) -> Option<Value> {
        // A value below the innermost mark is not on top of anything.
        let floor = self.marks.last().map_or(0, |&m| m as usize);
        if self.stack.len() > floor { self.stack.last().copied() } else { None }
    }

    pub(crate) fn pop(&mut self) -> Option<Value> {
        let top = self.top();
        if top.is_some() {
            self.stack.pop();
        }
        top
    }

    pub(crate) fn pop_mark(&mut self) -> Option<usize> {
        self.marks.pop().map(|m| m as usize)
    }

    /// How many values are on the stack.
    pub(crate) fn len(&self) -> usize {
        self.stack.len()
    }

    pub(crate) fn truncate(&mut self, length: usize) {
        self.stack.truncate(length);
    }

    /// Where the topmost `count` values start, if that many lie above the innermost mark.
    #[inline]
    pub(crate) fn above_mark(&self, count: usize) -> Option<usize> {
        let floor = self.marks.last().map_or(0, |&m| m as usize);
        self.stack.len().checked_sub(count).filter(|&start| start >= floor)
    }

    pub(crate) fn depth_is_one(&self) -> bool {
        self.stack.len() == 1 && self.marks.is_empty()
    }

    pub(crate) fn describe(&self, value: Value) -> &str {
        match value.view() {
            View::Text(id) => self.strings.get(id),
            _ => "?",
        }
    }

    /// `start..` are the elements of a tuple.
    pub(crate) fn close_tuple(&mut self, start: usize) {
        let start = start.min(self.stack.len());
        self.charge(12 * (self.stack.len() - start + 1), "tuples");
        self.tuple_items.extend(self.stack.drain(start..));
        self.stack.push(Value::tagged(8, self.tuples.len() as u64));
        self.tuples.push(self.tuple_items.len());
    }

    /// The elements of a tuple.
    pub(super) fn tuple(&self, index: u32) -> &[Value] {
        let index = index as usize;
        let start = index.checked_sub(1).and_then(|before| self.tuples.get(before)).copied().unwrap_or(0);
        self.tuples.get(index).map_or(&[], |&end| &self.tuple_items[start..end])
    }

    /// `start..` are items for the list below `start`. False if there is no list there.
    #[inline]
    pub(crate) fn append_items(&mut self, start: usize) -> bool {
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
        let Some(index) = self.items_of(list) else { return };
        if self.charge(12 * (end - start), "lists") {
            self.items[index].extend_from_slice(&self.stack[start..end]);
        }
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
        let state = self.lists[list];
        if !matches!(state, ListState::Empty | ListState::Stack(_) | ListState::Frames(_)) {
            return false;
        }
        self.frame_buffer.clear();
        for &value in &self.stack[start..end] {
            let View::Dict(dict) = value.view() else { return false };
            let Some(DictState::Frame(frame)) = self.dicts.get(dict as usize) else { return false };
            self.frame_buffer.push(*frame);
        }
        // A list that grows is a stack only when something asks for it: a stack for each frame that is added would take the square of its length.
        match state {
            ListState::Stack(stack) => {
                if self.charge(6 * self.stacks.get(stack).len() + 48, "stacks") {
                    self.growing.push(self.stacks.get(stack).to_vec());
                    self.lists[list] = ListState::Frames((self.growing.len() - 1) as u32);
                    self.extend_growing(self.growing.len() - 1);
                }
            }
            ListState::Frames(index) => self.extend_growing(index as usize),
            _ => {
                let frames = std::mem::take(&mut self.frame_buffer);
                self.lists[list] = ListState::Stack(self.intern_stack(&frames));
                self.frame_buffer = frames;
            }
        }
        true
    }

    fn extend_growing(&mut self, index: usize) {
        if self.charge(6 * self.frame_buffer.len(), "stacks") {
            self.growing[index].extend_from_slice(&self.frame_buffer);
        }
    }

    fn intern_stack(&mut self, frames: &[FrameId]) -> StackId {
        if !self.work(frames.len(), "stacks") {
            return NO_STACK;
        }
        let before = self.stacks.len();
        let stack = self.stacks.intern(frames);
        if self.stacks.len() > before {
            self.charge(6 * frames.len() + 32, "stacks");
        }
        stack
    }

    /// Turns whatever the list holds into plain items, and gives their index.
    fn items_of(&mut self, list: usize) -> Option<usize> {
        let length = match self.lists[list] {
            ListState::Items(index) => return Some(index as usize),
            ListState::Empty => 0,
            ListState::Stack(stack) => self.stacks.get(stack).len(),
            ListState::Frames(index) => self.growing[index as usize].len(),
            ListState::Rows(_, first, end) => (end - first) as usize,
        };
        if !self.charge(24 * length + 32, "lists") {
            return None;
        }
        let items = match self.lists[list] {
            ListState::Empty | ListState::Items(_) => Vec::new(),
            ListState::Stack(stack) => {
                let frames: Vec<FrameId> = self.stacks.get(stack).to_vec();
                frames.into_iter().map(|frame| self.new_dict(DictState::Frame(frame))).collect()
            }
            ListState::Frames(index) => {
                let frames = std::mem::take(&mut self.growing[index as usize]);
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
        Some(self.items.len() - 1)
    }

    fn new_dict(&mut self, state: DictState) -> Value {
        self.dicts.push(state);
        Value::dict((self.dicts.len() - 1) as u32)
    }

    /// `start..` are keys and values for the dictionary below `start`. False if there is none, or one
    /// value is without its key.
    #[inline]
    pub(crate) fn set_items(&mut self, start: usize) -> bool {
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
            if !self.charge(32, "dictionaries") {
                return;
            }
            self.pairs.push(Vec::new());
            self.dicts[dict] = DictState::Pairs((self.pairs.len() - 1) as u32);
        }
        // A dictionary that grows after it was recognised keeps what it was: no writer does this.
        if let DictState::Pairs(index) = self.dicts[dict]
            && self.charge(12 * (end - start), "dictionaries")
        {
            let pairs = &mut self.pairs[index as usize];
            pairs.extend(self.stack[start..end].chunks_exact(2).map(|p| (p[0], p[1])));
        }
    }

    /// The stack that a value stands for, if it is a list that can be one.
    #[inline]
    pub(crate) fn stack_of(&mut self, value: Value) -> Option<StackId> {
        match value.view() {
            View::Stack(stack) => Some(stack),
            View::List(list) => match *self.lists.get(list as usize)? {
                ListState::Stack(stack) => Some(stack),
                ListState::Empty => Some(NO_STACK),
                ListState::Frames(index) => {
                    let frames = std::mem::take(&mut self.growing[index as usize]);
                    let stack = self.intern_stack(&frames);
                    self.lists[list as usize] = ListState::Stack(stack);
                    Some(stack)
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether the value on top is a finished event.
    pub(crate) fn top_is_event(&self) -> bool {
        self.top().is_some_and(|value| matches!(self.row(value), Some((Rows::Events, _))))
    }
}
