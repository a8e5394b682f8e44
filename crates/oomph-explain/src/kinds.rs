//! What a piece of memory is: parameter, gradient, optimizer state, activation and so on.
//!
//! PyTorch's recorder does not say. It follows from where the block was allocated ([`Phase`]), when it was let
//! go and from where: an activation is made in the forward pass and dropped by the backward pass, a
//! gradient is made in the backward pass and outlives it. What does not follow is [`Kind::Unknown`], and
//! reports say how much that is.

use crate::sources::{Phase, Sources};
use hashbrown::{HashMap, HashSet};
use oomph_trace::{Action, Device, History, Moment, NEVER, Recording, StackId};

/// What memory is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Weights and buffers of a model.
    Parameter,
    /// Weights that do not learn, as a recorder reported them.
    Frozen,
    /// Weights that learn in a model that is frozen for the most part, as a recorder reported them.
    Adapter,
    /// Gradients of weights.
    Gradient,
    /// What an optimizer keeps for each weight.
    OptimizerState,
    /// Kept by the forward pass for the backward pass.
    Activation,
    /// Needed for a moment.
    Temporary,
    /// Scratch memory of cuBLAS, cuDNN and the like.
    Workspace,
    /// Data that the program feeds to the model.
    Input,
    Unknown,
}

impl Kind {
    /// All kinds in the order in which reports list them.
    pub const ALL: [Self; 10] = [
        Self::Parameter,
        Self::Frozen,
        Self::Adapter,
        Self::Gradient,
        Self::OptimizerState,
        Self::Activation,
        Self::Temporary,
        Self::Workspace,
        Self::Input,
        Self::Unknown,
    ];

    /// The name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Parameter => "parameters",
            Self::Frozen => "frozen weights",
            Self::Adapter => "adapters",
            Self::Gradient => "gradients",
            Self::OptimizerState => "optimizer state",
            Self::Activation => "activations",
            Self::Temporary => "temporaries",
            Self::Workspace => "workspaces",
            Self::Input => "inputs",
            Self::Unknown => "unknown",
        }
    }

    /// The name for scripts.
    pub fn key(self) -> &'static str {
        match self {
            Self::OptimizerState => "optimizer_state",
            Self::Frozen => "frozen_weights",
            other => other.name(),
        }
    }

    /// Whether it is weights, of whichever sort.
    pub fn is_weights(self) -> bool {
        matches!(self, Self::Parameter | Self::Frozen | Self::Adapter)
    }

    /// Whether a step leaves it behind because of what the program is: no activation, no data, nothing kept by mistake.
    pub fn is_of_the_model(self) -> bool {
        self.is_weights() || matches!(self, Self::Gradient | Self::OptimizerState | Self::Workspace)
    }

    fn from_category(category: &str) -> Option<Self> {
        Some(match category {
            "parameter" => Self::Parameter,
            "frozen" => Self::Frozen,
            "adapter" => Self::Adapter,
            "gradient" => Self::Gradient,
            "optimizer_state" => Self::OptimizerState,
            "activation" | "autograd_detail" => Self::Activation,
            "temporary" => Self::Temporary,
            "input" => Self::Input,
            "unknown" => Self::Unknown,
            _ => return None,
        })
    }
}

/// cuBLAS takes one workspace a handle and keeps it: 32 MiB from Hopper on, 8.125 MiB before.
const CUBLAS_WORKSPACES: [u64; 2] = [32 << 20, 8_519_680];

/// Without stacks of frees: a block that outlives this many allocations of the forward pass was kept.
const KEPT_FOR: usize = 16;

/// Infers kinds. Made once a device.
pub(crate) struct Kinds<'a> {
    recording: &'a Recording,
    device: &'a Device,
    history: &'a History<'a>,
    sources: &'a Sources,
    /// Moments of allocations of the backward pass.
    backward: Vec<Moment>,
    /// Moments of allocations of the forward pass.
    forward: Vec<Moment>,
    /// Moments at which an optimizer allocated, or (from annotations) began to step.
    optimizer: Vec<Moment>,
    /// Whether frees carry the stack of the free rather than that of the allocation.
    free_stacks: bool,
    parameter_sizes: HashSet<u64>,
    /// Where steps begin and end.
    steps: &'a [Moment],
    /// Of the sizes that cuBLAS's workspaces have: the first block of each stack that is never freed, and how many
    /// there are.
    workspace_sized: HashMap<(u64, StackId), (u32, u32)>,
    /// What a recorder reported of blocks, by allocation.
    reported: HashMap<u32, Kind>,
    trains: bool,
    /// Until when a recorder lists what was there before it: blocks without an allocation.
    begun: Moment,
    /// When memory ran out for good: what was alive then is freed by the unwinding, which says nothing about its kind.
    death: Option<Moment>,
}

