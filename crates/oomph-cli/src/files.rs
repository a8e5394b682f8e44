//! Opening recordings, with progress on long ones.

use crate::Outcome;
use crate::printer::Printer;
use anyhow::{Context, anyhow, bail};
use indicatif::{ProgressBar, ProgressStyle};
use oomph_settings::conf::ConfError;
use oomph_trace::{Device, ReadError, Recording};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Reads a recording, or says which file is wrong, how, and what to do.
pub(crate) fn read(path: &Path, printer: &mut Printer) -> anyhow::Result<Recording> {
    opened(path, printer.shows_progress())
}

fn opened(path: &Path, shows_progress: bool) -> anyhow::Result<Recording> {
    let outcome = if path == Path::new("-") {
        oomph_trace::read(io::stdin())
    } else {
        if path.is_dir() {
            bail!("{}: this is a folder; name the recordings in it", path.display());
        }
        let file = File::open(path).with_context(|| path.display().to_string())?;
        if shows_progress {
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

/// Recordings are read at once as long as the largest of them, so many times, are smaller than this together.
const AT_ONCE: u64 = 2 << 30;
/// And at most so many.
const MOST_AT_ONCE: usize = 16;

/// Reads recordings, one on each core, and gives what `make` makes of each, in order. One that cannot be read does not lose the others.
pub(crate) fn read_each<T: Send + Sync>(
    paths: &[PathBuf],
    printer: &mut Printer,
    make: impl Fn(usize, Recording) -> T + Sync,
) -> Vec<anyhow::Result<T>> {
    if let [path] = paths {
        return vec![read(path, printer).map(|recording| make(0, recording))];
    }
    let largest = paths.iter().filter_map(|path| path.metadata().ok()).map(|metadata| metadata.len()).max();
    let fit = usize::try_from(AT_ONCE / largest.unwrap_or(1).max(1)).unwrap_or(MOST_AT_ONCE);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = cores.min(fit).min(MOST_AT_ONCE).min(paths.len()).max(1);
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let bar = printer.progress("reading");
    let results: Vec<OnceLock<anyhow::Result<T>>> = paths.iter().map(|_| OnceLock::new()).collect();
    let work = || {
        while let index = next.fetch_add(1, Relaxed)
            && let Some(path) = paths.get(index)
        {
            let read = opened(path, false).map(|recording| make(index, recording));
            // Each number is handed out once.
            let _ = results[index].set(read);
            bar.set(done.fetch_add(1, Relaxed) as u64 + 1, paths.len() as u64);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..workers {
            scope.spawn(work);
        }
        work();
    });
    let lost = || Err(anyhow!("a recording was not read"));
    results.into_iter().map(|result| result.into_inner().unwrap_or_else(lost)).collect()
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
