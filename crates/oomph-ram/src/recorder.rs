//! The recording of a process: what is live, from which line, and the file that says so.
//!
//! Boundary: which calls there are is [`crate::hooks`]'s, when to write and where to is [`crate::session`]'s.

use crate::file::{Content, File, Kind, Owner};
use crate::keeper::Keeper;
use crate::layout::{CALLER, How, NATIVE};
use crate::libraries::Libraries;
use crate::live::{Block, Live};
use crate::origin::Origin;
use crate::python::Frame;
use crate::resident::{self, Resident};
use crate::spread::Map;
use crate::tables::Tables;
use crate::ticks::{Kept, Round};
use crate::touched::{self, Pages};
use crate::{memory, stacks};
use std::ffi::{CString, c_int};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

unsafe extern "C" {
    fn getpid() -> c_int;
}

/// Written when so much more is live than at the last write: a process that is killed for its memory is killed while it grows.
const GROWN: i64 = 16 << 20;
/// Microseconds between two writes, to begin with. A file that becomes long is written less often.
const EVERY: i64 = 100_000;
/// With each of so many bytes, half as often, and with twice as many events at once: an hour of whatever comes and goes is then some of these.
const LONG: u64 = 8 << 20;
/// So often at the most.
const MOST_HALVED: u64 = 5;
/// Of processes that the program starts, most are small: a shell, a search for a library.
const WORTH_A_FILE: i64 = 16 << 20;
/// So many steps are noted, however fast they are.
const FIRST_STEPS: u64 = 64;
/// What is not worth another row of what is resident.
const SLIGHT: u64 = 256 << 10;
/// Microseconds after which what the kernel counts is told again, though it has not changed: what is held may have.
const TOLD_EVERY: i64 = 1_000_000;
/// By how much more must be held than when the kernel was last asked, for it to be asked again before something is given back.
const HIGHER: i64 = 1 << 20;
/// What is given back of which the kernel is asked before: it has more to do with that than with the answer.
const MUCH: u64 = 1 << 20;
/// Microseconds after which the kernel is asked before much is given back though no more is held than when it was asked last: it may have been touched only now.
const TOUCHED_SINCE: i64 = 10_000;
/// What a row takes in the file, mostly.
const BYTES_OF_A_ROW: usize = 14;
/// Which pages are there is looked at so rarely that it takes no more than this share of the time.
const LOOKING: i64 = 50;

/// Of so many stacks functions of C are kept.
const MOST_STACKS_OF_C: usize = 100_000;
/// What code is called that lies in no file: a compiler in the process has made it.
const GENERATED: &str = "generated code";
/// Microseconds between two readings for pages of files that go.
const FILES_GO: i64 = 1_000;

pub(crate) struct Recorder {
    tables: Tables,
    libraries: Libraries,
    /// The number of each stack, by its hash and that of the library that asked.
    stacks: Map<u64, u32>,
    live: Live,
    /// How many blocks have been numbered.
    numbers: u64,
    round: Round,
    place: Place,
    file: Option<File>,
    written: i64,
    /// Steps of the program that have ended, and when one was noted last.
    steps: u64,
    stepped: i64,
    last: Resident,
    /// When that was.
    told: i64,
    /// When the kernel was asked because pages of a file went.
    files_went: i64,
    /// What was held when the kernel was asked while most was.
    asked_at: i64,
    /// What was held when it was asked last, and when that was.
    asked_last: (i64, i64),
    /// The least that was held since it was asked last.
    lowest: i64,
    /// The most that was held at once.
    most: i64,
    /// When it may be looked at again which pages are there.
    look_again: i64,
    pages: Pages,
    clock: Clock,
    /// Whose recording it is: a child that was made without a word to the C library has it too.
    process: c_int,
    /// Who must be there for it to go on.
    keeper: Option<Keeper>,
    is_over: bool,
}

