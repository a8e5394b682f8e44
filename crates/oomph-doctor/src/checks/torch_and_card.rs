//! Whether PyTorch has kernels for the cards that are here.
//!
//! Wrong if it has none for a card that programs see. What a build has is read from its own list (`torch.cuda.get_arch_list()`,
//! a text in one of its libraries). A kernel runs on cards of its major version with the same or a later minor one; one
//! that is kept as text (`compute_90`) on all later cards. Builds for CUDA 12.6 have 5.0 to 9.0; those for 12.8 and later
//! begin with 7.0 or 7.5 and have Blackwell, 10.0 and 12.0 (pytorch/pytorch#157517; from 2.11 on without Volta).

use crate::facts::Facts;
use crate::finding::Finding;
use crate::python::architecture;
use oomph_host::Gpu;

pub(super) fn look(facts: &Facts) -> Vec<Finding> {
    let (Ok(python), Some(torch)) = (&facts.python, facts.torch()) else { return Vec::new() };
    let has: Vec<(bool, (u32, u32))> =
        python.architectures.iter().filter_map(|word| architecture(word)).collect();
    if has.is_empty() || torch.cuda.is_none() {
        return Vec::new();
    }
    let lacks = |card: &&Gpu| card.capability.is_some_and(|capability| !runs(&has, capability));
    let mut findings: Vec<Finding> = Vec::new();
    for card in facts.visible().into_iter().filter(lacks) {
        let Some((major, minor)) = card.capability else { continue };
        let title =
            format!("PyTorch {} has no kernels for this {} (sm_{major}{minor})", torch.version, card.name);
        let about = format!("GPU {}", card.index);
        findings.push(
            Finding::wrong(about, title)
                .means(format!(
                    "It has {}: the first kernel fails with \"no kernel image is available for execution on the device\".",
                    python.architectures.join(", ")
                ))
                .fix(instead(major).0)
                .command(instead(major).1),
        );
    }
    findings
}

fn runs(has: &[(bool, (u32, u32))], (major, minor): (u32, u32)) -> bool {
    has.iter().any(|&(is_text, (built_major, built_minor))| {
        if is_text {
            (built_major, built_minor) <= (major, minor)
        } else {
            built_major == major && built_minor <= minor
        }
    })
}

/// What to install for a card of this generation.
fn instead(major: u32) -> (&'static str, &'static str) {
    match major {
        ..=4 => (
            "no build of the last years has kernels for a card so old",
            "pip install \"torch<1.13\" --index-url https://download.pytorch.org/whl/cu113",
        ),
        5..=9 => (
            "install the build for CUDA 12.6, which has kernels for 5.0 to 9.0",
            "pip install --force-reinstall \"torch<2.12\" --index-url https://download.pytorch.org/whl/cu126",
        ),
        _ => (
            "install a build for CUDA 12.8 or later",
            "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu128",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::laid_out::{machine, told, with_torch};
    use crate::finding::Level::Wrong;

    fn with(architectures: &[&str], capability: (u32, u32)) -> Facts {
        let mut facts = machine();
        let mut python = with_torch("2.11.0+cu128", Some("12.8"));
        python.architectures = architectures.iter().map(|&word| word.to_owned()).collect();
        facts.python = Ok(python);
        facts.sample.gpus.cards[0].capability = Some(capability);
        facts
    }

    #[test]
    fn a_card_without_kernels_is_wrong() {
        let newer = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"];
        let findings = look(&with(&newer, (6, 0)));
        assert_eq!(
            told(&findings),
            [(Wrong, "PyTorch 2.11.0+cu128 has no kernels for this Tesla T4 (sm_60)")]
        );
        assert!(findings[0].command.as_deref().unwrap().ends_with("/cu126"));
        let older = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"];
        let findings = look(&with(&older, (12, 0)));
        assert!(findings[0].command.as_deref().unwrap().ends_with("/cu128"));
        assert!(look(&with(&newer, (7, 0)))[0].means.as_deref().unwrap().contains("sm_75, sm_80"));
    }

    #[test]
    fn kernels_run_on_later_cards_of_their_generation_and_text_on_all_later_ones() {
        for (has, card) in [
            (&["sm_86"][..], (8, 9)),
            (&["sm_120"], (12, 1)),
            (&["sm_90", "compute_90"], (12, 0)),
            (&["sm_75"], (7, 5)),
        ] {
            assert!(look(&with(has, card)).is_empty(), "{has:?} on {card:?}");
        }
        for (has, card) in [(&["sm_89"][..], (8, 6)), (&["compute_120"], (9, 0)), (&["sm_90"], (10, 0))] {
            assert_eq!(look(&with(has, card)).len(), 1, "{has:?} on {card:?}");
        }
    }

    #[test]
    fn cards_that_are_hidden_or_builds_that_say_nothing_are_left_alone() {
        let mut facts = with(&["sm_90"], (6, 0));
        facts.settings.values.insert("CUDA_VISIBLE_DEVICES", "-1".to_owned());
        assert!(look(&facts).is_empty());
        assert!(look(&with(&[], (6, 0))).is_empty());
    }
}
