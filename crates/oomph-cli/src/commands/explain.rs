//! `oomph explain`: where the memory went, why it ran out, what to do.

use crate::arguments::Formats;
use crate::fixing::Choice;
use crate::memory::GpuParser;
use crate::printer::{Printer, width};
use crate::{Outcome, files, fixing, predicting};
use clap::{Args, ValueEnum};
use oomph_explain::{Explanation, Finding, HostWithin, host_within};
use oomph_gpus::{Catalogue, Gpu};
use oomph_predict::patch::{self, Change, Tried};
use oomph_predict::run::{Program, Runner, Until};
use oomph_report::fix::{self, Offer};
use oomph_report::{Named, TextOptions, html, json, markdown, picture, text};
use oomph_trace::Recording;
use oomph_words::Size;
use oomph_words::harmless;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Say where the memory went, why it ran out, and what to do
///
/// The answer comes first: findings, worst first, each with what it would save and how to mend it. Then the evidence: what
/// was alive at the peak, by kind and by line of your own code; what was reserved without being used; the steps.
/// Several files (one a rank) give a table, then the worst of them.
///
/// --fix shows a change of a few lines for the causes that have one, as a diff of your own file, and tries it out: the script runs on
/// a virtual GPU, as it is and with the change in place of the file's text. Where there are several ways to write the change, they are tried in turn; one
/// with which the program fails is not shown. Nothing is applied. The script does what it always does: it writes its files and uses
/// the network. Only files below the current folder, or beside the script that is named, are read.
///
/// Exits with 1 if there are errors or warnings.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  oomph explain snapshot.pickle\n  oomph explain rank*.pickle\n  oomph explain --stacks --lines 3 snapshot.pickle\n  oomph explain --format json snapshot.pickle | jq '.devices[0].peak'\n  oomph explain --fix train.oomph\n  oomph explain --fix --gpu t4 train.oomph -- train.py --batch-size 8\n  oomph explain --fix --format patch train.oomph | git apply"
)]
pub(crate) struct Arguments {
    /// Recordings to explain; `-` reads one from stdin
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// How to show it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
    /// How many lines (or stacks) of the peak to list
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub(crate) lines: usize,
    /// List whole stacks instead of your own lines
    #[arg(long)]
    pub(crate) stacks: bool,
    /// Of RAM: by line of this file, or of these lines of it (load.py:10-25), with what they called; may be given several times
    #[arg(long, value_name = "PLACE", conflicts_with_all = ["stacks", "fix"])]
    pub(crate) within: Vec<Piece>,
    /// Show the change of a few lines that mends it, and check it on a virtual GPU
    #[arg(long, conflicts_with = "stacks")]
    pub(crate) fix: bool,
    /// With --fix: the card to check it on [default: the one that was recorded]
    #[arg(long, value_name = "NAME", value_parser = GpuParser, hide_possible_values = true, requires = "fix")]
    pub(crate) gpu: Option<Gpu>,
    /// With --fix: memory of the card, instead of what the catalogue says: 12GiB
    #[arg(long, value_name = "SIZE", requires = "fix")]
    pub(crate) memory: Option<Size>,
    /// With --fix: the interpreter that has PyTorch [default: python3, or that of the active environment]
    #[arg(long, value_name = "PATH", requires = "fix")]
    pub(crate) python: Option<PathBuf>,
    /// With --fix: only this one of several ways to write the change, from 1 [default: the first that fits; with --format patch the first, untried]
    #[arg(long, value_name = "N", requires = "fix", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) way: Option<u16>,
    /// With --fix: the script or notebook and its arguments [default: the recorded one, without arguments]
    #[arg(value_name = "SCRIPT", last = true, requires = "fix")]
    pub(crate) script: Vec<OsString>,
}

/// As other verbs have it, and with a picture.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Text,
    /// For scripts; keys are documented and stable
    Json,
    /// For issues and pull requests
    Markdown,
    /// For notebooks and web pages: a fragment with a picture of memory over time, without scripts
    Html,
    /// With --fix: the diff alone, unchecked, for git apply
    Patch,
}

/// Lines of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    name: String,
    file: PathBuf,
    absolute: Option<PathBuf>,
    lines: RangeInclusive<u32>,
}

