//! The recording is incomplete; the report lists what is missing.
//!
//! ## What it sees
//!
//! Events that were overwritten in PyTorch's ring buffer (`max_entries`), recording that began late, a file cut off,
//! missing stacks, events that contradict each other.
//!
//! ## What to do
//!
//! Start before the model is built, keep enough entries, and record Python stacks:
//!
//! ```python
//! torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
//! ...
//! torch.cuda.memory._dump_snapshot("snapshot.pickle")
//! ```
//!
//! To catch an out-of-memory with everything still alive, dump from an observer, before the exception unwinds:
//!
//! ```python
//! torch._C._cuda_attach_out_of_memory_observer(lambda *_: torch.cuda.memory._dump_snapshot("oom.pickle"))
//! ```
//!
//! ## How the numbers come about
//!
//! Blocks from before are worked out backwards from the final segments, which are always complete. Peaks are those of
//! the part that was recorded: the true peak may have been earlier.

use crate::context::Context;
use crate::finding::{Finding, Fix, Grade, Severity};
use oomph_trace::Action;
use oomph_words::{bytes, plural};

pub(super) const CODE: &str = "OM901";

pub(super) fn check(context: &Context) -> Vec<Finding> {
    let (device, history) = (context.device, context.history);
    let events = &device.events;
    let mut lacks: Vec<String> = Vec::new();
    let mut fix = None;
    let record = "torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks=\"python\")";
    if context.recording.source.truncated {
        lacks.push("the file ends in the middle: the newest events are missing".to_owned());
    }
    if events.is_empty() {
        lacks.push("there are no events, only the final state: peaks are those of the end".to_owned());
        fix = Some(Fix::new(Grade::Safe, "record from the start").code(record));
    } else if history.allocations.born_before() > 0 || device.overflowed == Some(true) {
        let blocks = history.allocations.born_before() as u64;
        let cause = match (device.overflowed, device.max_entries) {
            (Some(true), Some(most)) => format!("older events were overwritten (max_entries={most})"),
            (Some(true), None) => "older events were overwritten (max_entries)".to_owned(),
            (Some(false), _) => "recording began late".to_owned(),
            // A round number of events is a buffer that was full.
            (None, _) if events.len() >= 100 && events.len() % 100 == 0 => {
                format!("older events were overwritten (max_entries={}, it seems)", events.len())
            }
            (None, _) => "recording began late, or older events were overwritten".to_owned(),
        };
        lacks.push(format!(
            "{cause}: {} with {} were there before the first event; the true peak may have been earlier",
            plural(blocks, "block"),
            bytes(history.start.allocated)
        ));
        if history.uncertainty > 0 {
            lacks.push(format!(
                "sizes of some of them are not known exactly: allocated may be up to {} more",
                bytes(history.uncertainty)
            ));
        }
        fix = Some(Fix::new(Grade::Safe, "record from the start, with room for more events").code(record));
    }
    let allocations = context.actions[Action::Alloc as usize];
    if allocations > 0 && context.without_stack == allocations {
        lacks.push("no event has a stack: lines and kinds are unknown".to_owned());
        fix = Some(Fix::new(Grade::Safe, "record stacks").code(record));
    }
    if history.contradictions > 0 {
        lacks.push(format!("{} contradict each other", plural(history.contradictions, "event")));
    }
    if history.mismatches > 0 {
        lacks.push(format!(
            "{} alive at the end have another size than worked out: allocated bytes are approximate",
            plural(history.mismatches, "block")
        ));
    }
    if lacks.is_empty() {
        return Vec::new();
    }
    let mut finding = Finding::new(CODE, Severity::Note, "The recording is incomplete");
    finding.details = lacks;
    finding.fixes.extend(fix);
    vec![finding]
}
