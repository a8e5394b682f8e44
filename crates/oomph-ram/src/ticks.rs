//! Events between two writes, and which of them are worth a row.
//!
//! A block that is taken and given back within a round leaves no trace in what is live at its end. It is written only if it was live at the moment of the round at which most was:
//! then the highest total of the file is exactly the highest total there was, and what each line held at that moment is exact too, however many blocks come and go.
//!
//! A block that takes the place of one of the same line and size, as in a cache, changes nothing by line: it gets the number that the other had in the file, and neither is written.

use crate::layout::{Action, How};
use crate::live::Block;
use std::collections::HashMap;

/// Rows that wait at most.
pub const MOST: usize = 16 << 10;

/// One event.
#[derive(Clone, Copy)]
pub struct Row {
    pub action: Action,
    /// The block's number.
    pub number: u64,
    /// Where it is.
    pub address: u64,
    pub size: u64,
    pub kind: u8,
    pub stack: u32,
    pub time: i64,
    /// Of a free: the row of the block's beginning, if that is one of these.
    began: Option<u32>,
}

/// Events since the last write.
pub struct Round {
    rows: Vec<Row>,
    /// Which one this is.
    number: u32,
    /// Bytes that are live, and those that were when it began.
    total: i64,
    at_first: i64,
}

impl Round {
    pub fn new() -> Self {
        Self { rows: Vec::with_capacity(MOST), number: 0, total: 0, at_first: 0 }
    }

    /// Where the next row will be.
    pub fn next(&self) -> (u32, u32) {
        (self.number, self.rows.len() as u32)
    }

    pub fn is_full(&self) -> bool {
        self.rows.len() >= MOST
    }

    /// By how much more is live than when the round began.
    pub fn grown(&self) -> i64 {
        self.total - self.at_first
    }

    /// Drops what waits, and what it took.
    pub fn forget(&mut self) {
        self.rows = Vec::new();
    }

    pub fn total(&self) -> i64 {
        self.total
    }

    pub fn begin(&mut self, address: u64, block: &Block, time: i64) {
        self.total += block.size as i64;
        self.rows.push(Row { began: None, ..row(Action::Alloc, address, block, time) });
    }

    pub fn end(&mut self, address: u64, block: &Block, time: i64) {
        self.total -= block.size as i64;
        let began = (block.row.0 == self.number).then_some(block.row.1);
        self.rows.push(Row { began, ..row(Action::FreeCompleted, address, block, time) });
    }

    /// The rows that are worth writing, in order, and blocks that have another number from now on; the next round begins.
    pub fn finish(&mut self) -> (Vec<Row>, Vec<(u64, u64)>) {
        let (mut total, mut most, mut at_most) = (self.at_first, i64::MIN, 0);
        for (place, row) in self.rows.iter().enumerate() {
            match row.action {
                Action::Alloc => total += row.size as i64,
                _ => total -= row.size as i64,
            }
            if total > most {
                (most, at_most) = (total, place);
            }
        }
        let mut is_left_out = vec![false; self.rows.len()];
        let mut leave_out = |place: usize| {
            if let Some(left_out) = is_left_out.get_mut(place) {
                *left_out = true;
            }
        };
        let mut ended: Vec<usize> = Vec::new();
        for (place, row) in self.rows.iter().enumerate() {
            let Some(began) = row.began.map(|began| began as usize) else { continue };
            ended.push(began);
            if place <= at_most || began > at_most {
                leave_out(place);
                leave_out(began);
            }
        }
        ended.sort_unstable();
        let mut renumbered = Vec::new();
        // Blocks that stay, by line and size, oldest first. What has begun before the most and what takes its place after it would change what was held then.
        let mut staying: HashMap<(u64, u8, u32), Vec<usize>> = HashMap::new();
        for (place, row) in self.rows.iter().enumerate() {
            if place == at_most + 1 {
                staying.clear();
            }
            let is_block =
                How::from_number(row.kind).is_some_and(|how| !matches!(how, How::Mapped | How::Shared));
            let key = (row.size, row.kind, row.stack);
            match row.action {
                _ if !is_block => {}
                Action::Alloc if ended.binary_search(&place).is_err() => {
                    staying.entry(key).or_default().push(place)
                }
                Action::Alloc => {}
                // First the new one came, then the other went: in between less is said than there was, and the most is not there.
                _ if row.began.is_none() => {
                    let Some(other) = staying.get_mut(&key).and_then(Vec::pop) else { continue };
                    leave_out(place);
                    leave_out(other);
                    renumbered.extend(self.rows.get(other).map(|other| (other.address, row.number)));
                }
                _ => {}
            }
        }
        let kept = self
            .rows
            .iter()
            .zip(&is_left_out)
            .filter(|(_, left_out)| !**left_out)
            .map(|(row, _)| *row)
            .collect();
        self.rows.clear();
        self.number = self.number.wrapping_add(1);
        self.at_first = self.total;
        (kept, renumbered)
    }
}

fn row(action: Action, address: u64, block: &Block, time: i64) -> Row {
    let &Block { number, size, stack, kind, .. } = block;
    Row { action, number, address, size, kind, stack, time, began: None }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The highest total of rows, and what each stack held then.
    fn peak(rows: &[(Action, u64, u32)], from: i64) -> (i64, Vec<i64>) {
        let (mut total, mut held) = (from, vec![0i64; 8]);
        let mut most = (i64::MIN, Vec::new());
        for (action, size, stack) in rows {
            let signed = if *action == Action::Alloc { *size as i64 } else { -(*size as i64) };
            total += signed;
            held[*stack as usize] += signed;
            if total > most.0 {
                most = (total, held.clone());
            }
        }
        most
    }

    proptest! {
        #[test]
        fn the_peak_of_what_is_kept_is_the_peak_of_all(steps in prop::collection::vec((0usize..8, 1u64..5, 0u32..3), 1..400), every in 5usize..60) {
            let mut round = Round::new();
            let mut slots: Vec<Option<Block>> = vec![None; 8];
            let (mut all, mut kept, mut numbers) = (Vec::new(), Vec::new(), 0);
            for (count, (slot, size, stack)) in steps.into_iter().enumerate() {
                match slots[slot].take() {
                    Some(block) => {
                        all.push((Action::FreeCompleted, block.size, block.stack));
                        round.end(slot as u64, &block, 0);
                    }
                    None => {
                        numbers += 1;
                        let block = Block { number: numbers, size, stack, kind: How::Large as u8, row: round.next() };
                        slots[slot] = Some(block);
                        all.push((Action::Alloc, size, stack));
                        round.begin(slot as u64, &block, 0);
                    }
                }
                if count % every == every - 1 {
                    let (rows, renumbered) = round.finish();
                    kept.extend(rows);
                    for (slot, number) in renumbered {
                        slots[slot as usize].as_mut().unwrap().number = number;
                    }
                }
            }
            kept.extend(round.finish().0);
            // A number is live once at the most, and ends as what it began.
            let mut live = HashMap::new();
            for row in &kept {
                let block = (row.size, row.stack);
                match row.action {
                    Action::Alloc => prop_assert_eq!(live.insert(row.number, block), None),
                    _ => prop_assert_eq!(live.remove(&row.number), Some(block)),
                }
            }
            let kept: Vec<_> = kept.iter().map(|row| (row.action, row.size, row.stack)).collect();
            prop_assert_eq!(peak(&kept, 0), peak(&all, 0));
        }
    }
}
