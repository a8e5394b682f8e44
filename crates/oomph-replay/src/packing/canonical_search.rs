//! Depth-first search for a placement below a given height, for hard instances of up to a few thousand
//! items.
//!
//! Any placement can be let sink until every item rests on another or on the ground; taken in order of
//! (offset, rank) its items then each land on the skyline of those before. So it is enough to search over
//! sequences in which every next item goes on the skyline, at or above the one before. Much can be cut:
//!
//! - An item that was passed over at its resting place can only be placed again on top of something new.
//! - When some item would fit entirely below the next offset, that hole should have been used.
//! - At every moment, the items still to come must fit between the lowest offsets they can have and the
//!   capacity (a one-machine schedule with release times).
//! - Where the remaining items fall apart in time, each part is searched on its own.
//! - When a branch fails for reasons that do not include the last decision, the other choices at that
//!   level are skipped. The reasons are an approximation, so this can be switched off for proofs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use super::timeline::{Item, Timeline};

/// What a search came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Offsets in item order.
    Found(Vec<u64>),
    /// No placement exists (only said by an exhaustive search).
    Impossible,
    /// The budget ran out, or the shortcuts taken leave the question open.
    Unknown,
}

/// How to search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    pub capacity: u64,
    pub nodes: u64,
    /// Take no shortcut that could miss a placement.
    pub exhaustive: bool,
    pub deadline: Option<Instant>,
}

const LEVEL_WORDS: usize = 8;
const LEVELS: usize = 64 * LEVEL_WORDS;

/// A set of decision levels; levels beyond its capacity share places.
#[derive(Clone, Copy, Debug, Default)]
struct LevelSet([u64; LEVEL_WORDS]);

impl LevelSet {
    fn insert(&mut self, level: usize) {
        self.0[level % LEVELS / 64] |= 1 << (level % 64);
    }

    fn remove(&mut self, level: usize) {
        self.0[level % LEVELS / 64] &= !(1 << (level % 64));
    }

    fn contains(&self, level: usize) -> bool {
        self.0[level % LEVELS / 64] >> (level % 64) & 1 == 1
    }

    fn unite(&mut self, other: &LevelSet) {
        for (word, more) in self.0.iter_mut().zip(&other.0) {
            *word |= more;
        }
    }
}

/// One change to take back.
enum Undo {
    Placed(u32),
    Floor(u32, u64, LevelSet),
    PassedOver(u32, u32),
}

enum Verdict {
    Solved,
    Failed(LevelSet),
    OutOfBudget,
}

/// The last decision: items at or before it in (offset, rank) can no longer be placed there.
#[derive(Clone, Copy)]
struct Last {
    offset: u64,
    rank: u32,
}

/// Items are known by their rank: their place in the order given by the caller.
struct Search {
    items: Vec<Item>,
    neighbours: Vec<Vec<u32>>,
    effort: Effort,
    nodes: u64,
    placed: Vec<bool>,
    placed_count: usize,
    /// Bytes still to be placed at every moment.
    remaining: Vec<u64>,
    offsets: Vec<u64>,
    /// The lowest offset on the skyline, and the levels that made it so.
    floor: Vec<u64>,
    floor_reasons: Vec<LevelSet>,
    /// The level at which an item was last passed over.
    passed_over_at: Vec<u32>,
    trail: Vec<Undo>,
    /// Scratch: the lowest offset each item can still have.
    low: Vec<u64>,
    by_low: Vec<(u64, u32)>,
    waiting: Vec<u32>,
    by_lift: BinaryHeap<Reverse<(u64, u32)>>,
    machine: Vec<u64>,
}

/// How many nodes go by between two looks at the clock.
const CLOCK_STRIDE: u64 = 64;
/// Generous room for the frames of one level of the recursion, in bytes.
const STACK_PER_LEVEL: usize = 4096;
const STACK_BASE: usize = 1 << 20;

