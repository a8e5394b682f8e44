//! Activations are most of the peak.
//!
//! ## What it sees
//!
//! A training step whose peak is mostly what the forward pass keeps for the backward pass. It is the normal
//! state of training, and the part that can be traded: it grows with the batch and the sequence, and it
//! can be computed again instead of being kept.
//!
//! ## What to do
//!
//! `oomph.fit` makes the step fit with the same numbers: the batch in parts, blocks that are run again, host memory, whichever is
//! fastest. By hand, cheapest first: mixed precision (`torch.autocast`), which halves many of them; a smaller batch with
//! gradient accumulation, which gives the same gradients except for batch norm; checkpointing
//! (`torch.utils.checkpoint`), which keeps only the inputs of blocks and computes the rest again for about a third more time.
//!
//! ## How the numbers come about
//!
//! Activations are inferred: made in the forward pass, alive when the backward pass begins. The saving is replayed, with
//! everything that grows with the batch (activations, inputs, temporaries outside of the optimizer) at half its size.
//! What `oomph.fit` leaves is replayed with activations and temporaries divided by the parts, the batch itself whole and all gradients there all
//! the time: the fewest parts, of 2, 4, 8 …, that fit into what the program had, or two of one that did not run out. Of
//! a program that died it is known up to there only, hence "or more". No bytes are given for models with batch norm, whose batches cannot be cut.

use super::matters;
use crate::advice;
use crate::context::Context;
use crate::finding::{Finding, Fix, Grade, Severity, Weight, Where};
use crate::fitting;
use crate::kinds::Kind;
use oomph_words::{bytes, percent};

pub(super) const CODE: &str = "OM304";

const CAUSE: &str = "batch_too_large";

pub(super) fn check(context: &Context) -> Vec<Finding> {
    let died = context.fatal().is_some();
    let of_batch = |kind: Kind| matches!(kind, Kind::Activation | Kind::Input | Kind::Temporary);
    let (whole, share) = if died { (context.held_bytes(), 0.25) } else { (context.peak(), 0.50) };
    let activations =
        if died { context.held_of(Kind::Activation) } else { context.bytes_of(Kind::Activation) };
    let leaks = !died && context.growth().is_some();
    if (!context.kinds.trains() && !died) || leaks || !matters(activations, whole, share, 256 << 20) {
        return Vec::new();
    }
    let held = if died { &context.held } else { &context.alive };
    let alive: Vec<u32> =
        held.iter().filter(|(_, kind)| *kind == Kind::Activation).map(|&(index, _)| index).collect();
    let all = &context.history.allocations;
    let batch: u64 =
        held.iter().filter(|(_, kind)| of_batch(*kind)).map(|&(index, _)| all.size(index as usize)).sum();
    let last = context.forwards.all().last().and_then(|forward| forward.own);
    let place = last.map(|frame| context.place_of_frame(frame, true));
    let title = if died {
        super::with_place(
            format!(
                "the batch is too large: its activations take {} ({} of what is held)",
                bytes(activations),
                percent(activations, whole)
            ),
            place.clone(),
        )
    } else {
        format!("Activations are {} of the peak: {}", percent(activations, whole), bytes(activations))
    };
    let mut finding = Finding::new(CODE, Severity::Note, title);
    let mut places: Vec<Where> = Vec::new();
    if died {
        places.extend(place.map(|place| Where { place, bytes: activations, count: alive.len() as u64 }));
        finding = finding.because(which_batch(context, batch));
    }
    for part in context.places(alive) {
        if places.iter().all(|known| known.place != part.place) {
            places.push(part);
        }
    }
    let finding = (context.what_if().half_batch())
        .add_to(finding.at(places), "with half the batch", "allocated peak, at half the batch")
        .fix_if(fitting::batch_in_parts(context))
        .fix(if context.is_training() {
            Fix::new(
                Grade::Safe,
                "half the batch, two steps of gradient accumulation (batch norm sees smaller batches)",
            )
        } else {
            advice::smaller_batch(context)
        })
        .fix(
            Fix::new(Grade::Safe, "checkpointing: about a third more time")
                .code("torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)"),
        )
        .fix(advice::mixed_precision(context));
    vec![finding.caused_by(CAUSE, Weight::Ordinary, batch)]
}

/// How large a batch may be, as far as the recording shows.
fn which_batch(context: &Context, batch: u64) -> String {
    let fixed = context.held_bytes().saturating_sub(batch);
    let room = context.capacity().saturating_sub(fixed);
    let needs = context.census.and_then(|census| census.needs);
    if let Some(needs) = needs.filter(|needs| *needs > context.capacity()) {
        // What comes later and does not grow with the batch (gradients, the optimizer's state) makes it less.
        let share = 100.0 * room as f64 / needs.saturating_sub(fixed).max(1) as f64;
        return format!(
            "at most {} % of this batch fits: without a limit it has {} in tensors",
            (share.floor() as u64).clamp(1, 99),
            bytes(needs)
        );
    }
    let backward = context.kinds.backward().last().is_some_and(|&last| last + 1 >= context.moment);
    let share = 100.0 * room as f64 / (batch + context.fatal().map_or(0, |oom| oom.size)).max(1) as f64;
    let most = (share.floor() as u64).clamp(1, 99);
    if backward {
        format!(
            "about {most} % of this batch would have fitted so far (estimated: everything that grows with the batch, in proportion)"
        )
    } else {
        format!(
            "at most {most} % of this batch fits, likely less: memory ran out before the forward was over, so what it \
             takes in all is not known"
        )
    }
}
