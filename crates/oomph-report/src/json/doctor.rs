//! What `oomph doctor` prints. Nothing private is in it: facts come here without names.

use super::document;
use oomph_doctor::{self as model, Facts, Level, checks, examine_without_names};
use oomph_host::{Machine, Surroundings, Use};
use oomph_words::harmless;
use serde::Serialize;
use std::collections::BTreeMap;

/// What is true of a machine. Names are taken out of the facts first.
pub(crate) fn examination(facts: &Facts) -> String {
    let findings = examine_without_names(facts);
    let facts = &facts.without_names();
    document(Examination {
        wrong: findings.iter().filter(|finding| finding.level == Level::Wrong).count(),
        findings: findings.iter().map(Finding::of).collect(),
        oomph: &facts.oomph,
        surroundings: &facts.environment.surroundings,
        driver: facts.sample.gpus.driver.as_deref(),
        driver_cuda: facts.sample.gpus.cuda.map(version),
        gpus: facts.sample.gpus.cards.iter().map(|card| Gpu::of(facts, card)).collect(),
        machine: &facts.sample.machine,
        limits: Limits {
            address_space: facts.kernel.limits.address_space,
            locked: facts.kernel.limits.locked,
            open_files: facts.kernel.limits.open_files,
        },
        python: facts.python.as_ref().ok().map(Python::of),
        settings: &facts.settings.values,
    })
}

/// The checks that there are.
pub(crate) fn all_checks(checks: &[checks::Check]) -> String {
    document(Checks { checks: checks.iter().map(Check::of).collect() })
}

fn version((major, minor): (u32, u32)) -> String {
    format!("{major}.{minor}")
}

#[derive(Serialize)]
struct Examination<'a> {
    /// **Stable.** How many findings are wrong; the exit code is 1 if there is one.
    wrong: usize,
    /// **Stable.** What is wrong first, then notes, then what is fine.
    findings: Vec<Finding<'a>>,
    /// Version of the command.
    oomph: &'a str,
    /// Where this runs; empty on a plain machine.
    surroundings: &'a [Surroundings],
    /// Version of the driver.
    driver: Option<&'a str>,
    /// The newest CUDA that it can do.
    driver_cuda: Option<String>,
    /// The cards, as the driver counts them.
    gpus: Vec<Gpu<'a>>,
    /// RAM and its limits.
    machine: &'a Machine,
    /// The kernel's limits on a process; `null` is no limit.
    limits: Limits,
    /// The Python that was asked.
    python: Option<Python<'a>>,
    /// The variables that decide about memory, as far as they are set.
    settings: &'a BTreeMap<&'static str, String>,
}

#[derive(Serialize)]
struct Finding<'a> {
    /// **Stable.** The [check](doctor.md) that says it.
    check: &'a str,
    /// What it is about: `GPU 0`, `torch`, `RAM`.
    about: &'a str,
    /// **Stable.** `wrong`, `note` or `fine`.
    level: &'static str,
    /// What is true, in one line.
    title: String,
    /// What it means.
    means: Option<String>,
    /// What to do.
    fix: Option<String>,
    /// What to type for it. `PID` stands for the number of a process.
    command: Option<String>,
}

impl<'a> Finding<'a> {
    fn of(finding: &'a model::Finding) -> Self {
        Self {
            check: &finding.check,
            about: &finding.about,
            level: finding.level.name(),
            title: harmless(&finding.title),
            means: finding.means.as_deref().map(harmless),
            fix: finding.fix.as_deref().map(harmless),
            command: finding.command.as_deref().map(harmless),
        }
    }
}

#[derive(Serialize)]
struct Gpu<'a> {
    /// Its number.
    index: u32,
    /// As its maker calls it.
    name: &'a str,
    /// Whether it is oomph's virtual one.
    #[serde(rename = "virtual")]
    is_virtual: bool,
    /// Bytes, as the driver says.
    total: u64,
    /// What processes have.
    used: u64,
    /// What no process can have; `null` before driver 510.
    reserved: Option<u64>,
    /// What is left.
    free: u64,
    /// Bytes that a CUDA context takes, from the catalogue of cards.
    context: u64,
    /// **Stable.** `free` less `context`: what one more program can have for its tensors.
    usable: u64,
    /// Such as `9.0`.
    compute_capability: Option<String>,
    /// Cut into instances.
    mig: bool,
    /// For one process at a time.
    exclusive: bool,
    /// Who has memory on it.
    processes: Vec<Process<'a>>,
}

