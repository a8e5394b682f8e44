//! The pickle front end: opcodes in, operations on the assembler out.
//!
//! A closed set of opcodes: those that build numbers, texts, lists, dictionaries and tuples. Every opcode
//! that could name a class, call a function or reach outside the file is refused by name. Python's writers
//! (protocols 2 to 5) and the C++ one (protocol 2, memoised after the value) come out the same.

use super::ReadError;
use super::assemble::{Assembler, Value, View};
use super::event_template::EventTemplate;
use super::window::{Chunks, PADDING, Window};
use crate::intern::{StackId, StringId};
use crate::recording::Format;
use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use std::hash::BuildHasher;

/// The C++ writer leaves a whole trace on the stack before it closes the list; no process records more events than this.
const MOST_VALUES: usize = 1 << 26;

/// Texts longer than this are cut: nothing in a snapshot is, and a name of a gigabyte helps nobody.
const LONGEST_TEXT: usize = 1 << 20;

pub(super) mod op {
    pub(in crate::read) const MARK: u8 = b'(';
    pub(in crate::read) const STOP: u8 = b'.';
    pub(in crate::read) const BININT: u8 = b'J';
    pub(in crate::read) const BININT1: u8 = b'K';
    pub(in crate::read) const BININT2: u8 = b'M';
    pub(in crate::read) const NONE: u8 = b'N';
    pub(in crate::read) const BINUNICODE: u8 = b'X';
    pub(in crate::read) const APPEND: u8 = b'a';
    pub(in crate::read) const EMPTY_DICT: u8 = b'}';
    pub(in crate::read) const APPENDS: u8 = b'e';
    pub(in crate::read) const BINGET: u8 = b'h';
    pub(in crate::read) const LONG_BINGET: u8 = b'j';
    pub(in crate::read) const EMPTY_LIST: u8 = b']';
    pub(in crate::read) const BINPUT: u8 = b'q';
    pub(in crate::read) const LONG_BINPUT: u8 = b'r';
    pub(in crate::read) const SETITEM: u8 = b's';
    pub(in crate::read) const TUPLE: u8 = b't';
    pub(in crate::read) const EMPTY_TUPLE: u8 = b')';
    pub(in crate::read) const SETITEMS: u8 = b'u';
    pub(in crate::read) const BINFLOAT: u8 = b'G';
    pub(in crate::read) const PROTO: u8 = 0x80;
    pub(in crate::read) const TUPLE1: u8 = 0x85;
    pub(in crate::read) const TUPLE2: u8 = 0x86;
    pub(in crate::read) const TUPLE3: u8 = 0x87;
    pub(in crate::read) const NEWTRUE: u8 = 0x88;
    pub(in crate::read) const NEWFALSE: u8 = 0x89;
    pub(in crate::read) const LONG1: u8 = 0x8a;
    pub(in crate::read) const LONG4: u8 = 0x8b;
    pub(in crate::read) const SHORT_BINUNICODE: u8 = 0x8c;
    pub(in crate::read) const BINUNICODE8: u8 = 0x8d;
    pub(in crate::read) const SHORT_BINBYTES: u8 = b'C';
    pub(in crate::read) const BINBYTES: u8 = b'B';
    pub(in crate::read) const BINBYTES8: u8 = 0x8e;
    pub(in crate::read) const POP: u8 = b'0';
    pub(in crate::read) const POP_MARK: u8 = b'1';
    pub(in crate::read) const MEMOIZE: u8 = 0x94;
    pub(in crate::read) const FRAME: u8 = 0x95;

    /// Opcodes that would name, call, build or fetch something, with their names.
    pub(super) fn refused(opcode: u8) -> Option<&'static str> {
        Some(match opcode {
            b'c' => "GLOBAL",
            b'R' => "REDUCE",
            b'b' => "BUILD",
            b'i' => "INST",
            b'o' => "OBJ",
            b'P' => "PERSID",
            b'Q' => "BINPERSID",
            0x81 => "NEWOBJ",
            0x82 => "EXT1",
            0x83 => "EXT2",
            0x84 => "EXT4",
            0x92 => "NEWOBJ_EX",
            0x93 => "STACK_GLOBAL",
            0x96 => "BYTEARRAY8",
            0x97 => "NEXT_BUFFER",
            0x98 => "READONLY_BUFFER",
            _ => return None,
        })
    }
}

