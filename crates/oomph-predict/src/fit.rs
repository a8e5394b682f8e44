//! Asks for a plan that makes a script's training step fit a card: the script runs on a virtual card with unlimited memory until it
//! has stepped twice, and the search of `oomph.fit` runs on its model in the same process.

use crate::prediction::unlimited;
use crate::run::{Program, RunError, Runner, Voice};
use oomph_gpus::Gpu;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Clone, Debug)]
pub struct Question<'a> {
    pub gpu: &'a Gpu,
    /// What may be used of it, and how that was written; all of it without.
    pub budget: Option<(u64, &'a str)>,
    /// What may change the numbers.
    pub allow: &'a [String],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Fits {
    #[serde(rename = "as it is")]
    AsItIs,
    #[serde(rename = "with a plan")]
    WithAPlan,
    #[serde(rename = "not at all")]
    NotAtAll,
}

/// What the script itself took.
#[derive(Clone, Debug, Deserialize)]
pub struct Script {
    /// The most that PyTorch reserved.
    pub reserved: u64,
    /// Optimizer steps that were run.
    pub steps: u64,
    /// Bytes on the card that do not belong to the step.
    pub held: u64,
}

/// What there is for PyTorch.
#[derive(Clone, Debug, Deserialize)]
pub struct Room {
    /// In all, the CUDA context included.
    pub budget: u64,
    /// What PyTorch may reserve.
    pub limit: u64,
    /// What is kept free of it.
    pub margin: u64,
}

/// Whether lines come or go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// Text that comes before the line.
    Add,
    /// Lines that go.
    Remove,
}

/// A change to the script.
#[derive(Clone, Debug, Deserialize)]
pub struct Line {
    pub file: String,
    pub line: u64,
    pub end_line: u64,
    /// Whether they come or go.
    pub kind: Change,
    /// What comes, or what goes.
    pub text: String,
}

/// A plan for a step.
#[derive(Clone, Debug, Deserialize)]
pub struct Planned {
    pub fits: Fits,
    /// What the script took.
    pub script: Script,
    pub room: Room,
    /// The least budget in which anything would fit; not asked for where it fits as it is.
    pub least_budget: Option<u64>,
    /// All plans of interest, as `oomph.fit` has them.
    pub plan: Value,
    /// What is done, in words.
    pub summary: String,
    /// From the plain step to the plan, one technique a line.
    pub table: Vec<String>,
    /// Where nothing fits: why, and what else there is.
    pub does_not_fit: Vec<String>,
    /// How the loss and the batch are written.
    pub loss: Value,
    /// What to change in the script.
    pub lines: Vec<Line>,
    /// Where things happen.
    pub places: Value,
    /// What was seen.
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Refused {
    pub why: String,
    /// What to write by hand.
    pub by_hand: String,
    /// Where things happen, as far as they were seen.
    pub places: Value,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Answer {
    Planned(Box<Planned>),
    Refused(Refused),
}

impl Planned {
    /// What the chosen plan reserves: the most, in bytes.
    pub fn reserved(&self) -> Option<u64> {
        self.plan["chosen"]["reserved"].as_u64()
    }
}

/// Runs the script and asks.
pub fn fit(
    runner: &Runner,
    program: &Program,
    question: &Question,
    voice: Voice,
) -> Result<Answer, RunError> {
    let gpu = question.gpu;
    let task = json!({
        "card": {
            "name": gpu.name,
            "title": gpu.title,
            "memory": gpu.memory,
            "context": gpu.context,
            "compute_capability": gpu.compute_capability,
            "sms": gpu.sms,
        },
        "budget": question.budget.map(|(size, _)| size),
        "memory_text": question.budget.map(|(_, text)| text),
        "allow": question.allow,
    });
    let ran = runner.run_fit(program, &unlimited(gpu), voice, &task)?;
    let path = ran.left("fit.json");
    let bytes = std::fs::read(&path).map_err(|error| RunError::File { path, error })?;
    Ok(serde_json::from_slice(&bytes)?)
}
