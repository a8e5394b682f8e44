//! Steps: the repeating pattern of a program, found without marks.
//!
//! Three witnesses, the best first: the optimizer's own annotations; runs of allocations by an
//! optimizer; and the loop itself, seen as the line of one function jumping back up.

use crate::sources::{Phase, Sources};
use hashbrown::HashMap;
use oomph_trace::{Action, Annotation, Device, Moment, Recording, StackId, Stage};

/// How steps were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Witness {
    /// Annotations of the optimizer.
    Annotations,
    /// An optimizer's allocations.
    Optimizer,
    /// A line that is passed again and again.
    Loop,
}

impl Witness {
    /// The name for scripts.
    pub fn key(self) -> &'static str {
        match self {
            Self::Annotations => "annotations",
            Self::Optimizer => "optimizer",
            Self::Loop => "loop",
        }
    }
}

/// The steps of a recording.
#[derive(Clone, Debug)]
pub(crate) struct Steps {
    /// Where steps begin and end: one more than there are steps.
    pub(crate) boundaries: Vec<Moment>,
    pub(crate) witness: Witness,
    /// Whether the last one was cut short by the end of the recording.
    pub(crate) last_is_partial: bool,
}

impl Steps {
    pub(crate) fn count(&self) -> usize {
        self.boundaries.len() - 1
    }

    /// The step that `moment` falls into, from 0.
    pub(crate) fn at(&self, moment: Moment) -> Option<usize> {
        let index = self.boundaries.partition_point(|&b| b < moment);
        (index > 0 && index < self.boundaries.len()).then(|| index - 1)
    }

    /// A step's moments.
    pub(crate) fn range(&self, step: usize) -> std::ops::Range<Moment> {
        self.boundaries[step]..self.boundaries[step + 1]
    }

    /// Finds steps, if there are at least two.
    pub(crate) fn find(recording: &Recording, device: &Device, sources: &Sources) -> Option<Self> {
        from_annotations(recording, device)
            .or_else(|| from_optimizer(device, sources))
            .or_else(|| from_loop(recording, device, sources))
    }
}

/// Moments at which an optimizer's step begins, as annotated.
pub(crate) fn optimizer_steps(recording: &Recording, device: &Device) -> Vec<Moment> {
    annotated(recording, device, Stage::Start)
}

fn annotated(recording: &Recording, device: &Device, stage: Stage) -> Vec<Moment> {
    if !device.events.has_times() {
        return Vec::new();
    }
    let ours =
        |a: &&Annotation| a.stage == stage && recording.strings.get(a.name).starts_with("Optimizer.step");
    // They carry the device that was current, which need not be the one that was used.
    let any_here = recording.annotations.iter().any(|a| ours(&a) && a.device == device.ordinal);
    let mut moments: Vec<Moment> = (recording.annotations.iter())
        .filter(|a| ours(a) && (a.device == device.ordinal || !any_here))
        // Times are not strictly in order, but near enough for a bisection to find the place.
        .map(|a| device.events.time.partition_point(|&t| t <= a.time) as Moment)
        .collect();
    moments.sort_unstable();
    moments.dedup();
    moments
}

fn from_annotations(recording: &Recording, device: &Device) -> Option<Steps> {
    let ends = annotated(recording, device, Stage::End);
    with_ends(device, ends, Witness::Annotations)
}

fn from_optimizer(device: &Device, sources: &Sources) -> Option<Steps> {
    let events = &device.events;
    let mut ends = Vec::new();
    let mut inside = false;
    for row in 0..events.len() {
        if events.action[row] != Action::Alloc {
            continue;
        }
        match sources.phase(events.stack[row]) {
            Phase::Optimizer | Phase::OptimizerState => inside = true,
            _ => {
                if std::mem::take(&mut inside) {
                    ends.push(row as Moment);
                }
            }
        }
    }
    if inside {
        ends.push(events.len() as Moment);
    }
    with_ends(device, ends, Witness::Optimizer)
}

