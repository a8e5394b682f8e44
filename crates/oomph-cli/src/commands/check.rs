//! `oomph check`: the gate for CI.

use crate::arguments::{Check, Format, Metric};
use crate::printer::Printer;
use crate::{Outcome, files};
use oomph_report::{Check as Checked, CheckLimit, json, markdown, text};
use oomph_trace::{History, Recording};
use std::path::Path;

pub(crate) fn run(arguments: &Check, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let peak = peak_of(&arguments.file, arguments.peak, printer)?;
    let (limit, most) = match (&arguments.max_peak, &arguments.baseline) {
        (Some(size), _) => (CheckLimit::Most(size.0), size.0),
        (None, Some(path)) => {
            let base = peak_of(path, arguments.peak, printer)?;
            let tolerance = arguments.tolerance.0;
            let most = base.saturating_add((base as f64 * tolerance) as u64);
            (CheckLimit::Baseline { peak: base, tolerance, most }, most)
        }
        (None, None) => anyhow::bail!("name a limit: --max-peak SIZE or --baseline FILE"),
    };
    let check = Checked { peak, limit, passed: peak <= most };
    let name = arguments.file.display().to_string();
    printer.data(&match arguments.format {
        Format::Text => text::check(&check, &name),
        Format::Json => json::check(&check, &name),
        Format::Markdown => markdown::check(&check, &name),
    })?;
    if !check.passed {
        printer.hint(&format!("oomph explain {name}"));
    }
    Ok(if check.passed { Outcome::Fine } else { Outcome::Findings })
}

/// The highest peak of all devices.
fn peak_of(path: &Path, metric: Metric, printer: &mut Printer) -> anyhow::Result<u64> {
    let recording: Recording = files::read(path, printer)?;
    let mut highest = None;
    for device in &recording.devices {
        let history = History::of(&recording, device);
        let peak = match metric {
            Metric::Reserved => history.peak.reserved.bytes,
            Metric::Allocated => history.peak.allocated.bytes,
        };
        highest = highest.max(Some(peak));
        let lost = history.allocations.born_before() > 0 || recording.source.truncated;
        if lost || device.events.is_empty() {
            printer.warning(&format!(
                "{}: the recording is incomplete; the true peak may have been higher",
                path.display()
            ));
        }
    }
    // A gate that lets nothing through it cannot see is no gate.
    highest.ok_or_else(|| anyhow::anyhow!("{}: there is no device in this recording", path.display()))
}