impl FromStr for Piece {
    type Err = String;

    /// `FILE`, `FILE:LINE` or `FILE:FIRST-LAST`.
    fn from_str(text: &str) -> Result<Self, String> {
        let piece = |file: &str, lines| Self {
            name: text.to_owned(),
            absolute: std::path::absolute(file).ok(),
            file: file.into(),
            lines,
        };
        let all = || piece(text, 0..=u32::MAX);
        let Some((file, lines)) = text.rsplit_once(':') else { return Ok(all()) };
        let (first, last) = lines.split_once('-').unwrap_or((lines, lines));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if first <= last => Ok(piece(file, first..=last)),
            (Ok(_), Ok(_)) => Err(format!("the lines {lines} end before they begin")),
            // A colon is part of some names.
            _ => Ok(all()),
        }
    }
}

impl Piece {
    /// Which of these files are meant: by the path, though a program may have been started by a shorter one; or else by the end of the path, as it is printed, if only one ends so.
    fn among<'a>(&self, files: &BTreeSet<&'a str>) -> Vec<&'a str> {
        let all = |is_it: &dyn Fn(&Path) -> bool| -> Vec<&'a str> {
            files.iter().copied().filter(|file| is_it(Path::new(file))).collect()
        };
        let named = all(&|file| file == self.file || std::path::absolute(file).ok() == self.absolute);
        let ending = all(&|file| file.ends_with(&self.file));
        if named.is_empty() && ending.len() == 1 { ending } else { named }
    }
}

impl Formats for Format {
    const TEXT: Self = Self::Text;
    const JSON: Self = Self::Json;
}

pub(crate) fn run(arguments: &Arguments, printer: &mut Printer) -> anyhow::Result<Outcome> {
    match (arguments.fix, arguments.format) {
        (true, Format::Html) => anyhow::bail!("--fix is shown as text, json, markdown or patch"),
        (true, _) => return fix(arguments, printer),
        (false, Format::Patch) => anyhow::bail!("--format patch is for --fix"),
        (false, _) => {}
    }
    let columns = if arguments.format == Format::Html { picture::COLUMNS } else { 0 };
    let mut explanations = Vec::new();
    let mut failed = false;
    let ends = arguments.files.len() == 1 && !printer.goes_on();
    let explained = files::read_each(&arguments.files, printer, |_, recording| {
        let mut explanation = oomph_explain::explain_over_time(&recording, columns);
        if let (Some(host), Some(held), false) =
            (&recording.host, &mut explanation.host, arguments.within.is_empty())
        {
            let files = recording.stacks.frames().iter().map(|frame| recording.strings.get(frame.file));
            let files: BTreeSet<&str> = files.collect();
            let within = |piece: &Piece| {
                let wanted = piece.among(&files);
                let lines = host_within(&recording, host, |file, line| {
                    wanted.contains(&file) && piece.lines.contains(&line)
                });
                HostWithin { piece: piece.name.clone(), lines }
            };
            held.within = arguments.within.iter().map(within).collect();
        }
        if ends {
            // The process is about to end: giving a hundred MB back first takes time.
            std::mem::forget(recording);
        }
        explanation
    });
    for (path, explanation) in arguments.files.iter().zip(explained) {
        if let Ok(explanation) = &explanation {
            say_what_is_not_within(arguments, explanation, printer);
        }
        match explanation {
            Ok(explanation) => explanations.push((path.display().to_string(), explanation)),
            // One bad file does not lose the others.
            Err(error) => {
                printer.error(&format!("{error:#}"));
                failed = true;
            }
        }
    }
    if explanations.is_empty() {
        return Ok(Outcome::Failed);
    }
    let named: Vec<Named> =
        explanations.iter().map(|(name, explanation)| Named { name, explanation }).collect();
    let options = TextOptions { lines: arguments.lines, stacks: arguments.stacks, width: width() };
    printer.answer(arguments.format, |format| match format {
        Format::Text => text::explanation(&named, options),
        Format::Json => json::explanation(&named),
        Format::Markdown => markdown::explanation(&named, arguments.lines),
        Format::Html | Format::Patch => html::explanation(&named, arguments.lines),
    })?;
    Ok(if failed {
        Outcome::Failed
    } else if explanations.iter().any(|(_, explanation)| explanation.has_problems()) {
        Outcome::Findings
    } else {
        Outcome::Fine
    })
}

