//! `oomph convert`: a recording in another format.

use crate::arguments::{Convert, Target};
use crate::printer::Printer;
use crate::{Outcome, files};
use anyhow::bail;
use oomph_trace::{export, format};
use std::path::Path;

pub(crate) fn run(arguments: &Convert, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let target = match arguments.to {
        Some(target) => target,
        None => by_ending(&arguments.output)?,
    };
    let recording = files::read(&arguments.file, printer)?;
    for warning in &recording.warnings {
        printer.warning(&format!("{}: {}", arguments.file.display(), warning.message));
    }
    files::write_whole(&arguments.output, arguments.force, |out| match target {
        Target::Oomph => {
            format::Writer::new(out)?.finish(&recording)?;
            Ok(())
        }
        Target::Json => Ok(export::write_json(&recording, out)?),
        Target::Pickle => Ok(export::write_pickle(&recording, out)?),
    })?;
    if arguments.output != Path::new("-") {
        let events: usize = recording.devices.iter().map(|device| device.events.len()).sum();
        printer.note(&format!(
            "wrote {} ({})",
            arguments.output.display(),
            oomph_explain::plural(events as u64, "event")
        ));
        if target == Target::Oomph {
            printer.note(&format!("next: oomph explain {}", arguments.output.display()));
        }
    }
    Ok(Outcome::Fine)
}

fn by_ending(output: &Path) -> anyhow::Result<Target> {
    match output.extension().and_then(|ending| ending.to_str()) {
        Some("oomph") => Ok(Target::Oomph),
        Some("json") => Ok(Target::Json),
        Some("pickle" | "pkl") => Ok(Target::Pickle),
        _ => bail!("{}: which format? end it in .oomph, .json or .pickle, or say --to", output.display()),
    }
}
