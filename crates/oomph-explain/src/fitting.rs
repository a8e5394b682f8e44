//! What `oomph.fit` would make of the step, as a fix: what it does, what the replay leaves of the memory, what to type.
//!
//! Boundary: a recording is replayed with other sizes, as far as it goes. That is no plan: plans are made by running the step,
//! and `oomph.fit` may take another way to fit. What it cannot do (sharded models, inference) is not told here, nor is it told
//! to a program that runs under it.

use crate::context::Context;
use crate::finding::{Fix, Grade};
use crate::kinds::Kind;
use crate::logits::Logits;
use crate::sources::{Phase, TrainingLoop};
use crate::what_if::{InParts, Saved};
use oomph_words::bytes;

/// What `oomph.fit` computes of logits at a time, in float32 (`CHUNK_BYTES` of its cross-entropy).
const PIECE: u64 = 128 << 20;
/// More parts than this are not tried: few batches have as many samples.
const MOST_PARTS: u64 = 64;
/// What a budget has to hold beside PyTorch's memory: the CUDA context, and what is kept free.
const BESIDE: u64 = 768 << 20;
/// What differs from the plain step, where sums are added up in another order.
const TO_ROUNDING: &str = "the same numbers, to rounding";

/// Whether the recording shows a training step that `oomph.fit` can take over.
fn can_help(context: &Context) -> bool {
    context.is_training()
        && !matches!(context.sources.training_loop, TrainingLoop::Fit | TrainingLoop::Sharded)
}

/// Logits and their loss in pieces, with the batch in parts where that is not enough.
pub(crate) fn logits_in_pieces(context: &Context, logits: &Logits) -> Option<Fix> {
    if !can_help(context) {
        return None;
    }
    // Only a linear layer's logits can be computed for some rows at a time.
    if !logits.of_a_linear_layer || logits.size <= PIECE {
        return batch_in_parts(context);
    }
    const PIECES: &str = "compute logits and their loss in pieces";
    let died = context.fatal().is_some();
    if !context.is_whole() {
        return told(context, PIECES, TO_ROUNDING, None);
    }
    let alone = Step { logits: Some(logits), parts: None }.replayed(context, 1);
    if !died || alone.reserved_peak <= context.capacity() {
        return told(context, PIECES, TO_ROUNDING, Some(&alone));
    }
    match parts(context, Some(logits), MOST_PARTS) {
        Some(InParts { parts, saved }) => {
            let does = format!("{PIECES}, and run the same batch in {parts} parts or more");
            told(context, &does, TO_ROUNDING, Some(&saved))
        }
        None => told(context, &format!("{PIECES}, and look for what else has to be done"), TO_ROUNDING, None),
    }
}

/// The same batch in parts; without bytes where parts cannot be made or are not enough.
pub(crate) fn batch_in_parts(context: &Context) -> Option<Fix> {
    if !can_help(context) {
        return None;
    }
    let died = context.fatal().is_some();
    match context.in_parts(|| parts(context, None, if died { MOST_PARTS } else { 2 })) {
        Some(InParts { parts, saved }) => {
            let more = if died { " or more" } else { "" };
            let does = format!("run the same batch in {parts} parts{more}");
            told(context, &does, TO_ROUNDING, Some(saved))
        }
        None if died && context.sources.batch_norm => told(
            context,
            "run blocks again in the backward pass, or move activations to host memory",
            "the same numbers",
            None,
        ),
        None if died => {
            let does = "look for what fits: parts of the batch or the sequence, blocks that are run again, host memory";
            told(context, does, TO_ROUNDING, None)
        }
        None => None,
    }
}

/// The optimizer without temporaries; `rows` are the events that make them.
pub(crate) fn fused_optimizer(context: &Context, rows: &[bool]) -> Option<Fix> {
    if !can_help(context) {
        return None;
    }
    let fatal = context.fatal();
    let asks =
        fatal.filter(|oom| context.sources.of_stack(oom.stack).multi_tensor).map(|oom| oom.moment as usize);
    let saved = context.is_whole().then(|| {
        context.what_if().served(&|row, size| if rows[row] || asks == Some(row) { 0 } else { size })
    });
    let does = "run the optimizer without temporary copies";
    let fix = told(context, does, "fused: last bits may differ", saved.as_ref())?;
    Some(Fix { grade: Grade::ChangesNumerics, ..fix })
}

/// Expandable segments, set while the program runs, where these are the setting that helps. `oomph.fit` takes no other.
pub(crate) fn expandable_segments(context: &Context, conf: &str, saved: &Saved) -> Option<Fix> {
    let takes = conf == "expandable_segments:True" && context.fatal().is_some() && can_help(context);
    takes.then(|| told(context, "set it while the program runs", "the same numbers", Some(saved))).flatten()
}

