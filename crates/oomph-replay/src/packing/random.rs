//! A small fixed-seed generator: the same input always takes the same course.

/// Marsaglia's xorshift on 64 bits.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub fn new() -> Self {
        Random(0x9E37_79B9_7F4A_7C15)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Uniform in `0.0..1.0`.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}
