//! `oomph report`: a page that shows it.

use crate::memory::MemoryArguments;
use crate::outputs::{self, Outputs};
use crate::printer::Printer;
use crate::source_text::SourceText;
use crate::{Outcome, files};
use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use flate2::Compression;
use flate2::write::GzEncoder;
use oomph_explain::{Detail, Explanation};
use oomph_replay::answer::replayable;
use oomph_replay::replayer::Replayer;
use oomph_replay::tune;
use oomph_report::page::{self, Extras, Limit, Mode, Subject};
use oomph_report::picture;
use oomph_report::tune::NamedTuning;
use oomph_report::{Exported, Named, chrome_trace, tensorboard};
use oomph_trace::{History, Recording};
use oomph_words::{bytes, plural};
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
    if arguments.tensorboard.as_ref().is_some_and(|folder| folder.exists() && !folder.is_dir()) {
        bail!("--tensorboard takes a folder");
    }
    let mode = mode(arguments)?;
    let written: Vec<&Path> =
        [Some(output.as_path()), arguments.chrome_trace.as_deref()].into_iter().flatten().collect();
    Outputs { inputs: &arguments.files, force: arguments.force }.check(&written)?;
    let source = match arguments.no_source {
        true => SourceText::none(),
        false => SourceText::below(&arguments.source)?,
    };
    let mut report = Report::new(arguments, &source);
    let mut failed = false;
    for path in &arguments.files {
        // One bad file does not lose the others, but nothing can be compared with it.
        if let Err(error) = report.add(path, printer) {
            if mode == Mode::Diff {
                return Err(error);
            }
            printer.error(&format!("{error:#}"));
            failed = true;
        }
    }
    if report.read.is_empty() {
        return Ok(Outcome::Failed);
    }
    report.replay_the_worst(printer)?;
    let Report { read, subjects, kept, .. } = &report;
    let all: Vec<Named> = read.iter().map(Read::named).collect();
    let mode = if all.len() == 1 { Mode::One } else { mode };
    let diff = match (mode, &read[..]) {
        (Mode::Diff, [before, after]) => Some(oomph_explain::diff(&before.explanation, &after.explanation)),
        _ => None,
    };
    outputs::write_whole(&output, arguments.force, |out| {
        Ok(page::write(subjects, &all, mode, diff.as_ref(), out)?)
    })?;
    let exported: Vec<Exported> = (read.iter().zip(kept))
        .map(|(Read { name, explanation, .. }, (recording, details))| Exported {
            name,
            recording,
            explanation,
            details,
        })
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
            "{} changed since a recording and not quoted for it",
            plural(source.changed() as u64, "source file")
        ));
    }
    let not_replayed = report.replayed.iter().filter(|&&replayed| !replayed).count();
    if arguments.what_if == WhatIf::Auto && not_replayed > 0 {
        let whose = match subjects.len() {
            1 => String::new(),
            all => format!(" for {not_replayed} of {all}"),
        };
        printer.note(&format!(
            "what other settings would have done is left out{whose}: it takes long for so many events; --what-if always puts it in"
        ));
    }
    if !to_stdout {
        let size = output.metadata().ok().filter(|metadata| metadata.is_file());
        let size = size.map_or(String::new(), |metadata| format!(", {}", bytes(metadata.len())));
        let events = plural(report.events as u64, "event");
        printer.note(&format!("wrote {} ({events}{size})", output.display()));
        if arguments.open && open::that_detached(&output).is_err() {
            let place = output.canonicalize().unwrap_or(output);
            printer.note(&format!("no browser could be started here: open file://{}", place.display()));
        }
    }
    Ok(if failed { Outcome::Failed } else { Outcome::Fine })
}

/// A recording that was read.
struct Read<'a> {
    path: &'a Path,
    name: String,
    explanation: Explanation,
}

impl Read<'_> {
    fn named(&self) -> Named<'_> {
        Named { name: &self.name, explanation: &self.explanation }
    }
}

/// What goes into the page, recording by recording.
struct Report<'a> {
    arguments: &'a Arguments,
    source: &'a SourceText,
    read: Vec<Read<'a>>,
    subjects: Vec<Subject>,
    /// Recordings that the exports need again; otherwise none are kept, since ranks are many and large.
    kept: Vec<(Recording, Vec<Detail>)>,
    events: usize,
    /// Whether each subject was replayed under other settings.
    replayed: Vec<bool>,
}

impl<'a> Report<'a> {
    fn new(arguments: &'a Arguments, source: &'a SourceText) -> Self {
        Self {
            arguments,
            source,
            read: Vec::new(),
            subjects: Vec::new(),
            kept: Vec::new(),
            events: 0,
            replayed: Vec::new(),
        }
    }

