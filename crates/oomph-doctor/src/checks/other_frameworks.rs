//! Other frameworks in the same Python that take a card's memory before they need it.
//!
//! A note if TensorFlow (all of the card) or JAX (three quarters of it) is installed with CUDA and preallocation is not disabled.

use crate::facts::Facts;
use crate::finding::Finding;

pub(super) fn look(facts: &Facts) -> Vec<Finding> {
    let Ok(python) = &facts.python else { return Vec::new() };
    if facts.sample.gpus.cards.is_empty() || python.torch.is_empty() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    if python.packages.contains_key("tensorflow") && !facts.settings.is_on("TF_FORCE_GPU_ALLOW_GROWTH") {
        findings.push(
            Finding::note(
                "frameworks",
                "TensorFlow is installed too, and takes the whole card once it is used",
            )
            .means("What PyTorch asks for afterwards is not there.")
            .fix("if you use both, let TensorFlow take what it needs")
            .command("export TF_FORCE_GPU_ALLOW_GROWTH=true"),
        );
    }
    let has_jax = python.packages.keys().any(|name| name.starts_with("jax-cuda"));
    let is_tame = facts.settings.is_off("XLA_PYTHON_CLIENT_PREALLOCATE")
        || facts.settings.get("XLA_PYTHON_CLIENT_ALLOCATOR") == Some("platform")
        || facts.settings.get("XLA_PYTHON_CLIENT_MEM_FRACTION").is_some();
    if has_jax && !is_tame {
        findings.push(
            Finding::note("frameworks", "JAX is installed too, and takes 75 % of the card once it is used")
                .means("What PyTorch asks for afterwards is not there.")
                .fix("if you use both, let JAX take what it needs")
                .command("export XLA_PYTHON_CLIENT_PREALLOCATE=false"),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::test_fixtures::{machine, with_torch};

    #[test]
    fn frameworks_that_take_all_are_named_unless_they_are_tamed() {
        let mut facts = machine();
        let mut python = with_torch("2.11.0", Some("12.8"));
        python.packages.insert("tensorflow".into(), vec!["2.20.0".into()]);
        python.packages.insert("jax-cuda12-plugin".into(), vec!["0.8.0".into()]);
        facts.python = Ok(python);
        assert_eq!(look(&facts).len(), 2);
        facts.settings.values.insert("TF_FORCE_GPU_ALLOW_GROWTH", "true".into());
        facts.settings.values.insert("XLA_PYTHON_CLIENT_MEM_FRACTION", ".25".into());
        assert!(look(&facts).is_empty());
        facts.settings.values.clear();
        facts.sample.gpus.cards.clear();
        assert!(look(&facts).is_empty(), "there is no card to take");
    }
}
