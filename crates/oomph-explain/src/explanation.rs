//! The explanation of a recording: owned data, ready for any renderer.

use crate::cells::Cells;
use crate::context::Context;
use crate::detail::Detail;
use crate::finding::{Finding, Place, Severity};
use crate::host::{HostContext, HostDetail, HostExplanation, explain_host};
use crate::kinds::{Kind, Kinds};
use crate::limits::{MOST_FRAMES, MOST_LINES, MOST_STACKS};
use crate::line::{line_key, through};
use crate::observed::{Found, Observed};
use crate::oom::{OutOfMemory, Outcome, Reason};
use crate::rules;
use crate::sources::Sources;
use crate::steps::{Steps, Witness, optimizer_steps};
use crate::timeline::Timeline;
use crate::verdict;
use crate::waste::Waste;
use hashbrown::HashMap;
use oomph_trace::{Action, History, Peaks, Recording, StackId, Warning};

/// Everything there is to say about a recording.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The file's format, for people.
    pub format: &'static str,
    /// One for each device that has events or segments.
    pub devices: Vec<DeviceExplanation>,
    /// The process's own memory, where that was recorded.
    pub host: Option<HostExplanation>,
    /// What the rules found, worst first.
    pub findings: Vec<Finding>,
    /// What the reader had to say.
    pub warnings: Vec<Warning>,
}

impl Explanation {
    /// Whether there is anything to act on.
    pub fn has_problems(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity <= Severity::Warning)
    }
}

#[derive(Clone, Debug)]
pub struct DeviceExplanation {
    pub ordinal: u32,
    /// How many events there are.
    pub events: u64,
    /// How many of each action, where there are any.
    pub actions: Vec<(Action, u64)>,
    /// Blocks alive at the end.
    pub live_blocks: u64,
    /// How long the recording is, if it has times.
    pub seconds: Option<f64>,
    /// The highest values and when they were reached (in events).
    pub peak: Peaks,
    /// When the allocated peak was, in seconds after the first event.
    pub peak_seconds: Option<f64>,
    /// The step of the allocated peak, from 1.
    pub peak_step: Option<u64>,
    /// Who made the allocation that reached it.
    pub peak_place: Place,
    /// What was alive at the allocated peak, by kind.
    pub kinds: Vec<KindBytes>,
    /// The same by line, largest first.
    pub lines: Vec<LineBytes>,
    /// The same by whole stack, largest first.
    pub stacks: Vec<StackBytes>,
    /// Everything reserved at the allocated peak.
    pub waste: Waste,
    /// Steps, if any were found.
    pub steps: Option<StepsExplanation>,
    /// Out-of-memories in order.
    pub ooms: Vec<OomExplanation>,
    /// How complete the recording is.
    pub completeness: Completeness,
    /// `PYTORCH_CUDA_ALLOC_CONF`, if the file has settings.
    pub conf: Option<String>,
    /// Memory over time, if it was asked for and there are events.
    pub timeline: Option<Timeline>,
}

#[derive(Clone, Debug)]
pub struct KindBytes {
    pub kind: Kind,
    pub bytes: u64,
    /// Blocks.
    pub count: u64,
}

#[derive(Clone, Debug)]
pub struct LineBytes {
    pub place: Place,
    /// The library's line (`file:line function`) that it came to, if it was not the line itself that allocated.
    pub through: Option<String>,
    pub bytes: u64,
    /// Blocks.
    pub count: u64,
    /// The kind of most of them.
    pub kind: Kind,
}

#[derive(Clone, Debug)]
pub struct StackBytes {
    /// Its frames, innermost first; empty if there were none.
    pub frames: Vec<Place>,
    pub bytes: u64,
    /// Blocks.
    pub count: u64,
    /// The kind of most of them.
    pub kind: Kind,
}

/// The steps of a recording.
#[derive(Clone, Debug)]
pub struct StepsExplanation {
    /// How many, a partial last one included.
    pub count: u64,
    /// Whether the last one was cut short.
    pub last_is_partial: bool,
    /// How many more were the same as one of these, and counted instead of recorded.
    pub repeated: u64,
    pub witness: Witness,
    /// The allocated peak within each.
    pub peaks: Vec<u64>,
    /// Allocated bytes when each began.
    pub starts: Vec<u64>,
}

#[derive(Clone, Debug)]
pub struct OomExplanation {
    /// After how many events.
    pub event: u64,
    /// When, in seconds after the first event.
    pub seconds: Option<f64>,
    /// When, in microseconds since 1970, if the recording has times.
    pub time: Option<i64>,
    /// What was asked for, rounded.
    pub size: u64,
    /// What the device had free.
    pub device_free: u64,
    /// Who asked.
    pub place: Place,
    /// What became of the program.
    pub outcome: Outcome,
    pub reason: Reason,
    /// Whether a limit on the process stopped it.
    pub limited: bool,
    /// What was allocated, reserved and free at that moment, if it was looked into.
    pub state: Option<OomState>,
}

