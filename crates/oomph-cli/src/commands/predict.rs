//! `oomph predict`: will it fit, before there is a GPU.

use crate::arguments::Format;
use crate::by_model::{self, ByModel};
use crate::fetching::{self, Fetching};
use crate::fixing::Choice;
use crate::memory::GpuParser;
use crate::predicting::{card, claim, outcome, program, voice, write_recording};
use crate::printer::{Printer, width};
use crate::{Outcome, fixing};
use clap::{Args, ValueEnum};
use oomph_child::Stopper;
use oomph_gpus::{Catalogue, Gpu};
use oomph_predict::patch::{self, Reached};
use oomph_predict::prediction::{PredictError, Prediction, Verdict};
use oomph_predict::ranks::{self, Asked, Pair, Ranks};
use oomph_predict::run::{Further, Kind, Program, RunError, Runner, Until, Values, Voice};
use oomph_predict::search::{self, Sweep, Tried};
use oomph_report::TextOptions;
use oomph_report::fix::{self, Offer};
use oomph_report::predict::{self, NamedPrediction};
use oomph_stage::installed::Installed;
use oomph_words::Size;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Steps of a script that is not asked for others.
const STEPS: u32 = 3;
/// Cards of a machine for training, where nobody says how many.
pub(crate) const USUAL_NODE: u32 = 8;

