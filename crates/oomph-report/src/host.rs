//! How the process's own memory looks, and what changed of it: for a terminal, and for issues. Findings look as they do everywhere.

use crate::html;
use crate::shared::{Named, TextOptions};
use oomph_explain::{
    Explanation, Finding, HostDiff, HostExplanation, HostGrowth, HostLine, HostWithin, Place,
    findings_of_processes,
};
use oomph_render::markdown::escape;
use oomph_render::terminal::{BOLD, DIM, cut, paint, wrap};
use oomph_trace::{How, NO_PYTHON, Recording};
use oomph_words::{bytes, grouped, percent, plural, printable};
use std::fmt::Write;

/// What a line is called.
pub(crate) fn named(place: Option<&Place>) -> String {
    place.map_or_else(|| NO_PYTHON.to_owned(), |place| printable(&place.short()))
}

fn place(line: &HostLine) -> String {
    named(line.place.as_ref())
}

fn off(error: u64) -> String {
    if error == 0 { String::new() } else { format!(" ± {}", bytes(error)) }
}

/// The most that was asked for, with its error.
pub(crate) fn asked_for(host: &HostExplanation) -> String {
    bytes(host.asked) + &off(host.error)
}

/// How memory was asked for, for people.
pub(crate) fn how(how: How) -> &'static str {
    match how {
        How::Large => "recorded by itself",
        How::Sampled => "a sample of small requests",
        How::Object => "a sample of Python's objects",
        How::Mapped => "mapped",
        How::Pinned => "pinned for the GPU",
        How::Shared => "shared with other processes",
    }
}

/// How complete the recording is, in a few words.
pub(crate) fn how_complete(recording: &Recording) -> &'static str {
    if recording.source.truncated { "incomplete: cut off" } else { "complete" }
}

/// What was asked for, and what the kernel counted, in a sentence each.
pub(crate) fn words(host: &HostExplanation) -> Vec<String> {
    let mut words = vec![format!(
        "At most {}{} of RAM were asked for at once, {} after the recording began.",
        bytes(host.asked),
        off(host.error),
        seconds(host.peak_seconds)
    )];
    let Some(resident) = host.resident else { return words };
    let own = host.own().unwrap_or(0);
    let besides = match resident.shared {
        0 => String::new(),
        shared => format!(" and {} of shared memory", bytes(shared)),
    };
    let between = host.own_by_mark.map_or(String::new(), |most| {
        format!(", or up to {} by its high-water mark, between two readings", bytes(most))
    });
    words.push(format!(
        "The kernel counted at most {} of the process's own{between}{besides}; with pages of files, which it can take back, at most {}.",
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

/// What the kernel counted at the peak beside what was asked for.
fn beside(host: &HostExplanation) -> Vec<(&'static str, u64)> {
    let mut rows = vec![
        (
            "beyond what was asked for: kept by allocators, libraries, stacks of threads",
            host.beyond.unwrap_or(0),
        ),
        ("pages of files, which the machine can read again", host.of_files.unwrap_or(0)),
    ];
    rows.retain(|&(_, bytes)| bytes > 0);
    rows
}

pub(crate) fn seconds(value: f64) -> String {
    if value < 10.0 { format!("{value:.1} s") } else { format!("{value:.0} s") }
}

/// Recordings of host memory, what asked for most first.
fn largest_first<'a>(all: &[Named<'a>]) -> Vec<(Named<'a>, &'a HostExplanation)> {
    let mut rows: Vec<(Named, &HostExplanation)> =
        all.iter().filter_map(|named| Some((*named, named.explanation.host.as_ref()?))).collect();
    rows.sort_by_key(|(_, host)| std::cmp::Reverse(host.asked));
    rows
}

/// The one that asked for most.
pub(crate) fn largest<'a>(all: &[Named<'a>]) -> Option<(Named<'a>, &'a HostExplanation)> {
    largest_first(all).into_iter().next()
}

/// What is found where several processes are seen together.
pub(crate) fn findings_together(all: &[Named]) -> Vec<Finding> {
    let explanations: Vec<&Explanation> = all.iter().map(|named| named.explanation).collect();
    findings_of_processes(&explanations)
}

fn counted(host: &HostExplanation) -> String {
    host.own().map_or("–".to_owned(), bytes)
}

