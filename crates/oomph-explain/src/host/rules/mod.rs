//! Rules of host memory: each looks for one thing that goes wrong with the process's own memory.
//!
//! As in `crate::rules`, which lists them: one rule a file, its header is its documentation. A rule is a function of a [`HostContext`](super::HostContext), or of what is
//! seen of several processes.

pub(crate) mod checkpoint_beside_weights;
pub(crate) mod converted_copy;
pub(crate) mod copied_into_workers;
pub(crate) mod freed_and_kept;
pub(crate) mod put_together_in_a_loop;
pub(crate) mod ram_grows;
pub(crate) mod text_as_objects;

use crate::finding::Severity;

/// Less than this is not worth a finding, nor is less than this share of the peak.
const LEAST: u64 = 16 << 20;
const LEAST_SHARE: f64 = 0.05;
/// From this share of the peak on, it is a warning.
const MUCH: f64 = 0.25;

/// Whether it is large enough to speak of.
fn matters(bytes: u64, peak: u64) -> bool {
    bytes >= LEAST && bytes as f64 >= LEAST_SHARE * peak as f64
}

fn severity(bytes: u64, peak: u64) -> Severity {
    if bytes as f64 >= MUCH * peak as f64 { Severity::Warning } else { Severity::Note }
}