/// Say whether a PyTorch script fits a card, without the card
///
/// Runs the script as it is, with your own Python and PyTorch, on a virtual GPU: every allocation is PyTorch's own, kernels
/// do nothing. After a few steps, loops over data loaders end early, so that validation, a save and the next epoch are run too; then it
/// stops and says what the script takes, on which line, and whether that fits; if it does not, with PyTorch's real error. No GPU and no
/// driver are needed, but PyTorch must be a CUDA build: where it is none, --fetch-torch gets one.
///
/// "fits" is said of what was run: to the script's end, or past its validation or into its second epoch. Where none of these was
/// reached, it says "fits so far", and what was not reached. So it does where batches differ in shape, as those that are padded to
/// their longest sample: then more steps are run, until the peak has stopped growing, and --longest runs the longest batch.
///
/// The script does what it always does: it writes its files and uses the network. After its first steps nothing is saved by torch.save or
/// safetensors, and it is stopped before it writes over or deletes a file of before. --max, --sweep, --gpus and --ranks start
/// it several times. Its own output goes to stderr, the result to stdout. The recording that is written can be explained, replayed
/// and tuned like any other.
///
/// Values that a script reads back (a mask's count, a length, an error that a solver compares) are computed on the CPU when they
/// are read, within --values and --values-seconds. Where a size hangs on one that cannot be had, the answer is a range.
///
/// Exits with 0 if all that was run fits, "so far" included (of several cards or values: if any does), 1 if it does not, 2 if that
/// could not be found out.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  oomph predict --gpu t4 train.py --batch-size 8\n  oomph predict --gpu rtx-4090 -m mypackage.train --lr 1e-4\n  oomph predict --gpu t4 notebook.ipynb\n  oomph predict --gpu t4 --max --batch-size train.py          # the largest batch that fits\n  oomph predict --gpu t4 --sweep '--batch-size=1..64' train.py\n  oomph predict --gpus t4,l4,a100-40gb train.py               # one table over many cards\n  oomph predict --gpu a100-80gb --ranks 8 train_fsdp.py       # each of eight ranks\n  oomph predict --gpu h100-sxm --ranks 512 --max --batch-size train_fsdp.py\n  oomph predict --gpu t4 --longest train.py                  # and the longest batch of its loader\n  oomph predict --gpu t4 --fix train.py                      # and the lines to change\n  oomph predict --gpu t4 --fetch-torch train.py              # where PyTorch is a CPU build\n  oomph predict --gpu t4 --format json train.py | jq .fits\n\nEverything after the script's name is the script's."
)]
pub(crate) struct Arguments {
    /// The card: t4, rtx-4090, a100-80gb … (`oomph gpus` lists them)
    #[arg(long, value_name = "NAME", value_parser = GpuParser, hide_possible_values = true)]
    pub(crate) gpu: Option<Gpu>,
    /// Memory of the card, instead of what the catalogue says: 12GiB
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<Size>,
    /// Several cards, as one table: t4,l4,a100-40gb
    #[arg(long, value_name = "NAMES", value_delimiter = ',', conflicts_with_all = ["gpu", "memory", "output"])]
    pub(crate) gpus: Vec<String>,
    /// How many optimizer steps to train for at first, or forwards where there is no optimizer; 0 runs all of it, to the end [default: 3,
    /// and more where batches differ in shape, until the peak has stopped growing]
    #[arg(long, value_name = "N")]
    pub(crate) steps: Option<u32>,
    /// How far to go on after these steps
    #[arg(long, value_enum, default_value_t = UntilName::Validation)]
    pub(crate) until: UntilName,
    /// Run a step with the longest batch too: the data loader of the training is drawn through, for at most a minute, and its largest
    /// batch comes after the first steps. What the script draws by itself stays as it is
    #[arg(long)]
    pub(crate) longest: bool,
    /// Stop a run that takes longer: what was seen until then is said, and whether it fits is not known. With --model, to read the model is part of it
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) timeout: Option<u32>,
    /// Say the host's memory too, up to where the script is run; with a size, whether a machine with so much has room for it: --ram=12.7GB
    #[arg(long, value_name = "SIZE", num_args = 0..=1, require_equals = true, conflicts_with_all = ["max", "sweep", "gpus", "ranks", "model"])]
    pub(crate) ram: Option<Option<Size>>,
    /// Host memory for values that the script reads back and a GPU would have computed: masks, lengths, what it compares
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    pub(crate) values: Size,
    /// Seconds to compute such values on the CPU, all of them together
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub(crate) values_seconds: u32,
    /// Allocator settings, as PYTORCH_CUDA_ALLOC_CONF takes them
    #[arg(long, value_name = "SETTINGS")]
    pub(crate) conf: Option<String>,
    /// Find the largest value of this argument of the script that fits: --max --batch-size
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true, conflicts_with_all = ["sweep", "gpus", "output"])]
    pub(crate) max: Option<String>,
    /// The same within a range, or for a list: --sweep '--batch-size=1..512', --sweep '--batch-size=8,16,32'
    #[arg(long, value_name = "ARGUMENT=VALUES", allow_hyphen_values = true, conflicts_with_all = ["gpus", "output"])]
    pub(crate) sweep: Option<String>,
    /// Say it of each of this many ranks, as torchrun would start them. Ranks that do the same are run once: the first and the last at the same
    /// time, and more where these differ. With --max and --sweep, the rank that takes the most decides
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16384), conflicts_with_all = ["gpus", "output"])]
    pub(crate) ranks: Option<u32>,
    /// How many of the ranks are on one machine, each with a card of its own [default: 8, or all where there are fewer]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64), requires = "ranks")]
    pub(crate) per_node: Option<u32>,
    /// The interpreter that has PyTorch [default: python3, or that of the active environment]
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) fetching: Fetching,
    /// Where to write the recording [default: SCRIPT-GPU.oomph]
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: Option<PathBuf>,
    /// Write over a file that is no recording
    #[arg(long, conflicts_with_all = ["no_recording", "max", "sweep", "gpus", "ranks"])]
    pub(crate) force: bool,
    /// Write no recording
    #[arg(long, conflicts_with = "output")]
    pub(crate) no_recording: bool,
    /// Show the change of a few lines that a finding asks for, and check it: the script runs again, with the change in place of the file's text
    #[arg(long, conflicts_with_all = ["gpus", "max", "sweep", "ranks"])]
    pub(crate) fix: bool,
    /// How to show it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
    /// How many lines of the peak to list
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub(crate) lines: usize,
    #[command(flatten)]
    pub(crate) by_model: ByModel,
    /// SCRIPT is a module, as python -m takes it
    #[arg(short, long, conflicts_with = "model")]
    pub(crate) module: bool,
    /// The script, notebook or module, and its arguments
    #[arg(
        value_name = "SCRIPT",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required_unless_present = "model",
        conflicts_with = "model"
    )]
    pub(crate) script: Vec<OsString>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum UntilName {
    /// No further
    Steps,
    /// To validation and the training after it, for at most 20 seconds more
    Validation,
    /// To the program's end, with loops over data loaders cut short
    End,
}

