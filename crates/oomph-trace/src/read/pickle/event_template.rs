//! A short cut for events, which are nearly all of a snapshot.
//!
//! Python's pickler writes every event of a trace with the same keys in the same order, each key a read of
//! the same memo slot. Once one event was decoded the long way, the bytes of its keys are a template: the next
//! event is decoded by comparing those bytes and reading the values between them. Anything that does not fit
//! (another shape, a value of another kind, a stack not seen before) is left to the long way, untouched.

use super::memo::{Memo, memo_read};
use super::op;
use super::operands::u64_at;
use super::stacks::{SeenStacks, StackRun};
use crate::intern::{NO_STACK, StackId};
use crate::read::assemble::{Assembler, EventRow, Value, View, action_of, known};
use crate::recording::{Action, DEFAULT_POOL};
use oomph_settings::rounding::LARGEST_SIZE;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Action,
    Address,
    Size,
    Stream,
    Time,
    CompileContext,
    Metadata,
    Frames,
    Pool,
    /// A key that means nothing: its value is passed over.
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct Key {
    /// The bytes as one number, and which of its bits count: comparing is one operation.
    bytes: u64,
    mask: u64,
    length: usize,
    field: Field,
}

impl Key {
    /// What follows the key, if it is there.
    #[inline]
    fn after(self, bytes: &[u8]) -> Option<&[u8]> {
        if u64_at(bytes, 0) & self.mask != self.bytes {
            return None;
        }
        bytes.get(self.length..)
    }
}

/// The shape of an event, learned from one.
#[derive(Default)]
pub(super) struct EventTemplate {
    keys: Vec<Key>,
    /// Whether the first keys are [`USUAL_START`].
    usual_start: bool,
    misses: u32,
    /// Memo slots that were looked up, so that most events need not: which action a slot names, and which
    /// one says nothing.
    actions: Vec<(usize, Action)>,
    silent: Option<usize>,
}

/// How every PyTorch since 2.2 begins an event. These are read without looking at what field is next.
const USUAL_START: [Field; 5] = [Field::Action, Field::Address, Field::Size, Field::Stream, Field::Time];

/// What an event puts into the memo, in order: the dictionary itself, then its content.
#[derive(Clone, Copy)]
enum Memoised {
    Text(u32),
    Stack(StackId),
    Pair,
}

impl EventTemplate {
    /// After this many misses in a row the shape has changed, and is learned again.
    const PATIENCE: u32 = 8;

    pub(super) fn wants_to_learn(&self) -> bool {
        self.keys.is_empty() || self.misses >= Self::PATIENCE
    }

    /// Takes the shape of the event that `bytes` is: `}`, MEMOIZE, `(`, keys and values, `u`.
    pub(super) fn learn(&mut self, bytes: &[u8], memo: &Memo) {
        self.misses = 0;
        self.keys = Self::shape(bytes, memo).unwrap_or_default();
        self.usual_start = self.keys.iter().map(|key| key.field).take(5).eq(USUAL_START);
        self.forget_slots();
    }

    /// Must be called when a memo slot is overwritten.
    pub(super) fn forget_slots(&mut self) {
        self.actions.clear();
        self.silent = None;
    }

    #[inline]
    fn action(&mut self, slot: usize, memo: &Memo) -> Option<Action> {
        if let Some(&(_, action)) = self.actions.iter().find(|(known, _)| *known == slot) {
            return Some(action);
        }
        let action = action_of(memo.get(slot)?);
        if self.actions.len() < Action::ALL.len() {
            self.actions.push((slot, action));
        }
        Some(action)
    }

    /// Whether a slot holds a text that says nothing.
    #[inline]
    fn is_silent(&mut self, slot: usize, memo: &Memo) -> Option<bool> {
        if self.silent == Some(slot) {
            return Some(true);
        }
        let silent = [Value::text(0), Value::text(known::NOT_COMPILED)].contains(&memo.get(slot)?);
        if silent {
            self.silent = Some(slot);
        }
        Some(silent)
    }

