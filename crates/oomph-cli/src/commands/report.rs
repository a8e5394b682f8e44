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
use oomph_report::page::{self, Builder, Crowd, Means, Mode, Progress, Wanted};
use oomph_report::{Exported, Named, chrome_trace, pprof, speedscope, tensorboard};
use oomph_words::{bytes, grouped, plural};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Write a page that shows where the memory went: one HTML file that needs no network
///
/// The answer first, in words; then memory over time by kind or by line, what was held at any moment as a table and a flame graph,
/// every allocation with its stack, the allocator's segments and holes at any moment, and what other settings would have done.
/// Two recordings are compared (before, after); several are ranks of one run: which did the same, and who stands out. Of more than 64, one is drawn of
/// those that did the same. RAM that `oomph run --ram` recorded is shown as well, alone or below the GPU's memory over the same time; several recordings
/// of RAM with one name (train-ram.oomph, train-ram-1234.oomph) are processes of one run. Of `oomph report train.oomph`, train-ram.oomph is shown too where it lies beside it.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  oomph report snapshot.pickle --open\n  oomph report before.pickle after.pickle -o change.html\n  oomph report rank*.pickle -o ranks.html\n  oomph report snapshot.pickle --gpu t4                     # a T4's limit drawn in, and which setting fits it\n  oomph report snapshot.pickle --tensorboard runs/memory    # for those who live there\n  oomph report snapshot.pickle --chrome-trace trace.json.gz # for ui.perfetto.dev\n  oomph report train-ram.oomph                              # RAM, of oomph run --ram\n  oomph report train.oomph train-ram.oomph                  # the GPU's memory and RAM over the same time\n  oomph report train-ram.oomph --speedscope ram.json        # RAM, for www.speedscope.app"
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
    /// Write flame graphs of RAM for www.speedscope.app, of recordings that `oomph run --ram` made; ending in .gz, compressed
    #[arg(long, value_name = "PROFILE")]
    pub(crate) speedscope: Option<PathBuf>,
    /// Write the RAM that was held at the peak as a heap profile for `go tool pprof`, compressed
    #[arg(long, value_name = "PROFILE")]
    pub(crate) pprof: Option<PathBuf>,
}

impl Arguments {
    /// Whether what shows the memory of GPUs is written for other programs.
    fn exports_gpus(&self) -> bool {
        self.tensorboard.is_some() || self.chrome_trace.is_some()
    }

    /// Whether RAM is.
    fn exports_ram(&self) -> bool {
        self.speedscope.is_some() || self.pprof.is_some()
    }