/// Reads a pickled snapshot. The stream starts with the PROTO opcode.
pub(super) fn read(source: impl Chunks, format: Format) -> Result<crate::Recording, ReadError> {
    let mut machine = Machine::new();
    let mut window = Window::new(source);
    match machine.run(&mut window)? {
        Ended::Stop => machine.assembler.finish(format, false),
        Ended::Truncated => {
            let offset = window.offset();
            machine.assembler.close_what_is_open();
            let mut recording = machine.assembler.finish(format, true).map_err(|error| match error {
                ReadError::NotASnapshot => ReadError::TruncatedTooEarly { offset },
                other => other,
            })?;
            recording.warnings.insert(0, super::truncation_warning(offset));
            Ok(recording)
        }
    }
}

enum Ended {
    Stop,
    Truncated,
}

/// Why a window's run came to its end.
enum Step {
    Stop,
    /// The next opcode and its operands take this many bytes, which the window does not have.
    Need(usize),
}

struct Machine {
    assembler: Assembler,
    memo: Memo,
    seen_stacks: SeenStacks,
    template: EventTemplate,
    short_texts: Box<[(u64, StringId); 256]>,
}

impl Machine {
    fn new() -> Self {
        Self {
            assembler: Assembler::new(),
            memo: Memo::default(),
            seen_stacks: SeenStacks::default(),
            template: EventTemplate::default(),
            // No text has this key: a length of 255 never comes here.
            short_texts: Box::new([(u64::MAX, 0); 256]),
        }
    }

    fn run<C: Chunks>(&mut self, window: &mut Window<C>) -> Result<Ended, ReadError> {
        window.fill(2)?;
        let (bytes, end) = window.bytes();
        let [op::PROTO, protocol, ..] = bytes[window.position..end] else {
            return Err(ReadError::NotASnapshot);
        };
        if !(2..=5).contains(&protocol) {
            return Err(ReadError::Protocol { protocol });
        }
        loop {
            let (origin, offset, ended) = (window.position, window.offset(), window.ended());
            let (bytes, end) = window.bytes();
            let mut at = origin;
            let step = self.run_window(bytes, &mut at, end, ended, offset.wrapping_sub(origin as u64))?;
            window.position = at;
            match step {
                Step::Stop => return Ok(Ended::Stop),
                Step::Need(_) if ended => return Ok(Ended::Truncated),
                Step::Need(wanted) => window.fill(wanted)?,
            }
        }
    }

