//! How replays look: what happened beside what would have, and how sure that is.

use crate::json;
use crate::markdown::escape;
use crate::shared::quoted;
use crate::text::{BOLD, CYAN, DIM, GREEN, RED, YELLOW, paint, signed, wrap};
use oomph_replay::allocator::{Memory, Refusal};
use oomph_replay::answer::{Answer, Model};
use oomph_replay::program::{Death, Sample};
use oomph_replay::replayer::{Doubt, Replayed};
use oomph_replay::tune::{Fit, LeastMemory};
use oomph_words::{bytes, grouped, plural, printable};
use std::fmt::Write;

/// What the user typed, for saying it again.
#[derive(Clone, Debug, Default)]
pub struct Typed {
    /// The card, if one was named.
    pub card: Option<String>,
    /// The arguments that ask about as much memory, by the same version's rules, with a space before each.
    pub arguments: String,
}

// --- words ------------------------------------------------------------------------------------------------

/// Why a number may be wrong, in a sentence.
pub fn doubt(doubt: &Doubt) -> String {
    match doubt {
        Doubt::SettingsUnknown => {
            "the file has no allocator settings: PyTorch's defaults are assumed".to_owned()
        }
        Doubt::Incomplete => "the recording is incomplete".to_owned(),
        Doubt::Contradictions(count) => {
            format!("the recording contradicts itself in {}", plural(*count, "event"))
        }
        Doubt::BlocksBefore(count) => format!(
            "{} were there before the recording began: they are replayed as if allocated first, by address",
            plural(*count, "block")
        ),
        Doubt::NotReproduced(count) => {
            format!(
                "under the recorded settings, the model differs from the recording in {}",
                plural(*count, "place")
            )
        }
        Doubt::UnknownBlocks(count) => {
            format!(
                "{} of blocks that the recording does not know; they are passed over",
                plural(*count, "free")
            )
        }
        Doubt::EndsWhereItRanOut(event) => format!(
            "the recording ran out of memory at event {}; here it would not, and what the program would have \
             done next is not in it",
            grouped(u64::from(*event))
        ),
        Doubt::DeferredFrees(count) => {
            format!("{} waited for another stream, for as long as recorded", plural(*count, "free"))
        }
        Doubt::Ties { least, most, ends_alike } => format!(
            "equal free blocks in different segments: the driver's addresses decide; in the orders that were tried, \
             the reserved peak was between {} and {}{}",
            bytes(*least),
            bytes(*most),
            if *ends_alike { "" } else { ", and it did not end alike" }
        ),
        Doubt::LeastMemoryHangsOnAddresses => {
            "in another order of the driver's addresses it does not complete in its least memory".to_owned()
        }
        Doubt::PoolsInferred => {
            "which private pool a request went to is not in the recording; it was inferred from the \
                                 segments at the end and from the lines that allocate"
                .to_owned()
        }
        Doubt::MemoryUncertain { at_least, below } => format!(
            "how much memory the recorded program had is not in the file: at least {}, less than {}",
            bytes(*at_least),
            bytes(*below)
        ),
        Doubt::ModelNotProven => "this model was not held against a real allocator".to_owned(),
        Doubt::UnroundedSizes => "PyTorch before 2.4 left sizes unrounded with 1 division".to_owned(),
    }
}

pub(crate) fn settings(conf: &str) -> String {
    if conf.is_empty() { "PyTorch's defaults".to_owned() } else { printable(conf) }
}

fn reason(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Device { .. } => "the device has no room",
        Refusal::Limit { .. } => "the limit on the process is reached",
        Refusal::Rejected { .. } => "throw_on_cudamalloc_oom refuses it",
    }
}

pub(crate) fn room(memory: Memory) -> Option<u64> {
    let room = memory.limit.unwrap_or(u64::MAX).min(memory.free);
    (room < Memory::UNLIMITED.free).then_some(room)
}

