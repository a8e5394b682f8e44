//! `oomph check`: the gate for CI.

use crate::arguments::Format;
use crate::printer::Printer;
use crate::tolerance::Tolerance;
use crate::{Outcome, files};
use clap::{Args, ValueEnum};
use oomph_explain::Explanation;
use oomph_explain::ranks::has_died;
use oomph_report::{Check, CheckLimit, Metric, json, markdown, text};
use oomph_words::Size;
use std::path::{Path, PathBuf};

/// Fail if the peak is too high: the gate for CI
///
/// Exits with 1 if the peak of any device of any recording is over the limit, or if the program ran out of memory and died:
/// then its peak is not what it needs. The limit is a size, or another recording's peak and a tolerance. --max-ram is the limit of the process's own memory, for
/// recordings of RAM; with both, each recording is held against what it has.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  oomph check snapshot.pickle --max-peak 14GiB\n  oomph check snapshot.pickle --baseline main.pickle --tolerance 2%\n  oomph check train.oomph train-ram.oomph --max-peak 14GiB --max-ram 24GiB"
)]
pub(crate) struct Arguments {
    /// The recordings to check, one a rank
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// The highest peak that passes: 14GiB, 14000MB, or bytes
    #[arg(long, value_name = "SIZE", conflicts_with = "baseline")]
    pub(crate) max_peak: Option<Size>,
    /// The most RAM that passes, of a recording by oomph run --ram: what the kernel counts as the process's own, at its highest
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_ram: Option<Size>,
    /// A recording whose peak is the limit
    #[arg(long, value_name = "FILE")]
    pub(crate) baseline: Option<PathBuf>,
    /// By how much the baseline may be exceeded: 2% or 0.02
    #[arg(long, value_name = "SHARE", default_value = "0%", requires = "baseline")]
    pub(crate) tolerance: Tolerance,
    /// Which peak: what is taken from the device, or what the program holds
    #[arg(long, value_enum, default_value_t = Peak::Reserved)]
    pub(crate) peak: Peak,
    /// How to show it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peak {
    /// Taken from the device: what must fit on the card
    Reserved,
    /// In blocks that the program holds
    Allocated,
}

pub(crate) fn run(arguments: &Arguments, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let limits = Limits::of(arguments, printer)?;
    let mut checks = Vec::new();
    for path in &arguments.files {
        let explanation = oomph_explain::explain(&files::read(path, printer)?);
        let before = checks.len();
        checks.extend(limits.of_devices(path, &explanation, printer)?);
        checks.extend(limits.of_ram(path, &explanation)?);
        if checks.len() == before {
            anyhow::bail!("{}: there is neither a device nor RAM in this recording", path.display());
        }
    }
    // A gate that lets through what it cannot see is no gate.
    let has =
        |ram: bool| checks.iter().any(|check| ram == matches!(check.metric, Metric::Ram | Metric::RamAsked));
    if limits.ram.is_some() && !has(true) {
        anyhow::bail!("--max-ram: there is no RAM in any of these recordings\n\nhint: {RECORD_RAM}");
    }
    if limits.device.is_some() && !has(false) {
        anyhow::bail!("there is no device in any of these recordings: --max-ram alone can be checked");
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

/// What may not be exceeded: at least one of both.
struct Limits {
    device: Option<DeviceLimit>,
    metric: Metric,
    ram: Option<u64>,
}

/// What the peak of a device is held against.
enum DeviceLimit {
    Most(u64),
    Baseline { peak: u64, tolerance: f64 },
}

impl Limits {
    fn of(arguments: &Arguments, printer: &mut Printer) -> anyhow::Result<Self> {
        let metric = match arguments.peak {
            Peak::Reserved => Metric::Reserved,
            Peak::Allocated => Metric::Allocated,
        };
        let device = match (arguments.max_peak, &arguments.baseline) {
            (Some(size), _) => Some(DeviceLimit::Most(size.0)),
            (None, Some(path)) => {
                let explanation = oomph_explain::explain(&files::read(path, printer)?);
                let Some(peak) = peak_of(path, &explanation, metric, printer) else {
                    anyhow::bail!("{}: there is no device in this recording", path.display());
                };
                Some(DeviceLimit::Baseline { peak, tolerance: arguments.tolerance.0 })
            }
            (None, None) => None,
        };
        let ram = arguments.max_ram.map(|size| size.0);
        if device.is_none() && ram.is_none() {
            anyhow::bail!("name a limit: --max-peak SIZE, --baseline FILE or --max-ram SIZE");
        }
        Ok(Self { device, metric, ram })
    }

    /// The devices of a recording; none where only RAM is checked, or where there is only RAM.
    fn of_devices(
        &self,
        path: &Path,
        explanation: &Explanation,
        printer: &mut Printer,
    ) -> anyhow::Result<Option<Check>> {
        let Some(limit) = &self.device else { return Ok(None) };
        let Some(peak) = peak_of(path, explanation, self.metric, printer) else {
            if self.ram.is_some() && explanation.host.is_some() {
                return Ok(None);
            }
            anyhow::bail!("{}: there is no device in this recording", path.display());
        };
        let (limit, most) = match *limit {
            DeviceLimit::Most(most) => (CheckLimit::Most(most), most),
            DeviceLimit::Baseline { peak, tolerance } => {
                let most = peak.saturating_add((peak as f64 * tolerance) as u64);
                (CheckLimit::Baseline { peak, tolerance, most }, most)
            }
        };
        let died = explanation.devices.iter().any(has_died);
        let passed = peak <= most && !died;
        Ok(Some(Check { file: path.display().to_string(), metric: self.metric, peak, limit, died, passed }))
    }

    /// The process's own memory; none where only devices are checked, or where there are only devices.
    fn of_ram(&self, path: &Path, explanation: &Explanation) -> anyhow::Result<Option<Check>> {
        let Some(most) = self.ram else { return Ok(None) };
        let Some(host) = &explanation.host else {
            if self.device.is_some() {
                return Ok(None);
            }
            anyhow::bail!("{}: there is no RAM in this recording\n\nhint: {RECORD_RAM}", path.display());
        };
        let (metric, peak) = match host.own() {
            Some(own) => (Metric::Ram, own),
            None => (Metric::RamAsked, host.asked),
        };
        Ok(Some(Check {
            file: path.display().to_string(),
            metric,
            peak,
            limit: CheckLimit::Most(most),
            died: false,
            passed: peak <= most,
        }))
    }
}

const RECORD_RAM: &str = "record it with: oomph run --ram train.py";

/// The highest peak of all devices, if there is one.
fn peak_of(path: &Path, explanation: &Explanation, metric: Metric, printer: &mut Printer) -> Option<u64> {
    if explanation.devices.iter().any(|device| !device.completeness.complete) {
        printer.warning(&format!(
            "{}: the recording is incomplete; the true peak may have been higher",
            path.display()
        ));
    }
    let peaks = explanation.devices.iter().map(|device| match metric {
        Metric::Allocated => device.peak.allocated.bytes,
        _ => device.peak.reserved.bytes,
    });
    peaks.max()
}
