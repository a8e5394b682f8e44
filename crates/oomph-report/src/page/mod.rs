//! One page that holds everything: the answer in words, then pictures that can be looked into. Nothing is loaded.
//!
//! The words are HTML; the pictures are drawn by a script (`web/`, built into `assets/`) from what [`Subject`] packs. The script is named by
//! its hash in the page's security policy: nothing else runs, and nothing is fetched, whatever a recording contains.

mod answer;
mod builder;
mod columns;
mod crowd;
mod data;
mod limit;
mod packer;
mod ram;
mod subject;
mod times;
mod together;

pub use builder::{Again, Builder, Means, Progress, Wanted, WhatIf};
pub use crowd::{Crowd, MOST_DRAWN};
pub use limit::Limit;
pub use subject::{Extras, Span, Subject};
pub use together::ram_of_run;

use self::data::{DiffDevice, DiffKind, DiffLine, Kind, Page};
use self::together::run_of_ram;
use crate::html::{self, escape};
use crate::shared::{Named, cut_short};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use oomph_explain::Diff;
use oomph_trace::NO_PYTHON;
use oomph_words::{bytes, grouped};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::io::{self, Write};
use std::path::Path;

const SCRIPT: &str = include_str!("../../assets/report.js");
const STYLE: &str = include_str!("../../assets/report.css");

/// Of what the page's script reads: it refuses another.
const SCHEMA: u32 = 1;

/// A page says who made it, within its first bytes.
const MARK: &str = "<meta name=\"generator\" content=\"oomph ";
/// How many bytes those are.
pub const MARK_WITHIN: u64 = 512;

/// Whether a file that begins like this is a page, which can be made again from its recording.
pub fn is_page(start: &[u8]) -> bool {
    start.windows(MARK.len()).any(|part| part == MARK.as_bytes())
}

/// What several recordings are to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// There is one.
    One,
    /// Before and after.
    Diff,
    /// Parts of one run.
    Ranks,
    /// Memory of GPUs, and the RAM of the same run.
    Together,
}

impl Mode {
    /// What recordings of these names are to each other: two are before and after, unless their names differ in a rank only; more are ranks.
    pub fn of_files(files: &[impl AsRef<Path>]) -> Self {
        match files {
            [_] => Self::One,
            [before, after]
                if !differ_in_rank(before.as_ref(), after.as_ref())
                    && !differ_in_process(before.as_ref(), after.as_ref()) =>
            {
                Self::Diff
            }
            _ => Self::Ranks,
        }
    }
}

/// Whether two names are those of the RAM of two processes of one run.
fn differ_in_process(one: &Path, other: &Path) -> bool {
    one != other && run_of_ram(one).is_some_and(|run| run_of_ram(other) == Some(run))
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

/// The device with the highest peak, or that died; without devices, the process with most RAM: the page begins with it. `all` are the explanations in the order of the subjects'
/// recordings.
pub fn worst(subjects: &[Subject], all: &[Named]) -> Option<usize> {
    let device = match crate::shared::worst(all) {
        Some((recording, device)) => (recording, Some(device.ordinal)),
        None => (crate::shared::largest_of_ram(all)?, None),
    };
    subjects.iter().position(|one| one.device() == device)
}

/// Writes a page. `all` are the explanations in the order of the subjects' recordings; `crowd` is the run that these were chosen of.
pub fn write(
    subjects: &[Subject],
    all: &[Named],
    mode: Mode,
    diff: Option<&Diff>,
    crowd: Option<&Crowd>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let worst = worst(subjects, all);
    // Of two that are compared, what is there now.
    let shown = match mode {
        Mode::Diff => subjects.iter().position(|one| one.recording == 1).or(worst).unwrap_or(0),
        Mode::One | Mode::Ranks | Mode::Together => worst.unwrap_or(0),
    };
    let names: Vec<&str> = all.iter().map(|named| named.name).collect();
    let title = match (mode, &names[..]) {
        (Mode::Diff, [before, after, ..]) => format!("{before} → {after}"),
        (_, [one]) if crowd.is_none() => (*one).to_owned(),
        (Mode::Together, [one, other]) => format!("{one} and {other}"),
        (_, several) => format!("{} recordings", crowd.map_or(several.len(), Crowd::recordings)),
    };
    let headline = headline(mode, diff, crowd, subjects.get(shown), all);
    let hash = STANDARD.encode(Sha256::digest(SCRIPT.as_bytes()));
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         {MARK}{version}\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'sha256-{hash}'; \
         style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'\">\n\
         <title>{title} – oomph</title>\n<style>\n{fragment}{STYLE}</style>\n</head>\n<body>\n\
         <header class=\"oomph-header\"><h1>{headline}</h1></header>\n<main>\n\
         {compared}<section id=\"answer\" aria-label=\"Answer\">\n",
        version = env!("CARGO_PKG_VERSION"),
        title = escape(&title),
        fragment = html::CSS,
        headline = escape(&headline),
        compared = match (mode, crowd) {
            (_, Some(crowd)) => crowd.compared(),
            (Mode::Ranks | Mode::Together, None) => crowd::compared(all),
            _ => String::new(),
        },
    )?;
    for subject in subjects {
        out.write_all(subject.answer.as_bytes())?;
    }
    for named in all.iter().filter(|named| is_empty(named)) {
        out.write_all(answer::nothing(named).as_bytes())?;
    }
    let page = Page {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        mode,
        kinds: Kind::all(subjects.iter().any(|one| one.ordinal.is_none())),
        subjects: subjects.iter().map(|one| &one.head).collect(),
        worst: shown,
        diff: diff.map(|diff| diff_of(diff, subjects)),
    };
    // Inside a script element, only `<` could end it.
    let page = serde_json::to_string(&page)?.replace('<', "\\u003c");
    write!(
        out,
        "</section>\n<div id=\"app\"></div>\n<noscript><p>The pictures that can be looked into need JavaScript.</p></noscript>\n</main>\n\
         <script type=\"application/json\" id=\"oomph-page\">{page}</script>\n"
    )?;
    for (id, packed) in subjects.iter().flat_map(|one| &one.columns) {
        writeln!(out, "<script type=\"text/plain\" id=\"{id}\">{packed}</script>")?;
    }
    write!(out, "<script>{SCRIPT}</script>\n</body>\n</html>\n")
}

