//! What `oomph plan` prints.

use super::document;
use crate::plan::{Fit, Planned, launches};
use oomph_predict::plan::{Found, Row};
use serde::Serialize;

/// All that was found.
pub(crate) fn plan(planned: &Planned) -> String {
    document(Plan {
        fits: planned.best().is_some(),
        ways: planned.ways.iter().map(|way| way.words.as_str()).collect(),
        rows: planned.rows.iter().map(|row| Entry::of(planned, row)).collect(),
    })
}

#[derive(Serialize)]
struct Plan<'a> {
    /// **Stable.** Whether it fits any of the cards.
    fits: bool,
    /// The ways that were tried, as they are typed; one empty text where the script chooses nothing.
    ways: Vec<&'a str>,
    /// **Stable.** One for each way and card, the best first: by cards, then by bytes that are sent, then by time, then by memory; what does not fit comes last.
    rows: Vec<Entry<'a>>,
}

#[derive(Serialize)]
struct Entry<'a> {
    /// **Stable.** The card's name in `oomph gpus`.
    gpu: &'a str,
    /// **Stable.** The way, one of `ways`.
    way: &'a str,
    /// **Stable.** The least number of cards that it fits; `null` if it does not.
    cards: Option<u32>,
    /// How many machines those are in.
    machines: Option<u32>,
    /// With more than these it was not tried; only where it does not fit.
    tried: Option<u32>,
    /// Why it does not run so; only where it fails.
    error: Option<&'a str>,
    /// Whether it may fit all the same, by values that only a GPU would have; only where it is not known to fit.
    unsure: Option<bool>,
    /// What was not run, in words: there, more may be taken; only where it fits.
    not_reached: Option<&'static str>,
    /// What may make the numbers wrong.
    doubts: Vec<&'a str>,
    /// **Stable.** What the rank that takes the most takes, of the fewest cards that it fits, or of the most that were tried.
    total: Option<u64>,
    /// Of it, in tensors.
    allocated: Option<u64>,
    /// Of it, taken by PyTorch.
    reserved: Option<u64>,
    /// What stays free of the card.
    margin: Option<i64>,
    /// Whether that is within what predictions were seen to be wrong by.
    close: Option<bool>,
    /// Bytes that a rank sends in a step.
    sent: Option<Sent>,
    /// How long a step may take: an estimate.
    seconds: Option<Range>,
    /// What is typed to start it, or goes into a file.
    launch: Option<Launch>,
}

#[derive(Serialize)]
struct Sent {
    /// To ranks of the same machine.
    within: u64,
    /// Over groups that span machines.
    between: u64,
}

#[derive(Serialize)]
struct Range {
    /// Over fast links, beside the work.
    low: f64,
    /// Over slow ones, after it.
    high: f64,
}

#[derive(Serialize)]
struct Launch {
    /// A command; of several machines, on each of them, with the first one's address in `HEAD`. `null` where the program starts its ranks itself.
    torchrun: Option<String>,
    /// The command of a program that starts its ranks itself.
    as_it_is: Option<String>,
    /// The header of a batch script.
    slurm: Option<String>,
    /// Of a task's YAML; `null` where SkyPilot does not know the card.
    skypilot: Option<String>,
    /// The specification of a pod, in YAML; of several machines, that of a job.
    kubernetes: Option<String>,
    /// Python; `null` where the program starts its ranks itself.
    ray: Option<String>,
}

impl Launch {
    fn of(fit: &Fit) -> Self {
        let all = launches(fit);
        let find = |name: &str| all.iter().find(|(one, _)| *one == name).map(|(_, typed)| typed.clone());
        Self {
            torchrun: find("torchrun"),
            as_it_is: find("as it is"),
            slurm: find("Slurm"),
            skypilot: find("SkyPilot"),
            kubernetes: find("Kubernetes"),
            ray: find("Ray Train"),
        }
    }
}

impl<'a> Entry<'a> {
    fn of(planned: &Planned<'a>, row: &'a Row) -> Self {
        let none = Entry {
            gpu: &row.gpu.name,
            way: planned.ways.get(row.way).map_or("", |way| way.words.as_str()),
            cards: None,
            machines: None,
            tried: None,
            error: None,
            unsure: None,
            not_reached: None,
            doubts: Vec::new(),
            total: None,
            allocated: None,
            reserved: None,
            margin: None,
            close: None,
            sent: None,
            seconds: None,
            launch: None,
        };
        match (planned.fits(row), &row.found) {
            (Some(fit), _) => Entry {
                cards: Some(fit.ranks.size),
                machines: Some(fit.machines()),
                not_reached: fit.worst.not_reached(),
                doubts: fit.worst.uncertain.iter().map(|one| one.why.as_str()).collect(),
                total: Some(fit.worst.total),
                allocated: Some(fit.worst.device.peak_allocated),
                reserved: Some(fit.worst.device.peak_reserved),
                margin: fit.worst.margin(),
                close: Some(fit.worst.is_close()),
                sent: fit
                    .worst
                    .step
                    .map(|step| Sent { within: step.sent_within, between: step.sent_between }),
                seconds: fit.seconds().map(|one| Range { low: one.low, high: one.high }),
                launch: Some(Launch::of(&fit)),
                ..none
            },
            (None, Found::TooLarge { ranks, total, unsure, .. }) => {
                Entry { tried: Some(ranks.size), total: Some(*total), unsure: Some(*unsure), ..none }
            }
            (None, Found::Fails(error)) => Entry { error: Some(error), ..none },
            (None, Found::Fits { .. }) => none,
        }
    }
}
