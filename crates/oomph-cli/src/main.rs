//! The command `oomph`.
//!
//! Parses the command line, calls a verb, turns its outcome into an exit code: 0 fine, 1 findings or over a limit,
//! 2 oomph itself failed. Verbs live in `commands`, one a file; what they show is made by `oomph-report`.

mod arguments;
mod commands;
mod files;
mod printer;
mod sizes;

use arguments::{Arguments, Command};
use clap::Parser;
use printer::Printer;
use std::process::ExitCode;

/// How a verb ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Fine.
    Fine,
    /// There are findings, or a limit is exceeded.
    Findings,
    /// Something could not be done; it was said on stderr.
    Failed,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut printer = Printer::new(arguments.global.color, arguments.global.quiet);
    let outcome = match arguments.command {
        Command::Explain(explain) => commands::explain::run(&explain, &mut printer),
        Command::Diff(diff) => commands::diff::run(&diff, &mut printer),
        Command::Check(check) => commands::check::run(&check, &mut printer),
        Command::Rule(rule) => commands::rule::run(&rule, &mut printer),
        Command::Convert(convert) => commands::convert::run(&convert, &mut printer),
        Command::Completions(completions) => commands::completions::run(&completions, &mut printer),
        Command::Man(man) => commands::man::run(&man, &mut printer),
    };
    match outcome {
        Ok(Outcome::Fine) => ExitCode::SUCCESS,
        Ok(Outcome::Findings) => ExitCode::from(1),
        Ok(Outcome::Failed) => ExitCode::from(2),
        // Whoever reads our output has seen enough: `oomph explain FILE | head` is no failure.
        Err(error) if printer::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            printer.error(&format!("{error:#}"));
            ExitCode::from(2)
        }
    }
}
