//! What is true of a machine, and what to do: what is wrong first, what is fine in a line each.

use crate::json;
use crate::markdown::escape;
use crate::text::{BOLD, CYAN, DIM, GREEN, RED, YELLOW, cut, paint, wrap};
use oomph_doctor::checks::Check;
use oomph_doctor::{Facts, Finding, Level, examine_without_names};
use oomph_words::{harmless, plural};
use std::fmt::Write;

/// The answer, in one line.
fn verdict(findings: &[Finding]) -> String {
    let count = |level| findings.iter().filter(|finding| finding.level == level).count() as u64;
    let (wrong, notes) = (count(Level::Wrong), count(Level::Note));
    let worth = match notes {
        0 => String::new(),
        1 => ", 1 thing is worth knowing".to_owned(),
        notes => format!(", {notes} things are worth knowing"),
    };
    match wrong {
        0 => format!("Nothing is wrong{worth}"),
        1 => format!("1 thing is wrong{worth}"),
        wrong => format!("{} are wrong{worth}", plural(wrong, "thing")),
    }
}

/// For a terminal. What notes mean is left out unless all is asked for: it is to fit a screen.
pub fn text(findings: &[Finding], all: bool, width: usize) -> String {
    let has_wrong = findings.iter().any(|finding| finding.level == Level::Wrong);
    let style = if has_wrong { RED } else { GREEN.bold() };
    let mut out = format!("{}\n", paint(style, verdict(findings)));
    for finding in findings.iter().filter(|finding| finding.level != Level::Fine) {
        one(&mut out, finding, all || finding.level == Level::Wrong, width);
    }
    let fine: Vec<&Finding> = findings.iter().filter(|finding| finding.level == Level::Fine).collect();
    let about = fine.iter().map(|finding| finding.about.chars().count()).fold(9, usize::max);
    if !fine.is_empty() {
        out.push('\n');
    }
    for finding in fine {
        let title = harmless(&finding.title);
        let title = if all { title } else { cut(&title, width.saturating_sub(about + 2)) };
        let _ = writeln!(out, "{}  {title}", paint(BOLD, format!("{:about$}", harmless(&finding.about))));
    }
    out
}

fn one(out: &mut String, finding: &Finding, in_full: bool, width: usize) {
    let style = if finding.level == Level::Wrong { RED } else { YELLOW };
    let level = finding.level.name();
    let title = format!("{}: {}", finding.about, finding.title);
    let indent = level.len() + 2;
    let _ = writeln!(out, "\n{}  {}", paint(style, level), paint(BOLD, wrap(&title, width, indent, indent)));
    let pad = " ".repeat(indent);
    if let Some(means) = finding.means.as_ref().filter(|_| in_full) {
        let _ = writeln!(out, "{pad}{}", wrap(means, width, indent, indent));
    }
    let Some(fix) = &finding.fix else { return };
    let _ = writeln!(out, "{pad}{} {}", paint(DIM, "→"), wrap(fix, width, indent + 2, indent + 2));
    if let Some(command) = &finding.command {
        // Not cut: it is to be copied.
        let _ = writeln!(out, "{pad}  {}", paint(CYAN, harmless(command)));
    }
}

/// For scripts and bug reports. Facts with names in them are left out.
pub fn json(facts: &Facts) -> String {
    json::doctor::examination(facts)
}

/// For issues and pull requests, likewise without names.
pub fn markdown(facts: &Facts) -> String {
    let findings = examine_without_names(facts);
    let mut out = format!("**{}**\n", verdict(&findings));
    for finding in findings.iter().filter(|finding| finding.level != Level::Fine) {
        let _ = write!(
            out,
            "\n- **{}** {}: {}",
            finding.level.name(),
            escape(&finding.about),
            escape(&finding.title)
        );
        if let Some(means) = &finding.means {
            let _ = write!(out, "  \n  {}", escape(means));
        }
        if let Some(fix) = &finding.fix {
            let _ = write!(out, "  \n  {}", escape(fix));
        }
        if let Some(command) = &finding.command {
            // Not cut either.
            let _ = write!(out, ": `{}`", harmless(&command.replace('`', "'")));
        }
    }
    out.push_str("\n\n| | |\n|---|---|\n");
    for finding in findings.iter().filter(|finding| finding.level == Level::Fine) {
        let _ = writeln!(out, "| {} | {} |", escape(&finding.about), escape(&finding.title));
    }
    out
}

/// The checks, for a terminal.
pub fn checks_text(checks: &[Check], width: usize) -> String {
    let name = checks.iter().map(|check| check.name().len()).max().unwrap_or(0);
    let mut out = String::new();
    for check in checks {
        let summary = wrap(&check.summary(), width, name + 2, name + 2);
        let _ = writeln!(out, "{}  {summary}", paint(BOLD, format!("{:name$}", check.name())));
    }
    out
}

pub fn checks_json(checks: &[Check]) -> String {
    json::doctor::all_checks(checks)
}

