//! `oomph tune`: which setting would have fitted.

use crate::arguments::Format;
use crate::memory::{MemoryArguments, known_version};
use crate::printer::{Printer, width};
use crate::{Outcome, files};
use clap::Args;
use oomph_replay::answer::replayable;
use oomph_replay::replayer::Replayer;
use oomph_replay::tune::Fit;
use oomph_report::tune::{self, NamedTuning};
use oomph_settings::version::Version;
use oomph_trace::History;
use std::path::PathBuf;

/// Find the allocator setting under which a recording needs least memory
///
/// Replays the recording under every setting that makes sense, and for each again and again with less memory, until it no
/// longer completes. Shows the peak, how often the allocator had to empty its cache to go on (each time is a stall),
/// and the least memory that suffices; prints the best as a line to paste, or says that no setting helps, and why.
///
/// With --memory, --gpu or --limit, the best is the first in the table that fits and stalls least; without them, the one
/// that needs least, or the first within 1 % of it.
///
/// A recording that ends where its program ran out of memory says nothing of what came after: of it is said which setting gets past
/// that request, and by how much, never that the program fits.
///
/// Exits with 1 if no setting fits (of a recording that died: gets past that), or if that is not known.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  oomph tune snapshot.pickle\n  oomph tune snapshot.pickle --gpu t4\n  oomph tune snapshot.pickle --memory 11GiB --try max_split_size_mb:96"
)]
pub(crate) struct Arguments {
    /// The recording; `-` reads it from stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) memory: MemoryArguments,
    /// Settings of your own to try as well; may be given several times
    #[arg(long = "try", value_name = "SETTINGS")]
    pub(crate) extra: Vec<String>,
    /// Follow the rules of this version of PyTorch, 2.0 or later [default: the ones that reproduce the recording]
    #[arg(long, value_name = "VERSION")]
    pub(crate) torch: Option<Version>,
    /// Which device [default: the one with the most events]
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<u32>,
    /// How to show it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
}

pub(crate) fn run(arguments: &Arguments, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let version = known_version(arguments.torch, printer);
    let recording = files::read(&arguments.file, printer)?;
    let device = files::device(&recording, &arguments.file, arguments.device, printer)?;
    files::of_file(&arguments.file, replayable(device))?;
    let history = History::of(&recording, device);
    let fatal = oomph_explain::fatal_out_of_memory(&recording, device);
    let replayer = Replayer::new(&recording, device, &history, version, fatal);
    let bar = printer.progress("tuning");
    let tuning =
        oomph_replay::tune::tune(&replayer, arguments.memory.memory(), &arguments.extra, 0, &|done, of| {
            bar.set(done as u64, of as u64)
        });
    drop(bar);
    let tuning = match tuning {
        Err(error) => {
            return files::refused("--try", arguments.extra.first().map(String::as_str), &error, printer);
        }
        Ok(tuning) => tuning,
    };
    let typed = arguments.memory.typed(version);
    let name = arguments.file.display().to_string();
    let named = NamedTuning::of(&name, &typed, device, &replayer, &tuning);
    printer.answer(arguments.format, |format| match format {
        Format::Text => tune::text(&named, width()),
        Format::Json => tune::json(&named),
        Format::Markdown => tune::markdown(&named),
    })?;
    let chosen = named.fits.get(tuning.best.unwrap_or(0)).copied().flatten();
    Ok(if chosen.is_none_or(|fit| fit == Fit::Yes) { Outcome::Fine } else { Outcome::Findings })
}
