//! Memory that the program has freed is not given back to the machine.
//!
//! ## What it sees
//!
//! After the peak the program gives much back, but the kernel still counts it as the process's own, for seconds: what the C library and other allocators keep for later, in pieces between blocks
//! that are still alive. The machine can give it to nobody else, and what kills a process for its memory counts it.
//!
//! ## What to do
//!
//! `oomph.host.trim()` gives back what can be given back, after a large thing was freed. Many threads that take and free leave their share in arenas of their own: `oomph.host.arenas(2)` at the
//! beginning of the program. Work that takes much for a moment can be done in a process of its own, which gives all of it back when it ends.
//!
//! ## How the numbers come about
//!
//! The difference of two measured numbers: what the kernel counts, and what was asked for and not given back then, less what the difference had been until the peak: libraries and rounding are in it already.
//! It counts if it lasts a second and a twentieth of the recording: at its end, every program frees what it has. How much of it can be given back depends on where the last blocks lie.

use super::super::context::{Counted, HostContext};
use super::super::kernel::own;
use super::matters;
use crate::finding::{Basis, Finding, Fix, Grade, Severity};
use oomph_words::{bytes, percent};

pub(crate) const CODE: &str = "OM506";

/// So long it must last, in microseconds, and as a share of the recording.
const LASTS: f64 = 1e6;
const LASTS_SHARE: f64 = 0.05;
/// So much of what the kernel counts then is not asked for.
const LEAST_SHARE: f64 = 0.3;
/// Above this, it is a warning.
const MUCH: f64 = 0.5;

pub(crate) fn check(context: &HostContext) -> Vec<Finding> {
    let counted = context.counted();
    // The first of several: what the kernel counts may never go down again.
    let Some((highest, peak)) = counted.iter().enumerate().rev().max_by_key(|(_, one)| one.asked) else {
        return Vec::new();
    };
    let before = counted.iter().take(highest + 1).map(Counted::beyond).max().unwrap_or(0);
    let highest_own = own(&peak.resident);
    // What is kept at a moment, if it is much.
    let kept = |one: &Counted| {
        let kept = one.beyond().saturating_sub(before);
        let share = kept as f64 / own(&one.resident).max(1) as f64;
        (matters(kept, highest_own) && share >= LEAST_SHARE).then_some(kept)
    };
    let least = LASTS.max(LASTS_SHARE * context.duration() as f64);
    let mut best: Option<(u64, &Counted, f64)> = None;
    let mut run: Option<(i64, u64)> = None;
    for one in counted.iter().skip(highest) {
        let Some(here) = kept(one) else {
            run = None;
            continue;
        };
        let (begun, smallest) =
            run.map_or((one.resident.time, here), |(begun, least)| (begun, least.min(here)));
        run = Some((begun, smallest));
        let lasted = one.resident.time.saturating_sub(begun) as f64;
        if lasted >= least && best.is_none_or(|(bytes, _, _)| smallest >= bytes) {
            best = Some((smallest, one, lasted / 1e6));
        }
    }
    let Some((held, one, seconds)) = best else { return Vec::new() };
    let counted_then = own(&one.resident);
    let title = format!(
        "{} that the program has freed are not given back to the machine ({} of what the kernel counts then)",
        bytes(held),
        percent(held, counted_then)
    );
    let much = held as f64 >= MUCH * counted_then as f64;
    let finding = Finding::new(CODE, if much { Severity::Warning } else { Severity::Note }, title)
        .because(format!(
            "for {seconds:.0} s and more: the kernel counts {} of the process's own where {} are asked for; at the peak, {} where {} were",
            bytes(counted_then),
            bytes(one.asked),
            bytes(highest_own),
            bytes(peak.asked)
        ))
        .saves(held, Basis::Measured, "what the kernel counts beyond what is asked for, after the peak")
        .fix(Fix::new(Grade::Safe, "give it back after a large thing was freed").code("oomph.host.trim()"))
        .fix(
            Fix::new(Grade::Safe, "keep the C library to few arenas, at the beginning of a program of many threads")
                .code("oomph.host.arenas(2)"),
        );
    vec![finding]
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{MIB, Program};
    use super::CODE;
    use oomph_trace::How;

    /// A program that takes 600 MiB and frees 500 of them, of which the kernel gets `back`; for so long.
    fn program(back: u64, seconds: i64) -> Program {
        let mut program = Program::default();
        let line = program.line("serve.py", 5);
        let blocks: Vec<u64> = (0..600).map(|_| program.alloc(How::Sampled, MIB, line)).collect();
        program.wait(3_000_000);
        program.counted(650 * MIB);
        program.wait(1);
        blocks[..500].iter().for_each(|&address| program.free(address));
        for _ in 0..seconds * 10 {
            program.wait(100_000);
            program.counted((650 - back) * MIB);
            let passing = program.alloc(How::Large, 1, line);
            program.free(passing);
        }
        program
    }

    #[test]
    fn what_the_allocator_keeps_is_found() {
        let found = program(100, 10).found(CODE);
        assert!(found[0].title.starts_with("400 MiB that the program has freed"), "{}", found[0].title);
        assert_eq!(found[0].severity.name(), "warning");
        assert!(program(0, 10).found(CODE)[0].title.starts_with("500 MiB that"));
    }

    #[test]
    fn what_is_given_back_and_the_end_of_a_program_are_none() {
        assert!(program(500, 10).found(CODE).is_empty());
        assert!(program(0, 0).found(CODE).is_empty());
        assert!(program(490, 10).found(CODE).is_empty(), "little");
    }
}
