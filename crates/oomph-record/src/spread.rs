//! Maps whose keys are numbers that are spread well already, or nearly so: addresses, and hashes of stacks.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// The hasher. The same numbers give the same in every process.
#[derive(Default)]
pub(crate) struct Spread(u64);

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

/// A map of numbers.
pub(crate) type Map<K, V> = HashMap<K, V, BuildHasherDefault<Spread>>;
