//! Free memory belongs to a private pool.
//!
//! ## What it sees
//!
//! CUDA graphs and `torch.cuda.MemPool` take memory from pools of their own. What is free in them looks free in
//! the totals, but can be used by nothing else until the graph or pool is gone.
//!
//! ## What to do
//!
//! Let graphs share a pool (`torch.cuda.graph(g, pool=other.pool())`, for graphs that are never replayed at the same
//! time), capture the largest first, and delete graphs that are no longer needed.
//!
//! ## How the numbers come about
//!
//! Measured at the reserved peak: free bytes in segments of private pools. Replaying a graph leaves no events, so what
//! a replay uses inside its pool is not seen, and counts as free here.

use super::matters;
use crate::context::Context;
use crate::finding::{Basis, Finding, Fix, Grade, Severity, Weight};
use crate::oom::Reason;
use oomph_words::{bytes, percent};

pub(super) const CODE: &str = "OM404";

pub(super) fn check(context: &Context) -> Vec<Finding> {
    let waste = &context.waste_at_reserved_peak;
    if !matters(waste.private_pools, waste.reserved, 0.10, 32 << 20) {
        return Vec::new();
    }
    let title = format!(
        "{} of {} reserved ({}) are free, but in private pools (CUDA graphs, MemPool)",
        bytes(waste.private_pools),
        bytes(waste.reserved),
        percent(waste.private_pools, waste.reserved)
    );
    let finding = Finding::new(CODE, Severity::Warning, title)
        .because(
            "a graph's replay uses this memory without leaving events, so it may be \
             needed after all",
        )
        .saves(waste.private_pools, Basis::Measured, "reserved, at most")
        .fix(Fix::new(Grade::Safe, "let graphs share a pool").code("torch.cuda.graph(g, pool=first.pool())"))
        .fix(Fix::new(Grade::Safe, "delete graphs and pools that are no longer needed"));
    let ended_by_it = context.fatal().is_some_and(|oom| oom.reason == Reason::PrivatePool);
    vec![if ended_by_it {
        finding.caused_by("private_pool", Weight::Mistake, waste.private_pools)
    } else {
        finding
    }]
}
