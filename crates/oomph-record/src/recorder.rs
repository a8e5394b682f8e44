//! A recording that grows: takes what the hooks and Python report, keeps the account of it, and writes it.
//!
//! Events gather in columns; a thread of ours ([`crate::session`]) writes them a few times a second, so that a process that is killed
//! loses little. What goes as it went before says nothing new: while a program follows a pattern of steps ([`crate::repeats`]), block
//! by block at the same addresses, its stacks are taken to be the same too, nothing is looked at or kept, and its steps are
//! counted: that is what makes a steady program cheap to record.
//!
//! Boundary: decides what is an event, in which order, and what is written when. Numbers of strings and stacks are those of
//! [`crate::tables`], blocks and segments of [`crate::ledger`], chunks of [`crate::output`].

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]
mod tests;

use crate::backward::Forwards;
use crate::cut::Cut;
use crate::event::{Annotation, Event, Stage};
use crate::file::{File, Kind};
use crate::gauges;
use crate::layout::Action;
use crate::ledger::{Device, Held, Ledger, Live};
use crate::output::Output;
use crate::places;
use crate::python::{self, Stack};
use crate::repeats::{Course, Follower, Left, Stretch};
use crate::state::Segment;
use crate::status::{Card, DeviceStatus, Status};
use crate::tables::Tables;
use std::time::{SystemTime, UNIX_EPOCH};

/// As many censuses as a reader keeps, and as long ones.
const MOST_CENSUSES: usize = 16;
const LARGEST_CENSUS: usize = 8 << 20;

/// Microseconds since 1970, never backwards.
#[derive(Default)]
struct Clock {
    last: i64,
    /// While earlier events are written: when they were.
    replayed: Option<i64>,
}

impl Clock {
    fn now(&mut self) -> i64 {
        if let Some(time) = self.replayed {
            return time;
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last = self.last.max(since.as_micros() as i64);
        self.last
    }
}

#[derive(Default)]
struct Counts {
    /// Events, those of repeated steps among them.
    seen: u64,
    repeated_steps: u64,
    repeated_events: u64,
    /// Repeated steps are counted that the file does not know of.
    are_new: bool,
    /// Steps that ended.
    steps: u64,
}

#[derive(Default)]
struct Censuses {
    written: usize,
    /// One that waits for the end.
    last: Vec<u8>,
}

/// How much of what happens is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// What is new: steps that go as one before are counted, and a place where memory is freed has its innermost frames. For a run, which may be long.
    News,
    /// Everything. For a prediction, which is a few steps.
    Whole,
}

/// A recording that grows.
pub(crate) struct Recorder {
    extent: Extent,
    output: Output,
    tables: Tables,
    forwards: Forwards,
    ledger: Ledger,
    follower: Follower,
    /// Not written yet, as are the devices' events.
    annotations: Vec<Annotation>,
    /// Events of a device that wait at most.
    most_rows: usize,
    cut: Cut,
    clock: Clock,
    counts: Counts,
    cards: Vec<(u32, Card)>,
    censuses: Censuses,
}

impl Recorder {
    /// Begins with nothing.
    pub(crate) fn new(file: File, extent: Extent) -> Self {
        let output = Output::new(file);
        Self {
            extent,
            most_rows: output.most_rows(),
            output,
            tables: Tables::new(),
            forwards: Forwards::new(),
            ledger: Ledger::default(),
            follower: match extent {
                Extent::News => Follower::new(),
                Extent::Whole => Follower::idle(),
            },
            annotations: Vec::new(),
            cut: Cut::default(),
            clock: Clock::default(),
            counts: Counts::default(),
            cards: Vec::new(),
            censuses: Censuses::default(),
        }
    }

    /// Events, events of repeated steps, repeated steps, and whether the file could not be written to its end.
    pub(crate) fn counts(&self) -> [u64; 4] {
        let Counts { seen, repeated_events, repeated_steps, .. } = self.counts;
        [seen, repeated_events, repeated_steps, u64::from(self.output.is_full())]
    }

    // -- events