/// A name that is not as it was recorded finds nothing.
fn say_what_is_not_within(arguments: &Arguments, explanation: &Explanation, printer: &mut Printer) {
    let Some(host) = &explanation.host else {
        if !arguments.within.is_empty() {
            printer.note("--within is of RAM, and this is no recording of it: oomph run --ram makes one");
        }
        return;
    };
    for piece in host.within.iter().filter(|piece| piece.lines.is_empty()) {
        printer.note(&format!(
            "{}: no line of it held anything at the peak. A file is named as it was recorded, from this folder, or by the end of its path if no other ends so",
            harmless(&piece.piece)
        ));
    }
}

/// Shows the change for the worst finding that has one, and tries it.
fn fix(arguments: &Arguments, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let [path] = arguments.files.as_slice() else { anyhow::bail!("--fix takes one recording at a time") };
    let recording = files::read(path, printer)?;
    let explanation = oomph_explain::explain(&recording);
    let name = path.display().to_string();
    let named = Named { name: &name, explanation: &explanation };
    let outcome = if explanation.has_problems() { Outcome::Findings } else { Outcome::Fine };
    let script = arguments.script.first().map(Path::new);
    let offered = fixing::offered(&explanation, arguments.python.as_deref(), script)
        .and_then(|(finding, changes)| Ok((finding, chosen(changes, arguments.way)?)));
    let (finding, changes) = match offered {
        Ok(found) => found,
        Err(why) if arguments.format == Format::Patch => anyhow::bail!("{name}: no change is offered: {why}"),
        Err(why) => {
            printer.data(&whole(arguments, &named))?;
            printer.note(&format!("no change is offered: {}", harmless(&why)));
            return Ok(outcome);
        }
    };
    let shown = &changes[0].shown;
    if fixing::is_newer(&changes[0].file.path, &recording) {
        printer.warning(&format!(
            "{shown} has changed since the recording: look whether the lines are still those"
        ));
    }
    if arguments.format == Format::Patch {
        let Some(patch) = &changes[0].patch else {
            anyhow::bail!("{shown}: this notebook is laid out in a way of its own: change the cell by hand")
        };
        if arguments.way.is_none() && changes.len() > 1 {
            printer.warning(&format!(
                "this is the first of {} ways to write it, untried; without --format patch they are tried, and --way takes the one that fits",
                changes.len()
            ));
        }
        printer.data(patch)?;
        return Ok(Outcome::Fine);
    }
    if arguments.format == Format::Text {
        printer.data(&text::one_finding(&named, finding, options(arguments)))?;
    }
    let (place, checked) = match fixing::choose(check(arguments, &recording, finding, &changes, printer)) {
        Ok(Choice::Way(place, checked)) => (place, checked),
        Ok(Choice::None(why)) => {
            match arguments.format {
                Format::Text => {}
                Format::Json => printer.data(&fix::json_without(&whole(arguments, &named), &why))?,
                _ => printer.data(&whole(arguments, &named))?,
            }
            printer.note(&format!("no change is offered: {why}"));
            return Ok(outcome);
        }
        Err(error) => {
            return fixing::interrupted(&error).map(Outcome::Interrupted).ok_or(error);
        }
    };
    let change = &changes[place];
    let offer = Offer {
        file: &change.shown,
        diff: &change.diff,
        way: arguments.way.map_or(place + 1, usize::from),
        checked: checked.as_deref().map_err(String::as_str),
        recording: Some(name.as_str()).filter(|_| change.patch.is_some()),
    };
    printer.data(&match arguments.format {
        Format::Json => fix::json(&whole(arguments, &named), &offer),
        Format::Markdown => whole(arguments, &named) + &fix::markdown(&offer),
        _ => fix::diff(offer.file, offer.diff) + &fix::answer(&offer, width()),
    })?;
    if arguments.script.is_empty() && checked.is_ok_and(|checked| checked.fits_without) {
        printer.hint(
            "give the arguments of the recorded run: oomph explain --fix RECORDING -- SCRIPT ARGUMENTS",
        );
    }
    Ok(outcome)
}

