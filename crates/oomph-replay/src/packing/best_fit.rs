//! Best fit in birth order: what an allocator that sees the buffers one at a time would do, with the
//! tightest free gap taken each time. Near-linear whatever the input, so it is the floor that is always
//! affordable.

use std::collections::{BTreeMap, BTreeSet};

use super::timeline::Timeline;

/// The free gaps below the highest address in use, and the open end above it.
#[derive(Default)]
struct Gaps {
    by_start: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    top: u64,
}

impl Gaps {
    fn add(&mut self, start: u64, end: u64) {
        self.by_start.insert(start, end);
        self.by_size.insert((end - start, start));
    }

    fn remove(&mut self, start: u64, end: u64) {
        self.by_start.remove(&start);
        self.by_size.remove(&(end - start, start));
    }

    fn take(&mut self, size: u64) -> u64 {
        let tightest = self.by_size.range((size, 0)..).next().copied();
        if let Some((gap, start)) = tightest {
            self.remove(start, start + gap);
            if gap > size {
                self.add(start + size, start + gap);
            }
            return start;
        }
        // Nothing fits: grow, using a gap that reaches the top if there is one.
        let mut start = self.top;
        if let Some((&gap, &end)) = self.by_start.last_key_value()
            && end == self.top
        {
            self.remove(gap, end);
            start = gap;
        }
        self.top = start.saturating_add(size);
        start
    }

    fn give_back(&mut self, start: u64, end: u64) {
        let (mut start, mut end) = (start, end);
        if let Some((&gap, &gap_end)) = self.by_start.range(..=start).next_back()
            && gap_end == start
        {
            self.remove(gap, gap_end);
            start = gap;
        }
        if let Some(&gap_end) = self.by_start.get(&end) {
            self.remove(end, gap_end);
            end = gap_end;
        }
        if start < end {
            self.add(start, end);
        }
    }
}

/// Offsets of the items, in item order.
pub(super) fn place(timeline: &Timeline) -> Vec<u64> {
    let items = &timeline.items;
    let mut births: Vec<u32> = (0..items.len() as u32).collect();
    births.sort_unstable_by_key(|&i| {
        let item = &items[i as usize];
        (item.first, std::cmp::Reverse((item.size, item.lifetime())), i)
    });
    let mut deaths: Vec<u32> = (0..items.len() as u32).collect();
    deaths.sort_unstable_by_key(|&i| (items[i as usize].end, i));

    let mut offsets = vec![0; items.len()];
    let mut gaps = Gaps::default();
    let mut dead = deaths.into_iter().peekable();
    for i in births {
        let item = &items[i as usize];
        while let Some(d) = dead.next_if(|&d| items[d as usize].end <= item.first) {
            let start: u64 = offsets[d as usize];
            gaps.give_back(start, start.saturating_add(items[d as usize].size));
        }
        offsets[i as usize] = gaps.take(item.size);
    }
    offsets
}
