//! What a device's recording shows: the recording, what its stacks and blocks mean, its steps and out-of-memories, worked out once.
//!
//! Boundary: data, and questions that data answers at once. What has to be searched or replayed for is built on it
//! (`growth`, `kept`, `what_if`), and [`crate::context`] keeps it for the rules.

use crate::cells::Cells;
use crate::finding::{Place, Where};
use crate::forwards::Forwards;
use crate::kinds::{Kind, Kinds};
use crate::oom::{OutOfMemory, Outcome};
use crate::sources::{Phase, Sources};
use crate::steps::Steps;
use crate::waste::Waste;
use hashbrown::{HashMap, HashSet};
use oomph_trace::census::Census;
use oomph_trace::{Action, Device, FrameId, History, Moment, NO_STACK, Recording, StackId};

/// One device of a recording, seen through and through.
pub(crate) struct Observed<'a> {
    pub(crate) recording: &'a Recording,
    pub(crate) device: &'a Device,
    /// Its blocks' lifetimes.
    pub(crate) history: &'a History<'a>,
    /// What its stacks mean.
    pub(crate) sources: &'a Sources,
    pub(crate) kinds: &'a Kinds<'a>,
    /// Its steps, if any were found.
    pub(crate) steps: Option<Steps>,
    pub(crate) ooms: Vec<OutOfMemory>,
    /// What is alive at the allocated peak, with its kind.
    pub(crate) alive: Vec<(u32, Kind)>,
    /// The moment that is explained: when memory ran out for good, else the allocated peak.
    pub(crate) moment: Moment,
    /// What is alive then, with its kind.
    pub(crate) held: Vec<(u32, Kind)>,
    /// Forward passes up to then.
    pub(crate) forwards: Forwards,
    /// Who held what when memory ran out for good, if the recorder could ask.
    pub(crate) census: Option<&'a Census>,
    /// Everything reserved at the allocated peak.
    pub(crate) waste: Waste,
    /// Everything reserved at the reserved peak.
    pub(crate) waste_at_reserved_peak: Waste,
    /// How many events there are of each action, by its number.
    pub(crate) actions: [u64; Action::ALL.len()],
    /// Allocations that were recorded without a stack.
    pub(crate) without_stack: u64,
    cells: &'a Cells,
}

/// What was found beside lifetimes and kinds.
pub(crate) struct Found<'a> {
    /// Steps, if there are any.
    pub(crate) steps: Option<Steps>,
    pub(crate) ooms: Vec<OutOfMemory>,
    /// Cells of a notebook.
    pub(crate) cells: &'a Cells,
    /// Who held what, with cells by their numbers.
    pub(crate) censuses: &'a [Census],
}

impl<'a> Observed<'a> {
    /// Puts together what the others worked out.
    pub(crate) fn of(
        recording: &'a Recording,
        device: &'a Device,
        history: &'a History<'a>,
        sources: &'a Sources,
        kinds: &'a Kinds<'a>,
        found: Found<'a>,
    ) -> Self {
        let Found { steps, mut ooms, cells, censuses } = found;
        let fatal = ooms.iter().find(|oom| oom.outcome == Outcome::Fatal);
        let moment = fatal.map_or(history.peak.allocated.moment, |oom| oom.moment);
        let census = fatal.and_then(|_| censuses.iter().rfind(|census| census.device == device.ordinal));
        let died = fatal.is_some();
        let forwards = Forwards::of(device, sources, kinds.frees_have_stacks(), moment);
        for oom in ooms.iter_mut().filter(|oom| oom.outcome == Outcome::Fatal) {
            oom.look_back(device, history, sources, &forwards, census.and_then(|census| census.needs));
        }
        let alive: Vec<(u32, Kind)> = (history.alive_at(history.peak.allocated.moment).into_iter())
            .map(|index| (index, kinds.kind(index as usize)))
            .collect();
        let (mut actions, mut without_stack) = ([0; Action::ALL.len()], 0);
        for (&action, &stack) in device.events.action.iter().zip(&device.events.stack) {
            actions[action as usize] += 1;
            without_stack += u64::from(action == Action::Alloc && stack == NO_STACK);
        }
        // A segment is taken for a block that follows at once: with it in place the picture is right.
        let mut reserved_peak = history.peak.reserved.moment;
        if device.events.action.get(reserved_peak as usize) == Some(&Action::Alloc) {
            reserved_peak += 1;
        }
        Self {
            recording,
            device,
            history,
            sources,
            kinds,
            steps,
            held: if died {
                (history.alive_at(moment).into_iter())
                    .map(|index| (index, kinds.kind(index as usize)))
                    .collect()
            } else {
                Vec::clone(&alive)
            },
            forwards,
            ooms,
            alive,
            moment,
            census,
            waste: Waste::at(history, &recording.settings, history.peak.allocated.moment),
            waste_at_reserved_peak: Waste::at(history, &recording.settings, reserved_peak),
            actions,
            without_stack,
            cells,
        }
    }

