//! Numbers that look random and are the same on every machine.

/// SplitMix64 (Steele, Lea, Flood 2014): small, quick, and good enough to shuffle with.
pub(super) struct Random {
    state: u64,
}

impl Random {
    /// Another sequence for every list of words.
    pub(super) fn new(words: &[u64]) -> Self {
        let mut random = Self { state: 0 };
        for &word in words {
            random.state = random.next() ^ word;
        }
        random
    }

    pub(super) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, each equally likely (Lemire 2019: the few draws that would favour some are drawn again).
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        let threshold = bound.wrapping_neg() % bound.max(1);
        loop {
            let product = u128::from(self.next()) * u128::from(bound);
            if product as u64 >= threshold {
                return (product >> 64) as u64;
            }
        }
    }

    /// Fisher and Yates.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_splitmix64() {
        // The first numbers of the reference implementation, from state 1234567.
        let mut random = Random { state: 1_234_567 };
        let first: Vec<u64> = (0..3).map(|_| random.next()).collect();
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn every_order_of_three_is_equally_likely() {
        let mut counts = std::collections::HashMap::new();
        for seed in 0..60_000 {
            let mut items = [0, 1, 2];
            Random::new(&[seed, 1]).shuffle(&mut items);
            *counts.entry(items).or_insert(0u32) += 1;
        }
        assert_eq!(counts.len(), 6);
        // 10,000 ± 4.5 standard deviations.
        assert!(counts.values().all(|count| (9_590..10_410).contains(count)), "{counts:?}");
    }
}
