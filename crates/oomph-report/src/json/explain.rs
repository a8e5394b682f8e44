//! What `oomph explain` prints: recordings, devices, findings. Other verbs have its places, peaks and findings too.

use super::document;
use crate::shared::{Named, worst};
use oomph_explain::ranks::{Difference, Group, Member, groups};
use oomph_explain::{
    self as model, Completeness, DeviceExplanation, KindBytes, LineBytes, OomExplanation, Outcome,
    StackBytes, StepsExplanation,
};
use oomph_trace as trace;
use serde::Serialize;
use serde_json::{Map, Value};

/// How many steps are listed one by one.
const MOST_STEPS: usize = 10_000;

/// One recording, or several.
pub fn explanation(all: &[Named]) -> String {
    match all {
        [one] => document(Recording::of(one)),
        several => {
            let explanations: Vec<&model::Explanation> =
                several.iter().map(|named| named.explanation).collect();
            let groups = groups(&explanations);
            let found = model::findings_of_processes(&explanations);
            document(Recordings {
                recordings: several.iter().map(Recording::of).collect(),
                groups: Alike::all(several, &groups),
                worst: worst(several)
                    .map(|(index, device)| One { file: several[index].name, device: device.ordinal }),
                findings: found.iter().map(Finding::of).collect(),
            })
        }
    }
}

#[derive(Serialize)]
struct Recordings<'a> {
    /// One for each file that could be read.
    recordings: Vec<Recording<'a>>,
    /// Devices that did the same, within 2 % of their peaks; the largest group first.
    groups: Vec<Alike<'a>>,
    /// The worst: one that died is worse than one that did not; among equals, the highest reserved peak.
    worst: Option<One<'a>>,
    /// What none of them shows alone: copies in several processes of one program. What one has is in its recording.
    findings: Vec<Finding<'a>>,
}

#[derive(Serialize)]
struct One<'a> {
    /// Its file.
    file: &'a str,
    /// Its device.
    device: u32,
}

#[derive(Serialize)]
struct Alike<'a> {
    /// Who they are.
    members: Vec<One<'a>>,
    /// The worst of them.
    worst: One<'a>,
    /// `null` for the many, and where there are no many.
    stands_out: Option<StandsOut<'a>>,
}

#[derive(Serialize)]
struct StandsOut<'a> {
    /// The number of the group that it was compared with, from 0: of the large ones the one that is most like it.
    beside: usize,
    /// In what it differs from that, what weighs most first.
    differences: Vec<RankDifference<'a>>,
}

/// What is not said of a difference is `null`.
#[derive(Serialize)]
struct RankDifference<'a> {
    /// `died`, `lived`, `held`, `reserved`, `found` or `not_found`.
    what: &'static str,
    /// With `held`: the kind of memory.
    kind: Option<&'static str>,
    /// With `held` and `reserved`: bytes here.
    here: Option<u64>,
    /// With `held` and `reserved`: bytes of the others.
    there: Option<u64>,
    /// With `held`: the line with the largest part of the difference.
    line: Option<Place<'a>>,
    /// Bytes of that part.
    line_bytes: Option<u64>,
    /// With `found` and `not_found`: the finding's code.
    code: Option<&'static str>,
}