/// What is left of the memory that there is, beside the least that the replay gets through in; what is lacking, if negative.
/// Nothing where one of them is not known.
pub(crate) fn margin(replayed: &Replayed, least: Option<LeastMemory>) -> Option<i64> {
    let unsure = replayed.doubts.iter().any(|doubt| matches!(doubt, Doubt::MemoryUncertain { .. }));
    let room = room(replayed.memory).filter(|_| !unsure)?;
    i64::try_from(i128::from(room) - i128::from(least?.bytes)).ok()
}

/// For scripts: a recording that ends in a death does not say whether the program fits, only that it does not.
pub(crate) fn fits(fit: Option<Fit>, died: bool) -> Option<&'static str> {
    fit.filter(|fit| !died || *fit == Fit::No).map(Fit::key)
}

/// For scripts: whether it gets past the death that the recording ends in, if it ends in one and that is known.
pub(crate) fn past_death(fit: Option<Fit>, died: bool) -> Option<bool> {
    match fit.filter(|_| died)? {
        Fit::Yes => Some(true),
        Fit::Maybe => None,
        Fit::No => Some(false),
    }
}

/// With how much to spare it gets past a death.
pub(crate) fn to_spare(margin: Option<i64>) -> String {
    match margin {
        Some(margin) if margin > 0 => format!(" with {} to spare", bytes(margin.unsigned_abs())),
        _ => String::new(),
    }
}

/// What is not known of a recording that ends in a death.
pub(crate) const ENDS_THERE: &str =
    "The recording ends there: what the program needs afterwards is not known.";

fn allocator(answer: &Answer) -> String {
    match answer.question.model {
        Model::Torch => {
            let conf = answer.question.conf.as_ref().unwrap_or(&answer.recorded_conf);
            let recorded = if *conf == answer.recorded_conf { " (as recorded)" } else { "" };
            format!("{}{recorded}, PyTorch {}", settings(conf), answer.version)
        }
        Model::Bfc => "TensorFlow's BFC allocator".to_owned(),
        Model::Packed => "a packer that knows the future".to_owned(),
    }
}

/// What would have become of the program.
fn verdict(answer: &Answer) -> String {
    if let (Some((height, ..)), Fit::No) = (answer.packing, answer.fit) {
        let room = room(answer.replayed.memory).unwrap_or(0);
        return format!("The packing that was found needs {}, and there is {}", bytes(height), bytes(room));
    }
    if let (Fit::Maybe, Some(least)) = (answer.fit, answer.least) {
        return format!(
            "It needs {}{}, and how much the recorded program had is not known: say it with --limit or --memory",
            bytes(least.bytes),
            if answer.died { " to get past the recorded death" } else { "" }
        );
    }
    match (answer.replayed.outcome.died, answer.stopped_by) {
        (Some(death), _) => format!(
            "It would run out of memory at event {} of {}: {} asked for, {}",
            grouped(u64::from(death.event)),
            grouped(answer.events),
            bytes(death.size),
            reason(death.refusal)
        ),
        (None, Some(again)) => format!(
            "It would run out of memory at event {}, as recorded: {} asked for, {}",
            grouped(u64::from(again.event)),
            bytes(again.size),
            reason(again.refusal)
        ),
        (None, None) if answer.died => format!(
            "It would get past the recorded death{}. {}",
            to_spare(margin(&answer.replayed, answer.least)),
            ENDS_THERE.trim_end_matches('.')
        ),
        (None, None) if !answer.replayed.outcome.ooms_avoided.is_empty() => {
            let event = answer.replayed.outcome.ooms_avoided.last().copied().unwrap_or(0);
            format!(
                "It would get past event {}, where the recording ran out of memory",
                grouped(u64::from(event))
            )
        }
        (None, None) => "It would complete".to_owned(),
    }
}

fn how_sure(answer: &Answer) -> String {
    if !answer.replayed.doubts.is_empty() {
        return "Not exact:".to_owned();
    }
    if answer.question.model == Model::Packed {
        return "A plan, not an allocator that exists: how little memory could do.".to_owned();
    }
    let proof = format!(
        "replayed as recorded, each of the {} blocks lies where PyTorch put it",
        grouped(answer.allocations)
    );
    match answer.replayed.usage.ties {
        0 => format!("Exact: {proof}."),
        ties => format!(
            "Exact: {proof}; {} between equal blocks made no difference in the orders of addresses that were tried.",
            plural(ties, "choice")
        ),
    }
}

