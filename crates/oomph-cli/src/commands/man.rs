//! `oomph man`: manual pages, made from the same texts as `--help`.

mod markdown;

use super::CommandLine;
use crate::Outcome;
use crate::printer::Printer;
use anyhow::Context;
use clap::Args;
use clap::CommandFactory;
use std::path::PathBuf;

/// Print the manual page, or write those of all verbs into a folder
#[derive(Args)]
#[command(after_help = "Example:\n  oomph man | man -l -")]
pub(crate) struct Arguments {
    /// A folder for the pages of oomph and of every verb
    #[arg(long, value_name = "FOLDER")]
    pub(crate) folder: Option<PathBuf>,
    /// One page of Markdown about all verbs, as in docs/reference/commands.md
    #[arg(long, conflicts_with = "folder")]
    pub(crate) markdown: bool,
}

pub(crate) fn run(arguments: &Arguments, printer: &mut Printer) -> anyhow::Result<Outcome> {
    match &arguments.folder {
        Some(folder) => {
            std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
            clap_mangen::generate_to(CommandLine::command(), folder)
                .with_context(|| folder.display().to_string())?;
        }
        None if arguments.markdown => printer.data(&markdown::page(CommandLine::command()))?,
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(CommandLine::command()).render(&mut page)?;
            printer.data(&String::from_utf8_lossy(&page))?;
        }
    }
    Ok(Outcome::Fine)
}
