//! The memo: what a pickle remembers by number, and how a read of it is written.

use super::op;
use crate::read::assemble::{Value, View};
use hashbrown::HashMap;

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
    /// What a slot takes at most, with room to grow.
    pub(super) const SLOT: usize = 16;

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

    /// Sets a slot, and returns whether it held something else.
    pub(super) fn put(&mut self, slot: usize, value: Value) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_far_memo_slot_costs_one_entry() {
        let mut memo = Memo::default();
        assert!(!memo.put(0xffff_ffff, Value::NONE));
        assert!(memo.slots.len() < 2048);
        assert_eq!(memo.get(0xffff_ffff), Some(Value::NONE));
        assert_eq!(memo.get(5), None);
        assert!(!memo.put(3, Value::text(1)));
        assert!(memo.put(3, Value::text(2)), "an overwritten slot is reported");
        assert_eq!(memo.get(3), Some(Value::text(2)));
        assert_eq!(memo.get(1), None);
    }
}
