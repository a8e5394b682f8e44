//! What is known of a recording while it grows: tables, events that are not written yet, and the step that is under way.
//!
//! Events gather in columns; a thread of ours writes them a few times a second, so that a process that is killed loses
//! little. What goes as it went before says nothing new: steps that, alone or a few together, leave the same blocks behind that
//! they found are a [`Pattern`]. While a program follows one, block by block at the same addresses, its stacks are taken to be
//! the same too, nothing is looked at or kept, and its steps are counted: that is what makes a steady program cheap to record.

use crate::file::{Content, File, Kind};
use crate::gauges;
use crate::layout::Action;
use crate::places::{self, Place, Places};
use crate::python::{Frame, Stack};
use crate::status::{self, Card, DeviceStatus, Publisher, Status};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::{CStr, OsStr, c_int, c_void};
use std::hash::{BuildHasherDefault, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often what was seen is written.
const EVERY: Duration = Duration::from_millis(100);
/// Rows of a chunk of events, as the format's other writer has them.
const ROWS: usize = 64 << 10;
/// As many censuses as a reader keeps, and as long ones.
const MOST_CENSUSES: usize = 16;
const LARGEST_CENSUS: usize = 8 << 20;

static RECORDER: Mutex<Option<Recorder>> = Mutex::new(None);
static NOBODY: Mutex<Option<Recorder>> = Mutex::new(None);
static RECORDING: AtomicBool = AtomicBool::new(false);
/// A forked child has no thread to write with, and the file is its parent's.
static FORKED: AtomicBool = AtomicBool::new(false);
/// Says what is true at the moment. Taken before [`RECORDER`], if both are.
static PUBLISHER: Mutex<Option<Publisher>> = Mutex::new(None);
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

/// Never in a forked child: the file is its parent's.
fn publisher() -> MutexGuard<'static, Option<Publisher>> {
    PUBLISHER.lock().unwrap_or_else(PoisonError::into_inner)
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
    gauges::begin();
    *lock() = Some(Recorder::new(file));
    *publisher() = Publisher::new(Path::new(OsStr::from_bytes(path.to_bytes())));
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
    let mut published: Option<Instant> = None;
    while TURN.load(Relaxed) == turn {
        std::thread::sleep(EVERY);
        if TURN.load(Relaxed) == turn
            && let Some(recorder) = lock().as_mut()
        {
            recorder.flush();
        }
        if published.is_none_or(|when| when.elapsed() >= status::EVERY) {
            published = Some(Instant::now());
            publish(turn);
        }
    }
}

fn publish(turn: u64) {
    let mut publisher = publisher();
    let Some(publisher) = publisher.as_mut().filter(|_| TURN.load(Relaxed) == turn) else { return };
    // The program waits for the recorder's lock, not for the disk.
    let status = lock().as_mut().map(Recorder::status);
    if let Some(status) = status {
        publisher.publish(&status);
    }
}

