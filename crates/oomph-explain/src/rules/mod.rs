//! Rules: each looks for one thing that goes wrong with memory.
//!
//! One rule a file. Its header comment is its documentation (`oomph rule CODE` prints it), `CODE` its code,
//! the file's name its name, and `check` looks at a [`Context`] and says what it found; a rule that finds
//! nothing says nothing. To add a rule, add a file and its name to the list below. Rules of the host's memory are in `host/rules`, and look at a [`HostContext`].

use crate::context::Context;
use crate::finding::{Finding, Place};
use crate::host::{HostContext, HostExplanation, rules as host};
use crate::kept::{How, Kept};
use oomph_trace::census::Holder;
use oomph_words::printable;

macro_rules! rules {
    (devices: $($device:ident),*; host: $($host:ident),*; processes: $($processes:ident),*; recording: $($recording:ident),*;) => {
        $(mod $device;)*
        $(mod $recording;)*

        /// All rules, by code.
        pub static ALL: &[Rule] = &[
            $(Rule {
                code: $device::CODE,
                module: stringify!($device),
                source: include_str!(concat!(stringify!($device), ".rs")),
                check: Check::Device($device::check),
            },)*
            $(Rule {
                code: host::$host::CODE,
                module: stringify!($host),
                source: include_str!(concat!("../host/rules/", stringify!($host), ".rs")),
                check: Check::Host(host::$host::check),
            },)*
            $(Rule {
                code: host::$processes::CODE,
                module: stringify!($processes),
                source: include_str!(concat!("../host/rules/", stringify!($processes), ".rs")),
                check: Check::Processes(host::$processes::check),
            },)*
            $(Rule {
                code: $recording::CODE,
                module: stringify!($recording),
                source: include_str!(concat!(stringify!($recording), ".rs")),
                check: Check::Device($recording::check),
            },)*
        ];
    };
}

rules! {
    devices: fatal_out_of_memory,
        caught_out_of_memory,
        graph_kept,
        no_grad_missing,
        duplicates,
        tensors_kept,
        backward_once,
        growing_cache,
        copy_of_weights,
        logits_dominate,
        foreach_temporaries,
        one_temporary_makes_the_peak,
        activations_dominate,
        workspaces,
        static_state,
        broadcast,
        attention_scores,
        float64,
        one_hot,
        dataset_on_card,
        outlier_batch,
        fragmentation,
        cache_thrash,
        stuck_on_another_stream,
        stuck_in_a_private_pool,
        shared_card;
    host: converted_copy,
        put_together_in_a_loop,
        ram_grows,
        text_as_objects,
        checkpoint_beside_weights,
        freed_and_kept;
    processes: copied_into_workers;
    recording: incomplete_recording;
}

/// The rule that names what the program died of.
pub(crate) const FATAL: &str = fatal_out_of_memory::CODE;

pub struct Rule {
    pub code: &'static str,
    module: &'static str,
    source: &'static str,
    check: Check,
}

/// What a rule looks at.
enum Check {
    Device(fn(&Context) -> Vec<Finding>),
    /// Host memory of one process.
    Host(fn(&HostContext) -> Vec<Finding>),
    /// That of several processes of one program.
    Processes(fn(&[&HostExplanation]) -> Vec<Finding>),
}

impl Rule {
    /// What it finds on a device.
    pub(crate) fn of_device(&self, context: &Context) -> Vec<Finding> {
        match self.check {
            Check::Device(check) => check(context),
            Check::Host(_) | Check::Processes(_) => Vec::new(),
        }
    }

