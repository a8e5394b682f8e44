//! What a change would have saved: the recording replayed with it, through the allocator's model.

use crate::finding::{Basis, Finding};
use crate::kinds::Kind;
use crate::observed::Observed;
use crate::sources::Phase;
use oomph_replay::allocator::Memory;
use oomph_replay::program::Change;
use oomph_replay::replayer::{Replayed, Replayer};
use oomph_settings::conf::Conf;
use oomph_trace::{Action, Moment};
use oomph_words::bytes;
use std::cell::OnceCell;

/// A device's recording as it was, replayed: what changes are held against.
pub(crate) struct Replays<'a> {
    replayer: Replayer<'a>,
    /// As recorded, with as much memory as it takes.
    baseline: Replayed,
    /// The same without the requests that were not served.
    served: Replayed,
    /// The same with the one that the program died of, served after all. Few ask.
    with_request: OnceCell<Replayed>,
    /// What the program reserved at most, with what it asked for last: replayed with unlimited memory it may come to more.
    reserved: u64,
}

/// A device's recording, ready to be replayed with changes.
#[derive(Clone, Copy)]
pub(crate) struct WhatIf<'c, 'a> {
    observed: &'c Observed<'a>,
    replays: &'c Replays<'a>,
}

/// What a change would have saved.
#[derive(Clone, Debug)]
pub(crate) struct Saved {
    /// Of the allocated peak.
    pub(crate) allocated: u64,
    /// Of the reserved peak.
    pub(crate) reserved: u64,
    /// The reserved peak with the change.
    pub(crate) reserved_peak: u64,
    /// The reserved peak without it.
    pub(crate) reserved_before: u64,
    /// Replayed, if the model reproduces the recording; otherwise an estimate.
    pub(crate) basis: Basis,
}

/// The batch in parts, one after another.
pub(crate) struct InParts {
    pub(crate) parts: u64,
    /// What that would have saved.
    pub(crate) saved: Saved,
}

impl<'a> Replays<'a> {
    /// Reproduces the recording of a device.
    pub(crate) fn of(observed: &Observed<'a>) -> Self {
        let fatal = observed.fatal().map(|oom| oom.moment);
        let replayer = Replayer::quick(observed.recording, observed.device, observed.history, fatal);
        let baseline = replayer.quickly_under(&replayer.conf, Memory::UNLIMITED);
        let served = if observed.ooms.is_empty() {
            baseline.clone()
        } else {
            let change = Change { without_ooms: true, ..Change::default() };
            replayer.changed(&replayer.conf, Memory::UNLIMITED, change)
        };
        let asked = observed.fatal().map_or(0, |oom| oom.segment);
        let reserved = observed.history.peak.reserved.bytes.saturating_add(asked);
        Self { replayer, baseline, served, with_request: OnceCell::new(), reserved }
    }

    fn saved(&self, before: &Replayed, changed: &Replayed) -> Saved {
        let (before, after) = (&before.usage, &changed.usage);
        let exact = self.replayer.reproduction.differences() == 0;
        // A program that runs short empties its cache and goes on; with room it reserves what it never had.
        let reserved_before = before.reserved.peak.min(self.reserved);
        let reserved_after = after.reserved.peak.min(reserved_before);
        Saved {
            allocated: before.allocated.peak.saturating_sub(after.allocated.peak),
            reserved: reserved_before - reserved_after,
            reserved_peak: reserved_after,
            reserved_before,
            basis: if exact { Basis::Replayed } else { Basis::Estimated },
        }
    }

    fn changed(&self, change: Change) -> Saved {
        let change = Change { without_ooms: true, ..change };
        self.saved(&self.served, &self.replayer.changed(&self.replayer.conf, Memory::UNLIMITED, change))
    }
}

impl<'c, 'a> WhatIf<'c, 'a> {
    /// Of a device, with its recording replayed.
    pub(crate) fn of(observed: &'c Observed<'a>, replays: &'c Replays<'a>) -> Self {
        Self { observed, replays }
    }

