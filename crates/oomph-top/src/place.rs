//! Where this is.

use oomph_host::{Environment, hides_others};

/// What is said of the machine whatever happens on it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    /// The machine's name, and what is around: a container, Colab.
    pub(crate) name: String,
    /// Whether processes of other users cannot be seen.
    pub(crate) hides_others: bool,
}

impl Place {
    pub(crate) fn here() -> Self {
        let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let around: Vec<&str> = Environment::here().surroundings.into_iter().map(|one| one.title()).collect();
        let words = [machine.trim(), &around.join(", ")];
        let name = words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join("  ");
        Self { name, hides_others: hides_others() }
    }
}
