//! Which addresses are taken when: finds the lowest free address for a range of moments.
//!
//! A segment tree over the moments. Every node keeps the addresses taken during all of its moments and
//! the addresses taken during any of them, each as merged ranges; a query then reads only the few nodes
//! that its moments split into and their ancestors. Merging keeps the lists short because packed
//! neighbours coalesce.

use std::ops::Range;

/// A set of addresses as sorted, disjoint, non-adjacent ranges.
#[derive(Clone, Debug, Default)]
struct AddressSet {
    ranges: Vec<(u64, u64)>,
}

impl AddressSet {
    fn insert(&mut self, start: u64, end: u64) {
        // Most insertions extend the topmost range or lie above it.
        match self.ranges.last_mut() {
            None => return self.ranges.push((start, end)),
            Some(last) if start > last.1 => return self.ranges.push((start, end)),
            Some(last) if start >= last.0 => {
                last.1 = last.1.max(end);
                return;
            }
            Some(_) => {}
        }
        let from = self.ranges.partition_point(|range| range.1 < start);
        let touched = self.ranges[from..].iter().take_while(|range| range.0 <= end).count();
        if touched == 0 {
            self.ranges.insert(from, (start, end));
            return;
        }
        let merged = (start.min(self.ranges[from].0), end.max(self.ranges[from + touched - 1].1));
        self.ranges[from] = merged;
        self.ranges.drain(from + 1..from + touched);
    }
}

/// Index of the first range that ends above `position`, searching from `cursor` on.
fn first_ending_above(ranges: &[(u64, u64)], cursor: usize, position: u64) -> usize {
    let mut step = 1;
    let mut low = cursor;
    while low + step <= ranges.len() && ranges[low + step - 1].1 <= position {
        low += step;
        step *= 2;
    }
    let high = ranges.len().min(low + step);
    low + ranges[low..high].partition_point(|range| range.1 <= position)
}

#[derive(Clone, Debug, Default)]
struct Node {
    taken_throughout: AddressSet,
    taken_sometime: AddressSet,
}

/// Addresses taken by the buffers placed so far, by moment.
#[derive(Clone, Debug)]
pub(super) struct Occupancy {
    leaves: usize,
    nodes: Vec<Node>,
    /// Scratch for queries: node index, whether the whole node is asked for, cursor.
    cursors: Vec<(u32, bool, u32)>,
}

impl Occupancy {
    pub(super) fn new(moments: usize) -> Self {
        let leaves = moments.max(1).next_power_of_two();
        Occupancy { leaves, nodes: vec![Node::default(); 2 * leaves], cursors: Vec::new() }
    }

    pub(super) fn clear(&mut self) {
        for node in &mut self.nodes {
            node.taken_throughout.ranges.clear();
            node.taken_sometime.ranges.clear();
        }
    }

    /// Marks the addresses `start..end` as taken during `moments`.
    pub(super) fn insert(&mut self, moments: Range<usize>, start: u64, end: u64) {
        let leaves = self.leaves;
        let nodes = &mut self.nodes;
        visit(leaves, moments, |node, whole| {
            // A single moment is never asked for in part.
            if whole && node < leaves {
                nodes[node].taken_throughout.insert(start, end);
            }
            nodes[node].taken_sometime.insert(start, end);
        });
    }

    /// The lowest address, at least `from`, with `size` bytes free above it during all of `moments`.
    pub(super) fn lowest_gap(&mut self, moments: Range<usize>, size: u64, from: u64) -> u64 {
        let Occupancy { leaves, nodes, cursors } = self;
        cursors.clear();
        visit(*leaves, moments, |node, whole| {
            if !ranges_of(&nodes[node], whole).is_empty() {
                cursors.push((node as u32, whole, 0));
            }
        });
        let mut position = from;
        loop {
            let before = position;
            for (node, whole, cursor) in cursors.iter_mut() {
                let ranges = ranges_of(&nodes[*node as usize], *whole);
                let mut at = first_ending_above(ranges, *cursor as usize, position);
                while at < ranges.len() && ranges[at].0 < position.saturating_add(size) {
                    position = ranges[at].1;
                    at += 1;
                }
                *cursor = at as u32;
            }
            if position == before {
                return position;
            }
        }
    }
}

fn ranges_of(node: &Node, whole: bool) -> &[(u64, u64)] {
    if whole { &node.taken_sometime.ranges } else { &node.taken_throughout.ranges }
}

/// Calls `see(node, true)` for the nodes that `moments` splits into and `see(node, false)` for their
/// ancestors, each once.
fn visit(leaves: usize, moments: Range<usize>, mut see: impl FnMut(usize, bool)) {
    if moments.is_empty() {
        return;
    }
    let (start, end) = (moments.start + leaves, moments.end + leaves);
    for level in (0..=leaves.trailing_zeros()).rev() {
        let (left, right) = (start >> level, (end - 1) >> level);
        let partly = |node: usize| (node << level) < start || ((node + 1) << level) > end;
        if partly(left) {
            see(left, false);
        }
        if right != left && partly(right) {
            see(right, false);
        }
    }
    let (mut low, mut high) = (start, end);
    while low < high {
        if low & 1 == 1 {
            see(low, true);
            low += 1;
        }
        if high & 1 == 1 {
            high -= 1;
            see(high, true);
        }
        low >>= 1;
        high >>= 1;
    }
}
