//! What is true of this machine, and what to do about it.
//!
//! [`Facts`] are gathered once: cards, RAM, processes, the kernel's limits, the environment's settings, and what the chosen
//! Python has installed. Each of the [`checks`] looks at them and gives [`Finding`]s; [`examine`] runs all. Rendering is
//! another crate's business.
//!
//! Arrows inside: `kernel`, `settings`, `python` (where facts come from) ← `facts` (all of them; `hidden` takes names out) ←
//! `checks` (one thing each).
//!
//! Nothing is changed, no CUDA context is made, and PyTorch is not imported unless that is asked for ([`Gather::deep`]). What
//! leaves the machine (JSON and Markdown, for bug reports) is made of facts without names, so that a check cannot tell
//! what is private.

pub mod checks;
mod facts;
mod finding;
mod hidden;
mod kernel;
mod python;
mod settings;

pub use facts::{Facts, Gather};
pub use finding::{Finding, Level};
pub use kernel::{Kernel, Limits};
pub use python::{Deep, DeepDevice, Python, Torch};
pub use settings::{LibraryFolder, NAMES, Settings};

/// What all checks found: what is wrong first, then what is worth knowing, then what is fine.
pub fn examine(facts: &Facts) -> Vec<Finding> {
    let mut findings: Vec<Finding> = (checks::ALL.iter())
        .flat_map(|check| {
            (check.look)(facts).into_iter().map(|finding| Finding { check: check.name(), ..finding })
        })
        .collect();
    findings.sort_by_key(|finding| finding.level);
    findings
}
