//! What is known of a recording while it grows: tables, events that are not written yet, and the step that is under way.
//!
//! Events gather in columns; a thread of ours writes them a few times a second, so that a process that is killed loses
//! little. A step whose events are those of an earlier step, at the same addresses, and that leaves the same blocks behind that it
//! found, says nothing new: what was written of it is taken back, and it is counted. While a step goes as an earlier one
//! went ([`Pattern`]), its stacks are taken to be the same too, and nothing is looked at or kept: that is what makes a steady
//! program cheap to record.

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
    stream: u32,
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

/// A step that later ones may repeat: its blocks in order, and the events that they were.
struct Pattern {
    hash: u64,
    /// Device, address, true size (negative when taken back), and what the device has reserved.
    blocks: Vec<(u32, u64, i64, u64)>,
    events: Vec<Event>,
}

/// Steps that may be followed. A program has few kinds of steps: one for each optimizer, and one every so often.
const MOST_PATTERNS: usize = 8;
/// Longer steps are not followed.
const LONGEST_PATTERN: usize = 1 << 18;

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

impl Pattern {
    /// Events that it is, in a file.
    fn rows(&self) -> u64 {
        self.blocks.iter().map(|block| if block.2 > 0 { 1 } else { 2 }).sum()
    }
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
    patterns: Vec<Pattern>,
    /// Which pattern the step goes by, and how far it has come.
    following: Option<(usize, usize)>,
    /// What was where before the step under way, for each place that it touched: device, address; requested bytes and stack.
    touched: Map<(u32, u64), Option<(u64, u32)>>,
    /// The step under way, as a pattern; `None` if it cannot be one.
    course: Option<Pattern>,
    began: i64,
    repeated_steps: u64,
    repeated_events: u64,
    seen: u64,
    /// Steps that are counted but not told in the file yet, and where the chunk that tells of them is.
    untold: bool,
    told: Option<(u64, u64)>,
    last_time: i64,
    /// While earlier events are told: when they were.
    told_time: Option<i64>,
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
            patterns: Vec::new(),
            following: None,
            touched: Map::default(),
            course: None,
            began: 0,
            repeated_steps: 0,
            repeated_events: 0,
            seen: 0,
            untold: false,
            told: None,
            last_time: 0,
            told_time: None,
        }
    }

    /// Events, events of repeated steps, repeated steps, and whether the file could not be written to its end.
    pub fn counts(&self) -> [u64; 4] {
        [self.seen, self.repeated_events, self.repeated_steps, u64::from(self.file.is_full())]
    }

    /// Microseconds since 1970, never backwards.
    fn now(&mut self) -> i64 {
        if let Some(time) = self.told_time {
            return time;
        }
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
            let where_from = address ^ u64::from(stack).rotate_left(40) ^ u64::from(device).rotate_left(60);
            for part in [where_from, size ^ (action as u64).rotate_left(58)] {
                self.step.hash = (self.step.hash ^ part).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
            }
        }
        let event = Event { action, address, size, stream, stack, time, category };
        match action {
            Action::Alloc | Action::FreeRequested => {
                if let Some(course) = &mut self.course
                    && course.events.len() < course.blocks.len()
                {
                    course.events.push(event);
                }
            }
            Action::Annotate => {}
            // Segments come and go: no step to go by.
            _ => self.course = None,
        }
        let device = self.device(device);
        device.events.push(event);
        if device.events.len() >= ROWS {
            self.flush();
        }
    }

    /// Whether the step goes on as an earlier one did. Then nothing else needs to be known of this block.
    pub fn follow(&mut self, device: u32, address: u64, size: i64, reserved: u64) -> bool {
        let Some((which, at)) = self.following else { return false };
        let block = (device, address, size, reserved);
        if self.patterns.get(which).and_then(|pattern| pattern.blocks.get(at)) == Some(&block) {
            self.following = Some((which, at + 1));
            return true;
        }
        // Another may have begun in the same way.
        let so_far =
            self.patterns.get(which).and_then(|pattern| pattern.blocks.get(..at)).unwrap_or_default();
        let other = self.patterns.iter().position(|other| {
            other.blocks.get(at) == Some(&block)
                && other.blocks.get(..at).is_some_and(|begin| begin == so_far)
        });
        if let Some(other) = other {
            self.following = Some((other, at + 1));
            return true;
        }
        self.stop_following();
        false
    }

    /// The step goes its own way: what it did so far is told after all, at times between its begin and now.
    fn stop_following(&mut self) {
        let Some((which, at)) = self.following.take() else { return };
        let Some(pattern) = self.patterns.get(which) else { return };
        let course = Pattern {
            hash: 0,
            blocks: pattern.blocks.get(..at).unwrap_or_default().to_vec(),
            events: pattern.events.get(..at).unwrap_or_default().to_vec(),
        };
        let (began, now, count) = (self.began, self.now(), course.events.len() as i64);
        for (index, (event, &(device, address, size, _))) in
            course.events.iter().zip(&course.blocks).enumerate()
        {
            self.last_time = began + (now - began) * (index as i64 + 1) / (count + 1);
            self.told_time = Some(self.last_time);
            self.touch(device, address);
            if size > 0 {
                let live = Live { requested: event.size, stream: event.stream, stack: event.stack, kind: 0 };
                self.device(device).live.insert(address, live);
                self.event(device, event.action, address, event.size, event.stream, event.stack, 0);
            } else {
                self.device(device).live.remove(&address);
                self.event(device, event.action, address, event.size, event.stream, event.stack, 0);
                self.completed(device);
            }
        }
        self.told_time = None;
        self.course = Some(course);
    }

    /// Remembers what was at an address before the step.
    fn touch(&mut self, device: u32, address: u64) {
        if !self.touched.contains_key(&(device, address)) {
            let before = self.at(device, address);
            self.touched.insert((device, address), before);
        }
    }

    fn at(&self, device: u32, address: u64) -> Option<(u64, u32)> {
        let live = self.devices.iter().find(|one| one.ordinal == device)?.live.get(&address)?;
        Some((live.requested, live.stack))
    }

    /// Whether the step left memory as it found it. Begins anew.
    fn is_neutral(&mut self) -> bool {
        let touched = std::mem::take(&mut self.touched);
        touched.iter().all(|(&(device, address), before)| self.at(device, address) == *before)
    }

    /// The block that is about to be told, as a part of the step's course.
    fn note_course(&mut self, block: (u32, u64, i64, u64)) {
        let Some(course) = &mut self.course else { return };
        if course.blocks.len() >= LONGEST_PATTERN {
            self.course = None;
            return;
        }
        course.blocks.push(block);
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
        if size < 0 && !self.device(device).live.contains_key(&address) {
            return;
        }
        self.touch(device, address);
        self.note_course((device, address, size, reserved));
        if size > 0 {
            let size = size as u64;
            // Never more than the block; tiny requests are not told.
            let requested = if requested > 0 && requested <= size { requested } else { size };
            let stream = self.device(device).stream(stream);
            self.follow_reserved(device, address, reserved, stream, stack);
            self.device(device).live.insert(address, Live { requested, stream, stack, kind: 0 });
            self.event(device, Action::Alloc, address, requested, stream, stack, 0);
        } else {
            let Some(live) = self.device(device).live.remove(&address) else { return };
            self.event(device, Action::FreeRequested, address, live.requested, live.stream, stack, 0);
            self.completed(device);
        }
    }

    /// What was let go last is back in its pool: where blocks wait for other streams is not known.
    fn completed(&mut self, device: u32) {
        self.seen += 1;
        self.step.events += 1;
        let device = self.device(device);
        if let Some(&event) = device.events.last() {
            device.events.push(Event { action: Action::FreeCompleted, ..event });
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
        self.stop_following();
        let stack = self.stack(stack);
        let here = self.device(device);
        let stream = here.stream(stream);
        here.reserved += size;
        here.segments.insert(address, Held { size, stream, stack, mapped: false });
        self.event(device, Action::SegmentAlloc, address, size, stream, stack, 0);
    }

    /// A segment was given back.
    pub fn segment_freed(&mut self, address: u64, stack: &Stack) {
        self.stop_following();
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
        self.stop_following();
        let stack = self.stack(stack);
        self.event(device, Action::OutOfMemory, free, size, 0, stack, 0);
        self.flush();
    }

    /// What blocks are. Told once for each block.
    pub fn kinds(&mut self, device: u32, addresses: &[u64], name: &str) {
        self.stop_following();
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
        if let Some((which, at)) = self.following
            && self.patterns.get(which).is_some_and(|pattern| pattern.blocks.len() == at)
        {
            self.step.events = self.patterns.get(which).map_or(0, Pattern::rows);
            self.seen += self.step.events;
            let step = std::mem::replace(&mut self.step, Step::new(0));
            self.take_back(&step);
            self.step.annotations_from = self.annotations.len();
            self.following = Some((which, 0));
            self.began = self.now();
            return false;
        }
        self.stop_following();
        let step = std::mem::replace(&mut self.step, Step::new(0));
        let is_neutral = self.is_neutral();
        let is_new = self.known_steps.insert(step.hash) || step.tables || !is_neutral;
        if !is_neutral {
            self.course = None;
        }
        if !is_new {
            self.take_back(&step);
        } else if self.known_steps.len() > MOST_STEPS {
            self.known_steps.clear();
        }
        for device in &mut self.devices {
            device.step_from = device.events.len();
        }
        self.step.annotations_from = self.annotations.len();
        self.remember(step.hash);
        is_new
    }

    /// The next step may go as this one went.
    fn remember(&mut self, hash: u64) {
        self.began = self.now();
        let course = self.course.replace(Pattern { hash: 0, blocks: Vec::new(), events: Vec::new() });
        let known = self.patterns.iter().position(|pattern| pattern.hash == hash);
        self.following = known.map(|which| (which, 0));
        let Some(course) =
            course.filter(|course| known.is_none() && course.blocks.len() == course.events.len())
        else {
            return;
        };
        if self.patterns.len() >= MOST_PATTERNS {
            self.patterns.remove(0);
        }
        self.patterns.push(Pattern { hash, ..course });
        self.following = Some((self.patterns.len() - 1, 0));
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
                    self.device(device).live.insert(address, Live { requested, stream, stack: 0, kind: 0 });
                    self.event(device, Action::Alloc, address, requested, stream, 0, 0);
                }
                address += block.size;
            }
        }
    }

    /// The final state.
    pub fn end_with(&mut self, device: u32, segments: &[Segment]) {
        self.stop_following();
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
        self.stop_following();
        self.flush();
        if !self.file.is_full() {
            self.file.chunk(Kind::End, &[]);
        }
        !self.file.is_full()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]