/// Searches for a placement no higher than the capacity, preferring items early in `order` where they
/// compete for a place. Needs sums of sizes to fit in 64 bits.
pub(super) fn search(timeline: &Timeline, order: &[u32], effort: Effort) -> Outcome {
    // The recursion is as deep as there are items: it gets a stack of its own.
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .stack_size(STACK_BASE + STACK_PER_LEVEL * order.len())
            .spawn_scoped(scope, || search_here(timeline, order, effort))
            .ok()
            .and_then(|search| search.join().ok())
            .unwrap_or(Outcome::Unknown)
    })
}

fn search_here(timeline: &Timeline, order: &[u32], effort: Effort) -> Outcome {
    let mut search = Search::new(timeline, order, effort);
    let mut ranks: Vec<u32> = (0..order.len() as u32).collect();
    ranks.sort_by_key(|&r| search.items[r as usize].first);
    match search.solve_parts(&ranks, Last { offset: 0, rank: 0 }) {
        Verdict::Solved => {
            let mut offsets = vec![0; order.len()];
            for (rank, &i) in order.iter().enumerate() {
                offsets[i as usize] = search.offsets[rank];
            }
            Outcome::Found(offsets)
        }
        Verdict::Failed(_) if effort.exhaustive => Outcome::Impossible,
        Verdict::Failed(_) | Verdict::OutOfBudget => Outcome::Unknown,
    }
}

impl Search {
    fn new(timeline: &Timeline, order: &[u32], effort: Effort) -> Self {
        let items: Vec<Item> = order.iter().map(|&i| timeline.items[i as usize]).collect();
        let count = items.len();
        let neighbours = (0..count)
            .map(|i| {
                (0..count as u32).filter(|&j| j as usize != i && items[i].meets(&items[j as usize])).collect()
            })
            .collect();
        Search {
            items,
            neighbours,
            effort,
            nodes: 0,
            placed: vec![false; count],
            placed_count: 0,
            remaining: timeline.load.clone(),
            offsets: vec![0; count],
            floor: vec![0; count],
            floor_reasons: vec![LevelSet::default(); count],
            passed_over_at: vec![0; count],
            trail: Vec::new(),
            low: vec![0; count],
            by_low: Vec::with_capacity(count),
            waiting: Vec::with_capacity(count),
            by_lift: BinaryHeap::new(),
            machine: vec![0; timeline.moments],
        }
    }

    /// Solves each part of `ranks` (sorted by birth) that shares no moment with the others.
    fn solve_parts(&mut self, ranks: &[u32], last: Last) -> Verdict {
        let mut bounds = vec![0];
        let mut end = 0;
        for (k, &r) in ranks.iter().enumerate() {
            let item = &self.items[r as usize];
            if k > 0 && item.first >= end {
                bounds.push(k);
            }
            end = end.max(item.end);
        }
        if bounds.len() == 1 {
            return self.solve(ranks, last);
        }
        bounds.push(ranks.len());
        let mut parts: Vec<&[u32]> = bounds.windows(2).map(|pair| &ranks[pair[0]..pair[1]]).collect();
        // A small part is cheap to refute.
        parts.sort_by_key(|part| part.len());
        let mark = self.trail.len();
        for part in parts {
            match self.solve(part, last) {
                Verdict::Solved => {}
                failure => {
                    self.undo_to(mark);
                    return failure;
                }
            }
        }
        Verdict::Solved
    }

