//! Whether there is a driver, and whether it answers.
//!
//! Wrong if a card is on the bus and no driver answers, if the driver's library and its kernel module are of two versions (an
//! update without a restart), or if this user may not use it. That there is no card at all is a note: nothing fails for it; so it is
//! if a container was started without one (`NVIDIA_VISIBLE_DEVICES=void`), or if a job of Slurm has not asked for one.

use crate::facts::{BLOCKED, Facts};
use crate::finding::{Finding, Level};
use oomph_host::{Missing, Surroundings};

/// The driver's own packages, of Ubuntu and of Debian: NVIDIA's container toolkit and CUDA's have names that begin alike, and are to
/// stay. With a package go those that need it.
const PURGE: &str = "sudo apt-get purge '^(libnvidia-compute|libnvidia-ml1|libcuda1|nvidia-(driver|utils|dkms))(-[0-9].*)?$' && sudo ldconfig";

pub(super) fn look(facts: &Facts) -> Vec<Finding> {
    let gpus = &facts.sample.gpus;
    let Some(missing) = &gpus.missing else {
        let mut words = Vec::new();
        words.extend(gpus.driver.clone());
        words.extend(gpus.cuda.map(|(major, minor)| format!("CUDA up to {major}.{minor}")));
        return if words.is_empty() { Vec::new() } else { vec![Finding::fine("driver", words.join(", "))] };
    };
    if let Some(finding) = not_asked_for(facts, missing) {
        return vec![finding];
    }
    let on_bus = facts.kernel.cards_on_bus;
    let cards = match on_bus {
        Some(1) => "a card of NVIDIA's is".to_owned(),
        Some(count) => format!("{count} cards of NVIDIA's are"),
        None => "a card of NVIDIA's may be".to_owned(),
    };
    // Where the bus cannot be read, a library without a driver is reason enough.
    let if_on_bus = if on_bus == Some(0) { Level::Note } else { Level::Wrong };
    let finding = match missing {
        Missing::NoLibrary if on_bus.unwrap_or(0) > 0 => {
            let finding = Finding::wrong("driver", format!("{cards} in this machine, but no driver is installed"))
                .means("PyTorch will not find it: torch.cuda.is_available() is False.");
            if facts.is_in(Surroundings::Container) {
                finding
                    .fix("let the container have the host's driver (NVIDIA's container toolkit must be installed there)")
                    .command("docker run --gpus all …")
            } else {
                finding.fix("install NVIDIA's driver, then restart").command("sudo ubuntu-drivers install")
            }
        }
        Missing::NoLibrary if facts.is_in(Surroundings::Wsl) => Finding::note("driver", "no GPU can be seen from WSL")
            .means("WSL has the driver of Windows: its library must be in /usr/lib/wsl/lib.")
            .fix("install the driver in Windows, not in WSL, and update WSL")
            .command("wsl --update"),
        Missing::NoLibrary => no_card(),
        Missing::DriverNotLoaded if facts.is_in(Surroundings::Wsl) => {
            Finding::note("driver", "a driver for Linux is installed in WSL, and is not loaded")
                .means("WSL has the driver of Windows, in /usr/lib/wsl/lib: one that is installed beside it hides it.")
                .fix("remove it; the driver of Windows is all that is needed")
                .command(PURGE)
        }
        Missing::DriverNotLoaded => Finding::at(if_on_bus, "driver", "the driver is installed, but not loaded")
            .means("The library is here, and the kernel has no module for it: it failed to build for this kernel, or there is no card.")
            .fix("load it; if that fails, install the driver again for this kernel")
            .command("sudo modprobe nvidia && dmesg | grep -i nvrm | tail"),
        Missing::VersionMismatch => {
            let module = facts.kernel.module.as_deref();
            let loaded = module.map(|module| format!(" (the kernel has {module} loaded)")).unwrap_or_default();
            Finding::wrong("driver", format!("the driver was updated without a restart{loaded}"))
                .means("Its library and its kernel module are of two versions, and work with no other: nothing that uses the GPU starts.")
                .fix("restart the machine; in a container, restart the container after the host")
                .command("sudo reboot")
        }
        Missing::NoPermission => Finding::wrong("driver", "this user may not use the GPU")
            .means("The driver answers, and refuses.")
            .fix("see who may, and join that group (then log in again); in a batch job, ask for a GPU")
            .command("ls -l /dev/nvidia*"),
        Missing::NoCards if if_on_bus == Level::Note => no_card(),
        Missing::NoCards => Finding::wrong("driver", "the driver is loaded and sees no card")
            .means("The card fell off the bus, is not supported by this driver, or is assigned elsewhere (another container, a virtual machine).")
            .fix("see what the kernel says of it")
            .command("dmesg | grep -i -e nvrm -e xid | tail"),
        Missing::Other(why) if why.contains(BLOCKED) && facts.is_in(Surroundings::Wsl) => {
            Finding::wrong("driver", "Windows does not let WSL use the GPU")
                .means("The driver of Windows is too old for this WSL, the card is in a mode without a display (TCC), or a driver for Linux was installed in WSL and hides the library in /usr/lib/wsl/lib.")
                .fix("update the driver in Windows and WSL, and start WSL anew: type this in Windows")
                // Windows' own PowerShell knows no `&&`, and the old shell no `;`.
                .command("cmd /c \"wsl --update && wsl --shutdown\"")
        }
        Missing::Other(why) if why.contains(BLOCKED) => {
            Finding::wrong("driver", "a control group keeps this process from the GPU")
                .means("The driver is here, and its devices may not be opened: a container that was started with a GPU loses it when systemd reloads, a job has only what it asked for.")
                .fix("start the container anew; in a batch job, ask for a GPU")
                .command("docker run --gpus all …")
        }
        Missing::Other(why) => Finding::at(if_on_bus, "driver", format!("the driver does not answer: {why}"))
            .fix("see whether NVIDIA's own tool says more")
            .command("nvidia-smi"),
    };
    vec![finding]
}

