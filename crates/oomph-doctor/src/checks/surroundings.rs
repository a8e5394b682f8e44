//! Where this runs, with what matters there.
//!
//! Colab, Kaggle, WSL, Slurm, Kubernetes, a container, Jupyter: one line each. Never wrong.

use crate::facts::Facts;
use crate::finding::Finding;
use oomph_host::Surroundings;

pub(super) fn look(facts: &Facts) -> Vec<Finding> {
    let places = &facts.environment.surroundings;
    // Colab, Kaggle and Kubernetes are containers; saying so adds nothing.
    let is_named = |place: &Surroundings| {
        *place != Surroundings::Container
            || !places.iter().any(|other| {
                matches!(other, Surroundings::Colab | Surroundings::Kaggle | Surroundings::Kubernetes)
            })
    };
    let lines = places.iter().filter(|place| is_named(place)).map(|place| match place {
        Surroundings::Colab => "Colab: too much RAM restarts the kernel; %load_ext oomph guards",
        Surroundings::Kaggle => "Kaggle: too much RAM restarts the kernel; %load_ext oomph guards",
        Surroundings::Wsl => "WSL: what does not fit the card goes to RAM, slowly, without an error",
        Surroundings::Slurm => "Slurm: RAM is what --mem asked for; beyond it the job is killed",
        Surroundings::Kubernetes => "Kubernetes: RAM is the pod's limit; /dev/shm counts to it",
        Surroundings::Container => "a container: the host's processes and their memory are not seen",
        Surroundings::Jupyter => "Jupyter: a kernel keeps its memory until it is shut down",
    });
    lines.map(|line| Finding::fine("place", line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::test_fixtures::machine;

    #[test]
    fn each_place_has_its_line_and_a_container_none_beside_its_owner() {
        let mut facts = machine();
        assert!(look(&facts).is_empty());
        facts.environment.surroundings =
            vec![Surroundings::Slurm, Surroundings::Container, Surroundings::Jupyter];
        let findings = look(&facts);
        let first: Vec<&str> =
            findings.iter().map(|finding| finding.title.split(':').next().unwrap()).collect();
        assert_eq!(first, ["Slurm", "a container", "Jupyter"]);
        facts.environment.surroundings = vec![Surroundings::Colab, Surroundings::Container];
        assert_eq!(look(&facts).len(), 1);
    }
}
