//! `oomph predict --model`: a model by its name, without a script.

use crate::Outcome;
use crate::arguments::Format;
use crate::outputs;
use crate::predicting::{claim, outcome, write_recording};
use crate::printer::Printer;
use clap::{Args, ValueEnum};
use oomph_child::Stopper;
use oomph_gpus::{Catalogue, Gpu};
use oomph_predict::model::{self, Asked, CardSizes, Model, ModelError, Named, Way, has_bfloat16};
use oomph_predict::prediction::{PredictError, Prediction, Verdict};
use oomph_predict::run::{Program, RunError, Runner, Voice};
use oomph_report::TextOptions;
use oomph_report::model::{self as report, NamedModel};
use oomph_report::predict::NamedPrediction;
use std::path::{Path, PathBuf};

/// Steps that are run: the peak is in the second.
const STEPS: u32 = 3;
/// Said where no process said why.
const NOTHING_LEFT: &str = "the process that reads it ended without a word";
/// Cards that people rent and buy, for those who name one and may take another.
const USUAL: [&str; 10] = [
    "rtx-3060-12gb",
    "t4",
    "l4",
    "rtx-4090",
    "rtx-5090",
    "a100-40gb",
    "l40s",
    "a100-80gb",
    "h100-sxm",
    "h200",
];

/// What is asked of a model.
#[derive(Args)]
pub(crate) struct ByModel {
    /// A model in place of a script: a name of the Hub, or a folder with its config.json. The usual script for it is written, run and printed; of the Hub only
    /// config.json is asked for, and weights are neither downloaded nor made
    #[arg(long, value_name = "NAME", conflicts_with_all = ["max", "sweep", "ranks", "longest", "until", "fix"])]
    pub(crate) model: Option<String>,
    /// How the model is used [default: lora]
    #[arg(long, value_enum, value_name = "WAY", requires = "model")]
    pub(crate) train: Option<WayName>,
    /// Sequences in a batch [default: 1]
    #[arg(long, value_name = "N", requires = "model", value_parser = clap::value_parser!(u64).range(1..=65536))]
    pub(crate) batch: Option<u64>,
    /// Tokens in a sequence [default: 2048, or what the model takes at most]
    #[arg(long, value_name = "N", requires = "model", value_parser = clap::value_parser!(u64).range(16..=1_048_576))]
    pub(crate) sequence: Option<u64>,
    /// Write the script there, instead of printing it
    #[arg(long, value_name = "FILE", requires = "model")]
    pub(crate) script_out: Option<PathBuf>,
}

impl ByModel {
    /// An option that says something of a model, where none is named: clap lets it pass beside a script.
    pub(crate) fn without_model(&self) -> Option<&'static str> {
        let given = [
            ("--train", self.train.is_some()),
            ("--batch", self.batch.is_some()),
            ("--sequence", self.sequence.is_some()),
            ("--script-out", self.script_out.is_some()),
        ];
        let found = given.iter().find(|(_, is_given)| *is_given && self.model.is_none());
        found.map(|(name, _)| *name)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WayName {
    /// Adapters are trained beside weights in 4 bits
    Qlora,
    /// Adapters are trained beside weights in 16 bits
    Lora,
    /// All weights are trained
    Full,
    /// Nothing is trained: text is generated
    Infer,
}

impl From<WayName> for Way {
    fn from(name: WayName) -> Way {
        match name {
            WayName::Qlora => Way::Qlora,
            WayName::Lora => Way::Lora,
            WayName::Full => Way::Full,
            WayName::Infer => Way::Infer,
        }
    }
}

pub(crate) struct Question<'a> {
    pub(crate) by_model: &'a ByModel,
    pub(crate) steps: Option<u32>,
    /// One card, or several.
    pub(crate) gpu: Option<Gpu>,
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) output: Option<&'a Path>,
    pub(crate) force: bool,
    pub(crate) no_recording: bool,
    pub(crate) format: Format,
    pub(crate) options: TextOptions,
}