impl<'a> Kinds<'a> {
    /// Looks over the events once. `optimizer_steps` are moments that annotations name, `steps` where steps begin
    /// and end, if any were found.
    pub(crate) fn of(
        recording: &'a Recording,
        device: &'a Device,
        history: &'a History<'a>,
        sources: &'a Sources,
        optimizer_steps: &[Moment],
        steps: &'a [Moment],
        death: Option<Moment>,
    ) -> Self {
        let events = &device.events;
        let phases: Vec<Phase> =
            (0..recording.stacks.len()).map(|stack| sources.phase(stack as u32)).collect();
        let (mut backward, mut forward, mut optimizer) = (Vec::new(), Vec::new(), optimizer_steps.to_vec());
        let begun = listed_at_the_beginning(device, sources);
        for (row, (&action, &stack)) in events.action.iter().zip(&events.stack).enumerate() {
            if action != Action::Alloc || row < begun {
                continue;
            }
            let list = match phases.get(stack as usize) {
                Some(Phase::NoStack) if sources.has_stacks => &mut backward,
                Some(Phase::Backward | Phase::Recompute) => &mut backward,
                Some(Phase::Forward) => &mut forward,
                Some(Phase::Optimizer | Phase::OptimizerState) => &mut optimizer,
                _ => continue,
            };
            list.push(row as Moment + 1);
        }
        optimizer.sort_unstable();
        let mut kinds = Self {
            recording,
            device,
            history,
            sources,
            trains: !backward.is_empty()
                || !optimizer.is_empty()
                || mentions_an_optimizer(recording, sources),
            backward,
            forward,
            optimizer,
            free_stacks: frees_have_their_own_stack(device),
            parameter_sizes: HashSet::new(),
            steps,
            workspace_sized: HashMap::new(),
            reported: reported_kinds(recording, device, history),
            begun: begun as Moment,
            death,
        };
        let all = &history.allocations;
        for index in 0..all.len() {
            if all.freed(index) == NEVER && CUBLAS_WORKSPACES.contains(&all.requested(index)) {
                let key = (all.requested(index), all.stack(index));
                kinds.workspace_sized.entry(key).or_insert((index as u32, 0)).1 += 1;
            }
        }
        let setup_end = kinds.forward.first().copied().unwrap_or(NEVER);
        kinds.parameter_sizes = (0..all.len())
            .take_while(|&i| all.born(i) <= setup_end)
            .filter(|&i| kinds.phase(i) == Phase::Setup && all.freed(i) > setup_end)
            .map(|i| all.requested(i))
            .collect();
        kinds
    }

    /// Whether the recording shows a backward pass or an optimizer at all.
    pub(crate) fn trains(&self) -> bool {
        self.trains
    }

    /// Whether the recording shows an optimizer at work.
    pub(crate) fn updates(&self) -> bool {
        !self.optimizer.is_empty()
    }

    /// Until when blocks are from before the recording.
    pub(crate) fn begun(&self) -> Moment {
        self.begun
    }

    /// Whether frees say where they come from: some recorders leave their stacks out.
    pub(crate) fn frees_have_stacks(&self) -> bool {
        let events = &self.device.events;
        let frees =
            events.action.iter().zip(&events.stack).filter(|(action, _)| **action == Action::FreeRequested);
        self.free_stacks && frees.take(4096).any(|(_, &stack)| stack != oomph_trace::NO_STACK)
    }

    /// Moments of allocations of the backward pass, in order.
    pub(crate) fn backward(&self) -> &[Moment] {
        &self.backward
    }

    /// Whether the backward pass allocated in `(from, until]`.
    pub(crate) fn backward_within(&self, from: Moment, until: Moment) -> bool {
        self.first_after(&self.backward, from) <= until
    }

    /// Moments of allocations of the forward pass, in order.
    pub(crate) fn forward(&self) -> &[Moment] {
        &self.forward
    }

    fn phase(&self, index: usize) -> Phase {
        self.sources.phase(self.history.allocations.stack(index))
    }