/// Ends the recording that is under way, if there is one.
pub fn stop() -> c_int {
    RECORDING.store(false, Relaxed);
    TURN.fetch_add(1, Relaxed);
    let recorder = lock().take();
    if !FORKED.load(Relaxed) {
        // Whoever publishes is done, and nobody does again.
        publisher().take();
    }
    match recorder {
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

/// A device, its blocks (requested bytes and stack), its segments (size).
type Known = (u32, Map<u64, (u64, u32)>, BTreeMap<u64, u64>);

struct Live {
    requested: u64,
    stream: u32,
    stack: u32,
    kind: u32,
    place: Place,
}

impl Live {
    fn key(&self) -> (u64, u32) {
        (self.requested, self.stack)
    }
}

/// A block that is there, in one number.
fn fingerprint(device: u32, address: u64, live: &Live) -> u64 {
    let mut hasher = Spread::default();
    for part in [u64::from(device), address, live.requested, u64::from(live.stack)] {
        hasher.write_u64(part);
    }
    hasher.finish()
}

#[derive(Clone, Copy)]
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
    streams: Vec<i64>,
    described: usize,
    live: Map<u64, Live>,
    segments: BTreeMap<u64, Held>,
    reserved: u64,
    is_final: bool,
    /// What lines hold, by their numbers: of the live blocks.
    held: Vec<u64>,
    /// The peak of the last step that ended.
    last_peak: Option<u64>,
}

impl Device {
    fn stream(&mut self, number: i64) -> u32 {
        let known = self.streams.iter().position(|stream| *stream == number);
        known.unwrap_or_else(|| {
            self.streams.push(number);
            self.streams.len() - 1
        }) as u32
    }

    /// What a line holds, for as many lines as are known.
    fn held(&mut self, place: Place) -> Option<&mut u64> {
        let place = place as usize;
        if place >= self.held.len() {
            self.held.resize(place + 1, 0);
        }
        self.held.get_mut(place)
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

/// What happens to a block: device, address, true size (negative when it is taken back), and what the device has reserved.
type Touch = (u32, u64, i64, u64);

/// A step that was told, as later ones may repeat it.
struct Sequence {
    /// The blocks that were there before, as [`Recorder::around`].
    before: u64,
    blocks: Vec<Touch>,
    events: Vec<Event>,
    /// Whose step it was: a string's id.
    name: u32,
}

impl Sequence {
    fn begin(before: u64) -> Self {
        Self { before, blocks: Vec::new(), events: Vec::new(), name: 0 }
    }
}

/// Steps that leave the blocks behind that they found: one, or a few that only do so together. (A loss that is kept until the
/// next one is there lies in two places by turns.)
struct Pattern {
    /// The blocks that are there when it begins, and when it has ended.
    around: u64,
    blocks: Vec<Touch>,
    events: Vec<Event>,
    /// Where its steps end, in blocks, and whose they are.
    ends: Vec<(usize, u32)>,
    /// The line that each block was made by; found when somebody wants to know.
    places: Option<Vec<Place>>,
}

impl Pattern {
    /// A part of it, as a step that was told.
    fn part(&self, part: std::ops::Range<usize>, before: u64, name: u32) -> Sequence {
        let blocks = self.blocks.get(part.clone()).unwrap_or_default().to_vec();
        Sequence { before, blocks, events: self.events.get(part).unwrap_or_default().to_vec(), name }
    }

    /// Events that it is, in a file.
    fn rows(&self) -> u64 {
        self.blocks.iter().map(|block| if block.2 > 0 { 1 } else { 2 }).sum()
    }

    /// Whether it begins as another does, so far, and goes on with this block.
    fn goes_on_with(&self, other: &Pattern, at: usize, steps: usize, block: &Touch) -> bool {
        self.around == other.around
            && self.blocks.get(at) == Some(block)
            && self.blocks.get(..at).is_some_and(|begin| Some(begin) == other.blocks.get(..at))
            && self.ends.get(..steps).is_some_and(|begin| Some(begin) == other.ends.get(..steps))
    }
}

/// The pattern that a program follows, and how far it has come.
struct Following {
    which: usize,
    at: usize,
    /// When the steps ended that are over, and when the optimizer began the one under way.
    ended: Vec<i64>,
    started: Option<(i64, u32)>,
}

/// Steps that may together be a pattern.
const MOST_PERIOD: usize = 4;
/// Patterns that may be followed. A program has few: one for each optimizer, and one every so often.
const MOST_PATTERNS: usize = 8;
/// Longer steps are not followed.
const LONGEST_PATTERN: usize = 1 << 18;
/// In the midst of a longer pattern, lines are not told: it is the program that waits while they are looked for.
const LONGEST_TOLD: usize = 1 << 17;

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
    places: Places,
    /// Events that wait at most: what waits must fit at a file's end.
    most_rows: usize,
    devices: Vec<Device>,
    annotations: Vec<Annotation>,
    /// The blocks that are there, in one number: the same blocks give the same.
    around: u64,
    patterns: Vec<Pattern>,
    following: Option<Following>,
    /// The last steps that were told, one after another.
    history: VecDeque<Sequence>,
    /// The step under way; `None` if it cannot be part of a pattern.
    sequence: Option<Sequence>,
    began: i64,
    repeated_steps: u64,
    repeated_events: u64,
    seen: u64,
    /// What the file knew to be there when it became too large, by device: blocks and segments.
    cut: Option<Vec<Known>>,
    /// Events for which there was no room.
    unwritten: Vec<(u32, Vec<Event>)>,
    /// Steps that are counted but not told in the file yet, and where the chunk that tells of them is.
    untold: bool,
    told: Option<(u64, u64)>,
    /// The file's end is being written.
    at_the_end: bool,
    last_time: i64,
    /// While earlier events are told: when they were.
    told_time: Option<i64>,
    /// Steps that ended.
    steps: u64,
    cards: Vec<(u32, Card)>,
    /// Censuses that were written, and one that waits for the end.
    censuses: usize,
    last_census: Vec<u8>,
}

impl Recorder {
    /// Begins with nothing.
    pub fn new(file: File) -> Self {
        Self {
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
            places: Places::new(),
            most_rows: usize::try_from(file.most() / 256).unwrap_or(ROWS).clamp(64, ROWS),
            file,
            devices: Vec::new(),
            annotations: Vec::new(),
            around: 0,
            patterns: Vec::new(),
            following: None,
            history: VecDeque::new(),
            sequence: Some(Sequence::begin(0)),
            began: 0,
            repeated_steps: 0,
            repeated_events: 0,
            seen: 0,
            cut: None,
            unwritten: Vec::new(),
            untold: false,
            told: None,
            at_the_end: false,
            last_time: 0,
            told_time: None,
            steps: 0,
            cards: Vec::new(),
            censuses: 0,
            last_census: Vec::new(),
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
        for frame in &frames {
            let key = (self.string(&frame.name), self.string(&frame.file), frame.line);
            let next = self.frames.len() as u32;
            let id = *self.frames.entry(key).or_insert(next);
            if id == next {
                for number in [key.0, key.1, key.2] {
                    self.new_frames.varint(u64::from(number));
                }
                self.frames_waiting += 1;
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
        self.places.add(&frames, &ids);
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
        let event = Event { action, address, size, stream, stack, time, category };
        match action {
            Action::Alloc | Action::FreeRequested => {
                if let Some(sequence) = &mut self.sequence
                    && sequence.events.len() < sequence.blocks.len()
                {
                    sequence.events.push(event);
                }
            }
            Action::Annotate => {}
            // Segments come and go: no step to go by.
            _ => self.sequence = None,
        }
        self.device(device).events.push(event);
        // A free is told in two events, which stay together.
        if !matches!(action, Action::FreeRequested) {
            self.flush_if_many(device);
        }
    }

    fn flush_if_many(&mut self, device: u32) {
        if self.device(device).events.len() >= self.most_rows {
            self.flush();
        }
    }

    /// Whether the program goes on as it did before. Then nothing else needs to be known of this block.
    pub fn follow(&mut self, device: u32, address: u64, size: i64, reserved: u64) -> bool {
        let Some(following) = &mut self.following else { return false };
        let block = (device, address, size, reserved);
        let Some(pattern) = self.patterns.get(following.which) else { return false };
        if pattern.blocks.get(following.at) == Some(&block) {
            following.at += 1;
            return true;
        }
        // Another may have begun in the same way.
        let (at, steps) = (following.at, following.ended.len());
        if let Some(other) =
            self.patterns.iter().position(|other| other.goes_on_with(pattern, at, steps, &block))
        {
            following.which = other;
            following.at += 1;
            return true;
        }
        self.stop_following();
        false
    }

    /// The program goes its own way: what it did since the pattern began is told after all, at times in between.
    fn stop_following(&mut self) {
        let Some(following) = self.following.take() else { return };
        if following.which >= self.patterns.len() {
            return;
        }
        let pattern = self.patterns.swap_remove(following.which);
        let (mut from, mut time) = (0, self.began);
        self.history.clear();
        self.sequence = None;
        for (&(end, name), &ended) in pattern.ends.iter().zip(&following.ended) {
            let before = self.around;
            self.tell_again(&pattern, from..end, time, ended);
            self.annotate_at(name, Stage::End, ended);
            self.history.push_back(pattern.part(from..end, before, name));
            (from, time) = (end, ended);
        }
        let before = self.around;
        let now = self.now();
        self.tell_again(&pattern, from..following.at, time, now);
        if let Some((started, name)) = following.started {
            self.annotate_at(name, Stage::Start, started);
        }
        self.sequence = Some(pattern.part(from..following.at, before, 0));
        self.patterns.push(pattern);
    }

    /// Tells a part of a pattern as if it had just been seen, between two times.
    fn tell_again(&mut self, pattern: &Pattern, part: std::ops::Range<usize>, began: i64, ended: i64) {
        let count = part.len() as i64 + 1;
        let events = pattern.events.get(part.clone()).unwrap_or_default();
        let blocks = pattern.blocks.get(part).unwrap_or_default();
        for (index, (event, &(device, address, size, _))) in events.iter().zip(blocks).enumerate() {
            self.told_time = Some(began + (ended - began) * (index as i64 + 1) / count);
            if size > 0 {
                let place = self.places.of(event.stack);
                let (requested, stream, stack) = (event.size, event.stream, event.stack);
                self.put(device, address, Live { requested, stream, stack, kind: 0, place });
            } else {
                self.take(device, address);
            }
            self.event(device, event.action, address, event.size, event.stream, event.stack, 0);
            if size < 0 {
                self.completed(device);
            }
        }
        self.told_time = None;
    }

    /// A block is there.
    fn put(&mut self, device: u32, address: u64, live: Live) {
        self.around ^= fingerprint(device, address, &live);
        let here = self.device(device);
        if let Some(held) = here.held(live.place) {
            *held += live.requested;
        }
        if let Some(before) = here.live.insert(address, live) {
            if let Some(held) = here.held(before.place) {
                *held = held.saturating_sub(before.requested);
            }
            self.around ^= fingerprint(device, address, &before);
        }
    }

    /// A block is gone, if it was there.
    fn take(&mut self, device: u32, address: u64) -> Option<Live> {
        let here = self.device(device);
        let live = here.live.remove(&address)?;
        if let Some(held) = here.held(live.place) {
            *held = held.saturating_sub(live.requested);
        }
        self.around ^= fingerprint(device, address, &live);
        Some(live)
    }

    /// The block that is about to be told, as a part of the step's sequence.
    fn note_sequence(&mut self, block: Touch) {
        let Some(sequence) = &mut self.sequence else { return };
        if sequence.blocks.len() >= LONGEST_PATTERN {
            self.sequence = None;
            return;
        }
        sequence.blocks.push(block);
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
        self.note_sequence((device, address, size, reserved));
        if size > 0 {
            let size = size as u64;
            // Never more than the block; tiny requests are not told.
            let requested = if requested > 0 && requested <= size { requested } else { size };
            let stream = self.device(device).stream(stream);
            self.follow_reserved(device, address, reserved, stream, stack);
            let place = self.places.of(stack);
            self.put(device, address, Live { requested, stream, stack, kind: 0, place });
            self.event(device, Action::Alloc, address, requested, stream, stack, 0);
        } else {
            let Some(live) = self.take(device, address) else { return };
            self.event(device, Action::FreeRequested, address, live.requested, live.stream, stack, 0);
            self.completed(device);
        }
    }

    /// What was let go last is back in its pool: where blocks wait for other streams is not known.
    fn completed(&mut self, device: u32) {
        self.seen += 1;
        let here = self.device(device);
        if let Some(&event) = here.events.last() {
            here.events.push(Event { action: Action::FreeCompleted, ..event });
        }
        self.flush_if_many(device);
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

    /// The device gives addresses anew only after what was mapped there has gone, which nobody heard.
    fn unmap_where(&mut self, device: u32, address: u64, size: u64) {
        let here = self.device(device);
        let end = address.saturating_add(size);
        let gone: Vec<(u64, Held)> = (here.segments.range(..end).rev())
            .take_while(|(start, held)| start.saturating_add(held.size) > address)
            .filter(|(_, held)| held.mapped)
            .map(|(&start, &held)| (start, held))
            .collect();
        for (start, Held { size, stream, stack, .. }) in gone {
            let here = self.device(device);
            here.segments.remove(&start);
            here.reserved = here.reserved.saturating_sub(size);
            self.event(device, Action::SegmentUnmap, start, size, stream, stack, 0);
        }
    }

    /// A segment was taken from the device.
    pub fn segment(&mut self, device: u32, address: u64, size: u64, stream: i64, stack: &Stack) {
        self.stop_following();
        let stack = self.stack(stack);
        self.unmap_where(device, address, size);
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
        self.flush();
        self.catch_up();
        let stack = self.stack(stack);
        self.event(device, Action::OutOfMemory, free, size, 0, stack, 0);
        self.flush();
        if std::mem::take(&mut self.at_the_end) {
            // The program may go on: what it does from here on is missing again.
            self.remember_cut();
        }
    }

    /// In a file that has become too large: what has come and gone since, as if all at once, now.
    fn catch_up(&mut self) {
        let Some(cut) = self.cut.take() else { return };
        self.forget();
        self.at_the_end = true;
        for (device, events) in std::mem::take(&mut self.unwritten) {
            self.device(device).events = events;
        }
        for (device, blocks, segments) in cut {
            let here = self.device(device);
            let gone: Vec<(u64, u64)> = (blocks.iter())
                .filter(|(address, known)| here.live.get(address).map(Live::key) != Some(**known))
                .map(|(address, known)| (*address, known.0))
                .collect();
            let come: Vec<(u64, u64, u32, u32)> = (here.live.iter())
                .filter(|(address, live)| blocks.get(address) != Some(&live.key()))
                .map(|(address, live)| (*address, live.requested, live.stream, live.stack))
                .collect();
            let freed: Vec<(u64, u64)> = (segments.iter())
                .filter(|(address, size)| here.segments.get(address).map(|held| held.size) != Some(**size))
                .map(|(address, size)| (*address, *size))
                .collect();
            let taken: Vec<(u64, u64, u32, u32)> = (here.segments.iter())
                .filter(|(address, held)| segments.get(address) != Some(&held.size))
                .map(|(address, held)| (*address, held.size, held.stream, held.stack))
                .collect();
            for (address, requested) in gone {
                self.event(device, Action::FreeRequested, address, requested, 0, 0, 0);
                self.completed(device);
            }
            for (address, size) in freed {
                self.event(device, Action::SegmentFree, address, size, 0, 0, 0);
            }
            for (address, size, stream, stack) in taken {
                self.event(device, Action::SegmentAlloc, address, size, stream, stack, 0);
            }
            for (address, requested, stream, stack) in come {
                self.event(device, Action::Alloc, address, requested, stream, stack, 0);
            }
        }
    }

    fn remember_cut(&mut self) {
        let known = self.devices.iter().map(|device| {
            let blocks = device.live.iter().map(|(address, live)| (*address, live.key())).collect();
            let segments = device.segments.iter().map(|(address, held)| (*address, held.size)).collect();
            (device.ordinal, blocks, segments)
        });
        self.cut = Some(known.collect());
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

    /// An optimizer's step begins or has ended. Whether a step has ended that did not go as one before.
    pub fn step(&mut self, name: &str, ended: bool) -> bool {
        let name = self.string(name);
        let now = self.now();
        if ended {
            self.steps += 1;
            for device in &mut self.devices {
                device.last_peak = Some(gauges::end_step(device.ordinal));
            }
        }
        if let Some(following) = &mut self.following
            && let Some(pattern) = self.patterns.get(following.which)
        {
            if !ended {
                following.started = Some((now, name));
                return false;
            }
            if pattern.ends.get(following.ended.len()) == Some(&(following.at, name)) {
                following.started = None;
                following.ended.push(now);
                if following.ended.len() == pattern.ends.len() {
                    self.repeated_steps += pattern.ends.len() as u64;
                    self.repeated_events += pattern.rows();
                    self.seen += pattern.rows();
                    self.untold = true;
                    let which = following.which;
                    self.follow_from_here(which);
                }
                return false;
            }
            self.stop_following();
        }
        self.annotate_at(name, if ended { Stage::End } else { Stage::Start }, now);
        if ended {
            self.look_for_a_pattern(name);
        }
        ended
    }

    fn follow_from_here(&mut self, which: usize) {
        self.began = self.now();
        self.following = Some(Following { which, at: 0, ended: Vec::new(), started: None });
    }

    /// A step has been told: do the last ones leave the blocks that they found, or has a pattern begun here before?
    fn look_for_a_pattern(&mut self, name: u32) {
        let sequence = self.sequence.replace(Sequence::begin(self.around));
        match sequence.filter(|sequence| sequence.blocks.len() == sequence.events.len()) {
            Some(sequence) => self.history.push_back(Sequence { name, ..sequence }),
            None => self.history.clear(),
        }
        if self.history.len() > MOST_PERIOD {
            self.history.pop_front();
        }
        let first = self.history.iter().rposition(|sequence| sequence.before == self.around);
        if let Some(first) = first {
            let around = self.around;
            let mut pattern =
                Pattern { around, blocks: Vec::new(), events: Vec::new(), ends: Vec::new(), places: None };
            for sequence in self.history.iter().skip(first) {
                pattern.blocks.extend_from_slice(&sequence.blocks);
                pattern.events.extend_from_slice(&sequence.events);
                pattern.ends.push((pattern.blocks.len(), sequence.name));
            }
            if !self.patterns.iter().any(|known| {
                known.blocks == pattern.blocks && known.ends == pattern.ends && known.around == pattern.around
            }) {
                if self.patterns.len() >= MOST_PATTERNS {
                    self.patterns.remove(0);
                }
                self.patterns.push(pattern);
            }
        }
        if let Some(which) = self.patterns.iter().rposition(|pattern| pattern.around == self.around) {
            self.follow_from_here(which);
        }
    }

    /// A mark.
    pub fn mark(&mut self, name: &str) {
        let (name, now) = (self.string(name), self.now());
        self.annotate_at(name, Stage::Mark, now);
    }

    fn annotate_at(&mut self, name: u32, stage: Stage, time: i64) {
        for device in &self.devices {
            self.annotations.push(Annotation { device: device.ordinal, time, name, stage });
        }
    }

    // -- the beginning and the end

    /// What was there before the recording: handed out at its beginning, by nobody.
    pub fn begin_with(&mut self, device: u32, segments: &[Segment]) {
        let blocks = segments.iter().flat_map(|segment| &segment.blocks);
        gauges::tell_first(device, blocks.filter(|block| block.state == 1).map(|block| block.size).sum());
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
                    let place = places::BEFORE;
                    self.put(device, address, Live { requested, stream, stack: 0, kind: 0, place });
                    self.event(device, Action::Alloc, address, requested, stream, 0, 0);
                }
                address += block.size;
            }
        }
    }

    /// The final state.
    pub fn end_with(&mut self, device: u32, segments: &[Segment]) {
        self.stop_following();
        self.flush();
        self.catch_up();
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
                let live = here.live.get(&address);
                // What waits for another stream has been told as free: nobody says when it is.
                let state = if block.state == 2 && live.is_none() { 0 } else { block.state };
                body.varint(block.size);
                body.varint(block.requested);
                body.byte(state);
                body.varint(u64::from(live.filter(|_| state != 0).map_or(0, |live| live.stack)));
                address = address.wrapping_add(block.size);
            }
        }
        self.describe(device);
        self.chunk(Kind::State, &body.0);
    }

    /// The allocator's settings.
    pub fn settings(&mut self, json: &[u8]) {
        self.flush();
        self.file.chunk(Kind::Settings, json);
    }

    /// Who held what at an out-of-memory, as JSON. Of many the first are written at once, and the last at the end: it is what a program died of.
    pub fn census(&mut self, json: &[u8]) {
        if json.len() > LARGEST_CENSUS {
            return;
        }
        self.last_census.clear();
        if self.censuses + 1 < MOST_CENSUSES && self.write_census(json) {
            self.censuses += 1;
        } else {
            self.last_census.extend_from_slice(json);
        }
    }

    /// Where there is no room for it, it is left out: events matter more.
    fn write_census(&mut self, json: &[u8]) -> bool {
        self.flush();
        self.cut.is_none() && self.file.has_room(json.len()) && self.chunk(Kind::Census, json)
    }

    // -- what is true now

    /// What a device is.
    pub fn card(&mut self, device: u32, card: Card) {
        self.cards.retain(|(known, _)| *known != device);
        self.cards.push((device, card));
    }

    /// What this process can say of itself. Takes as long as there are lines, and blocks of a pattern that is followed.
    pub fn status(&mut self) -> Status {
        self.find_places();
        let (midst, is_long) = self.midst();
        let devices = self.devices.iter().map(|device| {
            let (allocated, peak) = gauges::now_and_peak(device.ordinal);
            let card = self.cards.iter().find(|(known, _)| *known == device.ordinal);
            DeviceStatus {
                device: device.ordinal,
                card: card.map(|(_, card)| card.clone()),
                allocated,
                reserved: device.reserved,
                peak,
                last_peak: device.last_peak,
                lines: if is_long { Vec::new() } else { self.lines(device, midst) },
            }
        });
        let mut devices: Vec<DeviceStatus> = devices.collect();
        devices.sort_by_key(|device| device.device);
        Status { steps: self.steps, devices }
    }

    /// In the midst of a pattern the blocks are not up to date: the pattern and how far it has come; whether it is too long to
    /// be looked through.
    fn midst(&self) -> (Option<(&Pattern, usize)>, bool) {
        let following = self.following.as_ref().filter(|following| following.at > 0);
        let midst = following.and_then(|following| Some((self.patterns.get(following.which)?, following.at)));
        (midst, midst.is_some_and(|(pattern, _)| pattern.blocks.len() > LONGEST_TOLD))
    }

    /// Which line made each block of the pattern that is followed, if somebody will want to know.
    fn find_places(&mut self) {
        let (Some((pattern, _)), false) = self.midst() else { return };
        if pattern.places.is_some() {
            return;
        }
        let mut made: Map<(u32, u64), Place> = Map::default();
        let mut all = Vec::with_capacity(pattern.blocks.len());
        for (event, &(device, address, size, _)) in pattern.events.iter().zip(&pattern.blocks) {
            if size > 0 {
                let place = self.places.of(event.stack);
                made.insert((device, address), place);
                all.push(place);
                continue;
            }
            // Made within the pattern, or there when it began.
            let before = || {
                let device = self.devices.iter().find(|known| known.ordinal == device)?;
                Some(device.live.get(&address)?.place)
            };
            all.push(made.remove(&(device, address)).or_else(before).unwrap_or(places::NO_LINE));
        }
        let which = self.following.as_ref().map(|following| following.which);
        if let Some(pattern) = which.and_then(|which| self.patterns.get_mut(which)) {
            pattern.places = Some(all);
        }
    }

    /// The lines that hold most of a device.
    fn lines(&self, device: &Device, midst: Option<(&Pattern, usize)>) -> Vec<(String, u64)> {
        let mut held = device.held.clone();
        if let Some((pattern, at)) = midst {
            let places = pattern.places.as_deref().unwrap_or_default();
            let blocks = pattern.blocks.iter().zip(&pattern.events).zip(places).take(at);
            for ((block, event), &place) in blocks.filter(|((block, _), _)| block.0 == device.ordinal) {
                let place = place as usize;
                if place >= held.len() {
                    held.resize(place + 1, 0);
                }
                if let Some(held) = held.get_mut(place) {
                    let size = event.size;
                    *held = if block.2 > 0 { *held + size } else { held.saturating_sub(size) };
                }
            }
        }
        let mut most: Vec<(u64, Place)> = Vec::with_capacity(status::MOST_LINES + 1);
        for (place, &bytes) in held.iter().enumerate().filter(|(_, bytes)| **bytes > 0) {
            if most.len() == status::MOST_LINES && most.last().is_some_and(|(least, _)| *least >= bytes) {
                continue;
            }
            let at = most.partition_point(|(more, _)| *more >= bytes);
            most.insert(at, (bytes, place as Place));
            most.truncate(status::MOST_LINES);
        }
        most.into_iter().map(|(bytes, place)| (self.places.text(place).to_owned(), bytes)).collect()
    }

    // -- writing

    /// Writes what waits.
    pub fn flush(&mut self) {
        if self.cut.is_some() && !self.at_the_end {
            // Nothing more will be written but the end: it must not pile up either.
            self.forget();
            return;
        }
        let mut whole = self.write_tables();
        let ordinals: Vec<u32> = self.devices.iter().map(|device| device.ordinal).collect();
        for device in ordinals {
            let events = std::mem::take(&mut self.device(device).events);
            whole = whole && self.write_events(device, &events);
            if !whole {
                self.unwritten.push((device, events));
            }
        }
        let annotations = std::mem::take(&mut self.annotations);
        if whole {
            self.write_annotations(&annotations);
        }
        if self.untold {
            self.tell_repeats();
        }
        if !whole && self.at_the_end {
            // A part of the end without the others would contradict itself.
            self.file.give_up();
        } else if !whole {
            self.remember_cut();
        }
    }

    fn forget(&mut self) {
        for device in &mut self.devices {
            device.events.clear();
        }
        self.annotations.clear();
    }

    /// Whether it was written.
    fn chunk(&mut self, kind: Kind, content: &[u8]) -> bool {
        let before = self.file.length();
        if self.at_the_end {
            self.file.last_chunk(kind, content);
        } else {
            self.file.chunk(kind, content);
        }
        self.file.length() > before
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
        self.chunk(Kind::Repeats, &content.0);
        self.told = Some((from, self.file.length()));
    }

    /// Whether all is known that the events refer to.
    fn write_tables(&mut self) -> bool {
        let tables = [
            (Kind::Strings, self.strings_waiting, std::mem::take(&mut self.new_strings)),
            (Kind::Frames, self.frames_waiting, std::mem::take(&mut self.new_frames)),
            (Kind::Stacks, self.stacks_waiting, std::mem::take(&mut self.new_stacks)),
        ];
        let mut whole = true;
        for (kind, count, body) in tables {
            let mut content = Content::default();
            content.varint(count);
            content.0.extend_from_slice(&body.0);
            whole = whole && (count == 0 || self.chunk(kind, &content.0));
            let (waiting, place) = match kind {
                Kind::Strings => (&mut self.strings_waiting, &mut self.new_strings),
                Kind::Frames => (&mut self.frames_waiting, &mut self.new_frames),
                _ => (&mut self.stacks_waiting, &mut self.new_stacks),
            };
            if whole {
                *waiting = 0;
            } else {
                *place = body;
            }
        }
        whole
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
        self.chunk(Kind::Device, &content.0);
    }

    fn write_events(&mut self, device: u32, events: &[Event]) -> bool {
        if events.is_empty() {
            return true;
        }
        let here = self.device(device);
        if here.described < here.streams.len() {
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
        self.chunk(Kind::Events, &content.0)
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
        self.chunk(Kind::Annotations, &content.0);
    }

    /// Ends the file. Whether it is whole.
    fn finish(mut self) -> bool {
        self.stop_following();
        self.flush();
        if !self.at_the_end {
            self.catch_up();
        }
        self.flush();
        if !self.last_census.is_empty() {
            let json = std::mem::take(&mut self.last_census);
            self.write_census(&json);
        }
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

    /// The same, from a line of its own.
    fn tell_from(recorder: &mut Recorder, line: u64, slot: u64, size: i64) {
        let frame = Frame { name: "step".into(), file: "/home/me/train.py".into(), line: line as u32 };
        let mut stack = Stack::empty();
        stack.hash = line + 1;
        let id = recorder.stack_of(vec![frame]);
        recorder.by_hash.insert(stack.hash, id);
        let address = BASE + slot * (1 << 20);
        if !recorder.follow(0, address, size, 0) {
            recorder.block(0, address, size, 0, 0, 0, &stack);
        }
    }

    /// One thing that a program does.
    #[derive(Clone, Debug)]
    enum Operation {
        Toggle(u64, i64),
        Step,
        Flush,
    }

    fn operations() -> impl Strategy<Value = Vec<Operation>> {
        let operation = prop_oneof![
            6 => (0u64..6, 1i64..4).prop_map(|(slot, size)| Operation::Toggle(slot, size * 512)),
            1 => Just(Operation::Flush),
        ];
        // A few kinds of steps, again and again, so that patterns are found, left, and taken up again.
        (
            prop::collection::vec(prop::collection::vec(operation, 0..8), 1..4),
            prop::collection::vec(0usize..3, 0..40),
        )
            .prop_map(|(kinds, order)| {
                let mut all = Vec::new();
                for which in order {
                    all.extend(kinds[which % kinds.len()].iter().cloned());
                    all.push(Operation::Step);
                }
                all
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// What is in the file, with the steps that were counted, is what happened; the blocks that live are those that live.
        #[test]
        fn a_recording_is_what_happened_without_steps_that_repeat(operations in operations()) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("a.oomph");
            let mut recorder = recorder(&path, 1 << 30);
            recorder.segment(0, BASE, 64 << 20, 0, &Stack::empty());
            let mut live: BTreeMap<u64, i64> = BTreeMap::new();
            let (mut happened, mut steps) = (1u64, 0u64);
            // Every step as the naive model sees it: (events, live blocks afterwards).
            let mut whole: Vec<Vec<(bool, u64)>> = vec![Vec::new()];
            for operation in &operations {
                match operation {
                    Operation::Toggle(slot, size) => {
                        let size = match live.remove(slot) {
                            Some(size) => { happened += 2; -size }
                            None => { live.insert(*slot, *size); happened += 1; *size }
                        };
                        whole.last_mut().unwrap().push((size > 0, *slot));
                        tell(&mut recorder, *slot, size, 64 << 20);
                    }
                    Operation::Flush => recorder.flush(),
                    Operation::Step => {
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

        /// Whether a step is followed or told, lines hold what the blocks hold that are there.
        #[test]
        fn lines_hold_what_is_live_at_every_moment(operations in operations()) {
            let folder = tempfile::tempdir().unwrap();
            let mut recorder = recorder(&folder.path().join("a.oomph"), 1 << 30);
            let mut live: BTreeMap<u64, i64> = BTreeMap::new();
            for (number, operation) in operations.iter().enumerate() {
                match operation {
                    Operation::Toggle(slot, size) => {
                        let size = live.remove(slot).map_or_else(|| { live.insert(*slot, *size); *size }, |size| -size);
                        tell_from(&mut recorder, slot % 3, *slot, size);
                    }
                    Operation::Flush => recorder.flush(),
                    Operation::Step => { recorder.step("Optimizer.step#A.step", true); }
                }
                let mut expected: BTreeMap<String, u64> = BTreeMap::new();
                for (slot, size) in &live {
                    *expected.entry(format!("train.py:{} step", slot % 3)).or_default() += *size as u64;
                }
                let status = recorder.status();
                let lines = status.devices.first().map(|device| device.lines.clone()).unwrap_or_default();
                prop_assert!(lines.is_sorted_by(|a, b| a.1 >= b.1));
                prop_assert_eq!(lines.into_iter().collect::<BTreeMap<_, _>>(), expected, "after {} operations", number);
            }
        }

        /// A file that may not grow keeps room for its end: with what is there then, it contradicts nothing.
        #[test]
        fn a_file_that_became_too_large_ends_with_what_is_there(operations in operations(), most in 400u64..4000) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("a.oomph");
            let mut recorder = recorder(&path, most);
            recorder.segment(0, BASE, 64 << 20, 0, &Stack::empty());
            let mut live: BTreeMap<u64, i64> = BTreeMap::new();
            for operation in &operations {
                match operation {
                    Operation::Toggle(slot, size) => {
                        let size = live.remove(slot).map_or_else(|| { live.insert(*slot, *size); *size }, |size| -size);
                        tell(&mut recorder, *slot, size, 64 << 20);
                    }
                    Operation::Flush => recorder.flush(),
                    Operation::Step => { recorder.step("Optimizer.step#A.step", true); }
                }
            }
            recorder.out_of_memory(0, 1 << 20, 0, &Stack::empty());
            recorder.finish();
            prop_assert!(std::fs::metadata(&path).unwrap().len() <= most);
            let told = read(&path);
            let Some(device) = told.devices.first() else { return Ok(()) };
            let mut blocks: BTreeMap<u64, u64> = BTreeMap::new();
            for row in 0..device.events.len() {
                let slot = device.events.address[row].wrapping_sub(BASE) / (1 << 20);
                match device.events.action[row] {
                    Told::Alloc => prop_assert!(blocks.insert(slot, device.events.size[row]).is_none()),
                    Told::FreeRequested => prop_assert!(blocks.remove(&slot).is_some()),
                    _ => {}
                }
            }
            if device.events.action.contains(&Told::OutOfMemory) {
                let ours: BTreeMap<u64, u64> = live.iter().map(|(slot, size)| (*slot, *size as u64)).collect();
                prop_assert_eq!(blocks, ours);
            }
        }

        /// A writer that is killed leaves something to read, wherever it was cut.
        #[test]
        fn a_file_that_is_cut_anywhere_is_readable(operations in operations(), share in 0.0f64..1.0) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("a.oomph");
            let mut recorder = recorder(&path, 1 << 30);
            let mut live: BTreeMap<u64, i64> = BTreeMap::new();
            for operation in &operations {
                match operation {
                    Operation::Toggle(slot, size) => {
                        let size = live.remove(slot).map_or_else(|| { live.insert(*slot, *size); *size }, |size| -size);
                        tell(&mut recorder, *slot, size, 0);
                    }
                    Operation::Flush => recorder.flush(),
                    Operation::Step => { recorder.step("Optimizer.step#A.step", true); }
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

    /// `loss = …` in a loop: the old one is there until the new one is.
    #[test]
    fn steps_that_are_alike_by_turns_are_followed_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.oomph");
        let mut recorder = recorder(&path, 1 << 30);
        for step in 0..100 {
            tell(&mut recorder, step % 2, 512, 0);
            if step > 0 {
                tell(&mut recorder, (step + 1) % 2, -512, 0);
            }
            recorder.step("Optimizer.step#A.step", true);
        }
        assert!(recorder.finish());
        let told = read(&path);
        assert!(told.repeated.steps >= 94, "{:?}", told.repeated);
        assert_eq!(told.devices[0].events.len() as u64 + told.repeated.events, 100 + 2 * 99);
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
    fn a_free_is_whole_wherever_a_chunk_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.oomph");
        // So small that chunks end after 256 rows.
        let mut recorder = recorder(&path, 64 << 10);
        tell(&mut recorder, 9, 512, 0);
        for _ in 0..600 {
            tell(&mut recorder, 0, 512, 0);
            tell(&mut recorder, 0, -512, 0);
        }
        assert!(recorder.finish());
        let events = &read(&path).devices[0].events;
        assert_eq!((events.count(Told::FreeRequested), events.count(Told::FreeCompleted)), (600, 600));
    }

    #[test]
    fn the_first_censuses_and_the_last_are_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.oomph");
        let mut recorder = recorder(&path, 1 << 30);
        for asked in 0..40 {
            recorder.out_of_memory(0, 512, 0, &Stack::empty());
            recorder
                .census(format!("{{\"asked\":{asked},\"holders\":[{{\"name\":\"history\"}}]}}").as_bytes());
        }
        let killed: Vec<u64> = read(&path).censuses.iter().map(|census| census.asked).collect();
        assert_eq!(killed, (0..15).collect::<Vec<u64>>());
        assert!(recorder.finish());
        let told = read(&path);
        let asked: Vec<u64> = told.censuses.iter().map(|census| census.asked).collect();
        assert_eq!(asked, (0..15).chain([39]).collect::<Vec<u64>>());
        assert_eq!(told.censuses[15].holders[0].name, "history");
        assert!(!told.source.truncated && told.warnings.is_empty());
    }

    #[test]
    fn a_census_for_which_there_is_no_room_costs_no_events() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.oomph");
        let mut recorder = recorder(&path, 64 << 10);
        tell(&mut recorder, 0, 512, 0);
        recorder.census(format!("{{\"asked\":1,\"x\":\"{}\"}}", "x".repeat(100 << 10)).as_bytes());
        tell(&mut recorder, 1, 512, 0);
        assert!(recorder.finish());
        let told = read(&path);
        assert_eq!((told.devices[0].events.len(), told.censuses.len(), told.source.truncated), (2, 0, false));
    }

    #[test]
    fn a_status_has_what_pytorch_reports_and_what_was_there_before() {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = recorder(&folder.path().join("a.oomph"), 1 << 30);
        // A device that no other test has: gauges are the process's.
        let device = 9;
        let block = |size, requested, state| Block { size, requested, state };
        let blocks = vec![block(1024, 1000, 1), block(512, 0, 0), block(2048, 2048, 1)];
        let segment = Segment { address: BASE, size: 2 << 20, blocks, ..Segment::default() };
        recorder.begin_with(device, &[segment]);
        recorder.card(device, Card { name: "T4".into(), total: 16 << 30, is_virtual: true });
        let told = recorder.status();
        let here = &told.devices[0];
        assert_eq!((told.steps, here.device, here.allocated, here.peak), (0, device, 3072, 3072));
        assert_eq!((here.reserved, here.last_peak), (2 << 20, None));
        assert_eq!(here.lines, [("before the recording".to_owned(), 3048)]);
        assert!(here.card.as_ref().is_some_and(|card| card.is_virtual && card.name == "T4"));
        for (most, rest) in [(9000, 4000), (7000, 4000)] {
            gauges::tell(device, most);
            gauges::tell(device, rest);
            recorder.step("Optimizer.step#A.step", true);
        }
        let told = recorder.status();
        let here = &told.devices[0];
        assert_eq!((told.steps, here.allocated, here.peak, here.last_peak), (2, 4000, 9000, Some(7000)));
    }

    #[test]
    fn the_lines_that_hold_most_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = recorder(&folder.path().join("a.oomph"), 1 << 30);
        for line in 1..=20 {
            tell_from(&mut recorder, line, line, 512 * (line as i64 * 7 % 20 + 1));
        }
        let told: Vec<u64> = recorder.status().devices[0].lines.iter().map(|line| line.1 / 512).collect();
        assert_eq!(told, [20, 19, 18, 17, 16, 15, 14, 13]);
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