/// Whether there is nothing to show of a recording.
fn is_empty(named: &Named) -> bool {
    named.explanation.devices.is_empty() && named.explanation.host.is_none()
}

/// The page's first words.
fn headline(
    mode: Mode,
    diff: Option<&Diff>,
    crowd: Option<&Crowd>,
    shown: Option<&Subject>,
    all: &[Named],
) -> String {
    let Some(shown) = shown else { return "There is no event and no segment in this file".to_owned() };
    let peaks = match shown.ordinal {
        Some(ordinal) => (diff.into_iter().flat_map(|diff| &diff.devices))
            .find(|device| device.ordinal == ordinal)
            .and_then(|device| Some((device.before?.allocated.bytes, device.after?.allocated.bytes))),
        None => diff.and_then(|diff| diff.host.as_ref()).map(|host| host.asked),
    };
    let held = if shown.ordinal.is_some() { "allocated" } else { "of RAM asked for" };
    let cut_short = match (mode, all) {
        (Mode::Diff, [before, after]) => {
            cut_short(before, after).map(|words| format!(". {words}")).unwrap_or_default()
        }
        _ => String::new(),
    };
    let words = match (mode, peaks) {
        (Mode::Diff, Some((before, after))) if before == after => {
            format!("{} {held} at the peak, before and after", bytes(after))
        }
        (Mode::Diff, Some((before, after))) => format!(
            "{} {} at the peak: {} {held} before, {} after",
            bytes(before.abs_diff(after)),
            if after > before { "more" } else { "less" },
            bytes(before),
            bytes(after)
        ),
        (Mode::Ranks, _) => {
            let name = all.get(shown.recording).map_or("", |named| named.name);
            let recordings = crowd.map_or(all.len(), Crowd::recordings);
            match shown.ordinal {
                Some(_) => format!(
                    "The worst of {} recordings is {name}: {}",
                    grouped(recordings as u64),
                    shown.headline
                ),
                None => {
                    format!(
                        "Most RAM of {} processes: {name}: {}",
                        grouped(recordings as u64),
                        shown.headline
                    )
                }
            }
        }
        _ => shown.headline.clone(),
    };
    words + &cut_short
}

fn diff_of(diff: &Diff, subjects: &[Subject]) -> Vec<DiffDevice> {
    let find = |recording, ordinal| {
        subjects.iter().position(|one| one.recording == recording && one.ordinal == ordinal)
    };
    let of_ram = diff.host.iter().map(|host| DiffDevice {
        ordinal: None,
        before: find(0, None),
        after: find(1, None),
        lines: host.lines.iter().filter_map(|line| DiffLine::of(line, Some(NO_PYTHON))).collect(),
        kinds: host.kinds.iter().filter_map(DiffKind::of).collect(),
    });
    (diff.devices.iter())
        .map(|device| DiffDevice {
            ordinal: Some(device.ordinal),
            before: find(0, Some(device.ordinal_before)),
            after: find(1, Some(device.ordinal)),
            lines: device.lines.iter().filter_map(|line| DiffLine::of(line, None)).collect(),
            kinds: device.kinds.iter().filter_map(DiffKind::of).collect(),
        })
        .chain(of_ram)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_listed_by_name() {
        let differ = |one: &str, other: &str| differ_in_rank(Path::new(one), Path::new(other));
        assert!(differ("run/rank0.pickle", "run/rank1.pickle"));
        assert!(differ("snapshot_rank_0.pickle", "snapshot_rank_12.pickle"));
        assert!(!differ("before.pickle", "after.pickle"));
        assert!(!differ("rank0-before.pickle", "rank0-after.pickle"));
        assert!(!differ("rank.pickle", "rank1.pickle"));
    }

    #[test]
    fn names_say_what_recordings_are_to_each_other() {
        let mode = |files: &[&str]| Mode::of_files(files);
        assert_eq!(mode(&["a-ram.oomph"]), Mode::One);
        assert_eq!(mode(&["before-ram.oomph", "after-ram.oomph"]), Mode::Diff);
        assert_eq!(mode(&["train-ram.oomph", "train-ram-12.oomph"]), Mode::Ranks);
        assert_eq!(mode(&["train-ram-7.oomph", "train-ram-12.oomph"]), Mode::Ranks);
    }
}