impl<'a> Alike<'a> {
    fn all(several: &[Named<'a>], groups: &'a [Group]) -> Vec<Self> {
        let one = |member: Member| One {
            file: several[member.recording].name,
            device: several[member.recording].explanation.devices[member.device].ordinal,
        };
        (groups.iter())
            .map(|group| Alike {
                members: group.members.iter().map(|&member| one(member)).collect(),
                worst: one(group.worst),
                stands_out: group.odd.as_ref().map(|odd| StandsOut {
                    beside: odd.beside,
                    differences: odd.differences.iter().map(RankDifference::of).collect(),
                }),
            })
            .collect()
    }
}

impl<'a> RankDifference<'a> {
    fn of(difference: &'a Difference) -> Self {
        let plain = |what| Self {
            what,
            kind: None,
            here: None,
            there: None,
            line: None,
            line_bytes: None,
            code: None,
        };
        match difference {
            Difference::Died => plain("died"),
            Difference::Lived => plain("lived"),
            Difference::Held { kind, here, there, line } => Self {
                kind: Some(kind.key()),
                here: Some(*here),
                there: Some(*there),
                line: line.as_ref().map(|(place, _)| Place::of(place)),
                line_bytes: line.as_ref().map(|(_, bytes)| *bytes),
                ..plain("held")
            },
            Difference::Reserved { here, there } => {
                Self { here: Some(*here), there: Some(*there), ..plain("reserved") }
            }
            Difference::Found { code, .. } => Self { code: Some(code), ..plain("found") },
            Difference::NotFound { code, .. } => Self { code: Some(code), ..plain("not_found") },
        }
    }
}

#[derive(Serialize)]
struct Recording<'a> {
    /// The file, as it was given.
    file: &'a str,
    /// The file's format, for people: `PyTorch snapshot`, `PyTorch snapshot (JSON)`, `PyTorch snapshot (memory_viz page)`,
    /// `oomph recording`.
    format: &'static str,
    /// One for each device that has events or segments.
    devices: Vec<Device<'a>>,
    /// The process's own memory, where that was recorded.
    host: Option<Host<'a>>,
    /// Of all devices, worst first.
    findings: Vec<Finding<'a>>,
    /// What the reader had to say.
    warnings: Vec<Warning<'a>>,
}

impl<'a> Recording<'a> {
    fn of(named: &Named<'a>) -> Self {
        let model::Explanation { format, devices, host, findings, warnings } = named.explanation;
        Self {
            file: named.name,
            format,
            devices: devices.iter().map(Device::of).collect(),
            host: host.as_ref().map(Host::of),
            findings: findings.iter().map(Finding::of).collect(),
            warnings: warnings.iter().map(|one| Warning { code: one.code, message: &one.message }).collect(),
        }
    }
}

#[derive(Serialize)]
struct Host<'a> {
    /// How many events were written.
    events: u64,
    /// How long the recording is.
    seconds: f64,
    /// **Stable.** The most bytes that were asked for and not given back.
    asked: u64,
    /// Twice the standard deviation of that: small blocks are sampled.
    error: u64,
    /// When that was, in seconds after the first event.
    peak_seconds: f64,
    /// Of it, by how it was asked for.
    by_how: ByHow,
    /// **Stable.** Of it, by what it is, largest first; they sum to `asked`.
    by_kind: Vec<HostKind>,
    /// **Stable.** What the kernel counted of the process's own memory, in RAM and swapped, at the most, as it was read; `null` where it was not.
    anonymous: Option<u64>,
    /// How much that may have been between two readings: the kernel's high-water mark of all pages, less those of files and shared ones; `null` where the readings have as much.
    anonymous_by_mark: Option<u64>,
    /// What the kernel counted as the process's own at the peak beyond what was asked for: what allocators keep and round up, libraries, stacks of threads. What was asked for and never
    /// touched makes it less.
    beyond_asked: Option<u64>,
    /// Pages of files that were in RAM at the peak, which the machine can read again.
    of_files: Option<u64>,
    /// The most pages that were there at once, those of files among them.
    most_resident: u64,
    /// **Stable.** What was held at the peak, by line of the program's own, largest first.
    lines: Vec<HostLine<'a>>,
    /// What was held at the peak by the pieces of source that `--within` names, in its order.
    within: Vec<HostWithin<'a>>,
    /// What was held at the peak, by stack, largest first: at most 100.
    stacks: Vec<HostStack<'a>>,
    /// **Stable.** Lines that hold more and more, step after step where steps are known, else for as long as the recording goes on; most first.
    growth: Vec<HostGrowth<'a>>,
}

#[derive(Serialize)]
struct ByHow {
    /// Blocks of 64 KiB and more.
    large: u64,
    /// Smaller ones: an estimate.
    small: u64,
    /// Pages of this process alone.
    mapped: u64,
    /// Pages that other processes may have too.
    shared: u64,
    /// Small blocks of Python's own allocator: an estimate.
    objects: u64,
    /// Pages that CUDA has pinned.
    pinned: u64,
}

