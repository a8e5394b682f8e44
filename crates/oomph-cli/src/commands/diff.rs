//! `oomph diff`: what changed at the peak.

use crate::arguments::Format;
use crate::printer::{Printer, width};
use crate::{Outcome, files};
use clap::Args;
use oomph_report::{Named, TextOptions, json, markdown, text};
use std::path::PathBuf;

/// Say what changed at the peak between two recordings, by line and by kind
///
/// Where one of the programs ran out of memory and died, that is said first: its peak is what it had reached by then, not what
/// it needs. Two recordings of RAM (oomph run --ram) are compared by what was asked for and by what the kernel counted.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  oomph diff before.pickle after.pickle\n  oomph diff before-ram.oomph after-ram.oomph"
)]
pub(crate) struct Arguments {
    /// The first recording
    #[arg(value_name = "BEFORE")]
    pub(crate) before: PathBuf,
    /// The second recording
    #[arg(value_name = "AFTER")]
    pub(crate) after: PathBuf,
    /// How to show it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
    /// How many lines to list
    #[arg(long, default_value_t = 15, value_name = "N")]
    pub(crate) lines: usize,
}

pub(crate) fn run(arguments: &Arguments, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let before = oomph_explain::explain(&files::read(&arguments.before, printer)?);
    let after = oomph_explain::explain(&files::read(&arguments.after, printer)?);
    if before.host.is_some() != after.host.is_some() {
        let lacks = if before.host.is_some() { &arguments.after } else { &arguments.before };
        anyhow::bail!(
            "{}: there is no RAM in this recording, and in the other there is: compare two of one kind",
            lacks.display()
        );
    }
    let diff = oomph_explain::diff(&before, &after);
    let (from, to) = (arguments.before.display().to_string(), arguments.after.display().to_string());
    let (before, after) =
        (Named { name: &from, explanation: &before }, Named { name: &to, explanation: &after });
    let options = TextOptions { lines: arguments.lines, stacks: false, width: width() };
    printer.answer(arguments.format, |format| match format {
        Format::Text => text::diff(&diff, &before, &after, options),
        Format::Json => json::diff(&diff, &before, &after),
        Format::Markdown => markdown::diff(&diff, &before, &after, arguments.lines),
    })?;
    Ok(Outcome::Fine)
}
