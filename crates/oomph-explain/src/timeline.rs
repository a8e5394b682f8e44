//! Memory over time, in as many columns as a picture has.
//!
//! Columns divide events, not seconds: programs load and compile for minutes and then train in milliseconds, and what is
//! to be seen is the training. A column stands for all moments that fall into it and shows the highest of them, so that
//! no peak is lost, however short it was. Drawing is another crate's business.

use crate::context::Context;
use crate::kinds::Kind;
use crate::oom::Outcome;
use oomph_trace::Moment;

/// A device's memory over time.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// From the first event to the last.
    pub columns: Vec<Column>,
    /// How long that took, if the recording has times.
    pub seconds: Option<f64>,
    /// How many events there are.
    pub events: u64,
    /// The column of the allocated peak.
    pub peak: usize,
    /// The columns in which memory ran out, and whether the program died of it; each once.
    pub ooms: Vec<(usize, bool)>,
    /// The columns in which steps begin.
    pub steps: Vec<usize>,
}

/// All moments of a column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Column {
    /// Allocated bytes by kind, in the order of [`Kind::ALL`], when they were most.
    pub kinds: [u64; Kind::ALL.len()],
    /// The most that was reserved.
    pub reserved: u64,
}

impl Column {
    /// Allocated bytes of all kinds.
    pub fn allocated(&self) -> u64 {
        self.kinds.iter().sum()
    }

    fn rise_to(&mut self, state: &Self) {
        if state.allocated() > self.allocated() {
            self.kinds = state.kinds;
        }
        self.reserved = self.reserved.max(state.reserved);
    }
}

impl Timeline {
    /// Goes through the events once. `None` if there are none.
    pub(crate) fn of(context: &Context, columns: usize) -> Option<Self> {
        let (events, history) = (&context.device.events, context.history);
        let all = &history.allocations;
        if events.is_empty() || columns == 0 {
            return None;
        }
        let mut freed = vec![u32::MAX; events.len()];
        for index in 0..all.len() {
            if let Some(slot) = all.freeing_event(index).and_then(|row| freed.get_mut(row)) {
                *slot = index as u32;
            }
        }
        let mut state = Column { kinds: [0; Kind::ALL.len()], reserved: history.start.reserved };
        for index in 0..all.born_before() {
            state.kinds[context.kinds.kind(index) as usize] += all.size(index);
        }
        let mut reserved_changes = history.reserved_changes().peekable();
        let column_of = |moment: Moment| {
            let row = (moment as usize).saturating_sub(1).min(events.len() - 1);
            // In 128 bits, which no number of events overflows.
            (row as u128 * columns as u128 / events.len() as u128) as usize
        };
        let (mut born, mut drawn) = (all.born_before(), vec![state]);
        for (row, &freed) in freed.iter().enumerate() {
            let moment = row as Moment + 1;
            let column = column_of(moment);
            drawn.resize(column + 1, state);
            while born < all.len() && all.born(born) == moment {
                state.kinds[context.kinds.kind(born) as usize] += all.size(born);
                born += 1;
            }
            if freed != u32::MAX {
                let kind = &mut state.kinds[context.kinds.kind(freed as usize) as usize];
                *kind = kind.saturating_sub(all.size(freed as usize));
            }
            while let Some((_, taken, range)) = reserved_changes.next_if(|&(at, _, _)| at <= moment) {
                state.reserved = if taken {
                    state.reserved.saturating_add(range.size)
                } else {
                    state.reserved.saturating_sub(range.size)
                };
            }
            drawn[column].rise_to(&state);
        }
        drawn.resize(columns, state);
        let mut ooms: Vec<(usize, bool)> = (context.ooms.iter())
            .map(|oom| (column_of(oom.moment + 1), oom.outcome == Outcome::Fatal))
            .collect();
        ooms.sort_unstable_by_key(|&(column, fatal)| (column, !fatal));
        ooms.dedup_by_key(|&mut (column, _)| column);
        Some(Self {
            columns: drawn,
            seconds: context.seconds(events.len() as Moment),
            events: events.len() as u64,
            peak: column_of(history.peak.allocated.moment),
            ooms,
            steps: context.steps.as_ref().map_or(Vec::new(), |steps| {
                (0..steps.count()).map(|step| column_of(steps.boundaries[step] + 1)).collect()
            }),
        })
    }
}
