//! First fit: takes the items in some order and puts each at the lowest address that is free for its
//! whole life. All depends on the order.

use std::cmp::Reverse;
use std::time::Instant;

use super::occupancy::Occupancy;
use super::timeline::{Item, Timeline};

/// An order in which to take the items.
pub(super) type Order = Vec<u32>;

/// How many placements go by between two looks at the clock.
const CLOCK_STRIDE: usize = 256;

/// Places the items in `order`. Gives up when the time is over or when an item would reach above `ceiling`.
pub(super) fn place(
    timeline: &Timeline,
    order: &[u32],
    ceiling: u64,
    occupancy: &mut Occupancy,
    deadline: Option<Instant>,
) -> Option<Vec<u64>> {
    occupancy.clear();
    let mut offsets = vec![0; timeline.items.len()];
    for (placed, &i) in order.iter().enumerate() {
        if placed % CLOCK_STRIDE == 0 && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return None;
        }
        let item = &timeline.items[i as usize];
        let offset = occupancy.lowest_gap(item.span(), item.size, 0);
        let end = offset.saturating_add(item.size);
        if end > ceiling {
            return None;
        }
        occupancy.insert(item.span(), offset, end);
        offsets[i as usize] = offset;
    }
    Some(offsets)
}

/// Orders items by descending key; ties keep birth order.
fn order_by<K: Ord>(timeline: &Timeline, mut key: impl FnMut(usize, &Item) -> K) -> Order {
    let mut order: Order = (0..timeline.items.len() as u32).collect();
    order.sort_by_cached_key(|&i| Reverse(key(i as usize, &timeline.items[i as usize])));
    order
}

/// What to order items by, descending.
#[derive(Clone, Copy)]
enum Key {
    SizeThenLong,
    SizeThenShort,
    SizeThenEarly,
    SizeThenLate,
    Lifetime,
    Area,
}

impl Key {
    fn of(self, item: &Item) -> (u128, u64) {
        let size = u128::from(item.size);
        match self {
            Key::SizeThenLong => (size, u64::from(item.lifetime())),
            Key::SizeThenShort => (size, u64::from(u32::MAX - item.lifetime())),
            Key::SizeThenEarly => (size, u64::from(u32::MAX - item.first)),
            Key::SizeThenLate => (size, u64::from(item.first)),
            Key::Lifetime => (u128::from(item.lifetime()), item.size),
            Key::Area => (item.area(), item.size),
        }
    }
}

/// A way to order items: those alive when memory is nearly as full as it gets come first.
///
/// They have to lie without gaps at that moment, whereas the others have room to spare.
#[derive(Clone, Copy)]
pub(super) struct Recipe {
    /// Items that see a load of at least this many hundredths of the peak come first.
    crest_percent: u8,
    crest: Key,
    rest: Key,
}

const fn crest_first(crest_percent: u8, crest: Key, rest: Key) -> Recipe {
    Recipe { crest_percent, crest, rest }
}

/// The orders worth trying, the most often successful first. Between them they reach within half a per
/// cent of the load on all traces of real programs tried.
pub(super) const RECIPES: [Recipe; 14] = [
    crest_first(0, Key::SizeThenLong, Key::SizeThenLong),
    crest_first(100, Key::Lifetime, Key::SizeThenLong),
    crest_first(100, Key::Lifetime, Key::SizeThenShort),
    crest_first(100, Key::Lifetime, Key::SizeThenEarly),
    crest_first(0, Key::SizeThenEarly, Key::SizeThenEarly),
    crest_first(99, Key::Lifetime, Key::SizeThenLong),
    crest_first(100, Key::SizeThenLong, Key::Area),
    crest_first(100, Key::Area, Key::SizeThenLong),
    crest_first(100, Key::Lifetime, Key::SizeThenLate),
    crest_first(90, Key::Area, Key::Area),
    crest_first(90, Key::SizeThenLong, Key::SizeThenLong),
    crest_first(97, Key::Lifetime, Key::Lifetime),
    crest_first(0, Key::Area, Key::Area),
    crest_first(0, Key::Lifetime, Key::Lifetime),
];

impl Recipe {
    /// `crowding` is the most bytes alive during each item's life.
    pub(super) fn order(self, timeline: &Timeline, crowding: &[u64]) -> Order {
        let crest = u128::from(timeline.peak()) * u128::from(self.crest_percent);
        order_by(timeline, |i, item| {
            let in_crest = u128::from(crowding[i]) * 100 >= crest;
            (in_crest, if in_crest { self.crest.of(item) } else { self.rest.of(item) })
        })
    }
}
