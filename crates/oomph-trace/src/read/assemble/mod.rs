//! Puts a snapshot together from the operations that its encoding consists of.
//!
//! Pickle and JSON describe the same thing: nested lists and dictionaries. Both front ends drive this
//! little stack machine (push a value, open a list, close it); the machine recognises what a finished
//! dictionary *is* by its keys, and turns events, frames, blocks and segments into rows at once. No tree of
//! values is ever built for them, so memory follows the recording's size, not its encoding's.
//!
//! Boundary: nothing here executes or imports anything; a value is a number, a text, a list, a
//! dictionary or a tuple, and there is nothing else. Input is hostile: containers may be shared, refer to
//! themselves, or hold the wrong things. Each list is therefore *taken* once (a second taker finds it
//! empty), nothing recurses, and what makes no sense is counted and passed over.

mod finish;

use crate::intern::{Frame, FrameId, NO_STACK, StackId, Stacks, StringId, Strings};
use crate::recording::{Action, Block, BlockState, DEFAULT_POOL, Events, PoolId, Segment};
use crate::rounding::LARGEST_SIZE;
use hashbrown::{HashMap, HashSet};

macro_rules! known_strings {
    ($($name:ident = $text:literal),* $(,)?) => {
        /// Strings whose ids are fixed, so that recognising a key is comparing two integers.
        pub(in crate::read) mod known {
            #![allow(non_camel_case_types, clippy::upper_case_acronyms)]
            #[repr(u32)]
            enum Order { EMPTY, $($name),* }
            $(pub(in crate::read) const $name: u32 = Order::$name as u32;)*
            pub(in crate::read) const TEXTS: &[&str] = &["", $($text),*];
            const _: () = assert!(Order::EMPTY as u32 == 0);
        }
    };
}

known_strings! {
    ACTION = "action", ADDR = "addr", SIZE = "size", STREAM = "stream", TIME_US = "time_us",
    FRAMES = "frames", DEVICE_FREE = "device_free", COMPILE_CONTEXT = "compile_context",
    USER_METADATA = "user_metadata", POOL_ID = "pool_id", FORWARD_FRAMES = "forward_frames",
    CATEGORY = "category",
    ALLOC = "alloc", FREE_REQUESTED = "free_requested", FREE_COMPLETED = "free_completed", FREE = "free",
    SEGMENT_ALLOC = "segment_alloc", SEGMENT_FREE = "segment_free", SEGMENT_MAP = "segment_map",
    SEGMENT_UNMAP = "segment_unmap", SNAPSHOT = "snapshot", OOM = "oom", ANNOTATE = "annotate",
    NAME = "name", FILENAME = "filename", LINE = "line",
    STATE = "state", ADDRESS = "address", REQUESTED_SIZE = "requested_size", HISTORY = "history",
    REAL_SIZE = "real_size", ACTIVE_ALLOCATED = "active_allocated",
    ACTIVE_PENDING_FREE = "active_pending_free", ACTIVE_AWAITING_FREE = "active_awaiting_free",
    BLOCKS = "blocks", DEVICE = "device", TOTAL_SIZE = "total_size", SEGMENT_TYPE = "segment_type",
    SMALL = "small", SEGMENT_POOL_ID = "segment_pool_id", IS_EXPANDABLE = "is_expandable",
    SEGMENTS = "segments", DEVICE_TRACES = "device_traces", ALLOCATOR_SETTINGS = "allocator_settings",
    EXTERNAL_ANNOTATIONS = "external_annotations", TRACE_ALLOC_OVERFLOWED = "trace_alloc_overflowed",
    TRACE_ALLOC_MAX_ENTRIES = "trace_alloc_max_entries", HOST_SEGMENTS = "host_segments",
    HOST_TRACES = "host_traces", STAGE = "stage", START = "START", END = "END", NOT_COMPILED = "N/A",
}

/// A value on the machine's stack: 60 bits of content over 4 bits of kind, so that a hostile file of
/// one-byte opcodes costs eight bytes each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::read) struct Value(u64);

const TAG_BITS: u32 = 4;
const INLINE_INT_MAX: i64 = (1 << 59) - 1;

/// What a [`Value`] holds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(in crate::read) enum View {
    None,
    Bool(bool),
    Int(i64),
    /// Index into the table of numbers that do not fit inline.
    Wide(u32),
    Float(u32),
    Text(StringId),
    List(u32),
    Dict(u32),
    Tuple(u32),
    /// A finished event, without a dictionary of its own.
    Event(u32),
    /// A finished list of frames, without a list of its own.
    Stack(StackId),
}

