//! What `oomph check` prints.

use super::document;
use crate::shared::{self, CheckLimit};
use serde::Serialize;

/// The outcome of `check`, of one recording or of several.
pub fn checks(checks: &[shared::Check]) -> String {
    match checks {
        [check] => document(Check::of(check)),
        several => document(Checks {
            passed: several.iter().all(|check| check.passed),
            checks: several.iter().map(Check::of).collect(),
        }),
    }
}

#[derive(Serialize)]
struct Checks<'a> {
    /// Whether all of them passed.
    passed: bool,
    /// One for each file; two for a file that is checked for both, the device and RAM.
    checks: Vec<Check<'a>>,
}

#[derive(Serialize)]
struct Check<'a> {
    /// The file, as it was given.
    file: &'a str,
    /// Whether the peak is at or below the limit and the program did not die.
    passed: bool,
    /// Which peak: `reserved`, or with `--peak allocated` `allocated`; of `--max-ram` `ram` (as the kernel counts the process's own), or `ram_asked` (what was asked for, where
    /// the kernel's count is not known).
    metric: &'static str,
    /// The peak; of devices, the highest of all.
    peak: u64,
    /// The most that passes.
    limit: u64,
    /// The program ran out of memory and died, on any device: what it needs is not known.
    died: bool,
    /// With `--baseline`.
    baseline: Option<Baseline>,
}

impl<'a> Check<'a> {
    fn of(check: &'a shared::Check) -> Self {
        Self {
            file: &check.file,
            passed: check.passed,
            metric: check.metric.key(),
            peak: check.peak,
            limit: check.most(),
            died: check.died,
            baseline: match check.limit {
                CheckLimit::Most(_) => None,
                CheckLimit::Baseline { peak, tolerance, .. } => Some(Baseline { peak, tolerance }),
            },
        }
    }
}

#[derive(Serialize)]
struct Baseline {
    /// Its peak.
    peak: u64,
    /// The share by which that may be exceeded: 0.02 for 2 %.
    tolerance: f64,
}
