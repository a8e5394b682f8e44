//! How much of each card is really usable, and who else is on it.
//!
//! Usable is what the driver says is free, less what a CUDA context takes on such a card (`oomph gpus`). Wrong if a
//! program could have less than a tenth of the card, or if the driver has lost it; a note if others have more than a tenth of it.
//! Cards that `CUDA_VISIBLE_DEVICES` hides are one line together, whatever is on them.

use super::listed;
use crate::facts::Facts;
use crate::finding::Finding;
use oomph_host::{Gpu, GpuProcess, Unreadable};
use oomph_words::bytes;

pub(super) fn look(facts: &Facts) -> Vec<Finding> {
    let unreadable =
        facts.sample.gpus.unreadable.iter().filter(|card| facts.may_see(card.index)).map(unreadable);
    let visible = facts.visible().into_iter().map(|card| one(facts, card));
    visible.chain(unreadable).chain(hidden(facts)).collect()
}

/// The others in one line, those with most room first: there a program could go.
fn hidden(facts: &Facts) -> Option<Finding> {
    const MOST: usize = 3;
    let visible: Vec<u32> = facts.visible().iter().map(|card| card.index).collect();
    let mut others: Vec<&Gpu> =
        facts.sample.gpus.cards.iter().filter(|card| !visible.contains(&card.index)).collect();
    others.sort_by_key(|card| (std::cmp::Reverse(facts.usable(card)), card.index));
    let mut shown: Vec<String> = (others.iter().take(MOST))
        .map(|card| format!("GPU {} ({}, {} usable)", card.index, card.name, bytes(facts.usable(card))))
        .collect();
    if others.len() > MOST {
        shown.push(format!("{} more", others.len() - MOST));
    }
    (!others.is_empty()).then(|| Finding::fine("GPUs", format!("hidden from programs: {}", listed(&shown))))
}

fn unreadable(card: &Unreadable) -> Finding {
    let about = format!("GPU {}", card.index);
    let name = card.name.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
    let why = card.why.trim_end_matches('.');
    // NVML's words for a card that is lost; others (Jetson, GB10) have no memory of their own.
    if why.contains("off the bus") {
        return Finding::wrong(about, format!("{name}the driver has lost it"))
            .means(format!("It says: {why}. Programs that use it hang or fail."))
            .fix("see what the kernel says of it (an Xid), and restart; if it happens again, it is the card, its power or its slot")
            .command("sudo dmesg | grep -i xid | tail");
    }
    Finding::note(about, format!("{name}the driver does not say how much memory it has")).means(format!(
        "It says: {why}. A card that shares RAM has none of its own; a driver before 510 does not report all."
    ))
}

fn one(facts: &Facts, card: &Gpu) -> Finding {
    let about = format!("GPU {}", card.index);
    let (usable, total) = (facts.usable(card), card.total);
    let what = if card.is_virtual { "virtual " } else { "" };
    let of = format!("{what}{}: {} of {} usable", card.name, bytes(usable), bytes(total));
    let taken: u64 = card.processes.iter().filter_map(|process| process.bytes).sum();
    let is_short = usable < total / 10;
    if !is_short && taken < total / 10 {
        let others = match card.processes.len() {
            0 => "no process is listed".to_owned(),
            1 => "1 process on it".to_owned(),
            count => format!("{count} processes on it"),
        };
        return Finding::fine(about, format!("{of}, {others}"));
    }
    let mut processes: Vec<&GpuProcess> = card.processes.iter().collect();
    processes.sort_by_key(|process| std::cmp::Reverse(process.bytes));
    let finding = if is_short { Finding::wrong(about, of) } else { Finding::note(about, of) };
    let [first, ..] = processes.as_slice() else {
        return finding
            .means("No process is to be seen that has the rest.")
            .fix("see who is on the card")
            .command("nvidia-smi");
    };
    const MOST: usize = 3;
    let mut who: Vec<String> = (processes.iter().take(MOST))
        .map(|process| {
            let held = process.bytes.map_or_else(|| "an unknown part".to_owned(), bytes);
            format!("{} with {held}", facts.who(process.pid))
        })
        .collect();
    if processes.len() > MOST {
        who.push(format!("{} more", processes.len() - MOST));
    }
    let finding = finding.means(format!("On it: {}.", listed(&who)));
    /// With less than this no program is worth starting.
    const LEAST: u64 = 1 << 30;
    match facts.kill(first.pid, "") {
        Some(command) => finding
            .fix("end what you no longer need (a notebook keeps its memory until its kernel ends)")
            .command(command),
        None if usable < LEAST => finding.fix("take another card, or wait until there is room"),
        None => finding
            .fix("take another card, or hold your program to what is left")
            .command(format!("oomph run --budget {} train.py", budget(usable))),
    }
}

