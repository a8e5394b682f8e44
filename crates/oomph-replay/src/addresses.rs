//! Where segments lie: at the addresses that a recording has, or at made-up ones.
//!
//! Up to PyTorch 2.11 the address decides which of two equal free blocks is taken, so the addresses that the driver
//! returned matter. They are only known for the settings that were recorded. For others they are made up, in one of two
//! orders, with or without those of recorded segments; where the outcome differs between them, it hangs on the driver, and is
//! said to be uncertain.

use hashbrown::HashMap;

/// The source of addresses.
#[derive(Clone, Debug)]
pub struct Addresses {
    recorded: Option<Recorded>,
    order: Order,
    next: u64,
    /// What is left of ranges: (address, size), the newest last.
    tails: Vec<(u64, u64)>,
    /// Addresses to hand out first, by size of segment; the next one last.
    given_back: HashMap<u64, Vec<u64>>,
}

/// How made-up addresses follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// As a driver was seen to do it: ranges of 32 MiB or more, each below the last one; what is left of a range serves
    /// later segments that fit, the newest range first.
    #[default]
    Driver,
    /// Each segment above the last one.
    Up,
    /// Without order, as where the driver fills what other libraries left between them; each number gives another.
    Scattered(u32),
}

#[derive(Clone, Debug, Default)]
struct Recorded {
    segments: Vec<(u64, u64)>,
    maps: Vec<(u64, u64)>,
    next_segment: usize,
    next_map: usize,
    disagreements: u64,
}

/// Like the addresses of a real device: far from 0, and with room on both sides.
const START: u64 = 0x7000_0000_0000;
/// Between segments, so that they never touch.
const GAP: u64 = 2 << 20;
/// What the driver takes addresses in.
const RANGE: u64 = 32 << 20;
/// Places for scattered segments, and how far they are apart: further than any card is large.
const PLACES: u64 = 1 << 18;
const APART: u64 = 1 << 45;
/// So many ranges are looked through for room, the newest.
const TAILS: usize = 256;

impl Addresses {
    pub fn made_up(order: Order) -> Self {
        Self { recorded: None, order, next: START, tails: Vec::new(), given_back: HashMap::new() }
    }

    /// Made-up addresses, but where a recording under other settings has a segment of the same size, its address: the driver
    /// puts the same segments in the same order.
    pub fn borrowed(segments: &[(u64, u64)], order: Order) -> Self {
        let mut addresses = Self::made_up(order);
        for &(address, size) in segments.iter().rev() {
            addresses.given_back.entry(size).or_default().push(address);
        }
        let low = segments.iter().map(|&(address, _)| address).min().unwrap_or(START);
        let high =
            segments.iter().map(|&(address, size)| address.saturating_add(size)).max().unwrap_or(START);
        addresses.next = if order == Order::Up { high } else { low } / RANGE * RANGE;
        if order == Order::Up {
            addresses.next = addresses.next.wrapping_add(RANGE);
        }
        addresses
    }

    /// Recorded ones: (address, size) of segments and of mappings, in order. When they run out or do not agree with
    /// what is asked for, addresses are made up.
    pub fn recorded(segments: Vec<(u64, u64)>, maps: Vec<(u64, u64)>) -> Self {
        let recorded = Recorded { segments, maps, ..Recorded::default() };
        Self { recorded: Some(recorded), ..Self::made_up(Order::Driver) }
    }

    /// Segments and mappings that were asked for where the recording has others, or none.
    pub fn disagreements(&self) -> u64 {
        self.recorded.as_ref().map_or(0, |recorded| recorded.disagreements)
    }

    /// Recorded segments and mappings that were never asked for.
    pub fn left_over(&self) -> u64 {
        self.recorded.as_ref().map_or(0, |recorded| {
            (recorded.segments.len() - recorded.next_segment + recorded.maps.len() - recorded.next_map) as u64
        })
    }

    /// Whether every address so far is what the driver returned.
    pub(crate) fn are_real(&self) -> bool {
        self.recorded.as_ref().is_some_and(|recorded| recorded.disagreements == 0)
    }

    /// An address for a new segment.
    pub(crate) fn segment(&mut self, size: u64) -> u64 {
        if let Some(recorded) = &mut self.recorded {
            let next = recorded.segments.get(recorded.next_segment).copied();
            recorded.next_segment += usize::from(next.is_some());
            match next {
                Some((address, of)) if of == size => return address,
                _ => recorded.disagreements += 1,
            }
        }
        // The driver uses a range again that was given back.
        if let Some(address) = self.given_back.get_mut(&size).and_then(Vec::pop) {
            return address;
        }
        self.make_up(size)
    }

    /// An address for a range that pages will be mapped into.
    pub(crate) fn range(&mut self, size: u64) -> u64 {
        if let Some(recorded) = &self.recorded
            && let Some(&(address, _)) = recorded.maps.get(recorded.next_map)
        {
            return address;
        }
        self.make_up(size)
    }

    fn make_up(&mut self, size: u64) -> u64 {
        if let Order::Scattered(number) = self.order {
            // Odd factors and shifts of what is there visit every place once. `next` counts.
            let seed = u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let mut place = (self.next ^ seed) % PLACES;
            for factor in [seed >> 20 | 1, seed >> 40 | 1] {
                place = (place ^ place >> 9).wrapping_mul(factor) % PLACES;
            }
            self.next = self.next.wrapping_add(1);
            return place * APART + GAP;
        }
        if self.order == Order::Up {
            let address = self.next;
            self.next = address.wrapping_add(size).wrapping_add(GAP);
            return address;
        }
        let newest = self.tails.len().saturating_sub(TAILS);
        let found = self.tails[newest..].iter().rposition(|&(_, left)| left >= size);
        if let Some(at) = found.map(|at| at + newest) {
            let (address, left) = self.tails[at];
            if left == size {
                self.tails.remove(at);
            } else {
                self.tails[at] = (address.wrapping_add(size), left - size);
            }
            return address;
        }
        let range = size.div_ceil(RANGE).saturating_mul(RANGE);
        self.next = self.next.wrapping_sub(range);
        if range > size {
            self.tails.push((self.next.wrapping_add(size), range - size));
        }
        self.next
    }

    pub(crate) fn mapped(&mut self, address: u64, size: u64) {
        if let Some(recorded) = &mut self.recorded {
            let next = recorded.maps.get(recorded.next_map).copied();
            recorded.next_map += usize::from(next.is_some());
            recorded.disagreements += u64::from(next != Some((address, size)));
        }
    }

    /// A segment was given back.
    pub(crate) fn release(&mut self, address: u64, size: u64) {
        if self.recorded.is_none() {
            self.given_back.entry(size).or_default().push(address);
        }
    }
}
