//! What is known of a recording while it grows: tables, events that are not written yet, and the step that is under way.
//!
//! Events gather in columns; a thread of ours writes them a few times a second, so that a process that is killed loses
//! little. A step whose events are those of an earlier step, at the same addresses, says nothing new: what was written of
//! it is taken back, and it is counted. (The same addresses prove more than equality: a block can only be handed
//! out at an address again if it was given back, so such a step leaves memory as it found it.)

use crate::file::{Content, File, Kind};
use crate::python::{Frame, Stack};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{CStr, c_int, c_void};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How often what was seen is written.
const EVERY: Duration = Duration::from_millis(100);
/// Rows of a chunk of events, as the format's other writer has them.
const ROWS: usize = 64 << 10;
/// Steps that later ones are compared with.
const MOST_STEPS: usize = 1024;

static RECORDER: Mutex<Option<Recorder>> = Mutex::new(None);
static NOBODY: Mutex<Option<Recorder>> = Mutex::new(None);
static RECORDING: AtomicBool = AtomicBool::new(false);
/// A forked child has no thread to write with, and the file is its parent's.
static FORKED: AtomicBool = AtomicBool::new(false);
/// Which recording the writing thread is for.
static TURN: AtomicU64 = AtomicU64::new(0);

/// Whether events are wanted.
pub fn is_recording() -> bool {
    RECORDING.load(Relaxed)
}

/// The recording that is under way.
pub fn lock() -> MutexGuard<'static, Option<Recorder>> {
    let which = if FORKED.load(Relaxed) { &NOBODY } else { &RECORDER };
    which.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Called in a forked child.
pub extern "C" fn forked() {
    FORKED.store(true, Relaxed);
    RECORDING.store(false, Relaxed);
}

unsafe extern "C" {
    fn pthread_sigmask(how: c_int, new: *const [u64; 16], old: *mut [u64; 16]) -> c_int;
    fn pthread_setname_np(thread: *mut c_void, name: *const std::ffi::c_char) -> c_int;
    fn pthread_self() -> *mut c_void;
}

/// Begins a recording; one that was under way ends.
pub fn start(path: &CStr, most_bytes: u64) -> c_int {
    if FORKED.load(Relaxed) {
        return 1;
    }
    stop();
    let file = match File::create(path, most_bytes) {
        Ok(file) => file,
        Err(error) => return error,
    };
    *lock() = Some(Recorder::new(file));
    let turn = TURN.fetch_add(1, Relaxed) + 1;
    RECORDING.store(true, Relaxed);
    // Signals are the program's business: this thread takes none.
    let (all, mut before) = ([!0u64; 16], [0u64; 16]);
    // SAFETY: sets of signals are 128 bytes long; 2 is SIG_SETMASK.
    unsafe { pthread_sigmask(2, &raw const all, &raw mut before) };
    let begun = std::thread::Builder::new().spawn(move || keep_writing(turn));
    // SAFETY: as above.
    unsafe { pthread_sigmask(2, &raw const before, std::ptr::null_mut()) };
    if begun.is_err() { 11 } else { 0 }
}

fn keep_writing(turn: u64) {
    // SAFETY: this thread, and a name of fewer than 16 bytes.
    unsafe { pthread_setname_np(pthread_self(), c"oomph-recorder".as_ptr()) };
    while TURN.load(Relaxed) == turn {
        std::thread::sleep(EVERY);
        if TURN.load(Relaxed) == turn
            && let Some(recorder) = lock().as_mut()
        {
            recorder.flush();
        }
    }
}

/// Ends the recording that is under way, if there is one.
pub fn stop() -> c_int {
    RECORDING.store(false, Relaxed);
    TURN.fetch_add(1, Relaxed);
    match lock().take() {
        Some(recorder) => c_int::from(!recorder.finish()),
        None => 1,
    }
}

/// A hasher for numbers that are spread well already, or nearly so.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31);
    }
}

type Map<K, V> = HashMap<K, V, BuildHasherDefault<Spread>>;

/// A segment, as PyTorch describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins.
    pub address: u64,
    /// Its bytes.
    pub size: u64,
    /// 1 small, 2 expandable.
    pub flags: u8,
    /// Its pool.
    pub pool: (u64, u64),
    /// Its stream's handle: only a name here.
    pub stream: u64,
    /// Its blocks, in order.
    pub blocks: Vec<Block>,
}

