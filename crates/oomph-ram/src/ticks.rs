//! Events between two writes, and which of them are worth a row.
//!
//! A block that is taken and given back within a round leaves no trace in what is live at its end. It is written only if it was live at the moment of the round at which most was:
//! then the highest total of the file is exactly the highest total there was, and what each line held at that moment is exact too, however many blocks come and go.

use crate::layout::Action;

/// Rows that wait at most.
pub const MOST: usize = 16 << 10;

/// One event.
#[derive(Clone, Copy)]
pub struct Row {
    pub action: Action,
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

    pub fn total(&self) -> i64 {
        self.total
    }

    pub fn begin(&mut self, address: u64, size: u64, kind: u8, stack: u32, time: i64) {
        self.total += size as i64;
        self.rows.push(Row { action: Action::Alloc, address, size, kind, stack, time, began: None });
    }

    /// `began`: where the block's first row is.
    pub fn end(&mut self, address: u64, size: u64, kind: u8, stack: u32, time: i64, began: (u32, u32)) {
        self.total -= size as i64;
        let began = (began.0 == self.number).then_some(began.1);
        self.rows.push(Row { action: Action::FreeCompleted, address, size, kind, stack, time, began });
    }

    /// The rows that are worth writing, in order; the next round begins.
    pub fn finish(&mut self) -> Vec<Row> {
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
        for (place, row) in self.rows.iter().enumerate() {
            if let Some(began) = row.began.map(|began| began as usize)
                && (place <= at_most || began > at_most)
            {
                for one in [place, began] {
                    if let Some(left_out) = is_left_out.get_mut(one) {
                        *left_out = true;
                    }
                }
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
        kept
    }
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
        fn the_peak_of_what_is_kept_is_the_peak_of_all(steps in prop::collection::vec((0usize..8, 1u64..100, 0u32..8), 1..400)) {
            let mut round = Round::new();
            let mut slots = vec![None; 8];
            let (mut all, mut kept) = (Vec::new(), Vec::new());
            for (count, (slot, size, stack)) in steps.into_iter().enumerate() {
                match slots[slot].take() {
                    Some((size, stack, began)) => {
                        all.push((Action::FreeCompleted, size, stack));
                        round.end(slot as u64, size, 0, stack, 0, began);
                    }
                    None => {
                        slots[slot] = Some((size, stack, round.next()));
                        all.push((Action::Alloc, size, stack));
                        round.begin(slot as u64, size, 0, stack, 0);
                    }
                }
                if count % 50 == 49 {
                    kept.extend(round.finish());
                }
            }
            kept.extend(round.finish());
            let kept: Vec<_> = kept.iter().map(|row| (row.action, row.size, row.stack)).collect();
            prop_assert_eq!(peak(&kept, 0), peak(&all, 0));
        }
    }
}
