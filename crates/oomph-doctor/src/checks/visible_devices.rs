//! Which cards `CUDA_VISIBLE_DEVICES` leaves to programs.
//!
//! Wrong if it hides every card, or names one that is not there: CUDA takes the list up to the first entry that is
//! invalid and says nothing about the rest (CUDA Programming Guide, environment variables). Wrong too if it names one twice: then
//! no card is left. A note if some cards are hidden, or if cards of several kinds are counted by speed while nvidia-smi counts them
//! by their place on the bus.

use crate::facts::Facts;
use crate::finding::Finding;
use oomph_words::plural;

pub(super) fn look(facts: &Facts) -> Vec<Finding> {
    let cards = &facts.sample.gpus.cards;
    if cards.is_empty() {
        return Vec::new();
    }
    let listed = facts.settings.get("CUDA_VISIBLE_DEVICES");
    let mut findings: Vec<Finding> = listed.and_then(|listed| hidden(facts, listed)).into_iter().collect();
    // CUDA orders by speed by default; equal cards are in bus order, and a UUID names one card in any order.
    let differ = cards.iter().any(|card| card.name != cards[0].name);
    let by_name =
        listed.is_some_and(|listed| listed.split(',').all(|entry| entry.trim().starts_with("GPU-")));
    if differ && !by_name && facts.settings.get("CUDA_DEVICE_ORDER") != Some("PCI_BUS_ID") {
        findings.push(
            Finding::note("GPUs", "cuda:0 may be another card than nvidia-smi's GPU 0")
                .means("The cards differ. CUDA counts the fastest first, also in CUDA_VISIBLE_DEVICES; nvidia-smi and oomph count by place on the bus.")
                .fix("count alike")
                .command("export CUDA_DEVICE_ORDER=PCI_BUS_ID"),
        );
    }
    findings
}