fn sparkline(samples: &[Sample], pick: impl Fn(&Sample) -> u64, most: u64, width: usize) -> String {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let width = width.min(samples.len()).max(1);
    (0..width)
        .map(|column| {
            let stretch = &samples[column * samples.len() / width..((column + 1) * samples.len() / width)];
            let value = stretch.iter().map(&pick).max().unwrap_or(0);
            BARS[((value as f64 / most.max(1) as f64) * 8.0).ceil().clamp(0.0, 8.0) as usize]
        })
        .collect()
}

fn timeline(out: &mut String, samples: &[Sample], width: usize) {
    if samples.len() < 2 {
        return;
    }
    let most = samples.iter().map(|sample| sample.reserved).max().unwrap_or(0);
    let columns = width.saturating_sub(24).clamp(20, 80);
    let _ = writeln!(out, "\n{}", paint(BOLD, "Over time, replayed"));
    let rows: [(&str, fn(&Sample) -> u64); 3] = [
        ("reserved", |sample| sample.reserved),
        ("allocated", |sample| sample.allocated),
        ("unused", |sample| sample.reserved.saturating_sub(sample.allocated)),
    ];
    for (name, pick) in rows {
        let peak = samples.iter().map(pick).max().unwrap_or(0);
        let _ = writeln!(
            out,
            "  {name:<10}{} {}",
            sparkline(samples, pick, most, columns),
            paint(DIM, bytes(peak))
        );
    }
}

// --- text ---------------------------------------------------------------------------------------------------

/// The device, and how complete its recording is.
pub(crate) fn about_device(device: u32, events: u64, (cut, before): (bool, u64)) -> String {
    let mut lacks = Vec::new();
    if cut {
        lacks.push("cut off or overwritten".to_owned());
    }
    if before > 0 {
        lacks.push(format!("{} from before", plural(before, "block")));
    }
    let complete =
        if lacks.is_empty() { "complete".to_owned() } else { format!("incomplete: {}", lacks.join(", ")) };
    format!("(device {device}: {}, {complete})", plural(events, "event"))
}

/// How much memory there is, and on which card.
pub(crate) fn words_for_memory(memory: Option<Memory>, typed: &Typed, preposition: &str) -> String {
    match (memory.and_then(room), &typed.card) {
        (Some(room), Some(card)) => format!(", on {} ({} usable)", printable(card), bytes(room)),
        (Some(room), None) => format!(", {preposition} {}", bytes(room)),
        (None, _) => String::new(),
    }
}

