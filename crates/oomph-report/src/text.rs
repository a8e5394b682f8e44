//! For a terminal: the answer first, then the evidence, then what to type next.
//!
//! Colour marks severity and headings only; every line reads the same without it.

use crate::host;
use crate::ranks::{Ranks, Row};
use crate::shared::{
    Check, CheckLimit, NOTHING_RECORDED, Named, TextOptions, completeness, cut_short, findings_of,
    findings_of_host, next_command, page_command, quoted, saving, waste_parts, worst,
};
use oomph_explain::{
    Change, DeviceExplanation, Diff, Explanation, Finding, HostDiff, HostExplanation, Outcome, Severity,
    grown,
};
pub(crate) use oomph_render::terminal::{BOLD, CYAN, DIM, GREEN, RED, YELLOW, cut, paint, wrap};
use oomph_trace::{Peak, Peaks};
use oomph_words::{bytes, grouped, percent, plural, printable};
use std::fmt::Write;

/// One recording, or several: a table, then the worst.
pub fn explanation(all: &[Named], options: TextOptions) -> String {
    let mut out = String::new();
    match all {
        [one] => recording(&mut out, one, options),
        several if several.iter().all(|named| named.explanation.host.is_some()) => {
            processes(&mut out, several, options);
        }
        several => {
            ranks(&mut out, several, options);
            if let Some((index, _)) = worst(several) {
                let _ = writeln!(out, "\nThe worst is {}:\n", paint(BOLD, printable(several[index].name)));
                recording(&mut out, &several[index], options);
            }
        }
    }
    let has_gpus = all.iter().any(|named| !named.explanation.devices.is_empty());
    let has_ram = all.iter().any(|named| named.explanation.host.is_some());
    if has_gpus || has_ram {
        let names: Vec<&str> = all.iter().map(|named| named.name).collect();
        // Two of a kind would be compared.
        let of_a_kind = names.len() == 2 && has_gpus != has_ram;
        next_steps(&mut out, &names, if of_a_kind { " --as ranks" } else { "" });
    }
    out
}

fn ranks(out: &mut String, all: &[Named], options: TextOptions) {
    let ranks = Ranks::of(all);
    let words = ranks.words();
    for sentence in &words {
        let _ = writeln!(out, "{}", paint(BOLD, wrap(sentence, options.width, 0, 2)));
    }
    if !words.is_empty() {
        out.push('\n');
    }
    let rows = ranks.rows();
    let shares = ranks.shares_rows();
    let most = |pick: fn(&Row) -> &str, least: usize| {
        rows.iter().map(|row| pick(row).chars().count()).max().unwrap_or(0).max(least)
    };
    let width = most(|row| &row.name, 4);
    let (allocated, reserved) = (most(|row| &row.allocated, 9), most(|row| &row.reserved, 9));
    // Where every row is one device, that there is one goes without saying.
    let count = |text: &str| if shares { format!("  {text:>5}") } else { String::new() };
    let _ = writeln!(
        out,
        "{}",
        paint(
            BOLD,
            format!(
                "{:width$}{}  device  {:>allocated$}  {:>reserved$}  ran out  findings",
                "file",
                count("ranks"),
                "allocated",
                "reserved"
            )
        )
    );
    for row in &rows {
        let _ = writeln!(
            out,
            "{:width$}{}  {:>6}  {:>allocated$}  {:>reserved$}  {:>7}  {}",
            row.name,
            count(&grouped(row.count as u64)),
            row.device,
            row.allocated,
            row.reserved,
            row.ran_out,
            row.codes
        );
    }
}