/// Where no card is to be seen because whoever started this has not asked for one.
fn not_asked_for(facts: &Facts, missing: &Missing) -> Option<Finding> {
    let is_not_there = matches!(missing, Missing::NoLibrary | Missing::DriverNotLoaded | Missing::NoCards);
    let is_kept_away = matches!(missing, Missing::NoPermission)
        || matches!(missing, Missing::Other(why) if why.contains(BLOCKED));
    if facts.asked_slurm_for_no_gpu() && (is_not_there || is_kept_away) {
        return Some(
            Finding::note("driver", "this job has not asked Slurm for a GPU")
                .means("A job sees the GPUs that it has asked for, whatever the machine has.")
                .fix("ask for one, if you want one")
                .command("srun --gres=gpu:1 …"),
        );
    }
    let is_container = facts.is_in(Surroundings::Container) || facts.is_in(Surroundings::Kubernetes);
    let setting =
        facts.settings.get("NVIDIA_VISIBLE_DEVICES").filter(|_| is_container && is_not_there)?.trim();
    let means = match setting {
        "" | "void" => {
            "NVIDIA's container toolkit then leaves the container alone: it has neither the driver's library nor a card."
        }
        "none" if matches!(missing, Missing::NoCards) => {
            "NVIDIA's container toolkit then gives the container the driver's library, and no card."
        }
        "none" => "NVIDIA's container toolkit then gives the container no card.",
        _ => return None,
    };
    let finding = Finding::note(
        "driver",
        format!("NVIDIA_VISIBLE_DEVICES={setting}: this container was started without a GPU"),
    )
    .means(means);
    Some(if facts.is_in(Surroundings::Kubernetes) {
        finding
            .fix("ask for one in the pod's resources, if you want one")
            .command("limits: {nvidia.com/gpu: 1}")
    } else {
        finding.fix("start it with one, if you want one").command("docker run --gpus all …")
    })
}

