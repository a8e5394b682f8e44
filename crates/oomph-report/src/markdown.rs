//! For issues and pull requests.

use crate::host;
use crate::ranks::Ranks;
use crate::shared::{
    Check, CheckLimit, Named, completeness, cut_short, findings_of, findings_of_host, saving, waste_parts,
    worst,
};
use oomph_explain::{Change, DeviceExplanation, Diff, Explanation, Finding, grown};
pub(crate) use oomph_render::markdown::escape;
use oomph_words::{bytes, grouped, percent};
use std::fmt::Write;

/// One recording, or several.
pub fn explanation(all: &[Named], lines: usize) -> String {
    let mut out = String::new();
    if all.len() > 1 && all.iter().all(|named| named.explanation.host.is_some()) {
        host::processes_in_markdown(&mut out, all);
        for finding in host::findings_together(all) {
            self::finding(&mut out, &finding);
        }
        if let Some((named, _)) = host::largest(all) {
            recording(&mut out, named.name, named.explanation, lines);
        }
        return out;
    }
    if all.len() > 1 {
        ranks(&mut out, all);
    }
    let shown: Vec<&Named> = match worst(all) {
        Some((index, _)) if all.len() > 1 => vec![&all[index]],
        _ => all.iter().collect(),
    };
    for named in shown {
        recording(&mut out, named.name, named.explanation, lines);
    }
    out
}

fn ranks(out: &mut String, all: &[Named]) {
    let ranks = Ranks::of(all);
    for sentence in ranks.words() {
        let _ = writeln!(out, "**{}**\n", escape(&sentence));
    }
    let shares = ranks.shares_rows();
    out.push_str(match shares {
        true => {
            "| file | ranks | device | allocated | reserved | ran out | findings |\n|---|---:|---:|---:|---:|---|---|\n"
        }
        false => {
            "| file | device | allocated | reserved | ran out | findings |\n|---|---:|---:|---:|---|---|\n"
        }
    });
    for row in ranks.rows() {
        let _ = writeln!(
            out,
            "| {} |{} {} | {} | {} | {} | {} |",
            escape(&row.name),
            if shares { format!(" {} |", grouped(row.count as u64)) } else { String::new() },
            row.device,
            row.allocated,
            row.reserved,
            row.ran_out,
            row.codes
        );
    }
    out.push('\n');
}

fn recording(out: &mut String, name: &str, explanation: &Explanation, lines: usize) {
    let _ = writeln!(out, "## {}\n", escape(name));
    for warning in &explanation.warnings {
        let _ = writeln!(out, "> **warning:** {}\n", escape(&warning.message));
    }
    if let Some(host) = &explanation.host {
        host::answer_in_markdown(out, host);
        for finding in findings_of_host(explanation) {
            self::finding(out, finding);
        }
        if findings_of_host(explanation).next().is_some() {
            out.push('\n');
        }
        host::evidence_in_markdown(out, host, lines);
    }
    for device in &explanation.devices {
        if explanation.devices.len() > 1 {
            let _ = writeln!(out, "### Device {}\n", device.ordinal);
        }
        for finding in findings_of(explanation, device) {
            self::finding(out, finding);
        }
        self::device(out, device, lines);
    }
}

pub(crate) fn finding(out: &mut String, finding: &Finding) {
    let _ = write!(out, "- **{} {}**: {}", finding.severity.name(), finding.code, escape(&finding.title));
    if let Some(saving) = saving(finding) {
        let _ = write!(out, " — {saving}");
    }
    out.push('\n');
    for detail in &finding.details {
        let _ = writeln!(out, "  - {}", escape(detail));
    }
    for fix in &finding.fixes {
        let lines: Vec<String> =
            fix.code.iter().flat_map(|code| code.lines()).map(|line| format!("`{line}`")).collect();
        let code = if lines.is_empty() { String::new() } else { format!(": {}", lines.join(", ")) };
        let _ = writeln!(out, "  - fix ({}): {}{code}", fix.grade.name(), escape(&fix.text));
    }
}