#[derive(Serialize)]
struct HostKind {
    /// **Stable.** `arrays` (NumPy's), `tables` (of pandas, polars, pyarrow), `tensors` (PyTorch's), `pinned_memory`, `python_objects`, `images`, `shared_memory`, `other_libraries`, `unknown`
    /// (the library that asked is not known).
    kind: &'static str,
    /// **Stable.** Bytes.
    bytes: u64,
    /// Twice the standard deviation of what is sampled of it.
    error: u64,
    /// Blocks that were recorded: of small ones, samples.
    blocks: u64,
}

#[derive(Serialize)]
struct HostLine<'a> {
    /// The line; `null` where no Python was running.
    place: Option<Place<'a>>,
    /// **Stable.** Bytes.
    bytes: u64,
    /// Twice the standard deviation of what is sampled of it.
    error: u64,
    /// Blocks that were recorded: of small ones, samples.
    blocks: u64,
}

#[derive(Serialize)]
struct HostWithin<'a> {
    /// As it was named.
    piece: &'a str,
    /// Its lines that held something, in their order: each with what it had called.
    lines: Vec<HostLineWithin>,
}

#[derive(Serialize)]
struct HostLineWithin {
    /// The line.
    line: u32,
    /// Bytes.
    bytes: u64,
    /// Twice the standard deviation of what is sampled of it.
    error: u64,
    /// Blocks that were recorded: of small ones, samples.
    blocks: u64,
}

#[derive(Serialize)]
struct HostStack<'a> {
    /// Bytes.
    bytes: u64,
    /// Twice the standard deviation of what is sampled of it.
    error: u64,
    /// Blocks that were recorded: of small ones, samples.
    blocks: u64,
    /// At most 200, innermost first: the library that asked (its `function` is `<library>`), functions of C if the run had `--native` (`<native> NAME`), lines of Python. Empty if nothing is
    /// known of it.
    frames: Vec<Place<'a>>,
}

#[derive(Serialize)]
struct HostGrowth<'a> {
    /// The line; `null` where no Python was running.
    place: Option<Place<'a>>,
    /// **Stable.** Bytes that it held more at the end than at the beginning.
    bytes: u64,
    /// Twice the standard deviation of what is sampled of that.
    error: u64,
    /// In how long.
    seconds: f64,
    /// **Stable.** Bytes a second.
    bytes_per_second: u64,
    /// Blocks that were alive more than at the beginning; 0 for one that becomes larger.
    blocks: u64,
    /// **Stable.** The steps in which it grew; `null` where it did not grow from step to step, or steps are not known.
    steps: Option<GrownSteps>,
}

#[derive(Serialize)]
struct GrownSteps {
    /// **Stable.** The first of them, from 1: what was held at the end of the step before is where it begins.
    first: u64,
    /// **Stable.** The last of them.
    last: u64,
    /// **Stable.** Bytes a step.
    bytes_per_step: u64,
}

impl<'a> Host<'a> {
    fn of(host: &'a model::HostExplanation) -> Self {
        let [large, small, mapped, shared, objects, pinned] = host.by_how;
        let line = |line: &'a model::HostLine| HostLine {
            place: line.place.as_ref().map(Place::of),
            bytes: line.bytes,
            error: line.error,
            blocks: line.blocks,
        };
        let kind = |one: &model::HostKindBytes| HostKind {
            kind: one.kind.key(),
            bytes: one.bytes,
            error: one.error,
            blocks: one.blocks,
        };
        let line_within = |one: &model::HostLineWithin| HostLineWithin {
            line: one.line,
            bytes: one.bytes,
            error: one.error,
            blocks: one.blocks,
        };
        let piece = |one: &'a model::HostWithin| HostWithin {
            piece: &one.piece,
            lines: one.lines.iter().map(line_within).collect(),
        };
        let stack = |one: &'a model::HostStackHeld| HostStack {
            bytes: one.bytes,
            error: one.error,
            blocks: one.blocks,
            frames: one.frames.iter().map(Place::of).collect(),
        };
        let growth = |one: &'a model::HostGrowth| HostGrowth {
            place: one.place.as_ref().map(Place::of),
            bytes: one.bytes,
            error: one.error,
            seconds: one.seconds,
            bytes_per_second: one.per_second(),
            blocks: one.blocks,
            steps: one.steps.zip(one.per_step()).map(|(steps, bytes_per_step)| GrownSteps {
                first: steps.first,
                last: steps.last,
                bytes_per_step,
            }),
        };
        Self {
            events: host.events,
            seconds: host.seconds,
            asked: host.asked,
            error: host.error,
            peak_seconds: host.peak_seconds,
            by_how: ByHow { large, small, mapped, shared, objects, pinned },
            by_kind: host.by_kind.iter().map(kind).collect(),
            anonymous: host.own(),
            anonymous_by_mark: host.own_by_mark,
            beyond_asked: host.beyond,
            of_files: host.of_files,
            most_resident: host.most_resident,
            lines: host.lines.iter().map(line).collect(),
            within: host.within.iter().map(piece).collect(),
            stacks: host.stacks.iter().map(stack).collect(),
            growth: host.growth.iter().map(growth).collect(),
        }
    }
}

