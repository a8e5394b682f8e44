//! Libraries that are put under programs, or before PyTorch's own.
//!
//! A note if LD_LIBRARY_PATH has a CUDA of its own; wrong if its libnvJitLink is taken by the libraries of a PyTorch before 2.6:
//! "undefined symbol: __nvJitLinkComplete_12_4" (pytorch/pytorch#134929, #140797). A note for what LD_PRELOAD puts under programs.

use super::listed;
use crate::facts::Facts;
use crate::finding::{Finding, Level};
use crate::settings::LibraryFolder;

pub(super) fn look(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    if facts.torch_has_cuda() {
        findings.extend(facts.settings.library_folders.iter().map(|folder| before(facts, folder)));
    }
    let ours = |name: &&String| {
        // The virtual GPU's, and those that `oomph run` records with.
        let is_virtual = facts.sample.gpus.cards.iter().any(|card| card.is_virtual);
        name.starts_with("liboomph_")
            || is_virtual && (name.starts_with("libcuda.") || name.starts_with("libcublasLt."))
    };
    let foreign: Vec<String> = facts.settings.preloaded.iter().filter(|name| !ours(name)).cloned().collect();
    if !foreign.is_empty() {
        findings.push(
            Finding::note("libraries", format!("LD_PRELOAD puts {} under every program", listed(&foreign)))
                .means("An allocator that is put there (jemalloc, tcmalloc) changes what RAM a program keeps; anything else may change what it does.")
                .fix("if you do not know why it is there, try without it")
                .command("unset LD_PRELOAD"),
        );
    }
    findings
}

fn before(facts: &Facts, folder: &LibraryFolder) -> Finding {
    let built = facts.torch().and_then(|torch| torch.cuda_numbers());
    let same_major = |name: &String| {
        let major: Option<u32> = name.rsplit('.').next().and_then(|number| number.parse().ok());
        name.starts_with("libcudart.") && major == built.map(|(major, _)| major)
    };
    // PyTorch asks for libnvJitLink.so.12 through a library that looks here first.
    let breaks = folder.libraries.iter().any(|name| name.starts_with("libnvJitLink."))
        && folder.libraries.iter().any(same_major)
        // From 2.6 on PyTorch loads its own before anybody asks.
        && facts.torch_version().is_some_and(|version| (version.major, version.minor) < (2, 6));
    let level = if breaks { Level::Wrong } else { Level::Note };
    let names: Vec<String> = folder.libraries.iter().take(3).cloned().collect();
    Finding::at(
        level,
        "libraries",
        format!("LD_LIBRARY_PATH has a CUDA of its own: {}", folder.path.display()),
    )
    .means(format!(
        "Found in it before PyTorch's own: {}{}.",
        names.join(", "),
        if folder.libraries.len() > names.len() { " and others" } else { "" }
    ))
    .fix("PyTorch's wheels bring their own CUDA: leave the variable away")
    .command("unset LD_LIBRARY_PATH")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::test_fixtures::{machine, summary, with_torch};
    use crate::finding::Level::{Note, Wrong};

    fn folder(libraries: &[&str]) -> LibraryFolder {
        LibraryFolder {
            path: "/usr/local/cuda-12.1/lib64".into(),
            libraries: libraries.iter().map(|&name| name.to_owned()).collect(),
        }
    }

    #[test]
    fn another_cuda_is_a_note_and_wrong_where_it_breaks_the_import() {
        let mut facts = machine();
        assert!(look(&facts).is_empty());
        facts.settings.library_folders = vec![folder(&["libcudart.so.12", "libnvJitLink.so.12"])];
        let title = "LD_LIBRARY_PATH has a CUDA of its own: /usr/local/cuda-12.1/lib64";
        assert_eq!(summary(&look(&facts)), [(Note, title)]);
        facts.python = Ok(with_torch("2.5.1+cu124", Some("12.4")));
        assert_eq!(summary(&look(&facts)), [(Wrong, title)]);
        facts.python = Ok(with_torch("2.5.1+cpu", None));
        assert!(look(&facts).is_empty(), "no program asks for it");
    }

    #[test]
    fn what_is_preloaded_is_named_but_for_our_own() {
        let mut facts = machine();
        facts.settings.preloaded = vec!["libjemalloc.so.2".to_owned(), "liboomph_record.so".to_owned()];
        assert_eq!(summary(&look(&facts)), [(Note, "LD_PRELOAD puts libjemalloc.so.2 under every program")]);
        facts.settings.preloaded = vec!["liboomph_cuda.so".to_owned(), "libcuda.so.1".to_owned()];
        facts.sample.gpus.cards[0].is_virtual = true;
        assert!(look(&facts).is_empty());
    }
}