/// Memory when it ran out.
#[derive(Clone, Debug)]
pub struct OomState {
    /// In blocks that the program held.
    pub allocated: u64,
    /// Taken from the device.
    pub reserved: u64,
    /// Free bytes that the request could have used, had they been one piece.
    pub usable_free: u64,
    /// The largest piece of them.
    pub largest_free: u64,
}

/// How complete a recording is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completeness {
    pub complete: bool,
    /// The file ends in the middle.
    pub truncated: bool,
    /// Blocks that were there before the first event.
    pub born_before: u64,
    /// Events that contradict each other.
    pub contradictions: u64,
    /// How far allocated bytes may be too low.
    pub uncertainty: u64,
    /// Allocations without a stack, and all allocations. Backward passes have none even in a good recording.
    pub without_stack: u64,
    /// See `without_stack`.
    pub allocations: u64,
}

pub fn explain(recording: &Recording) -> Explanation {
    explain_over_time(recording, 0)
}

/// The same with every device's memory over time, in so many columns. It takes longer: the kind of every block is worked
/// out, not only of those at the peak.
pub fn explain_over_time(recording: &Recording, columns: usize) -> Explanation {
    explained(recording, |context| describe(context, columns), |_, _| {})
}

/// What an explanation sums up.
#[derive(Clone, Debug, Default)]
pub struct Details {
    /// Device by device, in the order of the explanation's.
    pub devices: Vec<Detail>,
    /// The process's own memory, where that was recorded.
    pub host: Option<HostDetail>,
}

/// The same with every allocation.
pub fn explain_in_detail(recording: &Recording, columns: usize) -> (Explanation, Details) {
    let (mut devices, mut host) = (Vec::new(), None);
    let explanation = explained(
        recording,
        |context| {
            devices.push(Detail::of(context));
            describe(context, columns)
        },
        |context, sources| host = Some(HostDetail::of(context, recording, sources)),
    );
    (explanation, Details { devices, host })
}

fn explained(
    recording: &Recording,
    mut describe: impl FnMut(&Context) -> DeviceExplanation,
    mut look_at_host: impl FnMut(&HostContext, &Sources),
) -> Explanation {
    let sources = Sources::of(recording);
    let cells = Cells::of(recording);
    let censuses = cells.censuses(recording);
    let mut explanation = Explanation {
        format: recording.source.format.name(),
        devices: Vec::new(),
        host: None,
        findings: Vec::new(),
        warnings: recording.warnings.clone(),
    };
    if let Some(host) = &recording.host {
        let context = HostContext::of(recording, &sources, host);
        explanation.host = Some(explain_host(&context));
        explanation.findings = rules::of_host(&context);
        look_at_host(&context, &sources);
    }
    for device in &recording.devices {
        // Steps need the events only, so they are looked for while lifetimes are worked out.
        let (history, steps) = std::thread::scope(|scope| {
            let steps = scope.spawn(|| Steps::find(recording, device, &sources));
            (History::of(recording, device), steps.join().ok().flatten())
        });
        let boundaries = steps.as_ref().map_or(Vec::new(), |steps| steps.boundaries.clone());
        let annotated = optimizer_steps(recording, device);
        let ooms = OutOfMemory::all(recording, device, &history, &sources);
        let death = ooms.iter().find(|oom| oom.outcome == Outcome::Fatal).map(|oom| oom.moment);
        let kinds = Kinds::of(recording, device, &history, &sources, &annotated, &boundaries, death);
        let found = Found { steps, ooms, cells: &cells, censuses: &censuses };
        let context = Context::of(Observed::of(recording, device, &history, &sources, &kinds, found));
        explanation.devices.push(describe(&context));
        let mut findings = Vec::new();
        for rule in rules::ALL {
            for mut finding in rule.of_device(&context) {
                finding.device = Some(device.ordinal);
                finding.name = rule.name();
                findings.push(finding);
            }
        }
        explanation.findings.extend(verdict::join(&context, findings));
    }
    // Several devices: what died comes first, and each device's own order stays.
    explanation.findings.sort_by_key(|finding| finding.severity);
    explanation
}

/// What is found where several processes of one program are seen together.
pub fn findings_of_processes(all: &[&Explanation]) -> Vec<Finding> {
    let hosts: Vec<&HostExplanation> = all.iter().filter_map(|one| one.host.as_ref()).collect();
    if hosts.len() < 2 { Vec::new() } else { rules::of_processes(&hosts) }
}

fn describe(context: &Context, columns: usize) -> DeviceExplanation {
    let (device, history) = (context.device, context.history);
    let peak_moment = history.peak.allocated.moment;
    DeviceExplanation {
        ordinal: device.ordinal,
        events: device.events.len() as u64,
        actions: Action::ALL.into_iter().zip(context.actions).filter(|&(_, count)| count > 0).collect(),
        live_blocks: (device.blocks.iter())
            .filter(|block| block.state != oomph_trace::BlockState::Free)
            .count() as u64,
        seconds: context.seconds(device.events.len() as u32),
        peak: history.peak,
        peak_seconds: context.seconds(peak_moment),
        peak_step: context.steps.as_ref().and_then(|steps| steps.at(peak_moment)).map(|step| step as u64 + 1),
        peak_place: match (peak_moment as usize).checked_sub(1).and_then(|row| device.events.stack.get(row)) {
            Some(&stack) => context.place(stack, peak_moment),
            None => Place::Before,
        },
        kinds: (context.by_kind().into_iter())
            .map(|(kind, bytes, count)| KindBytes { kind, bytes, count })
            .collect(),
        lines: lines(context),
        stacks: stacks(context),
        waste: context.waste.clone(),
        steps: steps(context),
        ooms: ooms(context),
        completeness: completeness(context),
        conf: context.recording.settings.known.then(|| context.recording.settings.conf.clone()),
        timeline: Timeline::of(context, columns),
    }
}

