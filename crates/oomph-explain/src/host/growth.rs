//! Growth: lines that hold more and more, step after step where steps are known, else for as long as the recording goes on.
//!
//! Boundary: it says how much and how fast; whether that is a mistake is for rules.

use super::blocks::{Block, Blocks};
use crate::finding::Place;
use hashbrown::HashMap;
use oomph_trace::{Host, HostSteps, HostSum};

/// The line is looked at so many times, at equal distances from its first block to the end.
const LOOKS: usize = 10;
/// Of nine spaces between them, in so many it grew.
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
/// What the first steps make is meant to stay: the optimizer's state, caches.
const FIRST_STEPS: u64 = 2;
/// So many steps are a pattern, and so many looks at them.
const LEAST_STEPS: u64 = 8;
const LEAST_LOOKS: usize = 5;

/// A line that grows.
#[derive(Clone, Debug, PartialEq)]
pub struct HostGrowth {
    /// The line; none where no Python was running.
    pub place: Option<Place>,
    /// By how much it grew.
    pub bytes: u64,
    /// By how much samples may be off, twice the standard deviation.
    pub error: u64,
    /// In how long.
    pub seconds: f64,
    /// Blocks more than at the beginning: many that were never freed, or one that is made anew.
    pub blocks: u64,
    /// In which steps, where it grew from step to step.
    pub steps: Option<HostGrownSteps>,
}

/// The steps in which a line grew: from the end of the one before the first to the end of the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostGrownSteps {
    /// From 1.
    pub first: u64,
    pub last: u64,
}

impl HostGrownSteps {
    pub fn count(&self) -> u64 {
        self.last.saturating_sub(self.first).saturating_add(1)
    }
}

impl HostGrowth {
    /// Bytes a second.
    pub fn per_second(&self) -> u64 {
        if self.seconds > 0.0 { (self.bytes as f64 / self.seconds) as u64 } else { 0 }
    }

    /// Bytes a step.
    pub fn per_step(&self) -> Option<u64> {
        Some(self.bytes / self.steps?.count().max(1))
    }
}

/// A moment at which lines are looked at, and how many steps had ended then.
#[derive(Clone, Copy)]
struct Look {
    time: i64,
    ended: u64,
}

/// A block of a line: when it was made, and when it ended.
struct Life<'a> {
    block: &'a Block,
    born: i64,
    freed: Option<i64>,
}

impl Life<'_> {
    fn is_alive(&self, time: i64) -> bool {
        self.born <= time && self.freed.is_none_or(|freed| freed > time)
    }
}

/// Lines that grow, by the number that `line` gives to a stack, if any; most first.
pub(super) fn growing(
    host: &Host,
    blocks: &Blocks,
    line: impl Fn(u32) -> Option<u32>,
) -> Vec<(u32, HostGrowth)> {
    let times = &host.events.time;
    let (Some(&begin), Some(&last)) = (times.first(), times.last()) else { return Vec::new() };
    let time = |row: usize| times.get(row).copied().unwrap_or(last);
    let peak = time(blocks.peak.saturating_sub(1));
    let whole = last.saturating_sub(begin);
    let is_late = peak.saturating_sub(begin) as f64 >= LATE * whole as f64;
    let end = if is_late { peak } else { last };
    let ends = ends_of_steps(&host.steps);
    let mut lines: HashMap<u32, Vec<Life>> = HashMap::new();
    for block in &blocks.all {
        let Some(line) = line(block.stack) else { continue };
        let life = Life { block, born: time(block.born), freed: block.freed.map(time) };
        lines.entry(line).or_default().push(life);
    }
    let least = LEAST.max((LEAST_SHARE * blocks.most as f64) as u64);
    let mut found: Vec<(u32, HostGrowth)> = (lines.into_iter())
        .filter_map(|(line, lives)| {
            let first = lives.iter().map(|life| life.born).min()?.max(begin);
            let growth = by_steps(&ends, first)
                .and_then(|looks| grown(&lives, &looks, least))
                .or_else(|| grown(&lives, &by_time(first, begin, end)?, least))?;
            Some((line, growth))
        })
        .collect();
    found.sort_by_key(|(line, growth)| (std::cmp::Reverse(growth.bytes), *line));
    found
}

