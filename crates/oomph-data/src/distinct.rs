//! The different values of a column of text, while they are few.

use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

/// Different values, numbered in the order they came.
#[derive(Default, Clone)]
pub(crate) struct Distinct {
    hasher: DefaultHashBuilder,
    codes: HashTable<u32>,
    bytes: Vec<u8>,
    /// Where each value ends.
    ends: Vec<usize>,
}

impl Distinct {
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of the values together.
    pub(crate) fn text_bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn value(&self, code: u32) -> &[u8] {
        let code = code as usize;
        let start = if code == 0 { 0 } else { self.ends[code - 1] };
        &self.bytes[start..self.ends[code]]
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len() as u32).map(|code| self.value(code))
    }

    /// The number of a value that is known.
    #[inline]
    pub(crate) fn get(&self, text: &[u8]) -> Option<u32> {
        self.codes.find(self.hasher.hash_one(text), |&code| self.value(code) == text).copied()
    }

    /// The number of a value, which may be new.
    #[inline]
    pub(crate) fn insert(&mut self, text: &[u8]) -> u32 {
        let hash = self.hasher.hash_one(text);
        if let Some(&code) = self.codes.find(hash, |&code| self.value(code) == text) {
            return code;
        }
        let code = self.ends.len() as u32;
        self.bytes.extend_from_slice(text);
        self.ends.push(self.bytes.len());
        let Self { hasher, codes, bytes, ends } = self;
        codes.insert_unique(hash, code, |&code| {
            let code = code as usize;
            let start = if code == 0 { 0 } else { ends[code - 1] };
            hasher.hash_one(&bytes[start..ends[code]])
        });
        code
    }

    /// In the order of their bytes, so that the numbers do not depend on who came first.
    pub(crate) fn sorted(&self) -> Self {
        let mut values: Vec<&[u8]> = self.values().collect();
        values.sort_unstable();
        let mut sorted = Self::default();
        for value in values {
            sorted.insert(value);
        }
        sorted
    }
}

/// Counts different values until there are too many to be worth it.
#[derive(Default, Clone)]
pub(crate) struct Counting {
    distinct: Option<Distinct>,
    given_up: bool,
    seen: u64,
}

/// Values together may take so much while they are counted; more would not be a small dictionary.
const MOST_BYTES: usize = 16 << 20;
/// After so many values, more than half of which were new, the rest will not repeat either.
const TRIED: u64 = 1 << 16;

impl Counting {
    #[inline]
    pub(crate) fn add(&mut self, text: &[u8]) {
        if self.given_up {
            return;
        }
        self.seen += 1;
        let distinct = self.distinct.get_or_insert_default();
        distinct.insert(text);
        if distinct.text_bytes() + distinct.len() * 16 > MOST_BYTES
            || (self.seen == TRIED && distinct.len() as u64 > TRIED / 2)
        {
            self.give_up();
        }
    }

    pub(crate) fn give_up(&mut self) {
        self.given_up = true;
        self.distinct = None;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.seen += other.seen;
        if self.given_up || other.given_up {
            return self.give_up();
        }
        for value in other.distinct.iter().flat_map(Distinct::values) {
            self.distinct.get_or_insert_default().insert(value);
        }
    }

    /// What there is, if it was counted to the end.
    pub(crate) fn finish(&self) -> Option<Distinct> {
        if self.given_up {
            None
        } else {
            Some(self.distinct.as_ref().map_or_else(Distinct::default, Distinct::sorted))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_numbered_once_and_sorted_whoever_came_first() {
        let mut distinct = Distinct::default();
        assert_eq!([b"b".as_slice(), b"", b"b", b"a"].map(|text| distinct.insert(text)), [0, 1, 0, 2]);
        let sorted = distinct.sorted();
        assert_eq!(sorted.values().collect::<Vec<_>>(), [b"".as_slice(), b"a", b"b"]);
        assert_eq!((sorted.get(b"a"), sorted.get(b"c")), (Some(1), None));
    }

    #[test]
    fn too_many_are_not_counted() {
        let mut counting = Counting::default();
        for number in 0..200_000 {
            counting.add(number.to_string().as_bytes());
        }
        assert!(counting.finish().is_none());
    }
}
