//! `oomph explain`: where the memory went, why it ran out, what to do.

use crate::arguments::{Explain, Format};
use crate::printer::{Printer, width};
use crate::{Outcome, files};
use oomph_report::{Named, TextOptions, json, markdown, text};

pub(crate) fn run(arguments: &Explain, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let mut explanations = Vec::new();
    let mut failed = false;
    for path in &arguments.files {
        match files::read(path, printer) {
            Ok(recording) => {
                explanations.push((path.display().to_string(), oomph_explain::explain(&recording)));
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
    })?;
    Ok(if failed {
        Outcome::Failed
    } else if explanations.iter().any(|(_, explanation)| explanation.has_problems()) {
        Outcome::Findings
    } else {
        Outcome::Fine
    })
}