    /// Runs opcodes until STOP, or until the window has too little left. `at` is left at the start of the
    /// opcode that comes next.
    fn run_window(
        &mut self,
        bytes: &[u8],
        at: &mut usize,
        end: usize,
        ended: bool,
        before: u64,
    ) -> Result<Step, ReadError> {
        let Self { assembler, memo, seen_stacks, template, short_texts } = self;
        let mut p = *at;
        // Where the innermost dictionary that has no other inside begins.
        let mut dict_start = None;
        loop {
            let operands = p + 1;
            // Operands of fixed size lie inside the padding, so they are read first and checked here, once.
            let opcode = match bytes.get(p) {
                Some(&opcode) if end - p.min(end) >= PADDING || (ended && p < end) => opcode,
                _ => {
                    *at = p;
                    return Ok(Step::Need(PADDING));
                }
            };
            let malformed = |what| ReadError::Malformed { offset: before.wrapping_add(p as u64), what };
            if assembler.len() > MOST_VALUES {
                return Err(malformed("more values are open than any snapshot has"));
            }
            macro_rules! need {
                ($n:expr) => {{
                    let n: usize = $n;
                    if n > end - p {
                        *at = p;
                        return Ok(Step::Need(n));
                    }
                }};
            }
            let length = match opcode {
                op::BINGET | op::LONG_BINGET => {
                    need!(if opcode == op::BINGET { 2 } else { 5 });
                    let read =
                        memo_read(&bytes[p..]).and_then(|(slot, length)| Some((memo.get(slot)?, length)));
                    let (value, length) =
                        read.ok_or_else(|| malformed("a memo slot is read before it is set"))?;
                    assembler.push(value);
                    length
                }
                op::MEMOIZE => {
                    memo.push(assembler.top().ok_or_else(|| malformed("nothing to memoise"))?);
                    1
                }
                op::BINPUT | op::LONG_BINPUT => {
                    let (slot, length) = match opcode {
                        op::BINPUT => (usize::from(bytes[operands]), 2),
                        _ => (u32_at(bytes, operands) as usize, 5),
                    };
                    need!(length);
                    let top = assembler.top().ok_or_else(|| malformed("nothing to memoise"))?;
                    if memo.put(slot, top) {
                        // What a run of memo reads stands for has changed.
                        seen_stacks.clear();
                        template.forget_slots();
                    }
                    length
                }
                op::BININT => {
                    need!(5);
                    assembler.push_int(i64::from(u32_at(bytes, operands) as i32));
                    5
                }
                op::BININT1 => {
                    need!(2);
                    assembler.push_int(i64::from(bytes[operands]));
                    2
                }
                op::BININT2 => {
                    need!(3);
                    assembler.push_int(i64::from(u16::from_le_bytes([bytes[operands], bytes[operands + 1]])));
                    3
                }
                op::LONG1 => {
                    let digits = usize::from(bytes[operands]);
                    need!(2 + digits);
                    let digits = &bytes[p + 2..p + 2 + digits];
                    if digits.len() <= 8 {
                        assembler.push_int(short_long(bytes, p + 2, digits.len()));
                    } else {
                        assembler.push_wide(long(digits));
                    }
                    2 + digits.len()
                }
                op::LONG4 => {
                    need!(5);
                    let length = u32_at(bytes, operands) as usize;
                    if length > i32::MAX as usize {
                        return Err(malformed("a number has a negative length"));
                    }
                    need!(length.saturating_add(5));
                    assembler.push_wide(long(&bytes[p + 5..p + 5 + length]));
                    5 + length
                }
                op::SHORT_BINUNICODE => {
                    let length = usize::from(bytes[operands]);
                    need!(2 + length);
                    if length <= 7 {
                        // "N/A" and "" stand in every event: a small table spares the hashing.
                        let key = short_key(bytes, p + 2, length);
                        let slot = &mut short_texts[(key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as usize];
                        if slot.0 != key {
                            *slot = (key, assembler.intern(&text(&bytes[p + 2..p + 2 + length])));
                        }
                        assembler.push(Value::text(slot.1));
                    } else {
                        assembler.push_text(&text(&bytes[p + 2..p + 2 + length]));
                    }
                    2 + length
                }
                op::BINUNICODE | op::BINUNICODE8 | op::SHORT_BINBYTES | op::BINBYTES | op::BINBYTES8 => {
                    let (length, header) = match opcode {
                        op::SHORT_BINBYTES => (u64::from(bytes[operands]), 2),
                        op::BINUNICODE | op::BINBYTES => (u64::from(u32_at(bytes, operands)), 5),
                        _ => (u64_at(bytes, operands), 9),
                    };
                    need!(header);
                    let length = usize::try_from(length).unwrap_or(usize::MAX);
                    need!(length.saturating_add(header));
                    let content = &bytes[p + header..p + header + length];
                    if matches!(opcode, op::BINUNICODE | op::BINUNICODE8) {
                        assembler.push_text(&text(content));
                    } else {
                        assembler.push(Value::NONE); // bytes mean nothing in a snapshot
                    }
                    header + length
                }
                op::EMPTY_LIST => {
                    if let Some(run) = StackRun::at(&bytes[p..end]) {
                        let value = match seen_stacks.get(run.gets) {
                            Some(stack) => Value::stack(stack),
                            None => {
                                let value = read_run(run.gets, assembler, memo)
                                    .ok_or_else(|| malformed("a memo slot is read before it is set"))?;
                                if let Some(stack) = assembler.stack_of(value) {
                                    seen_stacks.remember(run.gets, stack);
                                }
                                value
                            }
                        };
                        assembler.push(value);
                        let overwritten = match run.put {
                            Put::Next => {
                                memo.push(value);
                                false
                            }
                            Put::Slot(slot) => memo.put(slot, value),
                            Put::Nowhere => false,
                        };
                        if overwritten {
                            seen_stacks.clear();
                            template.forget_slots();
                        }
                        run.length
                    } else {
                        assembler.push_new_list();
                        1
                    }
                }
                op::EMPTY_DICT => match template.decode(&bytes[p..], end - p, assembler, memo, seen_stacks) {
                    Some(length) => length,
                    None => {
                        assembler.push_new_dict();
                        dict_start = Some(p);
                        1
                    }
                },
                op::MARK => {
                    assembler.mark();
                    1
                }
                op::SETITEMS => {
                    let mark = assembler.pop_mark().ok_or_else(|| malformed("SETITEMS without a MARK"))?;
                    if !assembler.set_items(mark) {
                        return Err(malformed("SETITEMS without a dictionary, or with a value missing"));
                    }
                    if let Some(start) = dict_start.take()
                        && template.wants_to_learn()
                        && assembler.top_is_event()
                    {
                        template.learn(&bytes[start..=p], memo);
                    }
                    1
                }
                op::APPENDS => {
                    let mark = assembler.pop_mark().ok_or_else(|| malformed("APPENDS without a MARK"))?;
                    if !assembler.append_items(mark) {
                        return Err(malformed("APPENDS without a list"));
                    }
                    1
                }
                op::APPEND => {
                    let start = assembler.above_mark(1).ok_or_else(|| malformed("APPEND of nothing"))?;
                    if !assembler.append_items(start) {
                        return Err(malformed("APPEND without a list"));
                    }
                    1
                }
                op::SETITEM => {
                    let start = assembler.above_mark(2).ok_or_else(|| malformed("SETITEM of nothing"))?;
                    if !assembler.set_items(start) {
                        return Err(malformed("SETITEM without a dictionary"));
                    }
                    1
                }
                op::TUPLE => {
                    let mark = assembler.pop_mark().ok_or_else(|| malformed("TUPLE without a MARK"))?;
                    assembler.close_tuple(mark);
                    1
                }
                op::EMPTY_TUPLE | op::TUPLE1 | op::TUPLE2 | op::TUPLE3 => {
                    let elements =
                        if opcode == op::EMPTY_TUPLE { 0 } else { usize::from(opcode - op::TUPLE1) + 1 };
                    let start =
                        assembler.above_mark(elements).ok_or_else(|| malformed("a tuple of too little"))?;
                    assembler.close_tuple(start);
                    1
                }
                op::BINFLOAT => {
                    need!(9);
                    assembler.push_float(f64::from_bits(u64_at(bytes, operands).swap_bytes()));
                    9
                }
                op::NONE => {
                    assembler.push(Value::NONE);
                    1
                }
                op::NEWTRUE | op::NEWFALSE => {
                    assembler.push(Value::bool(opcode == op::NEWTRUE));
                    1
                }
                op::POP => {
                    assembler.pop().ok_or_else(|| malformed("POP of nothing"))?;
                    1
                }
                op::POP_MARK => {
                    let mark = assembler.pop_mark().ok_or_else(|| malformed("POP_MARK without a MARK"))?;
                    assembler.truncate(mark);
                    1
                }
                op::FRAME => {
                    need!(9); // its length only helps readers that buffer by frames
                    9
                }
                op::PROTO => {
                    need!(2);
                    2
                }
                op::STOP => {
                    *at = p + 1;
                    return if assembler.depth_is_one() {
                        Ok(Step::Stop)
                    } else {
                        Err(malformed("STOP with more or less than one value"))
                    };
                }
                _ => {
                    let offset = before.wrapping_add(p as u64);
                    return Err(match op::refused(opcode) {
                        Some(name) => ReadError::Refused {
                            opcode: name,
                            offset,
                            names: named_by(opcode, &bytes[operands..end.max(operands)], assembler),
                        },
                        None => ReadError::UnknownOpcode { opcode, offset },
                    });
                }
            };
            p += length;
        }
    }
}

/// Puts a list together from memo reads alone.
fn read_run(gets: &[u8], assembler: &mut Assembler, memo: &Memo) -> Option<Value> {
    assembler.push_new_list();
    let start = assembler.len();
    let mut rest = gets;
    while !rest.is_empty() {
        let (slot, length) = memo_read(rest)?;
        assembler.push(memo.get(slot)?);
        rest = rest.get(length..)?;
    }
    assembler.append_items(start);
    assembler.pop()
}

/// What a refused opcode would have imported, for the error message.
fn named_by(opcode: u8, operands: &[u8], assembler: &mut Assembler) -> Option<String> {
    let shown = |text: &str| text.chars().filter(|c| !c.is_control()).take(80).collect::<String>();
    match opcode {
        b'c' | b'i' => {
            let mut lines = operands.split(|&b| b == b'\n').map(|line| shown(&String::from_utf8_lossy(line)));
            Some(format!("{}.{}", lines.next()?, lines.next()?))
        }
        0x93 => {
            let name = assembler.pop().map(|value| shown(assembler.describe(value)))?;
            let module = assembler.pop().map(|value| shown(assembler.describe(value)))?;
            Some(format!("{module}.{name}"))
        }
        _ => None,
    }
}

/// A whole list of frames that were all seen before: `]`, perhaps a memo write, `(`, memo reads, `e`.
///
/// PyTorch writes a new list for every captured traceback, although most are alike: this is two thirds of
/// the bytes of a real snapshot. The bytes of the reads name the stack, so one look-up serves for all.
pub(super) struct StackRun<'a> {
    put: Put,
    pub(super) gets: &'a [u8],
    pub(super) length: usize,
}

