//! `oomph check`: the gate for CI.

use crate::arguments::Format;
use crate::printer::Printer;
use crate::tolerance::Tolerance;
use crate::{Outcome, files};
use clap::{Args, ValueEnum};
use oomph_explain::ranks::has_died;
use oomph_report::{Check, CheckLimit, json, markdown, text};
use oomph_words::Size;
use std::path::{Path, PathBuf};

/// Fail if the peak is too high: the gate for CI
///
/// Exits with 1 if the peak of any device of any recording is over the limit, or if the program ran out of memory and died:
/// then its peak is not what it needs. The limit is a size, or another recording's peak and a tolerance.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  oomph check snapshot.pickle --max-peak 14GiB\n  oomph check snapshot.pickle --baseline main.pickle --tolerance 2%"
)]
pub(crate) struct Arguments {
    /// The recordings to check, one a rank
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// The highest peak that passes: 14GiB, 14000MB, or bytes
    #[arg(long, value_name = "SIZE", conflicts_with = "baseline")]
    pub(crate) max_peak: Option<Size>,
    /// A recording whose peak is the limit
    #[arg(long, value_name = "FILE")]
    pub(crate) baseline: Option<PathBuf>,
    /// By how much the baseline may be exceeded: 2% or 0.02
    #[arg(long, value_name = "SHARE", default_value = "0%", requires = "baseline")]
    pub(crate) tolerance: Tolerance,
    /// Which peak: what is taken from the device, or what the program holds
    #[arg(long, value_enum, default_value_t = Metric::Reserved)]
    pub(crate) peak: Metric,
    /// How to show it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Metric {
    /// Taken from the device: what must fit on the card
    Reserved,
    /// In blocks that the program holds
    Allocated,
}

pub(crate) fn run(arguments: &Arguments, printer: &mut Printer) -> anyhow::Result<Outcome> {
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
        checks.push(Check { file: path.display().to_string(), metric, peak, limit, died, passed });
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
                oomph_words::printable(&failed.file)
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
    let died = explanation.devices.iter().any(has_died);
    Ok((peak, died))
}
