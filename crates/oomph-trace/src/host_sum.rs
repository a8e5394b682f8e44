//! Sums of blocks of host memory, of which small ones are samples: how much, and by how much that may be off.

use crate::layout::{How, SAMPLED_EVERY};

/// A sum that blocks come into and go out of. Sizes come from strangers' files: it does not overflow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostSum {
    bytes: u128,
    /// Of small ones, samples.
    blocks: u64,
    variance: u128,
}

impl HostSum {
    /// One block more.
    pub fn add(&mut self, size: u64, how: How) {
        self.merge(&Self { bytes: u128::from(size), blocks: 1, variance: variance(size, how) });
    }

    /// A block that was added has gone.
    pub fn remove(&mut self, size: u64, how: How) {
        self.bytes = self.bytes.saturating_sub(u128::from(size));
        self.blocks = self.blocks.saturating_sub(1);
        self.variance = self.variance.saturating_sub(variance(size, how));
    }

    /// All that is in another one.
    pub fn merge(&mut self, other: &Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.blocks = self.blocks.saturating_add(other.blocks);
        self.variance = self.variance.saturating_add(other.variance);
    }

    pub fn bytes(&self) -> u64 {
        u64::try_from(self.bytes).unwrap_or(u64::MAX)
    }

    /// Blocks that were recorded: of small ones, samples.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// By how much samples may be off: twice the standard deviation.
    pub fn error(&self) -> u64 {
        (2.0 * (self.variance as f64).sqrt()) as u64
    }
}

/// By how much a block may be off, squared. A sample of `s` bytes stands for `s / p`, where `p` is its chance: the variance of what it stands for is that
/// squared, times `1 - p`. For small blocks that is about the mean between two samples times what it stands for.
fn variance(stands_for: u64, how: How) -> u128 {
    if how.is_sampled() { u128::from(stands_for) * u128::from(SAMPLED_EVERY.min(stands_for)) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_leaves_nothing_behind_and_nothing_overflows() {
        let mut sum = HostSum::default();
        sum.add(1 << 20, How::Large);
        assert_eq!((sum.bytes(), sum.blocks(), sum.error()), (1 << 20, 1, 0));
        let before = sum;
        for _ in 0..100 {
            sum.add(65_000, How::Object);
        }
        // A hundred samples: a tenth of it, and twice that.
        assert!(sum.error().abs_diff(2 * 65_000 * 10) < 1000, "{}", sum.error());
        (0..100).for_each(|_| sum.remove(65_000, How::Object));
        assert_eq!(sum, before);
        (0..9).for_each(|_| sum.add(u64::MAX, How::Sampled));
        assert_eq!(sum.bytes(), u64::MAX);
        (0..20).for_each(|_| sum.remove(u64::MAX, How::Sampled));
        assert_eq!((sum.bytes(), sum.blocks()), (0, 0));
    }
}
