//! From opcode to opcode: each becomes an operation on the assembler.

use super::event_template::EventTemplate;
use super::memo::{Memo, memo_read};
use super::op;
use super::operands::{long, short_key, short_long, text, u32_at, u64_at};
use super::stacks::{Put, SeenStacks, StackRun};
use crate::budget::Budget;
use crate::intern::StringId;
use crate::read::ReadError;
use crate::read::assemble::{Assembler, Value};
use crate::read::window::{Chunks, PADDING, Window};

/// How a pickle ended.
pub(super) enum Ended {
    Stop,
    Truncated,
}

/// Why a window's run came to its end.
enum Step {
    Stop,
    /// The next opcode and its operands take this many bytes, which the window does not have.
    Need(usize),
}

/// What spares most of the work, and rests on memo slots keeping what they hold.
#[derive(Default)]
struct Shortcuts {
    stacks: SeenStacks,
    template: EventTemplate,
}

impl Shortcuts {
    /// Sets a memo slot. If it held something else, what a run of memo reads stands for has changed.
    #[inline]
    fn put(&mut self, memo: &mut Memo, slot: usize, value: Value, assembler: &mut Assembler) {
        assembler.charge(Memo::SLOT, "what it remembers");
        if memo.put(slot, value) {
            assembler.work(self.stacks.clear(), "memo slots that are set again");
            self.template.forget_slots();
        }
    }

    /// Decodes an event as [`EventTemplate::decode`] does.
    #[inline]
    fn event(
        &mut self,
        bytes: &[u8],
        available: usize,
        assembler: &mut Assembler,
        memo: &mut Memo,
    ) -> Option<usize> {
        self.template.decode(bytes, available, assembler, memo, &mut self.stacks)
    }
}

/// What reads opcodes.
pub(super) struct Machine {
    pub(super) assembler: Assembler,
    memo: Memo,
    shortcuts: Shortcuts,
    short_texts: Box<[(u64, StringId); 256]>,
}

impl Machine {
    pub(super) fn new(budget: Budget) -> Self {
        Self {
            assembler: Assembler::new(budget),
            memo: Memo::default(),
            shortcuts: Shortcuts::default(),
            // No text has this key: a length of 255 never comes here.
            short_texts: Box::new([(u64::MAX, 0); 256]),
        }
    }

    pub(super) fn run<C: Chunks>(&mut self, window: &mut Window<C>) -> Result<Ended, ReadError> {
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
        let Self { assembler, memo, shortcuts, short_texts } = self;
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
            if assembler.is_crowded() {
                assembler.make_room()?;
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
                    assembler.charge(Memo::SLOT, "what it remembers");
                    1
                }
                op::BINPUT | op::LONG_BINPUT => {
                    let (slot, length) = match opcode {
                        op::BINPUT => (usize::from(bytes[operands]), 2),
                        _ => (u32_at(bytes, operands) as usize, 5),
                    };
                    need!(length);
                    let top = assembler.top().ok_or_else(|| malformed("nothing to memoise"))?;
                    shortcuts.put(memo, slot, top, assembler);
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
                        let value = match shortcuts.stacks.get(run.gets) {
                            Some(stack) => Value::stack(stack),
                            None => {
                                let value = read_run(run.gets, assembler, memo)
                                    .ok_or_else(|| malformed("a memo slot is read before it is set"))?;
                                if let Some(stack) = assembler.stack_of(value)
                                    && assembler.charge(SeenStacks::cost(run.gets), "stacks")
                                {
                                    shortcuts.stacks.remember(run.gets, stack);
                                }
                                value
                            }
                        };
                        assembler.push(value);
                        match run.put {
                            Put::Next => memo.push(value),
                            Put::Slot(slot) => shortcuts.put(memo, slot, value, assembler),
                            Put::Nowhere => {}
                        }
                        run.length
                    } else {
                        assembler.push_new_list();
                        1
                    }
                }
                op::EMPTY_DICT => match shortcuts.event(&bytes[p..], end - p, assembler, memo) {
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
                        && shortcuts.template.wants_to_learn()
                        && assembler.top_is_event()
                    {
                        shortcuts.template.learn(&bytes[start..=p], memo);
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
