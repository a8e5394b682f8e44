//! What PyTorch itself does with its devices: it is imported, and takes one step after the other on each (`deep.py`).

use crate::child;
use serde::Deserialize;
use std::path::Path;
use std::time::{Duration, Instant};

const ASK: &str = include_str!("deep.py");
/// PyTorch is imported in it, from a cold disk.
const PATIENCE: Duration = Duration::from_secs(120);

/// Phrases of errors that decide what to do. They are not private, so that they stay in every report of an error: with the names taken out
/// the advice is the same.
pub(crate) const UNDEFINED_SYMBOL: &str = "undefined symbol";
pub(crate) const NO_LIBRARY: &str = "cannot open shared object file";
pub(crate) const NOT_YET_INITIALIZED: &str = "system not yet initialized";
pub(crate) const UNKNOWN_ERROR: &str = "unknown error";
pub(crate) const NO_KERNEL_IMAGE: &str = "no kernel image";
pub(crate) const UNSUPPORTED_TOOLCHAIN: &str = "unsupported toolchain";
/// All of them, and others that say what happened.
pub(crate) const KNOWN_WORDS: [&str; 9] = [
    UNDEFINED_SYMBOL,
    NO_LIBRARY,
    NOT_YET_INITIALIZED,
    UNKNOWN_ERROR,
    NO_KERNEL_IMAGE,
    UNSUPPORTED_TOOLCHAIN,
    "out of memory",
    "No CUDA GPUs are available",
    "busy or unavailable",
];

/// What PyTorch has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deep {
    /// The devices that it has made a context on.
    pub devices: Vec<DeepDevice>,
    /// What it could not do; what comes after was not tried.
    pub failure: Option<Failure>,
}

/// A device, as PyTorch has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct DeepDevice {
    pub name: String,
    /// In bytes, beside this very context.
    pub free: u64,
    /// In bytes.
    pub total: u64,
}

/// Where it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub stage: Stage,
    /// The device that it failed on, as PyTorch counts.
    pub device: Option<u32>,
    /// The error, in one line.
    pub why: String,
}

/// What PyTorch does, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// `import torch`.
    Import,
    /// CUDA's start in the driver, and the count of its devices.
    DriverStart,
    /// A context on a device.
    Context,
    /// The first tensor on it.
    Allocation,
    /// The first kernel on it.
    Kernel,
    /// The tensor's way back.
    CopyBack,
}

/// A line of the child: how far it is.
#[derive(Deserialize)]
struct Report {
    stage: Option<Stage>,
    device: Option<u32>,
    error: Option<String>,
    devices: Vec<DeepDevice>,
}

impl Deep {
    /// Asks the PyTorch of this interpreter.
    pub(crate) fn ask(python: &Path) -> Self {
        Self::of(child::run(python, ASK, Instant::now() + PATIENCE))
    }

    fn of(ran: child::Ran) -> Self {
        let first = Report { stage: Some(Stage::Import), device: None, error: None, devices: Vec::new() };
        let report = child::answer(&ran.out).unwrap_or(first);
        // A child that dies or hangs has said no error, only where it was.
        let why =
            report.error.or(ran.failed).unwrap_or_else(|| "it ended without an error message".to_owned());
        let failure = report.stage.map(|stage| Failure { stage, device: report.device, why });
        Self { devices: report.devices, failure }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(out: &str, failed: Option<&str>) -> Deep {
        Deep::of(child::Ran { out: out.as_bytes().to_vec(), failed: failed.map(str::to_owned) })
    }

    #[test]
    fn a_child_that_dies_has_said_where_it_was() {
        let lines = concat!(
            "{\"stage\": \"import\", \"device\": null, \"error\": null, \"devices\": []}\n",
            "{\"stage\": \"kernel\", \"device\": 1, \"error\": null, \"devices\": [{\"name\": \"T4\", \"free\": 1, \"total\": 2}]}\n",
        );
        let deep = of(lines, Some("it ended with signal: 11 (SIGSEGV)"));
        let why = "it ended with signal: 11 (SIGSEGV)".to_owned();
        assert_eq!(deep.failure, Some(Failure { stage: Stage::Kernel, device: Some(1), why }));
        assert_eq!(deep.devices.len(), 1);
        let deep = of(lines, None);
        assert_eq!(deep.failure.unwrap().why, "it ended without an error message");
    }

    #[test]
    fn a_child_that_never_spoke_failed_at_the_first_stage() {
        let failure = of("", Some("there is no such program")).failure.unwrap();
        assert_eq!((failure.stage, failure.why.as_str()), (Stage::Import, "there is no such program"));
    }

    #[test]
    fn a_child_that_is_through_has_no_failure() {
        let deep = of("{\"stage\": null, \"device\": 0, \"error\": null, \"devices\": []}", None);
        assert_eq!(deep, Deep::default());
    }
}
