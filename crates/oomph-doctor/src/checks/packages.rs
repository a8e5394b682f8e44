//! Whether NVIDIA's packages and Triton are those that PyTorch was built with.
//!
//! PyTorch pins the versions of nvidia-* and triton in its package. Wrong if one is older than that (symbols are missing:
//! "undefined symbol: ncclCommRegister", pytorch/pytorch#119932), or if the packages of two CUDAs bring the same library (both
//! write the same file: pytorch/pytorch#186591). A note if one is newer, or if one is missing.

use super::listed;
use crate::facts::Facts;
use crate::finding::Finding;
use crate::python::Python;
use crate::versions::version_numbers;
use crate::wheels::same_again;

pub(super) fn look(facts: &Facts) -> Vec<Finding> {
    let Ok(python) = &facts.python else { return Vec::new() };
    if python.torch.is_empty() {
        return Vec::new();
    }
    let mut findings: Vec<Finding> = twice(facts, python).into_iter().collect();
    let (mut older, mut newer, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    for pin in pins(python) {
        match python.packages.get(&pin.name).map(Vec::as_slice) {
            None | Some([]) => missing.push(pin.name),
            Some(installed) if installed.iter().any(|version| pin.is_met_by(version)) => {}
            Some([installed, ..]) => {
                let both = format!("{} {installed} (PyTorch wants {})", pin.name, pin.version);
                let is_older = version_numbers(installed) < version_numbers(&pin.version);
                if is_older { older.push(both) } else { newer.push(both) }
            }
        }
    }
    let anew = same_again(facts);
    if !older.is_empty() {
        findings.push(
            Finding::wrong("packages", format!("older than PyTorch was built with: {}", listed(&older)))
                .means("Functions are missing in them: import torch fails with \"undefined symbol\", or a call does.")
                .fix("install PyTorch with its own packages")
                .command(anew.as_str()),
        );
    }
    if !newer.is_empty() {
        findings.push(
            Finding::note("packages", format!("newer than PyTorch was built with: {}", listed(&newer)))
                .means("It often works; PyTorch was not tested with it.")
                .fix("if something odd happens, install PyTorch with its own packages")
                .command(anew.as_str()),
        );
    }
    // A PyTorch that found all its libraries has them from elsewhere: the system, conda.
    if !missing.is_empty() && !python.is_conda {
        const MOST: usize = 3;
        let shown = listed(&missing[..missing.len().min(MOST)]);
        let more = missing.len().saturating_sub(MOST);
        let more = if more > 0 { format!(" ({more} more)") } else { String::new() };
        let are = if missing.len() == 1 { "is" } else { "are" };
        findings.push(
            Finding::note("packages", format!("PyTorch requires {shown}, which {are} not installed{more}"))
                .means("Its libraries come from elsewhere, or it was installed without what it requires.")
                .fix("unless that is what you want, install PyTorch with its own packages")
                .command(anew),
        );
    }
    findings
}

/// `nvidia-nccl-cu12` beside `nvidia-nccl-cu13`. Since CUDA 13 most have no ending; a package that has lost it is another folder.
fn twice(facts: &Facts, python: &Python) -> Option<Finding> {
    let stem = |name: &str| {
        let (stem, number) = name.rsplit_once("-cu")?;
        number.parse::<u32>().is_ok().then(|| stem.to_owned())
    };
    let wanted: Vec<String> = pins(python).into_iter().map(|pin| pin.name).collect();
    let foreign: Vec<String> = (python.packages.keys())
        .filter(|name| {
            // cuDNN and NCCL lie in one folder whatever their CUDA.
            let same = |other: &&String| *other != *name && stem(other) == stem(name);
            stem(name).is_some() && !wanted.contains(name) && wanted.iter().any(|other| same(&other))
        })
        .cloned()
        .collect();
    (!foreign.is_empty()).then(|| {
        Finding::wrong("packages", format!("{} beside those that PyTorch was built with", listed(&foreign)))
            .means("Packages of two CUDAs write the same files: which library is loaded hangs on which was installed last.")
            .fix("remove them, and install PyTorch anew")
            .command(format!(
                "{} && {}",
                facts.pip("uninstall", &format!("-y {}", foreign.join(" "))),
                same_again(facts)
            ))
    })
}

/// A version that is required.
struct Pin {
    name: String,
    version: String,
    /// Whether any version that begins so will do.
    is_prefix: bool,
}

impl Pin {
    fn is_met_by(&self, installed: &str) -> bool {
        let installed = installed.split('+').next().unwrap_or(installed);
        let (installed, wanted) = (version_numbers(installed), version_numbers(&self.version));
        if self.is_prefix { installed.starts_with(&wanted) } else { installed == wanted }
    }
}

/// What PyTorch pins of NVIDIA's and Triton, here.
fn pins(python: &Python) -> Vec<Pin> {
    let applies = |condition: &str, extras: &[String]| {
        let condition = condition.replace('\'', "\"");
        let other_machine = condition.contains("platform_machine == ")
            && !condition.contains(&format!("platform_machine == \"{}\"", python.machine));
        let other_system = ["Windows", "Darwin"]
            .iter()
            .any(|system| condition.contains(&format!("platform_system == \"{system}\"")));
        let extra = condition.split("extra == \"").nth(1).and_then(|rest| rest.split('"').next());
        !other_machine && !other_system && extra.is_none_or(|extra| extras.iter().any(|one| one == extra))
    };
    let mut pins = Vec::new();
    let mut extras = Vec::new();
    for requirement in &python.torch_requires {
        let (what, condition) = requirement.split_once(';').unwrap_or((requirement, ""));
        if let Some((name, listed)) = what.split_once('[')
            && name.trim() == "cuda-toolkit"
            && let Some((listed, _)) = listed.split_once(']')
        {
            extras = listed.split(',').map(|extra| extra.trim().to_owned()).collect();
        }
        if applies(condition, &[]) {
            pins.extend(pin(what));
        }
    }
    for requirement in &python.toolkit_requires {
        let (what, condition) = requirement.split_once(';').unwrap_or((requirement, ""));
        if !extras.is_empty() && applies(condition, &extras) {
            pins.extend(pin(what));
        }
    }
    pins.sort_by(|one, other| one.name.cmp(&other.name));
    pins.dedup_by(|one, other| one.name == other.name);
    pins
}

/// `nvidia-cublas==13.4.1.3.*` and `triton~=3.9.0`; ranges pin nothing.
fn pin(what: &str) -> Option<Pin> {
    let (name, version, is_compatible) = match what.split_once("==") {
        Some((name, version)) => (name, version, false),
        None => {
            let (name, version) = what.split_once("~=")?;
            (name, version, true)
        }
    };
    let name = name.split('[').next().unwrap_or(name).trim().to_ascii_lowercase().replace('_', "-");
    let is_ours = name.starts_with("nvidia-") || name.contains("triton") || name == "cuda-toolkit";
    let version = version.trim();
    let stem = version.strip_suffix(".*");
    // ~=3.9.0 is 3.9 and what comes after it.
    let shown = match (stem, is_compatible) {
        (Some(stem), _) => stem,
        (None, true) => version.rsplit_once('.').map_or(version, |(stem, _)| stem),
        _ => version,
    };
    is_ours.then(|| Pin { name, version: shown.to_owned(), is_prefix: stem.is_some() || is_compatible })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::test_fixtures::{machine, summary, with_torch};
    use crate::finding::Level::{Note, Wrong};

    /// As PyTorch 2.11 for CUDA 12.8 writes them.
    const OLD: [&str; 5] = [
        "filelock",
        "nvidia-nccl-cu12==2.28.9; platform_system == \"Linux\" and platform_machine == \"x86_64\"",
        "nvidia-cudnn-cu12==9.15.1.9; platform_system == \"Linux\" and platform_machine == \"x86_64\"",
        "triton==3.6.0; platform_system == \"Linux\"",
        "opt-einsum>=3.3; extra == \"opt-einsum\"",
    ];
    /// As PyTorch 2.15 for CUDA 13.2 does.
    const NEW: [&str; 3] = [
        "cuda-toolkit[cublas,cudart]==13.2.2; platform_system == \"Linux\"",
        "nvidia-nccl-cu13==2.30.7; platform_system == \"Linux\"",
        "triton~=3.9.0; platform_system == \"Linux\"",
    ];
    const TOOLKIT: [&str; 4] = [
        "nvidia-cublas==13.4.1.3.*; (sys_platform == 'linux' and platform_machine == 'aarch64' or sys_platform == 'linux' and platform_machine == 'x86_64') and extra == 'cublas'",
        "nvidia-cuda-runtime==13.2.86.*; (sys_platform == 'linux' and platform_machine == 'x86_64') and extra == 'cudart'",
        "nvidia-npp==13.1.0.59.*; (sys_platform == 'linux' and platform_machine == 'x86_64') and extra == 'npp'",
        "nvidia-nvjitlink<14,>=13.2.86; (sys_platform == 'linux' and platform_machine == 'x86_64') and extra == 'cublas'",
    ];

    fn with(requires: &[&str], installed: &[(&str, &str)]) -> Facts {
        let mut facts = machine();
        let mut python = with_torch("2.11.0", Some("12.8"));
        python.torch_requires = requires.iter().map(|&line| line.to_owned()).collect();
        python.toolkit_requires = TOOLKIT.iter().map(|&line| line.to_owned()).collect();
        for &(name, version) in installed {
            python.packages.insert(name.to_owned(), vec![version.to_owned()]);
        }
        facts.python = Ok(python);
        facts
    }

    #[test]
    fn what_pytorch_pins_is_fine() {
        let installed =
            [("nvidia-nccl-cu12", "2.28.9"), ("nvidia-cudnn-cu12", "9.15.1.9"), ("triton", "3.6.0")];
        assert!(look(&with(&OLD, &installed)).is_empty());
        let installed = [
            ("cuda-toolkit", "13.2.2"),
            ("nvidia-cublas", "13.4.1.3"),
            ("nvidia-cuda-runtime", "13.2.86"),
            ("nvidia-nccl-cu13", "2.30.7"),
            ("triton", "3.9.4"),
            ("nvidia-npp", "1.0"),
            ("nvidia-cuda-cccl", "13.3.5"),
        ];
        assert!(look(&with(&NEW, &installed)).is_empty(), "{:?}", look(&with(&NEW, &installed)));
    }

    #[test]
    fn older_is_wrong_newer_and_missing_are_notes() {
        let installed = [("nvidia-nccl-cu12", "2.18.1"), ("nvidia-cudnn-cu12", "9.20.0.1")];
        assert_eq!(
            summary(&look(&with(&OLD, &installed))),
            [
                (Wrong, "older than PyTorch was built with: nvidia-nccl-cu12 2.18.1 (PyTorch wants 2.28.9)"),
                (
                    Note,
                    "newer than PyTorch was built with: nvidia-cudnn-cu12 9.20.0.1 (PyTorch wants 9.15.1.9)"
                ),
                (Note, "PyTorch requires triton, which is not installed"),
            ]
        );
        let installed = [
            ("cuda-toolkit", "13.2.2"),
            ("nvidia-cublas", "13.3.0.1"),
            ("nvidia-cuda-runtime", "13.2.86"),
            ("nvidia-nccl-cu13", "2.30.7"),
            ("triton", "3.9.0"),
        ];
        assert_eq!(summary(&look(&with(&NEW, &installed)))[0].0, Wrong);
    }

    #[test]
    fn packages_of_two_cudas_are_wrong() {
        let installed = [
            ("nvidia-nccl-cu12", "2.28.9"),
            ("nvidia-cudnn-cu12", "9.15.1.9"),
            ("triton", "3.6.0"),
            ("nvidia-nccl-cu13", "2.29.7"),
        ];
        let findings = look(&with(&OLD, &installed));
        assert_eq!(
            summary(&findings),
            [(Wrong, "nvidia-nccl-cu13 beside those that PyTorch was built with")]
        );
        let command = findings[0].command.as_deref().unwrap();
        assert!(command.starts_with(
            "/venv/bin/python -m pip uninstall -y nvidia-nccl-cu13 && /venv/bin/python -m pip install"
        ));
        assert!(
            command.ends_with("torch==2.11.0 --index-url https://download.pytorch.org/whl/cu128"),
            "{command}"
        );
    }

    #[test]
    fn other_machines_are_left_alone() {
        let mut facts = with(&OLD, &[("triton", "3.6.0")]);
        if let Ok(python) = &mut facts.python {
            python.machine = "aarch64".to_owned();
        }
        assert!(look(&facts).is_empty());
    }
}