    fn shape(bytes: &[u8], memo: &Memo) -> Option<Vec<Key>> {
        let mut rest = bytes.strip_prefix(&[op::EMPTY_DICT, op::MEMOIZE, op::MARK])?;
        let mut keys = Vec::new();
        while rest.first() != Some(&op::SETITEMS) {
            let (slot, length) = memo_read(rest)?;
            let View::Text(name) = memo.get(slot)?.view() else { return None };
            let field = match name {
                known::ACTION => Field::Action,
                known::ADDR => Field::Address,
                known::SIZE => Field::Size,
                known::STREAM => Field::Stream,
                known::TIME_US => Field::Time,
                known::COMPILE_CONTEXT => Field::CompileContext,
                known::USER_METADATA => Field::Metadata,
                known::FRAMES => Field::Frames,
                known::POOL_ID => Field::Pool,
                // These are rare, and need more than a look at one value.
                known::DEVICE_FREE | known::CATEGORY | known::FORWARD_FRAMES => return None,
                _ => Field::Unknown,
            };
            let mask = (1u64 << (8 * length)) - 1;
            keys.push(Key { bytes: u64_at(rest, 0) & mask, mask, length, field });
            rest = &rest[length..];
            let value = match *rest.first()? {
                op::BINGET | op::BININT1 => 2,
                op::BININT2 => 3,
                op::LONG_BINGET | op::BININT => 5,
                op::LONG1 => 2 + usize::from(*rest.get(1)?),
                op::SHORT_BINUNICODE => 3 + usize::from(*rest.get(1)?),
                op::EMPTY_LIST => StackRun::at(rest)?.length,
                _ if field == Field::Pool => pair(rest)?.1,
                _ => return None,
            };
            rest = rest.get(value..)?;
        }
        Some(keys)
    }

    /// Decodes the event at the start of `bytes` and hands it over; gives its length. Nothing has happened
    /// if the answer is `None`. Behind the `available` bytes lies padding.
    #[inline]
    pub(super) fn decode(
        &mut self,
        bytes: &[u8],
        available: usize,
        assembler: &mut Assembler,
        memo: &mut Memo,
        seen_stacks: &mut SeenStacks,
    ) -> Option<usize> {
        if self.keys.is_empty() {
            return None;
        }
        let decoded = self.try_decode(bytes, available, assembler, memo, seen_stacks);
        match decoded {
            Some(_) => self.misses = 0,
            None => self.misses += 1,
        }
        decoded
    }

