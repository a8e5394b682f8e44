//! Activations are kept for a backward pass that never comes.
//!
//! ## What it sees
//!
//! Each forward is checked by itself. One whose activations no backward pass uses, and which are still there when the same
//! line begins the next forward, has recorded a graph for nothing: validation after training, inference, a teacher, a
//! feature extractor. In a program that calls modules and never goes backward, what the layers make lives until the whole
//! forward is over. `model.eval()` changes dropout and batch norm; it does not turn gradients off.
//!
//! ```python
//! for x, y in validation:
//!     total += criterion(model(x), y)     # keeps the graph of every batch
//! ```
//!
//! ## What to do
//!
//! Wrap it in `torch.no_grad()` (or `torch.inference_mode()`): results are the same to the bit. `@torch.no_grad()` above the function does
//! it too. A loss that is summed becomes a number with `.item()`.
//!
//! ## How the numbers come about
//!
//! Activations are measured: made inside a module's call, alive after it. That no backward pass will come is proved where the recorder
//! was inside the process (the module is in evaluation mode, no optimizer is there), and likely otherwise. The saving is
//! replayed: the peak without all of them, less the two largest, which one layer needs as its input and output in
//! any case.

use super::matters;
use crate::context::Context;
use crate::finding::{Finding, Fix, Grade, Patch, Place, Severity, Weight, Where};
use crate::kept::{How, Kept, speaks_of_evaluation};
use crate::kinds::Kind;
use crate::sources::Phase;
use crate::what_if::Saved;
use hashbrown::HashSet;
use oomph_trace::FrameId;
use oomph_words::{bytes, percent, plural};

pub(super) const CODE: &str = "OM202";
const CAUSE: &str = "no_grad_missing";

pub(super) fn check(context: &Context) -> Vec<Finding> {
    let kept: Vec<&Kept> = context.kept().iter().filter(|kept| kept.how == How::NoGradMissing).collect();
    if let Some(kept) = kept.first() {
        return over_forwards(context, kept).into_iter().collect();
    }
    if let Some(found) = not_trained(context) {
        return vec![found];
    }
    one_forward(context).or_else(|| whole_recording(context)).into_iter().collect()
}

/// What the forwards of these lines would save without a graph.
fn without_graph(context: &Context, sites: &HashSet<FrameId>) -> Saved {
    let all = &context.history.allocations;
    let is_saved = |index: u32| {
        let i = index as usize;
        let facts = context.sources.of_stack(all.stack(i));
        let of_site = facts.phase == Phase::Forward && facts.site.is_some_and(|site| sites.contains(&site));
        of_site && context.kinds.kind(i) == Kind::Activation
    };
    let dropped: Vec<u32> = (0..all.len() as u32).filter(|&index| is_saved(index)).collect();
    let mut largest: Vec<u64> = dropped.iter().map(|&index| all.size(index as usize)).collect();
    largest.sort_unstable_by_key(|&size| std::cmp::Reverse(size));
    let needed: u64 = largest.iter().take(2).sum();
    let mut saved = context.what_if().without(&dropped);
    saved.allocated = saved.allocated.saturating_sub(needed);
    saved.reserved_peak = (saved.reserved_peak + needed).min(saved.reserved_before);
    saved.reserved = saved.reserved_before - saved.reserved_peak;
    saved
}

fn sites_of(context: &Context, own: Option<FrameId>) -> HashSet<FrameId> {
    context.forwards.all().iter().filter(|forward| forward.own == own).map(|forward| forward.site).collect()
}

fn with_fixes(finding: Finding) -> Finding {
    finding
        .fix(
            Fix::new(Grade::Safe, "tell autograd that no gradients are wanted").code("with torch.no_grad():"),
        )
        .fix(Fix::new(Grade::Safe, "sum numbers, not tensors").code("total += loss.item()"))
}

