//! How predictions look: whether it fits, by how much, where the peak is, and how sure that is.

use crate::json;
use crate::markdown::escape;
use crate::shared::{TextOptions, findings_of, quoted};
use crate::text::{self, BOLD, CYAN, DIM, GREEN, RED, YELLOW, cut, next_steps, paint, wrap};
use anstyle::Style;
use oomph_explain::{DeviceExplanation, Kind};
use oomph_predict::host::HostPrediction;
use oomph_predict::prediction::{Prediction, Uncertain, Verdict};
use oomph_predict::run::Status;
use oomph_predict::search::{Sweep, Tried, largest, largest_close};
use oomph_trace::NO_PYTHON;
use oomph_words::{bytes, harmless, plural, printable};
use std::fmt::Write;

/// Characters of an error that a screen has room for: some print a whole tensor.
const ERROR: usize = 600;

/// A prediction and what the reader may type next.
#[derive(Clone, Copy, Debug)]
pub struct NamedPrediction<'a> {
    pub prediction: &'a Prediction,
    /// The file that the recording was written to.
    pub recording: Option<&'a str>,
    /// An argument of the program that makes it smaller: `--batch-size`.
    pub smaller: Option<&'a str>,
    /// How much memory the host has, where that was asked about.
    pub ram: Option<u64>,
}

// --- words ------------------------------------------------------------------------------------------------

pub(crate) fn device(prediction: &Prediction) -> Option<&DeviceExplanation> {
    // Of several cards, the one that the rank uses; the recording lists those that have events.
    let wanted = prediction.card();
    let devices = &prediction.explanation.devices;
    devices
        .iter()
        .find(|device| Some(device.ordinal) == wanted)
        .or_else(|| devices.iter().max_by_key(|device| device.peak.reserved.bytes))
}

fn verdict(prediction: &Prediction) -> String {
    let margin = prediction.margin();
    match (prediction.verdict, margin) {
        (Verdict::Fits, Some(margin)) => {
            let close = if prediction.is_close() { ", which is too close to be sure" } else { "" };
            let free = format!(
                "{} of {} stay free{close}",
                bytes(margin.max(0) as u64),
                bytes(prediction.gpu.memory)
            );
            let ran = match prediction.steps {
                0 => plural(prediction.forwards, "forward"),
                steps => plural(steps, "training step"),
            };
            match prediction.not_reached() {
                None => format!("fits: {free}"),
                Some(why) => format!("fits so far: {ran}; {why}. {free}"),
            }
        }
        (Verdict::DoesNotFit, Some(margin)) if margin < 0 => format!(
            "does not fit: it needs {}, {} more than there is",
            bytes(prediction.needs.map_or(0, |needs| needs.total)),
            bytes(margin.unsigned_abs())
        ),
        (Verdict::DoesNotFit, Some(_)) => {
            "does not fit: memory is enough in sum, but not in one piece when it is asked for".to_owned()
        }
        (Verdict::DoesNotFit, None) => "does not fit".to_owned(),
        _ if prediction.timed_out => "not known: the time was up".to_owned(),
        _ => match prediction.range {
            Some(range) if prediction.status != Status::Failed => format!(
                "not known: between {} and {} of {}, by values that only a GPU would have",
                bytes(range.low),
                bytes(range.high),
                bytes(prediction.gpu.memory)
            ),
            None if prediction.status == Status::OutOfMemory => {
                "not known: with as many elements as there can be it does not fit, with fewer it may"
                    .to_owned()
            }
            _ if prediction.status == Status::Failed => "not known: the program failed".to_owned(),
            _ => "not known".to_owned(),
        },
    }
}

/// `16 × 512`.
fn shape(sizes: &[u64]) -> String {
    sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(" × ")
}