    fn event(
        &mut self,
        device: u32,
        action: Action,
        address: u64,
        size: u64,
        stream: u32,
        stack: u32,
        category: u32,
    ) {
        let time = self.clock.now();
        self.counts.seen += 1;
        let event = Event { action, address, size, stream, stack, time, category };
        self.follower.note(event);
        self.ledger.device(device).events.push(event);
        // A free is two events, which stay together.
        if !matches!(action, Action::FreeRequested) {
            self.flush_if_many(device);
        }
    }

    fn flush_if_many(&mut self, device: u32) {
        if self.ledger.device(device).events.len() >= self.most_rows {
            self.flush();
        }
    }

    /// Whether the program goes on as it did before. Then nothing else needs to be known of this block.
    pub(crate) fn follow(&mut self, device: u32, address: u64, size: i64, reserved: u64) -> bool {
        let follows = self.follower.goes_on_with((device, address, size, reserved));
        if !follows {
            self.stop_following();
        }
        follows
    }

    /// The program goes its own way: what it did since the pattern began is written after all, at times in between.
    fn stop_following(&mut self) {
        let Some(left) = self.follower.leave() else { return };
        for step in left.steps() {
            let before = self.ledger.around();
            self.write_again(&left, &step);
            self.annotate_at(step.name, Stage::End, step.ended);
            self.follower.was_written(&left, &step, before);
        }
        let before = self.ledger.around();
        let rest = left.rest(self.clock.now());
        self.write_again(&left, &rest);
        if let Some((started, name)) = left.started() {
            self.annotate_at(name, Stage::Start, started);
        }
        self.follower.take_up(left, &rest, before);
    }

    /// Tells a part of a pattern as if it had just been seen, between two times.
    fn write_again(&mut self, left: &Left, stretch: &Stretch) {
        let (count, part) = left.part(stretch);
        let (began, count) = (stretch.began, count as i64 + 1);
        for (index, (event, &(device, address, size, _))) in part.enumerate() {
            self.clock.replayed = Some(began + (stretch.ended - began) * (index as i64 + 1) / count);
            if size > 0 {
                let place = self.tables.places().of(event.stack);
                let (requested, stream, stack) = (event.size, event.stream, event.stack);
                self.ledger.put(device, address, Live { requested, stream, stack, kind: 0, place });
            } else {
                self.ledger.take(device, address);
            }
            self.event(device, event.action, address, event.size, event.stream, event.stack, 0);
            if size < 0 {
                self.completed(device);
            }
        }
        self.clock.replayed = None;
    }

    /// A block was handed out (`size` > 0) or taken back. `reserved`: all of the device's segments together, afterwards.
    pub(crate) fn block(
        &mut self,
        device: u32,
        address: u64,
        size: i64,
        requested: u64,
        reserved: u64,
        stream: i64,
        stack: &Stack,
    ) {
        let stack = self.stack(stack, size > 0);
        if size < 0 && !self.ledger.device(device).live.contains_key(&address) {
            return;
        }
        self.follower.expect((device, address, size, reserved));
        if size > 0 {
            let size = size as u64;
            // Never more than the block; tiny requests are not reported.
            let requested = if requested > 0 && requested <= size { requested } else { size };
            let stream = self.ledger.device(device).stream(stream);
            self.follow_reserved(device, address, reserved, stream, stack);
            let place = self.tables.places().of(stack);
            self.ledger.put(device, address, Live { requested, stream, stack, kind: 0, place });
            self.event(device, Action::Alloc, address, requested, stream, stack, 0);
        } else {
            let Some(live) = self.ledger.take(device, address) else { return };
            self.event(device, Action::FreeRequested, address, live.requested, live.stream, stack, 0);
            self.completed(device);
        }
    }

    /// A stack's number. Who asks for memory without being anywhere in Python may be known to run a backward pass.
    fn stack(&mut self, stack: &Stack, asks: bool) -> u32 {
        match self.tables.stack(stack) {
            0 if asks => self.forwards.running(),
            stack => stack,
        }
    }

    /// How many frames are to be looked at where memory is freed.
    pub(crate) fn frames_of_frees(&self) -> usize {
        match self.extent {
            Extent::News => python::SHALLOW,
            Extent::Whole => python::DEEPEST,
        }
    }

    /// A node of autograd's graph has been made, here.
    pub(crate) fn forward(&mut self, number: u64, walk: impl FnOnce() -> Stack) {
        if !self.forwards.knows(number) {
            let stack = self.tables.stack(&walk());
            self.forwards.made(number, stack);
        }
    }