impl Value {
    pub(in crate::read) const NONE: Self = Self(0);

    const fn tagged(tag: u64, payload: u64) -> Self {
        Self(payload << TAG_BITS | tag)
    }

    pub(in crate::read) fn bool(value: bool) -> Self {
        Self::tagged(1, u64::from(value))
    }

    pub(in crate::read) fn text(id: StringId) -> Self {
        Self::tagged(5, u64::from(id))
    }

    pub(in crate::read) fn list(id: u32) -> Self {
        Self::tagged(6, u64::from(id))
    }

    pub(in crate::read) fn dict(id: u32) -> Self {
        Self::tagged(7, u64::from(id))
    }

    pub(in crate::read) fn event(row: u32) -> Self {
        Self::tagged(9, u64::from(row))
    }

    pub(in crate::read) fn stack(id: StackId) -> Self {
        Self::tagged(10, u64::from(id))
    }

    #[inline]
    pub(in crate::read) fn view(self) -> View {
        let payload = self.0 >> TAG_BITS;
        match self.0 & 15 {
            0 => View::None,
            1 => View::Bool(payload != 0),
            2 => View::Int(self.0 as i64 >> TAG_BITS),
            3 => View::Wide(payload as u32),
            4 => View::Float(payload as u32),
            5 => View::Text(payload as u32),
            6 => View::List(payload as u32),
            7 => View::Dict(payload as u32),
            8 => View::Tuple(payload as u32),
            9 => View::Event(payload as u32),
            _ => View::Stack(payload as u32),
        }
    }

    #[inline]
    fn key(self) -> Option<StringId> {
        match self.view() {
            View::Text(id) => Some(id),
            _ => None,
        }
    }
}