fn hidden(facts: &Facts, listed: &str) -> Option<Finding> {
    let all = facts.sample.gpus.cards.len();
    let visible = facts.visible().len();
    let setting = format!("CUDA_VISIBLE_DEVICES={listed}");
    let first = listed.split(',').next().unwrap_or_default().trim();
    // What older versions of Slurm set for a job without a GPU.
    if matches!(first, "" | "-1" | "NoDevFiles") {
        let finding = Finding::wrong("GPUs", format!("{setting} hides all {}", plural(all as u64, "GPU")))
            .means("torch.cuda.is_available() is False in every program that is started from here.");
        return Some(if facts.asked_slurm_for_no_gpu() {
            finding.fix("ask Slurm for a GPU").command("srun --gres=gpu:1 …")
        } else {
            finding.fix("unless that is what you want, unset it").command("unset CUDA_VISIBLE_DEVICES")
        });
    }
    if let Some(again) = facts.listed_twice() {
        return Some(
            Finding::wrong("GPUs", format!("{setting} names GPU {again:?} twice"))
                .means(
                    "Programs then see no GPU at all, without an error: torch.cuda.is_available() is False.",
                )
                .fix("name each card once"),
        );
    }
    let entries = listed.split(',').count();
    if visible < entries {
        let unknown = listed.split(',').nth(visible).unwrap_or_default().trim();
        return Some(
            Finding::wrong("GPUs", format!("{setting}: there is no GPU {unknown:?}"))
                .means(format!(
                    "CUDA takes the list up to the first entry that is not there: programs see {} of {}.",
                    visible,
                    plural(all as u64, "GPU")
                ))
                .fix("name cards by their numbers from 0, or as nvidia-smi -L does")
                .command("nvidia-smi -L"),
        );
    }
    (visible < all).then(|| {
        Finding::note("GPUs", format!("{setting}: programs see {visible} of {}", plural(all as u64, "GPU")))
            .means("cuda:0 is the first of the list.")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::test_fixtures::{GIB, card, machine, summary, with_settings};
    use crate::finding::Level::{Note, Wrong};
    use oomph_host::Surroundings;

    fn cards(listed: &str) -> Facts {
        let mut facts = with_settings(machine(), &[("CUDA_VISIBLE_DEVICES", listed)]);
        facts.sample.gpus.cards = (0..3).map(|index| card(index, 15 * GIB, 0)).collect();
        facts.sample.gpus.cards[2].uuid = Some("GPU-8932f937-d72c".to_owned());
        facts
    }

    #[test]
    fn what_hides_cards_is_said() {
        assert_eq!(summary(&look(&cards(""))), [(Wrong, "CUDA_VISIBLE_DEVICES= hides all 3 GPUs")]);
        assert_eq!(summary(&look(&cards("-1"))), [(Wrong, "CUDA_VISIBLE_DEVICES=-1 hides all 3 GPUs")]);
        assert_eq!(
            summary(&look(&cards("0,7,1"))),
            [(Wrong, "CUDA_VISIBLE_DEVICES=0,7,1: there is no GPU \"7\"")]
        );
        assert!(look(&cards("0,7,1"))[0].means.as_deref().unwrap().contains("see 1 of 3 GPUs"));
        assert_eq!(
            summary(&look(&cards("2,0"))),
            [(Note, "CUDA_VISIBLE_DEVICES=2,0: programs see 2 of 3 GPUs")]
        );
        assert_eq!(
            summary(&look(&cards("GPU-8932"))),
            [(Note, "CUDA_VISIBLE_DEVICES=GPU-8932: programs see 1 of 3 GPUs")]
        );
        assert_eq!(
            summary(&look(&cards("all"))),
            [(Wrong, "CUDA_VISIBLE_DEVICES=all: there is no GPU \"all\"")]
        );
        assert!(look(&cards("0,1,2")).is_empty());
    }

    #[test]
    fn a_card_that_is_listed_twice_leaves_none() {
        let title = "CUDA_VISIBLE_DEVICES=0,1,0 names GPU \"0\" twice";
        assert_eq!(summary(&look(&cards("0,1,0"))), [(Wrong, title)]);
        assert!(cards("0,1,0").visible().is_empty());
        let named = "GPU-8932f937-d72c,GPU-8932f937-d72c";
        assert_eq!(summary(&look(&cards(named)))[0].0, Wrong);
        // The list ends before that.
        assert_eq!(cards("0,-1,0").visible().len(), 1);
        let mut facts = cards("MIG-1,MIG-2");
        facts.sample.gpus.cards[0].mig = true;
        assert_eq!(facts.listed_twice(), None, "two instances of one card");
    }

    #[test]
    fn a_job_that_asked_for_no_gpu_is_to_ask() {
        let mut facts = cards("NoDevFiles");
        assert_eq!(look(&facts)[0].command.as_deref(), Some("unset CUDA_VISIBLE_DEVICES"));
        facts.environment.surroundings = vec![Surroundings::Slurm];
        assert_eq!(look(&facts)[0].command.as_deref(), Some("srun --gres=gpu:1 …"));
        facts.settings.values.insert("SLURM_JOB_GPUS", "0,1".to_owned());
        assert_eq!(look(&facts)[0].command.as_deref(), Some("unset CUDA_VISIBLE_DEVICES"));
    }

    #[test]
    fn cards_of_several_kinds_are_counted_by_speed() {
        let mut facts = cards("0,1,2");
        facts.sample.gpus.cards[1].name = "NVIDIA H200".to_owned();
        assert_eq!(summary(&look(&facts)), [(Note, "cuda:0 may be another card than nvidia-smi's GPU 0")]);
        facts.settings.values.insert("CUDA_VISIBLE_DEVICES", "GPU-8932".to_owned());
        assert_eq!(look(&facts).len(), 1, "a name is one card's in any order");
        facts.settings.values.insert("CUDA_VISIBLE_DEVICES", "0,1,2".to_owned());
        facts.settings.values.insert("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned());
        assert!(look(&facts).is_empty());
    }
}