#[derive(Serialize)]
struct Warning<'a> {
    /// What kind of warning, see [warning](#warning).
    code: &'static str,
    /// In words, for people.
    message: &'a str,
}

#[derive(Serialize)]
struct Device<'a> {
    /// The number that the process gave the device.
    ordinal: u32,
    /// **Stable.** How many events there are.
    events: u64,
    /// How many events of each action, where there are any: `alloc`, `free_requested`, `free_completed`, `segment_alloc`,
    /// `segment_free`, `segment_map`, `segment_unmap`, `snapshot`, `oom`, `annotate`, `other`.
    actions: Map<String, Value>,
    /// Blocks alive at the end.
    live_blocks: u64,
    /// From the first event to the last.
    seconds: Option<f64>,
    /// `PYTORCH_CUDA_ALLOC_CONF`; `null` if the file has no settings.
    alloc_conf: Option<&'a str>,
    /// **Stable.** The highest value of each, each at its own time.
    peak: Peaks,
    /// When that was.
    peak_at: PeakAt,
    /// What was alive at the allocated peak.
    at_peak: AtPeak<'a>,
    /// Everything reserved at the allocated peak.
    reserved_at_peak: Waste,
    /// The steps, if at least two were found.
    steps: Option<Steps<'a>>,
    /// In order.
    ooms: Vec<OutOfMemory<'a>>,
    /// What the recording lacks.
    completeness: Lacks,
}

impl<'a> Device<'a> {
    fn of(device: &'a DeviceExplanation) -> Self {
        let actions =
            device.actions.iter().map(|(action, count)| (action.name().to_owned(), (*count).into()));
        Self {
            ordinal: device.ordinal,
            events: device.events,
            actions: actions.collect(),
            live_blocks: device.live_blocks,
            seconds: device.seconds,
            alloc_conf: device.conf.as_deref(),
            peak: Peaks::of(&device.peak),
            peak_at: PeakAt {
                requested: Peak::of(device.peak.requested),
                allocated: Peak::of(device.peak.allocated),
                reserved: Peak::of(device.peak.reserved),
                seconds: device.peak_seconds,
                step: device.peak_step,
            },
            at_peak: AtPeak {
                by_kind: device.kinds.iter().map(HeldKind::of).collect(),
                by_line: device.lines.iter().map(HeldLine::of).collect(),
                by_stack: device.stacks.iter().map(HeldStack::of).collect(),
            },
            reserved_at_peak: Waste::of(&device.waste),
            steps: device.steps.as_ref().map(Steps::of),
            ooms: device.ooms.iter().map(OutOfMemory::of).collect(),
            completeness: Lacks::of(&device.completeness),
        }
    }
}

#[derive(Serialize)]
pub(crate) struct Peaks {
    /// What the program asked for.
    pub(crate) requested: u64,
    /// After rounding to blocks.
    pub(crate) allocated: u64,
    /// Taken from the device.
    pub(crate) reserved: u64,
}

impl Peaks {
    pub(crate) fn of(peaks: &trace::Peaks) -> Self {
        Self {
            requested: peaks.requested.bytes,
            allocated: peaks.allocated.bytes,
            reserved: peaks.reserved.bytes,
        }
    }
}

