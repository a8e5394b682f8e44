//! Events between two writes, and which of them are worth a row.
//!
//! A block that is taken and given back within a round leaves no trace in what is live at its end. It is written only if it was live at the moment of the round at which most was:
//! then the highest total of the file is exactly the highest total there was, and what each line held at that moment is exact too, however many blocks come and go.
//!
//! A block that takes the place of another of the same line and size, as in a cache, changes nothing by line: it gets the number that the other had in the file, and neither is written. So what is
//! written of a round is by how much each line holds more or less at its highest moment, and at its end. Of blocks of a MiB and more, of which there are few, and of samples, each of which stands for others,
//! each is written by itself: it is known which was there first.

use crate::layout::{Action, How};
use crate::live::Block;
use std::collections::VecDeque;
use std::ops::Range;

/// Rows that wait, to begin with.
const ROWS: usize = 16 << 10;
/// So often twice as many may wait, at the most.
const MOST_LONGER: u32 = 3;
const MOST_ROWS: usize = ROWS << MOST_LONGER;
/// From so many bytes on a block keeps its own number.
const BY_ITSELF: u64 = 1 << 20;
/// Of a round and of what is found out about it: so much may be asked for when the kernel has no more. To find out takes a place twice over, a number and a mark of each row, places of those that wait, and
/// sixteen bytes of each in the file and on the way to it.
pub(crate) const MOST_BYTES: usize =
    if size_of::<Row>() > 72 { size_of::<Row>() * MOST_ROWS } else { 72 * MOST_ROWS };
/// Places that are none.
const NONE: u32 = u32::MAX;

/// One event.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) action: Action,
    pub(crate) number: u64,
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) kind: u8,
    pub(crate) stack: u32,
    pub(crate) time: i64,
    /// Of a free: the row of the block's beginning, if that is one of these.
    began: Option<u32>,
}

/// Events since the last write.
pub(crate) struct Round {
    rows: Vec<Row>,
    /// Which one this is.
    number: u32,
    /// Bytes that are live, and those that were when it began.
    total: i64,
    at_first: i64,
}

impl Round {
    pub(crate) fn new() -> Self {
        Self { rows: Vec::with_capacity(ROWS), number: 0, total: 0, at_first: 0 }
    }

    /// Where the next row will be.
    pub(crate) fn next(&self) -> (u32, u32) {
        (self.number, self.rows.len() as u32)
    }

    /// Whether no more rows should wait: `longer` is how many times twice as many may as to begin with.
    pub(crate) fn is_full(&self, longer: u64) -> bool {
        self.rows.len() >= ROWS << longer.min(u64::from(MOST_LONGER))
    }

    /// By how much more is live than when the round began.
    pub(crate) fn grown(&self) -> i64 {
        self.total - self.at_first
    }

    /// Drops what waits, and what it took.
    pub(crate) fn forget(&mut self) {
        self.rows = Vec::new();
    }

    pub(crate) fn total(&self) -> i64 {
        self.total
    }

    pub(crate) fn begin(&mut self, address: u64, block: &Block, time: i64) {
        self.total += block.size as i64;
        self.rows.push(Row { began: None, ..row(Action::Alloc, address, block, time) });
    }

    pub(crate) fn end(&mut self, address: u64, block: &Block, time: i64) {
        self.total -= block.size as i64;
        let began = (block.row.0 == self.number).then_some(block.row.1);
        self.rows.push(Row { began, ..row(Action::FreeCompleted, address, block, time) });
    }

    /// What of the round is to be written.
    pub(crate) fn kept(&self) -> Kept<'_> {
        let (most, at_most) = self.highest();
        let mut kept = Kept::of(&self.rows);
        // Up to the moment of the most, before which less was held, and from there on. A block that was there at that moment is in both.
        kept.take(0..at_most, self.at_first, most.saturating_sub(1));
        // What makes it the most comes when that was, whatever took the place of what in the meantime.
        if let Some((place, at)) = kept.order.last_mut().filter(|(place, _)| is_begin(&self.rows, *place)) {
            *at = (at_most as u32).saturating_sub(1).max(*place);
        }
        kept.take(at_most..self.rows.len(), most, most);
        kept
    }

    pub(crate) fn begin_next(&mut self) {
        self.rows.clear();
        self.number = self.number.wrapping_add(1);
        self.at_first = self.total;
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

fn is_begin(rows: &[Row], place: u32) -> bool {
    rows.get(place as usize).is_some_and(|row| row.action == Action::Alloc)
}

/// What of a round is to be written, by the places of its rows.
pub(crate) struct Kept<'a> {
    rows: &'a [Row],
    /// Where the block of a row ended that began there.
    ended: Vec<u32>,
    /// The number that the block of a row has in the file.
    numbers: Vec<u64>,
    /// The rows, in order, and whose time each has.
    order: Vec<(u32, u32)>,
}

impl<'a> Kept<'a> {
    fn of(rows: &'a [Row]) -> Self {
        let mut ended = vec![NONE; rows.len()];
        for (place, row) in rows.iter().enumerate() {
            if let Some(end) = row.began.and_then(|began| ended.get_mut(began as usize)) {
                *end = place as u32;
            }
        }
        let numbers = rows.iter().map(|row| row.number).collect();
        Self { rows, ended, numbers, order: Vec::with_capacity(rows.len()) }
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = Row> + Clone + '_ {
        self.order.iter().filter_map(|&(place, at)| {
            let row = *self.rows.get(place as usize)?;
            Some(Row { number: self.number(place, &row), time: self.rows.get(at as usize)?.time, ..row })
        })
    }