pub fn checks_markdown(checks: &[Check]) -> String {
    let mut out = String::new();
    for check in checks {
        let _ = writeln!(out, "## {}\n\n{}\n", check.name(), check.documentation());
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use oomph_doctor::{Python, Torch, examine};
    use oomph_host::{Gpu, GpuProcess, Group, Process, Ram, Shm, Surroundings, Use};

    const GIB: u64 = 1 << 30;

    fn process(pid: u32, user: &str, state: char) -> Process {
        let command = "python train.py --token hidden".to_owned();
        Process { command, ..Facts::unknown_process(pid, user, "python", state) }
    }

    /// A server that several people share, with most of what can be wrong.
    fn shared_server() -> Facts {
        let on_card = |pid, bytes| GpuProcess { pid, bytes: Some(bytes), kind: Use::Compute };
        let mut facts = Facts::unknown();
        facts.oomph = "0.1.0".to_owned();
        facts.user = Some("alice".to_owned());
        facts.environment.surroundings = vec![Surroundings::Slurm];
        facts.sample.gpus.driver = Some("570.86.10".to_owned());
        facts.sample.gpus.cuda = Some((12, 8));
        facts.sample.gpus.cards = vec![Gpu {
            index: 0,
            uuid: None,
            name: "NVIDIA GeForce RTX 4090".to_owned(),
            total: 24 * GIB,
            used: 45 * GIB / 2,
            reserved: Some(0),
            free: 3 * GIB / 2,
            busy: Some(90),
            temperature: Some(60),
            power: Some(300_000),
            capability: Some((8, 9)),
            mig: false,
            exclusive: false,
            is_virtual: false,
            processes: vec![on_card(4711, 16 * GIB), on_card(815, 13 * GIB / 2)],
        }];
        facts.sample.processes = vec![process(4711, "bob", 'S'), process(815, "alice", 'T')];
        facts.sample.machine.ram = Some(Ram {
            total: 256 * GIB,
            available: 200 * GIB,
            free: 100 * GIB,
            anonymous: 0,
            file: 0,
            shared: 0,
            kernel: 0,
            other: 0,
            pinned: 0,
        });
        facts.sample.machine.group = Some(Group {
            version: 2,
            limit: 32 * GIB,
            used: 12 * GIB,
            anonymous: None,
            file: None,
            shared: None,
            left: 20 * GIB,
            swap_left: 0,
            slows: false,
            kills: Some(0),
        });
        facts.sample.machine.shm = Some(Shm { total: 128 * GIB, used: 0 });
        facts.settings.values.insert("PYTORCH_ALLOC_CONF", "expandable_segments:True".to_owned());
        facts.python = Ok(Python {
            version: "3.11.7".to_owned(),
            executable: "/home/alice/venv/bin/python".to_owned(),
            is_environment: true,
            torch: vec![Torch {
                folder: "/home/alice/venv/torch".into(),
                version: "2.9.1+cu128".to_owned(),
                cuda: Some("12.8".to_owned()),
                ..Torch::default()
            }],
            oomph: Some("0.1.0".to_owned()),
            ..Python::default()
        });
        facts
    }

    /// Without the styles, as a caller strips them.
    fn plain(text: &str) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('\u{1b}') {
            out.push_str(&rest[..at]);
            rest = rest[at..].split_once('m').unwrap().1;
        }
        out + rest
    }

    #[test]
    fn a_shared_server_on_a_terminal() {
        let shown = plain(&text(&examine(&shared_server()), false, 80));
        insta::assert_snapshot!(shown);
        let guide = include_str!("../../../docs/guides/doctor.md");
        assert!(guide.contains(&shown), "docs/guides/doctor.md shows it otherwise");
        assert!(shown.lines().all(|line| line.chars().count() <= 80));
    }

    #[test]
    fn a_shared_server_in_a_report_has_no_names() {
        let facts = shared_server();
        insta::assert_snapshot!(markdown(&facts));
        let report: serde_json::Value = serde_json::from_str(&json(&facts)).unwrap();
        assert_eq!(report["wrong"], 3);
        assert_eq!(report["gpus"][0]["usable"], 3 * GIB / 2 - report["gpus"][0]["context"].as_u64().unwrap());
        assert_eq!(report["gpus"][0]["processes"][1]["user"], "user 2");
        assert_eq!(report["gpus"][0]["processes"][1]["yours"], true);
        for private in ["alice", "bob", "4711", "815", "/home", "hidden"] {
            assert!(
                !report.to_string().contains(private) && !markdown(&facts).contains(private),
                "{private}"
            );
        }
    }

    #[test]
    fn commands_are_whole_in_every_format() {
        let mut facts = shared_server();
        facts.python = facts.python.map(|mut python| {
            python.torch[0].cuda = None;
            for name in ["torchvision", "torchaudio"] {
                python.packages.insert(name.to_owned(), vec!["1.0".to_owned()]);
            }
            python
        });
        let command = "uv pip install --python python --force-reinstall torch torchvision torchaudio --index-url https://download.pytorch.org/whl/cu126";
        assert!(markdown(&facts).contains(&format!("`{command}`")), "{}", markdown(&facts));
        assert!(json(&facts).contains(&format!("\"{command}\"")));
        let named = command.replace("--python python", "--python /home/alice/venv/bin/python");
        assert!(plain(&text(&examine(&facts), false, 80)).contains(&named));
    }

    #[test]
    fn what_is_found_is_counted_in_the_first_line() {
        let first = |findings: &[Finding]| verdict(findings);
        let of = |levels: &[Level]| -> Vec<Finding> {
            let all = examine(&shared_server());
            levels.iter().map(|level| Finding { level: *level, ..all[0].clone() }).collect()
        };
        assert_eq!(first(&of(&[])), "Nothing is wrong");
        assert_eq!(first(&of(&[Level::Fine, Level::Note])), "Nothing is wrong, 1 thing is worth knowing");
        assert_eq!(first(&of(&[Level::Wrong])), "1 thing is wrong");
        assert_eq!(
            first(&of(&[Level::Wrong, Level::Wrong, Level::Note, Level::Note])),
            "2 things are wrong, 2 things are worth knowing"
        );
    }
}