fn recording(out: &mut String, named: &Named, options: TextOptions) {
    let explanation = named.explanation;
    for warning in &explanation.warnings {
        let _ = writeln!(out, "{}: {}", paint(YELLOW, "warning"), printable_line(&warning.message));
    }
    if let Some(host) = &explanation.host {
        self::host(out, named, host, options);
        if explanation.devices.is_empty() {
            return;
        }
        out.push('\n');
    }
    if explanation.devices.is_empty() {
        let _ = writeln!(out, "{}: {NOTHING_RECORDED}", printable(named.name));
        return;
    }
    for (position, device) in explanation.devices.iter().enumerate() {
        if position > 0 {
            out.push('\n');
        }
        header(out, named.name, explanation, device);
        let findings: Vec<&Finding> = findings_of(explanation, device).collect();
        if findings.iter().all(|finding| finding.severity > Severity::Warning) {
            let scope = if device.completeness.complete { "" } else { " in what was recorded" };
            let _ = writeln!(out, "\n{}", paint(GREEN, format!("No problem was found{scope}.")));
        }
        for finding in findings {
            self::finding(out, finding, options);
        }
        self::device(out, device, options);
    }
    let _ =
        writeln!(out, "\n{} {}", paint(BOLD, "Next:"), paint(CYAN, next_command(explanation, named.name)));
}

/// The process's own memory.
fn host(out: &mut String, named: &Named, host: &HostExplanation, options: TextOptions) {
    host::answer(out, named, host, options.width);
    let findings: Vec<&Finding> = findings_of_host(named.explanation).collect();
    for finding in &findings {
        self::finding(out, finding, options);
    }
    host::evidence(out, host, options);
    if let Some(first) = findings.first() {
        let rule = format!("oomph rule {}", first.code);
        let _ = writeln!(out, "\n{} {}", paint(BOLD, "Next:"), paint(CYAN, rule));
    }
}

/// That of several processes: a table, what is found where they are seen together, and then the one that asked for most.
fn processes(out: &mut String, all: &[Named], options: TextOptions) {
    host::processes(out, all);
    for finding in host::findings_together(all) {
        self::finding(out, &finding, options);
    }
    if let Some((named, _)) = host::largest(all) {
        let _ = writeln!(out, "\nThe largest is {}:\n", paint(BOLD, printable(named.name)));
        recording(out, &named, options);
    }
}

/// One finding, with the file that it is about.
pub fn one_finding(named: &Named, finding: &Finding, options: TextOptions) -> String {
    let mut out = format!("{}\n", paint(BOLD, printable(named.name)));
    self::finding(&mut out, finding, options);
    out
}

/// The line that makes a page of it.
pub(crate) fn next_steps(out: &mut String, names: &[&str], options: &str) {
    if let Some(command) = page_command(names, options) {
        let _ = writeln!(out, "{} {}", paint(BOLD, "See it:"), paint(CYAN, command));
    }
}

fn header(out: &mut String, name: &str, explanation: &Explanation, device: &DeviceExplanation) {
    let time = device.seconds.map(|s| format!(" in {}", seconds(s))).unwrap_or_default();
    let _ = writeln!(
        out,
        "{} {}",
        paint(BOLD, printable(name)),
        paint(
            DIM,
            format!(
                "({}, device {}: {}{time}, {})",
                explanation.format,
                device.ordinal,
                plural(device.events, "event"),
                completeness(device)
            )
        )
    );
}

pub(crate) fn finding(out: &mut String, finding: &Finding, options: TextOptions) {
    let style = match finding.severity {
        Severity::Error => RED,
        Severity::Warning => YELLOW,
        Severity::Note => CYAN,
    };
    let head = format!("{} {}", finding.severity.name(), finding.code);
    let _ = write!(out, "\n{}: ", paint(style, &head));
    let _ = writeln!(out, "{}", paint(BOLD, wrap(&finding.title, options.width, head.len() + 2, 2)));
    for detail in &finding.details {
        let _ = writeln!(out, "  {}", wrap(detail, options.width, 2, 2));
    }
    if finding.severity <= Severity::Warning && finding.places.len() > 1 {
        for located in finding.places.iter().take(3) {
            let _ = writeln!(
                out,
                "  {} {:>9}  {} {}",
                paint(DIM, "·"),
                bytes(located.bytes),
                printable_line(&located.place.short()),
                paint(DIM, format!("({})", plural(located.count, "block")))
            );
        }
    }
    if let Some(saving) = saving(finding) {
        let _ = writeln!(out, "  {}", paint(GREEN, saving));
    }
    for fix in &finding.fixes {
        let text = format!("fix ({}): {}", fix.grade.name(), fix.text);
        let _ = writeln!(out, "  {}", wrap(&text, options.width, 2, 4));
        for line in fix.code.iter().flat_map(|code| code.lines()) {
            let _ = writeln!(out, "      {}", paint(CYAN, line));
        }
    }
}

