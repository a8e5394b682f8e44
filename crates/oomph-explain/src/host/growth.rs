//! Growth: lines that hold more and more, for as long as the recording goes on.
//!
//! Boundary: it says how much and how fast; whether that is a mistake is for rules.

use super::blocks::Blocks;
use crate::finding::Place;
use hashbrown::HashMap;

/// The line is looked at so many times, at equal distances from its first block to the end.
const MARKS: i64 = 10;
/// Of the spaces between them, in so many it grew.
const GROWN: usize = 7;
/// A line that began later than this before the end, as a share of the recording, has shown too little.
const LEAST_TIME: f64 = 0.3;
/// What it may fall between two looks, as a share of what it held at the most: the last of a list is not yet there.
const FALL: f64 = 0.02;
/// Less than this is no growth, nor is less than this share of the peak.
const LEAST: u64 = 16 << 20;
const LEAST_SHARE: f64 = 0.05;
/// When the peak is so late in the recording, what follows is the program's end, which frees everything.
const LATE: f64 = 0.9;

/// A line that grows.
#[derive(Clone, Debug)]
pub struct HostGrowth {
    /// The line; none where no Python was running.
    pub place: Option<Place>,
    /// By how much it grew.
    pub bytes: u64,
    /// In how long.
    pub seconds: f64,
    /// Blocks more than at the beginning: many that were never freed, or one that is made anew.
    pub blocks: u64,
}

impl HostGrowth {
    /// Bytes a second.
    pub fn per_second(&self) -> u64 {
        if self.seconds > 0.0 { (self.bytes as f64 / self.seconds) as u64 } else { 0 }
    }
}

/// What a line holds: at a time, so much more or less.
struct Step {
    time: i64,
    bytes: i128,
    blocks: i64,
}

/// Lines that grow, by the number that `line` gives to a stack, if any; most first.
pub fn growing(blocks: &Blocks, times: &[i64], line: impl Fn(u32) -> Option<u32>) -> Vec<(u32, HostGrowth)> {
    let (Some(&begin), Some(&last)) = (times.first(), times.last()) else { return Vec::new() };
    let time = |row: usize| times.get(row).copied().unwrap_or(last);
    let peak = time(blocks.peak.saturating_sub(1));
    let whole = last.saturating_sub(begin);
    let is_late = peak.saturating_sub(begin) as f64 >= LATE * whole as f64;
    let end = if is_late { peak } else { last };
    let (ends, begun) = (end.saturating_sub(begin), begin);
    let mut lines: HashMap<u32, Vec<Step>> = HashMap::new();
    for block in &blocks.all {
        let Some(line) = line(block.stack) else { continue };
        let steps = lines.entry(line).or_default();
        let bytes = i128::from(block.size);
        steps.push(Step { time: time(block.born), bytes, blocks: 1 });
        if let Some(freed) = block.freed {
            steps.push(Step { time: time(freed), bytes: -bytes, blocks: -1 });
        }
    }
    let least = LEAST.max((LEAST_SHARE * blocks.most as f64) as u64);
    let mut found: Vec<(u32, HostGrowth)> = (lines.into_iter())
        .filter_map(|(line, mut steps)| {
            steps.sort_by_key(|step| step.time);
            let first = steps.first()?.time.max(begun);
            let span = end.saturating_sub(first);
            if span <= 0 || (span as f64) < LEAST_TIME * ends as f64 {
                return None;
            }
            let looks = looks(&steps, first, span);
            let most = looks.iter().map(|(bytes, _)| *bytes).max()?;
            let fall = (FALL * most as f64) as i128;
            let (from, to) = (looks.first()?, looks.last()?);
            let pairs = || looks.windows(2).map(|pair| (pair[0].0, pair[1].0));
            let falls = pairs().any(|(one, next)| next < one.saturating_sub(fall));
            let grown = pairs().filter(|(one, next)| next > one).count();
            let bytes = u64::try_from(to.0.saturating_sub(from.0)).unwrap_or(0);
            let seconds = (span - span / MARKS) as f64 / 1e6;
            let blocks = u64::try_from(to.1.saturating_sub(from.1)).unwrap_or(0);
            (!falls && grown >= GROWN && bytes >= least)
                .then_some((line, HostGrowth { place: None, bytes, seconds, blocks }))
        })
        .collect();
    found.sort_by_key(|(line, growth)| (std::cmp::Reverse(growth.bytes), *line));
    found
}

/// What was held at each mark.
fn looks(steps: &[Step], first: i64, span: i64) -> Vec<(i128, i64)> {
    let mut looks = Vec::new();
    let (mut bytes, mut blocks, mut at) = (0i128, 0i64, 0);
    for mark in 1..=MARKS {
        let until = first.saturating_add((i128::from(span) * i128::from(mark) / i128::from(MARKS)) as i64);
        while let Some(step) = steps.get(at).filter(|step| step.time <= until) {
            bytes = bytes.saturating_add(step.bytes);
            blocks = blocks.saturating_add(step.blocks);
            at += 1;
        }
        looks.push((bytes, blocks));
    }
    looks
}

#[cfg(test)]
mod tests {
    use super::super::testing::{MIB, Program};
    use oomph_trace::How;

    #[test]
    fn a_list_that_fills_grows_and_a_cache_that_is_full_does_not() {
        let mut program = Program::default();
        let list = program.line("work.py", 5);
        let cache = program.line("work.py", 9);
        program.alloc(How::Large, 300 * MIB, cache);
        for round in 0..50 {
            program.alloc(How::Large, 4 * MIB, list);
            if round < 10 {
                program.alloc(How::Large, 10 * MIB, cache);
            }
            program.wait(100_000);
        }
        let growth = program.explained().growth;
        assert_eq!(growth.len(), 1, "{growth:?}");
        assert_eq!(growth[0].place.as_ref().unwrap().short(), "work.py:5 main");
        assert_eq!((growth[0].bytes, growth[0].blocks), (45 * 4 * MIB, 45));
        assert!(growth[0].per_second().abs_diff(40 * MIB) < 2 * MIB, "{}", growth[0].per_second());
    }

    #[test]
    fn a_library_that_is_imported_does_not_grow() {
        let mut program = Program::default();
        let importlib = "<frozen importlib._bootstrap>";
        let import = program.stack(&[("_load_unlocked", importlib, 935), ("<module>", "work.py", 1)]);
        for _ in 0..50 {
            program.alloc(How::Object, 4 * MIB, import);
            program.wait(100_000);
        }
        assert!(program.explained().growth.is_empty());
    }

    #[test]
    fn what_is_given_back_does_not_grow_and_the_end_of_a_program_does_not_count() {
        for keeps in [false, true] {
            let mut program = Program::default();
            let line = program.line("work.py", 5);
            let mut held = Vec::new();
            for _ in 0..50 {
                held.push(program.alloc(How::Large, 4 * MIB, line));
                program.wait(100_000);
            }
            if !keeps {
                held.drain(..25).for_each(|address| program.free(address));
                program.wait(5_000_000);
            }
            held.into_iter().for_each(|address| program.free(address));
            assert_eq!(program.explained().growth.len(), usize::from(keeps));
        }
    }
}
