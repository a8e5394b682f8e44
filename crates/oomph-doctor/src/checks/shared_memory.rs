//! Whether `/dev/shm` has room for what DataLoader workers hand over.
//!
//! A note if it is 64 MiB or less, which is what Docker gives: two workers with two batches of 32 pictures each (18 MiB a batch) fill
//! it, and the worker dies of a bus error; programs without workers do not use it. A note too if less than a tenth of it, or less
//! than 64 MiB, is left.

use crate::facts::Facts;
use crate::finding::Finding;
use oomph_host::Surroundings;
use oomph_words::bytes;

const OF_DOCKER: u64 = 64 << 20;

pub(super) fn look(facts: &Facts) -> Vec<Finding> {
    let Some(shm) = facts.sample.machine.shm else { return Vec::new() };
    let left = shm.total.saturating_sub(shm.used);
    let in_pod = facts.is_in(Surroundings::Kubernetes);
    let larger = match in_pod {
        true => {
            "if you use workers, let the pod mount a volume of memory at /dev/shm (an emptyDir whose medium is Memory)"
        }
        false => {
            "if you use workers, make it larger: for a container when it is started, on a machine at once"
        }
    };
    let command = match in_pod {
        true => None,
        false if facts.is_in(Surroundings::Container) => Some("docker run --shm-size 8g …"),
        false => Some("sudo mount -o remount,size=8G /dev/shm"),
    };
    let finding = if shm.total <= OF_DOCKER {
        Finding::note("/dev/shm", format!("has {}: too little for DataLoader workers", bytes(shm.total)))
            .means("A batch of 32 pictures of 224 x 224 takes 18 MiB, two wait for each worker: \"DataLoader worker is killed by signal: Bus error\".")
    } else if left < OF_DOCKER || left < shm.total / 10 {
        Finding::note("/dev/shm", format!("{} of {} left", bytes(left), bytes(shm.total)))
            .means("DataLoader workers hand batches over through it, and die of a bus error when it is full. What programs that were killed left there stays.")
            .fix("see whether something was left there (torch_* of programs that no longer run)")
            .command("ls -l /dev/shm")
    } else {
        return vec![Finding::fine("/dev/shm", format!("{} of {} left", bytes(left), bytes(shm.total)))];
    };
    if finding.fix.is_some() {
        return vec![finding];
    }
    let finding = finding.fix(larger);
    vec![match command {
        Some(command) => finding.command(command),
        None => finding,
    }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::test_fixtures::{GIB, MIB, machine, summary};
    use crate::finding::Level::{Fine, Note};
    use oomph_host::Shm;

    fn with(total: u64, used: u64) -> Facts {
        let mut facts = machine();
        facts.sample.machine.shm = Some(Shm { total, used });
        facts
    }

    #[test]
    fn what_docker_gives_is_too_little() {
        let mut facts = with(64 * MIB, 0);
        assert_eq!(summary(&look(&facts)), [(Note, "has 64.0 MiB: too little for DataLoader workers")]);
        assert_eq!(look(&facts)[0].command.as_deref(), Some("sudo mount -o remount,size=8G /dev/shm"));
        facts.environment.surroundings = vec![Surroundings::Container];
        assert_eq!(look(&facts)[0].command.as_deref(), Some("docker run --shm-size 8g …"));
        facts.environment.surroundings.push(Surroundings::Kubernetes);
        assert_eq!(look(&facts)[0].command, None, "a volume is no command");
    }

    #[test]
    fn what_is_left_is_reported() {
        assert_eq!(summary(&look(&with(8 * GIB, GIB))), [(Fine, "7.00 GiB of 8.00 GiB left")]);
        assert_eq!(summary(&look(&with(8 * GIB, 8 * GIB - 300 * MIB))), [(Note, "300 MiB of 8.00 GiB left")]);
        assert!(look(&machine()).is_empty());
    }
}
