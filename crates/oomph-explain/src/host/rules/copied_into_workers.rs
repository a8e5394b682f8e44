//! Data is there once in every worker: each process that was started holds a copy of what it was given.
//!
//! ## What it sees
//!
//! Recordings of several processes of one program. At their peaks, two or more of them hold about the same bytes that they took over when they were started
//! (`multiprocessing` with spawn or forkserver unpickles the dataset in every worker).
//!
//! ## What to do
//!
//! `oomph.data.share(items)` puts a list or a dictionary into memory that all workers read, and is pickled as a name. Arrays can be opened by each worker from a file: `numpy.load(path, mmap_mode="r")`.
//! Fewer workers are fewer copies.
//!
//! ## How the numbers come about
//!
//! The bytes are what each process asked for and held at its peak. What a forked worker copies because it counts references is not asked for, and not seen here: `oomph.doctor(loader)` says that.
//! The saving is all copies but one.

use super::super::{HostExplanation, HostLine};
use super::LEAST;
use crate::finding::{Basis, Finding, Fix, Grade, Place, Severity, Where};
use oomph_words::bytes;
use std::collections::BTreeMap;

pub(crate) const CODE: &str = "OM507";

/// By how much copies may differ: each worker has some of its own.
const SAME: f64 = 0.1;
/// The least share of a process's own peak.
const LEAST_SHARE: f64 = 0.05;

pub(crate) fn check(all: &[&HostExplanation]) -> Vec<Finding> {
    let mut lines: BTreeMap<&Place, Vec<u64>> = BTreeMap::new();
    for host in all {
        for line in &host.taken_over {
            if let Some(place) = line.place.as_ref().filter(|_| is_large(line, host)) {
                lines.entry(place).or_default().push(line.bytes);
            }
        }
    }
    let mut found: Vec<Where> =
        lines.into_iter().filter_map(|(place, copies)| of_line(place, copies)).collect();
    found.sort_by_key(|one| std::cmp::Reverse(one.bytes));
    let Some(first) = found.first() else { return Vec::new() };
    let each = first.bytes / first.count.max(1);
    let saved =
        found.iter().fold(0u64, |sum, one| sum.saturating_add(one.bytes - one.bytes / one.count.max(1)));
    let title = format!(
        "{} processes hold a copy each of what they were given: {} each, {} in all",
        first.count,
        bytes(each),
        bytes(first.bytes)
    );
    // A note, for it is said of several recordings, and none of them alone has it.
    let finding = Finding::new(CODE, Severity::Note, title)
        .because(
            "they were started anew and took it over as a pickle, which is read into memory of their own",
        )
        .at(found)
        .saves(saved, Basis::Measured, "all copies but one, each at its process's peak")
        .fix(
            Fix::new(Grade::Safe, "let all of them read one copy")
                .code("items = oomph.data.share(items)   # in the dataset's __init__"),
        );
    vec![finding]
}

fn is_large(line: &HostLine, host: &HostExplanation) -> bool {
    line.bytes >= LEAST && line.bytes as f64 >= LEAST_SHARE * host.asked as f64
}

/// The largest set of copies that are alike.
fn of_line(place: &Place, mut copies: Vec<u64>) -> Option<Where> {
    copies.sort_unstable();
    let alike = |from: usize| {
        let least = copies[from];
        let most = least.saturating_add((least as f64 * SAME) as u64);
        copies.partition_point(|&bytes| bytes <= most) - from
    };
    let (from, count) = (0..copies.len()).map(|from| (from, alike(from))).max_by_key(|&(_, count)| count)?;
    let bytes = copies.iter().skip(from).take(count).fold(0u64, |sum, &bytes| sum.saturating_add(bytes));
    (count >= 2).then(|| Where { place: place.clone(), bytes, count: count as u64 })
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{MIB, Program};
    use super::CODE;
    use crate::explanation::{Explanation, findings_of_processes};
    use oomph_trace::How;

    fn worker(starts: bool, bytes: u64) -> Explanation {
        let mut program = Program::default();
        let spawn = if starts {
            "/usr/lib/python3.12/multiprocessing/spawn.py"
        } else {
            "/usr/lib/python3.12/queue.py"
        };
        let given = program.stack(&[("_main", spawn, 132), ("spawn_main", spawn, 122)]);
        let own = program.line("train.py", 30);
        program.alloc(How::Large, bytes, given);
        program.alloc(How::Large, 40 * MIB, own);
        program.explanation()
    }

    fn found(all: &[Explanation]) -> Vec<String> {
        let findings = findings_of_processes(&all.iter().collect::<Vec<_>>());
        findings.into_iter().filter(|one| one.code == CODE).map(|one| one.title).collect()
    }

    #[test]
    fn what_every_worker_was_given_is_found() {
        let workers = [worker(true, 300 * MIB), worker(true, 301 * MIB), worker(true, 299 * MIB)];
        assert_eq!(
            found(&workers),
            ["3 processes hold a copy each of what they were given: 300 MiB each, 900 MiB in all"]
        );
    }

    #[test]
    fn what_they_made_themselves_one_worker_and_little_are_none() {
        assert!(found(&[worker(false, 300 * MIB), worker(false, 300 * MIB)]).is_empty());
        assert!(found(&[worker(true, 300 * MIB), worker(false, 300 * MIB)]).is_empty());
        assert!(found(&[worker(true, 300 * MIB), worker(true, 100 * MIB)]).is_empty());
        assert!(found(&[worker(true, 2 * MIB), worker(true, 2 * MIB)]).is_empty());
    }
}
