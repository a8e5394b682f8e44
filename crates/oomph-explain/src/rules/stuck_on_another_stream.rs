//! Free memory belongs to another stream.
//!
//! ## What it sees
//!
//! A block goes back to the stream it was allocated on, and only that stream can have it again. Side streams (for copies,
//! communication or overlapping work) therefore keep caches of their own. Blocks that another stream uses
//! (`record_stream`) come back later still.
//!
//! ## What to do
//!
//! Allocate on the main stream and only work on the side stream; make large buffers once and reuse them; drop references
//! early, before other work is queued; `empty_cache()` once after a phase that used another stream.
//!
//! ## How the numbers come about
//!
//! Measured at the reserved or the allocated peak, whichever is worse: free bytes in segments of other streams than the one with the most memory, and blocks
//! freed but waiting for another stream.

use super::matters;
use crate::context::Context;
use crate::finding::{Basis, Finding, Fix, Grade, Severity, Weight};
use crate::oom::Reason;
use crate::waste::Waste;
use oomph_words::{bytes, percent};

pub(super) const CODE: &str = "OM403";

pub(super) fn check(context: &Context) -> Vec<Finding> {
    let stuck_in = |waste: &Waste| waste.other_streams + waste.pending;
    let waste =
        [&context.waste_at_reserved_peak, &context.waste].into_iter().max_by_key(|waste| stuck_in(waste));
    let Some((waste, stuck)) = waste.map(|waste| (waste, stuck_in(waste))) else { return Vec::new() };
    if !matters(stuck, waste.reserved, 0.10, 32 << 20) {
        return Vec::new();
    }
    let title = format!(
        "{} of {} reserved ({}) are free, but on another stream",
        bytes(stuck),
        bytes(waste.reserved),
        percent(stuck, waste.reserved)
    );
    let mut finding = Finding::new(CODE, Severity::Warning, title);
    if waste.pending > 0 {
        finding = finding.because(format!(
            "{} of it wait for another stream to pass (record_stream)",
            bytes(waste.pending)
        ));
    }
    let finding = finding.saves(stuck, Basis::Measured, "reserved, at most").fix(Fix::new(
        Grade::Safe,
        "allocate on the main stream and reuse buffers; drop references before queuing other work",
    ));
    let ended_by_it = context.fatal().is_some_and(|oom| oom.reason == Reason::OtherStream);
    vec![if ended_by_it { finding.caused_by("other_stream", Weight::Mistake, stuck) } else { finding }]
}