/// A block, as PyTorch describes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Its bytes.
    pub size: u64,
    /// What was asked for.
    pub requested: u64,
    /// 0 free, 1 allocated, 2 waiting for another stream.
    pub state: u8,
}

/// Reads [`crate::oomph_record_state`]'s numbers.
pub fn segments_of(numbers: &[u64]) -> Option<Vec<Segment>> {
    let mut numbers = numbers.iter().copied();
    let mut segments = Vec::new();
    while let Some(address) = numbers.next() {
        let mut next = || numbers.next();
        let (size, flags, pool, stream, count) =
            (next()?, next()? as u8, (next()?, next()?), next()?, next()?);
        let mut blocks = Vec::new();
        for _ in 0..count {
            blocks.push(Block { size: next()?, requested: next()?, state: (next()? as u8).min(2) });
        }
        segments.push(Segment { address, size, flags: flags & 3, pool, stream, blocks });
    }
    Some(segments)
}

#[derive(Clone, Copy)]
#[repr(u8)]
enum Action {
    Alloc = 0,
    FreeRequested = 1,
    FreeCompleted = 2,
    SegmentAlloc = 3,
    SegmentFree = 4,
    SegmentMap = 5,
    SegmentUnmap = 6,
    OutOfMemory = 8,
    Annotate = 9,
}

#[derive(Clone, Copy)]
struct Event {
    action: Action,
    address: u64,
    size: u64,
    stream: u32,
    stack: u32,
    time: i64,
    /// A string's id, or 0.
    category: u32,
}

struct Live {
    requested: u64,
    stack: u32,
    kind: u32,
}

struct Held {
    size: u64,
    stream: u32,
    stack: u32,
    /// Mapped into an expandable segment: nobody says where, only how much.
    mapped: bool,
}

#[derive(Default)]
struct Device {
    ordinal: u32,
    events: Vec<Event>,
    /// Events from here on are of the step that is under way.
    step_from: usize,
    streams: Vec<i64>,
    described: usize,
    live: Map<u64, Live>,
    segments: BTreeMap<u64, Held>,
    reserved: u64,
    is_final: bool,
}

impl Device {
    fn stream(&mut self, number: i64) -> u32 {
        let known = self.streams.iter().position(|stream| *stream == number);
        known.unwrap_or_else(|| {
            self.streams.push(number);
            self.streams.len() - 1
        }) as u32
    }
}

struct Annotation {
    device: u32,
    time: i64,
    name: u32,
    stage: Stage,
}

#[derive(Clone, Copy)]
#[repr(u8)]
enum Stage {
    Start = 0,
    End = 1,
    Mark = 2,
}

/// The step under way: from the end of the one before.
struct Step {
    /// Of what happened so far.
    hash: u64,
    events: u64,
    /// Annotations from here on are of this step.
    annotations_from: usize,
    /// Where its first chunk is, once one was written.
    written_from: Option<u64>,
    /// It brought something besides events, a line that was not seen before: what is written of it stays.
    tables: bool,
}

impl Step {
    fn new(annotations_from: usize) -> Self {
        Self { hash: 0x6F6F_6D70_6821, events: 0, annotations_from, written_from: None, tables: false }
    }
}

/// A recording that grows.
pub struct Recorder {
    file: File,
    strings: HashMap<String, u32>,
    new_strings: Content,
    strings_waiting: u64,
    frames: HashMap<(u32, u32, u32), u32>,
    new_frames: Content,
    frames_waiting: u64,
    stacks: HashMap<Vec<u32>, u32>,
    new_stacks: Content,
    stacks_waiting: u64,
    by_hash: Map<u64, u32>,
    devices: Vec<Device>,
    annotations: Vec<Annotation>,
    step: Step,
    known_steps: HashSet<u64>,
    repeated_steps: u64,
    repeated_events: u64,
    seen: u64,
    /// Steps that are counted but not told in the file yet, and where the chunk that tells of them is.
    untold: bool,
    told: Option<(u64, u64)>,
    last_time: i64,
}