pub(crate) fn device(out: &mut String, device: &DeviceExplanation, options: TextOptions) {
    let peak = device.peak.allocated.bytes;
    let mut when = Vec::new();
    if let Some(at) = device.peak_seconds {
        when.push(format!("at {}", seconds(at)));
    }
    if let (Some(step), Some(steps)) = (device.peak_step, &device.steps) {
        when.push(format!("in step {step} of {}", steps.count));
    }
    let _ = writeln!(
        out,
        "\n{}  {} allocated, {} reserved, {} requested{}",
        paint(BOLD, "Peak"),
        paint(BOLD, bytes(peak)),
        bytes(device.peak.reserved.bytes),
        bytes(device.peak.requested.bytes),
        if when.is_empty() { String::new() } else { format!(", {}", when.join(", ")) }
    );
    for kind in &device.kinds {
        let _ = writeln!(
            out,
            "  {:<16} {:>9}  {:>5}  {}",
            kind.kind.name(),
            bytes(kind.bytes),
            percent(kind.bytes, peak),
            paint(DIM, bar(kind.bytes, peak))
        );
    }
    if options.stacks {
        stacks(out, device, options);
    } else {
        lines(out, device, options);
    }
    reserved(out, device, options);
    if let Some(steps) = &device.steps
        && let (Some(first), Some(last), Some(most)) =
            (steps.peaks.first(), steps.peaks.last(), steps.peaks.iter().max())
    {
        let _ = writeln!(
            out,
            "{}  {}{}{}: allocated peak {} in the first, {} in the last, {} at most",
            paint(BOLD, "Steps"),
            steps.count,
            match steps.repeated {
                0 => String::new(),
                more => format!(" and {} more that were the same", grouped(more)),
            },
            if steps.last_is_partial { ", the last cut short" } else { "" },
            bytes(*first),
            bytes(*last),
            bytes(*most)
        );
    }
    let caught = device.ooms.iter().filter(|oom| oom.outcome != Outcome::Fatal).count() as u64;
    if caught > 0 {
        let _ = writeln!(
            out,
            "{}  {} fatal, {} caught",
            paint(BOLD, "Out of memory"),
            device.ooms.len() as u64 - caught,
            grouped(caught)
        );
    }
}

fn lines(out: &mut String, device: &DeviceExplanation, options: TextOptions) {
    if device.lines.is_empty() {
        return;
    }
    let peak = device.peak.allocated.bytes;
    let _ = writeln!(out, "{}", paint(BOLD, "Held at the peak, by line of your own"));
    for line in device.lines.iter().take(options.lines) {
        let through = line.through.as_ref().map(|name| format!(" → {}", printable(name))).unwrap_or_default();
        let count = format!("×{}", grouped(line.count));
        let room = options.width.saturating_sub(COLUMNS_BEFORE_PLACE + 1 + count.chars().count());
        let place = cut(&(printable_line(&line.place.short()) + &through), room);
        let _ = writeln!(
            out,
            "  {:>9}  {:>5}  {:<15}  {place} {}",
            bytes(line.bytes),
            percent(line.bytes, peak),
            line.kind.name(),
            paint(DIM, count)
        );
    }
    rest(out, device.lines.iter().skip(options.lines).map(|line| line.bytes), "line");
}