    /// Blocks that are live now and have another number from now on: their addresses, and it.
    pub(crate) fn renumbered(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let known = self.rows.iter().zip(self.numbers.iter().zip(&self.ended));
        known
            .filter(|(row, (number, end))| {
                row.action == Action::Alloc && **end == NONE && row.number != **number
            })
            .map(|(row, (number, _))| (row.address, *number))
    }

    fn number(&self, place: u32, row: &Row) -> u64 {
        self.numbers.get(row.began.unwrap_or(place) as usize).copied().unwrap_or(row.number)
    }

    /// Takes what changed in a part of the round, of which there are never more bytes than `limit`.
    fn take(&mut self, part: Range<usize>, from: i64, limit: i64) {
        let is_written = self.changes(&part);
        self.put_in_order(&part, &is_written, from, limit);
    }

    /// For each row of a part whether it is to be written. Of blocks that took the place of others neither is, and they get the others' numbers.
    fn changes(&mut self, part: &Range<usize>) -> Vec<bool> {
        let mut is_written = vec![false; part.len()];
        let mut mark = |place: u32| {
            if let Some(mark) = is_written.get_mut(place as usize - part.start) {
                *mark = true;
            }
        };
        let rows = self.rows;
        let row = |place: u32| rows.get(place as usize);
        // Rows of blocks that had begun before, or stay.
        let mut changes: Vec<u32> = Vec::with_capacity(part.len());
        for (place, row) in rows.iter().enumerate().take(part.end).skip(part.start) {
            let ends = self.ended.get(place).copied().unwrap_or(NONE) as usize;
            let is_within = match row.began {
                Some(began) => began as usize >= part.start,
                None => row.action == Action::Alloc && ends < part.end,
            };
            if is_within {
                continue;
            }
            if row.kind == How::Large as u8 && row.size < BY_ITSELF {
                changes.push(place as u32);
            } else {
                mark(place as u32);
            }
        }
        let key = |place: u32| row(place).map(|row| (row.size, row.stack));
        changes.sort_unstable_by_key(|place| (key(*place), *place));
        for alike in changes.chunk_by(|one, other| key(*one) == key(*other)) {
            let begun = || alike.iter().copied().filter(|place| is_begin(rows, *place));
            let ended = || alike.iter().copied().filter(|place| !is_begin(rows, *place));
            let replaced = begun().count().min(ended().count());
            // Those that went first, and those that came last, are written.
            let gone = ended().count() - replaced;
            ended().take(gone).chain(begun().skip(replaced)).for_each(&mut mark);
            for (from, to) in ended().skip(gone).zip(begun()) {
                let number = row(from).map(|row| self.number(from, row));
                if let (Some(number), Some(slot)) = (number, self.numbers.get_mut(to as usize)) {
                    *slot = number;
                }
            }
        }
        is_written
    }

    /// Puts those rows in an order in which there are never more bytes than `limit`: one that would be too much waits for others to go, or for the end, when as much is said as there was.
    fn put_in_order(&mut self, part: &Range<usize>, is_written: &[bool], mut total: i64, limit: i64) {
        let size = |place: u32| self.rows.get(place as usize).map_or(0, |row| row.size as i64);
        let mut waiting = VecDeque::<u32>::new();
        for (place, _) in part.clone().zip(is_written).filter(|(_, is_written)| **is_written) {
            let place = place as u32;
            if is_begin(self.rows, place) {
                waiting.push_back(place);
            } else {
                total -= size(place);
                self.order.push((place, place));
            }
            while let Some(&first) = waiting.front().filter(|first| total + size(**first) <= limit) {
                total += size(first);
                self.order.push((first, place));
                waiting.pop_front();
            }
        }
        let end = (part.end as u32).saturating_sub(1);
        self.order.extend(waiting.into_iter().map(|place| (place, end)));
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
    use std::collections::HashMap;

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
                let finished = round.kept();
                let (rows, renumbered): (Vec<Row>, Vec<(u64, u64)>) = (finished.rows().collect(), finished.renumbered().collect());
                assert_eq!(finished.len(), rows.len());
                round.begin_next();
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
                let size = if size == 4 { BY_ITSELF } else { size };
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
            prop_assert!(kept.is_sorted_by_key(|row| row.time));
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
        assert_eq!(round.kept().len(), 1000);
        round.begin_next();
        let mut written = 0;
        for change in 1000..9000u64 {
            let slot = (change * 7919 % 1000) as usize;
            let new = block(change, &round);
            // Another is made before the one there goes, as in `cache[i] = new()`.
            round.begin(change, &new, change as i64);
            round.end(slots[slot].number, &slots[slot], change as i64);
            slots[slot] = new;
            if change % 2000 == 1999 {
                let kept = round.kept();
                written += kept.len();
                for (address, number) in kept.renumbered() {
                    let slot = slots.iter_mut().find(|block| block.number == address).unwrap();
                    slot.number = number;
                }
                round.begin_next();
            }
        }
        assert!(written <= 8, "{written}");
    }
}