enum Put {
    Nowhere,
    Next,
    Slot(usize),
}

impl<'a> StackRun<'a> {
    #[inline]
    pub(super) fn at(bytes: &'a [u8]) -> Option<Self> {
        let (put, start) = match *bytes.get(1)? {
            op::MEMOIZE => (Put::Next, 2),
            op::MARK => (Put::Nowhere, 1),
            op::BINPUT => (Put::Slot(usize::from(*bytes.get(2)?)), 3),
            op::LONG_BINPUT => (Put::Slot(u32::from_le_bytes(*bytes.get(2..)?.first_chunk()?) as usize), 6),
            _ => return None,
        };
        if *bytes.get(start)? != op::MARK {
            return None;
        }
        let gets = start + 1;
        let mut p = gets;
        loop {
            match *bytes.get(p)? {
                op::BINGET => p += 2,
                op::LONG_BINGET => p += 5,
                op::APPENDS if p > gets => {
                    return Some(Self { put, gets: &bytes[gets..p], length: p + 1 });
                }
                _ => return None,
            }
        }
    }
}

/// Stacks by the bytes that name them.
///
/// Programs loop: after the same few stacks mostly comes the one that came the last time. That one is tried
/// first, by comparing bytes; only when it fails is the run's end looked for and hashed.
pub(super) struct SeenStacks {
    bytes: Vec<u8>,
    seen: Vec<SeenStack>,
    table: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// The last few stacks, as one number, and what followed them.
    past: usize,
    expected: Box<[u32; Self::PASTS]>,
}