pub(crate) fn device(out: &mut String, device: &DeviceExplanation, lines: usize) {
    let _ = writeln!(
        out,
        "\nPeak {} allocated, {} reserved, {} requested; {} events, {}.\n",
        bytes(device.peak.allocated.bytes),
        bytes(device.peak.reserved.bytes),
        bytes(device.peak.requested.bytes),
        grouped(device.events),
        completeness(device)
    );
    let peak = device.peak.allocated.bytes;
    out.push_str("| at the peak | bytes | share | blocks |\n|---|---:|---:|---:|\n");
    for kind in &device.kinds {
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} |",
            kind.kind.name(),
            bytes(kind.bytes),
            percent(kind.bytes, peak),
            grouped(kind.count)
        );
    }
    out.push_str("\n| line | kind | bytes | share | blocks |\n|---|---|---:|---:|---:|\n");
    for line in device.lines.iter().take(lines) {
        let _ = writeln!(
            out,
            "| `{}`{} | {} | {} | {} | {} |",
            line.place.short().replace('`', "'").replace('|', "\\|"),
            line.through.as_ref().map(|through| format!(" → {}", escape(through))).unwrap_or_default(),
            line.kind.name(),
            bytes(line.bytes),
            percent(line.bytes, peak),
            grouped(line.count)
        );
    }
    let parts: Vec<String> =
        waste_parts(device).iter().map(|(name, sum)| format!("{name} {}", bytes(*sum))).collect();
    if !parts.is_empty() {
        let _ = writeln!(out, "\nReserved without use at the allocated peak: {}.", parts.join(", "));
    }
    out.push('\n');
}

/// The difference of two recordings.
pub fn diff(diff: &Diff, before: &Named, after: &Named, lines: usize) -> String {
    let mut out = format!("## {} → {}\n\n", escape(before.name), escape(after.name));
    if let Some(words) = cut_short(before, after) {
        let _ = writeln!(out, "**{}.**\n", escape(&words));
    }
    for device in &diff.devices {
        let _ = writeln!(out, "### Device {}\n", device.ordinal);
        out.push_str("| peak | before | after | change |\n|---|---:|---:|---:|\n");
        for (name, pick) in crate::text::PEAKS {
            let (from, to) = (
                device.before.as_ref().map_or(0, |p| pick(p).bytes),
                device.after.as_ref().map_or(0, |p| pick(p).bytes),
            );
            let _ = writeln!(
                out,
                "| {name} | {} | {} | {} |",
                bytes(from),
                bytes(to),
                crate::text::signed(grown(from, to))
            );
        }
        changes(&mut out, "kind", &device.kinds, lines);
        changes(&mut out, "line", &device.lines, lines);
        out.push('\n');
    }
    if let Some(host) = &diff.host {
        out.push_str("### RAM\n\n| peak | before | after | change |\n|---|---:|---:|---:|\n");
        for (name, from, to) in host::compared(host) {
            let change = crate::text::signed(grown(from, to));
            let _ = writeln!(out, "| {name} | {} | {} | {change} |", bytes(from), bytes(to));
        }
        changes(&mut out, "kind", &host.kinds, lines);
        changes(&mut out, "line", &host.lines, lines);
        out.push('\n');
    }
    out
}

fn changes(out: &mut String, heading: &str, changes: &[Change], lines: usize) {
    if changes.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n| {heading} | before | after | change |\n|---|---:|---:|---:|");
    for change in changes.iter().take(lines) {
        let name = change.what.as_ref().map_or_else(|kind| (*kind).to_owned(), |place| place.short());
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} |",
            escape(&name),
            bytes(change.before),
            bytes(change.after),
            crate::text::signed(change.grown())
        );
    }
}

/// The outcome of `check`, of one recording or of several.
pub fn checks(checks: &[Check]) -> String {
    let mut out = String::from("| file | peak | limit | verdict |\n|---|---:|---:|---|\n");
    for check in checks {
        let limit = match check.limit {
            CheckLimit::Most(most) => bytes(most),
            CheckLimit::Baseline { peak, tolerance, most } => {
                format!("{} ({} + {}%)", bytes(most), bytes(peak), tolerance * 100.0)
            }
        };
        let verdict = match (check.passed, check.died) {
            (true, _) => "ok",
            (false, true) => "**ran out of memory**",
            (false, false) => "**over**",
        };
        let _ = writeln!(
            out,
            "| {} | {} {} | {limit} | {verdict} |",
            escape(&check.file),
            bytes(check.peak),
            check.metric.words()
        );
    }
    out
}
