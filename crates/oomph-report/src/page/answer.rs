//! What the page shows without scripts: in a mail, in print, in a screen reader.

use super::data;
use crate::host;
use crate::html::{self, escape};
use crate::picture;
use crate::shared::{NOTHING_RECORDED, Named, completeness, findings_of, findings_of_host};
use oomph_explain::{DeviceExplanation, Finding, HostExplanation, Severity};
use oomph_words::{bytes, harmless, plural};
use std::fmt::Write;

/// Lines of the table that is shown where no script runs.
const LINES: usize = 20;

/// What the script is told of findings, whose words are here.
pub(super) fn findings<'a>(subject: usize, found: impl Iterator<Item = &'a Finding>) -> Vec<data::Finding> {
    found
        .enumerate()
        .map(|(index, finding)| data::Finding {
            code: finding.code,
            severity: finding.severity.name(),
            title: harmless(&finding.title),
            saving: finding.saving.as_ref().filter(|saving| !saving.missing).map(|saving| saving.bytes),
            anchor: anchor(subject, index),
        })
        .collect()
}

/// Names a finding within the page.
fn anchor(subject: usize, finding: usize) -> String {
    format!("finding-{subject}-{finding}")
}

/// One device: what was found, the numbers, a picture.
pub(super) fn answer(number: usize, named: &Named, device: &DeviceExplanation) -> String {
    let explanation = named.explanation;
    let mut out = format!("<div class=\"oomph answer\" id=\"answer-{number}\" data-subject=\"{number}\">\n");
    for warning in &explanation.warnings {
        let _ = writeln!(out, "<p><b>warning</b>: {}</p>", escape(&warning.message));
    }
    let _ = writeln!(
        out,
        "<p class=\"head\"><b>{}</b> ({}, device {}: {}, {})</p>",
        escape(named.name),
        explanation.format,
        device.ordinal,
        plural(device.events, "event"),
        escape(&completeness(device))
    );
    numbers(&mut out, device);
    if findings_of(explanation, device).all(|finding| finding.severity > Severity::Warning) {
        let scope = if device.completeness.complete { "" } else { " in what was recorded" };
        let _ = writeln!(out, "<p class=\"no-problem\">No problem was found{scope}.</p>");
    }
    for (index, finding) in findings_of(explanation, device).enumerate() {
        html::finding(&mut out, finding, Some(&anchor(number, index)));
    }
    out.push_str("<div class=\"static-picture\">\n");
    if let Some(timeline) = &device.timeline {
        out.push_str(&picture::timeline(timeline));
    }
    html::legend(&mut out, device);
    html::by_line(&mut out, device, LINES);
    out.push_str("</div>\n</div>\n");
    out
}

/// RAM of one process: what was found, the numbers, tables.
pub(super) fn of_ram(number: usize, named: &Named, told: &HostExplanation, complete: &str) -> String {
    let mut out = format!("<div class=\"oomph answer\" id=\"answer-{number}\" data-subject=\"{number}\">\n");
    for warning in &named.explanation.warnings {
        let _ = writeln!(out, "<p><b>warning</b>: {}</p>", escape(&warning.message));
    }
    let _ = writeln!(
        out,
        "<p class=\"head\"><b>{}</b> ({}, RAM of a process: {}, {complete})</p>",
        escape(named.name),
        named.explanation.format,
        plural(told.events, "event")
    );
    out.push_str("<dl class=\"numbers\">");
    let mut put = |name: &str, key: &str, value: String| {
        let _ = write!(out, "<div><dt>{name}</dt><dd data-number=\"{key}\">{}</dd></div>", escape(&value));
    };
    put("asked for at most", "asked", host::asked_for(told));
    if let Some(own) = told.own() {
        put("counted by the kernel at most", "counted", bytes(own));
        put("with pages of files, at most", "resident", bytes(told.most_resident));
    }
    put("peak asked for after", "peak-seconds", host::seconds(told.peak_seconds));
    put("recorded", "seconds", host::seconds(told.seconds));
    out.push_str("</dl>\n");
    for sentence in host::words(told) {
        let _ = writeln!(out, "<p>{}</p>", escape(&sentence));
    }
    if findings_of_host(named.explanation).all(|finding| finding.severity > Severity::Warning) {
        out.push_str("<p class=\"no-problem\">No problem was found.</p>\n");
    }
    for (index, finding) in findings_of_host(named.explanation).enumerate() {
        html::finding(&mut out, finding, Some(&anchor(number, index)));
    }
    out.push_str("<div class=\"static-picture\">\n");
    host::tables_in_html(&mut out, told, LINES);
    out.push_str("</div>\n</div>\n");
    out
}

/// A recording in which nothing happened.
pub(super) fn nothing(named: &Named) -> String {
    let mut out = "<div class=\"oomph answer\">\n".to_owned();
    for warning in &named.explanation.warnings {
        let _ = writeln!(out, "<p><b>warning</b>: {}</p>", escape(&warning.message));
    }
    let _ = writeln!(
        out,
        "<p><b>{}</b> ({}): {}</p>\n<p>To record everything: <code>oomph run train.py</code>, or \
         <code>torch.cuda.memory._record_memory_history()</code> before the model is built and \
         <code>torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")</code> at the end.</p>\n</div>",
        escape(named.name),
        named.explanation.format,
        NOTHING_RECORDED
    );
    out
}

fn numbers(out: &mut String, device: &DeviceExplanation) {
    out.push_str("<dl class=\"numbers\">");
    let mut number = |name: &str, key: &str, value: String| {
        let _ = write!(out, "<div><dt>{name}</dt><dd data-number=\"{key}\">{}</dd></div>", escape(&value));
    };
    let peak = &device.peak;
    number("peak allocated", "allocated", bytes(peak.allocated.bytes));
    number("peak reserved", "reserved", bytes(peak.reserved.bytes));
    number("asked for at most", "requested", bytes(peak.requested.bytes));
    if let Some(step) = device.peak_step {
        number("peak in step", "step", step.to_string());
    }
    if let Some(steps) = &device.steps {
        number("steps", "steps", oomph_words::grouped(steps.count + steps.repeated));
    }
    if let Some(seconds) = device.seconds {
        number("recorded", "seconds", format!("{seconds:.2} s"));
    }
    number(
        "settings",
        "conf",
        match device.conf.as_deref() {
            Some("") => "PyTorch's defaults".to_owned(),
            Some(conf) => oomph_words::printable(conf),
            None => "not recorded".to_owned(),
        },
    );
    out.push_str("</dl>\n");
}