    /// A node is run, by this thread.
    pub(crate) fn backward(&mut self, number: u64, name: &str) {
        let stack = match self.forwards.stack_of(number) {
            0 => 0,
            forward => self.tables.backward_of(forward, name),
        };
        self.forwards.runs(stack);
    }

    /// What was freed last is back in its pool: where blocks wait for other streams is not known.
    fn completed(&mut self, device: u32) {
        self.counts.seen += 1;
        let here = self.ledger.device(device);
        if let Some(&event) = here.events.last() {
            here.events.push(Event { action: Action::FreeCompleted, ..event });
        }
        self.flush_if_many(device);
    }

    /// Expandable segments have grown or shrunk, for a block, until so much is reserved.
    fn follow_reserved(&mut self, device: u32, block: u64, reserved: u64, stream: u32, stack: u32) {
        let grown = self.ledger.device(device).grow_to(reserved, block, stream, stack);
        if let Some((address, size)) = grown {
            self.event(device, Action::SegmentMap, address, size, stream, stack, 0);
        }
        while let Some((address, held)) = self.ledger.device(device).shrink_to(reserved) {
            self.event(device, Action::SegmentUnmap, address, held.size, held.stream, held.stack, 0);
        }
    }

    /// Memory was mapped into an expandable segment.
    pub(crate) fn mapped(&mut self, device: u32, address: u64, size: u64, stream: i64, stack: &Stack) {
        self.stop_following();
        let stack = self.tables.stack(stack);
        let here = self.ledger.device(device);
        let stream = here.stream(stream);
        here.map(address, Held { size, stream, stack, mapped: true });
        self.mapping_event(device, Action::SegmentMap, address, size, stream, stack);
    }

    /// It was unmapped.
    pub(crate) fn unmapped(&mut self, address: u64, size: u64, stack: &Stack) {
        self.stop_following();
        if let Some((device, held)) = self.ledger.unmap(address, size) {
            let stack = self.tables.stack(stack);
            self.mapping_event(device, Action::SegmentUnmap, address, size, held.stream, stack);
        }
    }

    /// The driver is asked page by page: what PyTorch wants at once is one event.
    fn mapping_event(
        &mut self,
        device: u32,
        action: Action,
        address: u64,
        size: u64,
        stream: u32,
        stack: u32,
    ) {
        match self.ledger.device(device).events.last_mut() {
            Some(last)
                if last.action == action
                    && last.stack == stack
                    && last.address.saturating_add(last.size) == address =>
            {
                last.size = last.size.saturating_add(size);
            }
            _ => self.event(device, action, address, size, stream, stack, 0),
        }
    }

    /// A segment was taken from the device.
    pub(crate) fn segment(&mut self, device: u32, address: u64, size: u64, stream: i64, stack: &Stack) {
        self.stop_following();
        let stack = self.tables.stack(stack);
        while let Some((start, held)) = self.ledger.device(device).unmap_within(address, size) {
            self.event(device, Action::SegmentUnmap, start, held.size, held.stream, held.stack, 0);
        }
        let here = self.ledger.device(device);
        let stream = here.stream(stream);
        here.add_segment(address, Held { size, stream, stack, mapped: false });
        self.event(device, Action::SegmentAlloc, address, size, stream, stack, 0);
    }

    /// A segment was given back.
    pub(crate) fn segment_freed(&mut self, address: u64, stack: &Stack) {
        self.stop_following();
        if let Some((device, held)) = self.ledger.take_segment(address) {
            let stack = self.tables.stack(stack);
            self.event(device, Action::SegmentFree, address, held.size, held.stream, stack, 0);
        }
    }

    /// No block could be found.
    pub(crate) fn out_of_memory(&mut self, device: u32, size: u64, free: u64, stack: &Stack) {
        self.stop_following();
        self.flush();
        self.catch_up();
        let stack = self.stack(stack, true);
        self.event(device, Action::OutOfMemory, free, size, 0, stack, 0);
        self.flush();
        if self.output.take_back_the_end() {
            // The program may go on: what it does from here on is missing again.
            self.cut.here(self.ledger.devices());
        }
    }