#[derive(Serialize)]
struct PeakAt {
    /// Of requested bytes.
    requested: Peak,
    /// Of allocated bytes.
    allocated: Peak,
    /// Of reserved bytes.
    reserved: Peak,
    /// When the allocated peak was, after the first event.
    seconds: Option<f64>,
    /// The step of the allocated peak, from 1.
    step: Option<u64>,
}

#[derive(Serialize)]
struct Peak {
    /// How high it was.
    bytes: u64,
    /// How many events had happened when it was first reached.
    event: u32,
}

impl Peak {
    fn of(peak: trace::Peak) -> Self {
        Self { bytes: peak.bytes, event: peak.moment }
    }
}

#[derive(Serialize)]
struct AtPeak<'a> {
    /// Each kind.
    by_kind: Vec<HeldKind>,
    /// The largest 2,000 lines, largest first. A line is here once for each `through`.
    by_line: Vec<HeldLine<'a>>,
    /// The largest 100 stacks.
    by_stack: Vec<HeldStack<'a>>,
}

#[derive(Serialize)]
pub(crate) struct HeldKind {
    /// See [kind](#kind).
    kind: &'static str,
    /// Allocated bytes.
    bytes: u64,
    /// Blocks.
    count: u64,
}

impl HeldKind {
    pub(crate) fn of(held: &KindBytes) -> Self {
        Self { kind: held.kind.key(), bytes: held.bytes, count: held.count }
    }
}

#[derive(Serialize)]
struct HeldLine<'a> {
    /// Where.
    #[serde(flatten)]
    place: Place<'a>,
    /// The library's line that it came to, such as `functional.py:2397 silu`.
    through: Option<&'a str>,
    /// Allocated bytes.
    bytes: u64,
    /// Blocks.
    count: u64,
    /// The [kind](#kind) of most of them.
    kind: &'static str,
}

impl<'a> HeldLine<'a> {
    fn of(held: &'a LineBytes) -> Self {
        Self {
            place: Place::of(&held.place),
            through: held.through.as_deref(),
            bytes: held.bytes,
            count: held.count,
            kind: held.kind.key(),
        }
    }
}

#[derive(Serialize)]
struct HeldStack<'a> {
    /// Allocated bytes.
    bytes: u64,
    /// Blocks.
    count: u64,
    /// The [kind](#kind) of most of them.
    kind: &'static str,
    /// At most 200, innermost first; empty without a stack.
    frames: Vec<Place<'a>>,
}

impl<'a> HeldStack<'a> {
    fn of(held: &'a StackBytes) -> Self {
        Self {
            bytes: held.bytes,
            count: held.count,
            kind: held.kind.key(),
            frames: held.frames.iter().map(Place::of).collect(),
        }
    }
}

#[derive(Serialize)]
pub(crate) struct Waste {
    /// Taken from the device.
    reserved: u64,
    /// In blocks that the program holds.
    allocated: u64,
    /// Asked for by the program in those blocks.
    requested: u64,
    /// Lost by rounding requests up.
    rounding: u64,
    /// Left with a block, because the rest was too small to be split off.
    remainders: u64,
    /// Freed by the program, held until another stream has passed.
    pending: u64,
    /// Free, in segments that other blocks keep from being given back.
    holes: u64,
    /// Free, in segments that are free as a whole.
    cached: u64,
    /// Free, but of another stream than the main one.
    other_streams: u64,
    /// Free, but of a private pool.
    private_pools: u64,
    /// The largest free piece that the main stream can use.
    largest_free: u64,
}

impl Waste {
    pub(crate) fn of(waste: &model::Waste) -> Self {
        Self {
            reserved: waste.reserved,
            allocated: waste.allocated,
            requested: waste.requested,
            rounding: waste.rounding,
            remainders: waste.remainders,
            pending: waste.pending,
            holes: waste.holes,
            cached: waste.cached,
            other_streams: waste.other_streams,
            private_pools: waste.private_pools,
            largest_free: waste.largest_free,
        }
    }
}

