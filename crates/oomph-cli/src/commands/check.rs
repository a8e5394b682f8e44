//! `oomph check`: the gate for CI.

use crate::arguments::{Check, Format, Metric};
use crate::printer::Printer;
use crate::{Outcome, files};
use oomph_explain::Outcome as OomOutcome;
use oomph_report::{Check as Checked, CheckLimit, json, markdown, text};
use std::path::Path;

pub(crate) fn run(arguments: &Check, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let baseline = match &arguments.baseline {
        Some(path) => Some(peak_of(path, arguments.peak, printer)?.0),
        None => None,
    };
    let mut checks = Vec::new();
    for path in &arguments.files {
        let (peak, died) = peak_of(path, arguments.peak, printer)?;
        let (limit, most) = match (arguments.max_peak, baseline) {
            (Some(size), _) => (CheckLimit::Most(size.0), size.0),
            (None, Some(base)) => {
                let tolerance = arguments.tolerance.0;
                let most = base.saturating_add((base as f64 * tolerance) as u64);
                (CheckLimit::Baseline { peak: base, tolerance, most }, most)
            }
            (None, None) => anyhow::bail!("name a limit: --max-peak SIZE or --baseline FILE"),
        };
        let metric = match arguments.peak {
            Metric::Reserved => "reserved",
            Metric::Allocated => "allocated",
        };
        let passed = peak <= most && !died;
        checks.push(Checked { file: path.display().to_string(), metric, peak, limit, died, passed });
    }
    printer.data(&match arguments.format {
        Format::Text => text::checks(&checks),
        Format::Json => json::checks(&checks),
        Format::Markdown => markdown::checks(&checks),
    })?;
    match checks.iter().find(|check| !check.passed) {
        Some(failed) => {
            printer.hint(&format!(
                "see what holds the memory with: oomph explain {}",
                oomph_explain::printable(&failed.file)
            ));
            Ok(Outcome::Findings)
        }
        None => Ok(Outcome::Fine),
    }
}

/// The highest peak of all devices, and whether the program died of an out-of-memory.
fn peak_of(path: &Path, metric: Metric, printer: &mut Printer) -> anyhow::Result<(u64, bool)> {
    let explanation = oomph_explain::explain(&files::read(path, printer)?);
    let peaks = explanation.devices.iter().map(|device| match metric {
        Metric::Reserved => device.peak.reserved.bytes,
        Metric::Allocated => device.peak.allocated.bytes,
    });
    // A gate that lets through what it cannot see is no gate.
    let Some(peak) = peaks.max() else {
        anyhow::bail!("{}: there is no device in this recording", path.display());
    };
    if explanation.devices.iter().any(|device| !device.completeness.complete) {
        printer.warning(&format!(
            "{}: the recording is incomplete; the true peak may have been higher",
            path.display()
        ));
    }
    let died = (explanation.devices.iter())
        .any(|device| device.ooms.iter().any(|oom| oom.outcome == OomOutcome::Fatal));
    Ok((peak, died))
}