/// As a command takes it: whole MiB, rounded down.
fn budget(usable: u64) -> String {
    format!("{}MiB", usable >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::test_fixtures::{GIB, MIB, card, machine, on_card, process, summary, with_settings};
    use crate::finding::Level::{Fine, Note, Wrong};

    #[test]
    fn an_empty_card_is_usable_but_for_its_context() {
        // 105 MiB on a T4.
        assert_eq!(
            summary(&look(&machine())),
            [(Fine, "Tesla T4: 14.9 GiB of 15.0 GiB usable, no process is listed")]
        );
        let mut facts = machine();
        facts.sample.gpus.cards[0].name = "A card of the future".to_owned();
        assert_eq!(facts.usable(&facts.sample.gpus.cards[0]), 15 * GIB - 400 * MIB);
    }

    #[test]
    fn the_virtual_card_counts_its_context_by_itself() {
        let mut facts = machine();
        facts.sample.gpus.cards = vec![card(0, 15 * GIB, 105 * MIB)];
        facts.sample.gpus.cards[0].is_virtual = true;
        let title = "virtual Tesla T4: 14.9 GiB of 15.0 GiB usable, no process is listed";
        assert_eq!(summary(&look(&facts)), [(Fine, title)]);
        assert_eq!(facts.usable(&facts.sample.gpus.cards[0]), 15 * GIB - 105 * MIB);
    }

    #[test]
    fn others_on_it_are_named_the_largest_first() {
        let mut facts = machine();
        facts.user = Some("alice".to_owned());
        facts.sample.processes = vec![process(11, "bob", "python", 'S'), process(12, "alice", "python", 'S')];
        facts.sample.gpus.cards = vec![on_card(card(0, 16 * GIB, 8 * GIB), &[(12, 2 * GIB), (11, 6 * GIB)])];
        let [finding] = look(&facts).try_into().unwrap();
        assert_eq!(finding.level, Note);
        assert_eq!(
            finding.means.as_deref(),
            Some("On it: bob's python (pid 11) with 6.00 GiB and your python (pid 12) with 2.00 GiB.")
        );
        assert_eq!(finding.command.as_deref(), Some("oomph run --budget 8087MiB train.py"));
    }

    #[test]
    fn a_full_card_is_wrong_and_ones_own_is_to_be_ended() {
        let mut facts = machine();
        facts.user = Some("alice".to_owned());
        facts.sample.processes = vec![process(12, "alice", "python", 'S')];
        facts.sample.gpus.cards = vec![on_card(card(0, 16 * GIB, 15 * GIB), &[(12, 15 * GIB)])];
        let [finding] = look(&facts).try_into().unwrap();
        assert_eq!((finding.level, finding.command.as_deref()), (Wrong, Some("kill 12")));
        // One that cannot be seen.
        facts.sample.processes.clear();
        let [finding] = look(&facts).try_into().unwrap();
        assert!(
            finding
                .means
                .unwrap()
                .starts_with("On it: a process that cannot be seen from here (pid 12) with 15.0 GiB")
        );
    }

    #[test]
    fn cards_that_programs_do_not_see_are_one_line_and_decide_nothing() {
        let mut facts = with_settings(machine(), &[("CUDA_VISIBLE_DEVICES", "3")]);
        facts.sample.gpus.cards =
            (0..8).map(|index| card(index, 16 * GIB, if index == 3 { 0 } else { 16 * GIB })).collect();
        facts.sample.gpus.unreadable =
            vec![Unreadable { index: 8, name: None, why: "device fell off the bus".to_owned() }];
        assert_eq!(
            summary(&look(&facts)),
            [
                (Fine, "Tesla T4: 15.9 GiB of 16.0 GiB usable, no process is listed"),
                (
                    Fine,
                    "hidden from programs: GPU 0 (Tesla T4, 0 B usable), GPU 1 (Tesla T4, 0 B usable), GPU 2 (Tesla T4, 0 B usable) and 4 more"
                ),
            ]
        );
        facts.settings.values.insert("CUDA_VISIBLE_DEVICES", "3,8".to_owned());
        assert_eq!(summary(&look(&facts))[1], (Wrong, "the driver has lost it"));
    }

    #[test]
    fn a_card_that_is_lost_is_wrong_and_one_without_memory_a_note() {
        let mut facts = machine();
        let unreadable =
            |why: &str| Unreadable { index: 1, name: Some("NVIDIA H200".into()), why: why.to_owned() };
        facts.sample.gpus.unreadable = vec![
            unreadable("device fell off the bus or has otherwise become inacessible"),
            unreadable("the requested operation is not available on the target device"),
        ];
        let findings = look(&facts);
        assert_eq!(summary(&findings)[1], (Wrong, "NVIDIA H200: the driver has lost it"));
        assert_eq!(
            summary(&findings)[2],
            (Note, "NVIDIA H200: the driver does not say how much memory it has")
        );
    }

    #[test]
    fn memory_that_the_driver_does_not_say_is_unknown() {
        let mut facts = machine();
        facts.sample.gpus.cards = vec![on_card(card(0, 16 * GIB, 15 * GIB), &[(12, 0)])];
        facts.sample.gpus.cards[0].processes[0].bytes = None;
        assert!(look(&facts)[0].means.as_deref().unwrap().contains("with an unknown part"));
    }
}
