//! Columns of numbers as text inside a page: varints, deflated, in base64.
//!
//! Browsers inflate natively. What repeats from step to step is found by deflate as long as a column has few bytes a row, so what
//! takes few distinct values goes in as their index.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use std::collections::HashMap;
use std::hash::Hash;
use std::io::Write;

/// Scripts count exactly up to here. Nothing real is larger; what a hostile file says is cut.
const LARGEST: u64 = (1 << 53) - 1;

/// Varints, one after the other.
#[derive(Default)]
pub(crate) struct Column {
    bytes: Vec<u8>,
    rows: usize,
}

impl Column {
    pub(crate) fn of(values: impl IntoIterator<Item = u64>) -> Self {
        let mut column = Self::default();
        for value in values {
            column.unsigned(value);
            column.row();
        }
        column
    }

    /// Each as the difference to the one before, which is never larger.
    pub(crate) fn of_rising(values: impl IntoIterator<Item = u64>) -> Self {
        let mut before = 0;
        Self::of(values.into_iter().map(|value| {
            let difference = value.saturating_sub(before);
            before = before.max(value);
            difference
        }))
    }

    pub(crate) fn unsigned(&mut self, value: u64) {
        let mut value = value.min(LARGEST);
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    /// The difference of two numbers.
    pub(crate) fn difference(&mut self, value: u64, before: u64) {
        let difference = value.min(LARGEST) as i64 - before.min(LARGEST) as i64;
        // At most 54 bits: not cut again.
        let mut zigzag = ((difference << 1) ^ (difference >> 63)) as u64;
        while zigzag >= 0x80 {
            self.bytes.push(zigzag as u8 | 0x80);
            zigzag >>= 7;
        }
        self.bytes.push(zigzag as u8);
    }

    pub(crate) fn row(&mut self) {
        self.rows += 1;
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn packed(&self) -> String {
        packed(&self.bytes)
    }
}

/// Deflated, in base64.
pub(crate) fn packed(bytes: &[u8]) -> String {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::new(8));
    // Writing into memory does not fail.
    let deflated = encoder.write_all(bytes).and_then(|()| encoder.finish()).unwrap_or_default();
    STANDARD_NO_PAD.encode(deflated)
}

/// Distinct values, numbered in order of first sight.
pub(crate) struct Distinct<T> {
    seen: HashMap<T, u64>,
    values: Vec<T>,
}

impl<T> Default for Distinct<T> {
    fn default() -> Self {
        Self { seen: HashMap::new(), values: Vec::new() }
    }
}

impl<T: Copy + Eq + Hash> Distinct<T> {
    pub(crate) fn index(&mut self, value: T) -> u64 {
        let Self { seen, values } = self;
        *seen.entry(value).or_insert_with(|| {
            values.push(value);
            values.len() as u64 - 1
        })
    }

    pub(crate) fn values(&self) -> &[T] {
        &self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn unpacked(text: &str) -> Vec<u8> {
        let deflated = STANDARD_NO_PAD.decode(text).unwrap();
        let mut bytes = Vec::new();
        flate2::read::DeflateDecoder::new(&deflated[..]).read_to_end(&mut bytes).unwrap();
        bytes
    }

    fn varints(bytes: &[u8]) -> Vec<u64> {
        let (mut values, mut value, mut shift) = (Vec::new(), 0, 0);
        for &byte in bytes {
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                values.push(value);
                (value, shift) = (0, 0);
            }
        }
        values
    }

    #[test]
    fn columns_come_back() {
        let values = [0, 1, 127, 128, 16_383, 16_384, 1 << 40, LARGEST];
        let column = Column::of(values);
        assert_eq!(column.rows(), values.len());
        assert_eq!(varints(&unpacked(&column.packed())), values);
        assert_eq!(varints(&Column::of([u64::MAX]).bytes), [LARGEST]);
        assert_eq!(varints(&Column::of_rising([3, 3, 10, 4, 11]).bytes), [3, 0, 7, 0, 1]);
    }

    #[test]
    fn differences_go_both_ways() {
        let mut column = Column::default();
        for (value, before) in [(5, 3), (3, 5), (0, u64::MAX), (u64::MAX, 0), (7, 7)] {
            column.difference(value, before);
        }
        let back: Vec<i64> =
            varints(&column.bytes).into_iter().map(|z| (z >> 1) as i64 ^ -((z & 1) as i64)).collect();
        assert_eq!(back, [2, -2, -(LARGEST as i64), LARGEST as i64, 0]);
    }
}
