//! Dictionaries that are known by their keys: events, frames, blocks and segments, which become rows at once.

use super::machine::{Assembler, DictState, ListState, RawSegment, Rows};
use super::value::{Value, View, known};
use crate::intern::{Frame, NO_STACK, StackId, StringId};
use crate::recording::{Action, Block, BlockState, DEFAULT_POOL, PoolId, Segment};
use hashbrown::HashSet;
use oomph_settings::rounding::LARGEST_SIZE;

/// An event that a front end has decoded by itself. `stream` is the raw handle.
#[derive(Clone, Copy)]
pub(crate) struct EventRow {
    pub(crate) action: Action,
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) stream: i64,
    pub(crate) stack: StackId,
    pub(crate) time: i64,
}

/// What rows take, with room to grow and with what a pickle remembers of them.
pub(super) const EVENT: usize = 64;
const BLOCK: usize = 64;
const SEGMENT: usize = 160;

impl Default for EventRow {
    fn default() -> Self {
        Self { action: Action::Other, address: 0, size: 0, stream: 0, stack: NO_STACK, time: 0 }
    }
}

impl Assembler {
    /// Tells by its keys what the dictionary `start..end` is, and stores it as that.
    #[inline]
    pub(super) fn recognise(&mut self, start: usize, end: usize) -> Option<DictState> {
        // PyTorch writes the telling key first; other writers may not.
        let key = self.stack[start].key();
        let key = if key == Some(known::ACTION) {
            key
        } else {
            (start..end).step_by(2).map(|i| self.stack[i].key()).find(|&key| identifies_dict(key)).flatten()
        };
        match key? {
            known::ACTION => self.take_event(start, end),
            known::FILENAME => Some(self.take_frame(start, end)),
            known::BLOCKS => self.take_segment(start, end),
            _ => self.take_block(start, end),
        }
    }

    #[inline]
    fn take_event(&mut self, start: usize, end: usize) -> Option<DictState> {
        self.charge(12 * (end - start), "events"); // what is rare stands in columns of its own
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
        self.charge(EVENT, "events");
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
    pub(crate) fn push_event(&mut self, event: EventRow) -> Value {
        let value = Value::event(self.add_event(event));
        self.stack.push(value);
        value
    }

    /// Removes what a dropped row put into sparse columns.
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
        let before = self.stacks.frames().len();
        let frame = self.stacks.intern_frame(frame);
        if self.stacks.frames().len() > before {
            self.charge(64, "frames");
        }
        DictState::Frame(frame)
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
        self.charge(BLOCK, "blocks");
        self.blocks.push(block);
        Some(DictState::Block((self.blocks.len() - 1) as u32))
    }

    fn newest_of_history(&mut self, history: Value) -> (Option<u64>, StackId) {
        let newest = match history.view() {
            View::List(list) => match self.lists.get(list as usize) {
                Some(ListState::Items(index)) => self.items[*index as usize].first().copied(),
                _ => None,
            },
            _ => None,
        };
        let Some(View::Dict(dict)) = newest.map(Value::view) else { return (None, NO_STACK) };
        let Some(&DictState::Pairs(index)) = self.dicts.get(dict as usize) else { return (None, NO_STACK) };
        if !self.work(self.pairs[index as usize].len(), "histories of blocks") {
            return (None, NO_STACK);
        }
        let (mut size, mut frames) = (None, None);
        for &(key, value) in &self.pairs[index as usize] {
            match key.key() {
                Some(known::REAL_SIZE) => size = self.size(value),
                Some(known::FRAMES) => frames = Some(value),
                _ => {}
            }
        }
        (size, frames.map_or(NO_STACK, |frames| self.stack_id(frames)))
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
        self.charge(SEGMENT, "segments");
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
                if !self.charge(BLOCK * items.len(), "blocks") {
                    return 0..0;
                }
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

    #[inline]
    pub(super) fn signed(&self, value: Value) -> i64 {
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
    fn stack_id(&mut self, value: Value) -> StackId {
        self.stack_of(value).unwrap_or(NO_STACK)
    }

    fn pool_id(&self, value: Value) -> PoolId {
        let pair = match value.view() {
            View::Tuple(index) => self.tuple(index).get(..2),
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
        if !self.work(self.items[index as usize].len(), "forward tracebacks") {
            return None;
        }
        let mut joined = String::new();
        for item in &self.items[index as usize] {
            joined.push_str(self.strings.get(item.key()?));
            if joined.len() > 1 << 16 {
                break; // a traceback is a page of text
            }
        }
        // Most events of a line share one traceback, which is hashed again for each.
        self.work(joined.len() / 8, "forward tracebacks").then(|| self.intern(&joined))
    }

    #[inline]
    pub(super) fn stream(&mut self, raw: i64) -> u32 {
        if self.last_stream.0 == raw && !self.streams.is_empty() {
            return self.last_stream.1;
        }
        let before = self.streams.len();
        let streams = &mut self.streams;
        let id = *self.stream_ids.entry(raw).or_insert_with(|| {
            streams.push(raw);
            (streams.len() - 1) as u32
        });
        self.last_stream = (raw, id);
        if self.streams.len() > before {
            self.charge(64, "streams");
        }
        id
    }
}

/// Keys that identify a dictionary.
#[inline]
pub(super) fn identifies_dict(key: Option<StringId>) -> bool {
    matches!(key, Some(known::ACTION | known::FILENAME | known::BLOCKS | known::STATE))
}

#[inline]
pub(crate) fn action_of(value: Value) -> Action {
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