    /// The files that are written beside the page.
    fn exports(&self) -> impl Iterator<Item = &Path> {
        [&self.chrome_trace, &self.speedscope, &self.pprof].into_iter().filter_map(|path| path.as_deref())
    }
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

impl From<WhatIf> for page::WhatIf {
    fn from(when: WhatIf) -> Self {
        match when {
            WhatIf::Auto => Self::Auto,
            WhatIf::Always => Self::Always,
            WhatIf::Never => Self::Never,
        }
    }
}

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
    let written: Vec<&Path> = std::iter::once(output.as_path()).chain(arguments.exports()).collect();
    Outputs { inputs: &arguments.files, force: arguments.force }.check(&written)?;
    let source = match arguments.no_source {
        true => SourceText::none(),
        false => SourceText::below(&arguments.source)?,
    };
    let mut page = Builder::new(Wanted {
        what_if: arguments.what_if.into(),
        memory: arguments.memory.memory(),
        typed: arguments.memory.typed(None),
        keep: arguments.exports_gpus() || arguments.exports_ram(),
    });
    let mut read: Vec<&Path> = Vec::new();
    let mut failed = false;
    let crowd = crowd(arguments, mode, printer)?;
    let drawn: Vec<&PathBuf> = match &crowd {
        Some((crowd, files, missed)) => {
            failed |= missed;
            crowd.drawn().iter().filter_map(|&place| files.get(place).copied()).collect()
        }
        None => arguments.files.iter().collect(),
    };
    let crowd = crowd.as_ref().map(|(crowd, ..)| crowd);
    for path in drawn {
        // One bad file does not lose the others, but nothing can be compared with it.
        match add(&mut page, path, &source, printer) {
            Ok(()) => read.push(path),
            Err(error) if mode == Mode::Diff => return Err(error),
            Err(error) => {
                printer.error(&format!("{error:#}"));
                failed = true;
            }
        }
    }
    if read.is_empty() {
        return Ok(Outcome::Failed);
    }
    let beside = ram_beside(arguments);
    if let Some(path) = &beside
        && add_beside(&mut page, path, &source, printer)
    {
        read.push(path);
    }
    let has_ram = page.named().iter().any(|named| named.explanation.host.is_some());
    let has_gpus = page.named().iter().any(|named| !named.explanation.devices.is_empty());
    if arguments.exports_ram() && !has_ram {
        bail!("there is no RAM in any of these recordings\n\nhint: record it with: oomph run --ram train.py");
    }
    if arguments.exports_gpus() && has_ram && !has_gpus {
        bail!(
            "a trace and TensorBoard show the memory of GPUs, and this is RAM\n\nhint: for a flame graph: --speedscope ram.speedscope.json"
        );
    }
    if let Some(again) = page.wants_again()
        && let path = read[again.recording]
        && path != Path::new("-")
    {
        let recording = files::read(path, printer)?;
        files::of_file(path, with_means(&source, printer, |means| page.replay(again, &recording, means)))?;
    }
    if let Some(crowd) = crowd {
        page.stand_for(crowd);
    }
    let mode = if page.recordings() == 1 && crowd.is_none() { Mode::One } else { mode };
    let mode = if arguments.relation == Relation::Diff { mode } else { page.mode(mode) };
    for file in page.join() {
        printer.note(&format!(
            "{file} was recorded at another time than the memory of the GPU: they are not drawn together"
        ));
    }
    let diff = page.diff(mode);
    outputs::write_whole(&output, arguments.force, |out| {
        Ok(page::write(page.subjects(), &page.named(), mode, diff.as_ref(), crowd, out)?)
    })?;
    if let Some(path) = &arguments.chrome_trace {
        write_compressed_by_name(path, arguments.force, |out| chrome_trace::write(&page.exported(), out))?;
        printer.note(&format!("wrote {}: open it in ui.perfetto.dev or chrome://tracing", path.display()));
    }
    if let Some(path) = &arguments.speedscope {
        write_compressed_by_name(path, arguments.force, |out| speedscope::write(&page.exported(), out))?;
        printer.note(&format!("wrote {}: open it in www.speedscope.app", path.display()));
    }
    if let Some(path) = &arguments.pprof {
        outputs::write_whole(path, arguments.force, |out| Ok(pprof::write(&page.exported(), out)?))?;
        printer.note(&format!("wrote {path}: go tool pprof -http=: {path}", path = path.display()));
    }
    if let Some(folder) = &arguments.tensorboard {
        let runs = write_runs(&page.exported(), folder)?;
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
    if page.left_out() > 0 {
        let whose = match page.subjects().len() {
            1 => String::new(),
            all => format!(" for {} of {all}", page.left_out()),
        };
        printer.note(&format!(
            "what other settings would have done is left out{whose}: it takes long for so many events; --what-if always puts it in"
        ));
    }
    if !to_stdout {
        let size = output.metadata().ok().filter(|metadata| metadata.is_file());
        let size = size.map_or(String::new(), |metadata| format!(", {}", bytes(metadata.len())));
        let events = plural(page.events() as u64, "event");
        printer.note(&format!("wrote {} ({events}{size})", output.display()));
        if arguments.open && open::that_detached(&output).is_err() {
            let place = output.canonicalize().unwrap_or(output);
            printer.note(&format!("no browser could be started here: open file://{}", place.display()));
        }
    }
    Ok(if failed { Outcome::Failed } else { Outcome::Fine })
}

/// Of more ranks than a page draws: which are drawn, of which files, and whether any file could not be read.
fn crowd<'a>(
    arguments: &'a Arguments,
    mode: Mode,
    printer: &mut Printer,
) -> anyhow::Result<Option<(Crowd, Vec<&'a PathBuf>, bool)>> {
    // What is written for other tools has all of them, and what comes from stdin cannot be read twice.
    let takes_all = arguments.exports_gpus() || arguments.exports_ram();
    let is_piped = arguments.files.iter().any(|path| path == Path::new("-"));
    if mode != Mode::Ranks || arguments.files.len() <= page::MOST_DRAWN || takes_all || is_piped {
        return Ok(None);
    }
    let explained =
        files::read_each(&arguments.files, printer, |_, recording| oomph_explain::explain(&recording));
    let (mut files, mut explanations, mut failed) = (Vec::new(), Vec::new(), false);
    for (path, explanation) in arguments.files.iter().zip(explained) {
        match explanation {
            Ok(explanation) => {
                files.push(path);
                explanations.push((path.display().to_string(), explanation));
            }
            Err(error) => {
                printer.error(&format!("{error:#}"));
                failed = true;
            }
        }
    }
    let named: Vec<Named> =
        explanations.iter().map(|(name, explanation)| Named { name, explanation }).collect();
    let crowd = Crowd::of(&named);
    let (drawn, all) = (crowd.drawn().len(), named.len());
    printer.note(&format!(
        "{} of {} are drawn: one of those that did the same, and {} at most",
        grouped(drawn as u64),
        plural(all as u64, "recording"),
        page::MOST_DRAWN
    ));
    Ok(Some((crowd, files, failed)))
}