/// `second`: for what is run at the same time.
pub(crate) fn run(
    question: &Question,
    runner: Runner,
    second: Runner,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    match answer(question, runner, second, printer) {
        Err(error) => match error.downcast::<ModelError>() {
            Ok(ModelError::Refused { why, hint }) => {
                printer.error(&oomph_words::harmless(&why));
                printer.hint(&oomph_words::harmless(&hint));
                Ok(Outcome::Failed)
            }
            // Whoever sent it knows why there is no result.
            Ok(ModelError::Run(RunError::Interrupted { signal })) => Ok(Outcome::Interrupted(signal)),
            Ok(error) => Err(error.into()),
            Err(error) => match error.downcast::<PredictError>() {
                Ok(PredictError::Run(RunError::Interrupted { signal })) => Ok(Outcome::Interrupted(signal)),
                Ok(error) => Err(error.into()),
                Err(error) => Err(error),
            },
        },
        outcome => outcome,
    }
}

fn answer(
    question: &Question,
    runner: Runner,
    second: Runner,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let by_model = question.by_model;
    let asked = model::Question {
        model: by_model.model.as_deref().unwrap_or_default(),
        way: by_model.train.map_or(Way::Lora, Way::from),
        batch: by_model.batch.unwrap_or(1),
        sequence: by_model.sequence,
    };
    let named = Named::new(&asked)?;
    if let Some(path) = by_model.script_out.as_deref() {
        let written: Vec<&Path> = [Some(path), question.output].into_iter().flatten().collect();
        outputs::Outputs { inputs: &[], force: question.force }.check(&written)?;
    }
    let Some(gpu) = &question.gpu else {
        let waiting = printer.waiting("reading the model, and trying batches and sequences on each card");
        let cards = over_named(&named, &runner, &question.gpus);
        drop(waiting);
        let cards = cards.inspect_err(|_| keep_script(question, &named))?;
        let fits = cards.iter().any(|card| card.fits);
        let model = named.read()?.ok_or_else(|| ModelError::NotRead(NOTHING_LEFT.to_owned()))?;
        let script = write_script(question, &model)?;
        show(
            question,
            &NamedModel { model: &model, prediction: None, cards: &cards, script: script.as_deref() },
            printer,
        )?;
        return Ok(if fits { Outcome::Fine } else { Outcome::Findings });
    };
    let program = named.program(gpu, question.steps.unwrap_or(STEPS));
    let claim = match question.no_recording {
        true => None,
        false => claim(question.output, Path::new(&program.target), gpu, &[], question.force, printer)?,
    };
    let waiting = printer.waiting("reading the model, running the script, and other batches and sequences");
    let answer = both(&named, &program, gpu, runner, second);
    drop(waiting);
    let (model, mut prediction, cards) = answer.inspect_err(|_| keep_script(question, &named))?;
    let script = write_script(question, &model)?;
    prediction.program = model.title();
    let cards = cards.unwrap_or_else(|error| {
        printer.warning(&format!("{error:#}"));
        Vec::new()
    });
    if prediction.verdict == Verdict::DoesNotFit {
        prediction.needs = cards.first().map(|card| card.needs);
    }
    let written = claim.and_then(|claim| write_recording(&claim, &prediction, printer));
    let named =
        NamedPrediction { prediction: &prediction, recording: written.as_deref(), smaller: None, ram: None };
    show(
        question,
        &NamedModel { model: &model, prediction: Some(named), cards: &cards, script: script.as_deref() },
        printer,
    )?;
    Ok(outcome(&[&prediction]))
}

/// Where it is asked for. Gives the file's name.
fn write_script(question: &Question, model: &Model) -> anyhow::Result<Option<String>> {
    let Some(path) = &question.by_model.script_out else { return Ok(None) };
    outputs::write_whole(path, question.force, |out| {
        out.write_all(model.script.as_bytes())?;
        Ok(())
    })?;
    Ok(Some(path.display().to_string()))
}

/// Whatever fails after that: who asked for the script has it.
fn keep_script(question: &Question, named: &Named) {
    if let Ok(Some(model)) = named.read() {
        let _ = write_script(question, &model);
    }
}

/// Ends what waits for a script, if whoever was to write it ends without one.
struct Writer<'a> {
    named: &'a Named,
    waiting: Stopper,
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        if !self.named.is_written() {
            self.waiting.stop();
        }
    }
}

