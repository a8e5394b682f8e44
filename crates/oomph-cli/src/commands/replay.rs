//! `oomph replay`: what would have happened.

use crate::arguments::Format;
use crate::memory::{MemoryArguments, known_version};
use crate::printer::{Printer, width};
use crate::{Outcome, files};
use clap::{Args, ValueEnum};
use oomph_replay::answer::{AskError, Model, Question, ask};
use oomph_replay::tune::Fit;
use oomph_report::replay;
use oomph_settings::version::Version;
use std::path::PathBuf;
use std::time::Duration;

/// Replay a recording under other settings, on another card, in another version
///
/// Every allocation and free is put through a model of PyTorch's caching allocator that is exact to the byte: with the
/// recorded settings, every block comes to lie at the address that PyTorch gave it, and that is checked before anything
/// is said about other settings. Where a number cannot be exact, the output says so, and why.
///
/// Without --conf, --memory or --gpu it replays what was recorded, which proves the model on your recording.
///
/// A recording that ends where its program ran out of memory says nothing of what came after: of it is said whether the replay gets
/// past that request, and by how much, never that the program fits.
///
/// Exits with 1 if the program would run out of memory within the recording, or if that is not known.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  oomph replay snapshot.pickle\n  oomph replay snapshot.pickle --conf expandable_segments:True\n  oomph replay snapshot.pickle --gpu t4\n  oomph replay snapshot.pickle --conf max_split_size_mb:128 --memory 15GiB --torch 2.13\n  oomph replay snapshot.pickle --allocator packed"
)]
pub(crate) struct Arguments {
    /// The recording; `-` reads it from stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Allocator settings, as PYTORCH_CUDA_ALLOC_CONF takes them; '' for PyTorch's defaults
    #[arg(long, value_name = "SETTINGS")]
    pub(crate) conf: Option<String>,
    #[command(flatten)]
    pub(crate) memory: MemoryArguments,
    /// Follow the rules of this version of PyTorch, 2.0 or later [default: the ones that reproduce the recording]
    #[arg(long, value_name = "VERSION")]
    pub(crate) torch: Option<Version>,
    /// Which allocator
    #[arg(long, value_enum, default_value_t = AllocatorName::Torch)]
    pub(crate) allocator: AllocatorName,
    /// How long to look for a packing, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) patience: u64,
    /// Which device [default: the one with the most events]
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<u32>,
    /// How to show it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AllocatorName {
    /// PyTorch's native caching allocator
    Torch,
    /// TensorFlow's BFC allocator, with allow_growth
    Bfc,
    /// One that knows the future: how little memory could do
    Packed,
}

pub(crate) fn run(arguments: &Arguments, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let model = match arguments.allocator {
        AllocatorName::Torch => Model::Torch,
        AllocatorName::Bfc => Model::Bfc,
        AllocatorName::Packed => Model::Packed,
    };
    if model != Model::Torch && (arguments.conf.is_some() || arguments.torch.is_some()) {
        anyhow::bail!("--conf and --torch are for PyTorch's allocator; leave --allocator out");
    }
    let version = known_version(arguments.torch, printer);
    let recording = files::read(&arguments.file, printer)?;
    let device = files::device(&recording, &arguments.file, arguments.device, printer)?;
    let question = Question {
        conf: arguments.conf.clone(),
        memory: arguments.memory.memory(),
        version,
        model,
        fatal: oomph_explain::fatal_out_of_memory(&recording, device),
        patience: Duration::from_secs(arguments.patience),
    };
    let waiting = printer.waiting("replaying");
    let answer = ask(&recording, device, question);
    drop(waiting);
    let answer = match answer {
        Err(AskError::Conf(error)) => {
            return files::refused("--conf", arguments.conf.as_deref(), &error, printer);
        }
        answer => files::of_file(&arguments.file, answer)?,
    };
    let typed = arguments.memory.typed(version);
    let name = arguments.file.display().to_string();
    printer.answer(arguments.format, |format| match format {
        Format::Text => replay::text(&answer, &name, &typed, width()),
        Format::Json => replay::json(&answer, &name),
        Format::Markdown => replay::markdown(&answer, &name),
    })?;
    Ok(if answer.fit == Fit::Yes { Outcome::Fine } else { Outcome::Findings })
}
