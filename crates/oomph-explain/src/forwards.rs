//! Forward passes: each by itself, wherever it happens.
//!
//! A forward begins where the program calls a module and ends where anything else happens: the program's own lines, a
//! backward pass, an optimizer. Steps are the shape of a training loop; forwards are there in validation, in inference, and
//! in a program that died before it had gone round once.

use crate::sources::{Phase, Sources};
use hashbrown::HashMap;
use oomph_trace::{Action, Device, FrameId, Moment, NO_STACK};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forward {
    /// The line that calls the module.
    pub(crate) site: FrameId,
    /// The program's own line at or above it.
    pub(crate) own: Option<FrameId>,
    /// The state before its first allocation.
    pub(crate) start: Moment,
    /// The state after its last one.
    pub(crate) end: Moment,
}

/// All forward passes of a device, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Forwards {
    all: Vec<Forward>,
    by_site: HashMap<FrameId, Vec<Moment>>,
}

impl Forwards {
    /// Finds them among the events before `until`. `free_stacks`: whether frees say where they come from.
    pub(crate) fn of(device: &Device, sources: &Sources, free_stacks: bool, until: Moment) -> Self {
        let events = &device.events;
        let mut all: Vec<Forward> = Vec::new();
        let mut open = false;
        for row in 0..events.len().min(until as usize) {
            let stack = events.stack[row];
            let has_own_stack = match events.action[row] {
                Action::Alloc => true,
                Action::FreeRequested => free_stacks,
                _ => false,
            };
            if !has_own_stack {
                continue;
            }
            let facts = sources.of_stack(stack);
            let moment = row as Moment;
            match (facts.phase, facts.site) {
                // A free inside a forward begins none, and its stack may be short of its outer end: it says no line.
                (Phase::Forward, _) if events.action[row] != Action::Alloc => {
                    if let Some(last) = all.last_mut().filter(|_| open) {
                        last.end = moment + 1;
                    }
                }
                (Phase::Forward, Some(site)) => {
                    match all.last_mut().filter(|last| open && last.site == site) {
                        Some(last) => last.end = moment + 1,
                        None => {
                            all.push(Forward { site, own: facts.own_site, start: moment, end: moment + 1 })
                        }
                    }
                    open = true;
                }
                // Without stacks there is no telling.
                (Phase::NoStack, _) if stack == NO_STACK && !sources.has_stacks => {}
                _ => open = false,
            }
        }
        let mut by_site: HashMap<FrameId, Vec<Moment>> = HashMap::new();
        for forward in &all {
            by_site.entry(forward.site).or_default().push(forward.start);
        }
        Self { all, by_site }
    }

    pub(crate) fn all(&self) -> &[Forward] {
        &self.all
    }

    /// The last one that had begun when a block was born.
    pub(crate) fn before(&self, born: Moment) -> Option<usize> {
        self.all.partition_point(|forward| forward.start < born).checked_sub(1)
    }

    /// How many forwards from the same line began in `after..=until`.
    pub(crate) fn later(&self, site: FrameId, after: Moment, until: Moment) -> usize {
        let starts = self.by_site.get(&site).map_or(&[][..], Vec::as_slice);
        let begun = starts.partition_point(|&start| start <= until);
        begun.saturating_sub(starts.partition_point(|&start| start < after))
    }

    /// Where the next forward from the same line begins.
    pub(crate) fn next(&self, site: FrameId, after: Moment) -> Option<Moment> {
        let starts = self.by_site.get(&site)?;
        starts.get(starts.partition_point(|&start| start < after)).copied()
    }
}
