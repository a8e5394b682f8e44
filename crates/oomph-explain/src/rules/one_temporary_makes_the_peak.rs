//! One temporary alone makes the peak.
//!
//! ## What it sees
//!
//! A block that lives for a moment, is a large part of the peak, and without which the peak would be lower by
//! nearly its size. Typical: a broadcast that makes all pairs (`a[:, None] - b[None, :]`), an attention
//! matrix written out, a mask of the wrong type, a conversion of a whole tensor at once.
//!
//! ## What to do
//!
//! Do it in pieces over the first dimension, or with an operation that does not write the intermediate
//! result out: `torch.cdist`, `scaled_dot_product_attention`, `einsum`, an in-place operation, `out=`.
//! Where it is made of logits, or by a layer of a model that is trained, `oomph.fit` does that: logits in pieces, the batch in parts.
//!
//! ## How the numbers come about
//!
//! The saving is replayed: the peak without all short-lived blocks of that line.

use super::matters;
use crate::context::Context;
use crate::finding::{Basis, Finding, Fix, Grade, Severity, Weight, Where};
use crate::fitting;
use crate::kinds::Kind;
use crate::logits::Logits;
use crate::sources::Phase;
use oomph_words::{bytes, percent, printable};

pub(super) const CODE: &str = "OM303";

const CAUSE: &str = "one_temporary";

pub(super) fn check(context: &Context) -> Vec<Finding> {
    asked_for(context).or_else(|| at_the_peak(context)).into_iter().collect()
}

/// The request that failed is itself what does not fit.
fn asked_for(context: &Context) -> Option<Finding> {
    let oom = context.fatal()?;
    let facts = context.sources.of_stack(oom.stack);
    if matches!(facts.phase, Phase::Setup | Phase::Optimizer | Phase::OptimizerState) || facts.model_init {
        return None;
    }
    let all = &context.history.allocations;
    // What the same call made just before, of the same size.
    let alike: Vec<u32> = (context.held.iter())
        .map(|&(index, _)| index)
        .filter(|&index| {
            let i = index as usize;
            all.size(i) * 4 >= oom.size && context.sources.same_call(all.stack(i), oom.stack)
        })
        .collect();
    let held = oom.size + alike.iter().map(|&index| all.size(index as usize)).sum::<u64>();
    // Layers that are alike make blocks that are alike: that is an ordinary forward.
    let several =
        alike.len() <= 3 && facts.phase == Phase::User && matters(held, context.capacity(), 0.45, 64 << 20);
    if !matters(oom.size, context.capacity(), 0.25, 64 << 20) && !several {
        return None;
    }
    // A layer of a model that is trained makes what the batch makes it.
    let of_a_layer =
        facts.phase == Phase::Forward && context.trains_now() && oom.size * 2 < context.capacity();
    let weight = if of_a_layer { Weight::Ordinary } else { Weight::Oversized };
    let head = Logits::asked_of_a_head(context);
    let fit = match (context.logits().filter(|logits| logits.asked).or(head.as_ref()), facts.phase) {
        (Some(logits), _) => fitting::logits_in_pieces(context, logits),
        (None, Phase::Forward | Phase::Recompute | Phase::Backward | Phase::NoStack) => {
            fitting::batch_in_parts(context)
        }
        _ => None,
    };
    let place = context.place(oom.stack, oom.moment + 1);
    let title = format!("one tensor of {} is made at {}", bytes(oom.size), place.short());
    let mut finding = Finding::new(CODE, Severity::Warning, title);
    if oom.size > oom.waste.allocated {
        finding = finding.because(
            "the request alone is larger than all that was in use: the tensor made there is what does not fit",
        );
    }
    if let Some(frame) =
        context.census.and_then(|census| census.frames.first()).filter(|frame| !frame.text.is_empty())
    {
        finding = finding.because(format!("the line: {}", printable(&frame.text)));
        let named: Vec<String> = (frame.tensors.iter().take(4))
            .map(|tensor| {
                let sizes: Vec<String> = tensor.shape.iter().map(u64::to_string).collect();
                format!("`{}` {} {}", printable(&tensor.name), sizes.join("×"), printable(&tensor.dtype))
            })
            .collect();
        if !named.is_empty() {
            finding = finding.because(format!("made of {}", named.join(", ")));
        }
    }
    Some(
        finding
            .at(vec![Where { place, bytes: held, count: alike.len() as u64 + 1 }])
            .saves(oom.size.min(context.history.peak.reserved.bytes), Basis::Measured, "without that tensor")
            .fix_if(fit)
            .fix(in_pieces())
            .fix(Fix::new(
                Grade::ChangesNumerics,
                "or make it smaller: fewer rows, shorter sequences, a lower precision",
            ))
            .caused_by(CAUSE, weight, held),
    )
}

fn in_pieces() -> Fix {
    Fix::new(
        Grade::Safe,
        "compute it in pieces over the first dimension, or with an operation that does not write it out",
    )
}

fn at_the_peak(context: &Context) -> Option<Finding> {
    let all = &context.history.allocations;
    let &(largest, _) = (context.alive.iter())
        .filter(|(_, kind)| *kind == Kind::Temporary)
        .max_by_key(|&&(index, _)| all.size(index as usize))?;
    let size = all.size(largest as usize);
    let stack = all.stack(largest as usize);
    if !matters(size, context.peak(), 0.20, 32 << 20) || context.sources.of_stack(stack).multi_tensor {
        return None;
    }
    let same: Vec<u32> = (0..all.len() as u32)
        .filter(|&index| {
            all.stack(index as usize) == stack
                && all.size(index as usize) * 4 >= size
                && context.kinds.kind(index as usize) == Kind::Temporary
        })
        .collect();
    let saved = context.what_if().without(&same);
    if saved.allocated < size / 2 {
        return None; // something else is as large at another time
    }
    let place = context.place(stack, all.born(largest as usize));
    let title = format!(
        "One temporary of {} ({} of the peak), made at {}, makes the peak",
        bytes(size),
        percent(size, context.peak()),
        place.short()
    );
    let at_peak = same
        .iter()
        .copied()
        .filter(|&index| all.alive(index as usize, context.history.peak.allocated.moment));
    let finding = Finding::new(CODE, Severity::Warning, title).at(context.places(at_peak));
    let of_loss = context.logits().filter(|logits| logits.alike.binary_search(&largest).is_ok());
    let fit = of_loss.and_then(|logits| fitting::logits_in_pieces(context, logits));
    let finding = saved.add_to(finding, "without it", "allocated peak");
    Some(finding.fix_if(fit).fix(in_pieces()).caused_by(CAUSE, Weight::Oversized, size))
}
