//! Opening recordings, with progress on long ones.

use crate::Outcome;
use crate::printer::Printer;
use anyhow::{Context, anyhow, bail};
use indicatif::{ProgressBar, ProgressStyle};
use oomph_settings::conf::ConfError;
use oomph_trace::{Device, ReadError, Recording};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, Instant};

/// Reads a recording, or says which file is wrong, how, and what to do.
pub(crate) fn read(path: &Path, printer: &mut Printer) -> anyhow::Result<Recording> {
    let outcome = if path == Path::new("-") {
        oomph_trace::read(io::stdin())
    } else {
        if path.is_dir() {
            bail!("{}: this is a folder; name the recordings in it", path.display());
        }
        let file = File::open(path).with_context(|| path.display().to_string())?;
        if printer.shows_progress() {
            let length = file.metadata().map_or(0, |metadata| metadata.len());
            oomph_trace::read(Watched::new(file, length))
        } else {
            oomph_trace::read(file)
        }
    };
    outcome.map_err(|error| {
        let hint = hint(&error);
        let error = anyhow!("{}: {error}", path.display());
        if let Some(hint) = hint {
            return anyhow!("{error:#}\n\nhint: {hint}");
        }
        error
    })
}

fn hint(error: &ReadError) -> Option<&'static str> {
    match error {
        ReadError::NotASnapshot | ReadError::Empty => Some(
            "make a snapshot with torch.cuda.memory._record_memory_history() at the \
             start and torch.cuda.memory._dump_snapshot(\"snapshot.pickle\") at the end",
        ),
        ReadError::TruncatedTooEarly { .. } => {
            Some("the process was probably killed while dumping; dump again, or dump earlier")
        }
        ReadError::NoSnapshotInPage => {
            Some("save the page that torch.cuda._memory_viz wrote, not the empty viewer")
        }
        _ => None,
    }
}

/// The device to work on: the one that was asked for, or the one with the most events.
pub(crate) fn device<'r>(
    recording: &'r Recording,
    path: &Path,
    ordinal: Option<u32>,
    printer: &mut Printer,
) -> anyhow::Result<&'r Device> {
    let devices = &recording.devices;
    let found = match ordinal {
        Some(ordinal) => devices.iter().find(|device| device.ordinal == ordinal),
        None => devices.iter().rev().max_by_key(|device| device.events.len()),
    };
    let ordinals: Vec<String> = devices.iter().map(|device| device.ordinal.to_string()).collect();
    let Some(device) = found else {
        bail!(
            "{}: {}",
            path.display(),
            match ordinal {
                Some(ordinal) if !devices.is_empty() =>
                    format!("there is no device {ordinal}; it has {}", ordinals.join(", ")),
                _ => oomph_report::NOTHING_RECORDED.to_owned(),
            }
        );
    };
    if ordinal.is_none() && devices.len() > 1 {
        let (chosen, all) = (device.ordinal, ordinals.join(", "));
        printer.note(&format!("device {chosen} has the most events; --device takes another of {all}"));
    }
    Ok(device)
}

/// Says that settings were refused, in PyTorch's words, and what was perhaps meant.
pub(crate) fn refused(
    argument: &str,
    text: Option<&str>,
    error: &ConfError,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    printer.error(&format!("{argument}: {error}"));
    if let Some(hint) = text.and_then(|text| error.hint(text)) {
        printer.hint(&hint);
    }
    Ok(Outcome::Failed)
}

/// An error with the file that it is about.
pub(crate) fn of_file<T, E: std::error::Error + Send + Sync + 'static>(
    path: &Path,
    outcome: Result<T, E>,
) -> anyhow::Result<T> {
    outcome.with_context(|| path.display().to_string())
}

/// A file that shows how far it has been read, once that takes longer than a second.
struct Watched {
    file: File,
    length: u64,
    done: u64,
    began: Instant,
    bar: Option<ProgressBar>,
}

impl Watched {
    fn new(file: File, length: u64) -> Self {
        Self { file, length, done: 0, began: Instant::now(), bar: None }
    }
}

impl Read for Watched {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read(into)?;
        self.done += n as u64;
        if self.bar.is_none() && self.began.elapsed() > Duration::from_secs(1) {
            let style = ProgressStyle::with_template("reading {bar:40} {bytes}/{total_bytes} {eta}");
            self.bar = style.ok().map(|style| ProgressBar::new(self.length).with_style(style));
        }
        if let Some(bar) = &self.bar {
            bar.set_position(self.done);
            if n == 0 {
                bar.finish_and_clear();
            }
        }
        Ok(n)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
