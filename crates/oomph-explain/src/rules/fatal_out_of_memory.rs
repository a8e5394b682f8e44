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
//! If there are none, the program really needs more than there is: a smaller batch with gradient
//! accumulation, checkpointing, or a lower precision.
//!
//! ## How the numbers come about
//!
//! The request, and what the device had free, are measured. Who held what is the state just before the
//! failure, replayed from the events. What it lacks is the request less the largest
//! free piece that it could use, or what the device would have had to have more, whichever is less.

use crate::context::Context;
use crate::finding::{Finding, Fix, Grade, Severity, bytes, percent};
use crate::kinds::Kind;
use crate::oom::Reason;
use hashbrown::HashMap;

pub(super) const CODE: &str = "OM101";

pub(super) fn check(context: &Context) -> Vec<Finding> {
    let Some(oom) = context.fatal() else { return Vec::new() };
    let (limited, waste) = (oom.limited, &oom.waste);
    let place = context.place(oom.stack, oom.moment + 1).short();
    let title = match oom.reason {
        Reason::OutOfMemory | Reason::NotLookedInto => {
            format!("Out of memory: {} more was asked for at {place}", bytes(oom.size))
        }
        Reason::Fragmentation => format!(
            "Out of memory by fragmentation: {} was asked for at {place}, {} is free but \
             in pieces of at most {}",
            bytes(oom.size),
            bytes(oom.usable_free()),
            bytes(waste.largest_free)
        ),
        Reason::OtherStream => format!(
            "Out of memory: {} was asked for at {place}; a free piece of {} belongs to another stream",
            bytes(oom.size),
            bytes(waste.largest_elsewhere)
        ),
        Reason::PrivatePool => format!(
            "Out of memory: {} was asked for at {place}; a free piece of {} belongs to another pool",
            bytes(oom.size),
            bytes(waste.largest_elsewhere)
        ),
    };
    let mut finding = Finding::new(CODE, Severity::Error, title).because(format!(
        "{} of {} reserved was in use; the free rest, {}, was in pieces of at most {}",
        bytes(waste.allocated),
        bytes(waste.reserved),
        bytes(oom.usable_free()),
        bytes(waste.largest_free)
    ));
    finding = finding.because(if limited {
        format!(
            "the device still had {} free: a limit on this process, between {} and {}, \
             was reached, not the end of the card",
            bytes(oom.device_free),
            bytes(context.history.peak.reserved.bytes),
            bytes(waste.reserved + oom.segment)
        )
    } else {
        format!("the device had {} free", bytes(oom.device_free))
    });
    let alive = context.history.alive_at(oom.moment);
    let mut sums: HashMap<Kind, u64> = HashMap::new();
    for &index in &alive {
        *sums.entry(context.kinds.kind(index as usize)).or_default() +=
            context.history.allocations.size(index as usize);
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
    finding = finding.at(context.places(alive)).misses(oom.lacks(), "in one piece, for this request to fit");
    if oom.size > waste.allocated && oom.reason == Reason::OutOfMemory {
        finding = finding
            .because(
                "the request alone is larger than all that was in use: the tensor made there \
             is what does not fit",
            )
            .fix(Fix::new(
                Grade::Safe,
                "make that tensor in pieces, or smaller: fewer rows, shorter sequences, a \
             lower precision",
            ));
    }
    if oom.reason == Reason::OutOfMemory {
        if !context.kinds.forward().is_empty() {
            let saved = context.what_if().half_batch(context);
            if saved.reserved > 0 {
                finding = finding.because(format!(
                    "{} with half the batch, it would have come this far with {} reserved instead of {}",
                    saved.basis.name(),
                    bytes(saved.reserved_peak),
                    bytes(saved.reserved_before)
                ));
            }
        }
        finding = finding
            .fix(Fix::new(
                Grade::Safe,
                "a smaller batch with gradient accumulation (batch norm sees smaller \
             batches)",
            ))
            .fix(
                Fix::new(Grade::ChangesNumerics, "mixed precision")
                    .code("with torch.autocast(\"cuda\", torch.bfloat16):"),
            );
    }
    vec![finding]
}
