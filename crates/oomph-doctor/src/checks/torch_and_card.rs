//! Whether PyTorch has kernels for the cards that are here.
//!
//! Wrong if it has none for a card that programs see. What a build has is read from its own list (`torch.cuda.get_arch_list()`,
//! a text in one of its libraries). A kernel (`sm_86`) runs on cards of its major version with the same or a later minor one, one
//! with an ending (`sm_90a`) on that card alone, and Jetsons run only their own (`sm_87`). What is kept as text (`compute_90`) is compiled by the driver for all later cards:
//! a note, because the first start takes minutes, and wrong if the driver is older than the CUDA that wrote the text.

use crate::architecture::{Architecture, Capability, Runs, runs};
use crate::facts::Facts;
use crate::finding::Finding;
use crate::wheels::{NO_WHEELS, Wheels};
use oomph_host::Gpu;

pub(super) fn look(facts: &Facts) -> Vec<Finding> {
    let (Ok(python), Some(torch)) = (&facts.python, facts.torch()) else { return Vec::new() };
    let has: Vec<Architecture> =
        python.architectures.iter().filter_map(|name| Architecture::read(name)).collect();
    let Some(cuda) = torch.cuda_numbers().filter(|_| !has.is_empty()) else { return Vec::new() };
    let finding = |card: &Gpu| {
        let capability = card.capability?;
        match runs(&has, capability, cuda) {
            Some(Runs::AtOnce) => None,
            Some(Runs::OnceCompiled) => Some(only_text(facts, card, capability)),
            None => Some(no_kernels(facts, card, capability)),
        }
    };
    facts.visible().into_iter().filter_map(finding).collect()
}

fn no_kernels(facts: &Facts, card: &Gpu, capability: Capability) -> Finding {
    let title = format!("{} has no kernels for this {}", build(facts), named(card, capability));
    let finding = Finding::wrong(about(card), title).means(format!(
        "It has {}: the first kernel fails with \"no kernel image is available for execution on the device\".",
        architectures(facts)
    ));
    install(facts, card, finding)
}

fn only_text(facts: &Facts, card: &Gpu, capability: Capability) -> Finding {
    let title = format!("{} has kernels for this {} only as text", build(facts), named(card, capability));
    let built = facts.torch().and_then(|torch| torch.cuda_numbers());
    // A driver reads the text of its own CUDA and of those before; only compiled kernels may be newer.
    let is_read = facts.sample.gpus.cuda.is_none() || built <= facts.sample.gpus.cuda;
    let finding = if is_read {
        Finding::note(about(card), title)
            .means("The driver compiles each kernel at its first use: the first start takes minutes, later ones find them in ~/.nv/ComputeCache.")
    } else {
        Finding::wrong(about(card), title).means(
            "The driver is older than the CUDA that wrote it: the first kernel fails with \"the provided PTX was compiled with an unsupported toolchain\".",
        )
    };
    install(facts, card, finding)
}

/// One build for all cards that programs see; where there is none, one for this card.
fn install(facts: &Facts, card: &Gpu, finding: Finding) -> Finding {
    match Wheels::best(facts).or_else(|| Wheels::for_cards(facts, &[card])) {
        Some(wheels) => finding.fix(wheels.fix(facts)).command(wheels.command(facts)),
        None => finding.fix(NO_WHEELS),
    }
}

fn about(card: &Gpu) -> String {
    format!("GPU {}", card.index)
}

fn named(card: &Gpu, (major, minor): Capability) -> String {
    format!("{} (sm_{major}{minor})", card.name)
}

fn build(facts: &Facts) -> String {
    facts.torch().map_or_else(|| "PyTorch".to_owned(), |torch| format!("PyTorch {}", torch.version))
}

fn architectures(facts: &Facts) -> String {
    facts.python.as_ref().map(|python| python.architectures.join(", ")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::test_fixtures::{GIB, card, machine, summary, with_torch};
    use crate::finding::Level::{Note, Wrong};

    fn with(architectures: &[&str], capability: (u32, u32)) -> Facts {
        let mut facts = machine();
        let mut python = with_torch("2.11.0+cu128", Some("12.8"));
        python.architectures = architectures.iter().map(|&word| word.to_owned()).collect();
        facts.python = Ok(python);
        facts.sample.gpus.cards[0].capability = Some(capability);
        facts
    }

    const NEWER: [&str; 6] = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"];
    const OLDER: [&str; 7] = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"];

    #[test]
    fn a_card_without_kernels_is_wrong() {
        let findings = look(&with(&NEWER, (6, 0)));
        assert_eq!(
            summary(&findings),
            [(Wrong, "PyTorch 2.11.0+cu128 has no kernels for this Tesla T4 (sm_60)")]
        );
        assert!(findings[0].means.as_deref().unwrap().contains("sm_75, sm_80"));
        assert!(findings[0].command.as_deref().unwrap().ends_with("/cu126"));
        assert!(look(&with(&OLDER, (12, 0)))[0].command.as_deref().unwrap().ends_with("/cu128"));
        assert_eq!(look(&with(&NEWER, (3, 0)))[0].command, None);
        assert_eq!(summary(&look(&with(&NEWER, (8, 7))))[0].0, Wrong, "a Jetson");
    }

    #[test]
    fn cards_of_which_no_build_has_both_get_one_each() {
        let mut facts = with(&["sm_90"], (6, 0));
        facts.sample.gpus.cards.push(Gpu { index: 1, capability: Some((12, 0)), ..card(1, GIB, 0) });
        let indexes: Vec<String> = (look(&facts).into_iter())
            .map(|finding| finding.command.unwrap().rsplit('/').next().unwrap().to_owned())
            .collect();
        assert_eq!(indexes, ["cu126", "cu128"]);
    }

    #[test]
    fn kernels_that_are_there_only_as_text_are_a_note() {
        let mut facts = with(&["sm_90", "compute_90"], (12, 0));
        let title = "PyTorch 2.11.0+cu128 has kernels for this Tesla T4 (sm_120) only as text";
        assert_eq!(summary(&look(&facts)), [(Note, title)]);
        assert!(look(&with(&["sm_90", "compute_90"], (9, 0))).is_empty());
        facts.sample.gpus.cuda = Some((12, 4));
        assert_eq!(summary(&look(&facts)), [(Wrong, title)], "the driver cannot read it");
    }

    #[test]
    fn cards_that_are_hidden_or_builds_that_say_nothing_are_left_alone() {
        let mut facts = with(&["sm_90"], (6, 0));
        facts.settings.values.insert("CUDA_VISIBLE_DEVICES", "-1".to_owned());
        assert!(look(&facts).is_empty());
        assert!(look(&with(&[], (6, 0))).is_empty());
    }
}
