//! `oomph completions`: a completion script for a shell.

use crate::Outcome;
use crate::arguments::{Arguments, Completions};
use crate::printer::Printer;
use clap::CommandFactory;

pub(crate) fn run(arguments: &Completions, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "oomph", &mut script);
    printer.data(&String::from_utf8_lossy(&script))?;
    Ok(Outcome::Fine)
}