/// Where a recording goes, and how long it may become.
pub(crate) struct Place {
    pub(crate) path: CString,
    pub(crate) most: u64,
    /// Whether there is a file even if the process holds nothing worth one: that of the program itself.
    pub(crate) at_once: bool,
}

/// Microseconds since 1970 that never go back, whoever sets the clock.
struct Clock {
    began: Instant,
    at: i64,
}

impl Clock {
    fn new() -> Self {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64);
        Self { began: Instant::now(), at }
    }

    fn now(&self) -> i64 {
        self.at + self.began.elapsed().as_micros() as i64
    }
}

fn process() -> c_int {
    // SAFETY: it always succeeds.
    unsafe { getpid() }
}

impl Recorder {
    pub(crate) fn new(place: Place) -> Self {
        let clock = Clock::new();
        Self {
            tables: Tables::new(),
            libraries: Libraries::default(),
            stacks: Map::default(),
            live: Live::default(),
            numbers: 0,
            round: Round::new(),
            place,
            file: None,
            written: clock.now(),
            steps: 0,
            stepped: 0,
            last: Resident::default(),
            told: 0,
            files_went: 0,
            asked_at: 0,
            asked_last: (0, 0),
            lowest: 0,
            most: 0,
            look_again: 0,
            pages: Pages::new(),
            clock,
            process: process(),
            keeper: None,
            is_over: false,
        }
    }

    /// Begins the file now. The error is the operating system's.
    pub(crate) fn create(&mut self) -> Result<(), c_int> {
        self.file = Some(File::create(&self.place.path, self.place.most, Owner::Nobody)?);
        self.write();
        Ok(())
    }

    pub(crate) fn held(&self) -> u64 {
        u64::try_from(self.round.total()).unwrap_or(0)
    }

    pub(crate) fn most_held(&self) -> u64 {
        u64::try_from(self.most).unwrap_or(0)
    }

    fn new_block(&mut self, size: u64, stack: u32, kind: u8) -> Block {
        self.numbers += 1;
        Block { number: self.numbers, size, stack, kind, row: self.round.next() }
    }

    pub(crate) fn begin(&mut self, address: usize, size: u64, how: How, origin: &Origin) {
        if self.is_short() {
            return;
        }
        let stack = self.number_of(origin);
        self.note(address, size, how, stack);
    }

    /// The number of a stack, of which the innermost frame is the library that asked.
    fn number_of(&mut self, origin: &Origin) -> u32 {
        let library = self.libraries.of(origin.caller);
        // Of C that calls itself nearly every stack is another.
        let with_c = self.stacks.len() < MOST_STACKS_OF_C;
        let hash = if with_c { origin.hash() } else { origin.stack.hash }
            ^ u64::from(library).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        if hash == 0 {
            return 0;
        }
        if let Some(number) = self.stacks.get(&hash) {
            return *number;
        }
        let mut frames = if with_c { self.calls_of_c(origin) } else { Vec::new() };
        frames.extend(stacks::recorded(origin.stack.frames()));
        if let Some(path) = self.libraries.path(library) {
            frames.insert(0, Frame { name: CALLER.to_owned(), file: path.to_owned(), line: 0 });
        }
        let number = self.tables.add_stack(hash, frames);
        self.stacks.insert(hash, number);
        number
    }

