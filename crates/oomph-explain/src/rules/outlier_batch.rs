//! One batch is much larger than the others.
//!
//! ## What it sees
//!
//! The forward in which memory ran out asked for blocks far larger than the same line's forwards before it: a long sequence to which all
//! others were padded, a large image, a last batch that took all the rest.
//!
//! ## What to do
//!
//! Cap it: cut or drop samples that are too long, put samples of like length together, split the batch by the number of
//! tokens rather than of samples. A smaller batch for all of them only puts it off.
//! `oomph.fit` runs such a batch in more parts than the others, with the same numbers: plan with one as large as they come.
//!
//! ## How the numbers come about
//!
//! Measured: the largest block of this forward beside the largest of each before. The saving is replayed: the peak with the blocks of
//! this forward as large as in the others.

use super::matters;
use crate::context::Context;
use crate::finding::{Finding, Fix, Grade, Severity, Weight, Where};
use crate::fitting;
use crate::forwards::Forward;
use crate::sources::Phase;
use oomph_trace::Action;
use oomph_words::bytes;

pub(super) const CODE: &str = "OM312";
const CAUSE: &str = "outlier_batch";

/// So many times as large as the largest before.
const TIMES: f64 = 1.8;
/// More than this is not another batch, but another thing.
const MOST_TIMES: f64 = 64.0;
/// So many others must there be.
const LEAST_OTHERS: usize = 2;

pub(super) fn check(context: &Context) -> Vec<Finding> {
    let Some(oom) = context.fatal() else { return Vec::new() };
    in_forward(context).or_else(|| in_data(context, oom.stack, oom.size)).into_iter().collect()
}

fn in_forward(context: &Context) -> Option<Finding> {
    let oom = context.fatal()?;
    let events = &context.device.events;
    let facts = context.sources.of_stack(oom.stack);
    let all = context.forwards.all();
    let last = match facts.site.filter(|_| facts.phase == Phase::Forward) {
        Some(site) => all.iter().rfind(|forward| forward.site == site),
        None => all.last(),
    }?;
    let most = |forward: &Forward| {
        let rows = forward.start as usize..(forward.end as usize).min(events.len());
        rows.filter(|&row| events.action[row] == Action::Alloc).map(|row| events.size[row]).max().unwrap_or(0)
    };
    let others: Vec<u64> = all
        .iter()
        .filter(|forward| forward.site == last.site && forward.start < last.start)
        .map(most)
        .collect();
    let asked = if facts.phase == Phase::Forward { oom.size } else { 0 };
    let here = most(last).max(asked);
    let usual = others.iter().max().copied()?;
    if others.len() < LEAST_OTHERS
        || usual == 0
        || !(TIMES..=MOST_TIMES).contains(&(here as f64 / usual as f64))
    {
        return None;
    }
    let times = here as f64 / usual as f64;
    let blocks = &context.history.allocations;
    let is_here = |index: u32| {
        let born = blocks.born(index as usize);
        born > last.start && context.sources.phase(blocks.stack(index as usize)) == Phase::Forward
    };
    let alive: Vec<u32> =
        context.held.iter().map(|&(index, _)| index).filter(|&index| is_here(index)).collect();
    let held = alive.iter().map(|&index| blocks.size(index as usize)).sum::<u64>() + oom.size;
    if !matters(held, context.capacity(), 0.15, 64 << 20) {
        return None;
    }
    let rows = context.rows_of((0..blocks.len() as u32).filter(|&index| is_here(index)));
    let saved = context
        .what_if()
        .resized(&|row, size| if rows[row] { (size as f64 / times).ceil() as u64 } else { size });
    let place = last.own.map(|frame| context.place_of_frame(frame, true));
    let number = others.len() + 1;
    let title = super::with_place(
        format!(
            "batch {number} is {times:.1} times as large as any before it: {} in its forward",
            bytes(held)
        ),
        place.clone(),
    );
    let places = place.into_iter().map(|place| Where { place, bytes: held, count: alive.len() as u64 });
    let finding = Finding::new(CODE, Severity::Warning, title)
        .because(format!(
            "its largest tensor is {}; in the {} forwards before it was {} at most",
            bytes(here),
            others.len(),
            bytes(usual)
        ))
        .at(places.collect());
    let finding = saved.add_to(finding, "with that batch like the others", "allocated peak");
    Some(fixes(context, finding).caused_by(CAUSE, Weight::Mistake, held))
}

/// Memory ended while a batch was moved or made, by a line that had made smaller ones before.
fn in_data(context: &Context, stack: u32, asked: u64) -> Option<Finding> {
    let events = &context.device.events;
    let facts = context.sources.of_stack(stack);
    if !matches!(facts.phase, Phase::User | Phase::Data)
        || !matters(asked, context.capacity(), 0.10, 64 << 20)
    {
        return None;
    }
    let until = context.moment as usize;
    let others: Vec<u64> = (0..until.min(events.len()))
        .filter(|&row| {
            events.action[row] == Action::Alloc && context.sources.same_call(events.stack[row], stack)
        })
        .map(|row| events.size[row])
        .collect();
    let usual = others.iter().max().copied()?;
    let times = asked as f64 / usual.max(1) as f64;
    // A line that makes things of many sizes makes no batches.
    let alike = others.iter().filter(|&&other| other * 2 >= usual).count() * 4 >= others.len() * 3;
    if others.len() < LEAST_OTHERS || !alike || !(TIMES..=MOST_TIMES).contains(&times) {
        return None;
    }
    let place = context.place(stack, context.moment + 1);
    let title = format!(
        "one tensor of {} is {:.1} times as large as any that this line made before, at {}",
        bytes(asked),
        times,
        place.short()
    );
    let finding = Finding::new(CODE, Severity::Warning, title)
        .because(format!("the {} before it were {} at most", others.len(), bytes(usual)))
        .at(vec![Where { place, bytes: asked, count: 1 }])
        .saves(asked - usual, crate::finding::Basis::Measured, "with that one like the others");
    Some(fixes(context, finding).caused_by(CAUSE, Weight::Mistake, asked))
}

fn fixes(context: &Context, finding: Finding) -> Finding {
    finding
        .fix_if(fitting::batch_in_parts(context))
        .fix(
            Fix::new(Grade::ChangesTraining, "cut or drop what is too long")
                .code("tokens = tokens[:, :max_length]"),
        )
        .fix(Fix::new(
            Grade::Safe,
            "make batches by the number of tokens (or pixels), of samples of like length",
        ))
}
