//! Weights, gradients and the optimizer's state alone are too large for the card.
//!
//! ## What it sees
//!
//! Parameters, their gradients and what the optimizer keeps for each of them take most of the memory, whatever the batch: at a
//! batch of one it would be the same. Adam keeps two numbers for every parameter, so training in float32 takes 16 bytes a
//! parameter before the first activation. What has not been made yet when memory ran out (gradients in the first backward
//! pass, state in the first step) is counted as it would be.
//!
//! ## What to do
//!
//! `oomph.fit` updates parameters within the backward pass, so that gradients are freed as they come, and keeps the optimizer's state in host
//! memory: the same numbers, and the weights are what stays. The finding says what other ways save: an optimizer with 8-bit state, state in host memory, adapters (LoRA) that
//! leave most weights without gradients and state, weights in 16 bits.
//!
//! ## How the numbers come about
//!
//! What is there is measured; what is still to come is the parameters' size for gradients and, for Adam and its kin, twice
//! that for the state. The savings are reckoned from those. What is on its way between card and host comes on top.

use crate::context::Context;
use crate::finding::{Basis, Finding, Fix, Grade, Place, Severity, Weight, Where};
use crate::fitting;
use crate::kinds::Kind;
use crate::sources::Phase;
use oomph_trace::census::Holder;
use oomph_words::{bytes, percent};

pub(super) const CODE: &str = "OM306";
const CAUSE: &str = "static_state";

/// From this share of the memory on, no batch is small enough to talk about.
const MOST: f64 = 0.62;

pub(super) fn check(context: &Context) -> Vec<Finding> {
    let Some(oom) = context.fatal() else { return Vec::new() };
    // Frozen weights have no gradients.
    let trained = context.held_of(Kind::Parameter) + context.held_of(Kind::Adapter);
    let (mut weights, mut gradients, mut state) = (
        trained + context.held_of(Kind::Frozen),
        context.held_of(Kind::Gradient),
        context.held_of(Kind::OptimizerState),
    );
    let mut name = String::new();
    let mut coming = false;
    if let Some(census) = context.census {
        weights = weights.max(census.modules.iter().map(|module| module.bytes).sum());
        gradients = gradients.max(census.modules.iter().map(|module| module.gradients).sum());
        for optimizer in &census.optimizers {
            let class = optimizer.class.to_ascii_lowercase();
            let per_byte = match () {
                () if class.contains("8bit") => 0,
                () if class.contains("adam") || class.contains("lamb") => 2,
                () => 0,
            };
            let expected = per_byte * optimizer.parameters;
            coming |= expected > optimizer.bytes || optimizer.parameters > gradients;
            state = state.max(expected);
            gradients = gradients.max(optimizer.parameters);
            if name.is_empty() {
                name.clone_from(&optimizer.class);
            }
        }
    } else if context.kinds.trains() {
        // Gradients are as large as what they are of; what has come so far is the least.
        coming = gradients < trained / 2;
    }
    let asked = if context.sources.phase(oom.stack) == Phase::Setup { oom.size } else { 0 };
    let total = weights + gradients + state + asked;
    let capacity = context.capacity();
    if (total as f64) < MOST * capacity as f64 || weights == 0 {
        return Vec::new();
    }
    let state_name = if name.is_empty() {
        "the optimizer's state".to_owned()
    } else {
        format!("{}'s state", oomph_words::printable(&name))
    };
    let mut parts = vec![format!("weights {}", bytes(weights + asked))];
    if gradients > 0 {
        parts.push(format!("gradients {}", bytes(gradients)));
    }
    if state > 0 {
        parts.push(format!("{state_name} {}", bytes(state)));
    }
    let title = format!(
        "{} take {} of {} ({}): no batch is small enough",
        parts.join(", "),
        bytes(total),
        bytes(capacity),
        percent(total.min(capacity), capacity)
    );
    let title = if state == 0 && gradients == 0 {
        format!("the weights alone take {} of {}", bytes(total), bytes(capacity))
    } else {
        title
    };
    let mut finding = Finding::new(CODE, Severity::Warning, title);
    if coming {
        finding =
            finding.because("what was not there yet when memory ran out is counted as it would have come");
    }
    finding = finding.at(places(context, weights, state));
    let best = (state / 4 * 3).max((gradients + state) / 100 * 95);
    finding = finding.saves(
        best.min(context.history.peak.reserved.bytes),
        Basis::Estimated,
        "with adapters in place of all weights",
    );
    if gradients > 0 || state > 0 {
        finding = finding.fix_if(fitting::state_elsewhere(context, weights + asked, gradients, state));
        if state > 0 {
            finding = finding
                .fix(
                    Fix::new(
                        Grade::ChangesNumerics,
                        format!("an optimizer with 8-bit state saves about {}", bytes(state / 4 * 3)),
                    )
                    .code("bitsandbytes.optim.AdamW8bit(params)"),
                )
                .fix(Fix::new(Grade::Safe, format!("state in host memory saves {} (slower)", bytes(state))));
        }
        finding = finding.fix(Fix::new(
            Grade::ChangesTraining,
            format!("adapters (LoRA) save nearly all of gradients and state, {}", bytes(gradients + state)),
        ));
    }
    finding = finding.fix(
        Fix::new(Grade::ChangesNumerics, format!("weights in 16 bits save {}", bytes((weights + asked) / 2)))
            .code(format!("model.to({})", crate::advice::sixteen_bits(context))),
    );
    vec![finding.caused_by(CAUSE, Weight::Oversized, total).likely_if(context.census.is_none() && coming)]
}

/// The lines that make the model and the optimizer, where the program said them, then the lines that made the weights.
fn places(context: &Context, weights: u64, state: u64) -> Vec<Where> {
    let mut places: Vec<Where> = Vec::new();
    if let Some(census) = context.census {
        let largest =
            census.modules.iter().max_by_key(|module| module.bytes).map(|module| module.name.as_str());
        let optimizer = census.optimizers.first().map(|optimizer| optimizer.name.as_str());
        // The larger part first.
        let names = if state > weights { [optimizer, largest] } else { [largest, optimizer] };
        for name in names.into_iter().flatten() {
            let is_own = |holder: &&Holder| !oomph_words::is_library_file(&holder.file);
            let holder =
                (census.holders.iter()).filter(|holder| holder.name == name && holder.line > 0).find(is_own);
            places.extend(holder.map(|holder| Where {
                place: Place::of_holder(holder),
                bytes: weights,
                count: 1,
            }));
        }
    }
    let alive = context.held.iter().filter(|(_, kind)| kind.is_weights()).map(|&(index, _)| index);
    places.extend(context.places(alive));
    places
}