fn stacks(out: &mut String, device: &DeviceExplanation, options: TextOptions) {
    let peak = device.peak.allocated.bytes;
    let _ = writeln!(out, "{}", paint(BOLD, "Held at the peak, by stack (innermost first)"));
    for stack in device.stacks.iter().take(options.lines) {
        let _ = writeln!(
            out,
            "  {:>9}  {:>5}  {:<15}  {}",
            bytes(stack.bytes),
            percent(stack.bytes, peak),
            stack.kind.name(),
            paint(DIM, format!("×{}", grouped(stack.count)))
        );
        if stack.frames.is_empty() {
            let _ = writeln!(out, "      (no stack)");
        }
        for frame in &stack.frames {
            let own = matches!(frame, oomph_explain::Place::Line { own: true, .. });
            let text = printable_line(&frame.short());
            let _ = writeln!(out, "      {}", if own { text } else { paint(DIM, text) });
        }
    }
    rest(out, device.stacks.iter().skip(options.lines).map(|stack| stack.bytes), "stack");
}

fn rest(out: &mut String, bytes_left: impl Iterator<Item = u64>, noun: &str) {
    let (mut count, mut sum) = (0, 0);
    for part in bytes_left {
        count += 1;
        sum += part;
    }
    if count > 0 {
        let _ = writeln!(
            out,
            "  {:>9}         {}",
            bytes(sum),
            paint(DIM, format!("in {} more", plural(count, noun)))
        );
    }
}

fn reserved(out: &mut String, device: &DeviceExplanation, options: TextOptions) {
    let waste = &device.waste;
    let unused = waste.reserved.saturating_sub(waste.requested);
    if unused == 0 {
        return;
    }
    let parts: Vec<String> =
        waste_parts(device).iter().map(|(name, sum)| format!("{name} {}", bytes(*sum))).collect();
    let text = format!(
        "{} ({}) of {} reserved: {}",
        bytes(unused),
        percent(unused, waste.reserved),
        bytes(waste.reserved),
        parts.join(", ")
    );
    let _ = writeln!(out, "{}  {}", paint(BOLD, "Not used at the peak"), wrap(&text, options.width, 22, 2));
}

/// What a row of the table by line has before the place.
const COLUMNS_BEFORE_PLACE: usize = 37;

fn bar(part: u64, whole: u64) -> String {
    const WIDTH: u64 = 24;
    // A stranger's numbers may be as large as they like.
    let filled = (u128::from(part) * u128::from(WIDTH)).div_ceil(u128::from(whole.max(1)));
    "█".repeat(filled.min(u128::from(WIDTH)) as usize)
}

fn seconds(value: f64) -> String {
    if value >= 120.0 {
        format!("{:.0} min {:.0} s", (value / 60.0).floor(), value % 60.0)
    } else if value >= 10.0 {
        format!("{value:.1} s")
    } else {
        format!("{value:.2} s")
    }
}

/// One line, whatever a stranger's text holds.
fn printable_line(text: &str) -> String {
    oomph_words::harmless(text)
}

/// The peaks that are compared.
pub(crate) const PEAKS: [(&str, fn(&Peaks) -> Peak); 3] =
    [("allocated", |p| p.allocated), ("reserved", |p| p.reserved), ("requested", |p| p.requested)];

pub(crate) fn signed(change: i64) -> String {
    match change {
        0 => "0 B".to_owned(),
        more if more > 0 => format!("+{}", bytes(more as u64)),
        less => format!("-{}", bytes(less.unsigned_abs())),
    }
}

