//! Checks a placement by sweeping over time, for the tests.

use std::collections::BTreeMap;

use super::Buffer;

/// Finds two buffers that are alive at the same time and share an address; `None` when there are none.
///
/// Buffers that are never alive or have no size overlap nothing.
pub(super) fn overlaps(buffers: &[Buffer], offsets: &[u64]) -> Option<(usize, usize)> {
    let count = buffers.len().min(offsets.len());
    let mut births: Vec<usize> = (0..count).filter(|&b| buffers[b].takes_space()).collect();
    let mut deaths = births.clone();
    births.sort_unstable_by_key(|&b| buffers[b].lower);
    deaths.sort_unstable_by_key(|&b| buffers[b].upper);

    let end = |b: usize| u128::from(offsets[b]) + u128::from(buffers[b].size);
    let mut live: BTreeMap<u64, usize> = BTreeMap::new();
    let mut dead = deaths.into_iter().peekable();
    for b in births {
        while let Some(d) = dead.next_if(|&d| buffers[d].upper <= buffers[b].lower) {
            live.remove(&offsets[d]);
        }
        // What is live is disjoint so far, so only the nearest on either side can collide.
        let below = live.range(..=offsets[b]).next_back().map(|(_, &other)| other);
        let above = live.range(offsets[b]..).next().map(|(_, &other)| other);
        if let Some(other) = below.filter(|&other| end(other) > u128::from(offsets[b])) {
            return Some((other.min(b), other.max(b)));
        }
        if let Some(other) = above.filter(|&other| u128::from(offsets[other]) < end(b)) {
            return Some((other.min(b), other.max(b)));
        }
        live.insert(offsets[b], b);
    }
    None
}
