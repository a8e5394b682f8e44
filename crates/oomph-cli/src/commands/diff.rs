//! `oomph diff`: what changed at the peak.

use crate::arguments::Format;
use crate::printer::{Printer, width};
use crate::{Outcome, files};
use clap::Args;
use oomph_report::{TextOptions, json, markdown, text};
use std::path::PathBuf;

/// Say what changed at the peak between two recordings, by line and by kind
#[derive(Args)]
#[command(after_help = "Example:\n  oomph diff before.pickle after.pickle")]
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
    let diff = oomph_explain::diff(&before, &after);
    let (from, to) = (arguments.before.display().to_string(), arguments.after.display().to_string());
    let options = TextOptions { lines: arguments.lines, stacks: false, width: width() };
    printer.data(&match arguments.format {
        Format::Text => text::diff(&diff, &from, &to, options),
        Format::Json => json::diff(&diff, &from, &to),
        Format::Markdown => markdown::diff(&diff, &from, &to, arguments.lines),
    })?;
    Ok(Outcome::Fine)
}
