//! Blocks of host memory and their lives: who was alive at the peak, and how much was asked for at any moment.
//!
//! Boundary: numbers only; what a block is, and which line made it, is for others. Numbers and sizes come from strangers' files: a number that is given out
//! twice ends the first block, one that was never given out is passed over, and sums do not overflow.

use hashbrown::HashMap;
use oomph_trace::{Action, Host, HostEvents, How, StackId};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    /// Bytes; of a sample, what it stands for.
    pub(crate) size: u64,
    /// How it was asked for.
    pub(crate) how: How,
    pub(crate) stack: StackId,
    /// The row of the event that made it.
    pub(crate) born: usize,
    /// The row of the event that ended it; none if it lived to the end.
    pub(crate) freed: Option<usize>,
}

impl Block {
    /// Whether it was alive after so many events.
    pub(crate) fn is_alive(&self, rows: usize) -> bool {
        self.born < rows && self.freed.is_none_or(|freed| freed >= rows)
    }

    /// Whether the kernel counts it as the process's own once it is touched.
    pub(crate) fn is_own(&self) -> bool {
        !matches!(self.how, How::Shared | How::Pinned)
    }
}

/// All blocks of a recording.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blocks {
    /// In order of their births.
    pub(crate) all: Vec<Block>,
    /// The most that was asked for at once.
    pub(crate) most: u64,
    /// How many events had happened then.
    pub(crate) peak: usize,
}

impl Blocks {
    /// Follows the events.
    pub(crate) fn of(events: &HostEvents) -> Self {
        let mut all: Vec<Block> = Vec::new();
        let mut live: HashMap<u64, usize> = HashMap::new();
        let (mut total, mut most, mut peak) = (0u128, 0u128, 0);
        let columns = (events.action.iter().zip(&events.block).zip(&events.size))
            .zip(events.how.iter().zip(&events.stack))
            .enumerate();
        for (row, (((&action, &number), &size), (&how, &stack))) in columns {
            let before = match action {
                Action::Alloc => live.insert(number, all.len()),
                _ => live.remove(&number),
            };
            if let Some(block) = before.and_then(|index| all.get_mut(index)) {
                block.freed = Some(row);
                total -= u128::from(block.size);
            }
            if action == Action::Alloc {
                all.push(Block { size, how, stack, born: row, freed: None });
                total += u128::from(size);
            }
            if total > most {
                (most, peak) = (total, row + 1);
            }
        }
        Self { all, most: u64::try_from(most).unwrap_or(u64::MAX), peak }
    }

    /// What was alive after so many events.
    pub(crate) fn alive(&self, rows: usize) -> impl Iterator<Item = &Block> {
        self.all.iter().filter(move |block| block.is_alive(rows))
    }

    /// Bytes of the process's own that were asked for, after each of these numbers of events, which grow.
    pub(crate) fn own_after(&self, rows: &[usize]) -> Vec<u64> {
        // What is born and what ends between two of them.
        let mut change = vec![0i128; rows.len() + 1];
        let place = |row: usize| rows.partition_point(|&rows| rows <= row);
        for block in self.all.iter().filter(|block| block.is_own()) {
            change[place(block.born)] += i128::from(block.size);
            if let Some(freed) = block.freed {
                change[place(freed)] -= i128::from(block.size);
            }
        }
        change
            .iter()
            .take(rows.len())
            .scan(0i128, |total, change| {
                *total += change;
                Some(u64::try_from(*total).unwrap_or(u64::MAX))
            })
            .collect()
    }
}

/// What one stack asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostStackBytes {
    pub stack: StackId,
    /// Bytes that were held at the peak.
    pub held: u64,
    /// Blocks that were held at the peak and recorded: of small ones, samples.
    pub held_blocks: u64,
    /// Bytes that were recorded in all, given back or not.
    pub asked: u64,
}

/// Host memory by stack, what held most first.
pub fn host_by_stack(host: &Host) -> Vec<HostStackBytes> {
    let blocks = Blocks::of(&host.events);
    let mut stacks: HashMap<StackId, HostStackBytes> = HashMap::new();
    for block in &blocks.all {
        let sum = stacks
            .entry(block.stack)
            .or_insert_with(|| HostStackBytes { stack: block.stack, ..HostStackBytes::default() });
        sum.asked = sum.asked.saturating_add(block.size);
        if block.is_alive(blocks.peak) {
            sum.held = sum.held.saturating_add(block.size);
            sum.held_blocks += 1;
        }
    }
    let mut stacks: Vec<HostStackBytes> = stacks.into_values().collect();
    stacks.sort_by_key(|one| (std::cmp::Reverse((one.held, one.asked)), one.stack));
    stacks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(rows: &[(Action, u64, u64)]) -> HostEvents {
        let mut events = HostEvents::default();
        for &(action, number, size) in rows {
            events.action.push(action);
            events.block.push(number);
            events.size.push(size);
            events.how.push(How::Large);
            events.stack.push(0);
            events.time.push(0);
        }
        events
    }

    #[test]
    fn what_contradicts_itself_is_followed_as_far_as_it_goes() {
        use Action::{Alloc, FreeCompleted as Free};
        let events = events(&[
            (Free, 1, 50),
            (Alloc, 1, 100),
            (Alloc, 1, 70),
            (Alloc, 2, u64::MAX),
            (Alloc, 3, u64::MAX),
            (Free, 2, 1),
            (Free, 2, 1),
        ]);
        let blocks = Blocks::of(&events);
        assert_eq!((blocks.most, blocks.peak), (u64::MAX, 5));
        assert_eq!(blocks.alive(3).map(|block| block.size).collect::<Vec<_>>(), [70]);
        assert_eq!(blocks.own_after(&[0, 2, 3, 7]), [0, 100, 70, u64::MAX]);
    }

    #[test]
    fn stacks_have_what_they_held_at_the_peak_and_what_they_asked_for_in_all() {
        use Action::{Alloc, FreeCompleted as Free};
        let mut events = events(&[
            (Alloc, 1, 10),
            (Alloc, 2, 20),
            (Free, 1, 0),
            (Alloc, 3, 40),
            (Free, 2, 0),
            (Alloc, 4, 5),
        ]);
        events.stack = vec![7, 8, 7, 7, 8, 9];
        let host = Host { events, ..Host::default() };
        let row = |stack, held, held_blocks, asked| HostStackBytes { stack, held, held_blocks, asked };
        assert_eq!(host_by_stack(&host), [row(7, 40, 1, 50), row(8, 20, 1, 20), row(9, 0, 0, 5)]);
    }
}