    /// Without our own, which are innermost where Python's allocators have called us.
    fn calls_of_c(&mut self, origin: &Origin) -> Vec<Frame> {
        let own = self.libraries.of(Self::calls_of_c as *const () as usize);
        let mut frames = Vec::new();
        for place in origin.calls.get() {
            // A call returns behind its instruction, which may be the last of its function.
            let (library, offset) = self.libraries.place(place - 1);
            if library == own && frames.is_empty() {
                continue;
            }
            let Some(file) = self.libraries.path(library).map(str::to_owned) else {
                frames.push(Frame { name: format!("{NATIVE}{GENERATED}"), file: String::new(), line: 0 });
                continue;
            };
            frames.push(Frame { name: format!("{NATIVE}{offset:#x}"), file, line: 0 });
        }
        frames
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    pub(crate) fn keep_by(&mut self, keeper: Keeper) {
        self.keeper = Some(keeper);
    }

    /// Whether whoever has begun it is no longer there.
    pub(crate) fn is_left(&self) -> bool {
        self.keeper.as_ref().is_some_and(Keeper::is_gone)
    }

    /// Whether anything more is noted: memory may be short, though nobody has asked for a while.
    fn notes(&self) -> bool {
        !self.is_over && !memory::is_low()
    }

    fn note(&mut self, address: usize, size: u64, how: How, stack: u32) {
        self.write_if_late();
        if !self.notes() {
            return;
        }
        let time = self.clock.now();
        let block = self.new_block(size, stack, how as u8);
        if let Some(lost) = self.live.insert(address, block) {
            // Its end was not seen.
            self.round.end(address as u64, &lost, time);
            self.live.remove(address);
            self.live.insert(address, Block { row: self.round.next(), ..block });
        }
        self.round.begin(address as u64, &block, time);
        self.most = self.most.max(self.round.total());
        self.write_if_due(time);
    }

    /// What was known of a block that is about to be given back.
    pub(crate) fn end(&mut self, address: usize) -> Option<Block> {
        let time = self.clock.now();
        if let Some(size) = self.live.size_of(address) {
            // Before it is noted: its pages are still there, and are counted.
            self.write_if_due(time);
            self.ask_kernel_if_higher(size, time);
        }
        let block = self.live.remove(address)?;
        if self.notes() {
            // What the kernel was asked comes before it.
            self.round.end(address as u64, &block, self.clock.now());
            self.lowest = self.lowest.min(self.round.total());
        }
        Some(block)
    }

    /// A block that was not given back after all.
    pub(crate) fn take_back(&mut self, address: usize, block: Block) {
        let how = How::from_number(block.kind).unwrap_or(How::Large);
        self.note(address, block.size, how, block.stack);
    }

    /// `is_there`: whether all its pages are there already. Of a large range none is, else.
    pub(crate) fn map(&mut self, address: usize, size: usize, how: How, is_there: bool, origin: &Origin) {
        if self.is_short() {
            return;
        }
        self.unmap(address, size);
        let stack = self.number_of(origin);
        let bytes = if is_there || size < touched::LOOKED_AT { size as u64 } else { 0 };
        self.map_by(address, size, bytes, how as u8, stack);
    }

    fn map_by(&mut self, address: usize, length: usize, bytes: u64, kind: u8, stack: u32) {
        self.write_if_late();
        if !self.notes() {
            return;
        }
        let time = self.clock.now();
        let block = self.new_block(bytes, stack, kind);
        self.live.map(address, length, block);
        self.round.begin(address as u64, &block, time);
        self.most = self.most.max(self.round.total());
        self.write_if_due(time);
    }

    /// Looks at how much of what is mapped is there now.
    fn look_at_pages(&mut self, time: i64) {
        if time < self.look_again {
            return;
        }
        for (begin, length, block) in self.live.ranges_from(touched::LOOKED_AT) {
            correct(&mut self.round, self.pages.bytes(begin, length), begin, block, time);
        }
        self.most = self.most.max(self.round.total());
        let end = self.clock.now();
        self.look_again = end + (end - time).saturating_mul(LOOKING);
    }

    /// Before so much is given back: there may be more pages now than ever. More was asked for than ever; or much goes at once, after more was asked for again, or after a while in which what was asked for
    /// has been touched.
    fn ask_kernel_if_higher(&mut self, size: u64, time: i64) {
        let held = self.round.total();
        let is_higher = held >= self.asked_at.saturating_add(HIGHER);
        let grown = held - self.lowest;
        let (held_then, then) = self.asked_last;
        let may_be_touched = held >= held_then && time - then >= TOUCHED_SINCE;
        let is_much =
            size >= MUCH && (may_be_touched || grown >= HIGHER.max(self.last.anonymous as i64 / 100));
        if !(is_higher || is_much) || self.file.is_none() || self.is_over {
            return;
        }
        self.asked_at = self.asked_at.max(held);
        self.ask_kernel();
    }

    fn ask_kernel(&mut self) {
        self.lowest = self.round.total();
        let Some(resident) = resident::now() else { return };
        let time = self.clock.now();
        self.asked_last = (self.lowest, time);
        let is_new = resident.anonymous.abs_diff(self.last.anonymous) > SLIGHT
            || resident.most > self.last.most
            || time - self.told >= TOLD_EVERY;
        if let Some(file) = self.file.as_mut().filter(|_| is_new) {
            (self.last, self.told) = (resident, time);
            file.chunk(Kind::Resident, &sample(time, &resident).0);
        }
    }

    /// A range is about to be given back to the kernel. Of pages of a file, which are nothing that is recorded, the kernel is asked before they go: its high-water mark has them too.
    pub(crate) fn give_back(&mut self, address: usize, size: usize) {
        let is_known = self.unmap(address, size).is_some();
        let is_worth_it = !is_known && size as u64 >= MUCH && self.file.is_some() && !self.is_over;
        let time = self.clock.now();
        if is_worth_it && time - self.files_went >= FILES_GO {
            self.files_went = time;
            self.ask_kernel();
        }
    }

    /// What was mapped there, if anything was recorded.
    pub(crate) fn unmap(&mut self, address: usize, size: usize) -> Option<Block> {
        let end = address.saturating_add(size);
        let mut first = None;
        for (begin, length, mut block) in self.live.unmap(address, size) {
            if !self.notes() {
                continue;
            }
            let time = self.clock.now();
            correct(&mut self.round, self.pages.bytes(begin, length), begin, &mut block, time);
            self.most = self.most.max(self.round.total());
            self.ask_kernel_if_higher(block.size, time);
            self.round.end(begin as u64, &block, self.clock.now());
            self.lowest = self.lowest.min(self.round.total());
            let last = begin + length;
            if begin < address {
                let bytes = self.pages.bytes(begin, address - begin);
                self.map_by(begin, address - begin, bytes, block.kind, block.stack);
            }
            if last > end {
                let bytes = self.pages.bytes(end, last - end);
                self.map_by(end, last - end, bytes, block.kind, block.stack);
            }
            first = first.or(Some(block));
        }
        first
    }

    /// The same pages at another place, or more of them.
    pub(crate) fn remap(&mut self, old: (usize, usize), new: (usize, usize)) {
        if let Some(block) = self.unmap(old.0, old.1) {
            self.unmap(new.0, new.1);
            let bytes = self.pages.bytes(new.0, new.1);
            self.map_by(new.0, new.1, bytes, block.kind, block.stack);
        }
    }

    /// Whether nothing more can be kept. The program goes on without being recorded.
    fn is_short(&mut self) -> bool {
        if !self.is_over && (memory::is_low() || !self.live.has_room()) {
            self.write();
            self.give_up();
        }
        self.is_over
    }

    /// How often the file has become longer by much.
    fn longer(&self) -> u64 {
        self.file.as_ref().map_or(0, File::length) / LONG
    }

    /// Microseconds between two writes.
    fn every(&self) -> i64 {
        EVERY << self.longer().min(MOST_HALVED)
    }

    fn is_full(&self) -> bool {
        self.round.is_full(self.longer())
    }

    /// Before anything begins: after a while in which nothing happened, what went before it is not to be taken for what comes after it.
    fn write_if_late(&mut self) {
        if self.clock.now() - self.written >= self.every() {
            self.write();
        }
    }

    fn write_if_due(&mut self, time: i64) {
        if self.is_full() || self.round.grown() >= GROWN || time - self.written >= self.every() {
            self.write();
        }
    }

    /// Nothing more is recorded. The program goes on.
    fn give_up(&mut self) {
        self.is_over = true;
        self.round.forget();
    }

    pub(crate) fn write(&mut self) {
        if self.is_over || memory::is_low() {
            return;
        }
        if self.process != process() {
            // The file is the parent's, and so is its lock.
            std::mem::forget(self.file.take());
            self.give_up();
            return;
        }
        self.written = self.clock.now();
        if self.file.is_none() && (self.place.at_once || self.is_full() || self.round.total() >= WORTH_A_FILE)
        {
            self.file = File::create(&self.place.path, self.place.most, Owner::Nobody).ok();
            if self.file.is_none() {
                self.give_up();
            }
        }
        self.look_at_pages(self.written);
        let (tables, Some(file)) = (&mut self.tables, &mut self.file) else { return };
        let kept = self.round.kept();
        for (address, number) in kept.renumbered() {
            self.live.renumber(address, number);
        }
        let mut chunk = |kind, content: &[u8]| {
            let before = file.length();
            file.chunk(kind, content);
            file.length() > before
        };
        let is_written =
            tables.write(&mut chunk) && (kept.len() == 0 || chunk(Kind::HostEvents, &events(&kept).0));
        self.round.begin_next();
        self.ask_kernel();
        if !is_written {
            // The disk is full, or the file as long as it may be: what comes now would refer to what is not there.
            self.give_up();
        } else if self.is_left() {
            self.complete();
        }
    }

    /// A step of the program has ended. That is noted with all that is held then, so that two steps can be compared exactly: of the first ones each time, of fast ones as often as is written anyway.
    pub(crate) fn step(&mut self) {
        self.steps += 1;
        let time = self.clock.now();
        if self.steps > FIRST_STEPS && time - self.stepped < self.every() {
            return;
        }
        self.stepped = time;
        self.write();
        let noted = steps(self.clock.now(), self.steps);
        if let Some(file) = self.file.as_mut().filter(|_| !self.is_over) {
            file.chunk(Kind::HostSteps, &noted.0);
        }
    }

    /// The file is complete, and somebody else's to write. Nothing more is recorded.
    fn complete(&mut self) {
        if let Some(mut file) = self.file.take().filter(|_| !self.is_over) {
            file.chunk(Kind::End, &[]);
        }
        self.give_up();
    }

    pub(crate) fn finish(mut self) {
        self.write();
        self.complete();
    }
}

/// Notes of a mapped range what was touched of it since.
fn correct(round: &mut Round, size: u64, begin: usize, block: &mut Block, time: i64) {
    if size != block.size {
        round.end(begin as u64, block, time);
        (block.size, block.row) = (size, round.next());
        round.begin(begin as u64, block, time);
    }
}

fn events(kept: &Kept) -> Content {
    let rows = || kept.rows();
    let mut content = Content::default();
    content.0.reserve(kept.len() * BYTES_OF_A_ROW);
    content.varint(kept.len() as u64);
    rows().for_each(|row| content.byte(row.action as u8));
    let mut before = 0i64;
    for row in rows() {
        content.zigzag((row.number as i64).wrapping_sub(before));
        before = row.number as i64;
    }
    rows().for_each(|row| content.varint(row.size));
    rows().for_each(|row| content.byte(row.kind));
    rows().for_each(|row| content.varint(u64::from(row.stack)));
    let mut before = 0i64;
    for row in rows() {
        content.zigzag(row.time.wrapping_sub(before));
        before = row.time;
    }
    content
}

fn steps(time: i64, ended: u64) -> Content {
    let mut content = Content::default();
    content.zigzag(time);
    content.varint(ended);
    content
}

fn sample(time: i64, resident: &Resident) -> Content {
    let mut content = Content::default();
    content.zigzag(time);
    for bytes in [resident.anonymous, resident.of_files, resident.shared, resident.swapped, resident.most] {
        content.varint(bytes);
    }
    content
}