/// What it was fed with at its peak, and what the longest batch makes: a sentence each.
fn batches(prediction: &Prediction) -> Vec<String> {
    let Some(batches) = &prediction.batches else { return Vec::new() };
    let mut sentences = Vec::new();
    if let Some(peak) = batches.peak.as_ref().filter(|_| batches.vary) {
        let size = shape(&peak.shape);
        let came = match prediction.status {
            Status::OutOfMemory => "memory ran out",
            _ => "the peak came",
        };
        let with_longest = batches.longest.as_ref().is_some_and(|longest| longest.shape == peak.shape);
        sentences.extend(match peak.batch {
            Some(batch) => {
                Some(format!("batches differ: {came} with batch {batch}, {size}, in step {}", peak.step))
            }
            // Of that batch more is said below.
            None if with_longest => None,
            None => Some(format!("batches differ: {came} with {size}, in step {}", peak.step)),
        });
    }
    if let Some(longest) = batches.longest.as_ref().filter(|longest| longest.ran) {
        let then = match (longest.allocated, longest.reserved) {
            (Some(allocated), Some(reserved)) => format!(
                "with it the peak is {} in tensors, {} taken by PyTorch",
                bytes(allocated),
                bytes(reserved)
            ),
            _ => "with it memory ran out".to_owned(),
        };
        sentences.push(format!(
            "the longest batch of {} drawn is {}; {then}",
            longest.drawn,
            shape(&longest.shape)
        ));
    }
    sentences
}

fn ran(prediction: &Prediction) -> String {
    let counted = match (prediction.steps, prediction.forwards) {
        (0, 0) => String::new(),
        (0, forwards) => format!(" after {}", plural(forwards, "forward")),
        (steps, _) => format!(" after {}", plural(steps, "step")),
    };
    let names = ["validation", "save", "second_epoch"];
    let phases: Vec<String> = (prediction.reached.phases.iter())
        .filter(|phase| names.contains(&phase.as_str()))
        .map(|phase| phase.replace('_', " "))
        .collect();
    let seen = if phases.is_empty() { String::new() } else { format!(", with {}", phases.join(", ")) };
    let doing = match prediction.reached.doing.as_deref() {
        Some("validation") => ", in validation",
        _ => "",
    };
    match prediction.status {
        Status::Finished if prediction.reached.cut > 0 => {
            format!("ran to its end{}, its loops over data cut short", counted.replace(" after", ","))
        }
        Status::Finished => format!("ran to its end{}", counted.replace(" after", ",")),
        Status::Stopped if prediction.timed_out => format!("stopped{counted}{seen}, for its time was up"),
        Status::Stopped => format!("stopped{counted}{seen}"),
        Status::OutOfMemory => format!("ran out of memory{counted}{doing}"),
        Status::Failed => format!("failed{counted}"),
    }
}

fn uncertain(one: &Uncertain) -> String {
    match &one.place {
        Some((file, line, function)) => {
            let name = file.rsplit('/').next().unwrap_or(file);
            let times = if one.count > 1 { format!(" (×{})", one.count) } else { String::new() };
            format!("{}:{line} {}: {}{times}", printable(name), printable(function), printable(&one.why))
        }
        None => printable(&one.why),
    }
}

/// Which PyTorch it was, where it is not the one that is installed.
pub(crate) fn fetched(prediction: &Prediction) -> Option<String> {
    let torch = &prediction.torch;
    let own = torch.in_place_of.as_deref()?;
    let (version, cuda, own) = (printable(&torch.version), printable(&torch.cuda), printable(own));
    Some(format!("torch {version} with CUDA {cuda}, fetched; installed is {own}"))
}

/// The size to speak of: what it takes, or what it would take.
fn sizes(prediction: &Prediction) -> (u64, u64, u64) {
    match prediction.needs {
        Some(needs) => (needs.allocated, needs.reserved, needs.total),
        None => (prediction.device.peak_allocated, prediction.device.peak_reserved, prediction.total),
    }
}

// --- text -------------------------------------------------------------------------------------------------