fn with_ends(device: &Device, ends: Vec<Moment>, witness: Witness) -> Option<Steps> {
    let count = device.events.len() as Moment;
    let mut boundaries = vec![0];
    boundaries.extend(ends.into_iter().filter(|&end| end > 0));
    boundaries.dedup();
    if boundaries.len() < 2 {
        return None;
    }
    // What comes after the last step is a step too if it allocates: one that was cut short.
    let last = *boundaries.last()?;
    let allocations = device.events.action[(last as usize).min(device.events.len())..]
        .iter()
        .filter(|&&action| action == Action::Alloc)
        .count();
    let last_is_partial = allocations >= 8;
    if last_is_partial {
        boundaries.push(count);
    }
    (boundaries.len() > 2).then_some(Steps { boundaries, witness, last_is_partial })
}

/// A step from one stack to the next, seen from the outermost frame: the first function that is in both
/// but at another line.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Jump {
    depth: u32,
    file: u32,
    function: u32,
    from_line: u32,
    to_line: u32,
}

fn from_loop(recording: &Recording, device: &Device, sources: &Sources) -> Option<Steps> {
    let events = &device.events;
    let mut known: HashMap<(StackId, StackId), Option<Jump>> = HashMap::new();
    let mut jumps: HashMap<Jump, Vec<Moment>> = HashMap::new();
    let mut before: Option<StackId> = None;
    let mut first = None;
    // Where modules are called, loops before the first call only prepare.
    let begin = (0..events.len())
        .find(|&row| {
            events.action[row] == Action::Alloc && sources.phase(events.stack[row]) == Phase::Forward
        })
        .unwrap_or(0);
    for row in 0..events.len() {
        let stack = events.stack[row];
        // Loops over a model's parts while it is built are not steps either.
        let counts = matches!(sources.phase(stack), Phase::Forward | Phase::User | Phase::Data);
        if events.action[row] != Action::Alloc || !counts {
            continue;
        }
        first.get_or_insert(row as Moment);
        if let Some(before) = before
            && before != stack
            && row >= begin
            && let Some(jump) =
                *known.entry((before, stack)).or_insert_with(|| jump_back(recording, before, stack))
        {
            jumps.entry(jump).or_default().push(row as Moment);
        }
        before = Some(stack);
    }
    // The outermost loop with at least two returns. Loops of one function may lie inside each other: the outer
    // one returns from further down, and at least as far up.
    let often = |jump: &Jump| jumps[jump].len() >= 2;
    let outermost = *(jumps.keys().filter(|jump| often(jump))).min_by_key(|jump| {
        (jump.depth, jump.to_line, std::cmp::Reverse(jump.from_line), jump.file, jump.function)
    })?;
    let at = &jumps[&outermost];
    let mut boundaries = vec![first?];
    boundaries.extend_from_slice(at);
    boundaries.push(events.len() as Moment);
    boundaries.dedup();
    // The last round is whole unless it has clearly fewer events than the one before.
    let lengths: Vec<u32> = boundaries.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let last_is_partial = match lengths[..] {
        [.., previous, last] => last * 10 < previous * 9,
        _ => false,
    };
    (boundaries.len() > 2).then_some(Steps { boundaries, witness: Witness::Loop, last_is_partial })
}

fn jump_back(recording: &Recording, from: StackId, to: StackId) -> Option<Jump> {
    // Loops inside a module's call are layers, not steps.
    let outside_modules = |stack: StackId| {
        (recording.stacks.get(stack).iter().rev())
            .map(|&id| recording.stacks.frame(id))
            .filter(|frame| !crate::sources::is_native(recording, frame))
            .take_while(|frame| !crate::sources::is_module_call(recording, frame))
    };
    for (depth, (a, b)) in outside_modules(from).zip(outside_modules(to)).enumerate() {
        if (a.file, a.name) != (b.file, b.name) {
            return None;
        }
        if a.line != b.line {
            let jump = Jump {
                depth: depth as u32,
                file: b.file,
                function: b.name,
                from_line: a.line,
                to_line: b.line,
            };
            return (b.line < a.line).then_some(jump);
        }
    }
    None
}
