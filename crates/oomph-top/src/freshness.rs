//! Whether what a program under oomph said is true still.

use oomph_host::Process;

/// Programs under oomph say something every five seconds at least: what is older than this is no longer so.
const FRESH: u64 = 15_000;

/// How long ago a program under oomph has said what it said, in milliseconds, if that is too long.
pub(crate) fn said_ago(process: &Process, now: u64) -> Option<u64> {
    let age = now.saturating_sub(process.inside.as_ref()?.time);
    (age > FRESH).then_some(age)
}
