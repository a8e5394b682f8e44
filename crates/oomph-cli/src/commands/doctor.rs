//! `oomph doctor`.

use crate::Outcome;
use crate::arguments::Format;
use crate::printer::{Printer, width};
use clap::Args;
use oomph_doctor::{Facts, Gather, Level, checks, examine};
use oomph_report::doctor;
use std::path::PathBuf;

/// Say what is true of this machine, and what to do
///
/// Looks at the driver, the cards and who is on them, PyTorch and its packages, the allocator's settings, RAM and the limits on it,
/// and says what is wrong, what that means, and what to type. Nothing is changed, PyTorch is not imported, and no memory
/// of a card is taken.
///
/// JSON and Markdown are for bug reports: users are numbered, and there are no names of people or machines, no places, no
/// command lines and no variables in them but those that decide about memory.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  oomph doctor\n  oomph doctor --python .venv/bin/python\n  oomph doctor --format markdown   # for an issue\n\nExits with 1 if something is wrong."
)]
pub(crate) struct Arguments {
    /// The Python whose PyTorch is checked [default: python3, or that of the active environment]
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
    /// Import PyTorch too, and ask it what it sees; takes seconds, and a context on each card
    #[arg(long)]
    pub(crate) deep: bool,
    /// Say everything: what notes mean, and long lines in full
    #[arg(long)]
    pub(crate) all: bool,
    /// List the checks, and run none
    #[arg(long)]
    pub(crate) checks: bool,
    /// How to show it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
}

pub(crate) fn run(arguments: &Arguments, printer: &mut Printer) -> anyhow::Result<Outcome> {
    if arguments.checks {
        printer.data(&match arguments.format {
            Format::Text => doctor::checks_text(checks::ALL, width()),
            Format::Json => doctor::checks_json(checks::ALL),
            Format::Markdown => doctor::checks_markdown(checks::ALL),
        })?;
        return Ok(Outcome::Fine);
    }
    let facts = Facts::gather(&Gather { python: arguments.python.clone(), deep: arguments.deep });
    if let (Some(_), Err(why)) = (&arguments.python, &facts.python) {
        printer.error(why);
        return Ok(Outcome::Failed);
    }
    let findings = examine(&facts);
    printer.answer(arguments.format, |format| match format {
        Format::Text => doctor::text(&findings, arguments.all, width()),
        Format::Json => doctor::json(&facts),
        Format::Markdown => doctor::markdown(&facts),
    })?;
    let is_wrong = findings.iter().any(|finding| finding.level == Level::Wrong);
    Ok(if is_wrong { Outcome::Findings } else { Outcome::Fine })
}