struct SeenStack {
    start: usize,
    length: usize,
    stack: StackId,
}

impl Default for SeenStacks {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            seen: Vec::new(),
            table: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            past: 0,
            expected: Box::new([0; Self::PASTS]),
        }
    }
}

impl SeenStacks {
    /// Beyond this many bytes of names, stacks are interned one by one.
    const LIMIT: usize = 256 << 20;
    const PASTS: usize = 1 << 13;

    fn name(&self, seen: &SeenStack) -> &[u8] {
        &self.bytes[seen.start..seen.start + seen.length]
    }

    /// The stack that the reads at the start of `bytes` name, and their length, if it is the one expected.
    #[inline]
    pub(super) fn expected(&mut self, bytes: &[u8]) -> Option<(StackId, usize)> {
        let index = self.expected[self.past];
        let expected = self.seen.get(index as usize)?;
        let rest = bytes.strip_prefix(self.name(expected))?;
        // Longer reads that begin alike are another stack.
        if rest.first() != Some(&op::APPENDS) {
            return None;
        }
        let found = (expected.stack, expected.length);
        self.pass(index);
        Some(found)
    }

    #[inline]
    pub(super) fn get(&mut self, gets: &[u8]) -> Option<StackId> {
        let hash = self.hasher.hash_one(gets);
        let index = *self.table.find(hash, |&i| self.name(&self.seen[i as usize]) == gets)?;
        self.expected[self.past] = index;
        self.pass(index);
        Some(self.seen[index as usize].stack)
    }

