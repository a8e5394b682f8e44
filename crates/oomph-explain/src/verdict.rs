//! One story, cause first.
//!
//! Rules look at one thing each, and several may hold at once: a leak is why a request failed, and why activations are
//! most of the peak. This module names the cause of a death, joins the findings that are one story with it, and puts the
//! others behind it by what they save.

use crate::context::Context;
use crate::finding::{Cause, Finding, Severity, Weight};
use crate::rules::FATAL;

/// A cause must account for this share of the memory to be the one.
fn least_share(weight: Weight) -> f64 {
    match weight {
        Weight::Mistake => 0.12,
        Weight::Oversized => 0.20,
        Weight::Ordinary => 0.0,
    }
}

/// Puts findings in order. If the program died of an out-of-memory, the first one names the cause.
pub(crate) fn join(context: &Context, mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.sort_by_key(|finding| (finding.severity, std::cmp::Reverse(saved(finding)), finding.code));
    let Some(fatal) = findings.iter().position(|finding| finding.code == FATAL) else { return findings };
    let mut fatal = findings.remove(fatal);
    match main_cause(context, &findings) {
        Some(main) => {
            let main = findings.remove(main);
            findings.retain(|other| !is_covered_by(other, &main));
            findings.insert(0, one_story(main, fatal));
        }
        None => {
            fatal.cause.get_or_insert(Cause {
                key: "unknown",
                held: 0,
                likely: true,
                weight: Weight::Ordinary,
            });
            findings.insert(0, fatal);
        }
    }
    findings
}

fn saved(finding: &Finding) -> u64 {
    finding.saving.as_ref().filter(|saving| !saving.missing).map_or(0, |saving| saving.bytes)
}

fn main_cause(context: &Context, findings: &[Finding]) -> Option<usize> {
    let capacity = context.capacity() as f64;
    (findings.iter().enumerate())
        .filter_map(|(index, finding)| Some((index, finding.cause.as_ref()?)))
        .filter(|(_, cause)| cause.held as f64 >= least_share(cause.weight) * capacity)
        .max_by_key(|(index, cause)| (cause.weight, cause.held, std::cmp::Reverse(*index)))
        .map(|(index, _)| index)
}

/// Whether the main finding says what this one would say, or explains it away.
fn is_covered_by(other: &Finding, main: &Finding) -> bool {
    if other.code == main.code {
        return true;
    }
    let Some(cause) = &other.cause else { return false };
    // What an ordinary step takes is no news beside a mistake; a larger share of the same bytes is the same news.
    let outweighed = main.cause.as_ref().is_some_and(|main| cause.weight < main.weight);
    outweighed && (cause.weight == Weight::Ordinary || saved(other) * 20 < saved(main))
}

fn one_story(mut main: Finding, fatal: Finding) -> Finding {
    main.severity = Severity::Error;
    let likely = main.cause.as_ref().is_some_and(|cause| cause.likely);
    main.title = format!("Out of memory{}: {}", if likely { ", likely" } else { "" }, continued(&main.title));
    main.details.extend(fatal.details);
    if main.places.is_empty() {
        main.places = fatal.places;
    }
    if main.fixes.is_empty() {
        main.fixes = fatal.fixes;
    }
    main
}

/// A title in the middle of a sentence.
fn continued(title: &str) -> String {
    let mut letters = title.chars();
    match (letters.next(), letters.clone().next()) {
        // Names stay as they are: GPU, A100, KV.
        (Some(first), Some(second)) if first.is_uppercase() && second.is_lowercase() => {
            first.to_lowercase().chain(letters).collect()
        }
        _ => title.to_owned(),
    }
}
