//! `oomph explain`: where the memory went, why it ran out, what to do.

use crate::printer::{Printer, width};
use crate::{Outcome, files};
use clap::{Args, ValueEnum};
use oomph_report::{Named, TextOptions, html, json, markdown, picture, text};
use std::path::PathBuf;

/// Say where the memory went, why it ran out, and what to do
///
/// The answer comes first: findings, worst first, each with what it would save and how to mend it. Then the evidence: what
/// was alive at the peak, by kind and by line of your own code; what was reserved without being used; the steps.
/// Several files (one a rank) give a table, then the worst of them.
///
/// Exits with 1 if there are errors or warnings.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  oomph explain snapshot.pickle\n  oomph explain rank*.pickle\n  oomph explain --stacks --lines 3 snapshot.pickle\n  oomph explain --format json snapshot.pickle | jq '.devices[0].peak'"
)]
pub(crate) struct Arguments {
    /// Recordings to explain; `-` reads one from stdin
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// How to show it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
    /// How many lines (or stacks) of the peak to list
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub(crate) lines: usize,
    /// List whole stacks instead of your own lines
    #[arg(long)]
    pub(crate) stacks: bool,
}

/// As other verbs have it, and with a picture.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Text,
    /// For scripts; keys are documented and stable
    Json,
    /// For issues and pull requests
    Markdown,
    /// For notebooks and web pages: a fragment with a picture of memory over time, without scripts
    Html,
}

pub(crate) fn run(arguments: &Arguments, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let columns = if arguments.format == Format::Html { picture::COLUMNS } else { 0 };
    let mut explanations = Vec::new();
    let mut failed = false;
    for path in &arguments.files {
        match files::read(path, printer) {
            Ok(recording) => {
                let explanation = oomph_explain::explain_over_time(&recording, columns);
                explanations.push((path.display().to_string(), explanation));
                if arguments.files.len() == 1 {
                    // The process is about to end: giving a hundred MB back first takes time.
                    std::mem::forget(recording);
                }
            }
            // One bad file does not lose the others.
            Err(error) => {
                printer.error(&format!("{error:#}"));
                failed = true;
            }
        }
    }
    if explanations.is_empty() {
        return Ok(Outcome::Failed);
    }
    let named: Vec<Named> =
        explanations.iter().map(|(name, explanation)| Named { name, explanation }).collect();
    let options = TextOptions { lines: arguments.lines, stacks: arguments.stacks, width: width() };
    printer.data(&match arguments.format {
        Format::Text => text::explanation(&named, options),
        Format::Json => json::explanation(&named),
        Format::Markdown => markdown::explanation(&named, arguments.lines),
        Format::Html => html::explanation(&named, arguments.lines),
    })?;
    Ok(if failed {
        Outcome::Failed
    } else if explanations.iter().any(|(_, explanation)| explanation.has_problems()) {
        Outcome::Findings
    } else {
        Outcome::Fine
    })
}