    /// Older stacks move out of the number as newer ones move in: about three count.
    #[inline]
    fn pass(&mut self, index: u32) {
        self.past = ((self.past << 4) ^ index as usize) % Self::PASTS;
    }

    fn remember(&mut self, gets: &[u8], stack: StackId) {
        if self.bytes.len() + gets.len() > Self::LIMIT {
            return;
        }
        let index = self.seen.len() as u32;
        self.seen.push(SeenStack { start: self.bytes.len(), length: gets.len(), stack });
        self.bytes.extend_from_slice(gets);
        let Self { bytes, seen, table, hasher, .. } = self;
        table.insert_unique(hasher.hash_one(gets), index, |&i| {
            let seen = &seen[i as usize];
            hasher.hash_one(&bytes[seen.start..seen.start + seen.length])
        });
        self.expected[self.past] = index;
        self.pass(index);
    }

    fn clear(&mut self) {
        if !self.seen.is_empty() {
            *self = Self::default();
        }
    }
}

/// What the pickle remembers. Texts, lists and dictionaries, which is nearly all that writers memoise, take
/// four bytes a slot; a snapshot has several slots an event.
#[derive(Default)]
pub(super) struct Memo {
    slots: Vec<u32>,
    others: Vec<Value>,
    /// Slots far beyond those in use, which no writer makes: kept apart so that an index of four
    /// billion costs one entry.
    far: HashMap<usize, Value>,
}

impl Memo {
    const UNSET: u32 = u32::MAX;
    /// Bits of a slot that are the number; the three above are the kind.
    const KIND_BITS: u32 = 29;
    const OTHER: u32 = 7;

    #[inline]
    fn pack(&mut self, value: Value) -> u32 {
        let (kind, id) = match value.view() {
            View::Text(id) => (0, id),
            View::List(id) => (1, id),
            View::Dict(id) => (2, id),
            View::Event(row) => (3, row),
            View::Stack(id) => (4, id),
            _ => (Self::OTHER, u32::MAX),
        };
        if id < (1 << Self::KIND_BITS) - 1 {
            return kind << Self::KIND_BITS | id;
        }
        self.others.push(value);
        Self::OTHER << Self::KIND_BITS | (self.others.len() - 1) as u32
    }

    #[inline]
    pub(super) fn push(&mut self, value: Value) {
        let packed = self.pack(value);
        self.slots.push(packed);
    }

    /// Sets a slot, and tells whether it held something else.
    fn put(&mut self, slot: usize, value: Value) -> bool {
        if slot == self.slots.len() {
            self.push(value);
            return false;
        }
        let before = self.get(slot);
        if slot < self.slots.len() {
            self.slots[slot] = self.pack(value);
        } else if slot < 2 * self.slots.len() + 1024 {
            self.slots.resize(slot, Self::UNSET);
            self.push(value);
        } else {
            self.far.insert(slot, value);
        }
        before.is_some_and(|before| before != value)
    }

    #[inline(always)]
    pub(super) fn get(&self, slot: usize) -> Option<Value> {
        let Some(&packed) = self.slots.get(slot) else { return self.far.get(&slot).copied() };
        if packed == Self::UNSET {
            return self.far.get(&slot).copied();
        }
        let id = packed & ((1 << Self::KIND_BITS) - 1);
        Some(match packed >> Self::KIND_BITS {
            0 => Value::text(id),
            1 => Value::list(id),
            2 => Value::dict(id),
            3 => Value::event(id),
            4 => Value::stack(id),
            _ => *self.others.get(id as usize)?,
        })
    }
}