/// What it is, whether it fits and what it takes, for a terminal.
pub(crate) fn summary(prediction: &Prediction, options: TextOptions) -> String {
    let mut out = String::new();
    let gpu = &prediction.gpu;
    let rank =
        prediction.world.map(|world| format!(", rank {} of {}", world.rank, world.size)).unwrap_or_default();
    let _ = writeln!(
        out,
        "{} {}",
        paint(BOLD, printable(&prediction.program)),
        paint(
            DIM,
            format!(
                "(on a virtual {}, {}{rank}: {})",
                printable(&gpu.title),
                bytes(gpu.memory),
                ran(prediction)
            )
        )
    );
    let style = match prediction.verdict {
        Verdict::Fits if !prediction.is_close() && prediction.is_whole() => GREEN,
        Verdict::DoesNotFit => RED,
        _ => YELLOW,
    };
    let _ = writeln!(out, "\n{}", paint(style.bold(), verdict(prediction)));
    if prediction.verdict != Verdict::Fits
        && let Some(error) = &prediction.error
    {
        let first = error.split(" If reserved but unallocated").next().unwrap_or(error);
        let words: Vec<&str> = first.split_whitespace().collect();
        let words = words.join(" ");
        let shown: String = words.chars().take(ERROR).collect();
        let rest = if shown.len() < words.len() { " …" } else { "" };
        let _ = writeln!(out, "  {}", wrap(&(harmless(&shown) + rest), options.width, 2, 2));
    }
    let (allocated, reserved, total) = sizes(prediction);
    let nccl = prediction.nccl.as_ref().map_or(0, |fact| fact.taken);
    let other = total.saturating_sub(reserved + gpu.context + nccl);
    let _ = writeln!(out);
    let mut row = |name: &str, size: u64| {
        let _ = writeln!(out, "  {name:<34} {:>10}", bytes(size));
    };
    row("in tensors (allocated)", allocated);
    row("taken by PyTorch (reserved)", reserved);
    if other > 0 && prediction.verdict == Verdict::Fits {
        row("taken by other libraries", other);
    }
    if nccl > 0 {
        row("taken by NCCL, at least", nccl);
    }
    row("CUDA context", gpu.context);
    row("in all, as nvidia-smi would show", total);
    if prediction.managed > 0 {
        row("beside it, managed by CUDA (host)", prediction.managed);
    }
    let mut spread = |name: &str, low: u64, high: u64| {
        let _ = writeln!(out, "  {name:<34} {:>10} to {}", bytes(low), bytes(high));
    };
    if let Some(range) = prediction.range {
        spread("in all, by values not known", range.low, range.high);
    }
    if let Some(range) = prediction.estimated.filter(|_| prediction.verdict == Verdict::Fits) {
        spread("in all, by what only a card shows", range.low, range.high);
    }
    let found = device(prediction);
    if let Some(found) = found {
        let step = found.peak_step.map(|step| format!("step {step}, ")).unwrap_or_default();
        let _ = writeln!(out, "  {:<34} {step}{}", "highest in", printable(&found.peak_place.short()));
    }
    for words in batches(prediction) {
        let _ = writeln!(out, "  {}", wrap(&words, options.width, 2, 4));
    }
    out
}

/// What is said of the host's memory: its bytes in words, then whether they fit.
fn host_words(host: &HostPrediction, memory: Option<u64>) -> Vec<String> {
    let (least, most) = (bytes(host.least), bytes(host.most));
    let range = if least == most { most } else { format!("{least} to {most}") };
    let mut words = vec![format!(
        "Host memory: {range} of the program's own at the most{}, as far as it was run",
        match host.processes {
            1 => String::new(),
            several => format!(", in {several} processes"),
        }
    )];
    if host.pinned > 0 {
        words.push(format!("{} of it pinned for copies to and from the GPU", bytes(host.pinned)));
    }
    if let Some(memory) = memory {
        words.push(match host.fits(memory) {
            Some(true) => format!("fits {}: {} stay free", bytes(memory), bytes(memory - host.most)),
            Some(false) => {
                format!("does not fit {}: {} are missing", bytes(memory), bytes(host.least - memory))
            }
            None => format!("whether it fits {} hangs on what values took here", bytes(memory)),
        });
    }
    words.push("CUDA's own host memory and pages of files are not in it: the first is a matter of driver and card, the second the machine takes back".to_owned());
    words
}

