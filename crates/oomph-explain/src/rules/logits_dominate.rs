//! Logits and the loss over them make most of the peak.
//!
//! ## What it sees
//!
//! A language model's last layer gives a number for every token and every word of the vocabulary, and the loss
//! makes copies of it: shifted, in full precision, after log-softmax, and the gradient of each. With a large
//! vocabulary these few tensors are larger than the model.
//!
//! ## What to do
//!
//! `oomph.fit` computes the logits of a linear layer and their loss in pieces of 128 MiB; gradients are the same up to the order of
//! summation. By hand: compute the loss in chunks of tokens, so that only a slice of the logits exists at a time: a chunked or
//! fused linear cross entropy (Liger kernel, `torchtune`'s and `trl`'s chunked losses, `cut_cross_entropy`).
//! It is exact up to the order of summation. Computing logits only where there are labels also helps.
//!
//! ## How the numbers come about
//!
//! Blocks alive at the peak whose size is within a factor of two of what cross entropy or log-softmax allocate.
//! The saving is replayed, with each such block an eighth of its size, as if the loss were computed in eight chunks.
//! What `oomph.fit` leaves is replayed with each such block 128 MiB at most, and the gradient of the largest parameter beside all else; of a
//! program that died, up to there.

use super::matters;
use crate::context::Context;
use crate::finding::{Finding, Fix, Grade, Severity, Weight};
use crate::fitting;
use hashbrown::HashSet;
use oomph_words::{bytes, percent, plural};

pub(super) const CODE: &str = "OM301";

const CHUNKS: u64 = 8;

pub(super) fn check(context: &Context) -> Vec<Finding> {
    let Some(logits) = context.logits() else { return Vec::new() };
    if !matters(logits.size, context.peak(), 0.05, 32 << 20) {
        return Vec::new();
    }
    let all = &context.history.allocations;
    let is_alike: HashSet<u32> = logits.alike.iter().copied().collect();
    let alike: Vec<u32> =
        context.held.iter().map(|&(index, _)| index).filter(|index| is_alike.contains(index)).collect();
    let asked = context.fatal().filter(|_| logits.asked).map_or(0, |oom| oom.size);
    let held = alike.iter().map(|&index| all.size(index as usize)).sum::<u64>() + asked;
    if !matters(held, context.peak(), 0.30, 64 << 20) {
        return Vec::new();
    }
    let rows = context.rows_of(logits.alike.iter().copied());
    let saved = context.what_if().resized(&|row, size| if rows[row] { size.div_ceil(CHUNKS) } else { size });
    // Less than half of it is an ordinary part of a batch that is too large.
    let most = held * 2 >= context.held_bytes() + asked;
    let title = format!(
        "Logits and the loss over them take {} ({} of the peak), in {} of about {}",
        bytes(held),
        percent(held.min(context.peak()), context.peak()),
        plural(alike.len() as u64 + u64::from(asked > 0), "tensor"),
        bytes(logits.size)
    );
    vec![
        saved
            .add_to(
                Finding::new(CODE, Severity::Warning, title)
                    .because(
                        "each is a number for every token and every class; the loss and its gradient make \
                         copies of them",
                    )
                    .at(context.places(alike)),
                "with each of them an eighth of its size",
                "allocated peak, with each an eighth of its size",
            )
            .fix_if(fitting::logits_in_pieces(context, logits))
            .fix(Fix::new(
                Grade::ChangesNumerics,
                "compute the loss in chunks of tokens, with a chunked or fused linear cross \
             entropy (the order of summation changes)",
            ))
            .fix(Fix::new(Grade::Safe, "compute logits only for tokens that have labels"))
            .caused_by("logits", if most { Weight::Oversized } else { Weight::Ordinary }, held),
    ]
}