/// The slot that a memo read at the start of `bytes` names, and the read's length.
#[inline]
pub(super) fn memo_read(bytes: &[u8]) -> Option<(usize, usize)> {
    match bytes {
        [op::BINGET, slot, ..] => Some((usize::from(*slot), 2)),
        [op::LONG_BINGET, a, b, c, d, ..] => Some((u32::from_le_bytes([*a, *b, *c, *d]) as usize, 5)),
        _ => None,
    }
}

#[inline]
fn u32_at(bytes: &[u8], p: usize) -> u32 {
    bytes.get(p..).and_then(|rest| rest.first_chunk()).map_or(0, |four| u32::from_le_bytes(*four))
}

#[inline]
pub(super) fn u64_at(bytes: &[u8], p: usize) -> u64 {
    bytes.get(p..).and_then(|rest| rest.first_chunk()).map_or(0, |eight| u64::from_le_bytes(*eight))
}

/// A little-endian two's complement number of at most eight bytes.
#[inline]
fn short_long(bytes: &[u8], p: usize, length: usize) -> i64 {
    if length == 0 {
        return 0;
    }
    let unused = 64 - 8 * length as u32;
    ((u64_at(bytes, p) << unused) as i64) >> unused
}

/// The same of any length; what does not fit is cut to the nearest that does.
fn long(digits: &[u8]) -> i128 {
    let negative = digits.last().is_some_and(|&top| top >= 0x80);
    let fill = if negative { 0xff } else { 0 };
    if digits.len() > 16 && digits[16..].iter().any(|&d| d != fill) {
        return if negative { i128::MIN } else { i128::MAX };
    }
    let mut all = [fill; 16];
    for (to, from) in all.iter_mut().zip(digits) {
        *to = *from;
    }
    i128::from_le_bytes(all)
}

/// A key for texts of up to seven bytes: the bytes and their number.
#[inline]
fn short_key(bytes: &[u8], p: usize, length: usize) -> u64 {
    (u64_at(bytes, p) & ((1u64 << (8 * length)) - 1)) | (length as u64) << 56
}

/// Texts are UTF-8 with Python's lone surrogates allowed; those become the replacement character.
fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(&bytes[..bytes.len().min(LONGEST_TEXT)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_width() {
        assert_eq!(short_long(&[0xff; 24], 0, 1), -1);
        assert_eq!(short_long(&[0, 1, 9, 9, 9, 9, 9, 9], 0, 2), 256);
        assert_eq!(short_long(&[0; 8], 0, 0), 0);
        assert_eq!(long(&[0, 0, 0, 0, 0, 0, 0, 0x80, 0]), 1 << 63);
        assert_eq!(long(&[0xff; 40]), -1);
        assert_eq!(long(&[0x7f; 40]), i128::MAX);
    }

    #[test]
    fn a_far_memo_slot_costs_one_entry() {
        let mut memo = Memo::default();
        assert!(!memo.put(0xffff_ffff, Value::NONE));
        assert!(memo.slots.len() < 2048);
        assert_eq!(memo.get(0xffff_ffff), Some(Value::NONE));
        assert_eq!(memo.get(5), None);
        assert!(!memo.put(3, Value::text(1)));
        assert!(memo.put(3, Value::text(2)), "an overwritten slot is told");
        assert_eq!(memo.get(3), Some(Value::text(2)));
        assert_eq!(memo.get(1), None);
    }

    #[test]
    fn a_run_of_memo_reads_is_recognised_in_every_writers_form() {
        for prefix in [&b"]\x94("[..], &b"]("[..], &b"]q\x05("[..], &b"]r\x05\0\0\0("[..]] {
            let bytes = [prefix, b"h\x01j\x02\0\0\0e."].concat();
            let run = StackRun::at(&bytes).unwrap();
            assert_eq!(run.gets, b"h\x01j\x02\0\0\0");
            assert_eq!(run.length, bytes.len() - 1);
        }
        assert!(StackRun::at(b"]\x94(e").is_none(), "an empty list names no stack");
        assert!(StackRun::at(b"]\x94(h\x01").is_none(), "a run cut off is left to the slow way");
    }
}