/// The host's memory, for a terminal.
fn host(out: &mut String, named: &NamedPrediction, options: TextOptions) {
    let Some(host) = &named.prediction.host else { return };
    let words = host_words(host, named.ram);
    for (index, sentence) in words.iter().enumerate() {
        let _ = match index {
            0 => writeln!(out, "\n{}", paint(BOLD, wrap(sentence, options.width, 0, 2))),
            _ => writeln!(out, "  {}", wrap(sentence, options.width, 2, 2)),
        };
    }
    for line in host.lines.iter().take(options.lines) {
        let place =
            line.place.as_ref().map_or_else(|| NO_PYTHON.to_owned(), |place| printable(&place.short()));
        let _ =
            writeln!(out, "  {:>10}  {}", bytes(line.bytes), cut(&place, options.width.saturating_sub(14)));
    }
}

/// For a terminal.
pub fn text(named: &NamedPrediction, options: TextOptions) -> String {
    let prediction = named.prediction;
    let mut out = summary(prediction, options);
    host(&mut out, named, options);
    let found = device(prediction);
    if let Some(found) = found {
        for finding in findings_of(&prediction.explanation, found) {
            text::finding(&mut out, finding, options);
        }
        text::device(&mut out, found, options);
    }
    if !prediction.uncertain.is_empty() {
        let _ = writeln!(out, "\n{}", paint(YELLOW, "What may make this wrong"));
        for one in &prediction.uncertain {
            let _ = writeln!(out, "  {}", wrap(&uncertain(one), options.width, 2, 4));
        }
    }
    if !prediction.unmodelled.is_empty() {
        let calls: Vec<String> = prediction
            .unmodelled
            .iter()
            .take(8)
            .map(|call| format!("{} ×{}", call.name, call.count))
            .collect();
        let more = prediction.unmodelled.len().saturating_sub(8);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let words = format!("Not modelled, so what these take is missing: {}{more}", calls.join(", "));
        let _ = writeln!(out, "\n{}", paint(YELLOW, wrap(&harmless(&words), options.width, 0, 2)));
    }
    if let Some(words) = fetched(prediction) {
        let _ = writeln!(out, "\n{}", paint(DIM, words));
    }
    if let Some(recording) = named.recording {
        let _ = writeln!(out, "\n{} {}", paint(BOLD, "Recording:"), printable(recording));
    }
    let _ = writeln!(out, "{} {}", paint(BOLD, "Next:"), paint(CYAN, next(named)));
    let card = format!(" --gpu {}", quoted(&prediction.gpu.name));
    next_steps(&mut out, named.recording.as_slice(), &card);
    out
}

/// What to type next: where it does not fit, what leads to the cure.
fn next(named: &NamedPrediction) -> String {
    let prediction = named.prediction;
    let longer = prediction.batches.as_ref().is_some_and(|batches| {
        batches.may_grow() && batches.loader && batches.longest.is_none() && batches.no_longest.is_none()
    });
    match (prediction.verdict, cure(named), named.recording) {
        (Verdict::DoesNotFit, Some(command), _) => command,
        (Verdict::Fits, ..) if longer => {
            format!("oomph predict --gpu {} --longest {}", prediction.gpu.name, prediction.program)
        }
        (_, _, Some(recording)) => format!("oomph explain {}", quoted(recording)),
        _ => "oomph predict --help".to_owned(),
    }
}