mod tests {
    use super::*;
    use crate::file::File;
    use oomph_trace::Action as Told;
    use proptest::prelude::*;
    use std::ffi::CString;
    use std::path::Path;

    const BASE: u64 = 0x7f00_0000_0000;

    fn recorder(path: &Path, most: u64) -> Recorder {
        let path = CString::new(path.to_str().unwrap()).unwrap();
        Recorder::new(File::create(&path, most).unwrap())
    }

    fn read(path: &Path) -> oomph_trace::Recording {
        oomph_trace::format::read(&std::fs::read(path).unwrap()[..]).unwrap()
    }

    /// As the hook does it.
    fn tell(recorder: &mut Recorder, slot: u64, size: i64, reserved: u64) {
        let address = BASE + slot * (1 << 20);
        if !recorder.follow(0, address, size, reserved) {
            recorder.block(0, address, size, 0, reserved, 0, &Stack::empty());
        }
    }

    /// One thing that a program does.
    #[derive(Clone, Debug)]
    enum Deed {
        Toggle(u64, i64),
        Step,
        Flush,
    }

    fn deeds() -> impl Strategy<Value = Vec<Deed>> {
        let deed = prop_oneof![
            6 => (0u64..6, 1i64..4).prop_map(|(slot, size)| Deed::Toggle(slot, size * 512)),
            1 => Just(Deed::Flush),
        ];
        // A few kinds of steps, again and again, so that patterns are found, left, and taken up again.
        (
            prop::collection::vec(prop::collection::vec(deed, 0..8), 1..4),
            prop::collection::vec(0usize..3, 0..40),
        )
            .prop_map(|(kinds, order)| {
                let mut all = Vec::new();
                for which in order {
                    all.extend(kinds[which % kinds.len()].iter().cloned());
                    all.push(Deed::Step);
                }
                all
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// What is in the file, with the steps that were counted, is what happened; the blocks that live are those that live.
        #[test]
        fn a_recording_is_what_happened_without_steps_that_repeat(deeds in deeds()) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("a.oomph");
            let mut recorder = recorder(&path, 1 << 30);
            recorder.segment(0, BASE, 64 << 20, 0, &Stack::empty());
            let mut live: BTreeMap<u64, i64> = BTreeMap::new();
            let (mut happened, mut steps) = (1u64, 0u64);
            // Every step as the naive model sees it: (events, live blocks afterwards).
            let mut whole: Vec<Vec<(bool, u64)>> = vec![Vec::new()];
            for deed in &deeds {
                match deed {
                    Deed::Toggle(slot, size) => {
                        let size = match live.remove(slot) {
                            Some(size) => { happened += 2; -size }
                            None => { live.insert(*slot, *size); happened += 1; *size }
                        };
                        whole.last_mut().unwrap().push((size > 0, *slot));
                        tell(&mut recorder, *slot, size, 64 << 20);
                    }
                    Deed::Flush => recorder.flush(),
                    Deed::Step => {
                        steps += 1;
                        recorder.step("Optimizer.step#A.step", true);
                        whole.push(Vec::new());
                    }
                }
            }
            let counts = recorder.counts();
            prop_assert!(recorder.finish());
            let told = read(&path);
            prop_assert!(!told.source.truncated);
            let device = &told.devices[0];
            prop_assert_eq!(device.events.len() as u64 + told.repeated.events, happened);
            prop_assert_eq!(counts[2], told.repeated.steps);
            let ends = told.annotations.len() as u64;
            prop_assert_eq!(ends + told.repeated.steps, steps);
            // Replayed, it ends where the program ended.
            let mut blocks: BTreeMap<u64, u64> = BTreeMap::new();
            for row in 0..device.events.len() {
                let slot = (device.events.address[row] - BASE) / (1 << 20);
                match device.events.action[row] {
                    Told::Alloc => prop_assert!(blocks.insert(slot, device.events.size[row]).is_none()),
                    Told::FreeRequested => prop_assert!(blocks.remove(&slot).is_some()),
                    _ => {}
                }
            }
            let ours: BTreeMap<u64, u64> = live.iter().map(|(slot, size)| (*slot, *size as u64)).collect();
            prop_assert_eq!(blocks, ours);
            prop_assert!(device.events.time.is_sorted());
        }

        /// A writer that is killed leaves something to read, wherever it was cut.
        #[test]
        fn a_file_that_is_cut_anywhere_is_readable(deeds in deeds(), share in 0.0f64..1.0) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("a.oomph");
            let mut recorder = recorder(&path, 1 << 30);
            let mut live: BTreeMap<u64, i64> = BTreeMap::new();
            for deed in &deeds {
                match deed {
                    Deed::Toggle(slot, size) => {
                        let size = live.remove(slot).map_or_else(|| { live.insert(*slot, *size); *size }, |size| -size);
                        tell(&mut recorder, *slot, size, 0);
                    }
                    Deed::Flush => recorder.flush(),
                    Deed::Step => { recorder.step("Optimizer.step#A.step", true); }
                }
            }
            recorder.flush();
            let bytes = std::fs::read(&path).unwrap();
            let cut = 12 + ((bytes.len() - 12) as f64 * share) as usize;
            let told = oomph_trace::format::read(&bytes[..cut]).unwrap();
            prop_assert!(told.source.truncated);
        }
    }

