//! `oomph completions`: a completion script for a shell.

use super::CommandLine;
use crate::Outcome;
use crate::printer::Printer;
use clap::Args;
use clap::CommandFactory;

/// Print a completion script for a shell
#[derive(Args)]
#[command(
    after_help = "Example:\n  oomph completions bash > ~/.local/share/bash-completion/completions/oomph"
)]
pub(crate) struct Arguments {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

pub(crate) fn run(arguments: &Arguments, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut CommandLine::command(), "oomph", &mut script);
    printer.data(&String::from_utf8_lossy(&script))?;
    Ok(Outcome::Fine)
}