/// The command that leads to the cure, by what the cause is: one case a line, the surest first.
fn cure(named: &NamedPrediction) -> Option<String> {
    let prediction = named.prediction;
    let (gpu, program) = (&prediction.gpu.name, &prediction.program);
    let fix =
        named.recording.map(|recording| format!("oomph explain --fix {} -- {program}", quoted(recording)));
    let tune = named.recording.map(|recording| format!("oomph tune {} --gpu {gpu}", quoted(recording)));
    let smaller =
        named.smaller.map(|argument| format!("oomph predict --gpu {gpu} --max {argument} {program}"));
    let first = prediction.explanation.findings.first()?;
    let told = first.fixes.first().is_some_and(|fix| fix.by_fit);
    let fit = (told || trains(prediction)).then(|| format!("oomph fit --gpu {gpu} {program}"));
    match first.cause.as_ref().map(|cause| cause.key) {
        // A few lines of the program are the cause: they can be written down, and tried.
        Some(_) if first.patch.is_some() && fix.is_some() => fix,
        // Enough is free, in pieces: settings help, and nothing else need change.
        Some("fragmentation") => tune,
        // What training holds at its peak: batch, activations, gradients, the optimizer's state.
        Some("batch_too_large" | "static_state" | "logits" | "optimizer_temporaries") => {
            fit.or(smaller).or(tune)
        }
        Some("unknown") | None => smaller.or(fit).or(tune),
        // A layer's output or its loss, which can be computed for some samples at a time.
        Some(_) if told => fit,
        // Code has to change, and the rule says how.
        Some(_) => Some(format!("oomph rule {}", first.code)),
    }
}

/// Whether it trains, as far as it came: a step, or gradients at the peak.
fn trains(prediction: &Prediction) -> bool {
    let trained = [Kind::Gradient, Kind::OptimizerState];
    prediction.steps > 0
        || device(prediction)
            .is_some_and(|device| device.kinds.iter().any(|one| trained.contains(&one.kind) && one.bytes > 0))
}

/// Which of several values to take, and which only fits.
fn sweep_verdict(sweep: &Sweep, tried: &[Tried]) -> String {
    let argument = &sweep.argument;
    let card = tried.first().map(|one| printable(&one.prediction.gpu.title)).unwrap_or_default();
    let close = largest_close(tried).map(|one| {
        let spare = bytes(one.prediction.margin().unwrap_or(0).max(0) as u64);
        format!("{} fits with only {spare} to spare: too close to be sure", one.value)
    });
    match (largest(tried), close) {
        (Some(best), Some(close)) => format!(
            "{argument} {} is the largest of these that is safely inside on a {card}; {close}",
            best.value
        ),
        (Some(best), None) => {
            format!("{argument} {} is the largest of these that fits on a {card}", best.value)
        }
        (None, Some(close)) => format!("none of these is safely inside on a {card}; {argument} {close}"),
        (None, None) => format!("none of these fits on a {card}"),
    }
}

