//! Another process holds the card's memory.
//!
//! ## What it sees
//!
//! When memory ran out, much of the card was taken, and not by this process: another notebook, a run that was left behind, another user.
//!
//! ## What to do
//!
//! `oomph top` shows who it is. End what is no longer needed (a notebook's kernel holds its memory until it is restarted), use another card
//! (`CUDA_VISIBLE_DEVICES`), or give each process a budget (`oomph run --budget`).
//!
//! ## How the numbers come about
//!
//! Measured when memory ran out: all of the card, less what was free, less what this process had reserved. The CUDA context and
//! libraries of this process are in it too: some hundred MiB.

use super::matters;
use crate::context::Context;
use crate::finding::{Basis, Finding, Fix, Grade, Severity, Weight};
use oomph_words::{bytes, percent};

pub(super) const CODE: &str = "OM405";
const CAUSE: &str = "other_process";

/// What a process takes beside PyTorch's allocator: context, cuBLAS, NCCL.
const OWN: u64 = 1536 << 20;

pub(super) fn check(context: &Context) -> Vec<Finding> {
    let (Some(_), Some(census)) = (context.fatal(), context.census) else { return Vec::new() };
    let total = census.card.total;
    let Some(elsewhere) = census.card.elsewhere.filter(|&bytes| bytes > OWN) else { return Vec::new() };
    if !matters(elsewhere, total, 0.25, OWN) {
        return Vec::new();
    }
    let title = format!(
        "other processes hold {} of the card's {} ({})",
        bytes(elsewhere),
        bytes(total),
        percent(elsewhere, total)
    );
    vec![
        Finding::new(CODE, Severity::Warning, title)
            .because("the CUDA context of this process is in it too, some hundred MiB")
            .saves(elsewhere, Basis::Measured, "if they end")
            .fix(
                Fix::new(Grade::Safe, "see who they are, and end what is no longer needed").code("oomph top"),
            )
            .fix(Fix::new(Grade::Safe, "or use another card").code("CUDA_VISIBLE_DEVICES=1"))
            .caused_by(CAUSE, Weight::Oversized, elsewhere),
    ]
}
