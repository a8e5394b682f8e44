//! Tensors are kept round after round: a list, a dictionary or an attribute on the card grows.
//!
//! ## What it sees
//!
//! Blocks without a graph that were made in one round of a loop and are still alive many rounds later:
//!
//! ```python
//! with torch.no_grad():
//!     for x in loader:
//!         predictions.append(model(x))            # all predictions stay on the card
//! best.append(copy.deepcopy(model.state_dict()))  # so do all weights, every epoch
//! ```
//!
//! ## What to do
//!
//! Keep what must be kept in host memory: `predictions.append(model(x).cpu())`; or reduce it at once, to a number, to a count, to
//! the metric itself. A batch that is smaller does not help: the sum is the same.
//!
//! ## How the numbers come about
//!
//! What is kept is measured: bytes of earlier rounds that are alive when memory ran out, or at the peak. The saving is
//! replayed: the peak with each of those blocks freed before the next round. Rounds are forwards from one line; where no
//! module is called, they are steps.

use crate::context::Context;
use crate::finding::{Finding, Fix, Grade, Place, Severity, Weight, Where};
use crate::kept::{How, Kept};
use crate::kinds::Kind;
use crate::what_if::Saved;
use hashbrown::HashMap;
use oomph_trace::StackId;
use oomph_words::{bytes, plural};

pub(super) const CODE: &str = "OM204";
const CAUSE: &str = "tensors_kept";

pub(super) fn check(context: &Context) -> Vec<Finding> {
    let of_forwards: Vec<Finding> = (context.kept().iter())
        .filter(|kept| kept.how == How::TensorsKept)
        .filter_map(|kept| of_forwards(context, kept))
        .collect();
    if !of_forwards.is_empty() || !context.kept().is_empty() {
        return of_forwards;
    }
    growth(context)
        .filter(|grown| !grown.is_graph)
        .map(|grown| of_steps(context, &grown))
        .into_iter()
        .collect()
}

fn of_forwards(context: &Context, kept: &Kept) -> Option<Finding> {
    if !super::is_worth_a_finding(context, kept) {
        return None;
    }
    let saved = context.what_if().freed_early(kept.blocks.iter().copied());
    let rounds = plural(kept.rounds as u64, "round");
    let title = match kept.keeper() {
        Some(keeper) => format!(
            "{keeper} keeps {} of tensors on the card, {} a round",
            bytes(kept.bytes),
            bytes(kept.per_round)
        ),
        None => format!(
            "tensors of {rounds} are kept on the card: {}, {} each",
            bytes(kept.bytes),
            bytes(kept.per_round)
        ),
    };
    // A program that got through may want what it keeps.
    let severity = if context.fatal().is_some() { Severity::Warning } else { Severity::Note };
    let finding = Finding::new(CODE, severity, super::with_place(title, kept.place(context)))
        .because(format!(
            "what {rounds} made is still alive; it grows by {} each time",
            bytes(kept.per_round)
        ))
        .at(kept.places(context));
    let finding = super::line_of_holder(finding, kept.holder.as_ref());
    Some(
        fixes(saved.add_to(finding, "with each of them freed before the next round", "allocated peak"))
            .caused_by(CAUSE, Weight::Mistake, kept.bytes)
            .likely_if(kept.likely)
            .patched(kept.patch(context, CAUSE)),
    )
}

fn fixes(finding: Finding) -> Finding {
    finding
        .fix(Fix::new(Grade::Safe, "keep what must be kept in host memory").code("kept.append(tensor.cpu())"))
        .fix(Fix::new(Grade::Safe, "or reduce it in the loop, to the number that is wanted in the end"))
}

fn of_steps(context: &Context, grown: &Grown) -> Finding {
    let finding = Finding::new(CODE, Severity::Warning, grown.title.clone())
        .because(grown.evidence.clone())
        .at(grown.places.clone());
    fixes(grown.saved.add_to(finding, "with each of them freed at the end of its step", "allocated peak"))
        .caused_by(CAUSE, Weight::Mistake, grown.bytes)
        .likely_if(context.census.is_none())
}

/// What steps leave behind where no module is called.
pub(super) struct Grown {
    /// Whether most of it is activations.
    pub(super) is_graph: bool,
    /// Who keeps it, if it has a name.
    pub(super) name: Option<String>,
    pub(super) title: String,
    pub(super) evidence: String,
    pub(super) places: Vec<Where>,
    pub(super) bytes: u64,
    pub(super) saved: Saved,
}

/// Growth from step to step, in words.
pub(super) fn growth(context: &Context) -> Option<Grown> {
    let growth = context.growth()?;
    let all = &context.history.allocations;
    let mut stacks: HashMap<StackId, u64> = HashMap::new();
    for &index in &growth.kept {
        *stacks.entry(all.stack(index as usize)).or_default() += all.size(index as usize);
    }
    // Each block freed when its step is over.
    let ends = growth.kept.iter().filter_map(|&index| {
        let steps = context.steps.as_ref()?;
        let step = steps.at(all.born(index as usize))?;
        Some((*steps.boundaries.get(step + 1)?, index))
    });
    let saved = context.what_if().freed_early(ends);
    let total: u64 = stacks.values().sum();
    let graph: u64 = (growth.kept.iter())
        .filter(|&&index| context.kinds.kind(index as usize) == Kind::Activation)
        .map(|&index| all.size(index as usize))
        .sum();
    let common = context.common_frame(&stacks).map(|frame| context.place_of_frame(frame, true));
    let is_graph = graph * 2 > total;
    let holder =
        crate::kept::holder(context, growth.kept.iter().copied(), is_graph).filter(|holder| holder.line > 0);
    let title = match (&common, &holder) {
        (_, Some(holder)) => format!(
            "memory grows by {} every step: {} keeps {}, at {}",
            bytes(growth.per_step),
            crate::kept::named(holder).unwrap_or_else(|| "something".to_owned()),
            if is_graph { "its graph" } else { "it" },
            Place::of_holder(holder).short()
        ),
        (Some(place), None) => format!(
            "Memory grows by {} every step: what {} makes is kept",
            bytes(growth.per_step),
            place.short()
        ),
        (None, None) => format!("Memory grows by {} every step", bytes(growth.per_step)),
    };
    let keeps = holder.as_ref().map(Place::of_holder);
    let mut places: Vec<Where> = (keeps.into_iter().chain(common))
        .map(|place| Where { place, bytes: total, count: growth.kept.len() as u64 })
        .collect();
    for part in context.places(growth.kept.iter().copied()) {
        if places.iter().all(|known| known.place != part.place) {
            places.push(part);
        }
    }
    Some(Grown {
        is_graph,
        name: holder.map(|holder| holder.name),
        title,
        evidence: format!(
            "{} made in {} earlier steps were still alive at the end",
            bytes(total),
            growth.steps + 1
        ),
        places,
        bytes: total,
        saved,
    })
}
