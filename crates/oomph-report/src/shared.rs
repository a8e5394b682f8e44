//! What several renderers need.

use oomph_explain::ranks::has_died;
use oomph_explain::{DeviceExplanation, Explanation, Finding, Severity};
pub(crate) use oomph_render::shell::quoted;
use oomph_words::{bytes, printable};

/// An explanation with the name of its file.
#[derive(Clone, Copy)]
pub struct Named<'a> {
    /// As the user gave it.
    pub name: &'a str,
    /// What is said about it.
    pub explanation: &'a Explanation,
}

/// What of an explanation the text shows.
#[derive(Clone, Copy, Debug)]
pub struct TextOptions {
    /// Lines of the table by line.
    pub lines: usize,
    /// Whole stacks instead of lines.
    pub stacks: bool,
    /// Columns of the terminal.
    pub width: usize,
}

impl Default for TextOptions {
    fn default() -> Self {
        Self { lines: 8, stacks: false, width: 100 }
    }
}

/// The outcome of `check` for one recording.
pub struct Check {
    /// The file, as the user gave it.
    pub file: String,
    /// Which peak.
    pub metric: Metric,
    /// Of devices, the highest of all.
    pub peak: u64,
    /// What it was held against.
    pub limit: CheckLimit,
    /// Whether the program ran out of memory and died: then its peak is not what it needs.
    pub died: bool,
    pub passed: bool,
}

/// Which peak is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// What is taken from the device.
    Reserved,
    /// What the program holds on it.
    Allocated,
    /// The process's own memory, as the kernel counts it.
    Ram,
    /// The same where the kernel's count is not known: what the program asked for.
    RamAsked,
}

impl Metric {
    /// The name for scripts.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::Allocated => "allocated",
            Self::Ram => "ram",
            Self::RamAsked => "ram_asked",
        }
    }

    /// What stands behind the bytes.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::Allocated => "allocated",
            Self::Ram => "of RAM",
            Self::RamAsked => "of RAM asked for",
        }
    }
}

impl Check {
    pub(crate) fn most(&self) -> u64 {
        match self.limit {
            CheckLimit::Most(most) | CheckLimit::Baseline { most, .. } => most,
        }
    }
}

/// What a peak is held against.
pub enum CheckLimit {
    Most(u64),
    /// Another recording's peak and a tolerance.
    Baseline {
        peak: u64,
        /// The share by which it may be exceeded.
        tolerance: f64,
        /// The most that passes.
        most: u64,
    },
}

/// Where a program died of an out-of-memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Died {
    /// In which step, from 1, if the recording has steps.
    pub(crate) step: Option<u64>,
}

/// Where the program died, if it did.
pub(crate) fn died(explanation: &Explanation) -> Option<Died> {
    let device = explanation.devices.iter().find(|device| has_died(device))?;
    // A step that was cut short is the one that it died in; else it died after the last.
    let step = |steps: &oomph_explain::StepsExplanation| {
        steps.count + steps.repeated + u64::from(!steps.last_is_partial)
    };
    Some(Died { step: device.steps.as_ref().map(step) })
}

/// What the peaks of two recordings do not say, where one of them was cut short by its death.
pub(crate) fn cut_short(before: &Named, after: &Named) -> Option<String> {
    let died = |named: &Named| {
        let died = died(named.explanation)?;
        let step = died.step.map(|step| format!(" in step {step}")).unwrap_or_default();
        Some(format!("{} ran out of memory{step}", printable(named.name)))
    };
    Some(match (died(before), died(after)) {
        (None, None) => return None,
        (Some(one), None) => format!(
            "{one}; {} did not: the first peak is what was reached by then, not what the program needs",
            printable(after.name)
        ),
        (None, Some(other)) => format!(
            "{other}; {} did not: the second peak is what was reached by then, not what the program needs",
            printable(before.name)
        ),
        (Some(one), Some(other)) => {
            format!("{one}, and {other}: both peaks are what was reached by then, not what the programs need")
        }
    })
}

/// What is said of a recording that has no device.
pub const NOTHING_RECORDED: &str =
    "there is no event and no segment in this file: recording was off, or no GPU was used";

/// The device with the highest reserved peak, over all recordings.
pub fn worst<'a>(all: &'a [Named<'a>]) -> Option<(usize, &'a DeviceExplanation)> {
    (all.iter().enumerate())
        .flat_map(|(index, named)| named.explanation.devices.iter().map(move |device| (index, device)))
        .max_by_key(|(index, device)| {
            (has_died(device), device.peak.reserved.bytes, std::cmp::Reverse(*index))
        })
}

