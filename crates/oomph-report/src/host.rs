//! How the process's own memory looks: for a terminal, and for issues.

use crate::markdown::escape;
use crate::shared::{Named, TextOptions};
use crate::text::{BOLD, DIM, cut, paint, wrap};
use oomph_explain::{HostExplanation, HostLine};
use oomph_words::{bytes, grouped, percent, plural, printable};
use std::fmt::Write;

/// What a line that no Python was running for is called.
const NO_PYTHON: &str = "no Python was running";
/// By how it was asked for, as `HostExplanation::by_how` has it.
const HOW: [&str; 4] = ["large blocks", "small blocks", "mapped pages", "shared pages"];

fn place(line: &HostLine) -> String {
    line.place.as_ref().map_or_else(|| NO_PYTHON.to_owned(), |place| printable(&place.short()))
}

fn off(error: u64) -> String {
    if error == 0 { String::new() } else { format!(" ± {}", bytes(error)) }
}

/// What was asked for, and what the kernel counted, in a sentence each.
fn words(host: &HostExplanation) -> Vec<String> {
    let mut words = vec![format!(
        "At most {}{} of RAM were asked for at once, {} after the recording began.",
        bytes(host.asked),
        off(host.error),
        seconds(host.peak_seconds)
    )];
    let Some(resident) = host.resident else { return words };
    let own = resident.anonymous + resident.swapped;
    let besides = match resident.shared {
        0 => String::new(),
        shared => format!(" and {} of shared memory", bytes(shared)),
    };
    words.push(format!(
        "The kernel counted at most {} of the process's own{besides}; with pages of files, which it can take back, at most {}.",
        bytes(own),
        bytes(host.most_resident)
    ));
    let asked = host.asked.saturating_sub(host.error);
    if let Some(never) = asked.checked_sub(host.most_resident).filter(|never| *never > asked / 20) {
        words.push(format!(
            "{} or more of what was asked for had never been touched: it took no memory.",
            bytes(never)
        ));
    }
    words
}

fn seconds(value: f64) -> String {
    if value < 10.0 { format!("{value:.1} s") } else { format!("{value:.0} s") }
}

/// What the processes of one program asked for, and then the one that asked for most.
pub(crate) fn processes(out: &mut String, all: &[Named], options: TextOptions) {
    let mut rows: Vec<(&Named, &HostExplanation)> =
        all.iter().filter_map(|named| Some((named, named.explanation.host.as_ref()?))).collect();
    rows.sort_by_key(|(_, host)| std::cmp::Reverse(host.asked));
    let width = rows.iter().map(|(named, _)| printable(named.name).chars().count()).max().unwrap_or(4).max(4);
    let heading = format!("{:width$}  {:>9}  {:>12}", "file", "asked for", "kernel's own");
    let _ = writeln!(out, "{}", paint(BOLD, heading));
    for (named, host) in &rows {
        let own = host.resident.map_or("–".to_owned(), |one| bytes(one.anonymous + one.swapped));
        let _ = writeln!(out, "{:width$}  {:>9}  {own:>12}", printable(named.name), bytes(host.asked));
    }
    if let Some((named, host)) = rows.first() {
        let _ = writeln!(out, "\nThe largest is {}:\n", paint(BOLD, printable(named.name)));
        text(out, named, host, options);
    }
}

/// For a terminal.
pub(crate) fn text(out: &mut String, named: &Named, host: &HostExplanation, options: TextOptions) {
    let TextOptions { lines, width, .. } = options;
    let events = plural(host.events, "event");
    let heading = format!("(RAM: {events} in {})", seconds(host.seconds));
    let _ = writeln!(out, "{} {}\n", paint(BOLD, printable(named.name)), paint(DIM, heading));
    for sentence in words(host) {
        let _ = writeln!(out, "{}", wrap(&sentence, width, 0, 0));
    }
    let _ = writeln!(out, "\n{}", paint(BOLD, "Held at the peak, by how it was asked for"));
    for (what, &held) in HOW.iter().zip(&host.by_how).filter(|(_, held)| **held > 0) {
        let _ = writeln!(out, "  {:>9}  {:>5}  {what}", bytes(held), percent(held, host.asked));
    }
    let _ = writeln!(out, "\n{}", paint(BOLD, "Held at the peak, by line of your own"));
    for line in host.lines.iter().take(lines) {
        let count = format!("×{}{}", grouped(line.blocks), off(line.error));
        let room = width.saturating_sub(22 + count.chars().count());
        let _ = writeln!(
            out,
            "  {:>9}  {:>5}  {} {}",
            bytes(line.bytes),
            percent(line.bytes, host.asked),
            cut(&place(line), room),
            paint(DIM, count)
        );
    }
    let rest: u64 = host.lines.iter().skip(lines).map(|line| line.bytes).sum();
    if rest > 0 {
        let more = plural(host.lines.len().saturating_sub(lines) as u64, "more line");
        let _ = writeln!(out, "  {:>9}  {:>5}  {more}", bytes(rest), percent(rest, host.asked));
    }
}

/// For issues and pull requests.
pub(crate) fn markdown(out: &mut String, host: &HostExplanation, lines: usize) {
    for sentence in words(host) {
        let _ = writeln!(out, "{}\n", escape(&sentence));
    }
    out.push_str("| held at the peak | | blocks | line |\n|---:|---:|---:|---|\n");
    for line in host.lines.iter().take(lines) {
        let _ = writeln!(
            out,
            "| {}{} | {} | {} | {} |",
            bytes(line.bytes),
            off(line.error),
            percent(line.bytes, host.asked),
            grouped(line.blocks),
            escape(&place(line))
        );
    }
    out.push('\n');
}
