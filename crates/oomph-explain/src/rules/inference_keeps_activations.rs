//! Activations are kept for a backward pass that never comes.
//!
//! ## What it sees
//!
//! A recording that calls modules but has no backward pass and no optimizer, in which what the layers make
//! lives until the whole forward pass is over. That is autograd keeping it, as it must unless it is told
//! that no gradients are wanted. `model.eval()` does not tell it.
//!
//! ## What to do
//!
//! Wrap inference in `torch.inference_mode()` (or `torch.no_grad()`): results are the same to the bit.
//!
//! ## How the numbers come about
//!
//! Activations are inferred: made inside a module's call, let go outside of it. The saving is replayed: the
//! peak without all of them, less the two largest, which one layer needs as its input and output in any case.

use super::matters;
use crate::context::Context;
use crate::finding::{Finding, Fix, Grade, Severity, bytes, percent};
use crate::kinds::Kind;

pub(super) const CODE: &str = "OM202";

pub(super) fn check(context: &Context) -> Vec<Finding> {
    let activations = context.bytes_of(Kind::Activation);
    // A program that ran out of memory before it had gone round twice may have had a backward pass to come.
    let rounds = context.steps.as_ref().map_or(0, |steps| steps.count());
    if context.kinds.trains()
        || (!context.ooms.is_empty() && rounds < 3)
        || context.kinds.forward().is_empty()
        || !matters(activations, context.peak(), 0.25, 16 << 20)
        || context.growth().is_some()
    {
        return Vec::new();
    }
    let all = &context.history.allocations;
    let mut dropped: Vec<u32> =
        (0..all.len() as u32).filter(|&i| context.kinds.kind(i as usize) == Kind::Activation).collect();
    let at_peak: Vec<u32> =
        context.alive.iter().filter(|(_, kind)| *kind == Kind::Activation).map(|&(i, _)| i).collect();
    // Few and large: the results themselves, not what led to them.
    if at_peak.len() < 4 {
        return Vec::new();
    }
    let mut largest = at_peak.clone();
    largest.sort_by_key(|&i| std::cmp::Reverse(all.size(i as usize)));
    let needed: u64 = largest.iter().take(2).map(|&i| all.size(i as usize)).sum();
    dropped.sort_unstable();
    let mut saved = context.what_if().without(context, &dropped);
    saved.allocated = saved.allocated.saturating_sub(needed);
    saved.reserved_peak = (saved.reserved_peak + needed).min(saved.reserved_before);
    saved.reserved = saved.reserved_before - saved.reserved_peak;
    let title = format!(
        "Inference keeps {} of activations ({} of the peak) for a backward pass that never comes",
        bytes(activations),
        percent(activations, context.peak())
    );
    vec![
        saved
            .tell(
                Finding::new(CODE, Severity::Warning, title)
                    .because(
                        "there is no backward pass and no optimizer in the recording, yet what the \
                         layers make lives until the forward pass is over",
                    )
                    .at(context.places(at_peak)),
                "without them",
                "allocated peak",
            )
            .fix(
                Fix::new(Grade::Safe, "tell autograd that no gradients are wanted")
                    .code("with torch.inference_mode():"),
            ),
    ]
}