pub(crate) fn run(arguments: &Arguments, printer: &mut Printer) -> anyhow::Result<Outcome> {
    if let Some(option) = arguments.by_model.without_model() {
        anyhow::bail!("{option} goes with --model; what is the script's stands after its name");
    }
    let program = match &arguments.by_model.model {
        Some(_) => None,
        None => Some(program(&arguments.script, arguments.module)?),
    };
    let installed = match fetching::installed(arguments.python.as_deref(), &arguments.fetching, printer)? {
        Ok(installed) => installed,
        Err(outcome) => return Ok(outcome),
    };
    let until = match arguments.until {
        UntilName::Steps => Until::Steps,
        UntilName::Validation => Until::Validation,
        UntilName::End => Until::End,
    };
    let values = Values { bytes: arguments.values.0, seconds: arguments.values_seconds, ..Values::default() };
    let further = Further {
        while_batches_vary: arguments.steps.is_none() && until != Until::Steps,
        longest: arguments.longest,
        timeout: arguments.timeout,
        ram: arguments.ram.is_some(),
        ..Further::default()
    };
    let steps = arguments.steps.unwrap_or(STEPS);
    let Some(program) = program else { return over_model(arguments, &installed, values, printer) };
    let runner = Runner::new(&installed, steps, until, arguments.conf.clone())?;
    let runner = runner.with_values(values).with(further);
    if let Some(size) = arguments.ranks {
        let ranks = ranks(size, arguments.per_node)?;
        let second = runner.beside()?;
        let stoppers = [runner.stopper(), second.stopper()];
        printer.on_cancel(move || stoppers.iter().for_each(Stopper::stop));
        let mut pair = Pair { first: runner, second };
        let outcome = match arguments.max.as_ref().or(arguments.sweep.as_ref()) {
            Some(sweep) => over_values_of_ranks(arguments, &mut pair, &program, ranks, sweep, printer),
            None => over_ranks(arguments, &mut pair, &program, ranks, printer),
        };
        return outcome.or_else(|error| explain_failure(error, &program, printer));
    }
    let stopper = runner.stopper();
    printer.on_cancel(move || stopper.stop());
    let outcome = if !arguments.gpus.is_empty() {
        over_cards(arguments, &runner, &program, printer)
    } else if let Some(sweep) = arguments.max.as_ref().or(arguments.sweep.as_ref()) {
        over_values(arguments, &runner, &program, sweep, printer)
    } else {
        one(arguments, &runner, &program, printer)
    };
    outcome.or_else(|error| explain_failure(error, &program, printer))
}

/// How many ranks there are, and how many on one machine.
fn ranks(size: u32, per_node: Option<u32>) -> anyhow::Result<Ranks> {
    let per_node = per_node.unwrap_or(size.min(USUAL_NODE));
    anyhow::ensure!(
        size.is_multiple_of(per_node),
        "{size} ranks cannot be {per_node} on each machine; --per-node says how many are"
    );
    Ok(Ranks { size, per_node })
}

/// Why there is no prediction, for who asked.
pub(crate) fn explain_failure(
    error: anyhow::Error,
    program: &Program,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    match error.downcast::<PredictError>() {
        Ok(error @ PredictError::NoGpu { .. }) => {
            printer.error(&format!("{}: {error}", program.typed()));
            if let PredictError::NoGpu { starts: Some(command) } = error {
                printer.hint(&format!("it starts: {}; predict that", oomph_words::printable(&command)));
                return Ok(Outcome::Failed);
            }
            printer.hint("does it choose its device by an argument, or stop before it uses one? give it the arguments that make it train on cuda");
            Ok(Outcome::Failed)
        }
        Ok(error @ PredictError::TimedOut) => {
            printer.error(&format!("{}: {error}", program.typed()));
            printer.hint("does it load or download something first? give it more seconds with --timeout");
            Ok(Outcome::Failed)
        }
        // Whoever sent it knows why there is no result.
        Ok(PredictError::Run(RunError::Interrupted { signal })) => Ok(Outcome::Interrupted(signal)),
        Ok(PredictError::Run(error @ RunError::Died { .. })) => {
            printer.error(&format!("{}: {error}", program.typed()));
            printer.hint("if the program runs on a real GPU, this is a defect of the virtual one: report it with the lines above");
            Ok(Outcome::Failed)
        }
        Ok(error) => Err(anyhow::Error::new(error).context(program.typed())),
        Err(error) => Err(error),
    }
}

