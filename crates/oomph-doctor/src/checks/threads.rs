//! Whether programs start as many threads as there are processors for them.
//!
//! A note if OMP_NUM_THREADS asks for more than may be used, is no number, or is not set where a quota allows less time than the
//! processors have: PyTorch counts processors, not the quota, and its threads then wait for each other.

use crate::facts::Facts;
use crate::finding::Finding;

pub(super) fn look(facts: &Facts) -> Vec<Finding> {
    let Some(may_use) = facts.sample.machine.processors.filter(|count| *count > 0.0) else {
        return Vec::new();
    };
    let whole = may_use.ceil().max(1.0) as usize;
    let command = format!("export OMP_NUM_THREADS={whole}");
    let shown = if may_use.fract() == 0.0 { format!("{may_use:.0}") } else { format!("{may_use:.1}") };
    let processors = if shown == "1" { "1 processor".to_owned() } else { format!("{shown} processors") };
    match facts.settings.get("OMP_NUM_THREADS") {
        Some(value) => match value.split(',').next().unwrap_or_default().trim().parse::<usize>() {
            Ok(asked) if asked > whole => vec![
                Finding::note("threads", format!("OMP_NUM_THREADS={asked} on {processors}"))
                    .means("Threads take turns: operations on the processor are slower than with fewer, and each keeps memory of its own.")
                    .fix("ask for as many as there are")
                    .command(command),
            ],
            Ok(_) => Vec::new(),
            Err(_) => vec![
                Finding::note("threads", "OMP_NUM_THREADS is no number")
                    .means("It is ignored.")
                    .fix("ask for as many as there are")
                    .command(command),
            ],
        },
        None => {
            let counted = facts.kernel.allowed_processors.unwrap_or(0);
            if counted <= whole {
                return Vec::new();
            }
            vec![
                Finding::note("threads", format!("PyTorch starts {counted} threads on {processors}"))
                    .means("A quota (docker run --cpus, a pod's limit) allows less time than the processors have; PyTorch counts processors.")
                    .fix("ask for as many as there are")
                    .command(command),
            ]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::test_fixtures::{machine, summary, with_settings};
    use crate::finding::Level::Note;

    fn with(may_use: f64, counted: usize, settings: &[(&'static str, &str)]) -> Facts {
        let mut facts = with_settings(machine(), settings);
        facts.sample.machine.processors = Some(may_use);
        facts.kernel.allowed_processors = Some(counted);
        facts
    }

    #[test]
    fn a_quota_that_pytorch_does_not_see_is_noted() {
        let findings = look(&with(1.5, 64, &[]));
        assert_eq!(summary(&findings), [(Note, "PyTorch starts 64 threads on 1.5 processors")]);
        assert_eq!(findings[0].command.as_deref(), Some("export OMP_NUM_THREADS=2"));
        assert!(look(&with(64.0, 64, &[])).is_empty());
        assert!(look(&with(2.0, 64, &[("OMP_NUM_THREADS", "2")])).is_empty());
    }

    #[test]
    fn more_threads_than_processors_are_noted() {
        assert_eq!(
            summary(&look(&with(1.0, 1, &[("OMP_NUM_THREADS", "8")]))),
            [(Note, "OMP_NUM_THREADS=8 on 1 processor")]
        );
        assert_eq!(
            summary(&look(&with(2.0, 2, &[("OMP_NUM_THREADS", "many")]))),
            [(Note, "OMP_NUM_THREADS is no number")]
        );
        assert!(look(&machine()).is_empty());
    }
}
