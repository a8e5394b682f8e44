//! Many copies of the same size, made by one line, are alive together.
//!
//! ## What it sees
//!
//! At the peak, several blocks of exactly the same size from the same line of your own code, outside of any
//! module: `clone()`s, a list of snapshots, the same data moved to the device again and again.
//!
//! ## What to do
//!
//! If they hold the same content, keep one; a view (`expand`, slicing) costs nothing. If they are history,
//! keep it on the host: `.cpu()`. If they are needed one after the other, make them one after the other.
//!
//! ## How the numbers come about
//!
//! The blocks are counted at the peak; a recording does not show what is in them, so whether they are equal is for
//! you to say, and this is a note. Caches of one block a layer look the same. The saving is replayed: the peak with only one of them.

use super::matters;
use crate::context::Context;
use crate::finding::{Finding, Fix, Grade, Severity};
use crate::sources::Phase;
use hashbrown::HashMap;
use oomph_trace::StackId;
use oomph_words::bytes;

pub(super) const CODE: &str = "OM203";

/// Two or three are an algorithm; more are a habit.
const COPIES: usize = 4;

pub(super) fn check(context: &Context) -> Vec<Finding> {
    let all = &context.history.allocations;
    let mut groups: HashMap<(StackId, u64), Vec<u32>> = HashMap::new();
    for &(index, kind) in &context.alive {
        let i = index as usize;
        let stack = all.stack(i);
        let facts = context.sources.of_stack(stack);
        // Weights are often alike, copies of models meant to be, and buckets of gradients of one size.
        let meant = kind.is_weights() || facts.model_init || facts.copied || facts.parallel;
        if facts.phase == Phase::User && !meant && all.requested(i) > 0 {
            groups.entry((stack, all.requested(i))).or_default().push(index);
        }
    }
    let grown = context.growth().is_some();
    let mut findings: Vec<Finding> = groups
        .into_iter()
        .filter(|(_, copies)| copies.len() >= COPIES)
        .filter_map(|((stack, size), copies)| {
            let bytes_total = size * copies.len() as u64;
            if grown || !matters(bytes_total, context.peak(), 0.10, 16 << 20) {
                return None;
            }
            let place = context.place(stack, 1);
            let saved = context.what_if().without(&copies[1..]);
            let title = format!(
                "{} blocks of {} each, all made at {}, are alive together",
                copies.len(),
                bytes(size),
                place.short()
            );
            Some(
                saved
                    .add_to(
                        Finding::new(CODE, Severity::Note, title).at(context.places(copies)),
                        "with one of them",
                        "allocated peak, with one of them",
                    )
                    .fix(Fix::new(Grade::Safe, "if they hold the same, keep one, or views of one"))
                    .fix(Fix::new(Grade::Safe, "keep history on the host").code("tensor.cpu()")),
            )
        })
        .collect();
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.saving.as_ref().map(|saving| saving.bytes)));
    findings
}
