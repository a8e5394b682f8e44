//! Processes that are dead or stopped and still hold a card's memory.
//!
//! Wrong if they are yours and on a card that programs see, a note if they are others'. A process that was stopped (Ctrl-Z) keeps all of its memory. One that is
//! dead and not fetched by its parent (a zombie) keeps it while the driver waits for it, or for a child of it. In a container the
//! driver's numbers are the host's: a process counts only if it is seen to have the driver open.

use crate::facts::Facts;
use crate::finding::{Finding, Level};
use oomph_host::Process;
use oomph_words::bytes;

pub(super) fn look(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for card in facts.visible() {
        for on_card in &card.processes {
            let Some(process) = facts.process(on_card.pid) else { continue };
            let held = on_card.bytes.map_or_else(|| "memory".to_owned(), bytes);
            let level = if facts.is_own(process.pid) { Level::Wrong } else { Level::Note };
            findings.extend(one(facts, process, level, &format!("GPU {}", card.index), &held));
        }
    }
    findings
}

fn one(facts: &Facts, process: &Process, level: Level, about: &str, held: &str) -> Option<Finding> {
    let who = facts.who(process.pid);
    match process.state {
        'Z' | 'X' => {
            let parent = facts.process(process.parent).map(|parent| format!(" ({})", parent.name));
            Some(
                Finding::at(level, about, format!("{who} is dead and holds {held}"))
                    .means("Its parent has not fetched it, or a thread of it is stuck in the driver.")
                    .fix(format!(
                        "its parent{} must fetch it, or end; if that does not help, reset the card when no process uses it, or restart",
                        parent.unwrap_or_default()
                    )),
            )
        }
        't' => Some(
            Finding::at(level, about, format!("{who} is held by a debugger and holds {held}"))
                .means("A traced program frees nothing while it is stopped.")
                .fix("let it go on, or end it, in the debugger"),
        ),
        'T' => {
            let finding = Finding::at(level, about, format!("{who} is stopped and holds {held}"))
                .means("Ctrl-Z stops a program and frees nothing.");
            Some(match facts.kill(process.pid, " -KILL") {
                Some(command) => finding.fix("end it (or let it go on: kill -CONT)").command(command),
                None => finding.fix("ask its user to end it, or to let it go on"),
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::test_fixtures::{GIB, card, machine, on_card, process, summary};
    use crate::finding::Level::{Note, Wrong};

    #[test]
    fn the_dead_and_the_stopped_are_named_with_what_they_hold() {
        let mut facts = machine();
        facts.user = Some("alice".to_owned());
        facts.sample.processes = vec![
            process(11, "alice", "python", 'Z'),
            process(12, "bob", "python", 'T'),
            process(13, "alice", "python", 'S'),
            process(14, "alice", "bash", 'T'),
            process(15, "alice", "python", 't'),
            process(16, "alice", "python", 'T'),
            process(1, "alice", "launcher", 'T'),
        ];
        facts.sample.gpus.cards = vec![on_card(
            card(0, 16 * GIB, 8 * GIB),
            &[(11, 3 * GIB), (12, GIB), (13, GIB), (99, GIB), (15, GIB), (16, GIB), (1, GIB)],
        )];
        let findings = look(&facts);
        assert_eq!(
            summary(&findings),
            [
                (Wrong, "your python (pid 11) is dead and holds 3.00 GiB"),
                (Note, "bob's python (pid 12) is stopped and holds 1.00 GiB"),
                (Wrong, "your python (pid 15) is held by a debugger and holds 1.00 GiB"),
                (Wrong, "your python (pid 16) is stopped and holds 1.00 GiB"),
                (Wrong, "your launcher (pid 1) is stopped and holds 1.00 GiB"),
            ]
        );
        let commands: Vec<Option<&str>> = findings.iter().map(|finding| finding.command.as_deref()).collect();
        // No command that kills a parent, another user's process, one under a debugger, or process 1.
        assert_eq!(commands, [None, None, None, Some("kill -KILL 16"), None]);
        assert!(
            findings[0].fix.as_deref().unwrap().starts_with("its parent (launcher) must fetch it, or end")
        );
    }
}
