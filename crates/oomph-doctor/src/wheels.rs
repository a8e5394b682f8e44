//! The wheels of PyTorch for NVIDIA's cards: what each was built for, and how it is installed.
//!
//! Everything that tells people to install PyTorch asks here. The architectures are those of PyTorch's own table
//! (`PYTORCH_RELEASES_CODE_CC` in torch/cuda, and before 2.13 `.ci/manywheel/build_cuda.sh`). CUDA 12.8 went with 2.12
//! (pytorch/pytorch#178665), CUDA 12.6, and with it every card before Turing, with 2.15 (#190385).

use crate::architecture::{Architecture, Runs, runs};
use crate::facts::Facts;
use crate::versions::version_numbers;
use oomph_host::Gpu;

/// The wheels of one index.
#[derive(Debug)]
pub(crate) struct Wheels {
    /// The CUDA that they were built with.
    cuda: (u32, u32),
    /// The last PyTorch that has them, and the newest Python that it is for (RELEASE.md), if it is not the newest PyTorch.
    last: Option<(&'static str, &'static str)>,
    x86_64: &'static [&'static str],
    aarch64: &'static [&'static str],
}

/// Those with the newest PyTorch first: the first that fits is the best.
static ALL: [Wheels; 4] = [
    Wheels {
        cuda: (13, 0),
        last: None,
        x86_64: &["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"],
        aarch64: &["sm_80", "sm_90", "sm_100", "sm_110", "sm_120"],
    },
    Wheels {
        cuda: (12, 6),
        last: Some(("2.14", "3.15")),
        x86_64: &["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"],
        aarch64: &["sm_80", "sm_90"],
    },
    Wheels {
        cuda: (12, 8),
        last: Some(("2.11", "3.14")),
        x86_64: &["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"],
        aarch64: &["sm_80", "sm_90", "sm_100", "sm_120"],
    },
    Wheels {
        cuda: (11, 8),
        last: Some(("2.7", "3.13")),
        x86_64: &["sm_37", "sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"],
        aarch64: &[],
    },
];

/// CUDA's major version, and the least driver for all of it on Linux: within a major version any driver of that generation does
/// (CUDA Compatibility, minor version compatibility).
const LEAST_DRIVERS: [(u32, &str); 3] = [(11, "450.80.02"), (12, "525.60.13"), (13, "580.65.06")];

/// The least driver for a CUDA of this major version.
pub(crate) fn least_driver(major: u32) -> Option<&'static str> {
    LEAST_DRIVERS.iter().find(|(of, _)| *of == major).map(|&(_, least)| least)
}

/// Whether the driver can do a CUDA of this major version. One of which nothing is known is taken to.
pub(crate) fn driver_can(facts: &Facts, major: u32) -> bool {
    let gpus = &facts.sample.gpus;
    let Some((can, _)) = gpus.cuda else { return true };
    // Where the two disagree, the version wins: some drivers do not tell the truth about CUDA.
    let is_new_enough = || {
        let driver = version_numbers(gpus.driver.as_deref()?);
        Some(driver >= version_numbers(least_driver(major)?))
    };
    can >= major || is_new_enough().unwrap_or(false)
}

/// What to do where none fits.
pub(crate) const NO_WHEELS: &str = "no wheel of PyTorch is for these cards and this driver: update the driver, build PyTorch from source, or take another card";

impl Wheels {
    /// The best for these cards and this machine's driver.
    pub(crate) fn best(facts: &Facts, cards: &[&Gpu]) -> Option<&'static Self> {
        let is_arm = facts.python.as_ref().is_ok_and(|python| python.machine == "aarch64");
        ALL.iter().find(|wheels| {
            let names = if is_arm { wheels.aarch64 } else { wheels.x86_64 };
            let has: Vec<Architecture> = names.iter().filter_map(|name| Architecture::read(name)).collect();
            let fits =
                |card: &&Gpu| card.capability.is_none_or(|card| runs(&has, card) == Some(Runs::AtOnce));
            !has.is_empty() && driver_can(facts, wheels.cuda.0) && cards.iter().all(fits)
        })
    }

    /// What to do, in words.
    pub(crate) fn fix(&self, facts: &Facts) -> String {
        let (major, minor) = self.cuda;
        let install = format!("install the build for CUDA {major}.{minor}");
        let Some((torch, newest)) = self.last else { return install };
        let is_too_new = facts.python.as_ref().is_ok_and(|python| {
            let own = version_numbers(&python.version);
            own.iter().take(2).cmp(&version_numbers(newest)).is_gt()
        });
        let python = if is_too_new { format!(", for Python up to {newest}") } else { String::new() };
        format!("{install} (the last PyTorch that has it is {torch}{python})")
    }

    /// What to type. The index alone decides which PyTorch it is: it has no other.
    pub(crate) fn command(&self, facts: &Facts) -> String {
        install(facts, "torch", Some(self.cuda))
    }
}

/// What to type for the same PyTorch once more, with the packages that it was made with.
pub(crate) fn same_again(facts: &Facts) -> String {
    let is_release = |version: &&str| version.split('.').all(|part| part.parse::<u32>().is_ok());
    let torch = facts.torch();
    let version = torch.and_then(|torch| torch.version.split('+').next()).filter(is_release);
    match (version, torch.and_then(|torch| torch.cuda_numbers())) {
        (Some(version), Some(cuda)) => install(facts, &format!("torch=={version}"), Some(cuda)),
        // Somebody's own build, which no index has.
        _ => install(facts, "torch", None),
    }
}

