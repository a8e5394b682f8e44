//! Everything that checks look at, gathered once.

use crate::deep::Deep;
use crate::kernel::Kernel;
use crate::python::{Python, Torch};
use crate::settings::Settings;
use oomph_gpus::Catalogue;
use oomph_host::{Environment, Gpu, Gpus, Machine, Process, Sample, Sampler, Surroundings};
use oomph_settings::version::Version;
use std::path::{Path, PathBuf};

/// Of the words of NVML's error 17, which has no name of its own in [`oomph_host::Missing`]: Windows keeps WSL from the card, or a
/// control group a job.
pub(crate) const BLOCKED: &str = "blocked by the operating system";

#[derive(Clone, Debug)]
pub struct Facts {
    /// Cards, RAM and processes, at one moment.
    pub sample: Sample,
    pub environment: Environment,
    pub kernel: Kernel,
    /// The environment's settings.
    pub settings: Settings,
    /// The chosen Python, or why there is none.
    pub python: Result<Python, String>,
    /// What PyTorch itself does, if it was asked.
    pub deep: Option<Deep>,
    /// Cards that are known, for what a context takes on them.
    pub catalogue: Catalogue,
    /// The user of this process.
    pub user: Option<String>,
    /// Version of this command.
    pub oomph: String,
    /// Whether people, processes and places may be named.
    pub is_named: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Gather {
    /// The Python to look at.
    pub python: Option<PathBuf>,
    /// Whether PyTorch is to be imported and asked.
    pub deep: bool,
}

impl Facts {
    pub fn gather(gather: &Gather) -> Self {
        let mut sample = Sampler::new().sample();
        let own = std::process::id();
        let user = sample.processes.iter().find(|process| process.pid == own).map(|own| own.user.clone());
        remove_foreign_pids(&mut sample, Path::new("/proc"));
        let python = Python::find(gather.python.as_deref(), Path::new("."));
        let deep = match &python {
            Ok(python) if gather.deep && !python.torch.is_empty() => {
                Some(Deep::ask(Path::new(&python.executable)))
            }
            _ => None,
        };
        Self {
            sample,
            environment: Environment::here(),
            kernel: Kernel::read(Path::new("/")),
            settings: Settings::of(|name| {
                std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
            }),
            python,
            deep,
            // A user's file that is broken is the business of `oomph gpus`.
            catalogue: Catalogue::load().unwrap_or_else(|_| Catalogue::built_in()),
            user,
            oomph: env!("CARGO_PKG_VERSION").to_owned(),
            is_named: true,
        }
    }

    /// A machine of which nothing is known: to lay facts out on.
    pub fn unknown() -> Self {
        Self {
            sample: Sample {
                time: 0,
                machine: Machine { ram: None, swap: None, shm: None, group: None, processors: None },
                gpus: Gpus::default(),
                processes: Vec::new(),
            },
            environment: Environment { surroundings: Vec::new() },
            kernel: Kernel::default(),
            settings: Settings::default(),
            python: Err("not asked".to_owned()),
            deep: None,
            catalogue: Catalogue::built_in(),
            user: None,
            oomph: env!("CARGO_PKG_VERSION").to_owned(),
            is_named: true,
        }
    }

    /// A process of which no more is known: to lay out on it.
    pub fn unknown_process(pid: u32, user: &str, name: &str, state: char) -> Process {
        Process {
            pid,
            parent: 1,
            user: user.to_owned(),
            name: name.to_owned(),
            command: String::new(),
            state,
            started: 0,
            start_ticks: 0,
            processor: 0,
            resident: 0,
            anonymous: 0,
            file: 0,
            shared: 0,
            swapped: 0,
            pinned: 0,
            on_gpus: Vec::new(),
            container: None,
            inside: None,
            recordings: Vec::new(),
        }
    }

    /// The PyTorch that is imported.
    pub fn torch(&self) -> Option<&Torch> {
        self.python.as_ref().ok()?.torch()
    }

    /// The interpreter that was inspected, quoted for a shell.
    pub(crate) fn interpreter(&self) -> String {
        match &self.python {
            Ok(python) if !python.executable.is_empty() => quoted(&python.executable),
            _ => "python".to_owned(),
        }
    }

    /// A command of its pip: the one that PATH has may be another's. Environments that uv made have none, and uv installs into them.
    pub(crate) fn pip(&self, command: &str, words: &str) -> String {
        let interpreter = self.interpreter();
        match &self.python {
            Ok(python) if !python.has_pip => format!("uv pip {command} --python {interpreter} {words}"),
            _ => format!("{interpreter} -m pip {command} {words}"),
        }
    }

