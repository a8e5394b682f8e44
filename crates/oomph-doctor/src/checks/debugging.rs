//! Variables for debugging that were left on.
//!
//! Wrong: `PYTORCH_NO_CUDA_MEMORY_CACHING`, with which every tensor is a call to the driver. Notes: `CUDA_LAUNCH_BLOCKING=1`, with
//! which the processor waits for each kernel, and `CUDA_MODULE_LOADING=EAGER`, with which a context holds all kernels of
//! all libraries, hundreds of MiB, used or not.

use crate::facts::Facts;
use crate::finding::Finding;

pub(super) fn look(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    // Older versions take any value, 0 too, for a yes.
    if facts.settings.get("PYTORCH_NO_CUDA_MEMORY_CACHING").is_some() {
        findings.push(
            Finding::wrong("allocator", "PYTORCH_NO_CUDA_MEMORY_CACHING is set: PyTorch's allocator is off")
                .means("Every tensor is taken from the driver and given back to it, which waits for the GPU: programs are many times slower.")
                .fix("it is for memory checkers; unset it")
                .command("unset PYTORCH_NO_CUDA_MEMORY_CACHING"),
        );
    }
    if facts.settings.is_on("CUDA_LAUNCH_BLOCKING") {
        findings.push(
            Finding::note("debugging", "CUDA_LAUNCH_BLOCKING=1: the processor waits for every kernel")
                .means("Errors come with the right line, and programs are slower.")
                .fix("unset it when you are done")
                .command("unset CUDA_LAUNCH_BLOCKING"),
        );
    }
    if facts.settings.get("CUDA_MODULE_LOADING").is_some_and(|value| value.eq_ignore_ascii_case("EAGER")) {
        findings.push(
            Finding::note("debugging", "CUDA_MODULE_LOADING=EAGER: a context takes hundreds of MiB more")
                .means("All kernels of all libraries are loaded, used or not. LAZY is what CUDA does by itself since 12.2.")
                .fix("unset it")
                .command("unset CUDA_MODULE_LOADING"),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::test_fixtures::{machine, summary, with_settings};
    use crate::finding::Level::{Note, Wrong};

    #[test]
    fn what_was_left_on_is_said() {
        let on = [
            ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),
            ("CUDA_LAUNCH_BLOCKING", "1"),
            ("CUDA_MODULE_LOADING", "EAGER"),
        ];
        let facts = with_settings(machine(), &on);
        let findings = look(&facts);
        let levels: Vec<_> = summary(&findings).iter().map(|(level, _)| *level).collect();
        assert_eq!(levels, [Wrong, Note, Note]);
        let off = [("CUDA_LAUNCH_BLOCKING", "0"), ("CUDA_MODULE_LOADING", "LAZY")];
        assert!(look(&with_settings(machine(), &off)).is_empty());
    }
}
