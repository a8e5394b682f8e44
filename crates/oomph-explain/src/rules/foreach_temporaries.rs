//! The optimizer's temporaries for all tensors at once make the peak.
//!
//! ## What it sees
//!
//! PyTorch's optimizers work on all parameters at once by default (`foreach`), which is fast and makes
//! temporaries as large as all parameters together. When nothing else is alive at that time, it does not matter; when the
//! peak falls into the optimizer's step, it does.
//!
//! ## What to do
//!
//! `oomph.fit` takes the fused optimizer where there is one, and does more if that is not enough. By hand: `fused=True` needs no temporaries and is the fastest (Adam, AdamW, SGD and Adagrad have it); results may
//! differ in the last bits. `foreach=False` works one tensor at a time: the same results, slower.
//!
//! ## How the numbers come about
//!
//! Temporaries are the blocks that the optimizer's multi-tensor functions allocate and free within the step. The saving is
//! replayed: the peak without them.

use super::matters;
use crate::context::Context;
use crate::finding::{Finding, Fix, Grade, Severity, Weight};
use crate::fitting;
use crate::kinds::Kind;
use oomph_words::{bytes, percent};

pub(super) const CODE: &str = "OM302";

pub(super) fn check(context: &Context) -> Vec<Finding> {
    let all = &context.history.allocations;
    let is_temporary = |index: u32| {
        context.sources.of_stack(all.stack(index as usize)).multi_tensor
            && context.kinds.kind(index as usize) == Kind::Temporary
    };
    let alive: Vec<u32> =
        context.held.iter().map(|&(index, _)| index).filter(|&index| is_temporary(index)).collect();
    let asks = context.fatal().filter(|oom| context.sources.of_stack(oom.stack).multi_tensor);
    let held =
        alive.iter().map(|&index| all.size(index as usize)).sum::<u64>() + asks.map_or(0, |oom| oom.size);
    if !matters(held, context.peak(), 0.05, 16 << 20) {
        return Vec::new();
    }
    let dropped: Vec<u32> = (0..all.len() as u32).filter(|&index| is_temporary(index)).collect();
    let saved = context.what_if().without(&dropped);
    if asks.is_none() && !matters(saved.allocated, context.peak(), 0.02, 8 << 20) {
        return Vec::new();
    }
    let title = format!(
        "The optimizer's temporaries take {} ({} of the peak): it works on all parameters at once",
        bytes(held),
        percent(held.min(context.peak()), context.peak())
    );
    vec![
        saved
            .add_to(
                Finding::new(CODE, Severity::Warning, title).at(context.places(alive)),
                "without them",
                "allocated peak",
            )
            .fix_if(fitting::fused_optimizer(context, &context.rows_of(dropped)))
            .fix(
                Fix::new(
                    Grade::ChangesNumerics,
                    "use the fused optimizer (faster too; last bits may differ)",
                )
                .code("torch.optim.AdamW(params, fused=True)"),
            )
            .fix(
                Fix::new(Grade::Safe, "or one tensor at a time (slower)")
                    .code("torch.optim.AdamW(params, foreach=False)"),
            )
            .caused_by(
                "optimizer_temporaries",
                // Where it is the optimizer that fails, this is what it fails by.
                if asks.is_some() { Weight::Mistake } else { Weight::Oversized },
                if asks.is_some() { held.max(context.capacity() / 8) } else { held },
            ),
    ]
}
