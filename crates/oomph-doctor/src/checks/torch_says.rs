//! How far PyTorch itself comes with its devices (only with `--deep`).
//!
//! It is imported, starts CUDA, and on each device makes a context, allocates, runs a kernel and copies back. Wrong if one of
//! these stages fails, which is then named with its error; that there is no device is fine where there is no card that programs
//! see.

use super::allocator_variable::in_force;
use crate::deep::{
    Failure, NO_KERNEL_IMAGE, NO_LIBRARY, NOT_YET_INITIALIZED, Stage, UNDEFINED_SYMBOL, UNKNOWN_ERROR,
    UNSUPPORTED_TOOLCHAIN,
};
use crate::facts::Facts;
use crate::finding::Finding;
use crate::wheels::{NO_WHEELS, Wheels, same_again};
use oomph_words::bytes;

pub(super) fn look(facts: &Facts) -> Vec<Finding> {
    let Some(deep) = &facts.deep else { return Vec::new() };
    if let Some(failure) = &deep.failure {
        let has_none = failure.stage == Stage::DriverStart && facts.visible().is_empty();
        if !has_none {
            return vec![failed(facts, failure)];
        }
    }
    let devices: Vec<String> = (deep.devices.iter())
        .map(|device| format!("{} with {} of {} free", device.name, bytes(device.free), bytes(device.total)))
        .collect();
    let seen = if devices.is_empty() { "no device".to_owned() } else { devices.join("; ") };
    vec![Finding::fine("torch", format!("PyTorch sees {seen}"))]
}

fn failed(facts: &Facts, failure: &Failure) -> Finding {
    let what = match failure.stage {
        Stage::Import => "PyTorch cannot be imported",
        Stage::DriverStart => "PyTorch cannot start CUDA",
        Stage::Context => "PyTorch cannot make a context",
        Stage::Allocation => "PyTorch's first allocation fails",
        Stage::Kernel => "PyTorch's first kernel fails",
        Stage::CopyBack => "PyTorch's first copy back from the device fails",
    };
    let on = failure.device.map(|device| format!(" on cuda:{device}")).unwrap_or_default();
    let finding = Finding::wrong("torch", format!("{what}{on}: {}", failure.why));
    let says = |words: &str| failure.why.contains(words);
    match failure.stage {
        Stage::Import if says(UNDEFINED_SYMBOL) || says(NO_LIBRARY) => finding
            .means("A library is missing, or is of another version than PyTorch was built with.")
            .fix("install PyTorch with its own packages")
            .command(same_again(facts)),
        Stage::Import => {
            finding.fix("see the whole error").command(script(facts, "import torch"))
        }
        Stage::DriverStart if says(NOT_YET_INITIALIZED) => finding
            .means("Cards that are joined by NVSwitch wait for the service that sets up the joints.")
            .fix("start it; its version must be the driver's")
            .command("sudo systemctl restart nvidia-fabricmanager"),
        Stage::DriverStart if says(UNKNOWN_ERROR) => finding
            .means("After a machine has slept, or after an update, the driver's module for CUDA often must be loaded anew.")
            .fix("load it anew, or restart")
            .command("sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm"),
        Stage::DriverStart => finding
            .means("torch.cuda.is_available() is False, and the driver has a card. What else is said here may be why.")
            .fix("see whether NVIDIA's own tool says more")
            .command("nvidia-smi"),
        Stage::Context => finding
            .means("The card is full, takes one process at a time and has one, or must be reset.")
            .fix("see who is on it")
            .command("nvidia-smi"),
        Stage::Allocation if in_force(facts).is_some() => finding
            .means("The card has room for a context and not for one tensor, or the allocator's settings do not work here.")
            .fix("try without the settings")
            .command(format!(
                "env -u PYTORCH_ALLOC_CONF -u PYTORCH_CUDA_ALLOC_CONF -u PYTORCH_HIP_ALLOC_CONF {}",
                script(facts, "import torch; torch.empty(1, device='cuda')")
            )),
        Stage::Allocation => finding
            .means("The card has room for a context and not for one tensor.")
            .fix("see who is on it")
            .command("nvidia-smi"),
        Stage::Kernel if says(NO_KERNEL_IMAGE) || says(UNSUPPORTED_TOOLCHAIN) => {
            let finding = finding.means("This build has no kernels that the card and its driver can run.");
            match Wheels::best(facts) {
                Some(wheels) => finding.fix(wheels.fix(facts)).command(wheels.command(facts)),
                None => finding.fix(NO_WHEELS),
            }
        }
        Stage::Kernel | Stage::CopyBack => finding
            .means("The card or its driver is at fault: memory was taken, and working with it fails.")
            .fix("see what the kernel says of it; a restart often helps")
            .command("sudo dmesg | grep -i -e nvrm -e xid | tail"),
    }
}