/// A replay, for a terminal.
pub fn text(answer: &Answer, name: &str, typed: &Typed, width: usize) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{} {}",
        paint(BOLD, printable(name)),
        paint(DIM, about_device(answer.device, answer.events, answer.lacks))
    );
    let memory = words_for_memory(Some(answer.replayed.memory), typed, "in");
    let _ = writeln!(out, "Replayed with {}{memory}\n", paint(CYAN, allocator(answer)));
    let style = match answer.fit {
        Fit::Yes => GREEN,
        Fit::Maybe => YELLOW,
        Fit::No => RED,
    };
    let _ = writeln!(out, "{}", paint(style, wrap(&verdict(answer), width, 0, 2)));
    if let Some(death) = answer.stopped_by.filter(|_| answer.fit == Fit::No && answer.packing.is_none()) {
        let _ = writeln!(out, "  {}", wrap(&free_pieces(&death), width, 2, 2));
    }
    let _ = writeln!(out, "\n{}", paint(BOLD, "                 recorded    replayed"));
    let (usage, recorded) = (&answer.replayed.usage, &answer.recorded_peak);
    for (name, before, after) in [
        ("peak allocated", recorded.allocated.bytes, usage.allocated.peak),
        ("peak reserved", recorded.reserved.bytes, usage.reserved.peak),
    ] {
        let change = i64::try_from(i128::from(after) - i128::from(before)).unwrap_or(i64::MAX);
        let change = if change == 0 { String::new() } else { format!("    {}", signed(change)) };
        let _ = writeln!(out, "  {name:<14} {:>9}   {:>9}{change}", bytes(before), bytes(after));
    }
    let _ = writeln!(out, "  {:<14} {:>9}   {:>9}", "retries", answer.recorded_retries, usage.retries);
    let ooms = answer.replayed.outcome.ooms.len() + usize::from(answer.replayed.outcome.died.is_some());
    let _ = writeln!(out, "  {:<14} {:>9}   {:>9}", "out of memory", answer.recorded_ooms.len(), ooms);
    if let Some((height, optimal, method)) = answer.packing {
        let proof = if optimal { ": it cannot be less" } else { "" };
        let _ = write!(out, "\nA packing of {} was found by {method}{proof}.", bytes(height));
    } else if let Some(least) = answer.least {
        let stalls = match least.retries {
            0 => String::new(),
            retries => {
                format!(", with {} ({})", plural(retries, "retry").replace("retrys", "retries"), STALLS)
            }
        };
        let text = format!(
            "It needs at least {} for its segments{}{stalls}; the CUDA context comes on top.",
            bytes(least.bytes),
            if answer.died { " to get past its death" } else { "" }
        );
        let _ = write!(out, "\n{}", wrap(&text, width, 0, 0));
    }
    let bound = format!("No allocator can do it in less than {}.", bytes(answer.lower_bound));
    let _ = writeln!(out, "\n{bound}");
    timeline(&mut out, &answer.replayed.outcome.timeline, width);
    let sure = how_sure(answer);
    let _ = writeln!(out, "\n{}", wrap(&sure, width, 0, 2));
    for one in &answer.replayed.doubts {
        let _ = writeln!(out, "  - {}", wrap(&doubt(one), width, 4, 4));
    }
    if name != "-" {
        let next = match answer.question.model {
            Model::Torch => format!("oomph tune {}{}", quoted(name), typed.arguments),
            Model::Bfc | Model::Packed => format!("oomph replay {}", quoted(name)),
        };
        let _ = writeln!(out, "\n{} {}", paint(BOLD, "Next:"), paint(CYAN, next));
    }
    out
}

/// What a retry costs.
pub(crate) const STALLS: &str = "each waits for the device";

fn free_pieces(death: &Death) -> String {
    format!(
        "{} reserved, {} allocated; {} free for such a request, the largest piece {}",
        bytes(death.reserved),
        bytes(death.allocated),
        bytes(death.usable_free),
        bytes(death.largest_free)
    )
}

// --- JSON ---------------------------------------------------------------------------------------------------

pub fn json(answer: &Answer, name: &str) -> String {
    json::replay::answer(answer, name)
}

// --- Markdown -----------------------------------------------------------------------------------------------

/// A replay, for issues and pull requests.
pub fn markdown(answer: &Answer, name: &str) -> String {
    let mut out = format!("## {}\n\n", escape(name));
    let memory = room(answer.replayed.memory).map(|room| format!(", in {}", bytes(room))).unwrap_or_default();
    let _ = writeln!(
        out,
        "Replayed with {}{memory}. **{}.**\n",
        escape(&allocator(answer)),
        escape(&verdict(answer))
    );
    let (usage, recorded) = (&answer.replayed.usage, &answer.recorded_peak);
    let _ = writeln!(out, "| | recorded | replayed |\n|---|---:|---:|");
    let _ = writeln!(
        out,
        "| peak allocated | {} | {} |\n| peak reserved | {} | {} |\n| retries | {} | {} |\n| no allocator needs less than | | {} |",
        bytes(recorded.allocated.bytes),
        bytes(usage.allocated.peak),
        bytes(recorded.reserved.bytes),
        bytes(usage.reserved.peak),
        answer.recorded_retries,
        usage.retries,
        bytes(answer.lower_bound)
    );
    if let Some(least) = answer.least {
        let _ = writeln!(out, "| least memory | | {} |", bytes(least.bytes));
    }
    let _ = writeln!(out, "\n{}", escape(&how_sure(answer)));
    for one in &answer.replayed.doubts {
        let _ = writeln!(out, "- {}", escape(&doubt(one)));
    }
    out
}
