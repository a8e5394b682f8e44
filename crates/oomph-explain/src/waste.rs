//! Where reserved bytes sit that hold nothing the program asked for.

use hashbrown::HashMap;
use oomph_settings::rounding::round_size;
use oomph_trace::{DEFAULT_POOL, History, Moment, PoolId, Reserved, Settings, StackId};

/// Reserved bytes at one moment, all accounted for:
/// `requested + rounding + remainders + pending + holes + cached + other_streams + private_pools = reserved`.
#[derive(Clone, Debug, Default)]
pub struct Waste {
    /// Taken from the device.
    pub reserved: u64,
    /// In blocks that the program holds.
    pub allocated: u64,
    /// Asked for by the program in those blocks.
    pub requested: u64,
    /// Lost by rounding requests up.
    pub rounding: u64,
    /// Left with a block because the rest was too small to be split off.
    pub remainders: u64,
    /// Let go by the program, still held until another stream has passed.
    pub pending: u64,
    /// Free, in segments that other blocks keep from being given back.
    pub holes: u64,
    /// Free, in segments that are free as a whole: `empty_cache` would give them back.
    pub cached: u64,
    /// Free, but of another stream than the main one.
    pub other_streams: u64,
    /// Free, but of a private pool.
    pub private_pools: u64,
    /// The largest free piece that the main stream can use.
    pub largest_free: u64,
    /// All free pieces that the main stream can use.
    pub usable_free: u64,
    /// The largest free piece of another stream, and of a private pool.
    pub largest_elsewhere: u64,
    /// Segments with the most bytes in holes, largest first.
    pub worst: Vec<FragmentedSegment>,
}

/// A segment that cannot be given back because of what still lives in it.
#[derive(Clone, Debug)]
pub struct FragmentedSegment {
    pub address: u64,
    /// Its bytes.
    pub size: u64,
    /// Bytes in holes.
    pub holes: u64,
    pub largest_hole: u64,
    /// Bytes that live in it, by who allocated them.
    pub held_by: Vec<(StackId, u64)>,
}

/// How many fragmented segments are kept.
const WORST: usize = 8;

/// Whom a free block would have to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// Index into the device's streams.
    pub stream: u32,
    pub pool: PoolId,
    /// Whether the request is at most 1 MiB; `None` for both.
    pub small: Option<bool>,
}

impl Waste {
    /// Accounts for everything reserved at `moment`, as seen by the stream with the most memory.
    pub fn at(history: &History, settings: &Settings, moment: Moment) -> Self {
        let stream = main_stream(&history.reserved_at(moment));
        Self::seen_by(history, settings, moment, Asker { stream, pool: DEFAULT_POOL, small: None })
    }

    /// The same, as seen by who asks for memory.
    pub fn seen_by(history: &History, settings: &Settings, moment: Moment, asker: Asker) -> Self {
        let all = &history.allocations;
        let mut waste = Self::default();
        // (address, size, allocation) of everything that lies in a segment, by address.
        let mut occupied: Vec<(u64, u64, Option<u32>)> = Vec::new();
        for index in history.alive_at(moment) {
            let i = index as usize;
            let (requested, size) = (all.requested(i), all.size(i));
            let rounded = round_size(requested, &settings.roundup_power2_divisions).min(size);
            waste.allocated += size;
            waste.requested += requested.min(size);
            waste.rounding += rounded.saturating_sub(requested);
            waste.remainders += size - rounded;
            occupied.push((all.address(i), size, Some(index)));
        }
        for index in history.pending_at(moment) {
            let i = index as usize;
            waste.pending += all.size(i);
            occupied.push((all.address(i), all.size(i), None));
        }
        occupied.sort_unstable();
        let mut next = 0;
        for range in history.reserved_at(moment) {
            while occupied.get(next).is_some_and(|&(address, ..)| address < range.address) {
                next += 1;
            }
            let first = next;
            while occupied.get(next).is_some_and(|&(address, ..)| address < range.end()) {
                next += 1;
            }
            waste.add_segment(history, &range, &occupied[first..next], asker);
        }
        waste.worst.sort_by_key(|segment| std::cmp::Reverse(segment.holes));
        waste.worst.truncate(WORST);
        waste
    }

    fn add_segment(
        &mut self,
        history: &History,
        range: &Reserved,
        occupied: &[(u64, u64, Option<u32>)],
        asker: Asker,
    ) {
        self.reserved += range.size;
        let (mut position, mut free, mut largest) = (range.address, 0u64, 0u64);
        let mut hole = |from: u64, to: u64| {
            let size = to.saturating_sub(from);
            free += size;
            largest = largest.max(size);
        };
        for &(address, size, _) in occupied {
            hole(position, address);
            position = position.max(address.saturating_add(size));
        }
        hole(position, range.end());
        if range.pool != asker.pool {
            self.private_pools += free;
            self.largest_elsewhere = self.largest_elsewhere.max(largest);
        } else if range.stream != asker.stream {
            self.other_streams += free;
            self.largest_elsewhere = self.largest_elsewhere.max(largest);
        } else {
            if asker.small.is_none_or(|small| small == range.small) {
                self.largest_free = self.largest_free.max(largest);
                self.usable_free += free;
            }
            if occupied.is_empty() {
                self.cached += free;
            } else if free > 0 {
                self.holes += free;
                self.worst.push(FragmentedSegment {
                    address: range.address,
                    size: range.size,
                    holes: free,
                    largest_hole: largest,
                    held_by: holders(history, occupied),
                });
            }
        }
    }
}

/// The stream with the most memory: free memory is measured from its view.
pub fn main_stream(reserved: &[Reserved]) -> u32 {
    let mut by_stream: HashMap<u32, u64> = HashMap::new();
    for range in reserved.iter().filter(|range| range.pool == DEFAULT_POOL) {
        *by_stream.entry(range.stream).or_default() += range.size;
    }
    by_stream.into_iter().max_by_key(|&(stream, bytes)| (bytes, stream)).map_or(0, |(stream, _)| stream)
}

fn holders(history: &History, occupied: &[(u64, u64, Option<u32>)]) -> Vec<(StackId, u64)> {
    let mut bytes: HashMap<StackId, u64> = HashMap::new();
    for &(_, size, index) in occupied {
        if let Some(index) = index {
            *bytes.entry(history.allocations.stack(index as usize)).or_default() += size;
        }
    }
    let mut holders: Vec<_> = bytes.into_iter().collect();
    holders.sort_by_key(|&(stack, bytes)| (std::cmp::Reverse(bytes), stack));
    holders.truncate(3);
    holders
}