/// All ways to write the change, or the one that was asked for.
fn chosen(mut changes: Vec<Change>, way: Option<u16>) -> Result<Vec<Change>, String> {
    match way.map(usize::from) {
        None => Ok(changes),
        Some(way) if way <= changes.len() => Ok(vec![changes.swap_remove(way - 1)]),
        Some(way) => Err(format!("there is no way {way} to write it, only {}", changes.len())),
    }
}

fn options(arguments: &Arguments) -> TextOptions {
    TextOptions { lines: arguments.lines, stacks: arguments.stacks, width: width() }
}

/// As without --fix.
fn whole(arguments: &Arguments, named: &Named) -> String {
    let all = std::slice::from_ref(named);
    match arguments.format {
        Format::Json => json::explanation(all),
        Format::Markdown => markdown::explanation(all, arguments.lines),
        _ => text::explanation(all, options(arguments)),
    }
}

fn check(
    arguments: &Arguments,
    recording: &Recording,
    finding: &Finding,
    changes: &[Change],
    printer: &mut Printer,
) -> anyhow::Result<Tried> {
    let program = match arguments.script.is_empty() {
        false => predicting::program(&arguments.script, false)?,
        true => recorded_program(recording, finding)?,
    };
    let gpu = match (&arguments.gpu, arguments.memory) {
        (None, None) => recorded_card(recording)?,
        (gpu, memory) => predicting::card(gpu.as_ref(), memory, &[])?,
    };
    let installed = fixing::installed(arguments.python.as_deref())?;
    let runner = Runner::new(&installed, 0, Until::End, None)?;
    printer.note(&format!(
        "checking a change: {} runs on a virtual {}, without it and with it",
        program.typed(),
        gpu.title
    ));
    let before = patch::before(&runner, &program, &gpu)?;
    Ok(patch::try_in_turn(&runner, &program, &gpu, changes, before)?)
}

/// The script that was recorded: the outermost frame when memory ran out. A stranger's word, so it is run only if it lies below this folder.
fn recorded_program(recording: &Recording, finding: &Finding) -> anyhow::Result<Program> {
    let census = recording.censuses.last();
    let outermost = census.and_then(|census| census.frames.last()).map(|frame| frame.file.as_str());
    let file = outermost.or(finding.patch.as_ref().map(|patch| patch.file.as_str()));
    match file.and_then(fixing::named_here) {
        Some(named) => predicting::program(&[named.shown(Path::new(".")).into()], false),
        None => anyhow::bail!(
            "which script was it? name it with its arguments: oomph explain --fix RECORDING -- train.py"
        ),
    }
}

fn recorded_card(recording: &Recording) -> anyhow::Result<Gpu> {
    let name =
        recording.censuses.last().map(|census| census.card.name.as_str()).filter(|name| !name.is_empty());
    let catalogue = Catalogue::load()?;
    match name.map(|name| catalogue.find(name)) {
        Some(Ok(gpu)) => Ok(gpu.clone()),
        Some(Err(error)) => anyhow::bail!("{}; name a card: --gpu t4", harmless(&error)),
        None => anyhow::bail!("the recording does not say on which card; name it: --gpu t4"),
    }
}

#[cfg(test)]
mod tests {
    use super::Piece;
    use std::collections::BTreeSet;

    #[test]
    fn a_file_is_named_by_its_path_or_by_the_end_of_it() {
        let files =
            BTreeSet::from(["/content/load.py", "/content/lib/util.py", "/v/numpy/util.py", "own.py"]);
        let here = std::env::current_dir().unwrap().join("own.py");
        for (place, wanted) in [
            ("/content/load.py:3", vec!["/content/load.py"]),
            ("content/load.py:1-9", vec!["/content/load.py"]),
            ("load.py", vec!["/content/load.py"]),
            ("lib/util.py", vec!["/content/lib/util.py"]),
            // Which one is not said.
            ("util.py", vec![]),
            ("oad.py", vec![]),
            ("own.py:2", vec!["own.py"]),
            (here.to_str().unwrap(), vec!["own.py"]),
        ] {
            assert_eq!(place.parse::<Piece>().unwrap().among(&files), wanted, "{place}");
        }
    }
}