    fn solve(&mut self, ranks: &[u32], last: Last) -> Verdict {
        if ranks.is_empty() {
            return Verdict::Solved;
        }
        if self.is_out_of_budget() {
            return Verdict::OutOfBudget;
        }
        let lowest_top =
            ranks.iter().map(|&r| self.floor[r as usize] + self.items[r as usize].size).min().unwrap_or(0);
        if let Err(conflict) = self.find_lows(ranks, last) {
            return Verdict::Failed(conflict);
        }
        if let Some(moment) = self.overfull_moment(ranks) {
            return Verdict::Failed(self.reasons_at(moment, ranks, last));
        }
        let candidates: Vec<u32> = self
            .by_low
            .iter()
            .filter(|&&(low, r)| low < lowest_top && !self.is_passed_over(r, last))
            .map(|&(_, r)| r)
            .collect();
        let level = self.placed_count;
        let mut conflict = LevelSet::default();
        let mark = self.trail.len();
        let mut rest = Vec::with_capacity(ranks.len());
        for r in candidates {
            let offset = self.floor[r as usize];
            if !self.leaves_room_above(r, offset) {
                conflict.unite(&self.floor_reasons[r as usize]);
                self.pass_over(r, level);
                continue;
            }
            let before = self.trail.len();
            self.put(r, offset, level);
            rest.clear();
            rest.extend(ranks.iter().copied().filter(|&other| other != r));
            match self.solve_parts(&rest, Last { offset, rank: r }) {
                Verdict::Solved => return Verdict::Solved,
                Verdict::OutOfBudget => return Verdict::OutOfBudget,
                Verdict::Failed(reasons) => {
                    self.undo_to(before);
                    if !self.effort.exhaustive && !reasons.contains(level) {
                        self.undo_to(mark);
                        return Verdict::Failed(reasons);
                    }
                    conflict.unite(&reasons);
                    self.pass_over(r, level);
                }
            }
        }
        self.undo_to(mark);
        conflict.remove(level);
        Verdict::Failed(conflict)
    }

