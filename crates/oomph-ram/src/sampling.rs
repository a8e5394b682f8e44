//! Which small requests are recorded: each byte has the same chance, whatever it is a part of.
//!
//! The distance to the next byte that is sampled is drawn from an exponential distribution, as tcmalloc and jemalloc do. A request of `s` bytes is then hit with
//! probability `1 - exp(-s / MEAN)`, and stands for `s` divided by that: the sum over all that are hit is right on average, whatever the sizes.

use crate::layout::SAMPLED_EVERY;
use std::cell::Cell;

/// Bytes from one sample to the next, on average.
const MEAN: f64 = SAMPLED_EVERY as f64;

/// A thread's way to its next sample. It may begin as zeros.
#[derive(Default)]
pub(crate) struct Sampler {
    /// Bytes until then.
    left: Cell<i64>,
    /// Of the generator; 0 before the first draw.
    seed: Cell<u64>,
}

impl Sampler {
    /// What a request stands for, if it is a sample.
    #[inline]
    pub(crate) fn passes(&self, size: usize) -> Option<u64> {
        let left = self.left.get() - size as i64;
        self.left.set(left);
        if left >= 0 { None } else { self.hit(size) }
    }

    #[cold]
    fn hit(&self, size: usize) -> Option<u64> {
        let is_first = self.seed.get() == 0;
        if is_first {
            // Where the thread's own memory is differs from thread to thread, and from run to run.
            self.seed.set((self as *const Self as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
            self.left.set(self.distance() - size as i64);
            if self.left.get() >= 0 {
                return None;
            }
        }
        self.left.set(self.distance());
        let chance = -(-(size as f64) / MEAN).exp_m1();
        Some((size as f64 / chance).round() as u64)
    }

    fn distance(&self) -> i64 {
        // xorshift64*, of which the upper 53 bits are a number above 0 and up to 1.
        let mut seed = self.seed.get();
        seed ^= seed >> 12;
        seed ^= seed << 25;
        seed ^= seed >> 27;
        self.seed.set(seed);
        let unit = ((seed.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) + 1) as f64 / (1u64 << 53) as f64;
        (-unit.ln() * MEAN) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_samples_stand_for_is_what_was_asked_for() {
        for size in [24, 500, 4_000, 60_000] {
            let (sampler, count) = (Sampler::default(), 2_000_000_000 / size);
            let (mut sum, mut squares) = (0.0, 0.0);
            for _ in 0..count {
                if let Some(stands_for) = sampler.passes(size) {
                    sum += stands_for as f64;
                    squares += (stands_for as f64).powi(2);
                }
            }
            let (truth, deviation) = ((count * size) as f64, squares.sqrt());
            assert!((sum - truth).abs() < 4.0 * deviation, "{size}: {sum} of {truth}, deviation {deviation}");
            assert!(deviation < 0.02 * truth);
        }
    }
}