    #[test]
    fn a_steady_program_is_followed_and_its_steps_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.oomph");
        let mut recorder = recorder(&path, 1 << 30);
        for step in 0..100 {
            for slot in 0..10 {
                tell(&mut recorder, slot, 512, 0);
            }
            for slot in 0..10 {
                tell(&mut recorder, slot, -512, 0);
            }
            let is_new = recorder.step("Optimizer.step#A.step", true);
            assert_eq!(is_new, step == 0, "step {step}");
        }
        assert_eq!(recorder.counts(), [3000, 2970, 99, 0]);
        assert!(recorder.finish());
        assert_eq!(read(&path).repeated, oomph_trace::Repeated { steps: 99, events: 2970 });
    }

    #[test]
    fn a_step_that_leaves_the_pattern_is_told_from_its_begin() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.oomph");
        let mut recorder = recorder(&path, 1 << 30);
        for last in [2, 2, 3] {
            for slot in [0, 1, last] {
                tell(&mut recorder, slot, 512, 0);
            }
            for slot in [0, 1, last] {
                tell(&mut recorder, slot, -512, 0);
            }
            recorder.step("Optimizer.step#A.step", true);
        }
        assert!(recorder.finish());
        let told = read(&path);
        assert_eq!((told.devices[0].events.len(), told.repeated.steps), (18, 1));
    }

    #[test]
    fn a_file_ends_where_it_may_not_grow() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.oomph");
        let mut recorder = recorder(&path, 4096);
        for slot in 0..10_000 {
            tell(&mut recorder, slot, 512, 0);
            if slot % 100 == 0 {
                recorder.flush();
            }
        }
        assert!(!recorder.finish());
        assert!(std::fs::metadata(&path).unwrap().len() <= 4096);
        let told = read(&path);
        assert!(told.source.truncated && !told.devices[0].events.is_empty());
    }

    #[test]
    fn kinds_are_told_once_for_each_block() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.oomph");
        let mut recorder = recorder(&path, 1 << 30);
        tell(&mut recorder, 0, 512, 0);
        recorder.kinds(0, &[BASE, BASE, BASE + 7], "parameter");
        recorder.kinds(0, &[BASE], "parameter");
        assert!(recorder.finish());
        let told = read(&path);
        let events = &told.devices[0].events;
        assert_eq!(events.action, [Told::Alloc, Told::Annotate]);
        assert_eq!(told.strings.get(events.category[0].1), "parameter");
    }
}
