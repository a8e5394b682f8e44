//! Memory over time, in as many columns as a picture has.
//!
//! A column stands for all moments that fall into it and shows the highest of them, so that no peak is lost, however
//! short it was. Drawing is another crate's business.

use crate::context::Context;
use crate::kinds::Kind;
use crate::oom::Outcome;
use oomph_trace::Moment;

/// A device's memory over time.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// From the first event to the last.
    pub columns: Vec<Column>,
    /// What the columns divide: seconds, if the recording has times; otherwise events.
    pub seconds: Option<f64>,
    /// The column of the allocated peak.
    pub peak: usize,
    /// The columns in which memory ran out, and whether the program died of it.
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
        let axis = Axis::of(context, columns);
        let mut state = Column { kinds: [0; Kind::ALL.len()], reserved: history.start.reserved };
        for index in 0..all.born_before() {
            state.kinds[context.kinds.kind(index) as usize] += all.size(index);
        }
        let mut reserved_changes = history.reserved_changes().peekable();
        let (mut born, mut drawn) = (all.born_before(), vec![state]);
        let mut starts = Vec::with_capacity(events.len());
        for (row, &freed) in freed.iter().enumerate() {
            let moment = row as Moment + 1;
            // Times are not strictly in order, and a picture does not go back.
            let column = axis.column(row).max(drawn.len() - 1);
            starts.push(column as u32);
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
        let column_of = |moment: Moment| {
            starts.get((moment as usize).saturating_sub(1)).map_or(columns - 1, |&column| column as usize)
        };
        Some(Self {
            columns: drawn,
            seconds: axis.seconds(),
            peak: column_of(history.peak.allocated.moment),
            ooms: (context.ooms.iter())
                .map(|oom| (column_of(oom.moment + 1), oom.outcome == Outcome::Fatal))
                .collect(),
            steps: context.steps.as_ref().map_or(Vec::new(), |steps| {
                (0..steps.count()).map(|step| column_of(steps.boundaries[step] + 1)).collect()
            }),
        })
    }
}

/// What the columns divide.
struct Axis<'a> {
    times: Option<&'a [i64]>,
    events: usize,
    columns: usize,
}

impl<'a> Axis<'a> {
    fn of(context: &Context<'a>, columns: usize) -> Self {
        let times = &context.device.events.time;
        let spans = |times: &[i64]| times.last() > times.first();
        Self {
            times: (context.device.events.has_times() && spans(times)).then_some(times),
            events: context.device.events.len(),
            columns,
        }
    }

    fn span(&self) -> Option<(i64, f64)> {
        let times = self.times?;
        let (first, last) = (*times.first()?, *times.last()?);
        Some((first, last.saturating_sub(first) as f64))
    }

    fn seconds(&self) -> Option<f64> {
        self.span().map(|(_, span)| span / 1e6)
    }

    fn column(&self, row: usize) -> usize {
        let share = match (self.times, self.span()) {
            (Some(times), Some((first, span))) => times[row].saturating_sub(first) as f64 / span,
            _ => row as f64 / self.events as f64,
        };
        // Casting cuts what is below 0.
        ((share * self.columns as f64) as usize).min(self.columns - 1)
    }
}