impl Recorder {
    /// Begins with nothing.
    pub fn new(file: File) -> Self {
        Self {
            file,
            strings: HashMap::new(),
            new_strings: Content::default(),
            strings_waiting: 0,
            frames: HashMap::new(),
            new_frames: Content::default(),
            frames_waiting: 0,
            stacks: HashMap::new(),
            new_stacks: Content::default(),
            stacks_waiting: 0,
            by_hash: Map::default(),
            devices: Vec::new(),
            annotations: Vec::new(),
            step: Step::new(0),
            known_steps: HashSet::new(),
            repeated_steps: 0,
            repeated_events: 0,
            seen: 0,
            untold: false,
            told: None,
            last_time: 0,
        }
    }

    /// Events, events of repeated steps, repeated steps, and whether the file could not be written to its end.
    pub fn counts(&self) -> [u64; 4] {
        [self.seen, self.repeated_events, self.repeated_steps, u64::from(self.file.is_full())]
    }

    /// Microseconds since 1970, never backwards.
    fn now(&mut self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last_time = self.last_time.max(since.as_micros() as i64);
        self.last_time
    }

    // -- tables

    fn string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        if let Some(id) = self.strings.get(text) {
            return *id;
        }
        let id = self.strings.len() as u32 + 1;
        self.strings.insert(text.to_owned(), id);
        self.new_strings.text(text);
        self.step.tables = true;
        self.strings_waiting += 1;
        id
    }

    fn stack(&mut self, stack: &Stack) -> u32 {
        if stack.hash == 0 {
            return 0;
        }
        if let Some(id) = self.by_hash.get(&stack.hash) {
            return *id;
        }
        let id = self.stack_of(stack.frames());
        self.by_hash.insert(stack.hash, id);
        id
    }

    /// Two places in one line are one stack.
    fn stack_of(&mut self, frames: Vec<Frame>) -> u32 {
        let mut ids = Vec::with_capacity(frames.len());
        for frame in frames {
            let key = (self.string(&frame.name), self.string(&frame.file), frame.line);
            let next = self.frames.len() as u32;
            let id = *self.frames.entry(key).or_insert(next);
            if id == next {
                for number in [key.0, key.1, key.2] {
                    self.new_frames.varint(u64::from(number));
                }
                self.frames_waiting += 1;
                self.step.tables = true;
            }
            ids.push(id);
        }
        if ids.is_empty() {
            return 0;
        }
        let next = self.stacks.len() as u32 + 1;
        if let Some(id) = self.stacks.get(&ids) {
            return *id;
        }
        self.new_stacks.varint(ids.len() as u64);
        for id in &ids {
            self.new_stacks.varint(u64::from(*id));
        }
        self.stacks_waiting += 1;
        self.step.tables = true;
        self.stacks.insert(ids, next);
        next
    }

    fn device(&mut self, ordinal: u32) -> &mut Device {
        let index = match self.devices.iter().position(|device| device.ordinal == ordinal) {
            Some(index) => index,
            None => {
                self.devices.push(Device { ordinal, streams: vec![0], ..Device::default() });
                self.devices.len() - 1
            }
        };
        #[allow(clippy::indexing_slicing)] // found or pushed above
        &mut self.devices[index]
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
        let time = self.now();
        self.seen += 1;
        if !matches!(action, Action::Annotate) {
            // What a block is told to be is told again only in steps that are new.
            self.step.events += 1;
            for part in [u64::from(device) << 8 | action as u64, address, size, u64::from(stack)] {
                self.step.hash = (self.step.hash ^ part).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
            }
        }
        let event = Event { action, address, size, stream, stack, time, category };
        let device = self.device(device);
        device.events.push(event);
        if device.events.len() >= ROWS {
            self.flush();
        }
    }

    /// A block was handed out (`size` > 0) or taken back. `reserved`: all of the device's segments together, afterwards.
    pub fn block(
        &mut self,
        device: u32,
        address: u64,
        size: i64,
        requested: u64,
        reserved: u64,
        stream: i64,
        stack: &Stack,
    ) {
        let stack = self.stack(stack);
        if size > 0 {
            let size = size as u64;
            // Never more than the block; tiny requests are not told.
            let requested = if requested > 0 && requested <= size { requested } else { size };
            let stream = self.device(device).stream(stream);
            self.follow_reserved(device, address, reserved, stream, stack);
            self.device(device).live.insert(address, Live { requested, stack, kind: 0 });
            self.event(device, Action::Alloc, address, requested, stream, stack, 0);
        } else {
            let Some(live) = self.device(device).live.remove(&address) else { return };
            let segment = self.device(device).segments.range(..=address).next_back();
            let stream = segment.map_or(0, |(_, segment)| segment.stream);
            for action in [Action::FreeRequested, Action::FreeCompleted] {
                self.event(device, action, address, live.requested, stream, stack, 0);
            }
        }
    }

    /// Expandable segments grow and shrink without a call that is heard: how much is known by what is reserved in all. They
    /// grow at their end, for a block that begins before it; where they shrink is not known.
    fn follow_reserved(&mut self, device: u32, block: u64, reserved: u64, stream: u32, stack: u32) {
        let known = self.device(device).reserved;
        if reserved > known {
            let size = reserved - known;
            let here = self.device(device);
            let before = here.segments.range(..=block).next_back().filter(|(_, held)| held.mapped);
            let end = before.map(|(address, held)| address + held.size).filter(|end| block <= *end);
            let address = end.unwrap_or(block);
            here.reserved = reserved;
            here.segments.insert(address, Held { size, stream, stack, mapped: true });
            self.event(device, Action::SegmentMap, address, size, stream, stack, 0);
        }
        while reserved < self.device(device).reserved {
            let here = self.device(device);
            let excess = here.reserved - reserved;
            let last = here.segments.iter().rev().find(|(_, held)| held.mapped);
            let Some((&address, held)) = last else {
                // A segment went in a way that nobody heard.
                here.reserved = reserved;
                break;
            };
            let (size, stream, stack) = (held.size.min(excess), held.stream, held.stack);
            if size == held.size {
                here.segments.remove(&address);
            } else if let Some(held) = here.segments.get_mut(&address) {
                held.size -= size;
            }
            here.reserved -= size;
            self.event(device, Action::SegmentUnmap, address, size, stream, stack, 0);
        }
    }

    /// A segment was taken from the device.
    pub fn segment(&mut self, device: u32, address: u64, size: u64, stream: i64, stack: &Stack) {
        let stack = self.stack(stack);
        let here = self.device(device);
        let stream = here.stream(stream);
        here.reserved += size;
        here.segments.insert(address, Held { size, stream, stack, mapped: false });
        self.event(device, Action::SegmentAlloc, address, size, stream, stack, 0);
    }

    /// A segment was given back.
    pub fn segment_freed(&mut self, address: u64, stack: &Stack) {
        let found = self.devices.iter_mut().find_map(|device| {
            let held = device.segments.remove(&address)?;
            device.reserved = device.reserved.saturating_sub(held.size);
            Some((device.ordinal, held.size, held.stream))
        });
        if let Some((device, size, stream)) = found {
            let stack = self.stack(stack);
            self.event(device, Action::SegmentFree, address, size, stream, stack, 0);
        }
    }

    /// No block could be found.
    pub fn out_of_memory(&mut self, device: u32, size: u64, free: u64, stack: &Stack) {
        let stack = self.stack(stack);
        self.event(device, Action::OutOfMemory, free, size, 0, stack, 0);
        self.flush();
    }

    /// What blocks are. Told once for each block.
    pub fn kinds(&mut self, device: u32, addresses: &[u64], name: &str) {
        let category = self.string(name);
        for address in addresses {
            let Some(live) = self.device(device).live.get_mut(address) else { continue };
            if std::mem::replace(&mut live.kind, category) == category {
                continue;
            }
            let requested = live.requested;
            self.event(device, Action::Annotate, *address, requested, 0, 0, category);
        }
    }

    /// An optimizer's step begins or has ended. Whether a step has ended that was not seen before.
    pub fn step(&mut self, name: &str, ended: bool) -> bool {
        self.annotate(name, if ended { Stage::End } else { Stage::Start });
        if !ended {
            return false;
        }
        let step = std::mem::replace(&mut self.step, Step::new(0));
        let is_new = self.known_steps.insert(step.hash) || step.tables;
        if !is_new {
            self.take_back(&step);
        } else if self.known_steps.len() > MOST_STEPS {
            self.known_steps.clear();
        }
        for device in &mut self.devices {
            device.step_from = device.events.len();
        }
        self.step.annotations_from = self.annotations.len();
        is_new
    }

    /// A mark.
    pub fn mark(&mut self, name: &str) {
        self.annotate(name, Stage::Mark);
    }

    fn annotate(&mut self, name: &str, stage: Stage) {
        let name = self.string(name);
        let time = self.now();
        for device in &self.devices {
            self.annotations.push(Annotation { device: device.ordinal, time, name, stage });
        }
    }

    fn take_back(&mut self, step: &Step) {
        self.repeated_steps += 1;
        self.repeated_events += step.events;
        self.untold = true;
        if let Some(from) = step.written_from {
            self.file.truncate(from);
            self.told = self.told.filter(|(_, to)| *to <= from);
        }
        for device in &mut self.devices {
            device.events.truncate(device.step_from);
        }
        self.annotations.truncate(step.annotations_from);
    }

    fn new_tables(&self) -> bool {
        self.strings_waiting + self.frames_waiting + self.stacks_waiting > 0
    }

    // -- the beginning and the end

    /// What was there before the recording: handed out at its beginning, by nobody.
    pub fn begin_with(&mut self, device: u32, segments: &[Segment]) {
        for segment in segments {
            let mapped = segment.flags & 2 != 0;
            let here = self.device(device);
            here.reserved += segment.size;
            // Streams that were used before are told apart by their handles.
            let stream = here.stream(segment.stream as i64);
            here.segments.insert(segment.address, Held { size: segment.size, stream, stack: 0, mapped });
            let action = if mapped { Action::SegmentMap } else { Action::SegmentAlloc };
            self.event(device, action, segment.address, segment.size, stream, 0, 0);
            let mut address = segment.address;
            for block in &segment.blocks {
                if block.state == 1 {
                    let requested = block.requested.min(block.size);
                    self.device(device).live.insert(address, Live { requested, stack: 0, kind: 0 });
                    self.event(device, Action::Alloc, address, requested, stream, 0, 0);
                }
                address += block.size;
            }
        }
    }

    /// The final state.
    pub fn end_with(&mut self, device: u32, segments: &[Segment]) {
        self.device(device).is_final = true;
        self.flush();
        let mut body = Content::default();
        let here = self.device(device);
        body.varint(u64::from(device));
        body.varint(segments.len() as u64);
        for segment in segments {
            let held = here
                .segments
                .range(..=segment.address)
                .next_back()
                .map(|(_, held)| (held.stream, held.stack));
            let (stream, stack) = held.unwrap_or_default();
            for number in [segment.address, segment.size, u64::from(stream)] {
                body.varint(number);
            }
            body.byte(segment.flags);
            for number in [segment.pool.0, segment.pool.1, u64::from(stack), segment.blocks.len() as u64] {
                body.varint(number);
            }
            let mut address = segment.address;
            for block in &segment.blocks {
                let stack = here.live.get(&address).map_or(0, |live| live.stack);
                body.varint(block.size);
                body.varint(block.requested);
                body.byte(block.state);
                body.varint(u64::from(if block.state == 0 { 0 } else { stack }));
                address = address.wrapping_add(block.size);
            }
        }
        self.describe(device);
        self.file.chunk(Kind::State, &body.0);
    }

    /// The allocator's settings.
    pub fn settings(&mut self, json: &[u8]) {
        self.flush();
        self.step.tables = true;
        self.file.chunk(Kind::Settings, json);
    }

    // -- writing

    /// Writes what waits.
    pub fn flush(&mut self) {
        if self.file.is_full() {
            // Nothing more will be written: it must not pile up either.
            for device in &mut self.devices {
                device.events.clear();
                device.step_from = 0;
            }
            self.annotations.clear();
            return;
        }
        let waits = self.devices.iter().any(|device| !device.events.is_empty());
        if (waits || self.new_tables() || !self.annotations.is_empty()) && self.untold {
            self.tell_repeats();
        }
        self.write_tables();
        let ordinals: Vec<u32> = self.devices.iter().map(|device| device.ordinal).collect();
        for &device in &ordinals {
            let here = self.device(device);
            let from = here.step_from.min(here.events.len());
            let of_this_step = here.events.split_off(from);
            let before = std::mem::replace(&mut here.events, of_this_step);
            here.step_from = 0;
            self.write_events(device, &before);
        }
        let of_this_step = self.annotations.split_off(self.step.annotations_from.min(self.annotations.len()));
        let before = std::mem::take(&mut self.annotations);
        self.step.annotations_from = 0;
        self.write_annotations(&before);
        let waits = !of_this_step.is_empty() || self.devices.iter().any(|device| !device.events.is_empty());
        if waits && self.step.written_from.is_none() {
            self.step.written_from = Some(self.file.length());
        }
        for &device in &ordinals {
            let events = std::mem::take(&mut self.device(device).events);
            self.write_events(device, &events);
        }
        self.write_annotations(&of_this_step);
        if self.untold {
            self.tell_repeats();
        }
    }

    /// The chunk that counts repeated steps is the last one, or is written again.
    fn tell_repeats(&mut self) {
        self.untold = false;
        let mut content = Content::default();
        content.varint(self.repeated_steps);
        content.varint(self.repeated_events);
        if let Some((from, to)) = self.told
            && to == self.file.length()
        {
            self.file.truncate(from);
        }
        let from = self.file.length();
        self.file.chunk(Kind::Repeats, &content.0);
        self.told = Some((from, self.file.length()));
    }

    fn write_tables(&mut self) {
        if !self.new_tables() {
            return;
        }
        let tables = [
            (Kind::Strings, &mut self.strings_waiting, &mut self.new_strings),
            (Kind::Frames, &mut self.frames_waiting, &mut self.new_frames),
            (Kind::Stacks, &mut self.stacks_waiting, &mut self.new_stacks),
        ];
        for (kind, count, body) in tables {
            let count = std::mem::take(count);
            let body = std::mem::take(body);
            if count > 0 {
                let mut content = Content::default();
                content.varint(count);
                content.0.extend_from_slice(&body.0);
                self.file.chunk(kind, &content.0);
            }
        }
    }

    fn describe(&mut self, device: u32) {
        let here = self.device(device);
        here.described = here.streams.len();
        let mut content = Content::default();
        content.varint(u64::from(device));
        // A final state or none yet, and nothing was overwritten.
        content.byte(u8::from(here.is_final) | 2);
        content.varint(0);
        content.varint(here.streams.len() as u64);
        for stream in &here.streams {
            content.zigzag(*stream);
        }
        self.file.chunk(Kind::Device, &content.0);
    }

    fn write_events(&mut self, device: u32, events: &[Event]) {
        if events.is_empty() {
            return;
        }
        let here = self.device(device);
        if here.described < here.streams.len() {
            self.step.tables = true;
            self.describe(device);
        }
        let mut content = Content::default();
        content.varint(u64::from(device));
        content.varint(events.len() as u64);
        for event in events {
            content.byte(event.action as u8);
        }
        let mut before = 0i64;
        for event in events {
            content.zigzag((event.address as i64).wrapping_sub(before));
            before = event.address as i64;
        }
        for event in events {
            content.varint(event.size);
        }
        for event in events {
            content.varint(u64::from(event.stream));
        }
        for event in events {
            content.varint(u64::from(event.stack));
        }
        let mut before = 0i64;
        for event in events {
            content.zigzag(event.time.wrapping_sub(before));
            before = event.time;
        }
        // Pools, compiled regions, notes: not known here. Then categories, then forward tracebacks.
        for _ in 0..3 {
            content.varint(0);
        }
        content.varint(events.iter().filter(|event| event.category != 0).count() as u64);
        let mut before = 0;
        for (row, event) in events.iter().enumerate().filter(|(_, event)| event.category != 0) {
            content.varint((row - before) as u64);
            content.varint(u64::from(event.category));
            before = row;
        }
        content.varint(0);
        self.file.chunk(Kind::Events, &content.0);
    }

    fn write_annotations(&mut self, annotations: &[Annotation]) {
        if annotations.is_empty() {
            return;
        }
        let mut content = Content::default();
        content.varint(annotations.len() as u64);
        let mut before = 0;
        for annotation in annotations {
            content.varint(u64::from(annotation.device));
            content.zigzag(annotation.time.wrapping_sub(before));
            content.varint(u64::from(annotation.name));
            content.byte(annotation.stage as u8);
            before = annotation.time;
        }
        self.file.chunk(Kind::Annotations, &content.0);
    }

    /// Ends the file. Whether it is whole.
    fn finish(mut self) -> bool {
        self.flush();
        if !self.file.is_full() {
            self.file.chunk(Kind::End, &[]);
        }
        !self.file.is_full()
    }
}
