//! `oomph report`: a page that shows it.

use crate::memory::MemoryArguments;
use crate::printer::Printer;
use crate::source_text::SourceText;
use crate::{Outcome, files};
use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use flate2::Compression;
use flate2::write::GzEncoder;
use oomph_explain::{Detail, Explanation, bytes, plural};
use oomph_replay::answer::replayable;
use oomph_replay::replayer::Replayer;
use oomph_report::page::{self, Extras, Limit, Mode, Subject};
use oomph_report::picture;
use oomph_report::tune::NamedTuning;
use oomph_report::{Exported, Named, chrome_trace, tensorboard};
use oomph_trace::{Device, History, Recording};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Write a page that shows where the memory went: one HTML file that needs no network
///
/// The answer first, in words; then memory over time by kind or by line, what was held at any moment as a table and a flame graph,
/// every allocation with its stack, the allocator's segments and holes at any moment, and what other settings would have done.
/// Two recordings are compared (before, after); several are ranks of one run.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  oomph report snapshot.pickle --open\n  oomph report before.pickle after.pickle -o change.html\n  oomph report rank*.pickle -o ranks.html\n  oomph report snapshot.pickle --gpu t4                     # a T4's limit drawn in, and which setting fits it\n  oomph report snapshot.pickle --tensorboard runs/memory    # for those who live there\n  oomph report snapshot.pickle --chrome-trace trace.json.gz # for ui.perfetto.dev"
)]
pub(crate) struct Arguments {
    /// Recordings; `-` reads one from stdin
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Where to write the page; `-` is stdout [default: the recording's name with .html, in this folder]
    #[arg(short, long, value_name = "PAGE")]
    pub(crate) output: Option<PathBuf>,
    /// Show it in the browser
    #[arg(long)]
    pub(crate) open: bool,
    /// Write over files that exist
    #[arg(long)]
    pub(crate) force: bool,
    /// What several recordings are to each other
    #[arg(long = "as", value_enum, value_name = "WHAT", default_value_t = Relation::Auto)]
    pub(crate) relation: Relation,
    #[command(flatten)]
    pub(crate) memory: MemoryArguments,
    /// Whether to replay the recording under other allocator settings
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = WhatIf::Auto)]
    pub(crate) what_if: WhatIf,
    /// A folder whose Python files may be quoted, also where they were recorded elsewhere; may be given several times [default: this folder]
    #[arg(long, value_name = "FOLDER", conflicts_with = "no_source")]
    pub(crate) source: Vec<PathBuf>,
    /// Quote no source: file names, lines and functions only
    #[arg(long)]
    pub(crate) no_source: bool,
    /// Write scalars and pictures for TensorBoard into this folder as well
    #[arg(long, value_name = "FOLDER")]
    pub(crate) tensorboard: Option<PathBuf>,
    /// Write a trace for ui.perfetto.dev or chrome://tracing as well; ending in .gz, compressed
    #[arg(long, value_name = "TRACE")]
    pub(crate) chrome_trace: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Relation {
    /// Two are before and after, unless their names differ in a rank only; more are ranks
    Auto,
    /// Before and after
    Diff,
    /// Parts of one run
    Ranks,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WhatIf {
    /// Up to half a million events: it takes seconds
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// Beyond so many events, replaying takes longer than people like to wait for a page.
const MOST_REPLAYED: usize = 500_000;
/// As many as a picture has columns.
const SAMPLES: usize = 2_000;

pub(crate) fn run(arguments: &Arguments, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let output = match &arguments.output {
        Some(output) => output.clone(),
        None => default_output(&arguments.files)?,
    };
    let to_stdout = output == Path::new("-");
    if to_stdout && arguments.open {
        bail!("--open shows a file: leave out -o -");
    }
    let mode = mode(arguments)?;
    // Better now than after a minute of work.
    for path in [Some(&output), arguments.chrome_trace.as_ref()].into_iter().flatten() {
        files::may_write(path, arguments.force)?;
    }
    let source = match arguments.no_source {
        true => SourceText::none(),
        false => SourceText::below(&arguments.source),
    };
    let exports = arguments.tensorboard.is_some() || arguments.chrome_trace.is_some();
    let mut read: Vec<(String, Explanation)> = Vec::new();
    // Kept only where they are needed again: ranks are many, and large.
    let mut kept: Vec<(Recording, Vec<Detail>)> = Vec::new();
    let mut subjects = Vec::new();
    let (mut events, mut left_out, mut failed) = (0, 0, false);
    for path in &arguments.files {
        let recording = match files::read(path, printer) {
            Ok(recording) => recording,
            // One bad file does not lose the others.
            Err(error) => {
                printer.error(&format!("{error:#}"));
                failed = true;
                continue;
            }
        };
        let name = path.display().to_string();
        let (explanation, details) = oomph_explain::explain_in_detail(&recording, picture::COLUMNS);
        for detail in &details {
            let found = (recording.devices.iter().find(|one| one.ordinal == detail.ordinal))
                .zip(explanation.devices.iter().find(|one| one.ordinal == detail.ordinal));
            let Some((device, explained)) = found else { continue };
            events += device.events.len();
            let replays = match arguments.what_if {
                WhatIf::Always => true,
                WhatIf::Never => false,
                WhatIf::Auto => events <= MOST_REPLAYED,
            };
            left_out += usize::from(!replays && arguments.what_if == WhatIf::Auto);
            let end = device.events.time.last().copied().unwrap_or(0);
            let text = |file: &str, line: u32| source.line(file, line, end);
            let place = (subjects.len(), read.len());
            let named = Named { name: &name, explanation: &explanation };
            let subject = |extras: &Extras| Subject::of(place, &named, &recording, explained, detail, extras);
            subjects.push(told(arguments, &recording, device, &name, replays, &text, printer, subject)?);
        }
        read.push((name, explanation));
        if exports {
            kept.push((recording, details));
        }
    }
    if read.is_empty() {
        return Ok(Outcome::Failed);
    }
    let all: Vec<Named> = read.iter().map(|(name, explanation)| Named { name, explanation }).collect();
    let mode = if all.len() == 1 { Mode::One } else { mode };
    let diff = (mode == Mode::Diff).then(|| oomph_explain::diff(&read[0].1, &read[1].1));
    files::write_whole(&output, arguments.force, |out| {
        Ok(page::write(&subjects, &all, mode, diff.as_ref(), out)?)
    })?;
    let exported: Vec<Exported> = (read.iter().zip(&kept))
        .map(|((name, explanation), (recording, details))| Exported { name, recording, explanation, details })
        .collect();
    if let Some(path) = &arguments.chrome_trace {
        write_trace(&exported, path, arguments.force)?;
        printer.note(&format!("wrote {}: open it in ui.perfetto.dev or chrome://tracing", path.display()));
    }
    if let Some(folder) = &arguments.tensorboard {
        let runs = write_runs(&exported, folder)?;
        printer.note(&format!(
            "wrote {} to {folder}: tensorboard --logdir {folder}",
            plural(runs as u64, "run"),
            folder = folder.display()
        ));
    }
    if source.changed() > 0 {
        printer.note(&format!(
            "{} changed since the recording and not quoted",
            plural(source.changed() as u64, "source file")
        ));
    }
    if left_out > 0 {
        printer.note("what other settings would have done is left out of a page this long; --what-if always puts it in");
    }
    if !to_stdout {
        let size = output.metadata().map_or(0, |metadata| metadata.len());
        printer.note(&format!(
            "wrote {} ({}, {})",
            output.display(),
            plural(events as u64, "event"),
            bytes(size)
        ));
        if arguments.open {
            open::that_detached(&output).with_context(|| format!("{}: cannot be shown", output.display()))?;
        }
    }
    Ok(if failed { Outcome::Failed } else { Outcome::Fine })
}

/// A subject with what the process could have had, and what other settings would have done.
#[expect(clippy::too_many_arguments, reason = "what is borrowed by the last of them must outlive it")]
fn told(
    arguments: &Arguments,
    recording: &Recording,
    device: &Device,
    name: &str,
    replays: bool,
    source: &dyn Fn(&str, u32) -> Option<String>,
    printer: &mut Printer,
    subject: impl FnOnce(&Extras) -> Subject,
) -> anyhow::Result<Subject> {
    let typed = arguments.memory.typed(None);
    let asked = arguments.memory.memory();
    let limit = asked.and_then(|memory| Limit::asked(memory, &typed));
    if replayable(device).is_err() {
        return Ok(subject(&Extras { limit, what_if: None, source }));
    }
    let history = History::of(recording, device);
    let fatal = oomph_explain::fatal_out_of_memory(recording, device);
    if !replays {
        let replayer = Replayer::quick(recording, device, &history, fatal);
        let limit = limit.or_else(|| Limit::recorded(&replayer.memory));
        return Ok(subject(&Extras { limit, what_if: None, source }));
    }
    let replayer = Replayer::new(recording, device, &history, None, fatal);
    let limit = limit.or_else(|| Limit::recorded(&replayer.memory));
    let bar = printer.progress("replaying");
    let tuning =
        oomph_replay::tune::tune(&replayer, asked, &[], SAMPLES, &|done, of| bar.set(done as u64, of as u64));
    drop(bar);
    let tuning = files::of_file(Path::new(name), tuning)?;
    let named = NamedTuning {
        name,
        typed: &typed,
        lacks: replayer.lacks(),
        device: device.ordinal,
        events: device.events.len() as u64,
        version: replayer.version().to_string(),
        fits: tuning.trials.iter().map(|trial| trial.fit(&replayer)).collect(),
        tuning: &tuning,
    };
    Ok(subject(&Extras { limit, what_if: Some(&named), source }))
}

fn write_trace(exported: &[Exported], path: &Path, force: bool) -> anyhow::Result<()> {
    files::write_whole(path, force, |out| {
        if path.extension().is_some_and(|ending| ending == "gz") {
            let mut compressed = GzEncoder::new(out, Compression::default());
            chrome_trace::write(exported, &mut compressed)?;
            compressed.finish()?;
            return Ok(());
        }
        Ok(chrome_trace::write(exported, out)?)
    })
}

/// A recording written again replaces its run: TensorBoard would show both as one.
fn write_runs(exported: &[Exported], folder: &Path) -> anyhow::Result<usize> {
    let now =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    let runs = tensorboard::runs(exported);
    for run in &runs {
        let place = folder.join(&run.folder);
        std::fs::create_dir_all(&place).with_context(|| place.display().to_string())?;
        files::write_whole(&place.join(&run.file), true, |out| Ok(run.write(now, out)?))?;
    }
    Ok(runs.len())
}

fn mode(arguments: &Arguments) -> anyhow::Result<Mode> {
    let count = arguments.files.len();
    match arguments.relation {
        Relation::Diff if count != 2 => bail!("--as diff takes two recordings, before and after"),
        Relation::Ranks => Ok(Mode::Ranks),
        Relation::Diff => Ok(Mode::Diff),
        Relation::Auto if count == 2 && !differ_in_rank(&arguments.files[0], &arguments.files[1]) => {
            Ok(Mode::Diff)
        }
        Relation::Auto if count == 1 => Ok(Mode::One),
        Relation::Auto => Ok(Mode::Ranks),
    }
}

/// Whether two names are the same but for the number after `rank`.
fn differ_in_rank(one: &Path, other: &Path) -> bool {
    let without_rank = |path: &Path| {
        let name = path.file_name()?.to_str()?.to_lowercase();
        let at = name.find("rank")? + "rank".len();
        let rest = name[at..].trim_start_matches(['_', '-', '.', '=']);
        let after = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        (after.len() < rest.len()).then(|| format!("{}*{after}", &name[..at]))
    };
    without_rank(one).is_some_and(|name| Some(name) == without_rank(other))
}

/// The recording's name with another ending, in this folder.
fn default_output(files: &[PathBuf]) -> anyhow::Result<PathBuf> {
    let [one] = files else { return Ok(PathBuf::from("oomph-report.html")) };
    if one == Path::new("-") {
        bail!("a recording from stdin has no name: say where to write the page with -o");
    }
    let name = one.file_name().and_then(|name| name.to_str()).unwrap_or("oomph-report");
    let stem = [".xz", ".gz", ".zst"].iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name);
    let stem = stem.rsplit_once('.').map_or(stem, |(stem, _)| stem);
    Ok(PathBuf::from(format!("{stem}.html")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_told_by_their_names() {
        let differ = |one: &str, other: &str| differ_in_rank(Path::new(one), Path::new(other));
        assert!(differ("run/rank0.pickle", "run/rank1.pickle"));
        assert!(differ("snapshot_rank_0.pickle", "snapshot_rank_12.pickle"));
        assert!(!differ("before.pickle", "after.pickle"));
        assert!(!differ("rank0-before.pickle", "rank0-after.pickle"));
        assert!(!differ("rank.pickle", "rank1.pickle"));
    }

    #[test]
    fn a_page_is_called_as_its_recording() {
        let page = |file: &str| default_output(&[PathBuf::from(file)]).unwrap().display().to_string();
        assert_eq!(page("runs/snapshot.pickle.xz"), "snapshot.html");
        assert_eq!(page("run.oomph"), "run.html");
        assert_eq!(page("recording"), "recording.html");
        assert!(default_output(&[PathBuf::from("-")]).is_err());
    }
}