    /// What the program was doing when it freed the block.
    fn phase_of_free(&self, index: usize) -> Option<Phase> {
        let row = self.history.allocations.freeing_event(index).filter(|_| self.free_stacks)?;
        Some(self.sources.phase(*self.device.events.stack.get(row)?))
    }

    /// What an allocation is.
    pub(crate) fn kind(&self, index: usize) -> Kind {
        if let Some(kind) = self.recorded(index) {
            return kind;
        }
        let all = &self.history.allocations;
        if !self.sources.has_stacks && all.stack(index) == oomph_trace::NO_STACK {
            return Kind::Unknown;
        }
        let facts = self.sources.of_stack(all.stack(index));
        if facts.native_workspace {
            return Kind::Workspace;
        }
        match facts.phase {
            Phase::NoStack | Phase::Backward => self.in_backward(index),
            Phase::Setup => {
                let next_use = self
                    .first_after(&self.forward, all.born(index))
                    .min(self.first_after(&self.optimizer, all.born(index)));
                let used = next_use < all.freed(index);
                let lasting = all.freed(index) == NEVER || used || self.forward.is_empty();
                if lasting { Kind::Parameter } else { Kind::Temporary }
            }
            Phase::Data => Kind::Input,
            Phase::OptimizerState => Kind::OptimizerState,
            Phase::Optimizer => {
                // Lives on into the next step: state that is made on first use.
                let forward_again = self.first_after(&self.forward, all.born(index)) < all.freed(index);
                let cut_short = facts.multi_tensor && self.dies_with_the_program(index) && !forward_again;
                if (all.freed(index) == NEVER || forward_again) && !cut_short {
                    Kind::OptimizerState
                } else {
                    Kind::Temporary
                }
            }
            Phase::ZeroGrad => Kind::Gradient,
            Phase::Forward | Phase::Recompute => self.in_forward(index),
            Phase::User => self.in_own_code(index),
        }
    }

    fn recorded(&self, index: usize) -> Option<Kind> {
        let column = &self.device.events.category;
        if column.is_empty() {
            return None;
        }
        if let Some(kind) = self.reported.get(&(index as u32)) {
            return Some(*kind);
        }
        let row = self.history.allocations.born(index).checked_sub(1)?;
        let at = column.binary_search_by_key(&row, |&(r, _)| r).ok()?;
        Kind::from_category(self.recording.strings.get(column[at].1))
    }

    fn first_after(&self, moments: &[Moment], moment: Moment) -> Moment {
        moments.get(moments.partition_point(|&m| m <= moment)).copied().unwrap_or(NEVER)
    }

    /// How many ends of steps a lifetime spans.
    fn steps_within(&self, born: Moment, freed: Moment) -> usize {
        let from = self.steps.partition_point(|&boundary| boundary <= born);
        self.steps[from..].partition_point(|&boundary| boundary < freed)
    }

    fn in_backward(&self, index: usize) -> Kind {
        let all = &self.history.allocations;
        let (born, freed) = (all.born(index), all.freed(index));
        if born <= self.begun {
            return Kind::Unknown; // from before the recording, and without a stack
        }
        if self.is_cublas_workspace(index) {
            return Kind::Workspace;
        }
        let dies = self.dies_with_the_program(index);
        match self.phase_of_free(index).filter(|_| !dies) {
            Some(Phase::ZeroGrad | Phase::Optimizer) => Kind::Gradient,
            Some(Phase::NoStack | Phase::Backward) => {
                // Freed by autograd itself; a gradient that is accumulated into lives through it.
                Kind::Temporary
            }
            _ => {
                // Still there when the optimizer runs, or when the next forward pass begins.
                let next_phase =
                    self.first_after(&self.optimizer, born).min(self.first_after(&self.forward, born));
                let outlives = dies || freed == NEVER || next_phase < freed;
                let like_a_parameter =
                    self.parameter_sizes.is_empty() || self.parameter_sizes.contains(&all.requested(index));
                if outlives && like_a_parameter { Kind::Gradient } else { Kind::Temporary }
            }
        }
    }

    fn is_cublas_workspace(&self, index: usize) -> bool {
        let all = &self.history.allocations;
        let key = (all.requested(index), all.stack(index));
        let Some(&(first, count)) = self.workspace_sized.get(&key) else { return false };
        // One for each handle, kept for good, of no size that the model itself has. All of the backward pass has one
        // stack, so there it is the first of its size.
        let alone = count == 1 || self.sources.phase(key.1) == Phase::NoStack;
        alone
            && first as usize == index
            && !self.parameter_sizes.contains(&key.0)
            && self.sources.of_stack(key.1).product
    }