/// What the processes of one program asked for.
pub(crate) fn processes(out: &mut String, all: &[Named]) {
    let rows = largest_first(all);
    let width = rows.iter().map(|(named, _)| printable(named.name).chars().count()).max().unwrap_or(4).max(4);
    let heading = format!("{:width$}  {:>9}  {:>12}", "file", "asked for", "kernel's own");
    let _ = writeln!(out, "{}", paint(BOLD, heading));
    for (named, host) in &rows {
        let _ = writeln!(
            out,
            "{:width$}  {:>9}  {:>12}",
            printable(named.name),
            bytes(host.asked),
            counted(host)
        );
    }
}

/// The same for issues.
pub(crate) fn processes_in_markdown(out: &mut String, all: &[Named]) {
    out.push_str("| file | asked for | kernel's own |\n|---|---:|---:|\n");
    for (named, host) in largest_first(all) {
        let _ = writeln!(out, "| {} | {} | {} |", escape(named.name), bytes(host.asked), counted(host));
    }
    out.push('\n');
}

/// For a terminal: how much it was.
pub(crate) fn answer(out: &mut String, named: &Named, host: &HostExplanation, width: usize) {
    let events = plural(host.events, "event");
    let heading = format!("(RAM: {events} in {})", seconds(host.seconds));
    let _ = writeln!(out, "{} {}\n", paint(BOLD, printable(named.name)), paint(DIM, heading));
    for sentence in words(host) {
        let _ = writeln!(out, "{}", wrap(&sentence, width, 0, 0));
    }
}

/// For a terminal: what it was, and where.
pub(crate) fn evidence(out: &mut String, host: &HostExplanation, options: TextOptions) {
    let TextOptions { lines, width, stacks } = options;
    let _ = writeln!(out, "\n{}", paint(BOLD, "Held at the peak, by what it is"));
    for kind in &host.by_kind {
        let _ = writeln!(
            out,
            "  {:>9}  {:>5}  {}{}",
            bytes(kind.bytes),
            percent(kind.bytes, host.asked),
            kind.kind.name(),
            paint(DIM, off(kind.error))
        );
    }
    let besides = beside(host);
    if !besides.is_empty() {
        let _ = writeln!(out, "\n{}", paint(BOLD, "Beside it, as the kernel counts"));
        for (what, held) in besides {
            let _ = writeln!(out, "  {:>9}         {what}", bytes(held));
        }
    }
    match &host.within[..] {
        [] if stacks => by_stack(out, host, options),
        [] => by_line(out, host, options),
        pieces => pieces.iter().for_each(|piece| by_line_within(out, host, piece)),
    }
    if host.growth.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{}", paint(BOLD, "Held more and more, by line of your own"));
    for growth in host.growth.iter().take(lines) {
        let rate = match growth.per_step() {
            Some(bytes_a_step) => format!("{}/step", bytes(bytes_a_step)),
            None => format!("{}/s", bytes(growth.per_second())),
        };
        let more = more(growth);
        let room = width.saturating_sub(30 + more.chars().count());
        let _ = writeln!(
            out,
            "  {:>9}  {rate:>13}  {} {}",
            bytes(growth.bytes),
            cut(&named(growth.place.as_ref()), room),
            paint(DIM, more)
        );
    }
}

fn by_stack(out: &mut String, host: &HostExplanation, options: TextOptions) {
    let _ = writeln!(out, "\n{}", paint(BOLD, "Held at the peak, by stack (innermost first)"));
    for stack in host.stacks.iter().take(options.lines) {
        let count = format!("×{}{}", grouped(stack.blocks), off(stack.error));
        let share = percent(stack.bytes, host.asked);
        let _ = writeln!(out, "  {:>9}  {share:>5}  {}", bytes(stack.bytes), paint(DIM, count));
        if stack.frames.is_empty() {
            let _ = writeln!(out, "      {NO_PYTHON}");
        }
        for frame in &stack.frames {
            let text = cut(&printable(&frame.short()), options.width.saturating_sub(6));
            let own = matches!(frame, Place::Line { own: true, .. });
            let _ = writeln!(out, "      {}", if own { text } else { paint(DIM, text) });
        }
    }
    let shown =
        host.stacks.iter().take(options.lines).fold(0u64, |sum, stack| sum.saturating_add(stack.bytes));
    if let Some(rest) = host.asked.checked_sub(shown).filter(|rest| *rest > 0) {
        let _ = writeln!(out, "  {:>9}  {:>5}  in other stacks", bytes(rest), percent(rest, host.asked));
    }
}

