//! Stacks that were read before, recognised by the bytes of the memo reads that they consist of.

use super::op;
use crate::intern::StackId;
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

/// A whole list of frames that were all seen before: `]`, perhaps a memo write, `(`, memo reads, `e`.
///
/// PyTorch writes a new list for every captured traceback, although most are alike: this is two thirds of
/// the bytes of a real snapshot. The bytes of the reads name the stack, so one look-up serves for all.
pub(super) struct StackRun<'a> {
    pub(super) put: Put,
    pub(super) gets: &'a [u8],
    pub(super) length: usize,
}

/// Where the memo keeps it.
pub(super) enum Put {
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
    expected: Box<[u32; Self::SLOTS]>,
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
            expected: Box::new([0; Self::SLOTS]),
        }
    }
}

impl SeenStacks {
    const SLOTS: usize = 1 << 13;

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
        self.past = ((self.past << 4) ^ index as usize) % Self::SLOTS;
    }

    pub(super) fn remember(&mut self, gets: &[u8], stack: StackId) {
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

    /// What a stack takes here, with room to grow.
    pub(super) fn cost(gets: &[u8]) -> usize {
        gets.len() + 2 * size_of::<SeenStack>()
    }

    /// Forgets everything; gives the steps that it took.
    pub(super) fn clear(&mut self) -> usize {
        if self.seen.is_empty() {
            return 1;
        }
        *self = Self::default();
        Self::SLOTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
