//! Events between two writes, and which of them are worth a row.
//!
//! A block that is taken and given back within a round leaves no trace in what is live at its end. It is written only if it was live at the moment of the round at which most was:
//! then the highest total of the file is exactly the highest total there was, and what each line held at that moment is exact too, however many blocks come and go.
//!
//! A block that takes the place of one of the same line and size, as in a cache or from one training step to the next, changes nothing by line: it gets the number that the other had in the file, and
//! neither is written. So what is written of a round is by how much each line holds more or less at its highest moment, and at its end.

use crate::layout::{Action, How};
use crate::live::Block;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;

/// Rows that wait, to begin with.
const ROWS: usize = 16 << 10;

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
        Self { rows: Vec::with_capacity(ROWS), number: 0, total: 0, at_first: 0 }
    }

    /// Where the next row will be.
    pub fn next(&self) -> (u32, u32) {
        (self.number, self.rows.len() as u32)
    }

    /// Whether no more rows should wait: `longer` is how many times twice as many may as to begin with.
    pub fn is_full(&self, longer: u32) -> bool {
        self.rows.len() >= ROWS << longer
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
        let (most, at_most) = self.highest();
        let mut blocks = Blocks::of(&self.rows);
        let mut kept = Vec::new();
        // Up to the moment of the most, before which less was held, and from there on. A block that was there at that moment is in both.
        for (part, from, limit) in
            [(0..at_most, self.at_first, most.saturating_sub(1)), (at_most..self.rows.len(), most, most)]
        {
            let written = blocks.changes(&self.rows, part);
            kept.extend(blocks.in_order(&self.rows, &written, from, limit));
        }
        let renumbered = blocks.renumbered(&self.rows);
        self.rows.clear();
        self.rows.shrink_to(ROWS);
        self.number = self.number.wrapping_add(1);
        self.at_first = self.total;
        (kept, renumbered)
    }

    /// The most bytes that were live after any row, and how many rows there were until then.
    fn highest(&self) -> (i64, usize) {
        let (mut total, mut most, mut until) = (self.at_first, i64::MIN, 0);
        for (place, row) in self.rows.iter().enumerate() {
            match row.action {
                Action::Alloc => total += row.size as i64,
                _ => total -= row.size as i64,
            }
            if total > most {
                (most, until) = (total, place + 1);
            }
        }
        (most, until)
    }
}

/// What became of the blocks of a round, by the places of their rows.
struct Blocks {
    /// Where the block of a row ended that began there.
    ended: Vec<Option<usize>>,
    /// The number that a block has in the file.
    numbers: Vec<u64>,
}

/// What happened to blocks of one line and size, in part of a round: those that ended and had begun before it, and those that began and stay beyond it.
#[derive(Default)]
struct Change {
    ended: Vec<usize>,
    began: Vec<usize>,
}

impl Blocks {
    fn of(rows: &[Row]) -> Self {
        let mut ended = vec![None; rows.len()];
        for (place, row) in rows.iter().enumerate() {
            if let Some(end) = row.began.and_then(|began| ended.get_mut(began as usize)) {
                *end = Some(place);
            }
        }
        Self { ended, numbers: rows.iter().map(|row| row.number).collect() }
    }

    fn number(&self, place: usize, row: &Row) -> u64 {
        let begun = row.began.map_or(place, |began| began as usize);
        self.numbers.get(begun).copied().unwrap_or(row.number)
    }

    /// The places of the rows of a part that are to be written. Of blocks that took the place of others neither is, and they get the others' numbers.
    fn changes(&mut self, rows: &[Row], part: Range<usize>) -> Vec<usize> {
        let mut written = Vec::new();
        let mut changes: HashMap<(u64, u8, u32), Change> = HashMap::new();
        for (place, row) in rows.iter().enumerate().take(part.end).skip(part.start) {
            let is_start = row.action == Action::Alloc;
            let is_within = match row.began {
                Some(began) => began as usize >= part.start,
                None => {
                    is_start && self.ended.get(place).is_some_and(|end| end.is_some_and(|end| end < part.end))
                }
            };
            let is_block =
                How::from_number(row.kind).is_some_and(|how| !matches!(how, How::Mapped | How::Shared));
            if is_within {
                continue;
            }
            if !is_block {
                written.push(place);
                continue;
            }
            let change = changes.entry((row.size, row.kind, row.stack)).or_default();
            if is_start { change.began.push(place) } else { change.ended.push(place) }
        }
        for Change { ended, began } in changes.values() {
            let replaced = ended.len().min(began.len());
            // Those that went first, and those that came last: in between less is said than there was.
            let (gone, left) = ended.split_at(ended.len() - replaced);
            let (taking, new) = began.split_at(replaced);
            written.extend(gone.iter().chain(new));
            for (from, to) in left.iter().zip(taking) {
                let number = rows.get(*from).map(|row| self.number(*from, row));
                if let (Some(number), Some(slot)) = (number, self.numbers.get_mut(*to)) {
                    *slot = number;
                }
            }
        }
        written.sort_unstable();
        written
    }

