//! How a plan for a script's training step looks: whether it fits, with what, and which lines to change.

use crate::json;
use crate::markdown::escape;
use crate::text::{BOLD, CYAN, DIM, GREEN, RED, paint, wrap};
use oomph_gpus::Gpu;
use oomph_predict::fit::{Change, Fits, Line, Planned, Refused};
use oomph_words::{bytes, harmless, plural, printable};
use std::fmt::Write;

/// A plan and what it was asked for.
#[derive(Clone, Copy, Debug)]
pub struct NamedPlan<'a> {
    /// The program, as it would be typed.
    pub program: &'a str,
    pub gpu: &'a Gpu,
    pub planned: &'a Planned,
    /// How the card and the budget were named: `--gpu t4 --budget 12GiB`.
    pub card: &'a str,
    /// What is not allowed yet, and may help.
    pub more: &'a [&'a str],
}

fn verdict(planned: &Planned) -> String {
    let room = &planned.room;
    let of = format!("of {} that PyTorch may reserve", bytes(room.limit));
    match (planned.fits, planned.reserved()) {
        (Fits::AsItIs, _) => format!("fits as it is: {} {of}", bytes(planned.script.reserved)),
        (Fits::WithAPlan, Some(reserved)) => {
            format!(
                "fits with oomph.fit: {} {of} (as it is: {})",
                bytes(reserved),
                bytes(planned.script.reserved)
            )
        }
        _ => format!(
            "does not fit in {}: the least budget that could work is {}",
            bytes(room.budget),
            bytes(planned.least_budget.unwrap_or(0))
        ),
    }
}

/// Where a change is: `train.py:71-75`.
fn place(line: &Line) -> String {
    let end = match line.kind {
        Change::Remove if line.end_line > line.line => format!("-{}", line.end_line),
        _ => String::new(),
    };
    format!("{}:{}{end}", printable(&line.file), line.line)
}

/// The changes, sign and text, with their place on the first row of each.
fn changes(planned: &Planned) -> Vec<(String, char, String)> {
    let mut rows = Vec::new();
    for line in &planned.lines {
        let sign = if line.kind == Change::Add { '+' } else { '-' };
        for (index, text) in line.text.lines().enumerate() {
            rows.push((if index == 0 { place(line) } else { String::new() }, sign, harmless(text)));
        }
    }
    rows
}

fn next(named: &NamedPlan) -> String {
    let (fits, card, program) = (named.planned.fits, named.card, named.program);
    // What is a budget for a plan is the memory of a card for a prediction; a script that keeps to its budget by itself needs none.
    let memory = card.replace("--budget", "--memory");
    let gpu = card.split(" --budget").next().filter(|gpu| gpu.starts_with("--gpu"));
    match (fits, gpu) {
        (Fits::WithAPlan, Some(gpu)) if !named.planned.lines.is_empty() => {
            format!("change these lines, then oomph predict {gpu} {program}")
        }
        (Fits::WithAPlan, None) if !named.planned.lines.is_empty() => {
            format!("change these lines, then python {program}")
        }
        (Fits::AsItIs | Fits::WithAPlan, _) => format!("oomph predict {memory} {program}"),
        (Fits::NotAtAll, _) if named.more.is_empty() => {
            format!("oomph predict --gpus t4,l4,a100-40gb,a100-80gb {program}")
        }
        (Fits::NotAtAll, _) => format!("oomph fit {card} --allow {} {program}", named.more.join(",")),
    }
}

/// For a terminal.
pub fn text(named: &NamedPlan, width: usize) -> String {
    let planned = named.planned;
    let mut out = String::new();
    let style = if planned.fits == Fits::NotAtAll { RED } else { GREEN };
    let _ = writeln!(out, "{}", paint(style.bold(), verdict(planned)));
    let _ = writeln!(
        out,
        "{} {}",
        paint(BOLD, printable(named.program)),
        paint(
            DIM,
            format!(
                "(on a virtual {}, budget {}, {} kept free; stopped after {})",
                printable(&named.gpu.title),
                bytes(planned.room.budget),
                bytes(planned.room.margin),
                plural(planned.script.steps, "step")
            )
        )
    );
    for line in &planned.does_not_fit {
        let _ = writeln!(out, "  {}", wrap(&harmless(line), width, 2, 2));
    }
    if planned.fits == Fits::WithAPlan {
        let _ = writeln!(out, "\n{}", paint(BOLD, "What oomph.fit would do"));
        for row in &planned.table {
            let _ = writeln!(out, "{}", harmless(row));
        }
        let rows = changes(planned);
        if !rows.is_empty() {
            let _ = writeln!(out, "\n{}", paint(BOLD, "Lines to change"));
        }
        let place = rows.iter().map(|(place, ..)| place.chars().count()).max().unwrap_or(0);
        for (at, sign, text) in &rows {
            let style = if *sign == '+' { GREEN } else { RED };
            let _ = writeln!(out, "  {at:<place$}  {}", paint(style, format!("{sign} {text}")));
        }
    }
    if !planned.notes.is_empty() {
        let _ = writeln!(out, "\n{}", paint(BOLD, "What was seen"));
        for note in &planned.notes {
            let _ = writeln!(out, "  {}", wrap(&harmless(note), width, 2, 4));
        }
    }
    let _ = writeln!(out, "\n{} {}", paint(BOLD, "Next:"), paint(CYAN, printable(&next(named))));
    out
}

/// For issues and pull requests.
pub fn markdown(named: &NamedPlan) -> String {
    let planned = named.planned;
    let mut out = format!("**{}**\n", escape(&verdict(planned)));
    let _ = writeln!(
        out,
        "\n`{}` on a virtual {}, budget {}\n",
        printable(named.program),
        escape(&named.gpu.title),
        bytes(planned.room.budget)
    );
    for line in &planned.does_not_fit {
        let _ = writeln!(out, "- {}", escape(line));
    }
    if planned.fits == Fits::WithAPlan {
        let _ = writeln!(out, "```text\n{}\n```\n", harmless(&planned.table.join("\n")));
        let rows = changes(planned);
        if !rows.is_empty() {
            let _ = writeln!(out, "```diff");
            for (at, sign, text) in rows {
                if !at.is_empty() {
                    let _ = writeln!(out, "@@ {at} @@");
                }
                let _ = writeln!(out, "{sign}{text}");
            }
            let _ = writeln!(out, "```\n");
        }
    }
    for note in &planned.notes {
        let _ = writeln!(out, "- {}", escape(note));
    }
    out
}

pub fn json(named: &NamedPlan) -> String {
    json::fit::plan(named)
}

pub fn refused_json(program: &str, gpu: &Gpu, refused: &Refused) -> String {
    json::fit::refused(program, gpu, refused)
}