/// The recording that asked for most RAM.
pub(crate) fn largest_of_ram(all: &[Named]) -> Option<usize> {
    (all.iter().enumerate())
        .filter_map(|(index, named)| Some((named.explanation.host.as_ref()?.asked, std::cmp::Reverse(index))))
        .max()
        .map(|(_, std::cmp::Reverse(index))| index)
}

/// Reserved bytes that hold nothing the program asked for, by reason, largest first.
pub(crate) fn waste_parts(device: &DeviceExplanation) -> Vec<(&'static str, u64)> {
    let waste = &device.waste;
    let mut parts = vec![
        ("holes between live blocks", waste.holes),
        ("cached whole segments", waste.cached),
        ("free on other streams", waste.other_streams),
        ("free in private pools", waste.private_pools),
        ("waiting for another stream", waste.pending),
        ("remainders too small to split off", waste.remainders),
        ("rounding", waste.rounding),
    ];
    parts.retain(|&(_, bytes)| bytes > 0);
    parts.sort_by_key(|&(_, bytes)| std::cmp::Reverse(bytes));
    parts
}

/// How complete the recording is, in a few words.
pub(crate) fn completeness(device: &DeviceExplanation) -> String {
    let c = &device.completeness;
    let mut lacks = Vec::new();
    if c.truncated {
        lacks.push("cut off".to_owned());
    }
    if device.events == 0 {
        lacks.push("final state only".to_owned());
    } else if c.born_before > 0 {
        lacks.push(format!("{} from before", oomph_words::plural(c.born_before, "block")));
    }
    if c.contradictions > 0 {
        lacks.push(oomph_words::plural(c.contradictions, "contradiction"));
    }
    if c.allocations > 0 && c.without_stack == c.allocations {
        lacks.push("without stacks".to_owned());
    }
    match (c.complete, lacks.is_empty()) {
        (true, true) => "complete".to_owned(),
        (true, false) => format!("complete, but {}", lacks.join(", ")),
        (false, true) => "incomplete".to_owned(),
        (false, false) => format!("incomplete: {}", lacks.join(", ")),
    }
}

/// What a finding would save, in words.
pub(crate) fn saving(finding: &Finding) -> Option<String> {
    let saving = finding.saving.as_ref().filter(|saving| saving.bytes > 0)?;
    let verb = if saving.missing { "lacks" } else { "saves" };
    Some(format!("{verb} {} ({}: {})", bytes(saving.bytes), saving.basis.name(), saving.of))
}

/// Findings of one device.
pub(crate) fn findings_of<'a>(
    explanation: &'a Explanation,
    device: &'a DeviceExplanation,
) -> impl Iterator<Item = &'a Finding> {
    explanation.findings.iter().filter(|finding| finding.device == Some(device.ordinal))
}

/// Findings of the host's memory.
pub(crate) fn findings_of_host(explanation: &Explanation) -> impl Iterator<Item = &Finding> {
    explanation.findings.iter().filter(|finding| finding.device.is_none())
}

/// The next thing to type: it leads to the cure.
pub(crate) fn next_command(explanation: &Explanation, name: &str) -> String {
    let first = explanation.findings.iter().find(|finding| finding.severity <= Severity::Warning);
    let Some(first) = first else {
        return if name == "-" {
            "oomph rule".to_owned()
        } else {
            format!("oomph explain --stacks {}", quoted(name))
        };
    };
    if name != "-" {
        // A few lines of the program are all: they can be written down, and tried.
        if first.patch.is_some() {
            return format!("oomph explain --fix {}", quoted(name));
        }
        // Where a setting would have helped, the next question is which.
        if first.code == "OM401" {
            return format!("oomph tune {}", quoted(name));
        }
        // Nothing in the recording says why: a recorder inside the process could have asked.
        if first.cause.as_ref().is_some_and(|cause| cause.key == "unknown" || cause.likely) {
            return "oomph run train.py   # your script: it then names who holds the memory".to_owned();
        }
    }
    match cure(first) {
        Some(command) => command,
        None => format!("oomph rule {}", first.code),
    }
}

/// The command that makes such a program fit, where `oomph.fit` is what helps.
pub(crate) fn cure(finding: &Finding) -> Option<String> {
    let fits = finding.fixes.first().is_some_and(|fix| fix.by_fit);
    fits.then(|| "oomph fit --gpu NAME train.py   # your card, your script".to_owned())
}

/// What to type to see it. Nothing for what came from stdin, or for more files than a line holds.
pub(crate) fn page_command(names: &[&str], options: &str) -> Option<String> {
    const MOST: usize = 16;
    if names.is_empty() || names.len() > MOST || names.contains(&"-") {
        return None;
    }
    let files: Vec<String> = names.iter().map(|name| quoted(name)).collect();
    Some(format!("oomph report {}{options} --open", files.join(" ")))
}
