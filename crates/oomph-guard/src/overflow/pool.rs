//! Pieces of physical memory of one place that are behind nothing, by size, and how much there is of the place in all.
//!
//! Sizes are in granules. Books only: the driver is called by [`super::store`].

use std::collections::BTreeMap;

/// The pieces of one place.
#[derive(Debug, Default)]
pub struct Pool {
    free: BTreeMap<usize, Vec<u64>>,
    unused: usize,
    /// All that there is, free or not.
    pub created: usize,
    /// What there may be.
    pub limit: usize,
}

impl Pool {
    /// No pieces yet, and so much at most.
    pub fn up_to(limit: usize) -> Pool {
        Pool { limit, ..Pool::default() }
    }

    /// So much is free.
    pub fn unused(&self) -> usize {
        self.unused
    }

    /// So much may still be made.
    pub fn to_make(&self) -> usize {
        self.limit.saturating_sub(self.created)
    }

    /// How much is available without taking it from another block.
    pub fn available(&self) -> usize {
        self.unused + self.to_make()
    }

    /// Puts a piece back.
    pub fn push(&mut self, size: usize, piece: u64) {
        self.free.entry(size).or_default().push(piece);
        self.unused += size;
    }

    /// A piece of that size.
    pub fn pop(&mut self, size: usize) -> Option<u64> {
        let pieces = self.free.get_mut(&size)?;
        let piece = pieces.pop();
        if pieces.is_empty() {
            self.free.remove(&size);
        }
        self.unused -= if piece.is_some() { size } else { 0 };
        piece
    }

    /// The largest piece of at most that size.
    pub fn pop_within(&mut self, size: usize) -> Option<(usize, u64)> {
        let found = *self.free.range(..=size).next_back()?.0;
        self.pop(found).map(|piece| (found, piece))
    }

    /// Pieces that make up so much: several smaller than `size`, or a larger one. None if there is not as much.
    pub fn pop_enough(&mut self, wanted: usize, size: usize) -> Vec<(usize, u64)> {
        let smaller: usize = self.free.range(..size).map(|(size, pieces)| size * pieces.len()).sum();
        let mut found = Vec::new();
        if smaller >= wanted {
            let mut sum = 0;
            while sum < wanted {
                let Some((&least, _)) = self.free.range(..size).next() else { break };
                let Some(piece) = self.pop(least) else { break };
                sum += least;
                found.push((least, piece));
            }
        } else if let Some((&larger, _)) = self.free.range(size..).next()
            && let Some(piece) = self.pop(larger)
        {
            found.push((larger, piece));
        }
        found
    }
}

/// The largest power of two within a size.
pub fn power_within(size: usize) -> usize {
    size.checked_ilog2().map_or(1, |power| 1 << power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_found_by_size() {
        let mut pool = Pool::up_to(20);
        for (size, piece) in [(1, 1), (1, 2), (4, 3), (8, 4)] {
            pool.push(size, piece);
            pool.created += size;
        }
        assert_eq!((pool.unused(), pool.to_make(), pool.available()), (14, 6, 20));
        assert_eq!(pool.pop(2), None);
        assert_eq!(pool.pop_within(7), Some((4, 3)));
        assert_eq!(pool.pop_enough(2, 2).len(), 2, "small ones together");
        assert_eq!(pool.pop_enough(2, 2), [(8, 4)], "or one that is larger");
        assert_eq!((pool.pop_enough(1, 1), pool.unused()), (vec![], 0));
        assert_eq!([1, 2, 3, 13, 16].map(power_within), [1, 2, 2, 8, 16]);
    }
}