/// Values that were tried, for a terminal.
pub fn sweep_text(sweep: &Sweep, tried: &[Tried], named: &str) -> String {
    let mut out = String::new();
    let Some(one) = tried.first() else { return out };
    let gpu = &one.prediction.gpu;
    let heading = format!(
        "{:>12}  {:>10}  {:>10}  {:>10}  {:>10}",
        sweep.argument.trim_start_matches('-'),
        "allocated",
        "reserved",
        "total",
        "free"
    );
    let _ = writeln!(out, "{}", paint(BOLD, heading));
    for one in tried {
        let prediction = &one.prediction;
        let fits = prediction.verdict == Verdict::Fits;
        let margin = match (fits, prediction.is_close()) {
            (true, false) => bytes(prediction.margin().unwrap_or(0).max(0) as u64),
            (true, true) => {
                format!("{}, too close to be sure", bytes(prediction.margin().unwrap_or(0).max(0) as u64))
            }
            (false, _) if prediction.verdict == Verdict::Unknown => "not known".into(),
            (false, _) => "does not fit".into(),
        };
        let least = if fits { "" } else { "≥ " };
        let _ = writeln!(
            out,
            "{:>12}  {:>10}  {:>10}  {:>10}  {:>10}",
            one.value,
            format!("{least}{}", bytes(prediction.device.peak_allocated)),
            format!("{least}{}", bytes(prediction.device.peak_reserved)),
            format!("{least}{}", bytes(prediction.total)),
            margin
        );
    }
    let words = sweep_verdict(sweep, tried);
    let style = match (largest(tried), largest_close(tried)) {
        (Some(_), _) => GREEN,
        (None, Some(_)) => YELLOW,
        (None, None) => RED,
    };
    let _ = writeln!(out, "\n{}", paint(style.bold(), words));
    if let Some(words) = of_ranks(tried) {
        let _ = writeln!(out, "{words}");
    }
    doubts(&mut out, tried.iter().map(|one| &one.prediction));
    let world = tried.first().and_then(|one| one.prediction.world);
    let ranks = world.map(|world| match world.size.min(8) == world.per_node {
        true => format!(" --ranks {}", world.size),
        false => format!(" --ranks {} --per-node {}", world.size, world.per_node),
    });
    let ranks = ranks.unwrap_or_default();
    if let Some(best) = largest(tried).or(largest_close(tried)) {
        let _ = writeln!(
            out,
            "{} {}",
            paint(BOLD, "Next:"),
            paint(CYAN, format!("oomph predict --gpu {}{ranks} {}", gpu.name, best.prediction.program))
        );
    } else {
        let _ = writeln!(
            out,
            "{} {}",
            paint(BOLD, "Next:"),
            paint(CYAN, format!("oomph predict --gpu {}{ranks} {named}", gpu.name))
        );
    }
    out
}

/// Of which rank the rows are, where there are several.
fn of_ranks(tried: &[Tried]) -> Option<String> {
    let world = tried.first()?.prediction.world?;
    let ranks: std::collections::BTreeSet<u32> =
        tried.iter().filter_map(|one| Some(one.prediction.world?.rank)).collect();
    let ranks = named_ranks(&ranks.into_iter().collect::<Vec<_>>());
    Some(format!("Of {} ranks, each row is the one that takes the most: {ranks}.", world.size))
}

/// Whether it fits, for the last column of a table.
fn whether(prediction: &Prediction) -> (Style, String) {
    match prediction.verdict {
        Verdict::Fits if prediction.is_close() => (YELLOW, "barely".to_owned()),
        Verdict::Fits => {
            let free = bytes(prediction.margin().unwrap_or(0).max(0) as u64);
            match prediction.is_whole() {
                true => (GREEN, format!("yes, {free} stay free")),
                false => (YELLOW, format!("so far, {free} stay free")),
            }
        }
        Verdict::DoesNotFit => (RED, "no".to_owned()),
        Verdict::Unknown => {
            let error =
                prediction.error.as_deref().and_then(|error| error.lines().next()).unwrap_or_default();
            match prediction.range {
                Some(range) => (YELLOW, format!("not known, {} to {}", bytes(range.low), bytes(range.high))),
                None if prediction.timed_out => (YELLOW, format!("not known, {}", printable(error))),
                None => (YELLOW, format!("not known, it failed: {}", printable(error))),
            }
        }
    }
}

/// Ranks by their numbers: `rank 3`, `ranks 0 to 6`, `ranks 0, 4 and 7`.
pub fn named_ranks(ranks: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *rank => *last = *rank,
            _ => runs.push((*rank, *rank)),
        }
    }
    // Two that follow each other are two.
    let parts = runs.iter().flat_map(|(first, last)| match last - first {
        0 => vec![first.to_string()],
        1 => vec![first.to_string(), last.to_string()],
        _ => vec![format!("{first} to {last}")],
    });
    let mut parts: Vec<String> = parts.collect();
    const SHOWN: usize = 6;
    if parts.len() > SHOWN {
        let left = format!("… ({} in all)", ranks.len());
        parts.truncate(SHOWN - 1);
        return format!("ranks {} {left}", parts.join(", "));
    }
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    match parts.split_last() {
        Some((last, before)) if !before.is_empty() => format!("{word} {} and {last}", before.join(", ")),
        _ => format!("{word} {}", parts.join("")),
    }
}

