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
//!
//! ## How the numbers come about
//!
//! The saving is replayed: the peak without all short-lived blocks of that line.

use super::matters;
use crate::context::Context;
use crate::finding::{Finding, Fix, Grade, Severity, bytes, percent};
use crate::kinds::Kind;

pub(super) const CODE: &str = "OM303";

pub(super) fn check(context: &Context) -> Vec<Finding> {
    let all = &context.history.allocations;
    let Some(&(largest, _)) = (context.alive.iter())
        .filter(|(_, kind)| *kind == Kind::Temporary)
        .max_by_key(|&&(index, _)| all.size(index as usize))
    else {
        return Vec::new();
    };
    let size = all.size(largest as usize);
    let stack = all.stack(largest as usize);
    if !matters(size, context.peak(), 0.20, 32 << 20) || context.sources.of_stack(stack).multi_tensor {
        return Vec::new();
    }
    let same: Vec<u32> = (0..all.len() as u32)
        .filter(|&index| {
            all.stack(index as usize) == stack
                && all.size(index as usize) * 4 >= size
                && context.kinds.kind(index as usize) == Kind::Temporary
        })
        .collect();
    let saved = context.what_if().without(context, &same);
    if saved.allocated < size / 2 {
        return Vec::new(); // something else is as large at another time
    }
    let place = context.place(stack, all.born(largest as usize));
    let title = format!(
        "One temporary of {} ({} of the peak), made at {}, makes the peak",
        bytes(size),
        percent(size, context.peak()),
        place.short()
    );
    let finding = Finding::new(CODE, Severity::Warning, title).at(context.places(
        same.iter()
            .copied()
            .filter(|&index| all.alive(index as usize, context.history.peak.allocated.moment)),
    ));
    vec![saved.tell(finding, "without it", "allocated peak").fix(Fix::new(
        Grade::Safe,
        "compute it in pieces over the first dimension, or with an operation that does not write it out",
    ))]
}