/// Ends of steps in order; what contradicts itself is left out.
fn ends_of_steps(steps: &[HostSteps]) -> Vec<Look> {
    let mut ends: Vec<Look> = Vec::new();
    for &HostSteps { time, ended } in steps.iter().filter(|steps| steps.ended >= FIRST_STEPS) {
        if ends.last().is_none_or(|last| time > last.time && ended > last.ended) {
            ends.push(Look { time, ended });
        }
    }
    ends
}

/// Ends of steps at which a line that begins at this time is looked at: at most so many, as far from each other in steps as can be.
fn by_steps(ends: &[Look], first: i64) -> Option<Vec<Look>> {
    // From the end before its first block on: it held nothing then.
    let from = ends.partition_point(|end| end.time < first).saturating_sub(1);
    let (all, ends) = (ends.first()?, ends.get(from..)?);
    let (begin, last) = (ends.first()?, ends.last()?);
    let span = last.ended.saturating_sub(begin.ended);
    let is_long = span >= LEAST_STEPS && span as f64 >= LEAST_TIME * (last.ended - all.ended) as f64;
    if !is_long || ends.len() < LEAST_LOOKS {
        return None;
    }
    let spaces = LOOKS as u128 - 1;
    let mut looks: Vec<Look> = (0..=spaces)
        .filter_map(|number| {
            let wanted = begin.ended + (u128::from(span) * number / spaces) as u64;
            ends.get(ends.partition_point(|end| end.ended < wanted)).copied()
        })
        .collect();
    looks.dedup_by_key(|look| look.ended);
    (looks.len() >= LEAST_LOOKS).then_some(looks)
}

/// Moments at which a line that begins at this time is looked at, at equal distances.
fn by_time(first: i64, begin: i64, end: i64) -> Option<Vec<Look>> {
    let span = end.saturating_sub(first);
    if span <= 0 || (span as f64) < LEAST_TIME * end.saturating_sub(begin) as f64 {
        return None;
    }
    let at = |look: usize| first.saturating_add((i128::from(span) * look as i128 / LOOKS as i128) as i64);
    Some((1..=LOOKS).map(|look| Look { time: at(look), ended: 0 }).collect())
}

/// By how much it grew between the first of these looks and the last, if it did at nearly all of them.
fn grown(lives: &[Life], looks: &[Look], least: u64) -> Option<HostGrowth> {
    let held: Vec<HostSum> = held(lives, looks);
    let (from, to) = (looks.first()?, looks.last()?);
    let most = held.iter().map(HostSum::bytes).max()?;
    let fall = (FALL * most as f64) as u64;
    let pairs = || held.windows(2).map(|pair| (pair[0].bytes(), pair[1].bytes()));
    let falls = pairs().any(|(one, next)| next < one.saturating_sub(fall));
    let rises = pairs().filter(|(one, next)| next > one).count();
    let bytes = held.last()?.bytes().saturating_sub(held.first()?.bytes());
    let blocks = held.last()?.blocks().saturating_sub(held.first()?.blocks());
    // What was there all the time is as far off at the end as at the beginning.
    let mut changed = HostSum::default();
    for life in lives.iter().filter(|life| life.is_alive(from.time) != life.is_alive(to.time)) {
        changed.add(life.block.size, life.block.how);
    }
    let error = changed.error();
    let grows = rises * (LOOKS - 1) >= GROWN * (looks.len() - 1);
    let steps = (to.ended > from.ended)
        .then(|| HostGrownSteps { first: from.ended.saturating_add(1), last: to.ended });
    let seconds = to.time.saturating_sub(from.time) as f64 / 1e6;
    (!falls && grows && bytes >= least && bytes > error).then_some(HostGrowth {
        place: None,
        bytes,
        error,
        seconds,
        blocks,
        steps,
    })
}

