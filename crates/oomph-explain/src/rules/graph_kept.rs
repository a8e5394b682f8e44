//! A graph is kept after its step: something that a step made still carries it.
//!
//! ## What it sees
//!
//! Blocks of one forward that are still alive when the same line has begun another one, though a backward pass came
//! between; or blocks of one step that are alive at the end, step after step. The usual cause is a tensor that is kept
//! for a running average or a metric while it still carries its graph:
//!
//! ```python
//! history.append(loss)                  # with retain_graph=True, or without a backward pass
//! features.append(output)               # in a forward hook
//! self.outputs.append(model(x))         # so does this
//! ```
//!
//! A tensor that requires gradients refers to its graph, and the graph to every activation that the backward pass has not
//! used yet: keeping four bytes of loss keeps gigabytes. After an ordinary `loss.backward()` the activations are
//! free, and `total += loss` keeps next to nothing.
//!
//! ## What to do
//!
//! Keep the number, not the tensor: `loss.item()`, or `loss.detach()` for a tensor; `outputs.append(out.detach().cpu())`
//! for predictions. Where the recorder was inside the process, who keeps it is named: a list, an attribute, a
//! hook, a closure.
//!
//! ## How the numbers come about
//!
//! What is kept is measured: bytes of earlier forwards (or steps) that are alive when memory ran out, or at the peak. The
//! saving is replayed: the peak with each of those blocks freed before the next forward of that line. Who keeps it is what
//! the program itself said at the out-of-memory; without that, the line is where nine tenths of the bytes were made.

use crate::context::Context;
use crate::finding::{Finding, Fix, Grade, Patch, Severity, Weight};
use crate::kept::{How, Kept};
use oomph_words::{bytes, plural};

pub(super) const CODE: &str = "OM201";
const CAUSE: &str = "graph_kept";

pub(super) fn check(context: &Context) -> Vec<Finding> {
    let of_forwards: Vec<Finding> = context
        .kept()
        .iter()
        .filter(|kept| kept.how == How::GraphKept)
        .filter_map(|kept| of_forwards(context, kept))
        .collect();
    if !of_forwards.is_empty() || !context.kept().is_empty() {
        return of_forwards;
    }
    super::tensors_kept::growth(context)
        .filter(|grown| grown.is_graph)
        .map(|grown| of_steps(context, &grown))
        .into_iter()
        .collect()
}

fn of_forwards(context: &Context, kept: &Kept) -> Option<Finding> {
    if !super::is_worth_a_finding(context, kept) {
        return None;
    }
    let saved = context.what_if().freed_early(kept.blocks.iter().copied());
    let title = match kept.keeper() {
        Some(keeper) => format!(
            "{keeper} keeps the graphs of {}: {} of activations",
            plural(kept.rounds as u64, "forward"),
            bytes(kept.bytes)
        ),
        None => format!(
            "the graphs of {} are kept: {} of activations, {} each",
            plural(kept.rounds as u64, "forward"),
            bytes(kept.bytes),
            bytes(kept.per_round)
        ),
    };
    let finding = Finding::new(CODE, Severity::Warning, super::with_place(title, kept.place(context)))
        .because(format!(
            "every forward leaves {} behind, though its backward pass is over; {} of them are still alive",
            bytes(kept.per_round),
            kept.rounds
        ))
        .at(kept.places(context));
    let finding = super::line_of_holder(finding, kept.holder.as_ref());
    Some(
        fixes(saved.add_to(finding, "with each of them freed before the next forward", "allocated peak"))
            .caused_by(CAUSE, Weight::Mistake, kept.bytes)
            .likely_if(kept.likely)
            .patched(kept.patch(context, CAUSE)),
    )
}

fn fixes(finding: Finding) -> Finding {
    finding
        .fix(Fix::new(Grade::Safe, "keep the number instead of the tensor").code("total += loss.item()"))
        .fix(
            Fix::new(Grade::Safe, "cut the graph off what must stay a tensor")
                .code("kept.append(output.detach().cpu())"),
        )
}

fn of_steps(context: &Context, grown: &super::tensors_kept::Grown) -> Finding {
    let finding = Finding::new(CODE, Severity::Warning, grown.title.clone())
        .because(grown.evidence.clone())
        .because(
            "most of it is activations: a tensor that still carries its graph (a loss, an output) is being kept, for \
             instance by append or +=",
        )
        .at(grown.places.clone());
    fixes(grown.saved.add_to(finding, "with each of them freed at the end of its step", "allocated peak"))
        .caused_by(CAUSE, Weight::Mistake, grown.bytes)
        .likely_if(context.census.is_none())
        .patched(grown.places.first().and_then(|place| Patch::at(CAUSE, &place.place, grown.name.clone())))
}
