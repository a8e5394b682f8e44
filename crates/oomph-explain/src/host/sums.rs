//! Sums of blocks, and by how much samples make them uncertain.

use oomph_trace::{How, SAMPLED_EVERY};

/// Bytes of small requests from one sample to the next, on average.
const MEAN: f64 = SAMPLED_EVERY as f64;

/// Sums of blocks.
#[derive(Clone, Copy, Default)]
pub struct Sum {
    pub bytes: u64,
    pub blocks: u64,
    variance: f64,
}

impl Sum {
    pub fn add(&mut self, size: u64, how: How) {
        self.bytes = self.bytes.saturating_add(size);
        self.blocks += 1;
        self.variance += if how.is_sampled() { variance(size) } else { 0.0 };
    }

    /// Twice the standard deviation.
    pub fn error(&self) -> u64 {
        (2.0 * self.variance.sqrt()) as u64
    }
}

/// By how much a sample may be off, squared: it stands for `stands_for` bytes, of which it is one block.
fn variance(stands_for: u64) -> f64 {
    // A block of s bytes stands for s / p, and p is its chance: the variance of what it stands for is that squared, times 1 - p. For small blocks that is about the mean between two samples, squared.
    (stands_for as f64) * MEAN.min(stands_for as f64)
}
