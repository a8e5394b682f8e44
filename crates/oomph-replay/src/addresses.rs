//! Where segments lie: at the addresses that a recording has, or at made-up ones.
//!
//! Up to PyTorch 2.11 the address decides which of two equal free blocks is taken, so the addresses that the driver
//! returned matter. They are only known for the settings that were recorded. For others they are made up, in one of two
//! orders; where the outcome differs between them, it hangs on the driver, and is said to be uncertain.

use hashbrown::HashMap;

/// The source of addresses.
#[derive(Clone, Debug)]
pub struct Addresses {
    recorded: Option<Recorded>,
    order: Order,
    next: u64,
    given_back: HashMap<u64, Vec<u64>>,
}

/// In which direction made-up addresses go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// A later segment lies higher.
    #[default]
    Up,
    /// A later segment lies lower.
    Down,
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
/// Between ranges, so that they never touch.
const GAP: u64 = 2 << 20;

impl Addresses {
    /// Made-up addresses.
    pub fn made_up(order: Order) -> Self {
        Self { recorded: None, order, next: START, given_back: HashMap::new() }
    }

    /// Recorded ones: (address, size) of segments and of mappings, in order. When they run out or do not agree with
    /// what is asked for, addresses are made up.
    pub fn recorded(segments: Vec<(u64, u64)>, maps: Vec<(u64, u64)>) -> Self {
        let recorded = Recorded { segments, maps, ..Recorded::default() };
        Self { recorded: Some(recorded), ..Self::made_up(Order::Up) }
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
        match self.order {
            Order::Up => {
                let address = self.next;
                self.next = self.next.wrapping_add(size).wrapping_add(GAP);
                address
            }
            Order::Down => {
                self.next = self.next.wrapping_sub(size).wrapping_sub(GAP);
                self.next
            }
        }
    }

    /// Pages were mapped.
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
