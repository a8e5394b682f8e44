//! How many granules lived at which moment of a step, so that the next step knows how many more will come.

/// Events that share an entry: fine enough beside the thousands that a step has, and small.
const EVENTS: u64 = 32;
/// Entries at most; a step of more events is not remembered beyond.
const ENTRIES: usize = 1 << 16;

/// The most granules that lived, by event of the step.
#[derive(Clone, Debug, Default)]
pub struct Curve {
    most: Vec<u32>,
    peak: usize,
}

impl Curve {
    /// So many live after that event of the step.
    pub fn note(&mut self, event: u64, live: usize) {
        let index = usize::try_from(event / EVENTS).unwrap_or(usize::MAX).min(ENTRIES - 1);
        if self.most.len() <= index {
            self.most.resize(index + 1, 0);
        }
        if let Some(most) = self.most.get_mut(index) {
            *most = (*most).max(u32::try_from(live).unwrap_or(u32::MAX));
        }
        self.peak = self.peak.max(live);
    }

    /// The most that lived in the step.
    pub fn peak(&self) -> usize {
        self.peak
    }

    /// Turns each entry into the most of it and all that follow.
    pub fn closed(mut self) -> Curve {
        let mut most = 0;
        for entry in self.most.iter_mut().rev() {
            most = most.max(*entry);
            *entry = most;
        }
        self
    }

    /// Of a closed curve: the most that lived at that event of the step or later.
    pub fn still_to_come(&self, event: u64) -> usize {
        let index = usize::try_from(event / EVENTS).unwrap_or(usize::MAX);
        self.most.get(index).map_or(0, |most| *most as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_curve_says_what_is_still_to_come() {
        let mut curve = Curve::default();
        for (event, live) in [(0, 3), (40, 9), (41, 4), (100, 6), (200, 1)] {
            curve.note(event, live);
        }
        assert_eq!(curve.peak(), 9);
        let curve = curve.closed();
        assert_eq!(
            [0, 40, 64, 100, 130, 200, 300].map(|event| curve.still_to_come(event)),
            [9, 9, 6, 6, 1, 1, 0]
        );
    }
}