impl<'a> Gpu<'a> {
    fn of(facts: &'a Facts, card: &'a oomph_host::Gpu) -> Self {
        Self {
            index: card.index,
            name: &card.name,
            is_virtual: card.is_virtual,
            total: card.total,
            used: card.used,
            reserved: card.reserved,
            free: card.free,
            context: facts.context(card),
            usable: facts.usable(card),
            compute_capability: card.capability.map(version),
            mig: card.mig,
            exclusive: card.exclusive,
            processes: card.processes.iter().map(|process| Process::of(facts, process)).collect(),
        }
    }
}

#[derive(Serialize)]
struct Process<'a> {
    /// `user 1`, `user 2` …; `null` if the process cannot be seen.
    user: Option<&'a str>,
    /// Whether it is yours.
    yours: bool,
    /// `program` unless it is a well-known program.
    name: Option<&'a str>,
    /// As the kernel abbreviates it.
    state: Option<char>,
    /// What for.
    kind: Use,
    /// Its memory; `null` where the driver does not say.
    bytes: Option<u64>,
}

impl<'a> Process<'a> {
    fn of(facts: &'a Facts, process: &oomph_host::GpuProcess) -> Self {
        let known = facts.sample.processes.iter().find(|known| known.pid == process.pid);
        Self {
            user: known.map(|known| known.user.as_str()),
            yours: known.is_some_and(|known| Some(&known.user) == facts.user.as_ref()),
            name: known.map(|known| known.name.as_str()),
            state: known.map(|known| known.state),
            kind: process.kind,
            bytes: process.bytes,
        }
    }
}

#[derive(Serialize)]
struct Limits {
    /// Bytes of addresses.
    address_space: Option<u64>,
    /// Bytes that may be locked in RAM.
    locked: Option<u64>,
    /// How many files may be open.
    open_files: Option<u64>,
}

#[derive(Serialize)]
struct Python<'a> {
    /// Its version.
    version: &'a str,
    /// Whether it is in a virtual environment.
    virtual_environment: bool,
    /// Whether it is conda's.
    conda: bool,
    /// Every installation of PyTorch.
    torch: Vec<Torch<'a>>,
    /// That PyTorch has kernels for.
    architectures: &'a [String],
    /// NVIDIA's, Triton, torchvision and torchaudio, with all versions.
    packages: &'a BTreeMap<String, Vec<String>>,
    /// Version of the package.
    oomph: Option<&'a str>,
}

impl<'a> Python<'a> {
    fn of(python: &'a model::Python) -> Self {
        Self {
            version: &python.version,
            virtual_environment: python.is_environment,
            conda: python.is_conda,
            torch: python
                .torch
                .iter()
                .map(|torch| Torch {
                    version: &torch.version,
                    cuda: torch.cuda.as_deref(),
                    hip: torch.hip.as_deref(),
                })
                .collect(),
            architectures: &python.architectures,
            packages: &python.packages,
            oomph: python.oomph.as_deref(),
        }
    }
}

#[derive(Serialize)]
struct Torch<'a> {
    /// Its version.
    version: &'a str,
    /// The CUDA that it was built for.
    cuda: Option<&'a str>,
    /// The HIP that it was built for.
    hip: Option<&'a str>,
}

#[derive(Serialize)]
struct Checks {
    /// All of them.
    checks: Vec<Check>,
}

#[derive(Serialize)]
struct Check {
    /// Its name.
    check: String,
    /// What it looks at, in one line.
    summary: String,
    /// Its documentation, in Markdown.
    documentation: String,
}

impl Check {
    fn of(check: &checks::Check) -> Self {
        Self { check: check.name(), summary: check.summary(), documentation: check.documentation() }
    }
}