    /// Those rows, in an order in which there are never more bytes than `limit`: one that would be too much waits for others to go, or for the end, when as much is said as there was.
    fn in_order(&self, rows: &[Row], written: &[usize], mut total: i64, limit: i64) -> Vec<Row> {
        let numbered =
            |place: &usize| rows.get(*place).map(|row| Row { number: self.number(*place, row), ..*row });
        let (mut ordered, mut waiting) = (Vec::with_capacity(written.len()), VecDeque::<Row>::new());
        let mut time = 0;
        for row in written.iter().filter_map(numbered) {
            time = row.time;
            match row.action {
                Action::Alloc => waiting.push_back(row),
                _ => {
                    total -= row.size as i64;
                    ordered.push(row);
                }
            }
            while let Some(first) = waiting.front().filter(|first| total + first.size as i64 <= limit) {
                total += first.size as i64;
                ordered.push(Row { time, ..*first });
                waiting.pop_front();
            }
        }
        ordered.extend(waiting.into_iter().map(|row| Row { time, ..row }));
        ordered
    }

    /// Blocks that are live now and have another number: their addresses, and it.
    fn renumbered(&self, rows: &[Row]) -> Vec<(u64, u64)> {
        rows.iter()
            .zip(self.numbers.iter().zip(&self.ended))
            .filter(|(row, (number, end))| {
                row.action == Action::Alloc && end.is_none() && row.number != **number
            })
            .map(|(row, (number, _))| (row.address, *number))
            .collect()
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
            let (mut all, mut kept, mut numbers, mut live) = (Vec::new(), Vec::new(), 0, HashMap::new());
            let end_round = |round: &mut Round, slots: &mut Vec<Option<Block>>, live: &mut HashMap<u64, (u64, u32)>, kept: &mut Vec<Row>| {
                let (rows, renumbered) = round.finish();
                // A number is live once at the most, and ends as what it began.
                for row in &rows {
                    let block = (row.size, row.stack);
                    match row.action {
                        Action::Alloc => prop_assert_eq!(live.insert(row.number, block), None),
                        _ => prop_assert_eq!(live.remove(&row.number), Some(block)),
                    }
                }
                prop_assert!(rows.is_sorted_by_key(|row| row.time));
                kept.extend(rows);
                for (slot, number) in renumbered {
                    slots[slot as usize].as_mut().unwrap().number = number;
                }
                // At the end of each round the file has what there is.
                let there: HashMap<_, _> = slots.iter().flatten().map(|block| (block.number, (block.size, block.stack))).collect();
                prop_assert_eq!(&*live, &there);
                Ok(())
            };
            for (count, (slot, size, stack)) in steps.into_iter().enumerate() {
                match slots[slot].take() {
                    Some(block) => {
                        all.push((Action::FreeCompleted, block.size, block.stack));
                        round.end(slot as u64, &block, count as i64);
                    }
                    None => {
                        numbers += 1;
                        let block = Block { number: numbers, size, stack, kind: How::Large as u8, row: round.next() };
                        slots[slot] = Some(block);
                        all.push((Action::Alloc, size, stack));
                        round.begin(slot as u64, &block, count as i64);
                    }
                }
                if count % every == every - 1 {
                    end_round(&mut round, &mut slots, &mut live, &mut kept)?;
                }
            }
            end_round(&mut round, &mut slots, &mut live, &mut kept)?;
            let kept: Vec<_> = kept.iter().map(|row| (row.action, row.size, row.stack)).collect();
            prop_assert_eq!(peak(&kept, 0), peak(&all, 0));
        }
    }
    #[test]
    fn a_cache_whose_entries_are_replaced_writes_next_to_nothing() {
        let mut round = Round::new();
        let block = |number, round: &Round| Block {
            number,
            size: 100,
            stack: 1,
            kind: How::Large as u8,
            row: round.next(),
        };
        let mut slots: Vec<Block> = Vec::new();
        for slot in 0..1000 {
            slots.push(block(slot, &round));
            round.begin(slot, &slots[slot as usize], 0);
        }
        assert_eq!(round.finish().0.len(), 1000);
        let mut written = 0;
        for change in 1000..9000u64 {
            let slot = (change * 7919 % 1000) as usize;
            let new = block(change, &round);
            // Another is made before the one there goes, as in `cache[i] = new()`.
            round.begin(change, &new, change as i64);
            round.end(slots[slot].number, &slots[slot], change as i64);
            slots[slot] = new;
            if change % 2000 == 1999 {
                let (rows, renumbered) = round.finish();
                written += rows.len();
                for (address, number) in renumbered {
                    let slot = slots.iter_mut().find(|block| block.number == address).unwrap();
                    slot.number = number;
                }
            }
        }
        assert!(written <= 8, "{written}");
    }
}
