//! The command `oomph`, as a function: a program of its own calls it (`main.rs`), and so does the extension module of the wheel.
//!
//! Parses the command line, calls a verb, turns its outcome into an exit code: 0 fine, 1 findings or over a limit,
//! 2 oomph itself failed, 128 and its number for a signal. Verbs live in `commands`, one a file; what they show is made
//! by `oomph-report`.

mod arguments;
mod attaching;
mod by_model;
mod claim;
mod commands;
mod fetching;
mod files;
mod fixing;
mod log;
mod memory;
mod outputs;
mod predicting;
mod printer;
mod roots;
mod source_text;
mod tolerance;
mod tools;

use clap::Parser;
use commands::CommandLine;
use printer::Printer;
use std::ffi::OsString;

/// How a verb ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Fine,
    /// There are findings, or a limit is exceeded.
    Findings,
    /// Something could not be done; it was said on stderr.
    Failed,
    /// As another program ended that was run.
    Passed(u8),
    /// A signal came that asks to end.
    Interrupted(i32),
}

/// Runs a command line, the program's name first; gives its exit code. Where clap answers (`--help`, an unknown option), the process ends.
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let command_line = CommandLine::parse_from(arguments);
    let mut printer = Printer::new(command_line.global.color.into(), command_line.global.quiet);
    if let Err(error) = log::start(command_line.global.verbose) {
        printer.error(&error);
        return 2;
    }
    match command_line.command.run(&mut printer) {
        Ok(Outcome::Fine) => 0,
        Ok(Outcome::Findings) => 1,
        Ok(Outcome::Failed) => 2,
        Ok(Outcome::Passed(code)) => code,
        Ok(Outcome::Interrupted(signal)) => oomph_child::code_of(signal),
        // Whoever reads what is written without an end, or as a whole file, has seen enough: `oomph top --json-lines | head` is no failure.
        Err(error) if printer::is_broken_pipe(&error) => 0,
        Err(error) => {
            printer.error(&format!("{error:#}"));
            2
        }
    }
}
