//! `oomph diff`: what changed at the peak.

use crate::arguments::{Diff, Format};
use crate::printer::{Printer, width};
use crate::{Outcome, files};
use oomph_report::{TextOptions, json, markdown, text};

pub(crate) fn run(arguments: &Diff, printer: &mut Printer) -> anyhow::Result<Outcome> {
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