#[derive(Serialize)]
struct Steps<'a> {
    /// How many, a partial last one included.
    count: u64,
    /// Whether the last one was cut short by the end of the recording.
    last_is_partial: bool,
    /// How many more there were that were the same as one of these, and counted instead of recorded (recordings by `oomph run`).
    repeated: u64,
    /// `annotations` (of the optimizer), `optimizer` (its allocations), `loop` (a line that is passed again and again).
    found_by: &'static str,
    /// The allocated peak within each step, of the first 10,000 steps.
    allocated_peaks: &'a [u64],
    /// Allocated bytes when each step began.
    allocated_at_start: &'a [u64],
}

impl<'a> Steps<'a> {
    fn of(steps: &'a StepsExplanation) -> Self {
        let first = |list: &'a [u64]| &list[..list.len().min(MOST_STEPS)];
        Self {
            count: steps.count,
            last_is_partial: steps.last_is_partial,
            repeated: steps.repeated,
            found_by: steps.witness.key(),
            allocated_peaks: first(&steps.peaks),
            allocated_at_start: first(&steps.starts),
        }
    }
}

#[derive(Serialize)]
struct OutOfMemory<'a> {
    /// **Stable.** The program did not allocate again, or only a little.
    fatal: bool,
    /// `fatal`; `caught_by_library` (the same call went on with less); `caught_by_program`.
    outcome: &'static str,
    /// **Stable.** Why no free memory served, see below.
    reason: &'static str,
    /// **Stable.** What was asked for, rounded.
    size: u64,
    /// What the device had free.
    device_free: u64,
    /// The device had room: a limit on the process was reached.
    limited: bool,
    /// Allocated at that moment.
    allocated: Option<u64>,
    /// Reserved at that moment.
    reserved: Option<u64>,
    /// Free bytes that the request could have used, had they been one piece.
    usable_free: Option<u64>,
    /// The largest piece of them.
    largest_free: Option<u64>,
    /// How many events came before it.
    event: u64,
    /// When, after the first event.
    seconds: Option<f64>,
    /// Who asked.
    #[serde(rename = "where")]
    place: Place<'a>,
}

impl<'a> OutOfMemory<'a> {
    fn of(oom: &'a OomExplanation) -> Self {
        let state = oom.state.as_ref();
        Self {
            fatal: oom.outcome == Outcome::Fatal,
            outcome: oom.outcome.key(),
            reason: oom.reason.key(),
            size: oom.size,
            device_free: oom.device_free,
            limited: oom.limited,
            allocated: state.map(|state| state.allocated),
            reserved: state.map(|state| state.reserved),
            usable_free: state.map(|state| state.usable_free),
            largest_free: state.map(|state| state.largest_free),
            event: oom.event,
            seconds: oom.seconds,
            place: Place::of(&oom.place),
        }
    }
}

#[derive(Serialize)]
struct Lacks {
    /// Nothing is missing.
    complete: bool,
    /// The file ends in the middle.
    truncated: bool,
    /// Blocks that were there before the first event.
    blocks_from_before: u64,
    /// Events that contradict each other or the final state.
    contradictions: u64,
    /// How far allocated bytes may be too low.
    uncertainty_bytes: u64,
    /// Allocations in the recording.
    allocations: u64,
    /// Those without a stack; backward passes have none even in a good recording.
    allocations_without_stack: u64,
}

impl Lacks {
    fn of(completeness: &Completeness) -> Self {
        Self {
            complete: completeness.complete,
            truncated: completeness.truncated,
            blocks_from_before: completeness.born_before,
            contradictions: completeness.contradictions,
            uncertainty_bytes: completeness.uncertainty,
            allocations: completeness.allocations,
            allocations_without_stack: completeness.without_stack,
        }
    }
}

#[derive(Serialize)]
#[serde(tag = "place", rename_all = "snake_case")]
pub(crate) enum Place<'a> {
    /// A line of source.
    Line {
        /// As recorded.
        file: &'a str,
        /// From 1; 0 if not known.
        line: u32,
        /// The function.
        function: &'a str,
        /// The program's own rather than a library's.
        own: bool,
    },
    /// The backward pass, whose threads have no Python stack.
    Backward,
    /// From before the recording began.
    Before,
    /// Recorded without a stack.
    NoStack,
}

