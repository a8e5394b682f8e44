//! Packs buffers with known lifetimes into the least memory.
//!
//! The problem is offline dynamic storage allocation: every buffer has a half-open life `[lower, upper)`
//! and a size, and gets an offset such that no two buffers alive at the same time share an address. The
//! height, the highest address in use, is to be as low as possible; it cannot be lower than the most
//! bytes alive at once.
//!
//! [`pack`] takes the best of several methods within a time limit: best fit and first fit in many orders
//! ([`best_fit`], [`first_fit_by_size`] are the floors), squeaky-wheel optimisation of the order, and a
//! depth-first search over canonical placements for hard instances of hundreds of buffers.
//!
//! The module knows nothing of where the buffers come from: alignment and rounding are the caller's
//! concern (round the sizes up). Given enough time to finish, the result depends on the input only.

mod best_fit;
mod canonical_search;
mod first_fit;
mod occupancy;
mod overlap;
mod part;
mod random;
mod restarts;
mod squeaky_wheel;
mod timeline;
mod watch;

#[cfg(test)]
mod tests;

use std::time::Duration;

pub use overlap::overlaps;

use occupancy::Occupancy;
use part::Part;
use timeline::Timeline;
use watch::Watch;

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

/// When [`pack`] is to stop.
pub struct Limits<'a> {
    /// Time to spend; the floor is computed in any case.
    pub time: Duration,
    /// Stop as soon as a placement this low is found.
    pub good_enough: u64,
    /// Called now and then with the best height so far; returns false to stop.
    pub progress: &'a mut dyn FnMut(u64) -> bool,
}

/// Offsets for all buffers.
///
/// Where the sizes add up to more than 64 bits can hold, offsets and height saturate and the placement
/// may overlap; [`overlaps`] tells.
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

/// First fit in order of descending size: simple and usually good.
pub fn first_fit_by_size(buffers: &[Buffer]) -> Placement {
    let timeline = Timeline::new(buffers);
    let mut occupancy = Occupancy::new(timeline.moments);
    let order = first_fit::by_size(&timeline);
    let offsets = first_fit::place(&timeline, &order, u64::MAX, &mut occupancy, &mut Watch::unlimited())
        .unwrap_or_default();
    floor(buffers, &timeline, &offsets, "first fit by size")
}

/// Best fit in order of birth: near-linear in any case.
pub fn best_fit(buffers: &[Buffer]) -> Placement {
    let timeline = Timeline::new(buffers);
    let offsets = best_fit::place(&timeline);
    floor(buffers, &timeline, &offsets, "best fit")
}

fn floor(buffers: &[Buffer], timeline: &Timeline, offsets: &[u64], method: &'static str) -> Placement {
    let height = timeline.height(offsets);
    let lower_bound = timeline.peak();
    let mut placement = Placement {
        offsets: vec![0; buffers.len()],
        height,
        lower_bound,
        optimal: height == lower_bound,
        method,
    };
    placement.fill_in(timeline, offsets);
    placement
}

impl Placement {
    fn fill_in(&mut self, timeline: &Timeline, offsets: &[u64]) {
        for (item, &offset) in timeline.items.iter().zip(offsets) {
            self.offsets[item.buffer as usize] = offset;
        }
    }
}

/// Packs the buffers as low as it can within the limits.
pub fn pack(buffers: &[Buffer], limits: Limits) -> Placement {
    let mut watch = Watch::new(limits.time, limits.progress);
    let timeline = Timeline::new(buffers);
    let lower_bound = timeline.peak();
    let goal = lower_bound.max(limits.good_enough);
    let mut parts: Vec<Part> = timeline.split().into_iter().map(Part::new).collect();
    watch.note_height(highest(&parts).map_or(0, |part| part.height));

    for part in &mut parts {
        if part.height > goal && !watch.is_over() {
            part.try_orders(goal, &mut watch);
        }
    }
    // Only the highest part matters; as it comes down others take its place.
    while let Some(part) = highest(&mut parts)
        && part.height > goal.max(part.bound)
        && !watch.is_over()
    {
        part.improve(goal, &mut watch);
        watch.note_height(highest(&parts).map_or(0, |part| part.height));
    }
    assemble(buffers.len(), &parts, lower_bound)
}

/// The first of the parts that reach highest.
fn highest<P: std::borrow::Borrow<Part>>(parts: impl IntoIterator<Item = P>) -> Option<P> {
    parts.into_iter().reduce(|a, b| if b.borrow().height > a.borrow().height { b } else { a })
}

fn assemble(buffers: usize, parts: &[Part], lower_bound: u64) -> Placement {
    let mut placement =
        Placement { offsets: vec![0; buffers], height: 0, lower_bound, optimal: true, method: "empty" };
    for part in parts {
        placement.fill_in(&part.timeline, &part.offsets);
        placement.lower_bound = placement.lower_bound.max(part.bound);
    }
    if let Some(part) = highest(parts) {
        placement.height = part.height;
        placement.method = part.method;
        placement.optimal = part.height <= placement.lower_bound;
    }
    placement
}