/// A row each: cards by their names, and ranks that take the same together.
fn rows(predictions: &[Prediction]) -> Vec<(String, &Prediction)> {
    let mut rows: Vec<(Vec<u32>, &Prediction)> = Vec::new();
    for prediction in predictions {
        let alike = |row: &&mut (Vec<u32>, &Prediction)| {
            // As they are shown: a few bytes are no row of their own.
            shown(row.1) == shown(prediction)
        };
        match prediction.world {
            Some(world) => match rows.iter_mut().find(alike) {
                Some(row) => row.0.push(world.rank),
                None => rows.push((vec![world.rank], prediction)),
            },
            None => rows.push((Vec::new(), prediction)),
        }
    }
    rows.into_iter()
        .map(|(ranks, one)| match ranks.is_empty() {
            true => (one.gpu.name.clone(), one),
            false => (named_ranks(&ranks), one),
        })
        .collect()
}

fn shown(prediction: &Prediction) -> ([String; 3], String) {
    let (allocated, reserved, total) = sizes(prediction);
    ([allocated, reserved, total].map(bytes), whether(prediction).1)
}

/// Which ranks were run, where not all were.
fn which_were_run(predictions: &[Prediction]) -> Option<String> {
    let ranks = |is_run: bool| -> Vec<u32> {
        let of = |one: &&Prediction| one.like.is_none() == is_run;
        predictions.iter().filter(of).filter_map(|one| Some(one.world?.rank)).collect()
    };
    let (run, others) = (ranks(true), ranks(false));
    let like: std::collections::BTreeSet<u32> =
        predictions.iter().filter_map(|one| Some(one.like?.rank)).collect();
    let like: Vec<u32> = like.into_iter().collect();
    (!others.is_empty()).then(|| {
        let verb = if run.len() == 1 { "was" } else { "were" };
        format!(
            "{} {verb} run; the others are taken to do what {} did",
            capital(&named_ranks(&run)),
            named_ranks(&like)
        )
    })
}

fn capital(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// Several cards or ranks, for a terminal.
pub fn table_text(predictions: &[Prediction]) -> String {
    let mut out = String::new();
    let rows = rows(predictions);
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(4).max(4);
    let first = if predictions.iter().any(|one| one.world.is_some()) { "rank" } else { "card" };
    let heading = format!(
        "{first:width$}  {:>10}  {:>10}  {:>10}  {:>10}  fits",
        "memory", "allocated", "reserved", "total"
    );
    let _ = writeln!(out, "{}", paint(BOLD, heading));
    for (name, prediction) in &rows {
        let (allocated, reserved, total) = sizes(prediction);
        let (style, words) = whether(prediction);
        let _ = writeln!(
            out,
            "{name:width$}  {:>10}  {:>10}  {:>10}  {:>10}  {}",
            bytes(prediction.gpu.memory),
            bytes(allocated),
            bytes(reserved),
            bytes(total),
            paint(style, words)
        );
    }
    if let Some(words) = which_were_run(predictions) {
        let _ = writeln!(out, "\n{words}.");
    }
    doubts(&mut out, predictions.iter());
    if let Some(words) = predictions.iter().find_map(fetched) {
        let _ = writeln!(out, "\n{}", paint(DIM, words));
    }
    out
}

/// What is doubtful in any of several predictions, each once.
pub(crate) fn doubts<'a>(out: &mut String, predictions: impl Iterator<Item = &'a Prediction>) {
    let (mut seen, mut calls) = (Vec::new(), Vec::new());
    for prediction in predictions {
        for one in &prediction.uncertain {
            let words = uncertain(one);
            if !seen.contains(&words) {
                seen.push(words);
            }
        }
        for call in &prediction.unmodelled {
            if !calls.contains(&call.name) {
                calls.push(call.name.clone());
            }
        }
    }
    if !seen.is_empty() {
        let _ = writeln!(out, "\n{}", paint(YELLOW, "What may make this wrong"));
        for words in seen {
            let _ = writeln!(out, "  {words}");
        }
    }
    if !calls.is_empty() {
        let words = format!("Not modelled, so what these take is missing: {}", calls.join(", "));
        let _ = writeln!(out, "\n{}", paint(YELLOW, harmless(&words)));
    }
}

