//! RAM grows for as long as the program runs: a line makes blocks again and again, and none of them is freed.
//!
//! ## What it sees
//!
//! A line of your own code that holds more at nearly each of ten moments, at equal distances from its first block to the end, falls at none of them, and has ever
//! more blocks alive: a list, a dictionary or a cache that is added to and never emptied. Where steps of PyTorch's optimizers are known, the moments are ends of
//! steps, from the second on, and what is held then is compared: it grows from step to step, however long each takes. Lines that hold one block that becomes larger are in the report's growth, but no finding.
//!
//! ## What to do
//!
//! Keep what is needed only: a number instead of its tensor (`.item()`), a cache with a bound (`functools.lru_cache(maxsize=…)`), results on the disk. A program that
//! only loads what it needs grows too: then the growth ends when all is there, or the data is too large, and `oomph.data.stream` reads it in pieces.
//! `oomph.guard_ram()` raises a `MemoryError` before the machine kills the program.
//!
//! ## How the numbers come about
//!
//! Bytes, blocks, steps and times are measured (of small blocks they are estimates, and their error stands beside them). Without steps it is a note in a recording of less than a minute, for loading looks the same.

use super::super::context::HostContext;
use super::matters;
use crate::finding::{Basis, Finding, Fix, Grade, Place, Severity, Where};
use oomph_words::{bytes, grouped};

pub(crate) const CODE: &str = "OM503";

/// So many blocks more than at the beginning: again and again.
const LEAST_BLOCKS: u64 = 8;
/// What grows for less than this may be loading.
const LONG: f64 = 60.0;

pub(crate) fn check(context: &HostContext) -> Vec<Finding> {
    let growing: Vec<_> = (context.growth.iter())
        .map(|(_, growth)| growth)
        .filter(|growth| growth.blocks >= LEAST_BLOCKS && matters(growth.bytes, context.peak()))
        .collect();
    let Some(first) = growing.first() else { return Vec::new() };
    let places: Vec<Where> = (growing.iter())
        .map(|growth| Where {
            place: growth.place.clone().unwrap_or(Place::NoStack),
            bytes: growth.bytes,
            count: growth.blocks,
        })
        .collect();
    let all = growing.iter().fold(0u64, |sum, growth| sum.saturating_add(growth.bytes));
    // By step if all of them are known by step.
    let by_step: Option<Vec<u64>> = growing.iter().map(|growth| growth.per_step()).collect();
    let over = first.steps.filter(|_| by_step.is_some());
    let rates = by_step.unwrap_or_else(|| growing.iter().map(|growth| growth.per_second()).collect());
    let rate = rates.into_iter().fold(0u64, u64::saturating_add);
    let lines = match growing.len() {
        1 => places[0].place.short(),
        more => format!("{more} lines, most of it at {}", places[0].place.short()),
    };
    let is_sure = over.is_some() || first.seconds >= LONG;
    let severity = if is_sure { Severity::Warning } else { Severity::Note };
    let (each, span) = match over {
        Some(steps) => ("step", format!("over steps {} to {}", steps.first, steps.last)),
        None => ("second", format!("in {:.0} s", first.seconds)),
    };
    let error = match first.error {
        0 => String::new(),
        error => format!(" (± {} at the first)", bytes(error)),
    };
    let finding = Finding::new(
        CODE,
        severity,
        format!("RAM grows by {} a {each} and nothing of it is freed, at {lines}", bytes(rate)),
    )
    .because(format!(
        "{} more{error} {span}, in {} blocks more",
        bytes(all),
        grouped(growing.iter().fold(0u64, |sum, growth| sum.saturating_add(growth.blocks)))
    ))
    .at(places)
    .saves(all, Basis::Measured, "what was added while it was recorded")
    .fix(Fix::new(Grade::Safe, "keep what is needed only, or write results to the disk"))
    .fix(
        Fix::new(Grade::Safe, "get a MemoryError before the machine kills the program")
            .code("import oomph; oomph.guard_ram()"),
    );
    vec![finding]
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{MIB, Program};
    use super::CODE;
    use oomph_trace::How;

    #[test]
    fn a_list_that_is_never_emptied_is_found() {
        let mut program = Program::default();
        let line = program.line("serve.py", 12);
        for _ in 0..200 {
            program.alloc(How::Large, MIB, line);
            program.wait(1_000_000);
        }
        let found = program.found(CODE);
        assert_eq!(found[0].severity.name(), "warning");
        assert!(
            found[0].title.ends_with("nothing of it is freed, at serve.py:12 main"),
            "{}",
            found[0].title
        );
    }

    #[test]
    fn where_steps_are_known_it_grows_by_step_and_is_a_warning() {
        let mut program = Program::default();
        let line = program.line("train.py", 7);
        for step in 1..=50u64 {
            program.alloc(How::Large, 12 * MIB, line);
            program.wait(1000);
            program.step(step);
        }
        let found = program.found(CODE);
        assert_eq!(found[0].severity.name(), "warning");
        assert_eq!(
            found[0].title,
            "RAM grows by 12.0 MiB a step and nothing of it is freed, at train.py:7 main"
        );
        assert_eq!(found[0].details, ["576 MiB more over steps 3 to 50, in 48 blocks more"]);
    }

    #[test]
    fn one_block_that_becomes_larger_and_a_full_cache_are_none() {
        let mut program = Program::default();
        let (line, cache) = (program.line("serve.py", 12), program.line("serve.py", 20));
        let mut last = None;
        for round in 1..=200u64 {
            if let Some(last) = last {
                program.free(last);
            }
            last = Some(program.alloc(How::Large, round * MIB, line));
            if round < 40 {
                program.alloc(How::Large, MIB, cache);
            }
            program.wait(1_000_000);
        }
        assert_eq!(program.explained().growth.len(), 1);
        assert!(program.found(CODE).is_empty());
    }
}
