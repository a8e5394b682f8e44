//! What a value was during the last minutes: bounded, one number a sample.

use std::collections::VecDeque;

/// Five minutes of samples a second apart.
const KEPT: usize = 300;

/// The last values, in thousandths of the whole.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    values: VecDeque<u16>,
    /// How many values came so far: columns begin at multiples, so that they do not change while they move.
    came: u64,
}

impl History {
    pub(crate) fn push(&mut self, part: u64, whole: u64) {
        if self.values.len() == KEPT {
            self.values.pop_front();
        }
        let thousandths =
            if whole == 0 { 0 } else { (u128::from(part) * 1000 / u128::from(whole)).min(1000) };
        self.values.push_back(thousandths as u16);
        self.came += 1;
    }

    /// The largest value of each column, the newest last; at most so many columns, together all that is kept.
    pub(crate) fn columns(&self, most: usize) -> Vec<u16> {
        if most == 0 {
            return Vec::new();
        }
        let each = KEPT.div_ceil(most) as u64;
        let first = self.came - self.values.len() as u64;
        let mut columns: Vec<(u64, u16)> = Vec::new();
        for (number, value) in (first..).zip(&self.values) {
            let column = number / each;
            match columns.last_mut() {
                Some((last, most)) if *last == column => *most = (*most).max(*value),
                _ => columns.push((column, *value)),
            }
        }
        let skipped = columns.len().saturating_sub(most);
        columns.into_iter().skip(skipped).map(|(_, value)| value).collect()
    }

    /// How many samples it spans.
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_of_one_sample_stays_in_sight() {
        let mut history = History::default();
        for number in 0..10_000u64 {
            history.push(if number == 9_900 { 90 } else { 10 }, 100);
        }
        assert_eq!(history.len(), 300);
        for most in [1, 7, 60, 300, 500] {
            let columns = history.columns(most);
            assert!(columns.len() <= most);
            assert_eq!(columns.iter().filter(|value| **value == 900).count(), 1, "{most}");
        }
        assert!(history.columns(0).is_empty());
    }

    #[test]
    fn columns_do_not_change_while_they_move() {
        let mut history = History::default();
        for number in 0..1_000u64 {
            history.push(number * 37 % 100, 100);
        }
        let before = history.columns(60);
        for number in 0..5 {
            history.push(number, 100);
        }
        let after = history.columns(60);
        assert_eq!(before[10..before.len() - 1], after[9..after.len() - 2]);
    }

    #[test]
    fn nonsense_stays_within_bounds() {
        let mut history = History::default();
        history.push(u64::MAX, 1);
        history.push(1, 0);
        history.push(u64::MAX, u64::MAX);
        assert_eq!(history.columns(300), [1000, 0, 1000]);
    }
}