    /// The rule with this code or name.
    pub fn find(code_or_name: &str) -> Option<&'static Self> {
        ALL.iter().find(|rule| {
            rule.code.eq_ignore_ascii_case(code_or_name) || rule.name().eq_ignore_ascii_case(code_or_name)
        })
    }

    /// Its name, with dashes.
    pub fn name(&self) -> String {
        self.module.replace('_', "-")
    }

    /// Its documentation, in Markdown: the header of its file.
    pub fn documentation(&self) -> String {
        (self.source.lines())
            .take_while(|line| line.starts_with("//!"))
            .map(|line| line.trim_start_matches("//!").strip_prefix(' ').unwrap_or(""))
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// What it looks for, in one line.
    pub fn summary(&self) -> String {
        self.documentation().lines().next().unwrap_or_default().trim_end_matches('.').to_owned()
    }
}

/// What is found in the host's memory of one process, worst first.
pub(crate) fn of_host(context: &HostContext) -> Vec<Finding> {
    named(|rule| match rule.check {
        Check::Host(check) => check(context),
        Check::Device(_) | Check::Processes(_) => Vec::new(),
    })
}

/// What is found in that of several processes, worst first.
pub(crate) fn of_processes(all: &[&HostExplanation]) -> Vec<Finding> {
    named(|rule| match rule.check {
        Check::Processes(check) => check(all),
        Check::Device(_) | Check::Host(_) => Vec::new(),
    })
}

fn named(find: impl Fn(&Rule) -> Vec<Finding>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for rule in ALL {
        findings.extend(find(rule).into_iter().map(|finding| Finding { name: rule.name(), ..finding }));
    }
    let saved = |finding: &Finding| finding.saving.as_ref().map_or(0, |saving| saving.bytes);
    findings.sort_by_key(|finding| (finding.severity, std::cmp::Reverse(saved(finding)), finding.code));
    findings
}

/// Large enough to speak of: a share of the peak, and some MiB.
fn matters(bytes: u64, peak: u64, share: f64, at_least: u64) -> bool {
    bytes >= at_least && bytes as f64 >= share * peak as f64
}

/// Whether what forwards leave behind is much, and is a habit rather than an algorithm that needs two results at once.
fn is_worth_a_finding(context: &Context, kept: &Kept) -> bool {
    let died = context.fatal().is_some();
    let whole = if died { context.capacity() } else { context.peak() };
    let named = kept.holder.is_some();
    // Validation after validation; two or three forwards belong to many an algorithm, until the holder that keeps them is known.
    let rounds = match kept.how {
        How::NoGradMissing if died => 1,
        How::TensorsKept if died && named => 2,
        _ if died && named => 1,
        _ => 3,
    };
    // What one round left once is not what rounds leave.
    let usual = kept.bytes.min(kept.per_round.saturating_mul(2 * kept.rounds as u64));
    kept.rounds >= rounds && matters(usual, whole, 0.10, 16 << 20)
}

/// A title that ends with its place.
fn with_place(title: String, place: Option<Place>) -> String {
    match place {
        Some(place) => format!("{title}, at {}", place.short()),
        None => title,
    }
}

/// Adds the line that puts things into a holder, as it is written.
fn line_of_holder(finding: Finding, holder: Option<&Holder>) -> Finding {
    match holder.filter(|holder| holder.line > 0 && !holder.text.is_empty()) {
        Some(holder) => finding.because(format!(
            "it is kept by {}: {}",
            Place::of_holder(holder).short(),
            printable(&holder.text)
        )),
        None => finding,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_documented_and_has_a_code_of_its_own() {
        for rule in ALL {
            let text = rule.documentation();
            assert!(rule.summary().len() > 20, "{} says what it looks for", rule.code);
            for part in ["## What it sees", "## What to do", "## How the numbers come about"] {
                assert!(text.contains(part), "{} lacks {part:?}", rule.code);
            }
            assert_eq!(ALL.iter().filter(|other| other.code == rule.code).count(), 1);
            assert!(Rule::find(&rule.code.to_lowercase()).is_some());
            assert!(Rule::find(&rule.name()).is_some());
        }
        assert!(ALL.is_sorted_by_key(|rule| rule.code));
    }
}
