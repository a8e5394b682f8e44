//! What `--fix` adds to what `oomph explain` and `oomph predict` print.

use super::predict::ended;
use super::pretty;
use crate::fix::Offer;
use oomph_predict::patch as model;
use oomph_predict::prediction::Verdict;
use serde::Serialize;
use serde_json::Value;

/// What another verb prints, with the change under `patch`.
pub(crate) fn with_patch(report: &str, offer: &Offer) -> String {
    pretty(&Patched { report: serde_json::from_str(report).unwrap_or_default(), patch: Patch::of(offer) })
}

/// What another verb prints, and why no change is offered.
pub(crate) fn without_patch(report: &str, why: &str) -> String {
    pretty(&Unpatched {
        report: serde_json::from_str(report).unwrap_or_default(),
        patch: None,
        no_patch: why,
    })
}

#[derive(Serialize)]
struct Patched<'a> {
    #[serde(flatten)]
    report: Value,
    patch: Patch<'a>,
}

#[derive(Serialize)]
struct Unpatched<'a> {
    #[serde(flatten)]
    report: Value,
    /// No change is offered.
    patch: Option<Patch<'a>>,
    /// Why not: the program runs with none that was tried.
    no_patch: &'a str,
}

#[derive(Serialize)]
struct Patch<'a> {
    /// **Stable.** The file to change, from the current folder.
    file: &'a str,
    /// **Stable.** The change as a unified diff; of a notebook, that of the cell.
    diff: &'a str,
    /// Which of several ways to write the change, from 1: what `--way` takes.
    way: usize,
    /// **Stable.** What came of it on the virtual GPU; `null` if it was not tried.
    checked: Option<Checked<'a>>,
    /// Why it was not tried.
    not_checked: Option<&'a str>,
}

impl<'a> Patch<'a> {
    fn of(offer: &Offer<'a>) -> Self {
        Self {
            file: offer.file,
            diff: offer.diff,
            way: offer.way,
            checked: offer.checked.ok().map(Checked::of),
            not_checked: offer.checked.err(),
        }
    }
}

#[derive(Serialize)]
struct Checked<'a> {
    /// The script and its arguments, as they were run.
    program: &'a str,
    /// The card's name.
    gpu: &'a str,
    /// What it has.
    memory: u64,
    /// **Stable.** Whether it fits with the change.
    fits: bool,
    /// **Stable.** Whether it fits without the change as well: then nothing is shown by it.
    fits_without: bool,
    /// **Stable.** The most in tensors, with the change.
    allocated: u64,
    /// **Stable.** The most that PyTorch took.
    reserved: u64,
    /// **Stable.** The most in all.
    total: u64,
    /// How far it came with the change.
    reached: Reached,
    /// How far it came without.
    without: Reached,
    /// The out-of-memory that it died of with the change.
    error: Option<&'a str>,
}

impl<'a> Checked<'a> {
    fn of(checked: &'a model::Checked) -> Self {
        Self {
            program: &checked.program,
            gpu: &checked.gpu.name,
            memory: checked.gpu.memory,
            fits: checked.verdict == Verdict::Fits,
            fits_without: checked.fits_without,
            allocated: checked.allocated,
            reserved: checked.reserved,
            total: checked.total,
            reached: Reached::of(&checked.reached),
            without: Reached::of(&checked.before),
            error: checked.error.as_deref(),
        }
    }
}

#[derive(Serialize)]
struct Reached {
    /// `finished`, `stopped`, `out_of_memory`, `failed`.
    status: &'static str,
    /// Of the optimizer.
    steps: u64,
    /// Where there is no optimizer.
    forwards: u64,
    /// Stopped because its time was up.
    timed_out: bool,
}

impl Reached {
    fn of(reached: &model::Reached) -> Self {
        Self {
            status: ended(reached.status),
            steps: reached.steps,
            forwards: reached.forwards,
            timed_out: reached.timed_out,
        }
    }
}