    /// The allocated peak.
    pub(crate) fn peak(&self) -> u64 {
        self.history.peak.allocated.bytes
    }

    /// Whether everything is there from the first event to the last: only then do sums over it mean something.
    pub(crate) fn is_whole(&self) -> bool {
        !self.device.events.is_empty()
            && self.history.allocations.born_before() == 0
            && self.device.overflowed != Some(true)
            && !self.recording.source.truncated
    }

    /// Whether gradients are wanted where memory ran out, as far as is known.
    pub(crate) fn trains_now(&self) -> bool {
        self.kinds.trains() && !self.without_gradients()
    }

    /// Whether autograd was off (`no_grad`) where memory ran out. In a backward pass it never records.
    pub(crate) fn without_gradients(&self) -> bool {
        let goes_backward = self.fatal().is_some_and(|oom| {
            matches!(self.sources.phase(oom.stack), Phase::Backward | Phase::NoStack | Phase::Recompute)
        });
        !goes_backward && self.census.is_some_and(|census| census.grad_enabled == Some(false))
    }

    /// Whether memory ran out in a step of training, or the peak is one's. In the first step no backward pass has been yet, but there may
    /// be an optimizer; and that steps without gradients itself.
    pub(crate) fn is_training(&self) -> bool {
        let updating = self.fatal().is_some_and(|oom| {
            matches!(
                self.sources.phase(oom.stack),
                Phase::Optimizer | Phase::OptimizerState | Phase::ZeroGrad
            )
        });
        let optimizer = self.census.is_some_and(|census| !census.optimizers.is_empty());
        (self.kinds.trains() || optimizer) && (updating || !self.without_gradients())
    }

    /// How much memory the program had: what it had taken, and what was left. Less than that where a limit stopped it.
    pub(crate) fn capacity(&self) -> u64 {
        match self.fatal() {
            Some(oom) if !oom.limited => oom.waste.reserved + oom.device_free,
            Some(oom) => oom.waste.reserved.max(self.history.peak.reserved.bytes),
            None => self.history.peak.reserved.bytes,
        }
    }

    /// Bytes of one kind at the moment that is explained.
    pub(crate) fn held_of(&self, kind: Kind) -> u64 {
        let of_kind = self.held.iter().filter(|&&(_, of)| of == kind);
        of_kind.map(|&(index, _)| self.history.allocations.size(index as usize)).sum()
    }