/// Gradients freed as they come, and the optimizer's state in host memory, where the weights then fit.
pub(crate) fn state_elsewhere(context: &Context, weights: u64, gradients: u64, state: u64) -> Option<Fix> {
    // Frameworks update the parameters themselves, after the backward pass.
    let frees = gradients > 0 && context.sources.training_loop == TrainingLoop::Own;
    let left = weights + if frees { 0 } else { gradients };
    if !can_help(context) || (state == 0 && !frees) || left >= context.capacity() {
        return None;
    }
    let mut does = Vec::new();
    if frees {
        does.push("update parameters within the backward pass");
    }
    if state > 0 {
        does.push("keep the optimizer's state in host memory");
    }
    let fix = told(context, &does.join(" and "), "the same numbers", None)?;
    let text = format!(
        "{}: {} of {} stay on the card, beside activations and what is on its way (estimated)",
        fix.text,
        bytes(left),
        bytes(weights + gradients + state)
    );
    Some(Fix { text, ..fix })
}

/// What is done to the sizes of a step.
struct Step<'c> {
    logits: Option<&'c Logits>,
    parts: Option<Parts>,
}

/// What parts of a batch make smaller, and what they keep.
struct Parts {
    /// Events that allocate what grows with the batch.
    of_batch: Vec<bool>,
    /// Events that allocate gradients.
    of_gradients: Vec<bool>,
    /// All gradients: a part finds those of the parts before it, so they are there all the time.
    gradients: u64,
}

impl Parts {
    fn of(context: &Context) -> Self {
        let (mut smaller, mut gradients) = (Vec::new(), Vec::new());
        for index in 0..context.history.allocations.len() as u32 {
            match context.kinds.kind(index as usize) {
                Kind::Gradient => gradients.push(index),
                kind if is_smaller_in_parts(context, index, kind) => smaller.push(index),
                _ => {}
            }
        }
        let bytes = all_gradients(context, &gradients);
        Self {
            of_batch: context.rows_of(smaller),
            of_gradients: context.rows_of(gradients),
            gradients: bytes,
        }
    }
}

impl Step<'_> {
    fn replayed(&self, context: &Context, parts: u64) -> Saved {
        let of_logits = context.rows_of(self.logits.iter().flat_map(|logits| logits.alike.iter().copied()));
        let is = |rows: fn(&Parts) -> &[bool], row: usize| {
            self.parts.as_ref().is_some_and(|parts| rows(parts)[row])
        };
        let fatal = context.fatal();
        let asked = fatal.map(|oom| oom.moment as usize);
        let asks_for_logits = self.logits.is_some_and(|logits| logits.asked);
        let asks_for_batch = fatal.is_some_and(|oom| is_of_the_batch(context, oom.stack));
        let saved = context.what_if().served(&|row, size| match asked == Some(row) {
            true if asks_for_logits => size.min(PIECE),
            true if asks_for_batch => size.div_ceil(parts),
            true => size,
            false if of_logits[row] => size.min(PIECE),
            false if is(|parts| &parts.of_batch, row) => size.div_ceil(parts),
            false if is(|parts| &parts.of_gradients, row) => 0,
            false => size,
        });
        let gradients = match (&self.parts, self.logits) {
            (Some(parts), _) => parts.gradients,
            (None, Some(_)) => largest_parameter(context),
            (None, None) => 0,
        };
        let reserved_peak = (saved.reserved_peak + gradients).min(saved.reserved_before);
        Saved { reserved: saved.reserved_before - reserved_peak, reserved_peak, ..saved }
    }
}

/// The fewest parts that fit, of 2, 4, 8 and so on up to `most`; of a program that did not run out of memory, two.
fn parts(context: &Context, logits: Option<&Logits>, most: u64) -> Option<InParts> {
    let most = most.min(samples(context).unwrap_or(most));
    // Samples that are normalised together have to stay together.
    if !context.is_whole() || context.sources.batch_norm || most < 2 {
        return None;
    }
    let limit = context.fatal().map_or(u64::MAX, |_| context.capacity());
    let step = Step { logits, parts: Some(Parts::of(context)) };
    let (fixed, grows) = at_least(context, &step);
    let mut parts = 2;
    while parts <= most {
        // What was held when memory ran out says which number is too small, without a replay.
        if fixed.saturating_add(grows / parts) <= limit {
            let saved = step.replayed(context, parts);
            if saved.reserved_peak <= limit {
                return (saved.reserved > 0).then_some(InParts { parts, saved });
            }
        }
        parts *= 2;
    }
    None
}

/// Whether parts make an allocation smaller. The batch itself is cut into views, and stays whole.
fn is_smaller_in_parts(context: &Context, index: u32, kind: Kind) -> bool {
    kind != Kind::Input && context.what_if().grows_with_the_batch(index, kind)
}