fn no_card() -> Finding {
    Finding::note("driver", "there is no NVIDIA GPU here")
        .means("Programs run on the processor. Whether one would fit a card can be said all the same.")
        .fix("see whether a program would fit one")
        .command("oomph predict --gpu t4 train.py")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::test_fixtures::machine;

    fn without(missing: Missing, on_bus: Option<usize>) -> Facts {
        let mut facts = machine();
        facts.sample.gpus = oomph_host::Gpus { missing: Some(missing), ..Default::default() };
        facts.kernel.cards_on_bus = on_bus;
        facts
    }

    fn summary(facts: &Facts) -> (Level, String) {
        let [finding] = look(facts).try_into().unwrap();
        (finding.level, finding.title)
    }

    #[test]
    fn a_driver_that_answers_is_one_line() {
        assert_eq!(summary(&machine()), (Level::Fine, "570.86.10, CUDA up to 12.8".to_owned()));
    }

    #[test]
    fn no_card_is_a_note_and_a_card_without_a_driver_is_wrong() {
        assert_eq!(summary(&without(Missing::NoLibrary, Some(0))).0, Level::Note);
        assert_eq!(summary(&without(Missing::NoLibrary, None)).0, Level::Note);
        let (level, title) = summary(&without(Missing::NoLibrary, Some(2)));
        assert_eq!(
            (level, title.as_str()),
            (Level::Wrong, "2 cards of NVIDIA's are in this machine, but no driver is installed")
        );
        assert_eq!(summary(&without(Missing::DriverNotLoaded, Some(1))).0, Level::Wrong);
        assert_eq!(summary(&without(Missing::DriverNotLoaded, Some(0))).0, Level::Note);
        assert_eq!(summary(&without(Missing::NoCards, Some(1))).0, Level::Wrong);
        assert_eq!(summary(&without(Missing::NoPermission, Some(0))).0, Level::Wrong);
        assert_eq!(
            summary(&without(Missing::Other("odd".into()), None)),
            (Level::Wrong, "the driver does not answer: odd".into())
        );
    }

    #[test]
    fn a_container_gets_the_driver_from_its_host_and_no_advice_to_install_one() {
        let mut facts = without(Missing::NoLibrary, Some(1));
        assert!(look(&facts)[0].command.as_deref().unwrap().contains("ubuntu-drivers"));
        facts.environment.surroundings = vec![Surroundings::Container];
        assert_eq!(look(&facts)[0].command.as_deref(), Some("docker run --gpus all …"));
        let mut facts = without(Missing::NoLibrary, Some(0));
        facts.environment.surroundings = vec![Surroundings::Wsl];
        assert_eq!(look(&facts)[0].command.as_deref(), Some("wsl --update"));
    }

    #[test]
    fn what_was_started_without_a_gpu_is_no_fault_of_the_driver() {
        for (setting, library) in
            [("void", "neither"), ("", "neither"), ("none", "gives the container no card")]
        {
            let mut facts = without(Missing::NoLibrary, Some(1));
            facts.settings.values.insert("NVIDIA_VISIBLE_DEVICES", setting.to_owned());
            assert_eq!(summary(&facts).0, Level::Wrong, "outside of a container it decides nothing");
            facts.environment.surroundings = vec![Surroundings::Container];
            let title = format!("NVIDIA_VISIBLE_DEVICES={setting}: this container was started without a GPU");
            assert_eq!(summary(&facts), (Level::Note, title));
            assert!(look(&facts)[0].means.as_deref().unwrap().contains(library));
        }
        let mut facts = without(Missing::NoCards, Some(1));
        facts.environment.surroundings = vec![Surroundings::Container];
        facts.settings.values.insert("NVIDIA_VISIBLE_DEVICES", "none".to_owned());
        assert!(look(&facts)[0].means.as_deref().unwrap().contains("the driver's library, and no card"));
        let mut facts = without(Missing::NoCards, Some(4));
        facts.settings.values.insert("NVIDIA_VISIBLE_DEVICES", "all".to_owned());
        assert_eq!(summary(&facts).0, Level::Wrong, "it was started with all");
        facts.environment.surroundings = vec![Surroundings::Slurm];
        assert_eq!(summary(&facts), (Level::Note, "this job has not asked Slurm for a GPU".to_owned()));
        assert_eq!(look(&facts)[0].command.as_deref(), Some("srun --gres=gpu:1 …"));
        facts.settings.values.insert("SLURM_GPUS_ON_NODE", "2".to_owned());
        assert_eq!(summary(&facts).1, "the driver is loaded and sees no card");
    }

    #[test]
    fn what_keeps_a_process_from_the_card_is_named() {
        let words = "device control has been blocked by the operating system/cgroups";
        let mut facts = without(Missing::Other(words.to_owned()), Some(1));
        assert_eq!(
            summary(&facts),
            (Level::Wrong, "a control group keeps this process from the GPU".to_owned())
        );
        assert_eq!(look(&facts.without_names()), look(&facts));
        facts.environment.surroundings = vec![Surroundings::Wsl];
        assert_eq!(summary(&facts), (Level::Wrong, "Windows does not let WSL use the GPU".to_owned()));
        assert_eq!(look(&facts)[0].command.as_deref(), Some("cmd /c \"wsl --update && wsl --shutdown\""));
        facts.sample.gpus.missing = Some(Missing::DriverNotLoaded);
        assert_eq!(summary(&facts).1, "a driver for Linux is installed in WSL, and is not loaded");
    }

    #[test]
    fn of_wsl_only_the_driver_is_removed() {
        let pattern = PURGE.split('\'').nth(1).unwrap();
        let matching = |packages: &str| {
            let script = format!("printf '%s\\n' {packages} | grep -E '{pattern}'");
            let ran = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            String::from_utf8(ran.stdout).unwrap().lines().collect::<Vec<_>>().join(" ")
        };
        let driver = "nvidia-driver-570 nvidia-driver-535-server libnvidia-compute-570 nvidia-utils-570 nvidia-dkms-570 nvidia-driver libcuda1 libnvidia-ml1";
        assert_eq!(matching(driver), driver);
        let others = "nvidia-container-toolkit nvidia-container-toolkit-base libnvidia-container1 libnvidia-container-tools nvidia-cuda-toolkit nvidia-cuda-dev nvidia-docker2 libcudart12";
        assert_eq!(matching(others), "");
    }

    #[test]
    fn an_update_without_a_restart_names_what_is_loaded() {
        let mut facts = without(Missing::VersionMismatch, Some(0));
        facts.kernel.module = Some("570.86.10".to_owned());
        let (level, title) = summary(&facts);
        assert_eq!(level, Level::Wrong);
        assert_eq!(title, "the driver was updated without a restart (the kernel has 570.86.10 loaded)");
    }
}