    /// Bytes allocated at the moment that is explained.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held.iter().map(|&(index, _)| self.history.allocations.size(index as usize)).sum()
    }

    /// Which events made these allocations: true at their rows.
    pub(crate) fn rows_of(&self, indices: impl IntoIterator<Item = u32>) -> Vec<bool> {
        let mut rows = vec![false; self.device.events.len()];
        for index in indices {
            let born = self.history.allocations.born(index as usize);
            if let Some(row) = (born as usize).checked_sub(1) {
                rows[row] = true;
            }
        }
        rows
    }

    /// The out-of-memory that the program died of.
    pub(crate) fn fatal(&self) -> Option<&OutOfMemory> {
        self.ooms.iter().find(|oom| oom.outcome == Outcome::Fatal)
    }

    /// Bytes at the allocated peak, by kind, largest first.
    pub(crate) fn by_kind(&self) -> Vec<(Kind, u64, u64)> {
        let mut sums: HashMap<Kind, (u64, u64)> = HashMap::new();
        for &(index, kind) in &self.alive {
            let sum = sums.entry(kind).or_default();
            sum.0 += self.history.allocations.size(index as usize);
            sum.1 += 1;
        }
        let mut by_kind: Vec<_> =
            sums.into_iter().map(|(kind, (bytes, count))| (kind, bytes, count)).collect();
        by_kind.sort_by_key(|&(kind, bytes, _)| (std::cmp::Reverse(bytes), kind));
        by_kind
    }

    /// Bytes of one kind at the allocated peak.
    pub(crate) fn bytes_of(&self, kind: Kind) -> u64 {
        let of_kind = self.alive.iter().filter(|&&(_, of)| of == kind);
        of_kind.map(|&(index, _)| self.history.allocations.size(index as usize)).sum()
    }

    /// The place that stands for a stack.
    pub(crate) fn place(&self, stack: StackId, born: Moment) -> Place {
        match self.sources.of_stack(stack).place {
            Some(frame) => self.place_of_frame(frame, self.sources.of_stack(stack).own),
            None if born <= self.kinds.begun() => Place::Before,
            None if self.sources.has_stacks => Place::Backward,
            None => Place::NoStack,
        }
    }

    /// A frame as a place.
    pub(crate) fn place_of_frame(&self, frame: FrameId, own: bool) -> Place {
        let frame = self.recording.stacks.frame(frame);
        Place::Line {
            file: self.cells.name(self.recording.strings.get(frame.file)),
            line: frame.line,
            function: self.recording.strings.get(frame.name).to_owned(),
            own,
        }
    }

    /// Allocations grouped by place, largest first.
    pub(crate) fn places(&self, indices: impl IntoIterator<Item = u32>) -> Vec<Where> {
        let all = &self.history.allocations;
        // By frame first: comparing numbers, not paths.
        let mut groups: HashMap<(Option<FrameId>, bool), (u64, u64, StackId, Moment)> = HashMap::new();
        for index in indices {
            let i = index as usize;
            let stack = all.stack(i);
            let place = self.sources.of_stack(stack).place;
            let before = place.is_none() && all.born(i) <= self.kinds.begun();
            let group = groups.entry((place, before)).or_insert((0, 0, stack, all.born(i)));
            group.0 += all.size(i);
            group.1 += 1;
        }
        let mut places: Vec<Where> = groups
            .into_values()
            .map(|(bytes, count, stack, born)| Where { place: self.place(stack, born), bytes, count })
            .collect();
        places.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.place.cmp(&b.place)));
        places
    }

    /// The innermost of the program's own frames that nearly all of these stacks go through: where they part
    /// is below it. Stacks come with their bytes.
    pub(crate) fn common_frame(&self, stacks: &HashMap<StackId, u64>) -> Option<FrameId> {
        let total: u64 = stacks.values().sum();
        let mut through: HashMap<FrameId, (u64, usize)> = HashMap::new();
        for (&stack, &bytes) in stacks {
            let frames = self.recording.stacks.get(stack);
            let mut seen = HashSet::new();
            for (depth, &frame) in frames.iter().rev().enumerate() {
                if !self.is_own(frame) || !seen.insert(frame) {
                    continue;
                }
                let entry = through.entry(frame).or_default();
                entry.0 += bytes;
                entry.1 = entry.1.max(depth);
            }
        }
        // Of all frames that hold nine tenths of the bytes, the one nearest to them.
        through
            .into_iter()
            .filter(|(_, (bytes, _))| *bytes as f64 >= 0.9 * total as f64)
            .max_by_key(|&(frame, (_, depth))| (depth, frame))
            .map(|(frame, _)| frame)
    }

    fn is_own(&self, frame: FrameId) -> bool {
        self.sources.is_own(frame)
    }

    /// When a moment was, in seconds after the first event.
    pub(crate) fn seconds(&self, moment: Moment) -> Option<f64> {
        let time = &self.device.events.time;
        let first = *time.first().filter(|&&t| t != 0)?;
        let at = *time.get((moment as usize).saturating_sub(1))?;
        Some(at.wrapping_sub(first).max(0) as f64 / 1e6)
    }
}
