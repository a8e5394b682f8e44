//! How much RAM a program may have here, and how much is left.
//!
//! Wrong if less than 512 MiB are left: importing PyTorch with CUDA takes about that. Notes: a control group (Docker, Kubernetes,
//! Slurm, Colab) allows less than the machine has, which most programs do not look at; the kernel has killed in it before (with
//! `MALLOC_ARENA_MAX`, unless it is set: threads of glibc's malloc keep what they have freed).

use crate::facts::Facts;
use crate::finding::Finding;
use oomph_words::{bytes, grouped};

/// What importing PyTorch and making a context takes at least.
const LEAST: u64 = 512 << 20;

pub(super) fn look(facts: &Facts) -> Vec<Finding> {
    let machine = &facts.sample.machine;
    let mut findings = Vec::new();
    let group = machine.group.as_ref().filter(|group| machine.ram.is_none_or(|ram| group.limit < ram.total));
    let left = match (group, machine.ram) {
        (Some(group), Some(ram)) => group.left.min(ram.available),
        (Some(group), None) => group.left,
        (None, Some(ram)) => ram.available,
        (None, None) => return findings,
    };
    let has = machine.ram.map(|ram| format!("; the machine has {}", bytes(ram.total))).unwrap_or_default();
    let whole = match (group, machine.ram) {
        (Some(group), _) => {
            format!("{} of {} left (the control group's limit{has})", bytes(left), bytes(group.limit))
        }
        (None, Some(ram)) => format!("{} of {} left", bytes(left), bytes(ram.total)),
        (None, None) => String::new(),
    };
    let kills = group.and_then(|group| group.kills).unwrap_or(0);
    if left < LEAST {
        findings.push(
            Finding::wrong("RAM", whole)
                .means("A program that takes more is killed by the kernel, without an error: importing PyTorch with CUDA alone takes about 500 MiB.")
                .fix("end what is not needed, or allow more (docker run --memory, sbatch --mem); to get an error instead of a kill:")
                .command("python -c \"import oomph; oomph.guard_ram(); …\""),
        );
    } else if group.is_some() {
        findings.push(
            Finding::note("RAM", whole)
                .means("A program that takes more is killed by the kernel, without an error. What free and psutil show is the machine's.")
                .fix("let a MemoryError be raised instead")
                .command("import oomph; oomph.guard_ram()"),
        );
    } else {
        findings.push(Finding::fine("RAM", whole));
    }
    if kills > 0 {
        let times = if kills == 1 { "once".to_owned() } else { format!("{} times", grouped(kills)) };
        findings.push(
            Finding::note("RAM", format!("the kernel has killed {times} in this control group"))
                .means(format!(
                    "A program ran out of RAM here: that is what \"Killed\" and a kernel that restarts mean.{}",
                    arenas(facts)
                ))
                .fix("see who takes it")
                .command("oomph top"),
        );
    }
    findings
}

/// What threads keep, where nothing was done about it: `mallopt(3)`, M_ARENA_MAX.
fn arenas(facts: &Facts) -> &'static str {
    let is_other = |name: &String| {
        ["libjemalloc", "libtcmalloc", "libmimalloc"].iter().any(|start| name.starts_with(start))
    };
    let has_other = facts.settings.preloaded.iter().any(is_other);
    if has_other || facts.settings.get("MALLOC_ARENA_MAX").is_some() {
        return "";
    }
    " A program with many threads (DataLoader, tokenizers) also keeps what each of them has freed: MALLOC_ARENA_MAX=2, set before it starts, keeps that small."
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::test_fixtures::{GIB, MIB, machine, summary, with_settings};
    use crate::finding::Level::{Fine, Note, Wrong};
    use oomph_host::{Group, Ram};

    fn ram(total: u64, available: u64) -> Ram {
        Ram {
            total,
            available,
            free: available,
            anonymous: 0,
            file: 0,
            shared: 0,
            kernel: 0,
            other: 0,
            pinned: 0,
        }
    }

    fn group(limit: u64, left: u64, kills: u64) -> Group {
        let used = limit - left;
        Group {
            version: 2,
            limit,
            used,
            anonymous: None,
            file: None,
            shared: None,
            left,
            swap_left: 0,
            slows: false,
            kills: Some(kills),
        }
    }

    #[test]
    fn a_machine_with_enough_is_one_line() {
        let mut facts = machine();
        assert!(look(&facts).is_empty(), "nothing is known");
        facts.sample.machine.ram = Some(ram(64 * GIB, 32 * GIB));
        assert_eq!(summary(&look(&facts)), [(Fine, "32.0 GiB of 64.0 GiB left")]);
        facts.sample.machine.group = Some(group(64 * GIB, 30 * GIB, 0));
        assert_eq!(
            summary(&look(&facts)),
            [(Fine, "32.0 GiB of 64.0 GiB left")],
            "a limit that limits nothing"
        );
    }

    #[test]
    fn a_control_group_that_allows_less_is_a_note_and_its_kills_are_reported() {
        let mut facts = machine();
        facts.sample.machine.ram = Some(ram(64 * GIB, 32 * GIB));
        facts.sample.machine.group = Some(group(4 * GIB, 3 * GIB, 1));
        assert_eq!(
            summary(&look(&facts)),
            [
                (Note, "3.00 GiB of 4.00 GiB left (the control group's limit; the machine has 64.0 GiB)"),
                (Note, "the kernel has killed once in this control group"),
            ]
        );
        let names_arenas =
            |facts: &Facts| look(facts)[1].means.as_deref().unwrap().contains("MALLOC_ARENA_MAX=2");
        assert!(names_arenas(&facts));
        facts.settings.preloaded = vec!["libjemalloc.so.2".to_owned()];
        assert!(!names_arenas(&facts), "it has no such arenas");
        facts.settings.preloaded.clear();
        assert!(!names_arenas(&with_settings(facts, &[("MALLOC_ARENA_MAX", "4")])));
    }

    #[test]
    fn too_little_is_wrong_whoever_limits_it() {
        let mut facts = machine();
        facts.sample.machine.ram = Some(ram(64 * GIB, 200 * MIB));
        assert_eq!(summary(&look(&facts)), [(Wrong, "200 MiB of 64.0 GiB left")]);
        facts.sample.machine.ram = Some(ram(64 * GIB, 32 * GIB));
        facts.sample.machine.group = Some(group(400 * MIB, 390 * MIB, 0));
        assert_eq!(summary(&look(&facts))[0].0, Wrong);
    }
}