impl<'a> Place<'a> {
    pub(crate) fn of(place: &'a model::Place) -> Self {
        match place {
            model::Place::Line { file, line, function, own } => {
                Self::Line { file, line: *line, function, own: *own }
            }
            model::Place::Backward => Self::Backward,
            model::Place::Before => Self::Before,
            model::Place::NoStack => Self::NoStack,
        }
    }
}

#[derive(Serialize)]
pub(crate) struct Finding<'a> {
    /// **Stable.** The rule, such as `OM201`.
    code: &'static str,
    /// The rule's name, such as `graph-kept`.
    name: &'a str,
    /// `error` (the program died of it), `warning` (memory or time is lost), `note` (good to know).
    severity: &'static str,
    /// The ordinal of its device; `null` for the host's memory.
    device: Option<u32>,
    /// What it is, in one line.
    title: &'a str,
    /// **Stable.** The cause that it names, see below; the first finding of a program that died always has one.
    cause: Option<&'static str>,
    /// The cause is inferred from stacks, order and lifetimes, not proved: the recorder was not inside the process, or could not find out.
    likely: bool,
    /// Bytes that the cause accounts for when memory ran out, or at the peak.
    held_bytes: Option<u64>,
    /// Why.
    details: &'a [String],
    /// What the recording would have reserved at most, once that is mended; replayed. A program that died had more to do after that.
    leaves_bytes: Option<u64>,
    /// **Stable.** What a fix would save, never more than was reserved with the request that failed; 0 if that is not known or is not
    /// memory. It is 0 for OM101.
    saving_bytes: u64,
    /// For OM101, what was lacking: the request less the largest free piece that it could use; `null` for other rules.
    missing_bytes: Option<u64>,
    /// `measured` (read off the recording), `replayed` (the recording played again without the blocks in question), `estimated`
    /// (reckoned, with a stated assumption).
    saving_basis: Option<&'static str>,
    /// Of what, in a phrase for people. With `missing_bytes`, this and `saving_basis` are about those bytes.
    saving_of: Option<&'static str>,
    /// **Stable.** At most five, largest first. One may include others: the line that calls, and the lines that it calls.
    #[serde(rename = "where")]
    places: Vec<Where<'a>>,
    /// What to do, best first.
    fixes: Vec<Fix<'a>>,
}

impl<'a> Finding<'a> {
    pub(crate) fn of(finding: &'a model::Finding) -> Self {
        let (cause, saving) = (finding.cause.as_ref(), finding.saving.as_ref());
        Self {
            code: finding.code,
            name: &finding.name,
            severity: finding.severity.name(),
            device: finding.device,
            title: &finding.title,
            cause: cause.map(|cause| cause.key),
            likely: cause.is_some_and(|cause| cause.likely),
            held_bytes: cause.map(|cause| cause.held),
            details: &finding.details,
            leaves_bytes: finding.leaves,
            saving_bytes: saving.filter(|saving| !saving.missing).map_or(0, |saving| saving.bytes),
            missing_bytes: saving.filter(|saving| saving.missing).map(|saving| saving.bytes),
            saving_basis: saving.map(|saving| saving.basis.name()),
            saving_of: saving.map(|saving| saving.of),
            places: finding.places.iter().map(Where::of).collect(),
            fixes: finding.fixes.iter().map(Fix::of).collect(),
        }
    }
}

#[derive(Serialize)]
struct Where<'a> {
    /// Where.
    #[serde(flatten)]
    place: Place<'a>,
    /// Allocated bytes.
    bytes: u64,
    /// Blocks.
    count: u64,
}

impl<'a> Where<'a> {
    fn of(located: &'a model::Where) -> Self {
        Self { place: Place::of(&located.place), bytes: located.bytes, count: located.count }
    }
}

#[derive(Serialize)]
struct Fix<'a> {
    /// What it changes besides memory: `safe` (nothing), `changes_numerics` (the numbers, slightly), `changes_training` (how training
    /// goes).
    grade: &'static str,
    /// In a sentence.
    text: &'a str,
    /// What to type: one line, or a few.
    code: Option<&'a str>,
}

impl<'a> Fix<'a> {
    fn of(fix: &'a model::Fix) -> Self {
        Self { grade: fix.grade.key(), text: &fix.text, code: fix.code.as_deref() }
    }
}