fn install(facts: &Facts, what: &str, cuda: Option<(u32, u32)>) -> String {
    let index = cuda
        .map(|(major, minor)| format!(" --index-url https://download.pytorch.org/whl/cu{major}{minor}"))
        .unwrap_or_default();
    facts.pip(&format!("install --force-reinstall {what}{index}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::laid_out::{GIB, card, machine, with_torch};

    /// The end of the index that is told for a card and a driver.
    fn index(capability: (u32, u32), driver: &str, can: (u32, u32), machine_is: &str) -> Option<String> {
        let mut facts = machine();
        facts.sample.gpus.driver = Some(driver.to_owned());
        facts.sample.gpus.cuda = Some(can);
        if let Ok(python) = &mut facts.python {
            python.machine = machine_is.to_owned();
        }
        let mut card = card(0, GIB, 0);
        card.capability = Some(capability);
        let command = Wheels::best(&facts, &[&card])?.command(&facts);
        Some(command.rsplit('/').next()?.to_owned())
    }

    #[test]
    fn each_card_and_driver_gets_the_wheels_that_run_on_it() {
        for (capability, driver, can, expected) in [
            // A K80, whose last driver is 470.
            ((3, 7), "470.256.02", (11, 4), Some("cu118")),
            ((3, 5), "470.256.02", (11, 4), None),
            // Maxwell, Pascal, Volta: never CUDA 13, nor 12.8.
            ((5, 0), "580.95.05", (13, 0), Some("cu126")),
            ((5, 2), "535.54.03", (12, 2), Some("cu126")),
            ((6, 1), "580.95.05", (13, 0), Some("cu126")),
            ((6, 0), "470.57.02", (11, 4), Some("cu118")),
            ((7, 0), "580.95.05", (13, 0), Some("cu126")),
            ((7, 0), "525.60.13", (12, 0), Some("cu126")),
            // Turing to Hopper: what the driver can do.
            ((7, 5), "470.57.02", (11, 4), Some("cu118")),
            ((7, 5), "570.86.10", (12, 8), Some("cu126")),
            ((8, 9), "580.65.06", (13, 0), Some("cu130")),
            ((9, 0), "595.71.05", (13, 2), Some("cu130")),
            // Blackwell: not CUDA 12.6.
            ((10, 0), "570.86.10", (12, 8), Some("cu128")),
            ((12, 0), "570.86.10", (12, 8), Some("cu128")),
            ((12, 0), "580.95.05", (13, 0), Some("cu130")),
            ((12, 0), "470.57.02", (11, 4), None),
            // A driver that says 12.9 and is of CUDA 13.
            ((7, 5), "580.95.05", (12, 9), Some("cu130")),
        ] {
            let told = index(capability, driver, can, "x86_64");
            assert_eq!(told.as_deref(), expected, "{capability:?} with driver {driver}");
        }
    }

    #[test]
    fn other_processors_have_wheels_of_their_own() {
        let told = |capability, driver, can| index(capability, driver, can, "aarch64");
        assert_eq!(told((11, 0), "580.95.05", (13, 0)).as_deref(), Some("cu130"));
        assert_eq!(told((9, 0), "550.54.14", (12, 4)).as_deref(), Some("cu126"));
        assert_eq!(told((12, 1), "570.86.10", (12, 8)).as_deref(), Some("cu128"));
        assert_eq!(told((9, 0), "470.57.02", (11, 4)), None);
        assert_eq!(told((7, 5), "580.95.05", (13, 0)), None);
        assert_eq!(index((11, 0), "580.95.05", (13, 0), "x86_64"), None);
    }

    #[test]
    fn wheels_are_for_all_cards_or_for_none() {
        let facts = machine();
        let of = |capability| Gpu { capability: Some(capability), ..card(0, GIB, 0) };
        let (old, new, unknown) = (of((6, 0)), of((12, 0)), Gpu { capability: None, ..of((0, 0)) });
        assert!(Wheels::best(&facts, &[&old, &unknown]).is_some());
        assert!(Wheels::best(&facts, &[&old, &new]).is_none());
    }

    #[test]
    fn a_command_is_for_the_interpreter_that_was_looked_at() {
        let mut facts = machine();
        let command = |facts: &Facts| ALL[1].command(facts);
        let index =
            "-m pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu126";
        assert_eq!(command(&facts), format!("/venv/bin/python {index}"));
        if let Ok(python) = &mut facts.python {
            python.executable = "/home/alice/it's mine/bin/python".to_owned();
        }
        assert_eq!(command(&facts), format!("'/home/alice/it'\\''s mine/bin/python' {index}"));
        facts.python = Err("none".to_owned());
        assert_eq!(command(&facts), format!("python {index}"));
    }

    #[test]
    fn what_to_do_names_the_last_pytorch_and_a_python_that_is_too_new_for_it() {
        let mut facts = machine();
        assert_eq!(ALL[0].fix(&facts), "install the build for CUDA 13.0");
        assert_eq!(
            ALL[3].fix(&facts),
            "install the build for CUDA 11.8 (the last PyTorch that has it is 2.7)"
        );
        if let Ok(python) = &mut facts.python {
            python.version = "3.14.0".to_owned();
        }
        assert_eq!(
            ALL[3].fix(&facts),
            "install the build for CUDA 11.8 (the last PyTorch that has it is 2.7, for Python up to 3.13)"
        );
        assert!(!ALL[2].fix(&facts).contains("Python"));
    }

    #[test]
    fn the_same_again_is_the_same_version_from_its_own_index() {
        let mut facts = machine();
        assert_eq!(
            same_again(&facts),
            "/venv/bin/python -m pip install --force-reinstall torch==2.11.0 --index-url https://download.pytorch.org/whl/cu128"
        );
        facts.python = Ok(with_torch("2.12.0a0+git1234", Some("13.0")));
        assert_eq!(same_again(&facts), "/venv/bin/python -m pip install --force-reinstall torch");
    }
}
