//! The wheels of PyTorch for NVIDIA's cards: what each was built for, and how it is installed.
//!
//! All advice to install PyTorch comes from here. The architectures are those of PyTorch's own table
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
    // Where the two disagree, the version wins: some drivers report a wrong CUDA version.
    let is_new_enough = || {
        let driver = version_numbers(gpus.driver.as_deref()?);
        Some(driver >= version_numbers(least_driver(major)?))
    };
    can >= major || is_new_enough().unwrap_or(false)
}

/// What to do where none fits.
pub(crate) const NO_WHEELS: &str = "no wheel of PyTorch is for these cards and this driver: update the driver, build PyTorch from source, or take another card";

impl Wheels {
    /// The best for the cards that programs see; for all, if programs see none: those are hidden, and will be used.
    pub(crate) fn best(facts: &Facts) -> Option<&'static Self> {
        let visible = facts.visible();
        if visible.is_empty() {
            return Self::for_cards(facts, &facts.sample.gpus.cards.iter().collect::<Vec<_>>());
        }
        Self::for_cards(facts, &visible)
    }

    /// The best for these cards and this machine's driver.
    pub(crate) fn for_cards(facts: &Facts, cards: &[&Gpu]) -> Option<&'static Self> {
        let is_arm = facts.python.as_ref().is_ok_and(|python| python.machine == "aarch64");
        ALL.iter().find(|wheels| {
            let names = if is_arm { wheels.aarch64 } else { wheels.x86_64 };
            let has: Vec<Architecture> = names.iter().filter_map(|name| Architecture::read(name)).collect();
            let fits = |card: &&Gpu| {
                card.capability.is_none_or(|card| runs(&has, card, wheels.cuda) == Some(Runs::AtOnce))
            };
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
        install(facts, &with_companions(facts), Some(index_of(self.cuda)))
    }
}

/// What to type for the same PyTorch once more, with the packages that it was made with.
pub(crate) fn same_again(facts: &Facts) -> String {
    let Some((torch, (version, local))) =
        facts.torch().and_then(|torch| Some((torch, release(&torch.version)?)))
    else {
        // A private build, which no index has.
        return install(facts, &with_companions(facts), None);
    };
    let index = torch.cuda_numbers().map(index_of).or_else(|| local.map(str::to_owned));
    install(facts, &format!("torch=={version}"), index)
}

/// The version and its local part, if PyTorch's indexes have it: `2.11.0` and `cu128`, but nothing of `2.11.0+nv25.3`.
fn release(version: &str) -> Option<(&str, Option<&str>)> {
    let (public, local) =
        version.split_once('+').map_or((version, None), |(public, local)| (public, Some(local)));
    let is_theirs = |local: &str| {
        local == "cpu" || local.strip_prefix("cu").is_some_and(|cuda| cuda.parse::<u32>().is_ok())
    };
    let is_release = public.split('.').all(|part| part.parse::<u32>().is_ok());
    (is_release && local.is_none_or(is_theirs)).then_some((public, local))
}

/// PyTorch and those of its companions that are installed: each works with one version of PyTorch, and would be left behind.
fn with_companions(facts: &Facts) -> String {
    const COMPANIONS: [&str; 2] = ["torchvision", "torchaudio"];
    let is_installed =
        |name: &&str| facts.python.as_ref().is_ok_and(|python| python.packages.contains_key(*name));
    let names: Vec<&str> = ["torch"].into_iter().chain(COMPANIONS.into_iter().filter(is_installed)).collect();
    names.join(" ")
}

fn index_of((major, minor): (u32, u32)) -> String {
    format!("cu{major}{minor}")
}

