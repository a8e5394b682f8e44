//! `oomph fit`: how to make a script's training step fit.

use crate::arguments::Format;
use crate::fetching::{self, Fetching};
use crate::memory::GpuParser;
use crate::printer::{Printer, width};
use crate::{Outcome, predicting};
use clap::Args;
use clap::builder::PossibleValuesParser;
use oomph_gpus::Gpu;
use oomph_predict::fit::{self, Answer, Fits, Question};
use oomph_predict::run::{RunError, Runner, Until};
use oomph_report::fit::{self as report, NamedPlan};
use oomph_words::Size;
use std::ffi::OsString;
use std::path::PathBuf;

/// What may be done only if it is named.
const ALLOWED: [&str; 4] = ["liger", "bf16", "8bit-optimizer", "bf16-weights"];

/// Say how to make a script's training step fit a card, and which lines to change
///
/// Runs the script as it is, with your own Python and PyTorch, on a virtual GPU until its optimizer has stepped twice. Then the plan that
/// oomph.fit would take is searched for on its model: every candidate is run, with PyTorch's own allocations. Says whether
/// the step fits as it is; if not, what makes it fit with the same numbers (parts of the batch, blocks that are run again, host
/// memory …), and the lines of the script to change. Nothing is changed by this command.
///
/// The script must have one model, one optimizer and a loop of its own. It does what it always does until it is stopped: it writes
/// its files and uses the network. Its own output goes to stderr, the result to stdout.
///
/// Exits with 0 if it fits (as it is or with the plan), 1 if it does not, 2 if that could not be found out.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  oomph fit --gpu t4 train.py --batch-size 32\n  oomph fit --gpu t4 --allow bf16,8bit-optimizer train.py\n  oomph fit --budget 12GiB -m mypackage.train\n  oomph fit --gpu t4 notebook.ipynb\n  oomph fit --gpu t4 --format json train.py | jq .plan.chosen.plan\n\nEverything after the script's name is the script's."
)]
pub(crate) struct Arguments {
    /// The card: t4, rtx-4090, a100-80gb … (`oomph gpus` lists them)
    #[arg(long, value_name = "NAME", value_parser = GpuParser, hide_possible_values = true)]
    pub(crate) gpu: Option<Gpu>,
    /// What may be used of the card, the CUDA context included: 12GiB [default: all of it]
    #[arg(long, visible_alias = "memory", value_name = "SIZE")]
    pub(crate) budget: Option<Size>,
    /// What may be done although it changes the numbers
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = PossibleValuesParser::new(ALLOWED))]
    pub(crate) allow: Vec<String>,
    /// The interpreter that has PyTorch [default: python3, or that of the active environment]
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) fetching: Fetching,
    /// How to show it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
    /// SCRIPT is a module, as python -m takes it
    #[arg(short, long)]
    pub(crate) module: bool,
    /// The script, notebook or module, and its arguments
    #[arg(value_name = "SCRIPT", trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    pub(crate) script: Vec<OsString>,
}

pub(crate) fn run(arguments: &Arguments, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let program = predicting::program(&arguments.script, arguments.module)?;
    let gpu = predicting::card(arguments.gpu.as_ref(), arguments.budget, &arguments.script)?;
    let installed = match fetching::installed(arguments.python.as_deref(), &arguments.fetching, printer)? {
        Ok(installed) => installed,
        Err(outcome) => return Ok(outcome),
    };
    let runner = Runner::new(&installed, 0, Until::Steps, None)?;
    let written = arguments.budget.map(|size| size.to_string());
    let question = Question {
        gpu: &gpu,
        budget: arguments.budget.zip(written.as_deref()).map(|(size, text)| (size.0, text)),
        allow: &arguments.allow,
    };
    let answer = match fit::fit(&runner, &program, &question, predicting::voice(printer)) {
        Ok(answer) => answer,
        // Whoever sent it knows why there is no result.
        Err(RunError::Interrupted { signal }) => return Ok(Outcome::Interrupted(signal)),
        Err(error) => return Err(anyhow::Error::new(error).context(program.typed())),
    };
    let typed = program.typed();
    match answer {
        Answer::Planned(planned) => {
            let more: Vec<&str> =
                ALLOWED.into_iter().filter(|name| !arguments.allow.iter().any(|one| one == name)).collect();
            let card = card(arguments, written.as_deref());
            let named = NamedPlan { program: &typed, gpu: &gpu, planned: &planned, card: &card, more: &more };
            printer.data(&match arguments.format {
                Format::Text => report::text(&named, width()),
                Format::Json => report::json(&named),
                Format::Markdown => report::markdown(&named),
            })?;
            Ok(if planned.fits == Fits::NotAtAll { Outcome::Findings } else { Outcome::Fine })
        }
        Answer::Refused(refused) => {
            if arguments.format == Format::Json {
                printer.data(&report::refused_json(&typed, &gpu, &refused))?;
            }
            printer.error(&format!("{typed}: {}", oomph_words::harmless(&refused.why)));
            if !refused.by_hand.is_empty() {
                printer.hint(&format!("write the step by hand:\n\n{}", refused.by_hand));
            }
            Ok(Outcome::Failed)
        }
    }
}

/// The card and its memory, as they are named once more.
fn card(arguments: &Arguments, budget: Option<&str>) -> String {
    let gpu = arguments.gpu.as_ref().map(|gpu| format!("--gpu {}", gpu.name));
    let memory = budget.map(|budget| format!("--budget {budget}"));
    gpu.into_iter().chain(memory).collect::<Vec<_>>().join(" ")
}