/// What a finished dictionary turned out to be.
#[derive(Clone, Copy, Debug)]
enum DictState {
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
enum ListState {
    Empty,
    /// Frames, interned.
    Stack(StackId),
    /// Rows of one table, one after the other.
    Rows(Rows, u32, u32),
    /// Anything else: index into `items`.
    Items(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rows {
    Events,
    Blocks,
    Segments,
}

/// What was passed over, by reason.
#[derive(Default)]
struct Skipped {
    events: u64,
    segments: u64,
    blocks: u64,
    shared: u64,
    devices: u64,
}

pub(in crate::read) struct Assembler {
    stack: Vec<Value>,
    marks: Vec<u32>,
    wide: Vec<i128>,
    floats: Vec<f64>,
    lists: Vec<ListState>,
    dicts: Vec<DictState>,
    tuples: Vec<Box<[Value]>>,
    items: Vec<Vec<Value>>,
    pairs: Vec<Vec<(Value, Value)>>,
    strings: Strings,
    stacks: Stacks,
    events: Events,
    segments: Vec<RawSegment>,
    blocks: Vec<Block>,
    streams: Vec<i64>,
    stream_ids: HashMap<i64, u32>,
    last_stream: (i64, u32),
    frame_buffer: Vec<FrameId>,
    skipped: Skipped,
}

/// An event that a front end has decoded by itself. `stream` is the raw handle.
#[derive(Clone, Copy)]
pub(in crate::read) struct EventRow {
    pub(in crate::read) action: Action,
    pub(in crate::read) address: u64,
    pub(in crate::read) size: u64,
    pub(in crate::read) stream: i64,
    pub(in crate::read) stack: StackId,
    pub(in crate::read) time: i64,
}

impl Default for EventRow {
    fn default() -> Self {
        Self { action: Action::Other, address: 0, size: 0, stream: 0, stack: NO_STACK, time: 0 }
    }
}

struct RawSegment {
    device: i64,
    segment: Segment,
}

impl Assembler {
    pub(in crate::read) fn new() -> Self {
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

    // --- pushing -----------------------------------------------------------------------------------

    #[inline]
    pub(in crate::read) fn push(&mut self, value: Value) {
        self.stack.push(value);
    }

    #[inline]
    pub(in crate::read) fn push_int(&mut self, value: i64) {
        if (-INLINE_INT_MAX..=INLINE_INT_MAX).contains(&value) {
            self.stack.push(Value((value as u64) << TAG_BITS | 2));
        } else {
            self.push_wide(i128::from(value));
        }
    }

    pub(in crate::read) fn push_wide(&mut self, value: i128) {
        match i64::try_from(value) {
            Ok(small) if (-INLINE_INT_MAX..=INLINE_INT_MAX).contains(&small) => self.push_int(small),
            _ => {
                self.stack.push(Value::tagged(3, self.wide.len() as u64));
                self.wide.push(value);
            }
        }
    }

    pub(in crate::read) fn push_float(&mut self, value: f64) {
        self.stack.push(Value::tagged(4, self.floats.len() as u64));
        self.floats.push(value);
    }

    pub(in crate::read) fn push_text(&mut self, text: &str) {
        let id = self.strings.intern(text);
        self.stack.push(Value::text(id));
    }

    pub(in crate::read) fn intern(&mut self, text: &str) -> StringId {
        self.strings.intern(text)
    }

    #[inline]
    pub(in crate::read) fn push_new_list(&mut self) -> u32 {
        let id = self.lists.len() as u32;
        self.stack.push(Value::list(id));
        self.lists.push(ListState::Empty);
        id
    }

    #[inline]
    pub(in crate::read) fn push_new_dict(&mut self) {
        self.stack.push(Value::dict(self.dicts.len() as u32));
        self.dicts.push(DictState::Empty);
    }

    #[inline]
    pub(in crate::read) fn mark(&mut self) {
        self.marks.push(self.stack.len() as u32);
    }

    #[inline]
    pub(in crate::read) fn top(&self) -> Option<Value> {
        // A value below the innermost mark is not on top of anything.
        let floor = self.marks.last().map_or(0, |&m| m as usize);
        if self.stack.len() > floor { self.stack.last().copied() } else { None }
    }

    pub(in crate::read) fn pop(&mut self) -> Option<Value> {
        let top = self.top();
        if top.is_some() {
            self.stack.pop();
        }
        top
    }

    pub(in crate::read) fn pop_mark(&mut self) -> Option<usize> {
        self.marks.pop().map(|m| m as usize)
    }

    /// How many values are on the stack.
    pub(in crate::read) fn len(&self) -> usize {
        self.stack.len()
    }

    pub(in crate::read) fn truncate(&mut self, length: usize) {
        self.stack.truncate(length);
    }

    /// Where the topmost `count` values start, if that many lie above the innermost mark.
    #[inline]
    pub(in crate::read) fn above_mark(&self, count: usize) -> Option<usize> {
        let floor = self.marks.last().map_or(0, |&m| m as usize);
        self.stack.len().checked_sub(count).filter(|&start| start >= floor)
    }

    pub(in crate::read) fn depth_is_one(&self) -> bool {
        self.stack.len() == 1 && self.marks.is_empty()
    }

    pub(in crate::read) fn describe(&self, value: Value) -> &str {
        match value.view() {
            View::Text(id) => self.strings.get(id),
            _ => "?",
        }
    }

    // --- closing -----------------------------------------------------------------------------------

    /// `start..` are the elements of a tuple.
    pub(in crate::read) fn close_tuple(&mut self, start: usize) {
        let start = start.min(self.stack.len());
        let elements: Box<[Value]> = self.stack.drain(start..).collect();
        self.stack.push(Value::tagged(8, self.tuples.len() as u64));
        self.tuples.push(elements);
    }

    /// `start..` are items for the list below `start`. False if there is no list there.
    #[inline]
    pub(in crate::read) fn append_items(&mut self, start: usize) -> bool {
        let Some(View::List(list)) = start.checked_sub(1).and_then(|i| self.stack.get(i)).map(|v| v.view())
        else {
            return false;
        };
        self.extend_list(list as usize, start, self.stack.len());
        self.stack.truncate(start);
        true
    }

    fn extend_list(&mut self, list: usize, start: usize, end: usize) {
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
    fn row(&self, value: Value) -> Option<(Rows, u32)> {
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
    pub(in crate::read) fn set_items(&mut self, start: usize) -> bool {
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

    /// Tells by its keys what the dictionary `start..end` is, and stores it as that.
    #[inline]
    fn recognise(&mut self, start: usize, end: usize) -> Option<DictState> {
        // PyTorch writes the telling key first; other writers may not.
        let key = self.stack[start].key();
        let key = if key == Some(known::ACTION) {
            key
        } else {
            (start..end).step_by(2).map(|i| self.stack[i].key()).find(|&key| is_telling(key)).flatten()
        };
        match key? {
            known::ACTION => self.take_event(start, end),
            known::FILENAME => Some(self.take_frame(start, end)),
            known::BLOCKS => self.take_segment(start, end),
            _ => self.take_block(start, end),
        }
    }

    // --- typed dictionaries --------------------------------------------------------------------------

    #[inline]
    fn take_event(&mut self, start: usize, end: usize) -> Option<DictState> {
        let row = self.events.len() as u32;
        let mut event = EventRow::default();
        let mut size = Some(0u64);
        for i in (start..end).step_by(2) {
            let value = self.stack[i + 1];
            match self.stack[i].key() {
                Some(known::ACTION) => event.action = action_of(value),
                Some(known::ADDR | known::DEVICE_FREE) => event.address = self.address(value),
                Some(known::SIZE) => size = self.size(value),
                Some(known::STREAM) => event.stream = self.signed(value),
                Some(known::TIME_US) => event.time = self.signed(value),
                Some(known::FRAMES) => event.stack = self.stack_id(value),
                Some(known::COMPILE_CONTEXT) => {
                    if let View::Text(id) = value.view()
                        && id != 0
                        && id != known::NOT_COMPILED
                    {
                        self.events.compile_context.push((row, id));
                    }
                }
                Some(known::USER_METADATA) => {
                    if let View::Text(id) = value.view()
                        && id != 0
                    {
                        self.events.metadata.push((row, id));
                    }
                }
                Some(known::POOL_ID) => {
                    let pool = self.pool_id(value);
                    if pool != DEFAULT_POOL {
                        self.events.pool.push((row, pool));
                    }
                }
                Some(known::CATEGORY) => {
                    if let View::Text(id) = value.view() {
                        self.events.category.push((row, id));
                    }
                }
                Some(known::FORWARD_FRAMES) => {
                    if let Some(text) = self.joined_texts(value) {
                        self.events.forward.push((row, text));
                    }
                }
                _ => {}
            }
        }
        let Some(size) = size else {
            self.drop_sparse(row);
            self.skipped.events += 1;
            return None;
        };
        Some(DictState::Event(self.add_event(EventRow { size, ..event })))
    }

    #[inline]
    fn add_event(&mut self, event: EventRow) -> u32 {
        let stream = self.stream(event.stream);
        let events = &mut self.events;
        events.action.push(event.action);
        events.address.push(event.address);
        events.size.push(event.size);
        events.stream.push(stream);
        events.stack.push(event.stack);
        events.time.push(event.time);
        (events.action.len() - 1) as u32
    }

    /// Pushes a whole event, as if its dictionary had been put together here.
    #[inline]
    pub(in crate::read) fn push_event(&mut self, event: EventRow) -> Value {
        let value = Value::event(self.add_event(event));
        self.stack.push(value);
        value
    }

    /// The stack that a value stands for, if it is a list that can be one.
    #[inline]
    pub(in crate::read) fn stack_of(&self, value: Value) -> Option<StackId> {
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
    pub(in crate::read) fn top_is_event(&self) -> bool {
        self.top().is_some_and(|value| matches!(self.row(value), Some((Rows::Events, _))))
    }

    /// Takes back what a row that is not to be had put into sparse columns.
    fn drop_sparse(&mut self, row: u32) {
        let events = &mut self.events;
        for column in
            [&mut events.compile_context, &mut events.metadata, &mut events.category, &mut events.forward]
        {
            column.truncate(column.partition_point(|&(r, _)| r < row));
        }
        events.pool.truncate(events.pool.partition_point(|&(r, _)| r < row));
    }

    fn take_frame(&mut self, start: usize, end: usize) -> DictState {
        let mut frame = Frame::default();
        for i in (start..end).step_by(2) {
            let value = self.stack[i + 1];
            match (self.stack[i].key(), value.view()) {
                (Some(known::NAME), View::Text(id)) => frame.name = id,
                (Some(known::FILENAME), View::Text(id)) => frame.file = id,
                (Some(known::LINE), View::Int(line)) => frame.line = u32::try_from(line).unwrap_or(0),
                _ => {}
            }
        }
        DictState::Frame(self.stacks.intern_frame(frame))
    }

    fn take_block(&mut self, start: usize, end: usize) -> Option<DictState> {
        let mut block = Block::default();
        let mut size = None;
        let (mut requested, mut history, mut has_frames) = (None, None, false);
        for i in (start..end).step_by(2) {
            let value = self.stack[i + 1];
            match self.stack[i].key() {
                Some(known::ADDRESS) => block.address = self.address(value),
                Some(known::SIZE) => size = self.size(value),
                Some(known::REQUESTED_SIZE) => requested = self.size(value),
                Some(known::STATE) => {
                    block.state = match value.key() {
                        Some(known::ACTIVE_ALLOCATED) => BlockState::Allocated,
                        Some(known::ACTIVE_PENDING_FREE | known::ACTIVE_AWAITING_FREE) => {
                            BlockState::PendingFree
                        }
                        _ => BlockState::Free,
                    }
                }
                Some(known::FRAMES) => {
                    has_frames = true;
                    block.stack = self.stack_id(value);
                }
                Some(known::HISTORY) => history = Some(value),
                _ => {}
            }
        }
        let Some(size) = size else {
            self.skipped.blocks += 1;
            return None;
        };
        block.size = size;
        if !has_frames && let Some(history) = history {
            // PyTorch 1.13 to 2.0: the newest allocation that lived in the block comes first.
            let (real_size, stack) = self.newest_of_history(history);
            requested = requested.or(real_size);
            block.stack = stack;
        }
        block.requested = requested.unwrap_or(size);
        self.blocks.push(block);
        Some(DictState::Block((self.blocks.len() - 1) as u32))
    }

    fn newest_of_history(&self, history: Value) -> (Option<u64>, StackId) {
        let newest = match history.view() {
            View::List(list) => match self.lists.get(list as usize) {
                Some(ListState::Items(index)) => self.items[*index as usize].first().copied(),
                _ => None,
            },
            _ => None,
        };
        let Some(View::Dict(dict)) = newest.map(Value::view) else { return (None, NO_STACK) };
        let Some(&DictState::Pairs(index)) = self.dicts.get(dict as usize) else { return (None, NO_STACK) };
        let (mut size, mut stack) = (None, NO_STACK);
        for &(key, value) in &self.pairs[index as usize] {
            match key.key() {
                Some(known::REAL_SIZE) => size = self.size(value),
                Some(known::FRAMES) => stack = self.stack_id(value),
                _ => {}
            }
        }
        (size, stack)
    }

    fn take_segment(&mut self, start: usize, end: usize) -> Option<DictState> {
        let mut segment = Segment::default();
        let (mut device, mut size, mut stream, mut blocks) = (0i64, None, 0i64, 0..0);
        for i in (start..end).step_by(2) {
            let value = self.stack[i + 1];
            match self.stack[i].key() {
                Some(known::DEVICE) => device = self.signed(value),
                Some(known::ADDRESS) => segment.address = self.address(value),
                Some(known::TOTAL_SIZE) => size = self.size(value),
                Some(known::STREAM) => stream = self.signed(value),
                Some(known::SEGMENT_TYPE) => segment.small = value.key() == Some(known::SMALL),
                Some(known::SEGMENT_POOL_ID) => segment.pool = self.pool_id(value),
                Some(known::IS_EXPANDABLE) => segment.expandable = value.view() == View::Bool(true),
                Some(known::FRAMES) => segment.stack = self.stack_id(value),
                Some(known::BLOCKS) => blocks = self.take_blocks(value),
                _ => {}
            }
        }
        let Some(size) = size else {
            self.skipped.segments += 1;
            return None;
        };
        segment.size = size;
        segment.stream = self.stream(stream);
        segment.blocks = self.place_blocks(segment.address, size, blocks);
        self.segments.push(RawSegment { device, segment });
        Some(DictState::Segment((self.segments.len() - 1) as u32))
    }

    /// The rows of a list of blocks. The list is left empty, so that a file in which a million segments
    /// share one list costs no more than that list.
    fn take_blocks(&mut self, value: Value) -> std::ops::Range<usize> {
        let View::List(list) = value.view() else { return 0..0 };
        let list = list as usize;
        match self.lists.get(list).copied() {
            Some(ListState::Rows(Rows::Blocks, first, end)) => {
                self.lists[list] = ListState::Empty;
                first as usize..end as usize
            }
            Some(ListState::Items(index)) => {
                self.lists[list] = ListState::Empty;
                let items = std::mem::take(&mut self.items[index as usize]);
                let start = self.blocks.len();
                let mut seen = HashSet::new();
                for item in items {
                    match self.row(item) {
                        // A block is copied once, however often a file refers to it.
                        Some((Rows::Blocks, row)) if seen.insert(row) => {
                            self.blocks.push(self.blocks[row as usize])
                        }
                        Some((Rows::Blocks, _)) => self.skipped.shared += 1,
                        _ => self.skipped.blocks += 1,
                    }
                }
                start..self.blocks.len()
            }
            _ => 0..0,
        }
    }

    /// Gives blocks their addresses (old files have none) and drops what lies outside the segment.
    fn place_blocks(
        &mut self,
        address: u64,
        size: u64,
        rows: std::ops::Range<usize>,
    ) -> std::ops::Range<usize> {
        let mut offset = 0u64;
        for row in rows.clone() {
            let Some(end) = offset.checked_add(self.blocks[row].size).filter(|&end| end <= size) else {
                self.skipped.blocks += (rows.end - row) as u64;
                return rows.start..row;
            };
            self.blocks[row].address = address.wrapping_add(offset);
            offset = end;
        }
        rows
    }

    // --- reading values ------------------------------------------------------------------------------

    #[inline]
    fn signed(&self, value: Value) -> i64 {
        match value.view() {
            View::Int(value) => value,
            View::Wide(index) => self.wide[index as usize] as i64,
            View::Bool(value) => i64::from(value),
            _ => 0,
        }
    }

    /// Addresses wrap: the C++ writer casts those beyond 2^63 to negative numbers.
    #[inline]
    fn address(&self, value: Value) -> u64 {
        self.signed(value) as u64
    }

    #[inline]
    fn size(&self, value: Value) -> Option<u64> {
        match value.view() {
            View::Int(value) => u64::try_from(value).ok().filter(|&size| size <= LARGEST_SIZE),
            _ => None,
        }
    }

    #[inline]
    fn stack_id(&self, value: Value) -> StackId {
        self.stack_of(value).unwrap_or(NO_STACK)
    }

    fn pool_id(&self, value: Value) -> PoolId {
        let pair = match value.view() {
            View::Tuple(index) => self.tuples[index as usize].get(..2),
            View::List(list) => match self.lists.get(list as usize) {
                Some(ListState::Items(index)) => self.items[*index as usize].get(..2),
                _ => None,
            },
            _ => None,
        };
        pair.map_or(DEFAULT_POOL, |pair| (self.signed(pair[0]) as u64, self.signed(pair[1]) as u64))
    }

    fn joined_texts(&mut self, value: Value) -> Option<StringId> {
        let View::List(list) = value.view() else { return None };
        let ListState::Items(index) = *self.lists.get(list as usize)? else { return None };
        let mut joined = String::new();
        for item in &self.items[index as usize] {
            joined.push_str(self.strings.get(item.key()?));
            if joined.len() > 1 << 16 {
                break; // a traceback is a page of text; more is an attack on memory
            }
        }
        Some(self.strings.intern(&joined))
    }

    #[inline]
    fn stream(&mut self, raw: i64) -> u32 {
        if self.last_stream.0 == raw && !self.streams.is_empty() {
            return self.last_stream.1;
        }
        let streams = &mut self.streams;
        let id = *self.stream_ids.entry(raw).or_insert_with(|| {
            streams.push(raw);
            (streams.len() - 1) as u32
        });
        self.last_stream = (raw, id);
        id
    }
}

/// Keys that tell what a dictionary is.
#[inline]
fn is_telling(key: Option<StringId>) -> bool {
    matches!(key, Some(known::ACTION | known::FILENAME | known::BLOCKS | known::STATE))
}

#[inline]
pub(in crate::read) fn action_of(value: Value) -> Action {
    match value.key() {
        Some(known::ALLOC) => Action::Alloc,
        Some(known::FREE_REQUESTED) => Action::FreeRequested,
        // `free` is what the viewer makes of the pair; a file that has it means the whole free.
        Some(known::FREE_COMPLETED | known::FREE) => Action::FreeCompleted,
        Some(known::SEGMENT_ALLOC) => Action::SegmentAlloc,
        Some(known::SEGMENT_FREE) => Action::SegmentFree,
        Some(known::SEGMENT_MAP) => Action::SegmentMap,
        Some(known::SEGMENT_UNMAP) => Action::SegmentUnmap,
        Some(known::SNAPSHOT) => Action::Snapshot,
        Some(known::OOM) => Action::OutOfMemory,
        Some(known::ANNOTATE) => Action::Annotate,
        _ => Action::Other,
    }
}