    /// In a file that has become too large: what has come and gone since, as if all at once, now.
    fn catch_up(&mut self) {
        let Some(cut) = self.cut.mend() else { return };
        self.forget();
        self.output.begin_the_end();
        for (device, events) in self.cut.take_unwritten() {
            self.ledger.device(device).events = events;
        }
        for known in cut {
            let device = known.device;
            for (action, address, size, stream, stack) in known.changes(self.ledger.device(device)) {
                self.event(device, action, address, size, stream, stack, 0);
                if matches!(action, Action::FreeRequested) {
                    self.completed(device);
                }
            }
        }
    }

    /// What blocks are. Told once for each block.
    pub(crate) fn kinds(&mut self, device: u32, addresses: &[u64], name: &str) {
        self.stop_following();
        let category = self.tables.string(name);
        for address in addresses {
            let Some(live) = self.ledger.device(device).live.get_mut(address) else { continue };
            if std::mem::replace(&mut live.kind, category) == category {
                continue;
            }
            let requested = live.requested;
            self.event(device, Action::Annotate, *address, requested, 0, 0, category);
        }
    }

    /// An optimizer's step begins or has ended. Whether a step has ended that did not go as one before.
    pub(crate) fn step(&mut self, name: &str, ended: bool) -> bool {
        let name = self.tables.string(name);
        let now = self.clock.now();
        if ended {
            self.counts.steps += 1;
            for device in self.ledger.devices_mut() {
                device.last_peak = Some(gauges::end_step(device.ordinal));
            }
        }
        match self.follower.step(name, ended, now) {
            Course::Own => self.stop_following(),
            Course::AsBefore => return false,
            Course::Repeated { steps, rows } => {
                self.counts.repeated_steps += steps;
                self.counts.repeated_events += rows;
                self.counts.seen += rows;
                self.counts.are_new = true;
                self.follower.again(self.clock.now());
                return false;
            }
        }
        self.annotate_at(name, if ended { Stage::End } else { Stage::Start }, now);
        if ended
            && self.extent == Extent::News
            && let Some(pattern) = self.follower.look_for_a_pattern(name, self.ledger.around())
        {
            self.follower.follow(pattern, self.clock.now());
        }
        ended
    }

    pub(crate) fn mark(&mut self, name: &str) {
        let (name, now) = (self.tables.string(name), self.clock.now());
        self.annotate_at(name, Stage::Mark, now);
    }

    /// A range of the program's begins or has ended.
    pub(crate) fn range(&mut self, name: &str, ended: bool) {
        let (name, now) = (self.tables.string(name), self.clock.now());
        self.annotate_at(name, if ended { Stage::End } else { Stage::Start }, now);
    }

    fn annotate_at(&mut self, name: u32, stage: Stage, time: i64) {
        for device in self.ledger.devices() {
            self.annotations.push(Annotation { device: device.ordinal, time, name, stage });
        }
        if self.ledger.devices().is_empty() {
            // Before there is anything on any: most programs use the first.
            self.annotations.push(Annotation { device: 0, time, name, stage });
        }
    }

    // -- the beginning and the end

    /// What was there before the recording: handed out at its beginning, by nobody.
    pub(crate) fn begin_with(&mut self, device: u32, segments: &[Segment]) {
        let blocks = segments.iter().flat_map(|segment| &segment.blocks);
        gauges::set_first(device, blocks.filter(|block| block.state == 1).map(|block| block.size).sum());
        for segment in segments {
            let mapped = segment.flags & 2 != 0;
            let here = self.ledger.device(device);
            // Streams that were used before are distinguished by their handles.
            let stream = here.stream(segment.stream as i64);
            here.add_segment(segment.address, Held { size: segment.size, stream, stack: 0, mapped });
            let action = if mapped { Action::SegmentMap } else { Action::SegmentAlloc };
            self.event(device, action, segment.address, segment.size, stream, 0, 0);
            let mut address = segment.address;
            for block in &segment.blocks {
                if block.state == 1 {
                    let requested = block.requested.min(block.size);
                    let place = places::BEFORE;
                    self.ledger.put(device, address, Live { requested, stream, stack: 0, kind: 0, place });
                    self.event(device, Action::Alloc, address, requested, stream, 0, 0);
                }
                address += block.size;
            }
        }
    }