fn by_line_within(out: &mut String, host: &HostExplanation, within: &HostWithin) {
    let heading = format!("Held at the peak, by line of {}, with what it called", printable(&within.piece));
    let _ = writeln!(out, "\n{}", paint(BOLD, heading));
    for line in &within.lines {
        let count = format!("×{}{}", grouped(line.blocks), off(line.error));
        let share = percent(line.bytes, host.asked);
        let _ = writeln!(
            out,
            "  {:>9}  {share:>5}  line {:<5} {}",
            bytes(line.bytes),
            line.line,
            paint(DIM, count)
        );
    }
    let held = within.lines.iter().fold(0u64, |sum, line| sum.saturating_add(line.bytes));
    let rest = host.asked.saturating_sub(held);
    let _ = writeln!(out, "  {:>9}  {:>5}  elsewhere", bytes(rest), percent(rest, host.asked));
}

fn by_line(out: &mut String, host: &HostExplanation, options: TextOptions) {
    let TextOptions { lines, width, .. } = options;
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
    let rest = host.lines.iter().skip(lines).fold(0u64, |sum, line| sum.saturating_add(line.bytes));
    if rest > 0 {
        let more = plural(host.lines.len().saturating_sub(lines) as u64, "more line");
        let _ = writeln!(out, "  {:>9}  {:>5}  {more}", bytes(rest), percent(rest, host.asked));
    }
}

/// How a line grew: in how many blocks, how sure that is, and in which steps.
fn more(growth: &HostGrowth) -> String {
    let blocks = match growth.blocks {
        0 => String::new(),
        more => format!("+{}", plural(more, "block")),
    };
    let steps =
        growth.steps.map_or(String::new(), |steps| format!("over steps {} to {}", steps.first, steps.last));
    let words = [format!("{blocks}{}", off(growth.error)), steps];
    words.iter().map(|words| words.trim()).filter(|words| !words.is_empty()).collect::<Vec<_>>().join(", ")
}

/// For issues and pull requests: how much it was.
pub(crate) fn answer_in_markdown(out: &mut String, host: &HostExplanation) {
    for sentence in words(host) {
        let _ = writeln!(out, "{}\n", escape(&sentence));
    }
}

/// For issues and pull requests: what it was, and where.
pub(crate) fn evidence_in_markdown(out: &mut String, host: &HostExplanation, lines: usize) {
    out.push_str("| held at the peak | | blocks | what |\n|---:|---:|---:|---|\n");
    for kind in &host.by_kind {
        let _ = writeln!(
            out,
            "| {}{} | {} | {} | {} |",
            bytes(kind.bytes),
            off(kind.error),
            percent(kind.bytes, host.asked),
            grouped(kind.blocks),
            kind.kind.name()
        );
    }
    let besides: Vec<String> =
        beside(host).iter().map(|(what, held)| format!("{} {what}", bytes(*held))).collect();
    if !besides.is_empty() {
        let _ = writeln!(out, "\nBeside it, as the kernel counts: {}.", escape(&besides.join("; ")));
    }
    out.push_str("\n| held at the peak | | blocks | line |\n|---:|---:|---:|---|\n");
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
    if !host.growth.is_empty() {
        out.push_str("\n| held more and more | | more blocks | line |\n|---:|---:|---:|---|\n");
        for growth in host.growth.iter().take(lines) {
            let rate = match growth.per_step().zip(growth.steps) {
                Some((each, steps)) => {
                    format!("{} a step, over steps {} to {}", bytes(each), steps.first, steps.last)
                }
                None => format!("{} a second", bytes(growth.per_second())),
            };
            let _ = writeln!(
                out,
                "| {}{} | {rate} | {} | {} |",
                bytes(growth.bytes),
                off(growth.error),
                grouped(growth.blocks),
                escape(&named(growth.place.as_ref()))
            );
        }
    }
    out.push('\n');
}

