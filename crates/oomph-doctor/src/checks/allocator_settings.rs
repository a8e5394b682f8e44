//! Whether PyTorch takes the allocator's settings.
//!
//! Wrong if this version refuses them: an unknown or a later key, a value out of range. They are read as PyTorch reads them, by
//! the same code that replays recordings (docs/reference/allocator.md). A version that is newer than what is known is
//! read like the newest.

use super::allocator_variable::in_force;
use crate::facts::Facts;
use crate::finding::Finding;
use oomph_settings::conf::{Conf, ConfError};
use oomph_settings::version::Version;

/// The version whose rules are followed; none before 2.0.
pub(super) fn rules(facts: &Facts) -> Option<Version> {
    let version = facts.torch_version().unwrap_or(Version::NEWEST);
    (version >= Version::OLDEST).then(|| version.min(Version::NEWEST))
}

pub(super) fn look(facts: &Facts) -> Vec<Finding> {
    let (Some((name, value)), Some(version)) = (in_force(facts), rules(facts)) else { return Vec::new() };
    match Conf::parse(value, version) {
        Ok(_) | Err(ConfError::NotNative) if value.trim().is_empty() => Vec::new(),
        Ok(_) | Err(ConfError::NotNative) => vec![Finding::fine("allocator", format!("{name}={value}"))],
        Err(error) => {
            let ConfError::Refused { message, .. } = &error else { return Vec::new() };
            let torch =
                facts.torch().map_or("PyTorch".to_owned(), |torch| format!("PyTorch {}", torch.version));
            let hint = error.hint(value).unwrap_or_else(|| "see what each setting takes".to_owned());
            vec![
                Finding::wrong("allocator", format!("{torch} refuses {name}={value}"))
                    .means(format!(
                        "It says: {}. import torch, or the first use of the GPU, fails.",
                        message.trim_end_matches(['.', ' '])
                    ))
                    .fix(hint)
                    .command(format!("unset {name}")),
            ]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::test_fixtures::{machine, summary, with_settings, with_torch};
    use crate::finding::Level::{Fine, Wrong};

    fn with(version: &str, value: &str) -> Facts {
        let mut facts = with_settings(machine(), &[("PYTORCH_CUDA_ALLOC_CONF", value)]);
        facts.python = Ok(with_torch(version, Some("12.8")));
        facts
    }

    #[test]
    fn settings_that_are_taken_are_shown() {
        let title = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";
        assert_eq!(summary(&look(&with("2.11.0", "expandable_segments:True"))), [(Fine, title)]);
        assert_eq!(look(&with("2.99.0", "expandable_segments:True")).len(), 1, "read like the newest");
        assert!(look(&with("2.11.0", "")).is_empty());
        assert!(look(&with("1.13.1", "nonsense")).is_empty(), "too old to be known");
    }

    #[test]
    fn settings_that_are_refused_are_wrong_and_why_is_said() {
        for (version, value, hint) in [
            ("2.11.0", "expandable_segment:True", "did you mean expandable_segments?"),
            ("2.11.0", "max_split_size_mb=64", "settings are written key:value, not key=value"),
            ("2.10.0", "large_segment_size_mb:64", "PyTorch has large_segment_size_mb from 2.11 on"),
            ("2.11.0", "max_split_size_mb:10", "see what each setting takes"),
            ("2.11.0", "garbage_collection_threshold:1.5", "see what each setting takes"),
            ("2.11.0", "roundup_power2_divisions:3", "see what each setting takes"),
        ] {
            let findings = look(&with(version, value));
            assert_eq!(summary(&findings)[0].0, Wrong, "{value}");
            assert_eq!(findings[0].fix.as_deref(), Some(hint), "{value}");
        }
        let findings = look(&with("2.11.0", "max_split_size_mb:10"));
        assert!(findings[0].means.as_deref().unwrap().contains("too small, must be >= 20"), "{findings:?}");
    }
}
