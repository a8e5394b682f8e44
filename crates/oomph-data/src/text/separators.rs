//! Where the delimiters and newlines of a chunk are.
//!
//! Eight bytes are compared at a time, by arithmetic that has no branches, into one bit a byte; the places of the bits are
//! written eight at a time, whether there are so many or not. Cells are short: to search from one to the next would be
//! to guess wrong where each ends.

/// The places of two bytes in a chunk, in order.
#[derive(Default)]
pub(super) struct Separators {
    /// The first is none: before it, as it were, lies a separator that ends at 0.
    places: Vec<u32>,
    count: usize,
}

const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
const ONES: u64 = 0x0101_0101_0101_0101;

/// The highest bit of every byte that is `byte`.
#[inline]
fn equal(word: u64, byte: u64) -> u64 {
    let other = word ^ byte;
    !(((other & LOW) + LOW) | other | LOW)
}

/// One bit a byte for 64 bytes.
#[inline]
fn bits(block: &[u8; 64], one: u64, two: u64) -> u64 {
    let (words, _) = block.as_chunks::<8>();
    let mut bits = 0;
    for (place, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let found = equal(word, one) | equal(word, two);
        // Brings the highest bits of eight bytes together.
        bits |= (found.wrapping_mul(0x0002_0408_1020_4081) >> 56) << (place * 8);
    }
    bits
}

impl Separators {
    pub(super) fn clear(&mut self) {
        self.count = 0;
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Where the separator with this number is; 0 is the one before the chunk, whose next place is 0.
    #[inline]
    pub(super) fn place(&self, number: usize) -> u32 {
        self.places[number]
    }

    /// Finds all; a chunk that does not end with `two` is taken to.
    pub(super) fn find(&mut self, chunk: &[u8], one: u8, two: u8) {
        // Every byte may be one, and a whole block is written at the end.
        let most = chunk.len() + 2 * 64 + 2;
        if self.places.len() < most {
            self.places.resize(most, 0);
        }
        self.places[0] = u32::MAX;
        let (one_everywhere, two_everywhere) = (u64::from(one) * ONES, u64::from(two) * ONES);
        let (blocks, rest) = chunk.as_chunks::<64>();
        let mut next = 1;
        let mut at = 0;
        for block in blocks {
            next = self.write(next, at, bits(block, one_everywhere, two_everywhere));
            at += 64;
        }
        for (place, byte) in rest.iter().enumerate() {
            if *byte == one || *byte == two {
                self.places[next] = at + place as u32;
                next += 1;
            }
        }
        if chunk.last().is_some_and(|last| *last != two) {
            self.places[next] = chunk.len() as u32;
            next += 1;
        }
        self.count = next - 1;
    }

    #[inline]
    fn write(&mut self, next: usize, at: u32, mut bits: u64) -> usize {
        let count = bits.count_ones() as usize;
        let room = &mut self.places[next..next + 64];
        let mut written = 0;
        while written < count {
            for place in &mut room[written..written + 8] {
                *place = at + bits.trailing_zeros();
                bits &= bits.wrapping_sub(1);
            }
            written += 8;
        }
        next + count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn all_are_found(chunk in prop::collection::vec(prop_oneof![prop::sample::select(b",\n-+\x0b\x8a\xac".to_vec()), any::<u8>()], 0..400)) {
            let mut separators = Separators::default();
            for _ in 0..2 {
                separators.find(&chunk, b',', b'\n');
                let mut expected: Vec<u32> = (0..chunk.len()).filter(|&at| matches!(chunk[at], b',' | b'\n')).map(|at| at as u32).collect();
                if chunk.last().is_some_and(|last| *last != b'\n') {
                    expected.push(chunk.len() as u32);
                }
                let found: Vec<u32> = (1..=separators.count()).map(|number| separators.place(number)).collect();
                prop_assert_eq!(found, expected);
            }
        }
    }
}
