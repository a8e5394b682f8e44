//! Settings of the allocator that do harm, or nothing, in this version or place.
//!
//! Wrong: `max_split_size_mb` with `expandable_segments` (memory grows without bound, pytorch/pytorch#123548). Notes: a
//! `garbage_collection_threshold` without a limit, which does nothing; `max_split_size_mb` in 2.5 to 2.8 (a block is read after
//! it is freed, #162269); expandable segments on WSL (the first allocation fails on some cards, #192330), in containers (sharing CUDA
//! tensors between processes needs pidfd_getfd, and that the capability SYS_PTRACE, #165685), with MemPools in 2.7 to 2.9, and on
//! ROCm before 2.12; the driver's own allocator; a limit on PyTorch's share of the card.

use super::allocator_settings::rules;
use super::allocator_variable::in_force;
use crate::facts::Facts;
use crate::finding::Finding;
use oomph_host::Surroundings;
use oomph_settings::conf::{Conf, ConfError};
use oomph_words::bytes;

pub(super) fn look(facts: &Facts) -> Vec<Finding> {
    let (Some((name, value)), Some(version)) = (in_force(facts), rules(facts)) else { return Vec::new() };
    let conf = match Conf::parse(value, version) {
        Ok(conf) => conf,
        Err(ConfError::NotNative) => return vec![not_native(value)],
        Err(_) => return Vec::new(),
    };
    let note = |title: String| Finding::note("allocator", title);
    let torch =
        facts.torch().map_or_else(|| "PyTorch".to_owned(), |torch| format!("PyTorch {}", torch.version));
    let minor = version.minor;
    let mut findings = Vec::new();
    if conf.max_split_size.is_some() && conf.expandable_segments {
        findings.push(
            Finding::wrong("allocator", "max_split_size_mb with expandable_segments makes memory grow without bound")
                .means(format!("In {torch}, freed blocks above that size are not found again, and more is taken each time (pytorch/pytorch#123548)."))
                .fix("keep expandable_segments, which alone does what the other is for")
                .command(format!("export {name}=expandable_segments:True")),
        );
    } else if conf.max_split_size.is_some() && (5..=8).contains(&minor) {
        findings.push(
            note(format!("max_split_size_mb in {torch} reads a block after it is freed"))
                .means("It happens when memory runs short, and may crash (pytorch/pytorch#162269, mended in 2.9).")
                .fix("update PyTorch, or use expandable_segments instead")
                .command(format!("export {name}=expandable_segments:True")),
        );
    }
    if conf.garbage_collection_threshold > 0.0 {
        if conf.per_process_memory_fraction >= 1.0 {
            let needs = if minor >= 10 {
                "per_process_memory_fraction below 1"
            } else {
                "torch.cuda.set_per_process_memory_fraction"
            };
            findings.push(
                note(format!("garbage_collection_threshold:{} does nothing without a limit", conf.garbage_collection_threshold))
                    .means(format!("It is a share of what the process may take, and counts only where that is limited ({needs})."))
                    .fix("leave it away, or set a limit; see what helps")
                    .command("oomph tune recording.oomph"),
            );
        } else if conf.expandable_segments {
            findings.push(
                note("garbage_collection_threshold does nothing with expandable_segments".to_owned())
                    .means("Expandable segments are never given back by it."),
            );
        }
    }
    if conf.per_process_memory_fraction < 1.0 {
        let share = conf.per_process_memory_fraction;
        let of = facts.visible().first().map_or_else(String::new, |card| {
            format!(": {} of {}", bytes((share * card.total as f64) as u64), bytes(card.total))
        });
        findings.push(
            note(format!("PyTorch may take {:.0} % of the card{of}", share * 100.0))
                .means("Beyond that it says that it is out of memory, however much is free.")
                .fix("leave per_process_memory_fraction away, unless you share the card on purpose"),
        );
    }
    if conf.expandable_segments {
        findings.extend(expandable(facts, &torch, minor));
    }
    findings
}

