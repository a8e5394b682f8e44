//! Memory grows with every step: something made in a step is kept after it.
//!
//! ## What it sees
//!
//! Blocks that were allocated in one step and are still alive at the end, step after step. The usual cause is a
//! tensor that is kept for a running average or a metric while it still carries its graph:
//!
//! ```python
//! total_loss += loss          # keeps every activation of every step
//! outputs.append(model(x))    # so does this
//! ```
//!
//! A tensor that requires gradients refers to its graph, and the graph to every activation; keeping four
//! bytes of loss keeps gigabytes.
//!
//! ## What to do
//!
//! Keep the number, not the tensor: `loss.item()`, or `loss.detach()` for a tensor; `outputs.append(out.detach().cpu())`
//! for predictions. Look at what stores the result of the line that is named: an attribute, a list, a
//! closure, an exception that was caught.
//!
//! ## How the numbers come about
//!
//! Growth is measured: bytes of each step but the first and the last that are alive at the end (or when
//! memory ran out). The saving is replayed: the peak with each of those blocks freed at the end of its step. The line is the innermost of your
//! own that nine tenths of those bytes were allocated through.

use crate::context::Context;
use crate::finding::{Finding, Fix, Grade, Severity, bytes};
use crate::kinds::Kind;
use hashbrown::HashMap;
use oomph_trace::StackId;

pub(super) const CODE: &str = "OM201";

pub(super) fn check(context: &Context) -> Vec<Finding> {
    let Some(growth) = context.growth() else { return Vec::new() };
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
    let saved = context.what_if().freed_early(context, ends);
    let common = context.common_frame(&stacks).map(|frame| context.place_of_frame(frame, true));
    let graph = (growth.kept.iter())
        .filter(|&&i| context.kinds.kind(i as usize) == Kind::Activation)
        .map(|&i| all.size(i as usize))
        .sum::<u64>();
    let total: u64 = stacks.values().sum();
    let is_graph = graph * 2 > total;
    let title = match &common {
        Some(place) => format!(
            "Memory grows by {} every step: what {} makes is kept",
            bytes(growth.per_step),
            place.short()
        ),
        None => format!("Memory grows by {} every step", bytes(growth.per_step)),
    };
    let mut finding = Finding::new(CODE, Severity::Warning, title).because(format!(
        "{} made in {} earlier steps were still alive at the end",
        bytes(total),
        growth.steps + 1
    ));
    if is_graph {
        finding = finding.because(
            "most of it is activations: a tensor that still carries its graph (a loss, \
             an output) is being kept, for instance by append or +=",
        );
    }
    if let Some(place) = common {
        finding.places.push(crate::finding::Where { place, bytes: total, count: growth.kept.len() as u64 });
    }
    let parts: Vec<_> = (context.places(growth.kept.iter().copied()).into_iter())
        .filter(|part| finding.places.iter().all(|known| known.place != part.place))
        .collect();
    finding =
        saved.tell(finding.at(parts), "with each of them freed at the end of its step", "allocated peak");
    let fixes = if is_graph {
        [
            Fix::new(Grade::Safe, "keep the number instead of the tensor").code("total += loss.item()"),
            Fix::new(Grade::Safe, "cut the graph off what must stay a tensor")
                .code("kept.append(output.detach().cpu())"),
        ]
    } else {
        [
            Fix::new(
                Grade::Safe,
                "look at what stores the result of that line: a list, a dictionary, an \
             attribute",
            ),
            Fix::new(Grade::Safe, "keep what must be kept on the host").code("kept.append(tensor.cpu())"),
        ]
    };
    finding.fixes.extend(fixes);
    vec![finding]
}