/// Without a script: one is written for the model that was named.
fn over_model(
    arguments: &Arguments,
    installed: &Installed,
    values: Values,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let further = Further { timeout: arguments.timeout, ..Further::default() };
    // The script is ours, and ends by itself. Two run at the same time.
    let runner = || -> anyhow::Result<Runner> {
        let runner = Runner::new(installed, 0, Until::End, arguments.conf.clone())?;
        Ok(runner.with_values(values).with(further))
    };
    let (runner, second) = (runner()?, runner()?);
    let stoppers = [runner.stopper(), second.stopper()];
    printer.on_cancel(move || stoppers.iter().for_each(Stopper::stop));
    let gpus = named_gpus(arguments)?;
    let gpu = match gpus.is_empty() {
        true => Some(card(arguments.gpu.as_ref(), arguments.memory, &arguments.script)?),
        false => None,
    };
    let question = by_model::Question {
        by_model: &arguments.by_model,
        steps: arguments.steps.filter(|steps| *steps > 0),
        gpu,
        gpus,
        output: arguments.output.as_deref(),
        force: arguments.force,
        no_recording: arguments.no_recording,
        format: arguments.format,
        options: options(arguments),
    };
    by_model::run(&question, runner, second, printer)
}

/// The cards of `--gpus`.
fn named_gpus(arguments: &Arguments) -> anyhow::Result<Vec<Gpu>> {
    let catalogue = Catalogue::load()?;
    let found = arguments.gpus.iter().map(|name| catalogue.find(name).cloned().map_err(anyhow::Error::msg));
    found.collect()
}

fn options(arguments: &Arguments) -> TextOptions {
    TextOptions { lines: arguments.lines, stacks: false, width: width() }
}

fn one(
    arguments: &Arguments,
    runner: &Runner,
    program: &Program,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let gpu = card(arguments.gpu.as_ref(), arguments.memory, &arguments.script)?;
    let claim = match arguments.no_recording {
        true => None,
        false => {
            let (named, inputs) = (arguments.output.as_deref(), &arguments.script);
            claim(named, Path::new(&program.target), &gpu, inputs, arguments.force, printer)?
        }
    };
    let mut prediction = Prediction::make(runner, program, &gpu, None, voice(printer))?;
    if prediction.verdict == Verdict::DoesNotFit {
        let waiting = printer.waiting("finding out what it would need");
        prediction.ask_needs(runner, program)?;
        drop(waiting);
    }
    let written = claim.and_then(|claim| write_recording(&claim, &prediction, printer));
    let smaller = smaller_argument(program);
    let named = NamedPrediction {
        prediction: &prediction,
        recording: written.as_deref(),
        smaller: smaller.as_deref(),
        ram: arguments.ram.flatten().map(|size| size.0),
    };
    let report = |format| match format {
        Format::Text => predict::text(&named, options(arguments)),
        Format::Json => predict::json(&named),
        Format::Markdown => predict::markdown(&named, arguments.lines),
    };
    if arguments.fix {
        show_fix(arguments, runner, program, &named, report(arguments.format), printer)?;
    } else {
        printer.answer(arguments.format, report)?;
    }
    let too_much = (named.ram.zip(prediction.host.as_ref()))
        .is_some_and(|(memory, host)| host.fits(memory) == Some(false));
    Ok(if too_much { Outcome::Findings } else { outcome(&[&prediction]) })
}

/// The report, and behind it the change for the worst finding that has one, tried with the same arguments.
fn show_fix(
    arguments: &Arguments,
    runner: &Runner,
    program: &Program,
    named: &NamedPrediction,
    report: String,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let prediction = named.prediction;
    let script = (program.kind != Kind::Module).then(|| Path::new(&program.target));
    let (_, changes) = match fixing::offered(&prediction.explanation, arguments.python.as_deref(), script) {
        Ok(found) => found,
        Err(why) => {
            printer.data(&report)?;
            printer.note(&format!("no change is offered: {}", oomph_words::harmless(&why)));
            return Ok(());
        }
    };
    if arguments.format == Format::Text {
        printer.data(&report)?;
    }
    let waiting = printer.waiting("checking the change");
    let before = (Reached::of(prediction), prediction.verdict);
    let tried = patch::try_in_turn(runner, program, &prediction.gpu, &changes, before);
    drop(waiting);
    let (place, checked) = match fixing::choose(tried.map_err(Into::into))? {
        Choice::Way(place, checked) => (place, checked),
        Choice::None(why) => {
            match arguments.format {
                Format::Text => {}
                Format::Json => printer.data(&fix::json_without(&report, &why))?,
                Format::Markdown => printer.data(&report)?,
            }
            printer.note(&format!("no change is offered: {why}"));
            return Ok(());
        }
    };
    let change = &changes[place];
    let offer = Offer {
        way: place + 1,
        file: &change.shown,
        diff: &change.diff,
        checked: checked.as_deref().map_err(String::as_str),
        recording: named.recording.filter(|_| change.patch.is_some()),
    };
    printer.data(&match arguments.format {
        Format::Text => fix::diff(offer.file, offer.diff) + &fix::answer(&offer, width()),
        Format::Json => fix::json(&report, &offer),
        Format::Markdown => report + &fix::markdown(&offer),
    })?;
    Ok(())
}

