//! Packs buffers with known lifetimes into the least memory.
//!
//! The problem is offline dynamic storage allocation: every buffer has a half-open life `[lower, upper)`
//! and a size, and gets an offset such that no two buffers alive at the same time share an address. The
//! height, the highest address in use, is to be as low as possible; it cannot be lower than the most
//! bytes alive at once.
//!
//! [`pack`] takes the best of best fit and of first fit in many orders, within a time limit: on all traces of real programs
//! tried that is within half a per cent of the bound.
//!
//! The module knows nothing of where the buffers come from: alignment and rounding are the caller's
//! concern (round the sizes up). Given enough time to finish, the result depends on the input only.

mod best_fit;
mod first_fit;
mod occupancy;
mod timeline;

#[cfg(test)]
mod overlap;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use first_fit::RECIPES;
use occupancy::Occupancy;
use timeline::Timeline;

/// A buffer's life and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The first instant at which the buffer is alive.
    pub lower: u64,
    /// The first instant at which it no longer is.
    pub upper: u64,
    /// Bytes it takes while alive.
    pub size: u64,
}

impl Buffer {
    /// Whether the buffer takes space at any time.
    fn takes_space(&self) -> bool {
        self.lower < self.upper && self.size > 0
    }
}

/// Offsets for all buffers.
///
/// Where the sizes add up to more than 64 bits can hold, offsets and height saturate and the placement
/// may overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// One offset per buffer; 0 for those that take no space.
    pub offsets: Vec<u64>,
    /// The highest address in use.
    pub height: u64,
    /// No placement is lower than this.
    pub lower_bound: u64,
    /// Whether the height is known to be the least possible.
    pub optimal: bool,
    /// What found the placement.
    pub method: &'static str,
}

/// The most bytes alive at once: no placement is lower. Saturates.
pub fn lower_bound(buffers: &[Buffer]) -> u64 {
    Timeline::new(buffers).peak()
}

/// Packs the buffers as low as it can, until the height is at most `good_enough` or the time is over. Best fit, which is near-linear, is done in any case.
pub fn pack(buffers: &[Buffer], time: Duration, good_enough: u64) -> Placement {
    // A limit too far off to be represented is no limit.
    let deadline = Instant::now().checked_add(time);
    let timeline = Timeline::new(buffers);
    let lower_bound = timeline.peak();
    let goal = lower_bound.max(good_enough);
    let mut placement =
        Placement { offsets: vec![0; buffers.len()], height: 0, lower_bound, optimal: true, method: "empty" };
    // Stretches of time that share no moment are packed each by itself.
    for part in timeline.split() {
        let (offsets, height, method) = pack_part(&part, goal, deadline);
        for (item, &offset) in part.items.iter().zip(&offsets) {
            placement.offsets[item.buffer as usize] = offset;
        }
        if height > placement.height {
            placement = Placement { height, method, ..placement };
        }
    }
    placement.optimal = placement.height <= lower_bound;
    placement
}

/// The offsets of one stretch, how high they reach, and what found them.
fn pack_part(timeline: &Timeline, goal: u64, deadline: Option<Instant>) -> (Vec<u64>, u64, &'static str) {
    let offsets = best_fit::place(timeline);
    let height = timeline.height(&offsets);
    let mut best = (offsets, height, "best fit");
    if best.1 <= goal {
        return best;
    }
    let crowding = timeline.crowding();
    let mut occupancy = Occupancy::new(timeline.moments);
    for recipe in RECIPES {
        let order = recipe.order(timeline, &crowding);
        let placed = first_fit::place(timeline, &order, best.1.saturating_sub(1), &mut occupancy, deadline);
        if let Some(offsets) = placed {
            let height = timeline.height(&offsets);
            best = (offsets, height, "first fit");
        }
        if best.1 <= goal || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            break;
        }
    }
    best
}