fn install(facts: &Facts, what: &str, index: Option<String>) -> String {
    let index = index
        .map(|index| format!(" --index-url https://download.pytorch.org/whl/{index}"))
        .unwrap_or_default();
    facts.pip("install", &format!("--force-reinstall {what}{index}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::test_fixtures::{GIB, card, machine, with_torch};

    /// The end of the index that is suggested for a card and a driver.
    fn index(capability: (u32, u32), driver: &str, can: (u32, u32), machine_is: &str) -> Option<String> {
        let mut facts = machine();
        facts.sample.gpus.driver = Some(driver.to_owned());
        facts.sample.gpus.cuda = Some(can);
        if let Ok(python) = &mut facts.python {
            python.machine = machine_is.to_owned();
        }
        let mut card = card(0, GIB, 0);
        card.capability = Some(capability);
        let command = Wheels::for_cards(&facts, &[&card])?.command(&facts);
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
            let suggested = index(capability, driver, can, "x86_64");
            assert_eq!(suggested.as_deref(), expected, "{capability:?} with driver {driver}");
        }
    }

    #[test]
    fn other_processors_have_wheels_of_their_own() {
        let suggested = |capability, driver, can| index(capability, driver, can, "aarch64");
        assert_eq!(suggested((11, 0), "580.95.05", (13, 0)).as_deref(), Some("cu130"));
        assert_eq!(suggested((9, 0), "550.54.14", (12, 4)).as_deref(), Some("cu126"));
        assert_eq!(suggested((12, 1), "570.86.10", (12, 8)).as_deref(), Some("cu128"));
        assert_eq!(suggested((9, 0), "470.57.02", (11, 4)), None);
        assert_eq!(suggested((7, 5), "580.95.05", (13, 0)), None);
        assert_eq!(index((11, 0), "580.95.05", (13, 0), "x86_64"), None);
    }

    #[test]
    fn wheels_are_for_all_cards_or_for_none() {
        let facts = machine();
        let of = |capability| Gpu { capability: Some(capability), ..card(0, GIB, 0) };
        let (old, new, unknown) = (of((6, 0)), of((12, 0)), Gpu { capability: None, ..of((0, 0)) });
        assert!(Wheels::for_cards(&facts, &[&old, &unknown]).is_some());
        assert!(Wheels::for_cards(&facts, &[&old, &new]).is_none());
    }

    #[test]
    fn wheels_are_for_the_cards_that_programs_see_or_for_all_that_are_hidden() {
        let mut facts = machine();
        facts.sample.gpus.driver = Some("580.95.05".to_owned());
        facts.sample.gpus.cuda = Some((13, 0));
        let of = |index, capability| Gpu { capability: Some(capability), ..card(index, GIB, 0) };
        facts.sample.gpus.cards = vec![of(0, (6, 1)), of(1, (8, 6))];
        let mut seeing = |listed: &str| {
            facts.settings.values.insert("CUDA_VISIBLE_DEVICES", listed.to_owned());
            Wheels::best(&facts).map(|wheels| wheels.cuda)
        };
        assert_eq!(seeing("1"), Some((13, 0)));
        assert_eq!(seeing("0"), Some((12, 6)));
        assert_eq!(seeing(""), Some((12, 6)));
        assert_eq!(seeing("-1"), Some((12, 6)));
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
        if let Ok(python) = &mut facts.python {
            python.has_pip = false;
        }
        assert_eq!(
            command(&facts),
            format!(
                "uv pip install --python '/home/alice/it'\\''s mine/bin/python' {}",
                &index["-m pip install ".len()..]
            )
        );
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
        for own in ["2.12.0a0+git1234", "2.12.0+nv25.3", "2.12.0+mycorp", "2.12.0+cu", "2.12.0+cu130.mycorp"]
        {
            facts.python = Ok(with_torch(own, Some("13.0")));
            let anew = "/venv/bin/python -m pip install --force-reinstall torch";
            assert_eq!(same_again(&facts), anew, "{own}");
            assert_eq!(same_again(&facts.without_names()), anew.replace("/venv/bin/", ""), "{own}");
        }
        facts.python = Ok(with_torch("2.11.0+cpu", None));
        assert!(
            same_again(&facts).ends_with(" torch==2.11.0 --index-url https://download.pytorch.org/whl/cpu")
        );
        facts.python = Ok(with_torch("2.11.0", Some("13.0")));
        assert!(
            same_again(&facts).ends_with(" torch==2.11.0 --index-url https://download.pytorch.org/whl/cu130")
        );
    }

    #[test]
    fn what_is_tied_to_one_pytorch_comes_along_with_another() {
        let mut facts = machine();
        if let Ok(python) = &mut facts.python {
            python.packages.insert("torchaudio".to_owned(), vec!["2.11.0".to_owned()]);
            python.packages.insert("torchvision".to_owned(), vec!["0.26.0+cu128".to_owned()]);
        }
        let packages = " torch torchvision torchaudio --index-url https://download.pytorch.org/whl/cu126";
        assert!(ALL[1].command(&facts).ends_with(packages), "{}", ALL[1].command(&facts));
        assert!(ALL[1].command(&facts.without_names()).ends_with(packages));
        assert!(same_again(&facts).contains(" torch==2.11.0 --index-url"), "they fit the one that is kept");
        if let Ok(python) = &mut facts.python {
            python.torch[0].version = "2.11.0+mycorp".to_owned();
        }
        assert!(same_again(&facts).ends_with(" torch torchvision torchaudio"));
    }
}