/// Of what was held when memory ran out, and what was asked for: what stays as it is, and what parts make smaller.
fn at_least(context: &Context, step: &Step) -> (u64, u64) {
    let Some(oom) = context.fatal() else { return (0, 0) };
    let all = &context.history.allocations;
    let (mut fixed, mut grows) = (step.parts.as_ref().map_or(0, |parts| parts.gradients), 0);
    for &(index, kind) in &context.held {
        let size = all.size(index as usize);
        match () {
            () if step.logits.is_some_and(|logits| logits.alike.binary_search(&index).is_ok()) => {}
            () if is_smaller_in_parts(context, index, kind) => grows += size,
            () if kind == Kind::Gradient => {}
            () => fixed += size,
        }
    }
    match is_of_the_batch(context, oom.stack) {
        _ if step.logits.is_some_and(|logits| logits.asked) => {}
        true => grows += oom.size,
        false => fixed += oom.size,
    }
    (fixed, grows)
}

/// The largest parameter, which a head over many words is: pieces of the loss add up its gradient beside all else.
fn largest_parameter(context: &Context) -> u64 {
    let all = &context.history.allocations;
    let weights = context.held.iter().filter(|(_, kind)| kind.is_weights());
    weights.map(|&(index, _)| all.size(index as usize)).max().unwrap_or(0)
}

/// The bytes of all gradients: as many as were there at once; before the first update, as many as the parameters have.
fn all_gradients(context: &Context, gradients: &[u32]) -> u64 {
    let all = &context.history.allocations;
    let most = all.most_at_once(gradients.iter().map(|&index| index as usize), |index| all.size(index));
    if context.kinds.updates() {
        return most;
    }
    let held = || context.held_of(Kind::Parameter) + context.held_of(Kind::Adapter);
    let known = context.census.map(|census| census.optimizers.iter().map(|one| one.parameters).sum::<u64>());
    most.max(known.filter(|&bytes| bytes > 0).unwrap_or_else(held))
}

/// Whether a request grows with the batch.
fn is_of_the_batch(context: &Context, stack: u32) -> bool {
    let facts = context.sources.of_stack(stack);
    let setup =
        matches!(facts.phase, Phase::Setup | Phase::Optimizer | Phase::OptimizerState | Phase::ZeroGrad);
    !setup && !facts.multi_tensor && !facts.model_init
}

/// How many samples the batch has at least, where the line that failed says it: weights are among its tensors too.
fn samples(context: &Context) -> Option<u64> {
    let tensors = &context.census?.frames.first()?.tensors;
    tensors.iter().filter(|tensor| tensor.shape.len() > 1).map(|tensor| tensor.shape[0]).min()
}

/// The fix, in words and with what to type. Of a program that ran to its end, only what saves something is told: without a
/// budget, `oomph.fit` changes nothing where the plain step fits.
fn told(context: &Context, does: &str, same: &str, saved: Option<&Saved>) -> Option<Fix> {
    let died = context.fatal().is_some();
    let saved = saved.filter(|saved| saved.reserved > 0);
    let budget = if died { None } else { Some(budget(saved?)?) };
    let mut text = format!("let oomph.fit {does} ({same})");
    if let Some(saved) = saved {
        let (after, before) = (bytes(saved.reserved_peak), bytes(saved.reserved_before));
        let so_far = if died { " up to where memory ran out" } else { "" };
        let basis = saved.basis.name();
        text = format!("{text}: about {after} reserved instead of {before}{so_far} ({basis})");
    }
    Some(Fix { by_fit: true, ..Fix::new(Grade::Safe, text).code(code(context, budget.as_deref())) })
}

/// A budget in which the plain step does not fit, and what is left of it does.
fn budget(saved: &Saved) -> Option<String> {
    const HALF: u64 = 512 << 20;
    let halves = (saved.reserved_peak + BESIDE).div_ceil(HALF);
    let half = if halves.is_multiple_of(2) { "" } else { ".5" };
    (halves * HALF < saved.reserved_before).then(|| format!("{}{half}GiB", halves / 2))
}

/// What to type, for the loop that the program has.
fn code(context: &Context, budget: Option<&str>) -> String {
    let budget = budget.map(|budget| format!("budget=\"{budget}\"")).unwrap_or_default();
    let after_others = if budget.is_empty() { String::new() } else { format!(", {budget}") };
    match context.sources.training_loop {
        TrainingLoop::Trainer => format!("trainer = Trainer(..., callbacks=[oomph.FitCallback({budget})])"),
        TrainingLoop::Lightning => {
            format!("trainer = Trainer(..., callbacks=[oomph.FitLightning({budget})])")
        }
        TrainingLoop::Accelerate => format!(
            "fit = oomph.fit_accelerate(accelerator, model, optimizer, batch=batch{after_others})\nloss = fit.step(batch)"
        ),
        _ => format!(
            "fit = oomph.fit(model, optimizer, loss=loss_fn, batch=batch{after_others})\nloss = fit.step(batch)"
        ),
    }
}