fn over_forwards(context: &Context, kept: &Kept) -> Option<Finding> {
    if !super::is_worth_a_finding(context, kept) {
        return None;
    }
    let made = kept.made_at.map(|frame| context.place_of_frame(frame, true));
    let title = super::with_place(
        format!(
            "the graphs of {} are kept for a backward pass that never comes: {} of activations, {} a forward",
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
    finding = super::line_of_holder(finding, kept.holder.as_ref());
    let mut places = kept.places(context);
    if let Some(frame) = kept.made_at {
        let made = context.place_of_frame(frame, true);
        places.sort_by_key(|place| place.place != made);
    }
    let finding = finding.at(places);
    let saved = without_graph(context, &sites_of(context, kept.made_at));
    Some(
        with_fixes(saved.add_to(finding, "without them", "allocated peak"))
            .caused_by(CAUSE, Weight::Mistake, kept.bytes)
            .likely_if(kept.likely)
            .patched(kept.patch(context, CAUSE)),
    )
}

/// A model that no optimizer has, called with gradients while another one is trained: a teacher, a feature extractor.
fn not_trained(context: &Context) -> Option<Finding> {
    let census = context.census?;
    if !census.modules.iter().any(|module| module.optimized) {
        return None;
    }
    let all = &context.history.allocations;
    let mut found: Vec<(u64, &str, FrameId, Vec<u32>)> = Vec::new();
    for module in census.modules.iter().filter(|module| !module.optimized && module.requires_grad) {
        let mut blocks = Vec::new();
        let mut own = None;
        for &(index, kind) in &context.held {
            let facts = context.sources.of_stack(all.stack(index as usize));
            let Some(frame) = facts.own_site.filter(|_| kind == Kind::Activation && facts.site.is_some())
            else {
                continue;
            };
            let calls = matches!(context.place_of_frame(frame, true), Place::Line { file, line, .. } if file == module.file && module.calls.contains(&line));
            if calls {
                own = Some(frame);
                blocks.push(index);
            }
        }
        let held: u64 = blocks.iter().map(|&index| all.size(index as usize)).sum();
        if let Some(frame) = own {
            found.push((held, &module.name, frame, blocks));
        }
    }
    let (held, name, frame, blocks) = found.into_iter().max_by_key(|(held, ..)| *held)?;
    if !matters(held, context.held_bytes(), 0.20, 64 << 20) {
        return None;
    }
    let place = context.place_of_frame(frame, true);
    let title = super::with_place(
        format!(
            "`{}` is not trained, and yet it runs with gradients: {} of activations",
            oomph_words::printable(name),
            bytes(held)
        ),
        Some(place.clone()),
    );
    let count = blocks.len() as u64;
    let finding = Finding::new(CODE, Severity::Warning, title)
        .because("no optimizer has its parameters, so its activations serve no backward pass")
        .at(vec![Where { place: place.clone(), bytes: held, count }]);
    let saved = without_graph(context, &sites_of(context, Some(frame)));
    Some(
        saved
            .add_to(finding, "without them", "allocated peak")
            .fix(Fix::new(Grade::Safe, "run it without gradients").code("with torch.no_grad():"))
            .caused_by(CAUSE, Weight::Mistake, held)
            .patched(Patch::at(CAUSE, &place, None)),
    )
}

/// A program that died in a forward of its own, which no backward pass would have followed.
fn one_forward(context: &Context) -> Option<Finding> {
    context.fatal()?;
    let census = context.census?;
    let last = context.forwards.all().last()?;
    if context.without_gradients() || context.kinds.backward_within(last.end, context.moment) {
        return None;
    }
    let model =
        census.modules.iter().filter(|module| module.requires_grad).max_by_key(|module| module.bytes)?;
    let measures = census.frames.iter().any(|frame| speaks_of_evaluation(&frame.function));
    let alone = census.complete && census.optimizers.is_empty();
    if !(alone || !model.training && measures) || context.sources.any(|facts| facts.training) {
        return None;
    }
    let all = &context.history.allocations;
    let blocks: Vec<u32> = (context.held.iter())
        .filter(|(index, kind)| *kind == Kind::Activation && all.born(*index as usize) > last.start)
        .map(|&(index, _)| index)
        .collect();
    let held: u64 = blocks.iter().map(|&index| all.size(index as usize)).sum();
    if blocks.len() < 4 || !matters(held, context.held_bytes(), 0.25, 16 << 20) {
        return None;
    }
    let place = last.own.map(|frame| context.place_of_frame(frame, true));
    let title = super::with_place(
        format!("one forward keeps {} of activations for a backward pass that never comes", bytes(held)),
        place.clone(),
    );
    let why = match (alone, model.training) {
        (true, false) => {
            "there is no optimizer, and the model is in evaluation mode (which does not turn gradients off)"
        }
        (true, true) => "there is no optimizer in the program",
        _ => "the model is in evaluation mode, which does not turn gradients off",
    };
    let places =
        place.iter().map(|place| Where { place: place.clone(), bytes: held, count: blocks.len() as u64 });
    let finding = Finding::new(CODE, Severity::Warning, title).because(why).at(places.collect());
    let saved = without_graph(context, &sites_of(context, last.own));
    Some(
        with_fixes(saved.add_to(finding, "without them", "allocated peak"))
            .caused_by(CAUSE, Weight::Mistake, held)
            .patched(place.as_ref().and_then(|place| Patch::at(CAUSE, place, None))),
    )
}

/// A whole recording that calls modules and never goes backward.
fn whole_recording(context: &Context) -> Option<Finding> {
    let all = &context.history.allocations;
    // A cache of keys and values is meant to outlive the forward that fills it.
    let at_peak: Vec<u32> = (context.alive.iter())
        .filter(|(index, kind)| {
            *kind == Kind::Activation && !context.sources.of_stack(all.stack(*index as usize)).cache
        })
        .map(|&(index, _)| index)
        .collect();
    let activations: u64 = at_peak.iter().map(|&index| all.size(index as usize)).sum();
    // A program that ran out of memory before it had gone round twice may have had a backward pass to come.
    let rounds = context.steps.as_ref().map_or(0, |steps| steps.count());
    if context.kinds.trains()
        || (!context.ooms.is_empty() && rounds < 3)
        || context.kinds.forward().is_empty()
        || !matters(activations, context.peak(), 0.25, 16 << 20)
        || context.growth().is_some()
        || context.without_gradients()
    {
        return None;
    }
    // Few of each forward: the results themselves, not what led to them.
    let forwards = context.forwards.all();
    let made_in = |index: &u32| forwards.partition_point(|one| one.start < all.born(*index as usize));
    let made_in: HashSet<usize> = at_peak.iter().map(made_in).collect();
    if at_peak.len() < 4 * made_in.len() {
        return None;
    }
    let title = format!(
        "Inference keeps {} of activations ({} of the peak) for a backward pass that never comes",
        bytes(activations),
        percent(activations, context.peak())
    );
    let sites: HashSet<FrameId> = context.forwards.all().iter().map(|forward| forward.site).collect();
    let saved = without_graph(context, &sites);
    let finding = Finding::new(CODE, Severity::Warning, title)
        .because(
            "there is no backward pass and no optimizer in the recording, yet what the layers make lives until the \
             forward pass is over",
        )
        .at(context.places(at_peak.iter().copied()));
    let made = context.forwards.all().last().and_then(|forward| forward.own);
    Some(
        with_fixes(saved.add_to(finding, "without them", "allocated peak"))
            .caused_by(CAUSE, Weight::Mistake, activations)
            .likely_if(true)
            .patched(made.and_then(|frame| Patch::at(CAUSE, &context.place_of_frame(frame, true), None))),
    )
}
