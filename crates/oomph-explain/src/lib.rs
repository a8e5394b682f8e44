//! Why memory ran out, and what to do.
//!
//! [`explain`] takes a recording and gives an [`Explanation`]: peaks, what was alive and what it was, steps,
//! out-of-memories, waste, and findings. It is data; rendering is another crate's business, and so is reading.
//!
//! Arrows inside: `sources` (what a stack means) ← `kinds` (what memory is), `steps` ← `oom`, `waste` ← `observed` (all of it, for
//! one device) ← `growth`, `kept`, `logits`, `what_if` (replays it with changes) ← `context` ← `fitting` (what `oomph.fit` would do) ← `rules` (one thing each) ← `explanation` (the result) ← `ranks` (of one run, compared).
//!
//! Design constraints: no I/O, no clock, no randomness: the same recording gives the same explanation; every number
//! says how it came about; what is not known is said to be unknown.

mod advice;
mod calls;
mod cells;
mod context;
mod detail;
mod diff;
mod explanation;
mod finding;
mod fitting;
mod forwards;
mod growth;
mod host;
mod kept;
mod kinds;
mod limits;
mod line;
mod logits;
mod observed;
mod oom;
pub mod ranks;
pub mod rules;
mod segments;
mod sources;
mod steps;
mod timeline;
mod verdict;
mod waste;
mod what_if;

pub use calls::{Call, DetailFrame, DetailLine, DetailStack, Origins};
pub use detail::{Annotated, Detail, SegmentChange};
pub use diff::{Change, DeviceDiff, Diff, HostDiff, diff, grown};
pub use explanation::{
    Completeness, Details, DeviceExplanation, Explanation, KindBytes, LineBytes, OomExplanation, OomState,
    StackBytes, StepsExplanation, explain, explain_in_detail, explain_over_time, findings_of_processes,
};
pub use finding::{Basis, Cause, Finding, Fix, Grade, Patch, Place, Saving, Severity, Weight, Where};
pub use host::{
    HostCount, HostDetail, HostExplanation, HostGrownSteps, HostGrowth, HostKind, HostKindBytes, HostLine,
    HostLineWithin, HostStackBytes, HostStackHeld, HostWithin, host_by_stack, host_within,
};
pub use kinds::Kind;
pub use oom::{Outcome, Reason, fatal_out_of_memory};
pub use segments::SegmentLines;
pub use steps::Witness;
pub use timeline::{Column, Timeline};
pub use waste::{Waste, main_stream};