    fn in_forward(&self, index: usize) -> Kind {
        let all = &self.history.allocations;
        let (born, freed) = (all.born(index), all.freed(index));
        let facts = self.sources.of_stack(all.stack(index));
        if self.is_cublas_workspace(index) {
            return Kind::Workspace;
        }
        if self.dies_with_the_program(index) {
            // The operation that failed may have made it for itself a moment before; everything older is kept.
            return Kind::Activation;
        }
        if self.freed_in_the_same_call(index) {
            return if facts.convolution { Kind::Workspace } else { Kind::Temporary };
        }
        if self.first_after(&self.backward, born) < freed {
            return Kind::Activation;
        }
        match self.phase_of_free(index) {
            Some(Phase::NoStack | Phase::Backward | Phase::Recompute) => Kind::Activation,
            // Let go while modules are still being called: the next layer did not need it any more.
            Some(Phase::Forward) => Kind::Temporary,
            Some(_) => Kind::Activation,
            None => {
                let from = self.forward.partition_point(|&m| m <= born);
                let later = self.forward[from..].iter().take_while(|&&m| m < freed).take(KEPT_FOR).count();
                if later == KEPT_FOR || freed == NEVER { Kind::Activation } else { Kind::Temporary }
            }
        }
    }

    /// Alive when memory ran out for good.
    fn dies_with_the_program(&self, index: usize) -> bool {
        self.death.is_some_and(|death| self.history.allocations.alive(index, death))
    }

    /// Allocated and freed by one call, so never seen by the program.
    fn freed_in_the_same_call(&self, index: usize) -> bool {
        let all = &self.history.allocations;
        let free = all.freeing_event(index).and_then(|row| self.device.events.stack.get(row));
        self.free_stacks && free.is_some_and(|&free| self.sources.same_call(free, all.stack(index)))
    }

    fn in_own_code(&self, index: usize) -> Kind {
        let all = &self.history.allocations;
        let (born, freed) = (all.born(index), all.freed(index));
        if self.is_cublas_workspace(index) {
            return Kind::Workspace;
        }
        if !self.dies_with_the_program(index) && self.freed_in_the_same_call(index) {
            return Kind::Temporary;
        }
        let next_backward = self.first_after(&self.backward, born);
        let next_forward = self.first_after(&self.forward, born);
        let freed = if self.dies_with_the_program(index) { NEVER } else { freed };
        let facts = self.sources.of_stack(all.stack(index));
        if facts.parallel {
            return Kind::Gradient; // the buckets in which gradients are reduced
        }
        // Data does not outlive its step.
        let lasting = self.steps_within(born, freed) >= 2;
        if facts.model_init && next_forward < freed && (lasting || freed == NEVER) {
            return Kind::Parameter;
        }
        if next_forward < freed && next_forward < next_backward {
            // Made before the model is called, and there while it is.
            return if lasting { Kind::Unknown } else { Kind::Input };
        }
        if next_backward < freed {
            return Kind::Activation; // made between forward and backward: the loss and what leads to it
        }
        if freed == NEVER { Kind::Unknown } else { Kind::Temporary }
    }
}

/// A recorder that begins late first lists what is there: segments and blocks without a stack, before anything has one.
fn listed_at_the_beginning(device: &Device, sources: &Sources) -> usize {
    let events = &device.events;
    if !sources.has_stacks {
        return 0;
    }
    let stackless = events.stack.iter().take_while(|&&stack| stack == oomph_trace::NO_STACK).count();
    let listing =
        |action: &Action| matches!(action, Action::SegmentAlloc | Action::SegmentMap | Action::Alloc);
    events.action[..stackless].iter().take_while(|action| listing(action)).count()
}

/// A program that died in its first forward pass has no backward pass yet, but may have spoken of one.
fn mentions_an_optimizer(recording: &Recording, sources: &Sources) -> bool {
    let annotated = (recording.annotations.iter())
        .any(|annotation| recording.strings.get(annotation.name).starts_with("Optimizer."));
    annotated || sources.any(|facts| facts.phase == Phase::ZeroGrad || facts.training)
}