fn add(page: &mut Builder, path: &Path, source: &SourceText, printer: &mut Printer) -> anyhow::Result<()> {
    let recording = files::read(path, printer)?;
    let name = path.display().to_string();
    files::of_file(path, with_means(source, printer, |means| page.add(name, recording, means)))
}

/// The RAM of the run of a single recording, where it was recorded as well: `train-ram.oomph` beside `train.oomph`.
fn ram_beside(arguments: &Arguments) -> Option<PathBuf> {
    let [one] = &arguments.files[..] else { return None };
    page::ram_of_run(one).filter(|path| arguments.relation == Relation::Auto && path.is_file())
}

/// Puts RAM in that was not asked for by name. What cannot be read, or is of another run, is told of and left out.
fn add_beside(page: &mut Builder, path: &Path, source: &SourceText, printer: &mut Printer) -> bool {
    let name = path.display().to_string();
    let recording = match files::read(path, printer) {
        Ok(recording) => recording,
        Err(error) => {
            printer.note(&format!("RAM is left out: {error:#}"));
            return false;
        }
    };
    if !page.is_of_same_time(&recording) {
        printer.note(&format!("{name} was recorded at another time, and is left out"));
        return false;
    }
    printer.note(&format!("{name} is of the same run: its RAM is shown over the same time"));
    with_means(source, printer, |means| page.add(name, recording, means)).is_ok()
}

/// With the source that may be quoted, and a bar for each replay.
fn with_means<T>(source: &SourceText, printer: &Printer, work: impl FnOnce(&Means) -> T) -> T {
    let progress = || -> Progress {
        let bar = printer.progress("replaying");
        Box::new(move |done, of| bar.set(done as u64, of as u64))
    };
    work(&Means { source: &|file, line, end| source.line(file, line, end), progress: &progress })
}

/// Compressed where the name ends in .gz.
fn write_compressed_by_name(
    path: &Path,
    force: bool,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> anyhow::Result<()> {
    outputs::write_whole(path, force, |out| {
        if path.extension().is_some_and(|ending| ending == "gz") {
            let mut compressed = GzEncoder::new(out, Compression::default());
            write(&mut compressed)?;
            compressed.finish()?;
            return Ok(());
        }
        Ok(write(out)?)
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
    match arguments.relation {
        Relation::Diff if arguments.files.len() != 2 => {
            bail!("--as diff takes two recordings, before and after")
        }
        Relation::Diff => Ok(Mode::Diff),
        Relation::Ranks => Ok(Mode::Ranks),
        Relation::Auto => Ok(Mode::of_files(&arguments.files)),
    }
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
    fn a_page_is_called_as_its_recording() {
        let page = |file: &str| default_output(&[PathBuf::from(file)]).unwrap().display().to_string();
        assert_eq!(page("runs/snapshot.pickle.xz"), "snapshot.html");
        assert_eq!(page("run.oomph"), "run.html");
        assert_eq!(page("recording"), "recording.html");
        assert_eq!(page("memory_viz.html"), "memory_viz-report.html");
        assert!(default_output(&[PathBuf::from("-")]).is_err());
    }
}
