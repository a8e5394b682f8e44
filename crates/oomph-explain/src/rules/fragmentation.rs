//! Memory is free, but in holes between live blocks.
//!
//! ## What it sees
//!
//! The allocator takes segments from the device and cuts them into blocks. A segment can be given back, or used for
//! something larger, only when all of it is free. Sizes that change from step to step (sequences of many lengths),
//! or small blocks that live long in large segments, leave holes that nothing fits into.
//!
//! ## What to do
//!
//! `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` lets segments grow and shrink by pages, so that holes can be
//! given back; it changes no result. Padding to a few fixed lengths makes holes fit again. `max_split_size_mb`
//! keeps large blocks whole; it helps only against small blocks in large segments. `oomph.fit` sets expandable segments while the
//! program runs.
//!
//! ## How the numbers come about
//!
//! When memory ran out: free bytes in segments that also hold live blocks, measured at that moment. Otherwise: what was
//! reserved at most, less what was allocated at most (and less what other streams and private pools hold). The saving is
//! replayed: what the best of a few settings reserves at most with room to spare (`oomph tune` says what each needs at least), through a model of the allocator that is exact to the byte. On
//! an H200, expandable segments gave back what this says for a BERT with sequences of many lengths, to the byte.

use super::matters;
use crate::context::Context;
use crate::finding::{Finding, Fix, Grade, Severity, Weight, Where};
use crate::fitting;
use crate::oom::Reason;
use crate::what_if::Saved;
use oomph_words::{bytes, percent};

pub(super) const CODE: &str = "OM401";

/// What is tried, the most usual first; `oomph tune` tries more.
const SETTINGS: [&str; 4] = [
    "expandable_segments:True",
    "max_split_size_mb:128",
    "roundup_power2_divisions:8",
    "large_segment_size_mb:64",
];

pub(super) fn check(context: &Context) -> Vec<Finding> {
    let fatal = context.fatal().filter(|oom| oom.reason == Reason::Fragmentation);
    let waste = fatal.map_or(&context.waste, |oom| &oom.waste);
    let (reserved, allocated) = (context.history.peak.reserved.bytes, context.peak());
    let at_most = &context.waste_at_reserved_peak;
    let elsewhere = at_most.other_streams + at_most.private_pools + at_most.pending;
    let lost = match fatal {
        Some(_) => waste.holes,
        None => reserved.saturating_sub(allocated).saturating_sub(elsewhere),
    };
    // Reserved remembers what was before the recording, allocated does not: without the beginning the two cannot be compared.
    if fatal.is_none() && !context.is_whole() {
        return Vec::new();
    }
    // Less than this is a program that has just begun.
    if fatal.is_none() && !matters(lost, reserved, 0.10, 64 << 20) {
        return Vec::new();
    }
    let title = match fatal {
        Some(_) => format!(
            "{} of {} reserved ({}) are free, in holes between live blocks (fragmentation)",
            bytes(lost),
            bytes(waste.reserved),
            percent(lost, waste.reserved)
        ),
        None => format!(
            "Fragmentation: {} was reserved, though never more than {} was allocated: {} ({}) is lost",
            bytes(reserved),
            bytes(allocated),
            bytes(lost),
            percent(lost, reserved)
        ),
    };
    let mut finding = Finding::new(CODE, Severity::Warning, title);
    if fatal.is_none() {
        let parts: Vec<String> = [
            (waste.holes, "holes between live blocks"),
            (waste.cached, "free segments of sizes that did not fit"),
        ]
        .into_iter()
        .filter(|&(sum, _)| sum > 0)
        .map(|(sum, what)| format!("{} are {what}", bytes(sum)))
        .collect();
        if !parts.is_empty() {
            finding = finding.because(format!("at the allocated peak, {}", parts.join(" and ")));
        }
    }
    if let Some(worst) = waste.worst.first() {
        finding = finding.because(format!(
            "the largest hole is {}; the worst segment ({}, at 0x{:x}) is {} free and is kept by {}",
            bytes(waste.worst.iter().map(|segment| segment.largest_hole).max().unwrap_or(0)),
            bytes(worst.size),
            worst.address,
            percent(worst.holes, worst.size),
            (worst.held_by.iter())
                .map(|&(stack, held)| format!("{} at {}", bytes(held), context.place(stack, 1).short()))
                .collect::<Vec<_>>()
                .join(", ")
        ));
    }
    if let Some(oom) = fatal {
        finding = finding.because(format!(
            "in one piece, the {} that were free would have gone {} of the way to the {} \
             that were asked for",
            bytes(oom.usable_free()),
            percent(oom.usable_free().min(oom.size), oom.size),
            bytes(oom.size)
        ));
    }
    // Who pins the segments: their own lines, with the holes they are answerable for.
    let mut pinned: Vec<Where> = Vec::new();
    for segment in &waste.worst {
        let Some(&(stack, _)) = segment.held_by.first() else { continue };
        let place = context.place(stack, 1);
        match pinned.iter_mut().find(|known| known.place == place) {
            Some(known) => {
                known.bytes += segment.holes;
                known.count += 1;
            }
            None => pinned.push(Where { place, bytes: segment.holes, count: 1 }),
        }
    }
    pinned.sort_by_key(|place| std::cmp::Reverse(place.bytes));
    finding = finding.at(pinned);
    let mut settings: Vec<(&str, Saved)> =
        SETTINGS.iter().filter_map(|&conf| Some((conf, context.what_if().setting(conf)?))).collect();
    // The first of them unless another is better by far: it is the one that most people use.
    settings.sort_by_key(|(_, saved)| std::cmp::Reverse(saved.reserved / (lost / 8).max(1)));
    match settings.into_iter().next().filter(|(_, saved)| saved.reserved >= lost / 8) {
        Some((conf, saved)) => {
            finding = finding
                .because(format!(
                    "{} with {conf}: {} reserved at most instead of {}",
                    saved.basis.name(),
                    bytes(saved.reserved_peak),
                    bytes(saved.reserved_before)
                ))
                .saves(saved.reserved, saved.basis, "reserved peak, with room to spare")
                .fix(
                    Fix::new(Grade::Safe, "change the allocator's setting, before Python starts")
                        .code(format!("export PYTORCH_CUDA_ALLOC_CONF={conf}")),
                )
                .fix_if(fitting::expandable_segments(context, conf, &saved));
        }
        None => {
            finding = finding.because("no setting that was replayed would have given an eighth of it back");
        }
    }
    finding = finding.fix(Fix::new(
        Grade::Safe,
        "allocate what lives long before what comes and goes, or pad to a few fixed sizes",
    ));
    // What a live program loses is no cause of a death; that of a dead one is only where closing the holes had saved it.
    vec![match (fatal, context.fatal()) {
        // What is kept is needed, as far as is known; the holes are not.
        (Some(oom), _) if oom.seen_before => {
            finding.caused_by("fragmentation", Weight::Mistake, 2 * oom.usable_free())
        }
        (Some(oom), _) => {
            finding.caused_by("fragmentation", Weight::Oversized, oom.usable_free()).likely_if(true)
        }
        _ => finding,
    }]
}
