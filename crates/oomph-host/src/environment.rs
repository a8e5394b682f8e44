//! Where this runs: Colab, Kaggle, WSL, Slurm, a container.

use crate::text::read;
use serde::Serialize;
use std::path::Path;

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
    /// Docker, Podman, Apptainer or another container.
    Container,
    /// A kernel of Jupyter is around.
    Jupyter,
}

impl Surroundings {
    /// As people call it.
    pub fn title(self) -> &'static str {
        match self {
            Self::Colab => "Colab",
            Self::Kaggle => "Kaggle",
            Self::Wsl => "WSL",
            Self::Slurm => "Slurm",
            Self::Kubernetes => "Kubernetes",
            Self::Container => "container",
            Self::Jupyter => "Jupyter",
        }
    }
}

impl Environment {
    /// What surrounds this process.
    pub fn here() -> Self {
        Self::of(Path::new("/"), |name| std::env::var(name).ok())
    }

    /// What surrounds a process that sees these files and these variables.
    pub fn of(root: &Path, variable: impl Fn(&str) -> Option<String>) -> Self {
        let is_set = |name| variable(name).is_some_and(|value| !value.is_empty());
        let is_there = |path| root.join(path).exists();
        let in_kubernetes =
            is_set("KUBERNETES_SERVICE_HOST") || is_there("var/run/secrets/kubernetes.io/serviceaccount");
        let found = [
            // Terminals of Colab lack the variables; the folder of examples is in every one of its machines.
            (
                Surroundings::Colab,
                is_set("COLAB_RELEASE_TAG") || is_set("COLAB_GPU") || is_there("content/sample_data"),
            ),
            (Surroundings::Kaggle, is_set("KAGGLE_KERNEL_RUN_TYPE") || is_there("kaggle/working")),
            (Surroundings::Wsl, is_wsl(root)),
            (Surroundings::Slurm, is_set("SLURM_JOB_ID")),
            (Surroundings::Kubernetes, in_kubernetes),
            (Surroundings::Container, is_container(root, &is_set)),
            (Surroundings::Jupyter, is_set("JPY_PARENT_PID")),
        ];
        Self { surroundings: found.into_iter().filter_map(|(what, is_so)| is_so.then_some(what)).collect() }
    }

    /// Whether this was recognised.
    pub fn has(&self, surroundings: Surroundings) -> bool {
        self.surroundings.contains(&surroundings)
    }
}

/// Whether `/proc` is mounted so that processes of other users cannot be seen (`hidepid`), and this user is no exception.
pub fn hides_others() -> bool {
    are_others_hidden(Path::new("/"))
}

fn are_others_hidden(root: &Path) -> bool {
    let mounts = read(&root.join("proc/self/mountinfo"));
    // What was mounted last lies on top.
    let of_proc = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some("/proc"));
    let options = of_proc.and_then(|line| line.rsplit(' ').next()).unwrap_or_default();
    let hidden = options.split(',').find_map(|option| option.strip_prefix("hidepid="));
    // The first process is root's: root and the group that is named with `gid` see it all the same.
    hidden.is_some_and(|how| !matches!(how, "0" | "off")) && std::fs::read(root.join("proc/1/stat")).is_err()
}

fn is_wsl(root: &Path) -> bool {
    read(&root.join("proc/sys/kernel/osrelease")).to_ascii_lowercase().contains("microsoft")
}

fn is_container(root: &Path, is_set: &impl Fn(&'static str) -> bool) -> bool {
    // Podman, LXC and systemd-nspawn set the variable `container`. The control group is that of the first process: this one may
    // have been put into a group of its own.
    // Apptainer, Singularity before, leaves the groups as they are.
    ["container", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"].into_iter().any(is_set)
        || [".dockerenv", "run/.containerenv", ".singularity.d"].iter().any(|name| root.join(name).exists())
        || ["proc/1/cgroup", "proc/self/cgroup"].iter().any(|name| {
            crate::processes::container(&read(&root.join(name)))
                .is_some_and(|found| !found.starts_with("slurm"))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::tests::root_with;

    fn recognised(files: &[(&str, &str)], variables: &[(&str, &str)]) -> Vec<Surroundings> {
        let root = root_with(files);
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        Environment::of(root.path(), variable).surroundings
    }

    #[test]
    fn each_surrounding_is_recognised() {
        use Surroundings::{Colab, Container, Jupyter, Kaggle, Kubernetes, Slurm, Wsl};
        assert_eq!(recognised(&[("proc/1/cgroup", "0::/init.scope\n")], &[("SLURM_JOB_ID", "")]), []);
        assert_eq!(
            recognised(
                &[(".dockerenv", "")],
                &[("COLAB_RELEASE_TAG", "release-colab"), ("JPY_PARENT_PID", "7")]
            ),
            [Colab, Container, Jupyter]
        );
        assert_eq!(recognised(&[("content/sample_data/README.md", "")], &[]), [Colab]);
        assert_eq!(recognised(&[], &[("KAGGLE_KERNEL_RUN_TYPE", "Interactive")]), [Kaggle]);
        let wsl = ("proc/sys/kernel/osrelease", "5.15.167.4-microsoft-standard-WSL2\n");
        assert_eq!(recognised(&[wsl], &[]), [Wsl]);
        assert_eq!(recognised(&[], &[("SLURM_JOB_ID", "77")]), [Slurm]);
        assert_eq!(recognised(&[], &[("KUBERNETES_SERVICE_HOST", "10.0.0.1")]), [Kubernetes]);
        assert_eq!(recognised(&[("run/.containerenv", "")], &[]), [Container]);
        assert_eq!(recognised(&[(".singularity.d/labels.json", "{}")], &[]), [Container]);
        assert_eq!(recognised(&[], &[("APPTAINER_CONTAINER", "/images/torch.sif")]), [Container]);
        let job = [("SINGULARITY_CONTAINER", "/images/torch.sif"), ("SLURM_JOB_ID", "77")];
        assert_eq!(recognised(&[], &job), [Slurm, Container]);
        let docker = format!("0::/system.slice/docker-{}.scope\n", "0123456789abcdef".repeat(4));
        assert_eq!(recognised(&[("proc/1/cgroup", &docker)], &[]), [Container]);
        assert_eq!(recognised(&[("proc/self/cgroup", "0::/system.slice/slurmstepd.scope/job_7\n")], &[]), []);
    }

    #[test]
    fn hidden_processes_are_known_by_how_proc_is_mounted() {
        let mounted = |options: &str| format!("22 1 0:5 / /proc rw,nosuid - proc proc rw{options}\n");
        for (options, is_hidden) in [
            ("", false),
            (",hidepid=0", false),
            (",gid=7,hidepid=off", false),
            (",hidepid=2", true),
            (",gid=7,hidepid=invisible", true),
            (",hidepid=noaccess,gid=7", true),
        ] {
            let text = format!("21 1 0:4 / / rw - ext4 /dev/sda rw\n{}", mounted(options));
            let root = root_with(&[("proc/self/mountinfo", &text)]);
            assert_eq!(are_others_hidden(root.path()), is_hidden, "{options}");
            let root = root_with(&[("proc/self/mountinfo", &text), ("proc/1/stat", "1 (init) S 0")]);
            assert!(!are_others_hidden(root.path()), "it can be seen all the same");
        }
        let twice = mounted(",hidepid=2") + &mounted("");
        assert!(!are_others_hidden(root_with(&[("proc/self/mountinfo", &twice)]).path()));
        assert!(!are_others_hidden(Path::new("/nonexistent")));
    }
}