/// For a page without its script: what it was, and where.
pub(crate) fn tables_in_html(out: &mut String, host: &HostExplanation, lines: usize) {
    let row = |held: u64, error: u64, what: &str| {
        format!(
            "<tr><td class=\"number\">{}{}</td><td class=\"number\">{}</td><td>{what}</td></tr>\n",
            bytes(held),
            off(error),
            html::escape(&percent(held, host.asked))
        )
    };
    let kinds: String =
        host.by_kind.iter().map(|kind| row(kind.bytes, kind.error, kind.kind.name())).collect();
    let lines: String = (host.lines.iter().take(lines))
        .map(|line| {
            let what = format!("<code>{}</code> ×{}", html::escape(&place(line)), grouped(line.blocks));
            row(line.bytes, line.error, &what)
        })
        .collect();
    let besides: String = (beside(host).iter())
        .map(|(what, held)| {
            format!("<tr><td class=\"number\">{}</td><td></td><td>{what}</td></tr>\n", bytes(*held))
        })
        .collect();
    let _ = writeln!(
        out,
        "<details open><summary>Held at the peak, by what it is</summary>\n<table>\n{kinds}</table></details>"
    );
    if !besides.is_empty() {
        let _ = writeln!(
            out,
            "<details open><summary>Beside it, as the kernel counts</summary>\n<table>\n{besides}</table></details>"
        );
    }
    let _ = writeln!(
        out,
        "<details open><summary>Held at the peak, by line</summary>\n<table>\n{lines}</table></details>"
    );
}

/// For a page of several processes: what each asked for, the largest first, and what is found where they are seen together.
pub(crate) fn processes_in_html(out: &mut String, all: &[Named]) {
    for (index, found) in findings_together(all).iter().enumerate() {
        html::finding(out, found, Some(&format!("together-{index}")));
    }
    out.push_str(
        "<table><tr><th>file</th><th class=\"number\">asked for</th><th class=\"number\">kernel's own</th></tr>\n",
    );
    for (named, host) in largest_first(all) {
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td></tr>",
            html::escape(named.name),
            asked_for(host),
            counted(host)
        );
    }
    out.push_str("</table>\n");
}

