//! How a tuning looks: the advice first, then what was tried.

use crate::json;
use crate::markdown::escape;
use crate::replay::{
    ENDS_THERE, STALLS, Typed, about_device, doubt, margin, room, settings, to_spare, words_for_memory,
};
use crate::shared::quoted;
use crate::text::{BOLD, CYAN, DIM, GREEN, YELLOW, paint, wrap};
use oomph_replay::replayer::{Doubt, Replayer};
use oomph_replay::tune::{Fit, Trial, Tuning};
use oomph_trace::Device;
use oomph_words::{bytes, grouped, printable};
use std::fmt::Write;

/// A tuning with what it is about.
pub struct NamedTuning<'a> {
    /// The file, as the user gave it.
    pub name: &'a str,
    /// What else was typed.
    pub typed: &'a Typed,
    /// What the recording lacks: (cut off or overwritten, blocks that were there before it began).
    pub lacks: (bool, u64),
    pub device: u32,
    /// Whether the recorded program died for want of memory: what fits is then not known, only what gets past that.
    pub died: bool,
    /// How many events were replayed.
    pub events: u64,
    /// The rules that were followed.
    pub version: String,
    /// Whether each trial gets to the end of the recording, in order; `None` if no memory was asked about.
    pub fits: Vec<Option<Fit>>,
    pub tuning: &'a Tuning,
}

impl<'a> NamedTuning<'a> {
    /// What was found for a device of a file.
    pub fn of(
        name: &'a str,
        typed: &'a Typed,
        device: &Device,
        replayer: &Replayer,
        tuning: &'a Tuning,
    ) -> Self {
        Self {
            name,
            typed,
            lacks: replayer.lacks(),
            device: device.ordinal,
            died: replayer.died(),
            events: device.events.len() as u64,
            version: replayer.version().to_string(),
            fits: tuning.trials.iter().map(|trial| trial.fit(replayer)).collect(),
            tuning,
        }
    }
}

/// What `tune` says to do.
pub(crate) fn advice(named: &NamedTuning) -> Vec<String> {
    let tuning = named.tuning;
    let recorded = tuning.recorded();
    let mut lines = Vec::new();
    match (tuning.best_trial(), recorded) {
        (Some(best), Some(recorded)) => {
            let index = tuning.best.unwrap_or(0);
            let mut gains = Vec::new();
            match (named.fits.first().copied().flatten(), named.fits.get(index).copied().flatten()) {
                (Some(Fit::No), Some(Fit::Yes)) if named.died => {
                    let spare = to_spare(best.asked.as_ref().and_then(|asked| margin(asked, best.least)));
                    gains.push(format!("it gets past the recorded death{spare}"));
                }
                (Some(Fit::No), Some(Fit::Yes)) => {
                    gains.push("it fits, where the recorded settings do not".to_owned());
                }
                (Some(Fit::No), Some(Fit::Maybe)) => {
                    let may = if named.died { "it may get past the recorded death" } else { "it may fit" };
                    gains.push(format!(
                        "{may}: how much memory there was is not known (--limit or --memory say it)"
                    ));
                }
                _ => {}
            }
            if let (Some(less), Some(more)) = (best.least, recorded.least)
                && less.bytes < more.bytes
            {
                let saved = bytes(more.bytes - less.bytes);
                let there = if named.died { " to get there" } else { "" };
                gains.push(format!(
                    "it needs {} instead of {}{there}: {saved} less",
                    bytes(less.bytes),
                    bytes(more.bytes)
                ));
            }
            let both_fit = [0, index].iter().all(|&at| named.fits.get(at) == Some(&Some(Fit::Yes)));
            if let (Some(after), Some(before)) = (&best.asked, &recorded.asked)
                && after.usage.retries < before.usage.retries
                && both_fit
            {
                gains.push(format!(
                    "it stalls {} times instead of {}",
                    grouped(after.usage.retries),
                    grouped(before.usage.retries)
                ));
            }
            lines.push(format!("Best: {}.", gains.join("; ")));
        }
        _ => {
            let verdict = match named.fits.first() {
                Some(Some(Fit::Yes)) => "No setting is needed",
                _ if may_fit(named).is_some() => "A setting may help",
                _ => "No setting helps",
            };
            lines.push(format!("{verdict}: {}.", no_help(named)));
        }
    }
    if named.died && named.fits.iter().any(|fit| fit.is_none_or(|fit| fit != Fit::No)) {
        lines.push(ENDS_THERE.to_owned());
    }
    lines
}