/// Kinds that were reported of live blocks: by optimizers, which know what is theirs. A later report replaces an earlier one.
fn reported_kinds(recording: &Recording, device: &Device, history: &History) -> HashMap<u32, Kind> {
    let events = &device.events;
    let says =
        events.category.iter().filter(|(row, _)| events.action.get(*row as usize) == Some(&Action::Annotate));
    let says: Vec<(u32, Kind)> =
        says.filter_map(|(row, id)| Some((*row, Kind::from_category(recording.strings.get(*id))?))).collect();
    if says.is_empty() {
        return HashMap::new();
    }
    let all = &history.allocations;
    let wanted: HashSet<u64> = says.iter().map(|(row, _)| events.address[*row as usize]).collect();
    let mut at: HashMap<u64, Vec<u32>> = HashMap::new();
    for index in 0..all.len() {
        if wanted.contains(&all.address(index)) {
            at.entry(all.address(index)).or_default().push(index as u32);
        }
    }
    let mut kinds = HashMap::new();
    for (row, kind) in says {
        let Some(candidates) = at.get(&events.address[row as usize]) else { continue };
        // In order of birth: the last that was born before.
        let born = candidates.partition_point(|&index| all.born(index as usize) <= row);
        if let Some(&index) = born.checked_sub(1).and_then(|last| candidates.get(last))
            && all.freed(index as usize) > row
        {
            kinds.insert(index, kind);
        }
    }
    kinds
}

/// With `context="alloc"` PyTorch writes the allocation's stack on frees too, which says nothing about them.
fn frees_have_their_own_stack(device: &Device) -> bool {
    let events = &device.events;
    let mut open = HashMap::new();
    let (mut pairs, mut same) = (0u32, 0u32);
    for row in 0..events.len() {
        match events.action[row] {
            Action::Alloc => {
                open.insert(events.address[row], events.stack[row]);
            }
            Action::FreeRequested | Action::FreeCompleted => {
                if let Some(stack) = open.remove(&events.address[row]) {
                    pairs += 1;
                    same += u32::from(stack == events.stack[row]);
                }
            }
            _ => {}
        }
        if pairs == 4096 {
            break;
        }
    }
    pairs > 0 && same < pairs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::{Steps, optimizer_steps};
    use std::path::Path;

    /// On a real GPU the program itself wrote down which storage is a parameter, a gradient, an optimizer's state. Of
    /// those bytes, at least this share must be inferred right in every recording that has stacks from the start.
    const RIGHT: f64 = 0.99;

    #[test]
    fn kinds_agree_with_what_the_program_said_on_a_real_gpu() {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/h200"));
        let truth = std::fs::read_to_string(folder.join("truth.jsonl")).unwrap();
        let mut scored = 0;
        let mut wrong = Vec::new();
        for line in truth.lines() {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            let case = row["case"].as_str().unwrap();
            let said: HashMap<u64, &str> = (row["kinds"].as_object().unwrap().iter())
                .map(|(address, kind)| (address.parse().unwrap(), kind.as_str().unwrap()))
                .collect();
            // Without stacks, or without the beginning, nothing is known, and nothing is claimed.
            let blind = [
                "plain_context_none",
                "plain_context_state",
                "plain_state",
                "ring",
                "late",
                "plain_observer_oom",
            ];
            if said.is_empty() || blind.contains(&case) {
                continue;
            }
            let recording = oomph_trace::read_path(folder.join(format!("{case}.pickle.xz"))).unwrap();
            let device = &recording.devices[0];
            let history = History::of(&recording, device);
            let sources = Sources::of(&recording);
            let steps =
                Steps::find(&recording, device, &sources).map_or(Vec::new(), |steps| steps.boundaries);
            let annotated = optimizer_steps(&recording, device);
            let kinds = Kinds::of(&recording, device, &history, &sources, &annotated, &steps, None);
            let (mut right, mut all) = (0u64, 0u64);
            let mut confused: HashMap<(String, Kind), u64> = HashMap::new();
            for index in history.alive_at(device.events.len() as Moment) {
                let i = index as usize;
                let Some(&said) = said.get(&history.allocations.address(i)) else { continue };
                let kind = kinds.kind(i);
                let bytes = history.allocations.size(i);
                all += bytes;
                let expected = Kind::from_category(said).unwrap();
                if kind == expected {
                    right += bytes;
                } else {
                    *confused.entry((said.to_owned(), kind)).or_default() += bytes;
                }
            }
            scored += 1;
            if (right as f64) < RIGHT * all as f64 {
                wrong.push(format!("{case}: {right} of {all} bytes, {confused:?}"));
            }
        }
        assert!(scored >= 15, "only {scored} recordings were scored");
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
