//! Which of the allocator's variables PyTorch reads.
//!
//! From 2.10 on every build reads `PYTORCH_CUDA_ALLOC_CONF`, `PYTORCH_HIP_ALLOC_CONF` and `PYTORCH_ALLOC_CONF`, and the first that is
//! set wins. Before, `PYTORCH_ALLOC_CONF` is silently ignored for CUDA (pytorch/pytorch#183387), and `PYTORCH_HIP_ALLOC_CONF` is read by
//! builds with ROCm alone. Wrong if one is set that is not read.

use crate::facts::Facts;
use crate::finding::Finding;

const CUDA: &str = "PYTORCH_CUDA_ALLOC_CONF";
const HIP: &str = "PYTORCH_HIP_ALLOC_CONF";
const ALL: &str = "PYTORCH_ALLOC_CONF";

/// The variable that is read, and its value.
pub(super) fn in_force(facts: &Facts) -> Option<(&'static str, &str)> {
    read_by(facts).into_iter().find_map(|name| Some((name, facts.settings.get(name)?)))
}

/// The variables that this PyTorch reads; the first that is set wins.
fn read_by(facts: &Facts) -> Vec<&'static str> {
    let is_rocm = facts.torch().is_some_and(|torch| torch.hip.is_some());
    match facts.torch_version() {
        Some(version) if (version.major, version.minor) < (2, 10) && is_rocm => vec![CUDA, HIP],
        Some(version) if (version.major, version.minor) < (2, 10) => vec![CUDA],
        _ => vec![CUDA, HIP, ALL],
    }
}

pub(super) fn look(facts: &Facts) -> Vec<Finding> {
    let (reads, won) = (read_by(facts), in_force(facts));
    let torch =
        facts.torch().map_or_else(|| "PyTorch".to_owned(), |torch| format!("PyTorch {}", torch.version));
    let mut findings = Vec::new();
    for name in [CUDA, HIP, ALL] {
        let Some(value) = facts.settings.get(name) else { continue };
        let finding = match won {
            Some((winner, winning)) if winner != name && winning.trim() == value.trim() => {
                Finding::note("allocator", format!("{name} and {winner} say the same; {winner} is read"))
                    .fix("set one of them")
                    .command(format!("unset {name}"))
            }
            Some((winner, winning)) if winner != name && (reads.contains(&name) || name == ALL) => {
                Finding::wrong("allocator", format!("{name}={value} is ignored: {winner} is set too"))
                    .means(format!("{torch} reads {winner}, the first that is set, and that is {winning:?}."))
                    .fix("set one of them")
                    .command(format!("unset {winner}"))
            }
            None if !reads.contains(&name) && name == ALL => {
                Finding::wrong("allocator", format!("{ALL} is not read by {torch}"))
                    .means("It is read from 2.10 on; before, it is silently ignored for CUDA.")
                    .fix("use the name that this version reads")
                    .command(format!("export {CUDA}={value}"))
            }
            _ if !reads.contains(&name) && name == HIP && facts.torch().is_some() => {
                Finding::wrong("allocator", format!("{HIP} is not read by {torch}"))
                    .means("Before 2.10 it is for builds with ROCm.")
                    .fix("use the name that this build reads")
                    .command(format!("export {}={value}", reads.last().unwrap_or(&CUDA)))
            }
            _ => continue,
        };
        findings.push(finding);
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::test_fixtures::{machine, summary, with_settings, with_torch};
    use crate::finding::Level::{Note, Wrong};

    fn with(version: &str, settings: &[(&'static str, &str)]) -> Facts {
        let mut facts = with_settings(machine(), settings);
        facts.python = Ok(with_torch(version, Some("12.8")));
        facts
    }

    #[test]
    fn the_first_that_is_set_is_in_force() {
        let both = [(CUDA, "expandable_segments:True"), (ALL, "max_split_size_mb:64")];
        assert_eq!(in_force(&with("2.11.0", &both)), Some((CUDA, "expandable_segments:True")));
        assert_eq!(in_force(&with("2.11.0", &both[1..])), Some((ALL, "max_split_size_mb:64")));
        assert_eq!(in_force(&with("2.9.1", &both[1..])), None);
        let with_hip = [(HIP, "max_split_size_mb:32"), both[1]];
        assert_eq!(in_force(&with("2.10.0", &with_hip)), Some((HIP, "max_split_size_mb:32")));
        assert_eq!(in_force(&with("2.10.0", &[both[0], with_hip[0]])), Some(both[0]));
        assert_eq!(in_force(&with("2.9.1", &with_hip)), None);
        assert_eq!(in_force(&with("2.11.0", &[(CUDA, ""), both[1]])), Some((CUDA, "")), "empty is set");
    }

    #[test]
    fn what_is_not_read_is_wrong() {
        let findings = look(&with("2.9.1", &[(ALL, "expandable_segments:True")])).to_vec();
        assert_eq!(summary(&findings), [(Wrong, "PYTORCH_ALLOC_CONF is not read by PyTorch 2.9.1")]);
        assert_eq!(
            findings[0].command.as_deref(),
            Some("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
        );
        assert!(look(&with("2.10.0", &[(ALL, "expandable_segments:True")])).is_empty());
        let findings = look(&with("2.9.1", &[(HIP, "expandable_segments:True")]));
        assert_eq!(summary(&findings), [(Wrong, "PYTORCH_HIP_ALLOC_CONF is not read by PyTorch 2.9.1")]);
        assert!(look(&with("2.11.0", &[(HIP, "expandable_segments:True")])).is_empty());
    }

    #[test]
    fn of_two_one_wins() {
        let both = [(CUDA, "expandable_segments:True"), (ALL, "max_split_size_mb:64")];
        let title = "PYTORCH_ALLOC_CONF=max_split_size_mb:64 is ignored: PYTORCH_CUDA_ALLOC_CONF is set too";
        assert_eq!(summary(&look(&with("2.11.0", &both))), [(Wrong, title)]);
        assert_eq!(summary(&look(&with("2.9.0", &both))), [(Wrong, title)]);
        let same = [(CUDA, "expandable_segments:True"), (ALL, "expandable_segments:True")];
        assert_eq!(summary(&look(&with("2.11.0", &same)))[0].0, Note);
    }
}