    /// The version whose rules the allocator's settings are read by.
    pub(crate) fn torch_version(&self) -> Option<Version> {
        let (major, minor) = self.torch()?.numbers()?;
        Some(Version::new(major, minor))
    }

    /// Whether PyTorch is there and built for NVIDIA's cards.
    pub(crate) fn torch_has_cuda(&self) -> bool {
        self.torch().is_some_and(|torch| torch.cuda.is_some())
    }

    /// Whether this runs in such a place.
    pub(crate) fn is_in(&self, place: Surroundings) -> bool {
        self.environment.has(place)
    }

    /// The cards that a program sees, in its order, by `CUDA_VISIBLE_DEVICES`.
    pub(crate) fn visible(&self) -> Vec<&Gpu> {
        let cards = &self.sample.gpus.cards;
        let Some(listed) = self.settings.get("CUDA_VISIBLE_DEVICES") else { return cards.iter().collect() };
        if self.listed_twice().is_some() {
            return Vec::new();
        }
        // Up to the first that is not there: https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html
        listed.split(',').map_while(|entry| self.card(entry)).collect()
    }

    /// The entry of `CUDA_VISIBLE_DEVICES` that names a card once more, with which no card is left: `_parse_visible_devices` in
    /// torch/cuda does as CUDA does.
    pub(crate) fn listed_twice(&self) -> Option<&str> {
        let listed = self.settings.get("CUDA_VISIBLE_DEVICES")?;
        let entries: Vec<(&str, &Gpu)> =
            listed.split(',').map_while(|entry| Some((entry.trim(), self.card(entry)?))).collect();
        let is_again = |at: usize| {
            let (entry, card) = entries[at];
            // Instances of one card have names of their own.
            let is_same = |(other, its): &(&str, &Gpu)| {
                *other == entry || !entry.starts_with("MIG-") && its.index == card.index
            };
            entries[..at].iter().any(is_same)
        };
        (0..entries.len()).find(|&at| is_again(at)).map(|at| entries[at].0)
    }

    /// Whether this is a Slurm job without a GPU: Slurm sets these variables for a job that requested one.
    pub(crate) fn asked_slurm_for_no_gpu(&self) -> bool {
        let has_gpus =
            ["SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE"].iter().any(|name| self.settings.get(name).is_some());
        self.is_in(Surroundings::Slurm) && !has_gpus
    }

    /// The card that an entry of `CUDA_VISIBLE_DEVICES` names: a number, or the beginning of what `nvidia-smi -L` says.
    pub(crate) fn card(&self, entry: &str) -> Option<&Gpu> {
        let (entry, cards) = (entry.trim(), &self.sample.gpus.cards);
        if let Ok(number) = entry.parse::<u32>() {
            return cards.iter().find(|card| card.index == number);
        }
        // An instance is named by the card's own name, or by one of its own, which is not known here.
        let entry = entry.split('/').next().unwrap_or_default();
        if let Some(rest) = entry.strip_prefix("MIG-") {
            let named = |card: &&Gpu| card.uuid.as_deref().is_some_and(|uuid| uuid == rest);
            return cards.iter().find(named).or_else(|| cards.iter().find(|card| card.mig));
        }
        let mut named = cards.iter().filter(|card| {
            entry.len() > 4 && card.uuid.as_deref().is_some_and(|uuid| uuid.starts_with(entry))
        });
        named.next().filter(|_| named.next().is_none())
    }

    /// Whether a program may see a card of which the driver says nothing but its number.
    pub(crate) fn may_see(&self, index: u32) -> bool {
        let Some(listed) = self.settings.get("CUDA_VISIBLE_DEVICES") else { return true };
        listed.split(',').any(|entry| match entry.trim().parse::<u32>() {
            Ok(number) => number == index,
            // By a name that no other card has.
            Err(_) => entry.contains('-') && entry.trim() != "-1" && self.card(entry).is_none(),
        })
    }

    /// What a CUDA context takes on a card.
    pub fn context(&self, card: &Gpu) -> u64 {
        /// Of the cards that were measured, most take about this.
        const USUAL: u64 = 400 << 20;
        self.catalogue.find(&card.name).map_or(USUAL, |known| known.context)
    }

    /// What one more program can have on a card for its tensors.
    pub fn usable(&self, card: &Gpu) -> u64 {
        let context = self.context(card);
        // The virtual driver has made a context when it is asked.
        let made = if card.is_virtual { card.used.min(context) } else { 0 };
        card.free.saturating_sub(context - made)
    }