/// The setting that needs least of those of which it is not known whether they fit.
fn may_fit<'a>(named: &'a NamedTuning) -> Option<&'a Trial> {
    let open = named.tuning.trials.iter().zip(&named.fits).filter(|(_, fit)| **fit == Some(Fit::Maybe));
    open.map(|(trial, _)| trial).min_by_key(|trial| trial.least.map(|least| least.bytes))
}

fn no_help(named: &NamedTuning) -> String {
    let tuning = named.tuning;
    if let (Some(trial), Some(Doubt::MemoryUncertain { at_least, below })) =
        (may_fit(named), tuning.uncertain_memory())
    {
        return format!(
            "{} needs {}, and the recorded program had at least {}, less than {}; say how much with --limit or --memory",
            settings(&trial.conf),
            trial.least.map_or("more".to_owned(), |least| bytes(least.bytes)),
            bytes(*at_least),
            bytes(*below)
        );
    }
    let room = tuning.memory.and_then(room);
    let nothing_fits = !named.fits.is_empty() && named.fits.iter().all(|fit| *fit == Some(Fit::No));
    match room {
        Some(room) if nothing_fits && tuning.lower_bound > room => format!(
            "at its peak the program holds {}, and there is {}; see `oomph explain` for what holds it",
            bytes(tuning.lower_bound),
            bytes(room)
        ),
        Some(room) if nothing_fits => {
            let least = tuning.trials.iter().filter_map(|trial| trial.least).map(|least| least.bytes).min();
            format!(
                "the best of them needs {}, and there is {}",
                least.map_or("more".to_owned(), bytes),
                bytes(room)
            )
        }
        Some(room) if named.fits.first() == Some(&Some(Fit::Yes)) => {
            let recorded = tuning.recorded();
            let spare = recorded.and_then(|one| margin(one.asked.as_ref()?, one.least));
            match named.died {
                true => format!(
                    "the recorded settings get past the recorded death in {}{}",
                    bytes(room),
                    to_spare(spare)
                ),
                false => format!("the recorded settings fit into {} as they are", bytes(room)),
            }
        }
        _ => "the recorded settings need within 1 % of the best of them".to_owned(),
    }
}

/// The line to paste.
pub fn line_to_paste(tuning: &Tuning) -> Option<String> {
    let best = tuning.best_trial()?;
    Some(if best.conf.is_empty() {
        "unset PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF".to_owned()
    } else {
        format!("export PYTORCH_CUDA_ALLOC_CONF={}", quoted(&best.conf))
    })
}

fn outcome(fit: Option<Fit>, died: bool) -> &'static str {
    match (fit, died) {
        (None, _) => "",
        (Some(Fit::Yes), false) => "fits",
        (Some(Fit::Maybe), false) => "may fit",
        (Some(Fit::No), false) => "does not fit",
        (Some(Fit::Yes), true) => "gets past the death",
        (Some(Fit::Maybe), true) => "may get past it",
        (Some(Fit::No), true) => "dies",
    }
}

fn rows(named: &NamedTuning) -> Vec<[String; 5]> {
    let tuning = named.tuning;
    (tuning.trials.iter().zip(&named.fits).enumerate())
        .map(|(index, (trial, &fits))| {
            let recorded = if trial.recorded { " (recorded)" } else { "" };
            let best = if tuning.best == Some(index) { " ← best" } else { "" };
            [
                format!("{}{recorded}", settings(&trial.conf)),
                reserved(trial),
                trial.least.map_or("-".to_owned(), |least| bytes(least.bytes)),
                grouped(stalls(trial)),
                format!("{}{best}", outcome(fits, named.died)).trim_start().to_owned(),
            ]
        })
        .collect()
}

/// The reserved peak with room to spare; in doubt, about.
fn reserved(trial: &Trial) -> String {
    let uncertain = trial.plenty.doubts.iter().any(|doubt| matches!(doubt, Doubt::Ties { .. }));
    format!("{}{}", if uncertain { "~" } else { "" }, bytes(trial.plenty.usage.reserved.peak))
}

/// Retries in the memory that was asked about; without any, in the least that it completes in.
pub(crate) fn stalls(trial: &Trial) -> u64 {
    match (&trial.asked, trial.least) {
        (Some(asked), _) => asked.usage.retries,
        (None, Some(least)) => least.retries,
        (None, None) => 0,
    }
}

