//! A checkpoint is read into RAM while the model's own weights lie there too.
//!
//! ## What it sees
//!
//! At the peak of RAM, memory that was filled inside `torch.load` or safetensors, and beside it about as much that was made when the model was built: weights
//! that are overwritten a moment later, and a checkpoint that is thrown away then.
//!
//! ## What to do
//!
//! `torch.load(path, mmap=True)` leaves the checkpoint in the file, whose pages the machine can take back, and `model.load_state_dict(state, assign=True)` takes its
//! tensors instead of copying them. A model that is built under `with torch.device("meta"):` has no weights of its own before that.
//!
//! ## How the numbers come about
//!
//! Both are measured at the peak. The saving is the smaller of both.

use super::super::HostKind;
use super::super::blocks::Block;
use super::super::context::{HostContext, sum};
use super::{matters, severity};
use crate::finding::{Basis, Finding, Fix, Grade};
use crate::sources::Phase;
use oomph_words::bytes;

pub(crate) const CODE: &str = "OM505";

/// The checkpoint and the weights are alike within this factor: one may have the optimizer's state, the other half the precision.
const ALIKE: u64 = 4;

pub(crate) fn check(context: &HostContext) -> Vec<Finding> {
    let (mut checkpoint, mut weights): (Vec<&Block>, Vec<&Block>) = (Vec::new(), Vec::new());
    for block in context.at_peak() {
        let facts = context.facts(block);
        if facts.loaded {
            checkpoint.push(block);
        } else if facts.phase == Phase::Setup && context.kind(block) == HostKind::Tensors {
            weights.push(block);
        }
    }
    let (read, own) = (sum(checkpoint.iter().copied()), sum(weights.iter().copied()));
    let (less, more) = (read.min(own), read.max(own));
    if !matters(less, context.peak()) || more > less.saturating_mul(ALIKE) {
        return Vec::new();
    }
    let mut places = context.places(checkpoint);
    let place = places.first().map(|one| one.place.short()).unwrap_or_default();
    let title =
        format!("a checkpoint of {} lies in RAM beside the model's weights, read at {place}", bytes(read));
    places.extend(context.places(weights));
    vec![
        Finding::new(CODE, severity(less, context.peak()), title)
            .because(format!("the model itself has {} at the peak", bytes(own)))
            .at(places)
            .saves(less, Basis::Measured, "the smaller of both, at the peak of what is asked for")
            .fix(
                Fix::new(Grade::Safe, "leave the checkpoint in its file")
                    .code("state = torch.load(path, mmap=True)"),
            )
            .fix(
                Fix::new(
                    Grade::Safe,
                    "let the model take the tensors as they are; the optimizer is made after that",
                )
                .code("model.load_state_dict(state, assign=True)"),
            ),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{MIB, Program};
    use super::CODE;
    use oomph_trace::{CALLER, How};

    #[test]
    fn both_at_the_peak_are_found_and_one_after_the_other_are_not() {
        let (torch, site) = ("/v/site-packages/torch/lib/libc10.so", "/v/lib/python3.12/site-packages/torch");
        let (linear, load) = (format!("{site}/nn/modules/linear.py"), format!("{site}/serialization.py"));
        for (both, wanted) in [(true, 1), (false, 0)] {
            let mut program = Program::default();
            let build =
                program.stack(&[(CALLER, torch, 0), ("__init__", &linear, 106), ("main", "run.py", 4)]);
            let read = program.stack(&[(CALLER, torch, 0), ("_load", &load, 1900), ("main", "run.py", 5)]);
            for _ in 0..20 {
                program.alloc(How::Large, 10 * MIB, build);
            }
            if both {
                program.alloc(How::Large, 210 * MIB, read);
            } else {
                // An embedding that is read beside a model: not its weights.
                program.alloc(How::Large, 20 * MIB, read);
            }
            let found = program.found(CODE);
            assert_eq!(found.len(), wanted, "{found:?}");
            if let Some(found) = found.first() {
                assert!(found.title.starts_with("a checkpoint of 210 MiB lies"), "{}", found.title);
                assert_eq!(found.saving.as_ref().unwrap().bytes, 200 * MIB);
            }
        }
        // The checkpoint alone: the model takes its tensors.
        let mut program = Program::default();
        let read = program.stack(&[(CALLER, torch, 0), ("_load", &load, 1900), ("main", "run.py", 5)]);
        program.alloc(How::Large, 210 * MIB, read);
        assert!(program.found(CODE).is_empty());
    }
}