    /// The process with a number, if it can be seen.
    pub(crate) fn process(&self, pid: u32) -> Option<&Process> {
        self.sample.processes.iter().find(|process| process.pid == pid)
    }

    /// Whether it is of the user who asks.
    pub(crate) fn is_own(&self, pid: u32) -> bool {
        self.user.is_some() && self.process(pid).map(|process| &process.user) == self.user.as_ref()
    }

    /// A process in words: `alice's python (pid 4711)`.
    pub(crate) fn who(&self, pid: u32) -> String {
        let number = if self.is_named { format!(" (pid {pid})") } else { String::new() };
        match self.process(pid) {
            Some(process) if self.is_own(pid) => format!("your {}{number}", process.name),
            Some(process) => format!("{}'s {}{number}", process.user, process.name),
            None => format!("a process that cannot be seen from here{number}"),
        }
    }

    /// What ends a process of one's own; nothing for another's, nor for the first of a machine or container.
    pub(crate) fn kill(&self, pid: u32, with: &str) -> Option<String> {
        let shown = if self.is_named { pid.to_string() } else { "PID".to_owned() };
        (pid > 1 && self.is_own(pid)).then(|| format!("kill{with} {shown}"))
    }
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "/._-+@%,:=".contains(character);
    if word.chars().all(is_plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

/// Takes processes out that only have the number of one outside. In a container with numbers of its own the driver still gives
/// the host's, so that a process is on a card only if it has the driver open. A dead process has nothing open, and is not listed.
fn remove_foreign_pids(sample: &mut Sample, proc: &Path) {
    /// The machine's own: `PROC_PID_INIT_INO` in the kernel.
    const OF_THE_MACHINE: &str = "pid:[4026531836]";
    let namespace = std::fs::read_link(proc.join("self/ns/pid")).unwrap_or_default();
    if namespace.as_os_str() == OF_THE_MACHINE || namespace.as_os_str().is_empty() {
        return;
    }
    let (real, _): (Vec<&Gpu>, Vec<&Gpu>) = sample.gpus.cards.iter().partition(|card| !card.is_virtual);
    let listed: Vec<u32> = real.iter().flat_map(|card| card.processes.iter().map(|one| one.pid)).collect();
    let has_driver = |pid: u32| {
        let folder = proc.join(pid.to_string());
        let is_device =
            |path: PathBuf| path.starts_with("/dev/dxg") || path.to_string_lossy().starts_with("/dev/nvidia");
        let opened = std::fs::read_dir(folder.join("fd")).into_iter().flatten().flatten();
        opened.filter_map(|entry| std::fs::read_link(entry.path()).ok()).any(is_device)
            || std::fs::read_to_string(folder.join("maps")).is_ok_and(|maps| maps.contains("/libcuda.so"))
    };
    sample.processes.retain(|process| !listed.contains(&process.pid) || has_driver(process.pid));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::test_fixtures::{card, on_card, process};
    use std::os::unix::fs::symlink;

    #[test]
    fn in_a_container_a_process_counts_only_if_it_has_the_driver_open() {
        let proc = tempfile::tempdir().unwrap();
        let folder = |pid: &str| {
            let folder = proc.path().join(pid);
            std::fs::create_dir_all(folder.join("fd")).unwrap();
            folder
        };
        symlink("/dev/nvidia0", folder("11").join("fd/3")).unwrap();
        std::fs::write(folder("12").join("maps"), "7f00-7f01 r-xp 0 0 0 /usr/lib/libcuda.so.580.65\n")
            .unwrap();
        symlink("/dev/null", folder("13").join("fd/0")).unwrap();
        let mut sample = Facts::unknown().sample;
        sample.gpus.cards = vec![on_card(card(0, 1 << 30, 0), &[(11, 1), (12, 1), (13, 1), (14, 1)])];
        sample.processes = [11, 12, 13, 14, 15].map(|pid| process(pid, "alice", "python", 'S')).to_vec();
        let left = |namespace: &str| {
            let link = folder("self/ns").join("pid");
            let _ = std::fs::remove_file(&link);
            symlink(namespace, link).unwrap();
            let mut sample = sample.clone();
            remove_foreign_pids(&mut sample, proc.path());
            sample.processes.iter().map(|process| process.pid).collect::<Vec<_>>()
        };
        assert_eq!(left("pid:[4026531836]"), [11, 12, 13, 14, 15]);
        assert_eq!(left("pid:[4026532000]"), [11, 12, 15]);
    }
}
