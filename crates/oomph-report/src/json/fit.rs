//! What `oomph fit` prints. The plan, the loss and the places are the package's (`python/oomph/fitting`), handed on as they are.

use super::document;
use crate::fit::NamedPlan;
use oomph_predict::fit::{self as model, Change, Fits};
use serde::Serialize;
use serde_json::Value;

/// A plan, or that there is none.
pub(crate) fn plan(named: &NamedPlan) -> String {
    let planned = named.planned;
    document(Plan {
        program: named.program,
        gpu: &named.gpu.name,
        verdict: match planned.fits {
            Fits::AsItIs => "as_it_is",
            Fits::WithAPlan => "with_a_plan",
            Fits::NotAtAll => "not_at_all",
        },
        fits: planned.fits != Fits::NotAtAll,
        budget: planned.room.budget,
        limit: planned.room.limit,
        margin: planned.room.margin,
        least_budget: planned.least_budget,
        script: Script {
            reserved: planned.script.reserved,
            steps: planned.script.steps,
            held: planned.script.held,
        },
        summary: &planned.summary,
        plan: &planned.plan,
        loss: &planned.loss,
        lines: planned.lines.iter().map(Line::of).collect(),
        places: &planned.places,
        notes: &planned.notes,
    })
}

/// That it could not be found out.
pub(crate) fn refused(program: &str, gpu: &oomph_gpus::Gpu, refused: &model::Refused) -> String {
    document(Refused {
        program,
        gpu: &gpu.name,
        verdict: "unknown",
        fits: None,
        why: &refused.why,
        by_hand: &refused.by_hand,
        places: &refused.places,
    })
}

#[derive(Serialize)]
struct Plan<'a> {
    /// The script and its arguments, as they would be typed.
    program: &'a str,
    /// The card's name in the catalogue; `card` if only a budget was named.
    gpu: &'a str,
    /// **Stable.** `as_it_is`, `with_a_plan` or `not_at_all`.
    verdict: &'static str,
    /// **Stable.** As it is or with the plan.
    fits: bool,
    /// **Stable.** What may be used of the card, the CUDA context included.
    budget: u64,
    /// **Stable.** What of it PyTorch may reserve.
    limit: u64,
    /// **Stable.** What of that is kept free.
    margin: u64,
    /// **Stable.** The least budget in which any plan would fit; `null` if it fits as it is.
    least_budget: Option<u64>,
    /// **Stable.** The script as it is.
    script: Script,
    /// What is done, in words; if nothing fits, what the most frugal plan does.
    summary: &'a str,
    /// See below.
    plan: &'a Value,
    /// How `oomph.fit` is to be called, see below.
    loss: &'a Value,
    /// **Stable.** What to change in the script, in the order of the file. Empty for a loop inside a library.
    lines: Vec<Line<'a>>,
    /// Where the script does what, see below.
    places: &'a Value,
    /// What was seen that must be known, in words.
    notes: &'a [String],
}

#[derive(Serialize)]
struct Script {
    /// The most that PyTorch reserved.
    reserved: u64,
    /// Optimizer steps that were run.
    steps: u64,
    /// Bytes on the card that do not belong to the step.
    held: u64,
}

#[derive(Serialize)]
struct Line<'a> {
    /// The file.
    file: &'a str,
    /// The first line.
    line: u64,
    /// The last line.
    end_line: u64,
    /// `add`: `text` comes before `line`; `remove`: the lines from `line` to `end_line`, which are `text`, go.
    kind: &'static str,
    /// The lines themselves.
    text: &'a str,
}

impl<'a> Line<'a> {
    fn of(line: &'a model::Line) -> Self {
        Self {
            file: &line.file,
            line: line.line,
            end_line: line.end_line,
            kind: if line.kind == Change::Add { "add" } else { "remove" },
            text: &line.text,
        }
    }
}

#[derive(Serialize)]
struct Refused<'a> {
    /// The script and its arguments, as they would be typed.
    program: &'a str,
    /// The card's name in the catalogue; `card` if only a budget was named.
    gpu: &'a str,
    /// **Stable.** `unknown`.
    verdict: &'static str,
    /// **Stable.** Always `null`.
    fits: Option<bool>,
    /// Why it could not be found out.
    why: &'a str,
    /// What to write instead, or nothing.
    by_hand: &'a str,
    /// Where the script does what, see below.
    places: &'a Value,
}
