//! For notebooks and web pages: one fragment with its style and its picture, no script, nothing to load.
//!
//! It takes the page's colours (JupyterLab's, where they are set), so it reads on light and on dark. Whatever comes out of
//! a file is escaped.

use crate::picture;
use crate::ranks::Ranks;
use crate::shared::{
    NOTHING_RECORDED, Named, completeness, findings_of, next_command, saving, waste_parts, worst,
};
use oomph_explain::{DeviceExplanation, Explanation, Finding, Severity};
use oomph_words::{bytes, grouped, harmless, percent, plural};
use std::fmt::Write;

/// The style of everything inside `.oomph`.
pub(crate) const CSS: &str = ".oomph{color:var(--jp-content-font-color1,inherit);font-size:13px;line-height:1.45;max-width:900px;--oomph-line:rgba(0,0,0,.18)}
@media (prefers-color-scheme:dark){.oomph{--oomph-line:rgba(255,255,255,.25)}}
.oomph svg{width:100%;height:auto;display:block}
.oomph svg text{fill:currentColor;font-size:10px;font-family:inherit;opacity:.8}
.oomph svg text.mark{font-weight:bold;opacity:1}
.oomph svg circle{fill:currentColor}
.oomph .grid{stroke:var(--oomph-line);stroke-width:.5;fill:none}
.oomph .reserved{stroke:currentColor;stroke-width:1;stroke-dasharray:4 2;fill:none}
.oomph .oom{stroke:#d62728;stroke-width:2;fill:none}
.oomph .caught{stroke:#d62728;stroke-width:.75;stroke-dasharray:2 2;fill:none}
.oomph .steps{stroke:currentColor;stroke-width:.5;fill:currentColor;fill-opacity:.3}
.oomph .head{opacity:.8;margin:0 0 6px}
.oomph .legend span{display:inline-block;margin-right:14px;white-space:nowrap}
.oomph .legend i{display:inline-block;width:10px;height:10px;margin-right:5px}
.oomph .legend i.line{height:0;border-top:1px dashed currentColor;vertical-align:middle}
.oomph details{border-left:3px solid var(--oomph-line);padding-left:10px;margin:8px 0}
.oomph details.error{border-left-color:#d62728}
.oomph details.warning{border-left-color:#d9a400}
.oomph summary{cursor:pointer;font-weight:bold}
.oomph ul{margin:4px 0;padding-left:20px}
.oomph table{border-collapse:collapse;margin:6px 0}
.oomph td,.oomph th{padding:2px 10px 2px 0;text-align:left;border:0}
.oomph td.number,.oomph th.number{text-align:right;white-space:nowrap}
.oomph code{background:none;color:inherit}
";

/// One recording, or several: a table, then the worst.
pub fn explanation(all: &[Named], lines: usize) -> String {
    let mut out = format!("<div class=\"oomph\">\n<style>\n{CSS}</style>\n");
    if all.len() > 1 {
        ranks(&mut out, all);
    }
    let shown = if all.len() > 1 { worst(all).map_or(0, |(index, _)| index) } else { 0 };
    if let Some(named) = all.get(shown) {
        recording(&mut out, named, lines);
    }
    out.push_str("</div>\n");
    out
}

fn ranks(out: &mut String, all: &[Named]) {
    compared(out, &Ranks::of(all));
}

/// Who died and who stands out, and a table of them all.
pub(crate) fn compared(out: &mut String, ranks: &Ranks) {
    for sentence in ranks.words() {
        let _ = writeln!(out, "<p><b>{}</b></p>", escape(&sentence));
    }
    // Where every row is one device, that there is one goes without saying.
    let shares = ranks.shares_rows();
    let count = |text: &str, tag: &str| match shares {
        true => format!("<{tag} class=\"number\">{text}</{tag}>"),
        false => String::new(),
    };
    let _ = writeln!(
        out,
        "<table><tr><th>file</th>{}<th class=\"number\">device</th><th class=\"number\">allocated</th><th class=\"number\">reserved</th><th>ran out</th><th>findings</th></tr>",
        count("ranks", "th")
    );
    for row in ranks.rows() {
        let _ = writeln!(
            out,
            "<tr><td>{}</td>{}<td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td>{}</td><td>{}</td></tr>",
            escape(&row.name),
            count(&grouped(row.count as u64), "td"),
            row.device,
            row.allocated,
            row.reserved,
            row.ran_out,
            row.codes
        );
    }
    out.push_str("</table>\n");
}

fn recording(out: &mut String, named: &Named, lines: usize) {
    let explanation = named.explanation;
    for warning in &explanation.warnings {
        let _ = writeln!(out, "<p><b>warning</b>: {}</p>", escape(&warning.message));
    }
    if explanation.devices.is_empty() {
        let _ = writeln!(out, "<p>{}: {NOTHING_RECORDED}</p>", escape(named.name));
        return;
    }
    for device in &explanation.devices {
        head(out, named.name, explanation, device);
        if let Some(timeline) = &device.timeline {
            out.push_str(&picture::timeline(timeline));
        }
        legend(out, device);
        if findings_of(explanation, device).all(|finding| finding.severity > Severity::Warning) {
            let scope = if device.completeness.complete { "" } else { " in what was recorded" };
            let _ = writeln!(out, "<p>No problem was found{scope}.</p>");
        }
        for finding in findings_of(explanation, device) {
            self::finding(out, finding, None);
        }
        by_line(out, device, lines);
    }
    let _ = writeln!(out, "<p>Next: <code>{}</code></p>", escape(&next_command(explanation, named.name)));
}

fn head(out: &mut String, name: &str, explanation: &Explanation, device: &DeviceExplanation) {
    let _ = writeln!(
        out,
        "<p class=\"head\"><b>{}</b> ({}, device {}: {}, {})</p>",
        escape(name),
        explanation.format,
        device.ordinal,
        plural(device.events, "event"),
        escape(&completeness(device))
    );
}

pub(crate) fn legend(out: &mut String, device: &DeviceExplanation) {
    let peak = device.peak.allocated.bytes;
    let _ = write!(
        out,
        "<p class=\"legend\"><b>At the peak</b> {} allocated, {} reserved, {} requested<br>",
        bytes(peak),
        bytes(device.peak.reserved.bytes),
        bytes(device.peak.requested.bytes)
    );
    for kind in &device.kinds {
        let _ = write!(
            out,
            "<span><i style=\"background:{}\"></i>{} {} ({})</span>",
            picture::colour(kind.kind),
            kind.kind.name(),
            bytes(kind.bytes),
            escape(&percent(kind.bytes, peak))
        );
    }
    out.push_str("<span><i class=\"line\"></i>reserved</span></p>\n");
}

/// `id` names it within a page.
pub(crate) fn finding(out: &mut String, finding: &Finding, id: Option<&str>) {
    let severity = finding.severity.name();
    let id = id.map_or(String::new(), |id| format!(" id=\"{id}\""));
    let open = if finding.severity <= Severity::Warning { " open" } else { "" };
    let _ = writeln!(
        out,
        "<details class=\"{severity}\"{id}{open}><summary>{severity} {}: {}</summary>\n<ul>",
        finding.code,
        escape(&finding.title)
    );
    for detail in &finding.details {
        let _ = writeln!(out, "<li>{}</li>", escape(detail));
    }
    if let Some(saving) = saving(finding) {
        let _ = writeln!(out, "<li><b>{}</b></li>", escape(&saving));
    }
    for fix in &finding.fixes {
        let lines = fix.code.iter().flat_map(|code| code.lines());
        let code: String = lines.map(|line| format!("<br><code>{}</code>", escape(line))).collect();
        let _ = writeln!(out, "<li>fix ({}): {}{code}</li>", fix.grade.name(), escape(&fix.text));
    }
    out.push_str("</ul></details>\n");
}

pub(crate) fn by_line(out: &mut String, device: &DeviceExplanation, lines: usize) {
    let peak = device.peak.allocated.bytes;
    out.push_str("<details><summary>Held at the peak, by line</summary>\n<table>\n");
    for line in device.lines.iter().take(lines) {
        let through = line.through.as_ref().map(|through| format!(" → {}", escape(through)));
        let _ = writeln!(
            out,
            "<tr><td class=\"number\">{}</td><td class=\"number\">{}</td><td>{}</td><td><code>{}</code>{} ×{}</td></tr>",
            bytes(line.bytes),
            escape(&percent(line.bytes, peak)),
            line.kind.name(),
            escape(&line.place.short()),
            through.unwrap_or_default(),
            grouped(line.count)
        );
    }
    out.push_str("</table>\n");
    let parts: Vec<String> =
        waste_parts(device).iter().map(|(name, sum)| format!("{name} {}", bytes(*sum))).collect();
    if !parts.is_empty() {
        let _ = writeln!(out, "<p>Reserved without use at the peak: {}</p>", parts.join(", "));
    }
    out.push_str("</details>\n");
}

/// A stranger's text must not become markup.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in harmless(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn a_strangers_text_is_no_markup() {
        assert_eq!(
            escape("<script>alert('x')</script>&\"\u{1b}[0m"),
            "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;\u{fffd}[0m"
        );
    }
}
