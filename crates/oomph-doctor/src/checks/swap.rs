//! Swap, and whether the kernel promises more memory than it has.
//!
//! Notes: much of swap is used, so that programs wait for a disk; strict accounting (`vm.overcommit_memory=2`), under which
//! reserving counts as using: CUDA and PyTorch reserve far more addresses than they use.

use crate::facts::Facts;
use crate::finding::Finding;
use oomph_words::bytes;

pub(super) fn look(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(swap) = facts.sample.machine.swap {
        const MUCH: u64 = 1 << 30;
        if swap.used > MUCH && swap.used > swap.total / 4 {
            findings.push(
                Finding::note("swap", format!("{} of {} are used", bytes(swap.used), bytes(swap.total)))
                    .means("RAM was short, and may still be: what was moved out is read back from a disk, page by page.")
                    .fix("see who takes RAM")
                    .command("oomph top"),
            );
        }
    }
    if facts.kernel.overcommit == Some(2) {
        findings.push(
            Finding::note("RAM", "vm.overcommit_memory=2: reserving memory counts as using it")
                .means("CUDA reserves addresses for all of the card and of RAM: programs fail with MemoryError or \"out of memory\" while RAM is free.")
                .fix("set the kernel's default, heuristic overcommit")
                .command("sudo sysctl vm.overcommit_memory=0"),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::test_fixtures::{GIB, machine, summary};
    use crate::finding::Level::Note;
    use oomph_host::Swap;

    #[test]
    fn swap_is_noted_when_much_of_it_is_used() {
        let mut facts = machine();
        facts.sample.machine.swap = Some(Swap { total: 8 * GIB, used: GIB });
        assert!(look(&facts).is_empty());
        facts.sample.machine.swap = Some(Swap { total: 8 * GIB, used: 3 * GIB });
        assert_eq!(summary(&look(&facts)), [(Note, "3.00 GiB of 8.00 GiB are used")]);
    }

    #[test]
    fn strict_accounting_is_noted() {
        let mut facts = machine();
        facts.kernel.overcommit = Some(1);
        assert!(look(&facts).is_empty());
        facts.kernel.overcommit = Some(2);
        assert_eq!(
            summary(&look(&facts)),
            [(Note, "vm.overcommit_memory=2: reserving memory counts as using it")]
        );
    }
}