fn script(facts: &Facts, code: &str) -> String {
    format!("{} -c \"{code}\"", facts.interpreter())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::test_fixtures::{GIB, machine, summary, with_settings};
    use crate::deep::{Deep, DeepDevice};
    use crate::finding::Level::{Fine, Wrong};

    fn failing(stage: Stage, device: Option<u32>, why: &str) -> Facts {
        let mut facts = machine();
        facts.deep =
            Some(Deep { failure: Some(Failure { stage, device, why: why.to_owned() }), ..Deep::default() });
        facts
    }

    #[test]
    fn what_pytorch_sees_is_reported() {
        let mut facts = machine();
        assert!(look(&facts).is_empty());
        facts.deep = Some(Deep::default());
        assert_eq!(summary(&look(&facts)), [(Fine, "PyTorch sees no device")], "a build without CUDA");
        let device = DeepDevice { name: "Tesla T4".to_owned(), free: 14 * GIB, total: 15 * GIB };
        facts.deep = Some(Deep { devices: vec![device], failure: None });
        assert_eq!(summary(&look(&facts)), [(Fine, "PyTorch sees Tesla T4 with 14.0 GiB of 15.0 GiB free")]);
    }

    #[test]
    fn cuda_that_does_not_start_is_wrong_only_where_there_is_a_card() {
        let mut facts = failing(Stage::DriverStart, None, "RuntimeError: No CUDA GPUs are available");
        let title = "PyTorch cannot start CUDA: RuntimeError: No CUDA GPUs are available";
        assert_eq!(summary(&look(&facts)), [(Wrong, title)]);
        facts.settings.values.insert("CUDA_VISIBLE_DEVICES", String::new());
        assert_eq!(summary(&look(&facts)), [(Fine, "PyTorch sees no device")]);
    }

    #[test]
    fn each_stage_is_named_with_its_error_and_what_to_do() {
        for (stage, device, why, title, command) in [
            (
                Stage::Import,
                None,
                "ImportError: no",
                "PyTorch cannot be imported: ImportError: no",
                "/venv/bin/python -c",
            ),
            (
                Stage::Import,
                None,
                "ImportError: x.so: undefined symbol: y",
                "PyTorch cannot be imported: ImportError: x.so: undefined symbol: y",
                "/venv/bin/python -m pip",
            ),
            (
                Stage::DriverStart,
                None,
                "RuntimeError: CUDA unknown error - x",
                "PyTorch cannot start CUDA: RuntimeError: CUDA unknown error - x",
                "sudo rmmod nvidia_uvm",
            ),
            (
                Stage::DriverStart,
                None,
                "RuntimeError: 802: system not yet initialized",
                "PyTorch cannot start CUDA: RuntimeError: 802: system not yet initialized",
                "sudo systemctl",
            ),
            (
                Stage::Context,
                Some(1),
                "no answer in 120 s",
                "PyTorch cannot make a context on cuda:1: no answer in 120 s",
                "nvidia-smi",
            ),
            (Stage::Allocation, Some(0), "x", "PyTorch's first allocation fails on cuda:0: x", "nvidia-smi"),
            (
                Stage::Kernel,
                Some(0),
                "no kernel image is available",
                "PyTorch's first kernel fails on cuda:0: no kernel image is available",
                "/venv/bin/python -m pip",
            ),
            (Stage::Kernel, Some(0), "x", "PyTorch's first kernel fails on cuda:0: x", "sudo dmesg"),
            (
                Stage::CopyBack,
                Some(0),
                "x",
                "PyTorch's first copy back from the device fails on cuda:0: x",
                "sudo dmesg",
            ),
        ] {
            let findings = look(&failing(stage, device, why));
            assert_eq!(summary(&findings), [(Wrong, title)]);
            let shown = findings[0].command.as_deref().unwrap();
            assert!(shown.starts_with(command), "{shown}");
        }
    }

    #[test]
    fn a_report_without_names_gives_the_same_advice() {
        for (stage, why, hidden) in [
            (Stage::Import, "ImportError: no /home/alice", "ImportError"),
            (Stage::Import, "ImportError: /alice/x.so: undefined symbol: y", "ImportError: undefined symbol"),
            (
                Stage::Import,
                "OSError: /alice/x.so: cannot open shared object file: No such file or directory",
                "OSError: cannot open shared object file",
            ),
            (Stage::Import, "there is no such program", "there is no such program"),
            (Stage::DriverStart, "RuntimeError: CUDA unknown error - alice", "RuntimeError: unknown error"),
            (
                Stage::DriverStart,
                "RuntimeError: Error 802: system not yet initialized",
                "RuntimeError: system not yet initialized",
            ),
            (Stage::DriverStart, "alice was here", "an error"),
            (Stage::Context, "no answer in 120 s", "no answer in 120 s"),
            (
                Stage::Allocation,
                "torch.OutOfMemoryError: CUDA out of memory",
                "OutOfMemoryError: out of memory",
            ),
            (
                Stage::Kernel,
                "AcceleratorError: CUDA error: no kernel image is available",
                "AcceleratorError: no kernel image",
            ),
            (
                Stage::Kernel,
                "RuntimeError: the provided PTX was compiled with an unsupported toolchain.",
                "RuntimeError: unsupported toolchain",
            ),
            (Stage::Kernel, "it ended with signal: 11 (SIGSEGV)", "it ended with signal: 11 (SIGSEGV)"),
            (
                Stage::CopyBack,
                "it ended with signal: 6 (SIGABRT) (core dumped)",
                "it ended with signal: 6 (SIGABRT) (core dumped)",
            ),
            (Stage::CopyBack, "it ended without an error message", "it ended without an error message"),
            (Stage::CopyBack, "it ended with alice", "an error"),
        ] {
            let facts = failing(stage, None, why);
            let ([named], [nameless]) = (&look(&facts)[..], &look(&facts.without_names())[..]) else {
                panic!("one finding each: {why}");
            };
            assert!(nameless.title.ends_with(&format!(": {hidden}")), "{}", nameless.title);
            assert_eq!((&nameless.check, nameless.level), (&named.check, named.level), "{why}");
            assert_eq!((&nameless.means, &nameless.fix), (&named.means, &named.fix), "{why}");
            let command = named.command.as_deref().unwrap().replace("/venv/bin/python", "python");
            assert_eq!(nameless.command.as_deref(), Some(command.as_str()), "{why}");
        }
    }

    #[test]
    fn settings_are_suspected_where_there_are_some() {
        let facts = failing(Stage::Allocation, Some(0), "RuntimeError: CUDA driver error: unknown error");
        let facts = with_settings(facts, &[("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")]);
        assert!(look(&facts)[0].command.as_deref().unwrap().starts_with("env -u PYTORCH_ALLOC_CONF"));
    }
}