/// Whether the script fits the card, and at the same time, on another virtual card, what else does. That other run also writes the script, and the first
/// imports meanwhile what it will need.
fn both(
    named: &Named,
    program: &Program,
    gpu: &Gpu,
    runner: Runner,
    second: Runner,
) -> anyhow::Result<(Model, Prediction, anyhow::Result<Vec<CardSizes>>)> {
    let catalogue = Catalogue::load()?;
    // Who has no bfloat16 looks for a card that has.
    let others = USUAL.iter().filter_map(|name| catalogue.find(name).ok());
    let others: Vec<&Gpu> = others.filter(|card| card.name != gpu.name && has_bfloat16(card)).collect();
    // Weights that are trained are of another type where there is no bfloat16; all else is of the same size.
    let (alike, unlike) = match has_bfloat16(gpu) || named.way() != Way::Full {
        true => (others, Vec::new()),
        false => (Vec::new(), others),
    };
    let asked = |gpu| Asked { gpu, is_run: false };
    let first = Asked { gpu, is_run: true };
    let alike: Vec<Asked> = std::iter::once(first).chain(alike.into_iter().map(asked)).collect();
    let unlike: Vec<Asked> = unlike.into_iter().map(asked).collect();
    let runner = runner.awaiting(named.awaited());
    let (waiting, other) = (runner.stopper(), second.stopper());
    std::thread::scope(|scope| {
        let sizes = scope.spawn(move || {
            let _writer = Writer { named, waiting };
            named.sizes(&second, gpu, &alike)
        });
        let prediction = Prediction::make(&runner, program, gpu, None, Voice::Kept);
        let is_known = prediction.as_ref().is_ok_and(|one| one.verdict != Verdict::Unknown);
        if !is_known {
            other.stop();
        }
        let further = match unlike.first() {
            Some(first) if is_known => named.sizes(&runner, first.gpu, &unlike),
            _ => Ok(Vec::new()),
        };
        let sizes = sizes.join().unwrap_or_else(|_| Err(ModelError::Sizes("it ended at once".to_owned())));
        let Some(model) = named.read()? else {
            // Each ends the other: why is what the first of them says.
            return Err(match (sizes, prediction) {
                (Err(ModelError::Run(RunError::Interrupted { .. })), Err(error)) => error.into(),
                (Err(ModelError::Run(RunError::Interrupted { .. })), Ok(unknown)) => {
                    ModelError::NotRead(unknown.error.unwrap_or_else(|| NOTHING_LEFT.to_owned())).into()
                }
                (Err(error), _) => error.into(),
                (_, Err(error)) => error.into(),
                _ => ModelError::NotRead(NOTHING_LEFT.to_owned()).into(),
            });
        };
        let prediction = prediction?;
        if !is_known {
            return Ok((model, prediction, Ok(Vec::new())));
        }
        let cards = sizes.and_then(|mut cards| {
            if let Some(first) = cards.first_mut() {
                first.settle(&prediction, &model);
            }
            cards.extend(further?);
            Ok(cards)
        });
        match cards {
            Err(error @ ModelError::Run(RunError::Interrupted { .. })) => Err(error.into()),
            cards => Ok((model, prediction, cards.map_err(anyhow::Error::from))),
        }
    })
}

/// Cards that were named: what fits is run for each. Those of one architecture run in one process.
fn over_named(named: &Named, runner: &Runner, gpus: &[Gpu]) -> anyhow::Result<Vec<CardSizes>> {
    let mut sizes: Vec<Option<CardSizes>> = vec![None; gpus.len()];
    for first in gpus {
        let alike: Vec<usize> = (0..gpus.len())
            .filter(|at| sizes[*at].is_none() && gpus[*at].compute_capability == first.compute_capability)
            .collect();
        if alike.is_empty() {
            continue;
        }
        let cards: Vec<Asked> = alike.iter().map(|at| Asked { gpu: &gpus[*at], is_run: true }).collect();
        for (at, found) in alike.iter().zip(named.sizes(runner, first, &cards)?) {
            sizes[*at] = Some(found);
        }
    }
    Ok(sizes.into_iter().flatten().collect())
}

fn show(question: &Question, named: &NamedModel, printer: &mut Printer) -> anyhow::Result<()> {
    printer.answer(question.format, |format| match format {
        Format::Text => report::text(named, question.options),
        Format::Json => report::json(named),
        Format::Markdown => report::markdown(named, question.options.lines),
    })?;
    Ok(())
}
