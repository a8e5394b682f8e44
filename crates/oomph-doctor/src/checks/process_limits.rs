//! Limits on this shell's processes (`ulimit`) that stop programs.
//!
//! Wrong if addresses are limited to less than the cards and RAM together have, which CUDA reserves when it starts. Notes: fewer
//! than 1,024 open files (DataLoader workers hand each tensor over as one: "Too many open files"), and a limit on locked memory
//! where there is InfiniBand, which NCCL registers memory with.

use crate::facts::Facts;
use crate::finding::{Finding, Level};
use oomph_words::{bytes, grouped};

pub(super) fn look(facts: &Facts) -> Vec<Finding> {
    let limits = facts.kernel.limits;
    let mut findings = Vec::new();
    if let Some(most) = limits.address_space {
        let cards: u64 = facts.sample.gpus.cards.iter().map(|card| card.total).sum();
        let needed = cards + facts.sample.machine.ram.map_or(0, |ram| ram.total);
        let level = if cards > 0 && most < needed { Level::Wrong } else { Level::Note };
        findings.push(
            Finding::at(level, "limits", format!("a process may have {} of addresses (ulimit -v)", bytes(most)))
                .means("CUDA reserves addresses for all of the cards and of RAM when it starts, and fails without them; oomph.guard_ram() limits what is used instead.")
                .fix("take the limit away")
                .command("ulimit -v unlimited"),
        );
    }
    if let Some(most) = limits.open_files.filter(|&most| most < 1024) {
        findings.push(
            Finding::note("limits", format!("a process may open {} files (ulimit -n)", grouped(most)))
                .means("DataLoader workers hand every tensor over as an open file: \"Too many open files\".")
                .fix("allow more, or let torch.multiprocessing.set_sharing_strategy(\"file_system\") do without")
                .command("ulimit -n 65536"),
        );
    }
    if let Some(most) = limits.locked.filter(|_| facts.kernel.infiniband) {
        findings.push(
            Finding::note("limits", format!("a process may lock {} (ulimit -l), and there is InfiniBand", bytes(most)))
                .means("NCCL registers memory with it, which locks it: \"ibv_reg_mr failed\" or \"Cannot allocate memory\".")
                .fix("take the limit away: docker run --ulimit memlock=-1, or in /etc/security/limits.conf")
                .command("ulimit -l unlimited"),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::test_fixtures::{GIB, machine, summary};
    use crate::finding::Level::{Note, Wrong};
    use crate::kernel::Limits;

    #[test]
    fn limits_that_stop_programs_are_reported() {
        let mut facts = machine();
        facts.kernel.limits =
            Limits { address_space: Some(8 * GIB), locked: Some(8 << 20), open_files: Some(256) };
        assert_eq!(
            summary(&look(&facts)),
            [
                (Wrong, "a process may have 8.00 GiB of addresses (ulimit -v)"),
                (Note, "a process may open 256 files (ulimit -n)"),
            ]
        );
        facts.kernel.infiniband = true;
        assert_eq!(
            summary(&look(&facts))[2],
            (Note, "a process may lock 8.00 MiB (ulimit -l), and there is InfiniBand")
        );
        facts.kernel.limits.address_space = Some(1000 * GIB);
        assert_eq!(summary(&look(&facts))[0].0, Note);
    }

    #[test]
    fn usual_limits_are_left_alone() {
        let mut facts = machine();
        facts.kernel.limits = Limits { address_space: None, locked: Some(8 << 20), open_files: Some(1024) };
        assert!(look(&facts).is_empty());
    }
}
