//! Segments are given back to the device and taken again, over and over.
//!
//! ## What it sees
//!
//! Taking memory from the device (`cudaMalloc`) and giving it back (`cudaFree`) is slow, and giving back waits for the
//! device to finish; the cache exists so that it happens once. `torch.cuda.empty_cache()` in the training loop
//! undoes it every step. So does the allocator itself when it is so short that it must empty the cache to go on.
//!
//! ## What to do
//!
//! Take `empty_cache()` out of the loop: it does not make more memory available to PyTorch, which would have
//! used its cache anyway. If the allocator does it by itself, memory is too tight: see the other findings.
//!
//! ## How the numbers come about
//!
//! Counted: segments given back and taken again. It costs time, not memory, so there is no saving in bytes. It is a warning if
//! `empty_cache` was called, and a note if the allocator did it by itself.

use crate::context::Context;
use crate::finding::{Basis, Finding, Fix, Grade, Severity, Where};
use hashbrown::HashMap;
use oomph_trace::{Action, StackId};
use oomph_words::{bytes, plural};

pub(super) const CODE: &str = "OM402";

/// Fewer rounds than this are setting up and tidying away.
const ROUNDS: usize = 3;

pub(super) fn check(context: &Context) -> Vec<Finding> {
    let given =
        context.actions[Action::SegmentFree as usize] + context.actions[Action::SegmentUnmap as usize];
    if given < ROUNDS as u64 {
        return Vec::new();
    }
    let events = &context.device.events;
    let (mut given_back, mut taken_again, mut rounds) = (0u64, 0u64, 0usize);
    let (mut bytes_back, mut in_round) = (0u64, false);
    let mut by_stack: HashMap<StackId, (u64, u64)> = HashMap::new();
    for row in 0..events.len() {
        match events.action[row] {
            Action::SegmentFree | Action::SegmentUnmap => {
                given_back += 1;
                bytes_back += events.size[row];
                rounds += usize::from(!std::mem::replace(&mut in_round, true));
                let entry = by_stack.entry(events.stack[row]).or_default();
                entry.0 += events.size[row];
                entry.1 += 1;
            }
            Action::SegmentAlloc | Action::SegmentMap => {
                taken_again += u64::from(given_back > taken_again);
                in_round = false;
            }
            Action::Alloc => in_round = false,
            _ => {}
        }
    }
    if rounds < ROUNDS || taken_again < given_back / 2 {
        return Vec::new();
    }
    let by_request: u64 = (by_stack.iter())
        .filter(|&(&stack, _)| context.sources.of_stack(stack).empty_cache)
        .map(|(_, &(bytes, _))| bytes)
        .sum();
    let asked = by_request * 2 > bytes_back;
    let title = if asked {
        format!(
            "empty_cache is called again and again: {} given back and taken again in \
             {rounds} rounds",
            plural(given_back, "segment")
        )
    } else {
        format!(
            "The allocator empties its cache to go on: {} given back and taken again in \
             {rounds} rounds",
            plural(given_back, "segment")
        )
    };
    let mut places: Vec<Where> = (by_stack.into_iter())
        .map(|(stack, (bytes, count))| Where { place: context.place(stack, 1), bytes, count })
        .collect();
    places.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.place.cmp(&b.place)));
    let fix = if asked {
        Fix::new(
            Grade::Safe,
            "take torch.cuda.empty_cache() out of the loop: PyTorch uses its cache by \
             itself",
        )
    } else {
        Fix::new(Grade::Safe, "memory is too tight for the cache to work: bring the peak down")
    };
    vec![
        // What the allocator does under pressure is an effect: its cause is found by other rules.
        Finding::new(CODE, if asked { Severity::Warning } else { Severity::Note }, title)
            .because(format!("{} went back to the device; every round waits for it", bytes(bytes_back)))
            .at(places)
            .saves(0, Basis::Measured, "time, not memory")
            .fix(fix),
    ]
}