// --- JSON -------------------------------------------------------------------------------------------------

pub fn json(named: &NamedPrediction) -> String {
    json::predict::prediction(named)
}

/// Several cards or ranks, for scripts.
pub fn table_json(predictions: &[Prediction]) -> String {
    json::predict::predictions(predictions)
}

/// Values that were tried, for scripts.
pub fn sweep_json(sweep: &Sweep, tried: &[Tried]) -> String {
    json::predict::sweep(sweep, tried)
}

// --- Markdown ---------------------------------------------------------------------------------------------

const HEADING: &str = "| memory | allocated | reserved | total | fits |\n|---|---:|---:|---:|---:|---|\n";

fn row(prediction: &Prediction) -> String {
    let (allocated, reserved, total) = sizes(prediction);
    format!(
        "| {} | {} | {} | {} | {} |\n",
        bytes(prediction.gpu.memory),
        bytes(allocated),
        bytes(reserved),
        bytes(total),
        match prediction.verdict {
            Verdict::Fits if prediction.is_whole() => "yes",
            Verdict::Fits => "so far",
            Verdict::DoesNotFit => "no",
            Verdict::Unknown => "not known",
        }
    )
}

/// For issues and pull requests.
pub fn markdown(named: &NamedPrediction, lines: usize) -> String {
    let prediction = named.prediction;
    let mut out = format!("## {}\n\n**{}**\n\n", escape(&prediction.program), escape(&verdict(prediction)));
    let _ = write!(out, "| card {HEADING}| {} {}", escape(&prediction.gpu.name), row(prediction));
    out.push('\n');
    for words in batches(prediction) {
        let _ = writeln!(out, "{}\n", escape(&words));
    }
    for one in &prediction.uncertain {
        let _ = writeln!(out, "> uncertain: {}\n", escape(&uncertain(one)));
    }
    if let Some(words) = fetched(prediction) {
        let _ = writeln!(out, "{}\n", escape(&words));
    }
    if let Some(found) = device(prediction) {
        for finding in findings_of(&prediction.explanation, found) {
            crate::markdown::finding(&mut out, finding);
        }
        crate::markdown::device(&mut out, found, lines);
    }
    out
}

/// Several cards or ranks, for issues and pull requests.
pub fn table_markdown(predictions: &[Prediction]) -> String {
    let mut out = format!("| card {HEADING}");
    for (name, prediction) in rows(predictions) {
        let _ = write!(out, "| {} {}", escape(&name), row(prediction));
    }
    if let Some(words) = which_were_run(predictions) {
        let _ = writeln!(out, "\n{}.", escape(&words));
    }
    out
}

/// Values that were tried, for issues and pull requests.
pub fn sweep_markdown(sweep: &Sweep, tried: &[Tried]) -> String {
    let mut out = format!("| {} {HEADING}", escape(&sweep.argument));
    for one in tried {
        let _ = write!(out, "| {} {}", one.value, row(&one.prediction));
    }
    if !tried.is_empty() {
        let _ = writeln!(out, "\n{}", escape(&sweep_verdict(sweep, tried)));
        if let Some(words) = of_ranks(tried) {
            let _ = writeln!(out, "\n{words}");
        }
    }
    out
}