fn expandable(facts: &Facts, torch: &str, minor: u32) -> Vec<Finding> {
    let note = |title: String| Finding::note("allocator", title);
    let is_rocm = facts.torch().is_some_and(|torch| torch.hip.is_some());
    let mut findings = Vec::new();
    if facts.is_in(Surroundings::Wsl) {
        findings.push(
            note("expandable_segments fails on some cards in WSL".to_owned())
                .means("The first allocation ends with \"CUDA driver error: unknown error\" (pytorch/pytorch#192330).")
                .fix("if you see that, leave it away"),
        );
    } else if facts.is_in(Surroundings::Container) || facts.is_in(Surroundings::Kubernetes) {
        findings.push(
            note("expandable_segments in a container: CUDA tensors may not be shared between processes".to_owned())
                .means("A process takes such a tensor over with the call pidfd_getfd, which containers allow only with the capability SYS_PTRACE: \"pidfd_getfd: Operation not permitted\" (pytorch/pytorch#165685). DataLoaders that hand over CPU tensors, and DDP, do not need it.")
                .fix("if you share CUDA tensors between processes, allow it")
                .command(if facts.is_in(Surroundings::Kubernetes) {
                    "securityContext: {capabilities: {add: [SYS_PTRACE]}}"
                } else {
                    "docker run --cap-add SYS_PTRACE …"
                }),
        );
    }
    if (7..=9).contains(&minor) {
        let which = if minor == 7 {
            "any torch.cuda.MemPool"
        } else {
            "a torch.cuda.MemPool with an allocator of its own"
        };
        findings.push(
            note(format!("expandable_segments in {torch} makes {which} raise"))
                .means("From 2.10 on they work side by side.")
                .fix("update PyTorch if you use memory pools"),
        );
    }
    if is_rocm && minor < 12 {
        findings.push(
            note(format!("expandable_segments does nothing in {torch}"))
                .means("Builds with ROCm have it from 2.12 on."),
        );
    }
    findings
}

fn not_native(value: &str) -> Finding {
    let others = value.split(',').filter(|part| !part.trim().starts_with("backend")).count();
    let ignored = if others > 0 {
        " The other settings are those of PyTorch's own allocator, and are ignored."
    } else {
        ""
    };
    Finding::note("allocator", "backend:cudaMallocAsync: the driver's own allocator is used")
        .means(format!(
            "It cannot be recorded, explained or replayed: PyTorch keeps no account of it.{ignored}"
        ))
        .fix("to see where memory goes, leave it away")
        .command("unset PYTORCH_CUDA_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF PYTORCH_ALLOC_CONF")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::test_fixtures::{machine, summary, with_settings, with_torch};
    use crate::finding::Level::{Note, Wrong};

    fn with(version: &str, value: &str) -> Facts {
        let mut facts = with_settings(machine(), &[("PYTORCH_CUDA_ALLOC_CONF", value)]);
        facts.python = Ok(with_torch(version, Some("12.8")));
        facts
    }

    #[test]
    fn settings_that_help_are_left_alone() {
        for value in ["expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:8"] {
            assert!(look(&with("2.11.0", value)).is_empty(), "{value}");
        }
    }

    #[test]
    fn settings_that_do_harm_are_named_with_the_version() {
        let findings = look(&with("2.11.0", "expandable_segments:True,max_split_size_mb:128"));
        assert_eq!(
            summary(&findings),
            [(Wrong, "max_split_size_mb with expandable_segments makes memory grow without bound")]
        );
        assert!(findings[0].means.as_deref().unwrap().contains("PyTorch 2.11.0"));
        assert_eq!(
            findings[0].command.as_deref(),
            Some("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
        );
        let title = "max_split_size_mb in PyTorch 2.7.1 reads a block after it is freed";
        assert_eq!(summary(&look(&with("2.7.1", "max_split_size_mb:128"))), [(Note, title)]);
        let title = "expandable_segments in PyTorch 2.7.1 makes any torch.cuda.MemPool raise";
        assert_eq!(summary(&look(&with("2.7.1", "expandable_segments:True"))), [(Note, title)]);
    }

    #[test]
    fn settings_that_do_nothing_are_said_to() {
        let title = "garbage_collection_threshold:0.8 does nothing without a limit";
        assert_eq!(summary(&look(&with("2.11.0", "garbage_collection_threshold:0.8"))), [(Note, title)]);
        let limited = "garbage_collection_threshold:0.8,per_process_memory_fraction:0.5";
        assert_eq!(
            summary(&look(&with("2.11.0", limited))),
            [(Note, "PyTorch may take 50 % of the card: 7.50 GiB of 15.0 GiB")]
        );
        let findings = look(&with("2.11.0", "backend:cudaMallocAsync,max_split_size_mb:64"));
        assert!(findings[0].means.as_deref().unwrap().ends_with("are ignored."), "{findings:?}");
    }

    #[test]
    fn places_matter() {
        let mut facts = with("2.11.0", "expandable_segments:True");
        facts.environment.surroundings = vec![Surroundings::Wsl];
        assert_eq!(summary(&look(&facts)), [(Note, "expandable_segments fails on some cards in WSL")]);
        facts.environment.surroundings = vec![Surroundings::Container];
        assert!(look(&facts)[0].title.contains("in a container"));
    }
}