/// What was held at each look.
fn held(lives: &[Life], looks: &[Look]) -> Vec<HostSum> {
    // What comes, and what goes, before each look and after the one before.
    let mut came = vec![HostSum::default(); looks.len() + 1];
    let mut went = Vec::new();
    for life in lives {
        let look = |time: i64| looks.partition_point(|look| look.time < time);
        let born = look(life.born);
        if let Some(came) = came.get_mut(born) {
            came.add(life.block.size, life.block.how);
        }
        went.extend(life.freed.map(|freed| (look(freed), life.block)));
    }
    went.sort_by_key(|(look, _)| *look);
    let mut went = went.into_iter().peekable();
    let mut now = HostSum::default();
    let mut held = Vec::with_capacity(looks.len());
    for (look, came) in came.iter().take(looks.len()).enumerate() {
        now.merge(came);
        while let Some((_, block)) = went.next_if(|(at, _)| *at <= look) {
            now.remove(block.size, block.how);
        }
        held.push(now);
    }
    held
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
    fn growth_is_told_by_step_where_steps_are_known() {
        let mut program = Program::default();
        let (list, batch, state) =
            (program.line("train.py", 7), program.line("train.py", 5), program.line("train.py", 9));
        let objects = program.line("train.py", 8);
        let mut last = None;
        for step in 1..=50u64 {
            // Steps take ever longer: by time they are no pattern.
            program.wait(10_000 * step as i64 * step as i64);
            let next = program.alloc(How::Large, (40 + step % 3) * MIB, batch);
            last.replace(next).into_iter().for_each(|before| program.free(before));
            if step == 1 {
                program.alloc(How::Large, 100 * MIB, state);
            }
            program.alloc(How::Large, 2 * MIB, list);
            for _ in 0..16 {
                program.alloc(How::Object, 65_536, objects);
            }
            program.step(step);
        }
        // The end of the program: all goes.
        program.wait(1_000_000);
        let growth = program.explained().growth;
        let found: Vec<_> = (growth.iter())
            .map(|one| {
                (one.place.as_ref().unwrap().short(), one.bytes, one.blocks, one.error, one.per_step())
            })
            .collect();
        // Of 768 samples of 64 KiB each, the error is the root of 768 times that, twice.
        assert_eq!(
            found,
            [
                ("train.py:7 main".to_owned(), 96 * MIB, 48, 0, Some(2 * MIB)),
                ("train.py:8 main".to_owned(), 48 * MIB, 768, 3_632_373, Some(MIB)),
            ]
        );
        let steps = growth[0].steps.unwrap();
        assert_eq!((steps.first, steps.last, steps.count()), (3, 50, 48));
    }

    #[test]
    fn of_fast_steps_some_are_noted_and_a_list_that_begins_late_grows_from_there() {
        let mut program = Program::default();
        let list = program.line("train.py", 7);
        for step in 1..=10_000u64 {
            program.wait(1000);
            if step > 4_000 {
                program.alloc(How::Large, 64 << 10, list);
            }
            if step % 130 == 0 {
                program.step(step);
            }
        }
        let growth = program.explained().growth;
        let steps = growth[0].steps.unwrap();
        // The last that was noted before it began, and the last of all.
        assert_eq!((steps.first, steps.last), (3_901, 9_880));
        assert_eq!((growth[0].bytes, growth[0].blocks), (5_880 * (64 << 10), 5_880));
    }

    #[test]
    fn a_batch_that_is_held_from_step_to_step_does_not_grow_and_few_steps_are_no_pattern() {
        for steps in [6, 60u64] {
            let mut program = Program::default();
            let (batch, list) = (program.line("train.py", 5), program.line("train.py", 7));
            let mut last = None;
            for step in 1..=steps {
                let next = program.alloc(How::Large, (100 + step % 7) * MIB, batch);
                last.replace(next).into_iter().for_each(|before| program.free(before));
                program.alloc(How::Large, 4 * MIB, list);
                program.wait(100_000);
                program.step(step);
            }
            let growth = program.explained().growth;
            assert!(growth.iter().all(|one| one.place.as_ref().unwrap().short() == "train.py:7 main"));
            assert_eq!(growth.iter().any(|one| one.steps.is_some()), steps == 60);
        }
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