    fn add(&mut self, path: &'a Path, printer: &mut Printer) -> anyhow::Result<()> {
        let recording = files::read(path, printer)?;
        let (explanation, details) = oomph_explain::explain_in_detail(&recording, picture::COLUMNS);
        let read = Read { path, name: path.display().to_string(), explanation };
        for (index, detail) in details.iter().enumerate() {
            self.events += recording.devices.get(index).map_or(0, |device| device.events.len());
            let replays = match self.arguments.what_if {
                WhatIf::Always => true,
                WhatIf::Never => false,
                WhatIf::Auto => self.events <= MOST_REPLAYED,
            };
            let place = (self.subjects.len(), self.read.len());
            let subject = self.subject(place, &read, &recording, (index, detail), replays, printer)?;
            self.subjects.push(subject);
            self.replayed.push(replays);
        }
        self.read.push(read);
        if self.arguments.tensorboard.is_some() || self.arguments.chrome_trace.is_some() {
            self.kept.push((recording, details));
        }
        Ok(())
    }

    /// The subject that the page begins with is replayed even where all of them together were too many.
    fn replay_the_worst(&mut self, printer: &mut Printer) -> anyhow::Result<()> {
        let all: Vec<Named> = self.read.iter().map(Read::named).collect();
        let Some(worst) = page::worst(&self.subjects, &all) else { return Ok(()) };
        let (recording, ordinal) = self.subjects[worst].device();
        let path = self.read[recording].path;
        let can_be_read_again = path != Path::new("-");
        if self.replayed[worst] || self.arguments.what_if != WhatIf::Auto || !can_be_read_again {
            return Ok(());
        }
        let events = (self.read[recording].explanation.devices.iter())
            .find(|device| device.ordinal == ordinal)
            .map_or(0, |device| device.events);
        if events as usize > MOST_REPLAYED {
            return Ok(());
        }
        let again = files::read(path, printer)?;
        let (explanation, details) = oomph_explain::explain_in_detail(&again, picture::COLUMNS);
        let read = Read { path, name: self.read[recording].name.clone(), explanation };
        let Some(found) = details.iter().enumerate().find(|(_, detail)| detail.ordinal == ordinal) else {
            return Ok(());
        };
        self.subjects[worst] = self.subject((worst, recording), &read, &again, found, true, printer)?;
        self.replayed[worst] = true;
        Ok(())
    }

    /// A device with what the process could have had, and what other settings would have done.
    fn subject(
        &self,
        place: (usize, usize),
        read: &Read,
        recording: &Recording,
        (index, detail): (usize, &Detail),
        replays: bool,
        printer: &mut Printer,
    ) -> anyhow::Result<Subject> {
        let (device, explained) = (&recording.devices[index], &read.explanation.devices[index]);
        let typed = self.arguments.memory.typed(None);
        let asked = self.arguments.memory.memory();
        let end = device.events.time.last().copied().unwrap_or(0);
        let source = |file: &str, line: u32| self.source.line(file, line, end);
        let told = |limit: Option<Limit>, what_if: Option<&NamedTuning>| {
            let extras = Extras { limit, what_if, source: &source };
            Subject::of(place, &read.named(), recording, explained, detail, &extras)
        };
        let limit = asked.and_then(|memory| Limit::asked(memory, &typed));
        if replayable(device).is_err() {
            return Ok(told(limit, None));
        }
        let history = History::of(recording, device);
        let fatal = oomph_explain::fatal_out_of_memory(recording, device);
        if !replays {
            let replayer = Replayer::quick(recording, device, &history, fatal);
            return Ok(told(limit.or_else(|| Limit::recorded(&replayer.memory)), None));
        }
        let replayer = Replayer::new(recording, device, &history, None, fatal);
        let bar = printer.progress("replaying");
        let tuning = tune::tune(&replayer, asked, &[], SAMPLES, &|done, of| bar.set(done as u64, of as u64));
        drop(bar);
        let tuning = files::of_file(read.path, tuning)?;
        let named = NamedTuning::of(&read.name, &typed, device, &replayer, &tuning);
        Ok(told(limit.or_else(|| Limit::recorded(&replayer.memory)), Some(&named)))
    }
}

fn write_trace(exported: &[Exported], path: &Path, force: bool) -> anyhow::Result<()> {
    outputs::write_whole(path, force, |out| {
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
        outputs::write_whole(&place.join(&run.file), true, |out| Ok(run.write(now, out)?))?;
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
    let page = format!("{stem}.html");
    // The recording may be a page itself, that of memory_viz.
    Ok(PathBuf::from(if page == name { format!("{stem}-report.html") } else { page }))
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
        assert_eq!(page("memory_viz.html"), "memory_viz-report.html");
        assert!(default_output(&[PathBuf::from("-")]).is_err());
    }
}