/// Sums by some key, with the kind that most bytes are of.
struct Sum {
    bytes: u64,
    count: u64,
    stack: StackId,
    born: u32,
    kinds: HashMap<Kind, u64>,
}

impl Sum {
    fn kind(&self) -> Kind {
        self.kinds
            .iter()
            .max_by_key(|&(kind, bytes)| (bytes, std::cmp::Reverse(kind)))
            .map_or(Kind::Unknown, |(k, _)| *k)
    }
}

fn sums<K: std::hash::Hash + Eq>(context: &Context, key: impl Fn(StackId, bool) -> K) -> Vec<Sum> {
    let all = &context.history.allocations;
    let mut sums: HashMap<K, Sum> = HashMap::new();
    for &(index, kind) in &context.alive {
        let i = index as usize;
        let (stack, born) = (all.stack(i), all.born(i));
        let sum = sums.entry(key(stack, born <= context.kinds.begun())).or_insert_with(|| Sum {
            bytes: 0,
            count: 0,
            stack,
            born,
            kinds: HashMap::new(),
        });
        sum.bytes += all.size(i);
        sum.count += 1;
        *sum.kinds.entry(kind).or_default() += all.size(i);
    }
    let mut sums: Vec<Sum> = sums.into_values().collect();
    sums.sort_by_key(|sum| (std::cmp::Reverse(sum.bytes), sum.stack, sum.born));
    sums
}

fn lines(context: &Context) -> Vec<LineBytes> {
    sums(context, |stack, before| line_key(context, stack, before))
        .into_iter()
        .take(MOST_LINES)
        .map(|sum| LineBytes {
            place: context.place(sum.stack, sum.born),
            through: through(context, sum.stack),
            bytes: sum.bytes,
            count: sum.count,
            kind: sum.kind(),
        })
        .collect()
}

fn stacks(context: &Context) -> Vec<StackBytes> {
    sums(context, |stack, _| stack)
        .into_iter()
        .take(MOST_STACKS)
        .map(|sum| StackBytes {
            frames: (context.recording.stacks.get(sum.stack).iter().take(MOST_FRAMES))
                .map(|&frame| context.place_of_frame(frame, context.sources.is_own(frame)))
                .collect(),
            bytes: sum.bytes,
            count: sum.count,
            kind: sum.kind(),
        })
        .collect()
}

fn steps(context: &Context) -> Option<StepsExplanation> {
    let steps = context.steps.as_ref()?;
    Some(StepsExplanation {
        count: steps.count() as u64,
        last_is_partial: steps.last_is_partial,
        repeated: context.recording.repeated.steps,
        witness: steps.witness,
        peaks: (0..steps.count())
            .map(|step| {
                let range = steps.range(step);
                context.history.most_allocated(range.start + 1..range.end + 1)
            })
            .collect(),
        starts: (0..steps.count()).map(|step| context.history.allocated_at(steps.boundaries[step])).collect(),
    })
}

fn ooms(context: &Context) -> Vec<OomExplanation> {
    (context.ooms.iter())
        .map(|oom| OomExplanation {
            event: u64::from(oom.moment),
            seconds: context.seconds(oom.moment + 1),
            time: context.device.events.time.get(oom.moment as usize).copied().filter(|&time| time != 0),
            size: oom.size,
            device_free: oom.device_free,
            place: context.place(oom.stack, oom.moment + 1),
            outcome: oom.outcome,
            reason: oom.reason,
            limited: oom.limited,
            state: (oom.reason != Reason::NotLookedInto).then_some(OomState {
                allocated: oom.waste.allocated,
                reserved: oom.waste.reserved,
                usable_free: oom.waste.usable_free,
                largest_free: oom.waste.largest_free,
            }),
        })
        .collect()
}

fn completeness(context: &Context) -> Completeness {
    let (device, history) = (context.device, context.history);
    let events = &device.events;
    let born_before = history.allocations.born_before() as u64;
    let truncated = context.recording.source.truncated;
    Completeness {
        complete: !truncated
            && born_before == 0
            && device.overflowed != Some(true)
            && !events.is_empty()
            && history.contradictions == 0
            && history.mismatches == 0,
        truncated,
        born_before,
        contradictions: history.contradictions,
        uncertainty: history.uncertainty,
        without_stack: context.without_stack,
        allocations: context.actions[Action::Alloc as usize],
    }
}
