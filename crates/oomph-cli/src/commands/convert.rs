//! `oomph convert`: a recording in another format.

use crate::printer::Printer;
use crate::{Outcome, files, outputs};
use anyhow::bail;
use clap::{Args, ValueEnum};
use oomph_trace::{export, format};
use std::path::{Path, PathBuf};

/// Write a recording in another format
///
/// The output is complete or not there: it is written beside its place and moved when it is done.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  oomph convert snapshot.pickle -o snapshot.oomph     # many times smaller\n  oomph convert snapshot.oomph -o snapshot.pickle     # for memory_viz\n  oomph convert py314.pickle --to pickle -o p4.pickle # protocol 5 to 4"
)]
pub(crate) struct Arguments {
    /// The recording to convert; `-` reads stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Where to write; `-` is stdout
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: PathBuf,
    /// The format [default: by the output's ending]
    #[arg(long, value_enum)]
    pub(crate) to: Option<Target>,
    /// Write over a file that exists, and JSON of any size
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Target {
    /// oomph's own: small, and readable even if cut off
    Oomph,
    /// PyTorch's snapshot as JSON
    Json,
    /// PyTorch's snapshot, pickle protocol 4: every memory_viz reads it
    Pickle,
}

/// More is hardly what was meant: no reader of JSON takes it.
const LARGE_JSON: u64 = 2 << 30;

pub(crate) fn run(arguments: &Arguments, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let target = match arguments.to {
        Some(target) => target,
        None => by_ending(&arguments.output)?,
    };
    let recording = files::read(&arguments.file, printer)?;
    for warning in &recording.warnings {
        printer.warning(&format!("{}: {}", arguments.file.display(), warning.message));
    }
    if target == Target::Json && !arguments.force {
        let stacks = export::stacks_in_json(&recording)?;
        if stacks > LARGE_JSON {
            bail!(
                "{}: as JSON this recording takes {} or more, because JSON writes every stack out again at each event. \
                 Write .pickle or .oomph instead, or say --force",
                arguments.output.display(),
                oomph_words::bytes(stacks)
            );
        }
    }
    outputs::write_whole(&arguments.output, arguments.force, |out| match target {
        Target::Oomph => {
            format::Writer::new(out)?.finish(&recording)?;
            Ok(())
        }
        Target::Json => Ok(export::write_json(&recording, out)?),
        Target::Pickle => Ok(export::write_pickle(&recording, out)?),
    })?;
    if arguments.output != Path::new("-") {
        let events: usize = recording.devices.iter().map(|device| device.events.len()).sum();
        printer.note(&format!(
            "wrote {} ({})",
            arguments.output.display(),
            oomph_words::plural(events as u64, "event")
        ));
        if target == Target::Oomph {
            printer.note(&format!("next: oomph explain {}", arguments.output.display()));
        }
    }
    Ok(Outcome::Fine)
}

fn by_ending(output: &Path) -> anyhow::Result<Target> {
    match output.extension().and_then(|ending| ending.to_str()) {
        Some("oomph") => Ok(Target::Oomph),
        Some("json") => Ok(Target::Json),
        Some("pickle" | "pkl") => Ok(Target::Pickle),
        _ => bail!("{}: which format? end it in .oomph, .json or .pickle, or say --to", output.display()),
    }
}
