//! The instance the algorithms work on: only buffers that take space, with time compressed to moments.
//!
//! A moment is a maximal run of births not interrupted by a death. Every set of buffers that are alive
//! together is contained in the set alive at some moment, so nothing else about time matters.

use super::Buffer;

/// A buffer that takes space, alive during the moments `first..end`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) first: u32,
    pub(super) end: u32,
    pub(super) size: u64,
    /// Index of the buffer this item stands for.
    pub(super) buffer: u32,
}

impl Item {
    pub(super) fn span(&self) -> std::ops::Range<usize> {
        self.first as usize..self.end as usize
    }

    pub(super) fn lifetime(&self) -> u32 {
        self.end - self.first
    }

    pub(super) fn area(&self) -> u128 {
        u128::from(self.size) * u128::from(self.lifetime())
    }
}

/// All items of a problem and what is alive at every moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Timeline {
    pub(super) items: Vec<Item>,
    pub(super) moments: usize,
    /// Live bytes at every moment, saturating.
    pub(super) load: Vec<u64>,
}

impl Timeline {
    pub(super) fn new(buffers: &[Buffer]) -> Self {
        let count = buffers.len().min(u32::MAX as usize);
        let alive: Vec<u32> = (0..count as u32).filter(|&b| buffers[b as usize].takes_space()).collect();
        let mut births = alive.clone();
        births.sort_unstable_by_key(|&b| (buffers[b as usize].lower, b));
        let mut deaths: Vec<u64> = alive.iter().map(|&b| buffers[b as usize].upper).collect();
        deaths.sort_unstable();

        // `closing[d]` is the number of moments that began before the d-th death.
        let mut closing = vec![0u32; deaths.len()];
        let mut items = Vec::with_capacity(alive.len());
        let (mut moments, mut dead, mut fresh_birth) = (0u32, 0, false);
        for &b in &births {
            let lower = buffers[b as usize].lower;
            while dead < deaths.len() && deaths[dead] <= lower {
                closing[dead] = moments;
                dead += 1;
                fresh_birth = false;
            }
            if !fresh_birth {
                moments += 1;
                fresh_birth = true;
            }
            items.push(Item { first: moments - 1, end: 0, size: buffers[b as usize].size, buffer: b });
        }
        closing[dead..].fill(moments);
        for item in &mut items {
            let upper = buffers[item.buffer as usize].upper;
            let death = deaths.partition_point(|&d| d < upper);
            item.end = closing[death];
        }
        Self::from_items(items, moments as usize)
    }

    /// Builds a timeline of items whose moments are already known.
    pub(super) fn from_items(items: Vec<Item>, moments: usize) -> Self {
        let mut change = vec![0i128; moments + 1];
        for item in &items {
            change[item.first as usize] += i128::from(item.size);
            change[item.end as usize] -= i128::from(item.size);
        }
        let mut live = 0i128;
        let load = change[..moments]
            .iter()
            .map(|step| {
                live += step;
                u64::try_from(live).unwrap_or(u64::MAX)
            })
            .collect();
        Timeline { items, moments, load }
    }

    /// The most bytes alive at once.
    pub(super) fn peak(&self) -> u64 {
        self.load.iter().copied().max().unwrap_or(0)
    }

    /// For every item, the most bytes alive at once during its life.
    pub(super) fn crowding(&self) -> Vec<u64> {
        let leaves = self.moments;
        let mut highest = vec![0; leaves];
        highest.extend_from_slice(&self.load);
        for node in (1..leaves).rev() {
            highest[node] = highest[2 * node].max(highest[2 * node + 1]);
        }
        self.items.iter().map(|item| range_max(&highest, leaves, item.span())).collect()
    }

    /// The height of a placement of the items.
    pub(super) fn height(&self, offsets: &[u64]) -> u64 {
        self.items
            .iter()
            .zip(offsets)
            .map(|(item, offset)| offset.saturating_add(item.size))
            .max()
            .unwrap_or(0)
    }

    /// Splits at the moments that no item lives across; the parts can be placed independently.
    pub(super) fn split(self) -> Vec<Timeline> {
        let mut items = self.items;
        items.sort_by_key(|item| item.first);
        let mut parts = Vec::new();
        let mut part: Vec<Item> = Vec::new();
        let (mut start, mut end) = (0, 0);
        for mut item in items {
            if item.first >= end {
                parts.push(Timeline::from_items(std::mem::take(&mut part), (end - start) as usize));
                start = item.first;
            }
            end = end.max(item.end);
            item.first -= start;
            item.end -= start;
            part.push(item);
        }
        parts.push(Timeline::from_items(part, (end - start) as usize));
        parts.retain(|part| !part.items.is_empty());
        parts
    }
}

/// The highest value of a range in a bottom-up segment tree.
fn range_max(tree: &[u64], leaves: usize, range: std::ops::Range<usize>) -> u64 {
    let (mut low, mut high) = (range.start + leaves, range.end + leaves);
    let mut highest = 0;
    while low < high {
        if low & 1 == 1 {
            highest = highest.max(tree[low]);
            low += 1;
        }
        if high & 1 == 1 {
            high -= 1;
            highest = highest.max(tree[high]);
        }
        low >>= 1;
        high >>= 1;
    }
    highest
}
