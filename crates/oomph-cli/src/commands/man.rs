//! `oomph man`: manual pages, made from the same texts as `--help`.

use crate::Outcome;
use crate::arguments::{Arguments, Man};
use crate::printer::Printer;
use anyhow::Context;
use clap::CommandFactory;

pub(crate) fn run(arguments: &Man, printer: &mut Printer) -> anyhow::Result<Outcome> {
    match &arguments.folder {
        Some(folder) => {
            std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
            clap_mangen::generate_to(Arguments::command(), folder)
                .with_context(|| folder.display().to_string())?;
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Arguments::command()).render(&mut page)?;
            printer.data(&String::from_utf8_lossy(&page))?;
        }
    }
    Ok(Outcome::Fine)
}
