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
//! Cheapest first: mixed precision (`torch.autocast`), which halves many of them; a smaller batch with
//! gradient accumulation, which gives the same gradients except for batch norm; checkpointing
//! (`torch.utils.checkpoint`), which keeps only the inputs of blocks and computes the rest again for about a third more time.
//!
//! ## How the numbers come about
//!
//! Activations are inferred: made in the forward pass, alive when the backward pass begins. The saving is replayed, with
//! everything that grows with the batch (activations, inputs, temporaries outside of the optimizer) at half its size.

use super::matters;
use crate::context::Context;
use crate::finding::{Finding, Fix, Grade, Severity, bytes, percent};
use crate::kinds::Kind;

pub(super) const CODE: &str = "OM304";

pub(super) fn check(context: &Context) -> Vec<Finding> {
    let activations = context.bytes_of(Kind::Activation);
    let leaks = context.growth().is_some();
    if !context.kinds.trains() || leaks || !matters(activations, context.peak(), 0.50, 256 << 20) {
        return Vec::new();
    }
    let alive: Vec<u32> =
        context.alive.iter().filter(|(_, kind)| *kind == Kind::Activation).map(|&(index, _)| index).collect();
    let title = format!(
        "Activations are {} of the peak: {}",
        percent(activations, context.peak()),
        bytes(activations)
    );
    vec![
        (context.what_if().half_batch(context))
            .tell(
                Finding::new(CODE, Severity::Note, title).at(context.places(alive)),
                "with half the batch",
                "allocated peak, at half the batch",
            )
            .fix(Fix::new(
                Grade::Safe,
                "half the batch, two steps of gradient accumulation (batch norm sees smaller \
             batches)",
            ))
            .fix(Fix::new(Grade::Safe, "checkpointing: about a third more time").code(
                "torch.utils.checkpoint.checkpoint(block, x, \
             use_reentrant=False)",
            ))
            .fix(
                Fix::new(Grade::ChangesNumerics, "mixed precision")
                    .code("with torch.autocast(\"cuda\", torch.bfloat16):"),
            ),
    ]
}
