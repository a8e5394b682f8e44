//! Modes of a card that surprise: one process at a time, MIG instances, a screen.
//!
//! A note each, and wrong if a card takes one process at a time and has one already. Only cards that programs see are checked.

use crate::facts::Facts;
use crate::finding::{Finding, Level};
use oomph_host::{Gpu, Use};
use oomph_words::bytes;

pub(super) fn look(facts: &Facts) -> Vec<Finding> {
    facts.visible().into_iter().flat_map(|card| one(facts, card)).collect()
}

fn one(facts: &Facts, card: &Gpu) -> Vec<Finding> {
    let about = format!("GPU {}", card.index);
    let mut findings = Vec::new();
    if card.exclusive {
        let taken = card.processes.iter().find(|process| process.kind != Use::Graphics);
        let (level, now) = match taken {
            Some(process) => (Level::Wrong, format!(", and {} has it", facts.who(process.pid))),
            None => (Level::Note, String::new()),
        };
        findings.push(
            Finding::at(level, about.clone(), format!("takes one process at a time (exclusive mode){now}"))
                .means("A second program fails with \"all CUDA-capable devices are busy or unavailable\".")
                .fix("wait for it, or let the administrator allow several")
                .command(format!("sudo nvidia-smi -i {} -c DEFAULT", card.index)),
        );
    }
    if card.mig {
        findings.push(
            Finding::note(about.clone(), "is cut into MIG instances")
                .means("A program sees one instance, with its share of the memory; what is said of the card above is said of the whole.")
                .fix("see the instances, and name the one you mean in CUDA_VISIBLE_DEVICES")
                .command("nvidia-smi -L"),
        );
    }
    let screens = card.processes.iter().filter(|process| process.kind != Use::Compute);
    let screen: u64 = screens.filter_map(|process| process.bytes).sum();
    // A bare server of windows takes some tens of MiB.
    const LEAST_REPORTED: u64 = 256 << 20;
    if screen >= LEAST_REPORTED {
        findings.push(
            Finding::note(about, format!("the screen takes {} of it", bytes(screen)))
                .means("Windows and browsers draw with it, and take more when there are more of them.")
                .fix("close them, plug the screen into another card, or work without one")
                .command("sudo systemctl isolate multi-user.target"),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::test_fixtures::{GIB, MIB, machine, on_card, process, summary};
    use crate::finding::Level::{Note, Wrong};

    #[test]
    fn an_exclusive_card_is_wrong_once_somebody_has_it() {
        let mut facts = machine();
        facts.sample.gpus.cards[0].exclusive = true;
        assert_eq!(summary(&look(&facts)), [(Note, "takes one process at a time (exclusive mode)")]);
        facts.sample.processes = vec![process(7, "bob", "python", 'S')];
        facts.sample.gpus.cards[0] = on_card(facts.sample.gpus.cards[0].clone(), &[(7, GIB)]);
        let title = "takes one process at a time (exclusive mode), and bob's python (pid 7) has it";
        assert_eq!(summary(&look(&facts)), [(Wrong, title)]);
        facts.settings.values.insert("CUDA_VISIBLE_DEVICES", String::new());
        assert!(look(&facts).is_empty(), "no program sees it");
    }

    #[test]
    fn instances_and_screens_are_noted() {
        let mut facts = machine();
        assert!(look(&facts).is_empty());
        let card = on_card(facts.sample.gpus.cards[0].clone(), &[(7, 300 * MIB), (8, 4 * GIB)]);
        facts.sample.gpus.cards = vec![card];
        facts.sample.gpus.cards[0].mig = true;
        facts.sample.gpus.cards[0].processes[0].kind = Use::Graphics;
        assert_eq!(
            summary(&look(&facts)),
            [(Note, "is cut into MIG instances"), (Note, "the screen takes 300 MiB of it")]
        );
    }
}
