//! Memory of a card that no process accounts for.
//!
//! Wrong on a plain machine: what holds it is dead to the process table, and the card needs a reset. In a container
//! or on WSL it is a note: processes outside are not listed there. Only cards that programs see are checked.

use crate::facts::Facts;
use crate::finding::{Finding, Level};
use oomph_host::{Gpu, Surroundings};
use oomph_words::bytes;

pub(super) fn look(facts: &Facts) -> Vec<Finding> {
    facts.visible().into_iter().filter_map(|card| one(facts, card)).collect()
}

fn one(facts: &Facts, card: &Gpu) -> Option<Finding> {
    // The driver's own tables, and small change; drivers before 510 count what they keep for themselves as used.
    let own = (1 << 30) + if card.reserved.is_none() { 1 << 30 } else { 0 };
    let known: u64 = card.processes.iter().map(|process| process.bytes).sum::<Option<u64>>()?;
    let unknown = card.used.saturating_sub(known);
    if card.is_virtual || card.mig || unknown < own.max(card.total / 50) {
        return None;
    }
    let outside = [
        Surroundings::Container,
        Surroundings::Kubernetes,
        Surroundings::Wsl,
        Surroundings::Colab,
        Surroundings::Kaggle,
    ];
    let is_inside = outside.into_iter().any(|place| facts.is_in(place));
    let level = if is_inside { Level::Note } else { Level::Wrong };
    let finding = Finding::at(
        level,
        format!("GPU {}", card.index),
        format!("{} are used by no process that can be seen", bytes(unknown)),
    );
    Some(if is_inside {
        finding
            .means(
                "They belong to processes outside of this container, which the driver does not list in it.",
            )
            .fix("ask on the host, where all are listed")
            .command("nvidia-smi")
    } else {
        finding
            .means("A process died and left them, one of another user is hidden, or one in a container holds them.")
            .fix("see who has the devices open (as root, all of them); if no process has, reset the card")
            .command("sudo fuser -v /dev/nvidia*")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::test_fixtures::{GIB, card, machine, on_card, summary};
    use crate::finding::Level::{Note, Wrong};

    #[test]
    fn what_no_process_has_is_counted() {
        let mut facts = machine();
        facts.sample.gpus.cards = vec![on_card(card(0, 40 * GIB, 20 * GIB), &[(1, 12 * GIB)])];
        assert_eq!(summary(&look(&facts)), [(Wrong, "8.00 GiB are used by no process that can be seen")]);
        facts.environment.surroundings = vec![Surroundings::Container];
        assert_eq!(summary(&look(&facts))[0].0, Note);
        facts.settings.values.insert("CUDA_VISIBLE_DEVICES", "1".to_owned());
        assert!(look(&facts).is_empty(), "no program sees it");
    }

    #[test]
    fn what_the_driver_keeps_or_does_not_say_is_not() {
        let mut facts = machine();
        facts.sample.gpus.cards = vec![on_card(card(0, 40 * GIB, 13 * GIB), &[(1, 12 * GIB + GIB / 2)])];
        assert!(look(&facts).is_empty());
        facts.sample.gpus.cards = vec![on_card(card(0, 40 * GIB, 20 * GIB), &[(1, GIB), (2, GIB)])];
        facts.sample.gpus.cards[0].processes[1].bytes = None;
        assert!(look(&facts).is_empty(), "a process may have any part of it");
        facts.sample.gpus.cards = vec![Gpu { reserved: None, ..card(0, 40 * GIB, 3 * GIB / 2) }];
        assert!(look(&facts).is_empty(), "an old driver counts its own");
    }
}