    /// The final state.
    pub(crate) fn end_with(&mut self, device: u32, segments: &[Segment]) {
        self.stop_following();
        self.flush();
        self.catch_up();
        self.ledger.device(device).is_final = true;
        self.flush();
        self.output.state(self.ledger.device(device), segments);
    }

    pub(crate) fn settings(&mut self, json: &[u8]) {
        self.flush();
        self.output.settings(json);
    }

    /// Who held what at an out-of-memory, as JSON. Of many the first are written at once, and the last at the end: it is what a program died of.
    pub(crate) fn census(&mut self, json: &[u8]) {
        if json.len() > LARGEST_CENSUS {
            return;
        }
        self.censuses.last.clear();
        if self.censuses.written + 1 < MOST_CENSUSES && self.write_census(json) {
            self.censuses.written += 1;
        } else {
            self.censuses.last.extend_from_slice(json);
        }
    }

    /// Where there is no room for it, it is left out: events matter more.
    fn write_census(&mut self, json: &[u8]) -> bool {
        self.flush();
        !self.cut.is_there() && self.output.has_room(json.len()) && self.output.chunk(Kind::Census, json)
    }

    // -- what is true now

    /// What a device is.
    pub(crate) fn card(&mut self, device: u32, card: Card) {
        self.cards.retain(|(known, _)| *known != device);
        self.cards.push((device, card));
    }

    /// What this process can say of itself. Takes as long as there are lines, and blocks of a pattern that is followed.
    pub(crate) fn status(&mut self) -> Status {
        let live = |device, address| self.ledger.live(device, address).map(|live| live.place);
        self.follower.find_places(self.tables.places(), live);
        let devices = self.ledger.devices().iter().map(|device| {
            let (allocated, peak) = gauges::now_and_peak(device.ordinal);
            let card = self.cards.iter().find(|(known, _)| *known == device.ordinal);
            DeviceStatus {
                device: device.ordinal,
                card: card.map(|(_, card)| card.clone()),
                allocated,
                reserved: device.reserved,
                peak,
                last_peak: device.last_peak,
                lines: if self.follower.is_too_long() { Vec::new() } else { self.lines(device) },
            }
        });
        let mut devices: Vec<DeviceStatus> = devices.collect();
        devices.sort_by_key(|device| device.device);
        Status { steps: self.counts.steps, devices }
    }

    /// The lines that hold most of a device.
    fn lines(&self, device: &Device) -> Vec<(String, u64)> {
        let mut held = device.held.clone();
        self.follower.add_to(&mut held, device.ordinal);
        self.tables.places().largest(&held)
    }

    // -- writing

    pub(crate) fn flush(&mut self) {
        if self.cut.is_there() && !self.output.is_at_the_end() {
            // Nothing more will be written but the end: it must not pile up either.
            self.forget();
            return;
        }
        let mut whole = self.tables.write(|kind, content| self.output.chunk(kind, content));
        for device in self.ledger.devices_mut() {
            let events = std::mem::take(&mut device.events);
            whole = whole && self.output.events(device, &events);
            if !whole {
                self.cut.had_no_room_for(device.ordinal, events);
            }
        }
        let annotations = std::mem::take(&mut self.annotations);
        if whole {
            self.output.annotations(&annotations);
        }
        if std::mem::take(&mut self.counts.are_new) {
            self.output.repeats(self.counts.repeated_steps, self.counts.repeated_events);
        }
        if !whole && self.output.is_at_the_end() {
            // A part of the end without the others would contradict itself.
            self.output.give_up();
        } else if !whole {
            self.cut.here(self.ledger.devices());
        }
    }

    fn forget(&mut self) {
        for device in self.ledger.devices_mut() {
            device.events.clear();
        }
        self.annotations.clear();
    }

    /// Ends the file. Whether it is whole.
    pub(crate) fn finish(mut self) -> bool {
        self.stop_following();
        self.flush();
        if !self.output.is_at_the_end() {
            self.catch_up();
        }
        self.flush();
        if !self.censuses.last.is_empty() {
            let json = std::mem::take(&mut self.censuses.last);
            self.write_census(&json);
        }
        self.output.finish()
    }
}
