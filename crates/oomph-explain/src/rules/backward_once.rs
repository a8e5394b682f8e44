//! Many forwards wait for one backward pass: their graphs are alive together.
//!
//! ## What it sees
//!
//! A program that trains, and died while the graphs of several forwards from one line were waiting for a backward pass that
//! was to come once for all of them:
//!
//! ```python
//! for part in batch.split(4):
//!     total = total + criterion(model(part), target)   # keeps the graph of every part
//! total.backward()                                     # frees them all, too late
//! ```
//!
//! Splitting a batch this way saves nothing: the parts are all in memory when the backward pass begins.
//!
//! ## What to do
//!
//! Call `backward()` for each part: gradients add up in `.grad`, so the sum is the same, and each graph is freed before the
//! next one is made. Where the mean is wanted, divide each loss by the number of parts.
//!
//! ## How the numbers come about
//!
//! What waits is measured. The saving is replayed: the peak with the activations of each forward freed before the next one.

use crate::context::Context;
use crate::finding::{Finding, Fix, Grade, Severity, Weight};
use crate::kept::How;
use oomph_words::{bytes, plural};

pub(super) const CODE: &str = "OM205";
const CAUSE: &str = "backward_once";

pub(super) fn check(context: &Context) -> Vec<Finding> {
    // A program that got through may do this on purpose.
    if context.fatal().is_none() {
        return Vec::new();
    }
    let waiting = context.kept().iter().filter(|kept| kept.how == How::BackwardOnce);
    let found = waiting.filter(|kept| super::is_worth_a_finding(context, kept)).map(|kept| {
        let saved = context.what_if().freed_early(kept.blocks.iter().copied());
        let made = kept.made_at.map(|frame| context.place_of_frame(frame, true));
        let title = super::with_place(
            format!(
                "the graphs of {} wait for one backward pass: {} of activations, {} each",
                plural(kept.rounds as u64, "forward"),
                bytes(kept.bytes),
                bytes(kept.per_round)
            ),
            made,
        );
        let mut finding = Finding::new(CODE, Severity::Warning, title);
        if let Some(keeper) = kept.keeper() {
            finding = finding.because(format!("they hang on {keeper}"));
        }
        finding = super::line_of_holder(finding, kept.holder.as_ref()).at(kept.places(context));
        saved
            .add_to(finding, "with each freed before the next", "allocated peak")
            .fix(
                Fix::new(Grade::Safe, "call backward for each part: gradients add up")
                    .code("(loss / parts).backward()"),
            )
            .caused_by(CAUSE, Weight::Mistake, kept.bytes)
            .likely_if(kept.likely)
            .patched(kept.patch(context, CAUSE))
    });
    found.take(1).collect()
}
