//! The program ran out of memory and died of it.
//!
//! ## What it sees
//!
//! An out-of-memory after which nothing was allocated any more. PyTorch's message names the request that
//! failed, which is rarely to blame; this says who held the rest, and why no free memory served:
//!
//! - *out of memory*: what lives needs it all;
//! - *fragmentation*: enough is free, in pieces that are too small (see OM401);
//! - *another stream*, *a private pool*: a piece that fits is free, but not for this request (OM403, OM404).
//!
//! If the device itself had room, a limit on the process (`set_per_process_memory_fraction`, or
//! `per_process_memory_fraction` in the settings) was reached, not the end of the card.
//!
//! ## What to do
//!
//! Look at the other findings first: a leak or fragmentation is cheaper to mend than a batch is to halve.
//! If there are none, the program really needs more than there is: `oomph.fit`, which makes a step of training fit with the
//! same numbers, or by hand a smaller batch with gradient accumulation, checkpointing, or a lower precision.
//!
//! ## How the numbers come about
//!
//! The request, and what the device had free, are measured. Who held what is the state just before the
//! failure, replayed from the events. What it lacks is the request less the largest
//! free piece that it could use, or what the device would have had to have more, whichever is less.

use crate::advice;
use crate::context::Context;
use crate::finding::{Finding, Severity};
use crate::fitting;
use crate::kinds::Kind;
use hashbrown::HashMap;
use oomph_words::{bytes, percent};

pub(crate) const CODE: &str = "OM101";

pub(super) fn check(context: &Context) -> Vec<Finding> {
    let Some(oom) = context.fatal() else { return Vec::new() };
    let waste = &oom.waste;
    let place = context.place(oom.stack, oom.moment + 1);
    let title = format!("Out of memory: {} more was asked for at {}", bytes(oom.size), place.short());
    let mut finding = Finding::new(CODE, Severity::Error, title).because(format!(
        "memory ran out at {}: {} was asked for, with {} of {} reserved in use{}",
        place.short(),
        bytes(oom.size),
        bytes(waste.allocated),
        bytes(waste.reserved),
        if oom.usable_free() > 0 {
            format!(
                " and the free rest, {}, in pieces of at most {}",
                bytes(oom.usable_free()),
                bytes(waste.largest_free)
            )
        } else {
            String::new()
        }
    ));
    finding = finding.because(if oom.limited {
        format!(
            "the device still had {} free: a limit on this process, between {} and {}, was reached, not the end of the \
             card",
            bytes(oom.device_free),
            bytes(context.history.peak.reserved.bytes),
            bytes(waste.reserved + oom.segment)
        )
    } else {
        format!("the device had {} free", bytes(oom.device_free))
    });
    let mut sums: HashMap<Kind, u64> = HashMap::new();
    for &(index, kind) in &context.held {
        *sums.entry(kind).or_default() += context.history.allocations.size(index as usize);
    }
    sums.remove(&Kind::Unknown);
    let mut by_kind: Vec<(Kind, u64)> = sums.into_iter().collect();
    by_kind.sort_by_key(|&(kind, sum)| (std::cmp::Reverse(sum), kind));
    let held: Vec<String> = (by_kind.iter().take(3))
        .map(|(kind, sum)| format!("{} {} ({})", kind.name(), bytes(*sum), percent(*sum, waste.allocated)))
        .collect();
    if !held.is_empty() {
        finding = finding.because(format!("the memory was held by {}", held.join(", ")));
    }
    if let Some(steps) = &context.steps
        && let Some(step) = steps.at(oom.moment + 1)
    {
        finding = finding.because(format!("it happened in step {} of {}", step + 1, steps.count()));
    }
    let alive = context.held.iter().map(|&(index, _)| index);
    finding = finding
        .at(context.places(alive))
        .misses(oom.lacks(), "at least: in one piece, for this request alone");
    vec![
        finding
            .fix_if(fitting::batch_in_parts(context))
            .fix(advice::smaller_batch(context))
            .fix(advice::mixed_precision(context)),
    ]
}
