//! What is true of this machine, and what to do about it.
//!
//! [`Facts`] are gathered once: cards, RAM, processes, the kernel's limits, the environment's settings, and what the chosen
//! Python has installed. Each of the [`checks`] looks at them and gives [`Finding`]s; [`examine`] runs all. Rendering is
//! another crate's business.
//!
//! Arrows inside: `child` ← `kernel`, `settings`, `python`, `deep` (where facts come from) ← `facts` (all of them; `hidden` takes names out) ←
//! `wheels` (which PyTorch is for such a machine) ← `checks` (one thing each).
//!
//! Nothing is changed, no CUDA context is made, and PyTorch is not imported unless that is asked for ([`Gather::deep`]). What
//! leaves the machine (JSON and Markdown, for bug reports) takes its words from facts without names, so that a check cannot reveal
//! what is private, and how bad it is from the true ones ([`examine_without_names`]).

mod architecture;
pub mod checks;
mod child;
mod deep;
mod facts;
mod finding;
mod hidden;
mod kernel;
mod python;
mod settings;
mod versions;
mod wheels;

pub use deep::{Deep, DeepDevice, Failure, Stage};
pub use facts::{Facts, Gather};
pub use finding::{Finding, Level};
pub use kernel::{Kernel, Limits};
pub use python::{Python, Torch};
pub use settings::{LibraryFolder, NAMES, Settings};

/// What all checks found: what is wrong first, then what is worth knowing, then what is fine.
pub fn examine(facts: &Facts) -> Vec<Finding> {
    sorted(checks::ALL.iter().flat_map(|check| check.findings(facts)).collect())
}

/// The same findings at the same levels, without names: those that the checks find for facts without names. Where hiding
/// a fact changes what a check finds, only what it checks is reported.
pub fn examine_without_names(facts: &Facts) -> Vec<Finding> {
    let hidden = facts.without_names();
    let nameless = |check: &checks::Check| {
        let mut words = check.findings(&hidden);
        let replaced = |finding: Finding| {
            let fits = |other: &Finding| other.level == finding.level && other.about == finding.about;
            match words.iter().position(fits) {
                Some(at) => words.remove(at),
                None => finding.without_details(&check.summary()),
            }
        };
        check.findings(facts).into_iter().map(replaced).collect::<Vec<_>>()
    };
    sorted(checks::ALL.iter().flat_map(nameless).collect())
}

fn sorted(mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.sort_by_key(|finding| finding.level);
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::test_fixtures::{machine, with_settings};

    #[test]
    fn levels_are_those_of_the_true_facts_whatever_is_hidden() {
        let levels = |findings: Vec<Finding>| -> Vec<(String, Level)> {
            findings.into_iter().map(|finding| (finding.check, finding.level)).collect()
        };
        let long = ["expandable_segments:True"; 9].join(",");
        for settings in [
            // Valid, and longer than what is kept.
            [("PYTORCH_ALLOC_CONF", long.as_str()), ("OMP_NUM_THREADS", "2")],
            // Two that differ, and look alike once they are hidden.
            [("PYTORCH_ALLOC_CONF", "a/b"), ("PYTORCH_CUDA_ALLOC_CONF", "c/d")],
            [("CUDA_VISIBLE_DEVICES", "/x"), ("OMP_NUM_THREADS", "/y")],
        ] {
            let facts = with_settings(machine(), &settings);
            assert_eq!(levels(examine_without_names(&facts)), levels(examine(&facts)), "{settings:?}");
        }
    }

    #[test]
    fn private_words_are_replaced_by_what_was_checked() {
        let both = [("PYTORCH_ALLOC_CONF", "a/b"), ("PYTORCH_CUDA_ALLOC_CONF", "c/d")];
        let findings = examine_without_names(&with_settings(machine(), &both));
        let finding = findings.iter().find(|finding| finding.check == "allocator-variable").unwrap();
        assert_eq!(finding.title, "Which of the allocator's variables PyTorch reads (details hidden)");
        assert_eq!((finding.means.as_ref(), finding.command.as_ref()), (None, None));
    }
}