    #[inline]
    fn try_decode(
        &mut self,
        bytes: &[u8],
        available: usize,
        assembler: &mut Assembler,
        memo: &mut Memo,
        seen_stacks: &mut SeenStacks,
    ) -> Option<usize> {
        let mut rest = bytes.strip_prefix(&[op::EMPTY_DICT, op::MEMOIZE, op::MARK])?;
        let mut event = EventRow { stack: NO_STACK, ..EventRow::default() };
        let mut memoised = [Memoised::Pair; 4];
        let mut count = 0;
        let mut remember = |what: Memoised| {
            *memoised.get_mut(count)? = what;
            count += 1;
            Some(())
        };
        let mut next = 0;
        if self.usual_start {
            let [action, address, size, stream, time] = *self.keys.first_chunk::<5>()?;
            rest = action.after(rest)?;
            let (slot, length) = memo_read(rest)?;
            event.action = self.action(slot, memo)?;
            rest = rest.get(length..)?;
            event.address = take_int(&mut rest, address)? as u64;
            event.size =
                u64::try_from(take_int(&mut rest, size)?).ok().filter(|&size| size <= LARGEST_SIZE)?;
            event.stream = take_int(&mut rest, stream)?;
            event.time = take_int(&mut rest, time)?;
            next = USUAL_START.len();
        }
        for index in next..self.keys.len() {
            let key = self.keys[index];
            rest = key.after(rest)?;
            let length = match key.field {
                Field::Action => {
                    let (slot, length) = memo_read(rest)?;
                    event.action = self.action(slot, memo)?;
                    length
                }
                Field::Address => {
                    let (value, length) = int(rest)?;
                    event.address = value as u64;
                    length
                }
                Field::Size => {
                    let (value, length) = int(rest)?;
                    event.size = u64::try_from(value).ok().filter(|&size| size <= LARGEST_SIZE)?;
                    length
                }
                Field::Stream => {
                    let (value, length) = int(rest)?;
                    event.stream = value;
                    length
                }
                Field::Time => {
                    let (value, length) = int(rest)?;
                    event.time = value;
                    length
                }
                Field::CompileContext | Field::Metadata => match rest {
                    [op::SHORT_BINUNICODE, 3, b'N', b'/', b'A', op::MEMOIZE, ..] => {
                        remember(Memoised::Text(known::NOT_COMPILED))?;
                        6
                    }
                    [op::SHORT_BINUNICODE, 0, op::MEMOIZE, ..] => {
                        remember(Memoised::Text(0))?;
                        3
                    }
                    _ => {
                        let (slot, length) = memo_read(rest)?;
                        if !self.is_silent(slot, memo)? {
                            return None; // it says something: the long way keeps it
                        }
                        length
                    }
                },
                Field::Frames => match rest.first()? {
                    &op::EMPTY_LIST => {
                        if rest.starts_with(&[op::EMPTY_LIST, op::MEMOIZE, op::SETITEMS]) {
                            remember(Memoised::Stack(NO_STACK))?;
                            2
                        } else {
                            const OPENING: [u8; 3] = [op::EMPTY_LIST, op::MEMOIZE, op::MARK];
                            let gets = rest.strip_prefix(&OPENING)?;
                            let (stack, length) = match seen_stacks.expected(gets) {
                                Some(expected) => expected,
                                None => {
                                    let run = StackRun::at(rest)?;
                                    (seen_stacks.get(run.gets)?, run.gets.len())
                                }
                            };
                            event.stack = stack;
                            remember(Memoised::Stack(stack))?;
                            OPENING.len() + length + 1
                        }
                    }
                    _ => {
                        let (slot, length) = memo_read(rest)?;
                        event.stack = assembler.stack_of(memo.get(slot)?)?;
                        length
                    }
                },
                Field::Pool => {
                    let (pool, length) = pair(rest)?;
                    if pool != DEFAULT_POOL {
                        return None;
                    }
                    remember(Memoised::Pair)?;
                    length
                }
                Field::Unknown => {
                    let (_, length) = int(rest).or_else(|| memo_read(rest).map(|(_, length)| (0, length)))?;
                    length
                }
            };
            rest = rest.get(length..)?;
        }
        let length = bytes.len() - rest.len() + 1;
        if length > available || rest.first() != Some(&op::SETITEMS) || event.action == Action::OutOfMemory {
            return None;
        }
        memo.push(assembler.push_event(event));
        for &what in &memoised[..count] {
            memo.push(match what {
                Memoised::Text(id) => Value::text(id),
                Memoised::Stack(stack) => Value::stack(stack),
                Memoised::Pair => Value::NONE, // the default pool: nothing refers to it
            });
        }
        Some(length)
    }
}

/// A key and the number behind it. Inlined into each caller, so that the processor learns for each field how its
/// numbers are written: addresses and times are long, streams short.
#[inline(always)]
fn take_int(rest: &mut &[u8], key: Key) -> Option<i64> {
    let bytes = key.after(rest)?;
    let (value, length) = int(bytes)?;
    *rest = bytes.get(length..)?;
    Some(value)
}

#[inline(always)]
fn int(bytes: &[u8]) -> Option<(i64, usize)> {
    let head: &[u8; 10] = bytes.first_chunk()?;
    match head[0] {
        op::LONG1 if (1..=8).contains(&head[1]) => {
            let unused = 64 - 8 * u32::from(head[1]);
            let raw =
                u64::from_le_bytes([head[2], head[3], head[4], head[5], head[6], head[7], head[8], head[9]]);
            Some((((raw << unused) as i64) >> unused, 2 + usize::from(head[1])))
        }
        op::BININT1 => Some((i64::from(head[1]), 2)),
        op::BININT => Some((i64::from(i32::from_le_bytes([head[1], head[2], head[3], head[4]])), 5)),
        op::BININT2 => Some((i64::from(u16::from_le_bytes([head[1], head[2]])), 3)),
        _ => None,
    }
}

/// A tuple of two small numbers, memoised.
fn pair(bytes: &[u8]) -> Option<((u64, u64), usize)> {
    let (first, one) = int(bytes)?;
    let (second, two) = int(bytes.get(one..)?)?;
    let end = bytes.get(one + two..)?;
    end.starts_with(&[op::TUPLE2, op::MEMOIZE]).then_some(((first as u64, second as u64), one + two + 2))
}
