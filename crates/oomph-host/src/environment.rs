//! Where this runs: Colab, Kaggle, WSL, Slurm, a container.

use serde::Serialize;

/// What surrounds a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Environment {
    /// Everything that was recognised; empty on a plain machine.
    pub surroundings: Vec<Surroundings>,
}

/// A surrounding that changes what is allowed or what helps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Surroundings {
    /// Google Colab.
    Colab,
    /// Kaggle.
    Kaggle,
    /// Windows' Linux.
    Wsl,
    /// A job of Slurm.
    Slurm,
    /// Kubernetes.
    Kubernetes,
    /// Docker, Podman or another container.
    Container,
    /// A kernel of Jupyter is around.
    Jupyter,
}