/// The difference of two recordings.
pub fn diff(diff: &Diff, before: &Named, after: &Named, options: TextOptions) -> String {
    let mut out =
        format!("{} → {}\n", paint(BOLD, printable(before.name)), paint(BOLD, printable(after.name)));
    if let Some(words) = cut_short(before, after) {
        let _ = writeln!(out, "\n{}", paint(YELLOW, wrap(&words, options.width, 0, 2)));
    }
    for device in &diff.devices {
        if diff.devices.len() > 1 {
            let _ = writeln!(out, "\n{}", paint(BOLD, format!("Device {}", device.ordinal)));
        }
        match (&device.before, &device.after) {
            (None, _) => out.push_str("only in the second recording\n"),
            (_, None) => out.push_str("only in the first recording\n"),
            _ => {}
        }
        let _ = writeln!(out, "\n{}", paint(BOLD, "Peak            before      after     change"));
        for (name, pick) in PEAKS {
            let (from, to) = (
                device.before.as_ref().map_or(0, |p| pick(p).bytes),
                device.after.as_ref().map_or(0, |p| pick(p).bytes),
            );
            let _ = writeln!(
                out,
                "  {name:<10} {:>10} {:>10} {:>10}",
                bytes(from),
                bytes(to),
                change(grown(from, to))
            );
        }
        changes(&mut out, "By kind", &device.kinds, usize::MAX);
        changes(&mut out, "By line, at the allocated peak", &device.lines, options.lines);
        if device.lines.is_empty() {
            out.push_str("Every line holds the same at the peak.\n");
        }
    }
    if let Some(host) = &diff.host {
        diff_of_host(&mut out, host, options.lines);
    }
    let _ = writeln!(
        out,
        "\n{} {}",
        paint(BOLD, "Next:"),
        paint(CYAN, format!("oomph explain {}", quoted(after.name)))
    );
    next_steps(&mut out, &[before.name, after.name], "");
    out
}

fn diff_of_host(out: &mut String, host: &HostDiff, lines: usize) {
    let _ = writeln!(out, "\n{}", paint(BOLD, "Peak of RAM     before      after     change"));
    for (name, from, to) in host::compared(host) {
        let _ = writeln!(
            out,
            "  {name:<12} {:>8} {:>10} {:>10}",
            bytes(from),
            bytes(to),
            change(grown(from, to))
        );
    }
    changes(out, "By kind", &host.kinds, usize::MAX);
    changes(out, "By line, at the peak", &host.lines, lines);
    if host.lines.is_empty() {
        out.push_str("Every line holds the same at the peak.\n");
    }
}

/// What changed by one kind of thing, as far as `most` rows go.
fn changes(out: &mut String, heading: &str, changes: &[Change], most: usize) {
    if changes.is_empty() {
        return;
    }
    let _ = writeln!(out, "{}", paint(BOLD, heading));
    for line in changes.iter().take(most) {
        let name = line.what.as_ref().map_or_else(|kind| (*kind).to_owned(), |place| place.short());
        let _ = writeln!(
            out,
            "  {:>10}  {:>9} → {:>9}  {}",
            change(line.grown()),
            bytes(line.before),
            bytes(line.after),
            printable_line(&name)
        );
    }
    if changes.len() > most {
        let more = plural((changes.len() - most) as u64, "line");
        let _ = writeln!(out, "  {}", paint(DIM, format!("and {more} more")));
    }
}

fn change(change: i64) -> String {
    let style = if change > 0 { RED } else { GREEN };
    // Padded before it is painted: styles have no width.
    paint(style, format!("{:>10}", signed(change)))
}

/// The outcome of `check`, of one recording or of several.
pub fn checks(checks: &[Check]) -> String {
    let mut out = String::new();
    for check in checks {
        let limit = match check.limit {
            CheckLimit::Most(most) => format!("limit {}", bytes(most)),
            CheckLimit::Baseline { peak, tolerance, most } => {
                format!("limit {} (baseline {} and {}%)", bytes(most), bytes(peak), tolerance * 100.0)
            }
        };
        let (file, peak, metric) = (printable(&check.file), bytes(check.peak), check.metric.words());
        let distance = bytes(check.peak.abs_diff(check.most()));
        let _ = match (check.passed, check.died) {
            (true, _) => writeln!(
                out,
                "{}: {file}: {peak} {metric} at the peak, {distance} below the {limit}",
                paint(GREEN, "ok")
            ),
            (false, true) => writeln!(
                out,
                "{}: {file}: the program ran out of memory, so what it needs is not known \
             ({peak} {metric} before that, {limit})",
                paint(RED, "died")
            ),
            (false, false) => writeln!(
                out,
                "{}: {file}: {peak} {metric} at the peak, {distance} above the {limit}",
                paint(RED, "over")
            ),
        };
    }
    out
}