fn heading(tuning: &Tuning) -> [String; 5] {
    let retries = match tuning.memory.and_then(room) {
        Some(room) => format!("retries in {}", bytes(room)),
        None => "retries in that".to_owned(),
    };
    ["setting".to_owned(), "peak reserved".to_owned(), "least memory".to_owned(), retries, String::new()]
}

/// A tuning, for a terminal.
pub fn text(named: &NamedTuning, width: usize) -> String {
    let tuning = named.tuning;
    let mut out = String::new();
    let about = if tuning.uncertain_memory().is_some() { "for at least" } else { "for" };
    let memory = words_for_memory(tuning.memory, named.typed, about);
    let _ = writeln!(
        out,
        "{} {}",
        paint(BOLD, printable(named.name)),
        paint(DIM, about_device(named.device, named.events, named.lacks))
    );
    let _ = writeln!(out, "Tuned by the rules of PyTorch {}{memory}", named.version);
    for line in advice(named) {
        let style = if tuning.best.is_some() { GREEN } else { YELLOW };
        let _ = writeln!(out, "\n{}", paint(style, wrap(&line, width, 0, 2)));
    }
    if let Some(line) = line_to_paste(tuning) {
        let _ = writeln!(out, "\n    {}", paint(CYAN, line));
    }
    let (rows, heading) = (rows(named), heading(tuning));
    let widths: Vec<usize> = (0..5)
        .map(|column| {
            let cells = rows.iter().chain([&heading]).map(|row| row[column].chars().count());
            cells.max().unwrap_or(0)
        })
        .collect();
    let show = |row: &[String; 5]| {
        let mut line = format!("  {:<width$}", row[0], width = widths[0]);
        for column in 1..4 {
            let _ = write!(line, "  {:>width$}", row[column], width = widths[column]);
        }
        format!("{line}  {}", row[4]).trim_end().to_owned()
    };
    let _ = writeln!(out, "\n{}", paint(BOLD, show(&heading)));
    for row in &rows {
        let _ = writeln!(out, "{}", show(row));
    }
    let bound = format!(
        "No allocator needs less than {}, which is what the program holds at its peak{}. Least memory is for segments, found \
         by replaying again and again; the CUDA context comes on top. Each retry {}.{}",
        bytes(tuning.lower_bound),
        if named.died { ", with the request that it died of" } else { "" },
        STALLS.trim_start_matches("each "),
        if rows.iter().any(|row| row[1].starts_with('~')) {
            " A peak marked ~ can differ a little, depending on the addresses that the driver hands out."
        } else {
            ""
        }
    );
    let _ = writeln!(out, "\n{}", wrap(&bound, width, 0, 0));
    let doubts = tuning.doubts();
    if !doubts.is_empty() {
        let _ = writeln!(out, "\nNot exact:");
        for one in &doubts {
            let _ = writeln!(out, "  - {}", wrap(&doubt(one), width, 4, 4));
        }
    }
    if named.name != "-" {
        let next = match tuning.best_trial() {
            Some(best) => {
                let arguments = &named.typed.arguments;
                format!("oomph replay {} --conf {}{arguments}", quoted(named.name), quoted(&best.conf))
            }
            None => format!("oomph explain {}", quoted(named.name)),
        };
        let _ = writeln!(out, "\n{} {}", paint(BOLD, "Next:"), paint(CYAN, next));
    }
    out
}

pub fn json(named: &NamedTuning) -> String {
    json::tune::tuning(named)
}

/// A tuning, for issues and pull requests.
pub fn markdown(named: &NamedTuning) -> String {
    let mut out = format!("## {}\n\n", escape(named.name));
    for line in advice(named) {
        let _ = writeln!(out, "{}\n", escape(&line));
    }
    if let Some(line) = line_to_paste(named.tuning) {
        let _ = writeln!(out, "```sh\n{line}\n```\n");
    }
    let heading = heading(named.tuning);
    let _ = writeln!(out, "| {} |\n|---|---:|---:|---:|---|", heading.join(" | "));
    for row in rows(named) {
        let cells: Vec<String> = row.iter().map(|cell| escape(cell)).collect();
        let _ = writeln!(out, "| {} |", cells.join(" | "));
    }
    for one in named.tuning.doubts() {
        let _ = writeln!(out, "\n- not exact: {}", escape(&doubt(&one)));
    }
    out
}