    fn is_out_of_budget(&mut self) -> bool {
        self.nodes += 1;
        self.nodes > self.effort.nodes
            || self.nodes.is_multiple_of(CLOCK_STRIDE)
                && self.effort.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    fn is_passed_over(&self, r: u32, last: Last) -> bool {
        (self.floor[r as usize], r) < (last.offset, last.rank)
    }

    /// A cheap test that spares looking further at most hopeless choices: all that is still to come during
    /// the item's life goes on top of it.
    fn leaves_room_above(&self, r: u32, offset: u64) -> bool {
        let room = self.effort.capacity.saturating_sub(offset);
        self.remaining[self.items[r as usize].span()].iter().all(|&bytes| bytes <= room)
    }

    fn pass_over(&mut self, r: u32, level: usize) {
        self.trail.push(Undo::PassedOver(r, self.passed_over_at[r as usize]));
        self.passed_over_at[r as usize] = level as u32;
    }

    fn put(&mut self, r: u32, offset: u64, level: usize) {
        self.placed[r as usize] = true;
        self.placed_count += 1;
        self.offsets[r as usize] = offset;
        self.trail.push(Undo::Placed(r));
        let item = self.items[r as usize];
        self.remaining[item.span()].iter_mut().for_each(|bytes| *bytes -= item.size);
        let top = offset + item.size;
        let mut reasons = self.floor_reasons[r as usize];
        reasons.insert(level);
        for &n in &self.neighbours[r as usize] {
            let n = n as usize;
            if !self.placed[n] && self.floor[n] < top {
                self.trail.push(Undo::Floor(n as u32, self.floor[n], self.floor_reasons[n]));
                self.floor[n] = top;
                self.floor_reasons[n] = reasons;
            }
        }
    }

    fn undo_to(&mut self, mark: usize) {
        while self.trail.len() > mark {
            match self.trail.pop() {
                Some(Undo::Placed(r)) => {
                    self.placed[r as usize] = false;
                    self.placed_count -= 1;
                    let item = self.items[r as usize];
                    self.remaining[item.span()].iter_mut().for_each(|bytes| *bytes += item.size);
                }
                Some(Undo::Floor(r, floor, reasons)) => {
                    self.floor[r as usize] = floor;
                    self.floor_reasons[r as usize] = reasons;
                }
                Some(Undo::PassedOver(r, level)) => self.passed_over_at[r as usize] = level,
                None => return,
            }
        }
    }

    /// Finds the lowest offset every item can still have, sorted into `by_low`. One that was passed over
    /// has to rest on a neighbour yet to be placed; fails when there is an item that cannot.
    fn find_lows(&mut self, ranks: &[u32], last: Last) -> Result<(), LevelSet> {
        self.by_low.clear();
        self.waiting.clear();
        for &r in ranks {
            if self.is_passed_over(r, last) {
                self.low[r as usize] = u64::MAX;
                self.waiting.push(r);
            } else {
                self.low[r as usize] = self.floor[r as usize];
                self.by_low.push((self.floor[r as usize], r));
            }
        }
        if !self.waiting.is_empty() && !self.lift_waiting() {
            return Err(self.reasons_of(ranks.iter().copied(), last));
        }
        self.by_low.sort_unstable();
        Ok(())
    }

    /// Finds the lows of the waiting items: shortest paths over neighbours, from those not waiting. False
    /// when there is an item that nothing leads to.
    fn lift_waiting(&mut self) -> bool {
        let mut highest = 0;
        for &r in &self.waiting {
            let lift = self.neighbours[r as usize]
                .iter()
                .filter(|&&n| !self.placed[n as usize])
                .map(|&n| self.low[n as usize].saturating_add(self.items[n as usize].size))
                .min()
                .unwrap_or(u64::MAX);
            self.low[r as usize] = lift;
            highest = highest.max(lift);
        }
        self.by_lift.clear();
        for &r in &self.waiting {
            let low = self.low[r as usize];
            // Only a path through this item that undercuts the highest can change anything.
            if low.saturating_add(self.items[r as usize].size) < highest {
                self.by_lift.push(Reverse((low, r)));
            }
        }
        while let Some(Reverse((lift, r))) = self.by_lift.pop() {
            let top = lift + self.items[r as usize].size;
            if lift > self.low[r as usize] || top >= highest {
                continue;
            }
            for &w in &self.waiting {
                let (item, low) = (&self.items[w as usize], &mut self.low[w as usize]);
                if top < *low && item.meets(&self.items[r as usize]) {
                    *low = top;
                    self.by_lift.push(Reverse((top, w)));
                }
            }
        }
        self.by_low.extend(self.waiting.iter().map(|&r| (self.low[r as usize], r)));
        self.waiting.iter().all(|&r| self.low[r as usize] < u64::MAX)
    }

    /// A moment at which the remaining items cannot fit below the capacity.
    fn overfull_moment(&mut self, ranks: &[u32]) -> Option<usize> {
        let first = self.items[ranks[0] as usize].first as usize;
        let end = ranks.iter().map(|&r| self.items[r as usize].end).max().unwrap_or(0) as usize;
        self.machine[first..end].fill(0);
        for &(low, r) in &self.by_low {
            let item = &self.items[r as usize];
            for busy_until in &mut self.machine[item.first as usize..item.end as usize] {
                *busy_until = (*busy_until).max(low) + item.size;
            }
        }
        let capacity = self.effort.capacity;
        self.machine[first..end].iter().position(|&t| t > capacity).map(|at| first + at)
    }

    fn reasons_at(&self, moment: usize, ranks: &[u32], last: Last) -> LevelSet {
        let alive = ranks.iter().copied().filter(|&r| self.items[r as usize].span().contains(&moment));
        self.reasons_of(alive, last)
    }

    fn reasons_of(&self, ranks: impl Iterator<Item = u32>, last: Last) -> LevelSet {
        let mut reasons = LevelSet::default();
        for r in ranks {
            reasons.unite(&self.floor_reasons[r as usize]);
            if self.is_passed_over(r, last) {
                reasons.insert(self.passed_over_at[r as usize] as usize);
            }
        }
        reasons
    }
}