    /// With other settings, if this version of PyTorch takes them.
    pub(crate) fn setting(&self, conf: &str) -> Option<Saved> {
        let Replays { replayer, baseline, .. } = self.replays;
        let conf = Conf::parse(conf, replayer.version()).ok()?;
        let changed = || replayer.quickly_under(&conf, Memory::UNLIMITED);
        (conf != replayer.conf).then(|| self.replays.saved(baseline, &changed()))
    }

    /// With some allocations of another size: `size` is asked about each, by its event and its size; 0 leaves it out.
    pub(crate) fn resized(&self, size: &dyn Fn(usize, u64) -> u64) -> Saved {
        self.replays.changed(Change { resize: Some(size), ..Change::default() })
    }

    /// With blocks freed earlier: (moment, allocation).
    pub(crate) fn freed_early(&self, frees: impl IntoIterator<Item = (Moment, u32)>) -> Saved {
        let all = &self.observed.history.allocations;
        let mut order: Vec<(u32, u32)> = (frees.into_iter())
            .filter(|&(_, index)| all.born(index as usize) > 0)
            .map(|(moment, index)| (moment, all.born(index as usize) - 1))
            .collect();
        order.sort_unstable();
        self.replays.changed(Change { free_early: &order, ..Change::default() })
    }

    /// The same, with the request that the program died of: held against the recording with that request served.
    pub(crate) fn served(&self, size: &dyn Fn(usize, u64) -> u64) -> Saved {
        let Replays { replayer, served, with_request, .. } = self.replays;
        let events = &self.observed.device.events;
        let fatal = self.observed.fatal().map(|oom| oom.moment as usize);
        let with = |size: &dyn Fn(usize, u64) -> u64| {
            // What was caught is as in the recording: not served.
            let resize = |row: usize, bytes: u64| match events.action[row] {
                Action::OutOfMemory if fatal != Some(row) => 0,
                _ => size(row, bytes),
            };
            let change = Change { resize: Some(&resize), ..Change::default() };
            replayer.changed(&replayer.conf, Memory::UNLIMITED, change)
        };
        let before = match fatal {
            Some(_) => with_request.get_or_init(|| with(&|_, bytes| bytes)),
            None => served,
        };
        self.replays.saved(before, &with(size))
    }

    /// Whether an allocation of this kind grows with the batch.
    pub(crate) fn grows_with_the_batch(&self, index: u32, kind: Kind) -> bool {
        match kind {
            Kind::Activation | Kind::Input => true,
            Kind::Temporary => {
                let stack = self.observed.history.allocations.stack(index as usize);
                let facts = self.observed.sources.of_stack(stack);
                facts.phase != Phase::Optimizer && !facts.multi_tensor
            }
            _ => false,
        }
    }

    /// With everything that grows with the batch at half its size.
    pub(crate) fn half_batch(&self) -> Saved {
        let count = self.observed.history.allocations.len() as u32;
        let grows =
            |index: &u32| self.grows_with_the_batch(*index, self.observed.kinds.kind(*index as usize));
        let rows = self.observed.rows_of((0..count).filter(grows));
        self.resized(&|row, size| if rows[row] { size.div_ceil(2) } else { size })
    }

    /// Without some allocations.
    pub(crate) fn without(&self, dropped: &[u32]) -> Saved {
        let rows = self.observed.rows_of(dropped.iter().copied());
        self.resized(&|row, size| if rows[row] { 0 } else { size })
    }
}

impl Saved {
    /// Puts it into a finding: the allocated peak counts, the reserved one is mentioned. `with` says what was changed.
    pub(crate) fn add_to(&self, finding: Finding, with: &str, of: &'static str) -> Finding {
        let finding = if self.reserved > 0 {
            finding.because(format!(
                "{} {with}, the allocator reserves {} at most instead of {}",
                self.basis.name(),
                bytes(self.reserved_peak),
                bytes(self.reserved_before)
            ))
        } else {
            finding
        };
        let leaves = (self.reserved > 0).then_some(self.reserved_peak);
        Finding { leaves, ..finding.saves(self.allocated, self.basis, of) }
    }
}