/// The sums that are compared, before and after.
pub(crate) fn compared(host: &HostDiff) -> Vec<(&'static str, u64, u64)> {
    let mut rows = vec![("asked for", host.asked.0, host.asked.1)];
    rows.extend(host.own.0.zip(host.own.1).map(|(before, after)| ("kernel's own", before, after)));
    rows
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests {
    use crate::shared::{Named, TextOptions};
    use crate::{json, markdown, text};
    use oomph_explain::{Explanation, diff, explain};
    use oomph_trace::{Action, CALLER, Frame, HostSteps, How, Recording, Resident};

    const MIB: u64 = 1 << 20;

    /// Tables of so many MiB beside objects, and a line that grows.
    fn recorded(tables: u64) -> Explanation {
        let mut recording = Recording::default();
        let mut stack = |frames: &[(&str, &str, u32)]| {
            let frames: Vec<u32> = (frames.iter())
                .map(|&(name, file, line)| {
                    let (name, file) = (recording.strings.intern(name), recording.strings.intern(file));
                    recording.stacks.intern_frame(Frame { name, file, line })
                })
                .collect();
            recording.stacks.intern(&frames)
        };
        let arrow = "/v/site-packages/pyarrow/libarrow.so.2100";
        let table = stack(&[(CALLER, arrow, 0), ("load", "|evil|\u{1b}[31m.py", 3)]);
        let objects = stack(&[("serve", "serve.py", 12)]);
        let mut events: Vec<(How, u64, u32)> =
            vec![(How::Large, tables * MIB, table), (How::Pinned, 4 * MIB, 0)];
        events.extend((0..100).map(|_| (How::Object, MIB, objects)));
        let host = recording.host.get_or_insert_default();
        for (row, (how, size, stack)) in events.into_iter().enumerate() {
            host.events.action.push(Action::Alloc);
            host.events.block.push(row as u64);
            host.events.size.push(size);
            host.events.how.push(how);
            host.events.stack.push(stack);
            host.events.time.push(row as i64 * 1_000_000);
        }
        let anonymous = (tables + 130) * MIB;
        let resident = Resident {
            time: 200_000_000,
            anonymous,
            of_files: 40 * MIB,
            most: anonymous,
            ..Resident::default()
        };
        host.resident.push(resident);
        explain(&recording)
    }

    #[test]
    fn growth_by_step_is_said_in_every_form() {
        let mut recording = Recording::default();
        let (name, file) = (recording.strings.intern("main"), recording.strings.intern("train.py"));
        let frame = recording.stacks.intern_frame(Frame { name, file, line: 7 });
        let stack = recording.stacks.intern(&[frame]);
        let host = recording.host.get_or_insert_default();
        for step in 0..50 {
            host.events.action.push(Action::Alloc);
            host.events.block.push(step);
            host.events.size.push(12 * MIB);
            host.events.how.push(How::Large);
            host.events.stack.push(stack);
            host.events.time.push(step as i64 * 1000);
            host.steps.push(HostSteps { time: step as i64 * 1000 + 500, ended: step + 1 });
        }
        let explanation = explain(&recording);
        let all = [Named { name: "a-ram.oomph", explanation: &explanation }];
        let text = text::explanation(&all, options());
        for wanted in [
            "RAM grows by 12.0 MiB a step and nothing of it is freed, at train.py:7 main",
            "    576 MiB  12.0 MiB/step  train.py:7 main ",
            "+48 blocks, over steps 3 to 50",
        ] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
        let markdown = markdown::explanation(&all, 5);
        assert!(markdown.contains("| 576 MiB | 12.0 MiB a step, over steps 3 to 50 | 48 |"), "{markdown}");
        let document: serde_json::Value = serde_json::from_str(&json::explanation(&all)).unwrap();
        let growth = &document["host"]["growth"][0];
        assert_eq!((&growth["bytes"], &growth["error"]), (&(576 * MIB).into(), &0.into()));
        let steps = serde_json::json!({"first": 3, "last": 50, "bytes_per_step": 12 * MIB});
        assert_eq!(growth["steps"], steps);
    }

    fn options() -> TextOptions {
        TextOptions { lines: 5, stacks: false, width: 100 }
    }

    #[test]
    fn kinds_growth_and_findings_are_shown_in_every_form() {
        let explanation = recorded(300);
        let all = [Named { name: "a-ram.oomph", explanation: &explanation }];
        let text = text::explanation(&all, options());
        for wanted in [
            "tables",
            "Python objects",
            "pinned memory",
            "beyond what was asked for",
            "MiB/s",
            "OM503",
            "oomph rule OM503",
        ] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
        assert!(!text.contains("\u{1b}[31m"), "a stranger's text is harmless: {text:?}");
        let markdown = markdown::explanation(&all, 5);
        for wanted in ["| 300 MiB | 74 % | 1 | tables |", "| held more and more |", "**warning OM503**"] {
            assert!(markdown.contains(wanted), "{wanted}: {markdown}");
        }
        let document: serde_json::Value = serde_json::from_str(&json::explanation(&all)).unwrap();
        let host = &document["host"];
        let sum: u64 =
            host["by_kind"].as_array().unwrap().iter().map(|one| one["bytes"].as_u64().unwrap()).sum();
        assert_eq!(sum, host["asked"].as_u64().unwrap());
        assert_eq!(host["by_kind"][0]["kind"], "tables");
        assert_eq!(host["by_how"]["pinned"], 4 * MIB);
        assert_eq!(host["beyond_asked"], 30 * MIB);
        assert_eq!(host["growth"][0]["place"]["line"], 12);
        assert_eq!(document["findings"][0]["device"], serde_json::Value::Null);
    }

    #[test]
    fn two_recordings_are_compared_by_sums_kinds_and_lines() {
        let (before, after) = (recorded(300), recorded(200));
        let (one, other) =
            (Named { name: "a.oomph", explanation: &before }, Named { name: "b.oomph", explanation: &after });
        let diff = diff(&before, &after);
        let text = text::diff(&diff, &one, &other, options());
        for wanted in [
            "Peak of RAM",
            "kernel's own",
            "-100 MiB",
            "300 MiB →   200 MiB  tables",
            "oomph explain b.oomph",
        ] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
        assert!(text.contains("oomph report a.oomph b.oomph"), "{text}");
        assert!(
            markdown::diff(&diff, &one, &other, 5).contains("| asked for | 404 MiB | 304 MiB | -100 MiB |")
        );
        let document: serde_json::Value = serde_json::from_str(&json::diff(&diff, &one, &other)).unwrap();
        assert_eq!(document["host"]["anonymous"]["grown"], -(100 * MIB as i64));
        assert_eq!(document["host"]["by_kind"][0]["kind"], "tables");
        assert_eq!(document["host"]["by_line"].as_array().unwrap().len(), 1);
    }
}
