//! What `oomph tune` prints.

use super::document;
use super::replay::{Memory, Replayed};
use crate::replay::{fits, margin, past_death};
use crate::tune::{NamedTuning, advice, line_to_paste};
use oomph_replay::tune::{self as model, Fit};
use serde::Serialize;

/// What was tried, and what is best.
pub(crate) fn tuning(named: &NamedTuning) -> String {
    let tuning = named.tuning;
    let least = |trial: &model::Trial| trial.least.map(|least| least.bytes);
    document(Tuning {
        file: named.name,
        device: named.device,
        events: named.events,
        torch: &named.version,
        memory: tuning.memory.map(Memory::of),
        lower_bound: tuning.lower_bound,
        best: tuning.best_trial().map(|best| Best {
            conf: &best.conf,
            line: line_to_paste(tuning),
            least_memory: least(best),
        }),
        advice: advice(named).join(" "),
        least_memory: tuning.best_trial().or(tuning.recorded()).and_then(least),
        trials: (tuning.trials.iter().zip(&named.fits))
            .map(|(trial, &fit)| Trial::of(trial, fit, named.died))
            .collect(),
    })
}

#[derive(Serialize)]
struct Tuning<'a> {
    /// The file, as it was given.
    file: &'a str,
    /// The device's ordinal.
    device: u32,
    /// How many events it has.
    events: u64,
    /// The version of PyTorch that was replayed.
    torch: &'a str,
    /// What was asked about, or what the recording ran short of.
    memory: Option<Memory>,
    /// What the program asks for at its peak: no allocator needs less.
    lower_bound: u64,
    /// **Stable.** `null` if no setting is better than the recorded ones, or none fits.
    best: Option<Best<'a>>,
    /// What the text says first.
    advice: String,
    /// Of the best, or of the recorded settings.
    least_memory: Option<u64>,
    /// The recorded settings first.
    trials: Vec<Trial<'a>>,
}

#[derive(Serialize)]
struct Best<'a> {
    /// The settings.
    conf: &'a str,
    /// The line to paste.
    line: Option<String>,
    /// As for `replay`.
    least_memory: Option<u64>,
}

#[derive(Serialize)]
struct Trial<'a> {
    /// The settings.
    conf: &'a str,
    /// Whether they are the recorded ones.
    recorded: bool,
    /// As for `replay`; `null` without a memory.
    fits: Option<&'static str>,
    /// As for `replay`; `null` without a memory.
    past_death: Option<bool>,
    /// As for `replay`; `null` without a memory.
    margin: Option<i64>,
    /// As for `replay`.
    least_memory: Option<u64>,
    /// As for `replay`.
    least_memory_retries: Option<u64>,
    /// In the memory that was asked about.
    in_memory: Option<Replayed<'a>>,
    /// In as much memory as it takes.
    #[serde(flatten)]
    plenty: Replayed<'a>,
}

impl<'a> Trial<'a> {
    fn of(trial: &'a model::Trial, fit: Option<Fit>, died: bool) -> Self {
        Self {
            conf: &trial.conf,
            recorded: trial.recorded,
            fits: fits(fit, died),
            past_death: past_death(fit, died),
            margin: trial.asked.as_ref().and_then(|asked| margin(asked, trial.least)),
            least_memory: trial.least.map(|least| least.bytes),
            least_memory_retries: trial.least.map(|least| least.retries),
            in_memory: trial.asked.as_ref().map(Replayed::of),
            plenty: Replayed::of(&trial.plenty),
        }
    }
}