fn over_values(
    arguments: &Arguments,
    runner: &Runner,
    program: &Program,
    text: &str,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let sweep = Sweep::parse(text).map_err(anyhow::Error::msg)?;
    let gpu = card(arguments.gpu.as_ref(), arguments.memory, &arguments.script)?;
    let make = |program: &Program| Prediction::make(runner, program, &gpu, None, Voice::Kept);
    let tried = search::search(program, &sweep, make, |value| {
        printer.note(&format!("trying {} {value}", sweep.argument));
    })?;
    show_values(arguments, program, &sweep, &tried, printer)
}

/// The same, by the rank that takes the most.
fn over_values_of_ranks(
    arguments: &Arguments,
    pair: &mut Pair,
    program: &Program,
    ranks: Ranks,
    text: &str,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let sweep = Sweep::parse(text).map_err(anyhow::Error::msg)?;
    let gpu = card(arguments.gpu.as_ref(), arguments.memory, &arguments.script)?;
    let make = |program: &Program| {
        let asked = Asked { voice: Voice::Kept, needs: false };
        let all = ranks::predict(pair, program, &gpu, ranks, asked, &mut |_, _| {})?;
        ranks::worst(all).ok_or_else(|| PredictError::Failed("no rank was run".to_owned()))
    };
    let tried = search::search(program, &sweep, make, |value| {
        printer.note(&format!("trying {} {value} on {} ranks", sweep.argument, ranks.size));
    })?;
    show_values(arguments, program, &sweep, &tried, printer)
}

fn show_values(
    arguments: &Arguments,
    program: &Program,
    sweep: &Sweep,
    tried: &[Tried],
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    printer.answer(arguments.format, |format| match format {
        Format::Text => predict::sweep_text(sweep, tried, &program.typed()),
        Format::Json => predict::sweep_json(sweep, tried),
        Format::Markdown => predict::sweep_markdown(sweep, tried),
    })?;
    let fits = search::largest(tried).or(search::largest_close(tried)).is_some();
    Ok(if fits { Outcome::Fine } else { Outcome::Findings })
}

fn over_cards(
    arguments: &Arguments,
    runner: &Runner,
    program: &Program,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let gpus = named_gpus(arguments)?;
    let predictions = search::over_cards(runner, program, &gpus, |gpu, first| {
        let why = if first { "" } else { ", where memory is short" };
        printer.note(&format!("running on a virtual {}{why}", gpu.title));
    })?;
    show(arguments, &predictions, printer)?;
    // Of several cards, one that serves is enough.
    let fits = predictions.iter().any(|one| one.verdict == Verdict::Fits);
    Ok(if fits { Outcome::Fine } else { outcome(&predictions.iter().collect::<Vec<_>>()) })
}

fn over_ranks(
    arguments: &Arguments,
    pair: &mut Pair,
    program: &Program,
    ranks: Ranks,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let gpu = card(arguments.gpu.as_ref(), arguments.memory, &arguments.script)?;
    let asked = Asked { voice: voice(printer), needs: true };
    let mut say = |wanted: &[u32], is_first: bool| {
        let (all, which) = (ranks.size, predict::named_ranks(wanted));
        let again = if is_first { "" } else { " again, with what others sent it" };
        printer.note(&format!("running {which} of {all}{again}"));
    };
    let predictions = ranks::predict(pair, program, &gpu, ranks, asked, &mut say)?;
    show(arguments, &predictions, printer)?;
    Ok(outcome(&predictions.iter().collect::<Vec<_>>()))
}

fn show(arguments: &Arguments, predictions: &[Prediction], printer: &mut Printer) -> anyhow::Result<()> {
    printer.answer(arguments.format, |format| match format {
        Format::Text => predict::table_text(predictions),
        Format::Json => predict::table_json(predictions),
        Format::Markdown => predict::table_markdown(predictions),
    })?;
    Ok(())
}

/// The script's argument for the batch, if its text names one.
fn smaller_argument(program: &Program) -> Option<String> {
    let text = std::fs::read_to_string(&program.target).ok()?;
    let names =
        ["--batch-size", "--batch_size", "--per_device_train_batch_size", "--train-batch-size", "--bs"];
    names.iter().find(|name| text.contains(*name)).map(|name| (*name).to_owned())
}
