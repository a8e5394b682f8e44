//! A program on each of many ranks, of which few are run: ranks that do the same are run once.
//!
//! The first and the last rank run at the same time. If they did the same, to the byte, so do all: the last differs from the first in every place
//! that a rank can have (its machine, its stage, its part of a tensor). If they did not, the groups that the program made say along which lines
//! ranks may differ, and along each of these the second, the middle and the last but one are run: where they are alike, so are those between; where not, all are run.
//! Whoever was not run says in whose place it stands ([`Prediction::like`]).
//!
//! Boundary: what one rank's run says is for [`Prediction`].

use crate::prediction::{PredictError, Prediction, Uncertain, Verdict};
use crate::run::{Program, Runner, Voice, World};
use oomph_gpus::Gpu;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Along a line of more ranks that differ, not all are run.
const LONGEST: usize = 64;
/// How many of such a line are.
const SOME: u32 = 16;
/// How often ranks are run again that would receive other objects by now.
const ROUNDS: usize = 6;

/// How many ranks there are, and how many of them on one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks {
    pub size: u32,
    /// On each machine.
    pub per_node: u32,
}

impl Ranks {
    fn world(self, rank: u32) -> World {
        World { size: self.size, rank, per_node: self.per_node }
    }
}

/// Two that run at the same time.
#[derive(Debug)]
pub struct Pair<'a> {
    /// Whose first run leaves a spare interpreter.
    pub first: Runner<'a>,
    /// [Beside](Runner::beside) the first.
    pub second: Runner<'a>,
}

/// What is said on the way: which ranks are run next, and whether for the first time.
pub type Say<'a> = dyn FnMut(&[u32], bool) + 'a;

/// What is asked, beside which ranks.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Who hears rank 0: what goes wrong goes wrong in all of them.
    pub voice: Voice,
    /// Whether to find out what ranks would need that do not fit.
    pub needs: bool,
}

/// Says of each rank what it takes, in their order.
pub fn predict(
    pair: &mut Pair,
    program: &Program,
    gpu: &Gpu,
    ranks: Ranks,
    asked: Asked,
    say: &mut Say,
) -> Result<Vec<Prediction>, PredictError> {
    let voice = asked.voice;
    // Of another program, or of other arguments.
    pair.first.forget_messages()?;
    let mut world = Known { pair, program, gpu, ranks, voice, ran: BTreeMap::new() };
    let last = ranks.size.saturating_sub(1);
    world.run(&[0, last], say)?;
    world.settle(say)?;
    let lines = if last < 2 || world.is_like(0, last) { Vec::new() } else { world.look(say)? };
    world.settle(say)?;
    world.check()?;
    if asked.needs {
        world.ask_needs()?;
    }
    Ok(world.all(&lines))
}

/// The rank that takes the most: one that does not fit before one of which nothing is known, and that before one that fits.
pub fn worst(predictions: Vec<Prediction>) -> Option<Prediction> {
    predictions.into_iter().max_by_key(|one| (takes(one), Reverse(one.world.map(|world| world.rank))))
}

/// How much a rank takes, to compare it with others.
fn takes(one: &Prediction) -> (u8, bool, u64, u64) {
    let verdict = match one.verdict {
        Verdict::Fits => 0,
        Verdict::Unknown => 1,
        Verdict::DoesNotFit => 2,
    };
    let most = one.estimated.map_or(one.total, |range| range.high);
    (verdict, one.is_close(), most, one.device.peak_allocated)
}

/// Ranks at equal distances, along which the program may do different things: every how many, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    distance: u32,
    count: u32,
}

impl Line {
    /// Where on the line a rank is.
    fn place(self, rank: u32) -> u32 {
        rank / self.distance % self.count
    }
}

/// Of each line along which ranks may differ, for each place the one that stands for it.
#[derive(Debug, Default)]
struct Roles {
    lines: Vec<(Line, Vec<u32>)>,
}

impl Roles {
    /// The rank that stands for this one.
    fn of(&self, rank: u32) -> u32 {
        self.along(rank).sum()
    }

    /// Those that stand for its places on each line by itself.
    fn along(&self, rank: u32) -> impl Iterator<Item = u32> {
        self.lines.iter().map(move |(line, places)| {
            places.get(line.place(rank) as usize).copied().unwrap_or(0) * line.distance
        })
    }
}

/// What is known so far.
struct Known<'p, 'a> {
    pair: &'p mut Pair<'a>,
    program: &'p Program,
    gpu: &'p Gpu,
    ranks: Ranks,
    voice: Voice,
    ran: BTreeMap<u32, Result<Prediction, PredictError>>,
}

impl Known<'_, '_> {
    /// Runs those of them that were not run, two at a time.
    fn run(&mut self, wanted: &[u32], say: &mut Say) -> Result<(), PredictError> {
        let wanted: BTreeSet<u32> =
            wanted.iter().copied().filter(|rank| !self.ran.contains_key(rank)).collect();
        let wanted: Vec<u32> = wanted.into_iter().collect();
        if wanted.is_empty() {
            return Ok(());
        }
        say(&wanted, true);
        self.run_now(&wanted)
    }

    fn run_now(&mut self, wanted: &[u32]) -> Result<(), PredictError> {
        let (program, gpu, ranks, voice) = (self.program, self.gpu, self.ranks, self.voice);
        // Heard is the first run of the first rank.
        let voice = |rank| if rank == 0 && !self.ran.contains_key(&0) { voice } else { Voice::Kept };
        let left: Mutex<VecDeque<(u32, Voice)>> =
            Mutex::new(wanted.iter().map(|rank| (*rank, voice(*rank))).collect());
        let is_fatal = |made: &Result<Prediction, PredictError>| matches!(made, Err(error) if !matches!(error, PredictError::Waiting(_)));
        let is_over = AtomicBool::new(false);
        let turns = |runner: &Runner| {
            let mut ran = Vec::new();
            loop {
                let next = left.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                let Some((rank, voice)) = next.filter(|_| !is_over.load(Ordering::Acquire)) else {
                    return ran;
                };
                let made = Prediction::make(runner, program, gpu, Some(ranks.world(rank)), voice);
                is_over.fetch_or(is_fatal(&made), Ordering::AcqRel);
                ran.push((rank, made));
            }
        };
        let turns = &turns;
        let Pair { first, second } = &mut *self.pair;
        let ran = std::thread::scope(|scope| {
            let beside = (wanted.len() > 1).then(|| scope.spawn(move || turns(second)));
            let mut ran = turns(first);
            // A signal reaches both. What failed of itself ends the other's turns, once it is done with this one: it is needed again, for another program.
            match beside.map(std::thread::ScopedJoinHandle::join) {
                Some(Ok(more)) => ran.extend(more),
                Some(Err(panic)) => std::panic::resume_unwind(panic),
                None => {}
            }
            ran
        });
        for (rank, made) in ran {
            match made {
                // For want of what another rank sends, perhaps: what that is may be known later.
                Ok(_) | Err(PredictError::Waiting(_)) => {
                    self.ran.insert(rank, made);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn prediction(&self, rank: u32) -> Option<&Prediction> {
        self.ran.get(&rank)?.as_ref().ok()
    }

    /// Whether two ranks that were run did the same, but for their data.
    fn is_like(&self, one: u32, other: u32) -> bool {
        match (self.prediction(one), self.prediction(other)) {
            (Some(one), Some(other)) => is_like(one, other),
            _ => false,
        }
    }

    /// Whether ranks wait for what others send, so that the order of runs matters.
    fn is_waited_for(&self) -> bool {
        let waits = |made: &Result<Prediction, PredictError>| match made {
            Ok(prediction) => prediction.among.is_waiting(),
            Err(_) => true,
        };
        self.ran.values().any(waits)
    }

    /// Runs as many as show along which lines ranks differ, and gives these.
    fn look(&mut self, say: &mut Say) -> Result<Vec<Line>, PredictError> {
        let mut lines = Vec::new();
        for line in self.lines() {
            self.look_along(line, say)?;
            lines.push(line);
        }
        let whole = Line { distance: 1, count: self.ranks.size };
        // Something that the last does by its number, and not by its place.
        let is_explained = |known: &Self| {
            let roles = known.roles(&lines);
            known.prediction(roles.of(known.ranks.size - 1)).is_none_or(|stands| {
                known.prediction(known.ranks.size - 1).is_some_and(|last| is_like(stands, last))
            })
        };
        if !lines.contains(&whole) && !is_explained(self) {
            lines = vec![whole];
            self.look_along(whole, say)?;
        }
        if lines.len() > 1 {
            // Where ranks differ along several lines, each combination is one of its own.
            let roles = self.roles(&lines);
            let all: BTreeSet<u32> = (0..self.ranks.size).map(|rank| roles.of(rank)).collect();
            if all.len() <= LONGEST {
                self.run(&all.into_iter().collect::<Vec<_>>(), say)?;
            }
        }
        Ok(lines)
    }

    fn look_along(&mut self, line: Line, say: &mut Say) -> Result<(), PredictError> {
        if !self.is_waited_for() {
            return self.along(line, say);
        }
        // One after another: each gets what those before it sent.
        for place in 0..line.count.min(LONGEST as u32) {
            self.run(&[place * line.distance], say)?;
        }
        self.settle(say)
    }

    /// Who stands for whom, by what is known.
    fn roles(&self, lines: &[Line]) -> Roles {
        Roles { lines: lines.iter().map(|line| (*line, self.places(*line))).collect() }
    }

    fn lines(&self) -> Vec<Line> {
        lines(self.prediction(0).map(|one| one.among.groups.as_slice()).unwrap_or_default(), self.ranks.size)
    }

    /// Runs as few ranks of a line as show who is like whom.
    fn along(&mut self, line: Line, say: &mut Say) -> Result<(), PredictError> {
        let rank = |place: u32| place * line.distance;
        let (middle, last) = (line.count / 2, line.count - 1);
        self.run(&[0, rank(last)], say)?;
        if self.is_like(0, rank(last)) {
            return Ok(());
        }
        // Those next to the ends show whether only the ends are different.
        self.run(&[rank(1), rank(middle)], say)?;
        if !self.is_like(rank(middle), rank(last)) {
            self.run(&[rank(last - 1)], say)?;
        }
        let is_between = |place: u32| self.is_like(rank(place), rank(middle));
        if !is_between(1) || !(is_between(last) || is_between(last - 1)) {
            let all: Vec<u32> = match line.count as usize <= LONGEST {
                true => (0..line.count).map(rank).collect(),
                false => (0..SOME).map(|part| rank(part * last / (SOME - 1))).collect(),
            };
            self.run(&all, say)?;
        }
        Ok(())
    }

    /// For each place of a line, who stands for it: of those that were run and are alike the one that takes the most, and for one that was not run its
    /// neighbours' that takes more.
    fn places(&self, line: Line) -> Vec<u32> {
        let at = |place: u32| self.prediction(place * line.distance);
        let known: Vec<u32> = (0..line.count).filter(|place| at(*place).is_some()).collect();
        let takes_at = |place: &u32| (at(*place).map(takes), Reverse(*place));
        let stands = |place: u32| {
            let alike =
                known.iter().filter(|other| self.is_like(**other * line.distance, place * line.distance));
            alike.copied().max_by_key(takes_at).unwrap_or(place)
        };
        (0..line.count)
            .map(|place| {
                let before = known.iter().rev().find(|other| **other <= place);
                let after = known.iter().find(|other| **other >= place);
                let near = before.into_iter().chain(after).map(|other| stands(*other));
                near.max_by_key(takes_at).unwrap_or(0)
            })
            .collect()
    }

    /// Runs those again that would receive other objects by now, and those that failed, perhaps for want of one. Stages of a pipeline wait for the next, and then for the
    /// one before: the last comes first, then the first.
    fn settle(&mut self, say: &mut Say) -> Result<(), PredictError> {
        let mut others_changed = true;
        for round in 0..ROUNDS {
            let mut ranks: Vec<u32> = self.ran.keys().copied().collect();
            if round % 2 == 0 {
                ranks.reverse();
            }
            let mut changed = false;
            for rank in ranks {
                let is_wanted = match self.ran.get(&rank) {
                    Some(Ok(_)) => self.is_stale(rank),
                    Some(Err(_)) => (changed || others_changed) && self.ran.len() > 1,
                    None => false,
                };
                if is_wanted {
                    let was_error = self.prediction(rank).is_none();
                    say(&[rank], false);
                    self.run_now(&[rank])?;
                    changed |= !was_error || self.prediction(rank).is_some();
                }
            }
            if !changed {
                break;
            }
            others_changed = changed;
        }
        Ok(())
    }

    /// Whether a rank would receive something else than in its run.
    fn is_stale(&self, rank: u32) -> bool {
        self.prediction(rank).is_some_and(|one| !self.pair.first.has_received(&one.among))
    }

    /// One that fails whatever it receives fails of itself. One that still would receive something else is in doubt.
    fn check(&mut self) -> Result<(), PredictError> {
        let failed = self.ran.iter().find(|(_, made)| made.is_err()).map(|(rank, _)| *rank);
        if let Some(Err(error)) = failed.and_then(|rank| self.ran.remove(&rank)) {
            return Err(error);
        }
        let stale: Vec<u32> = self.ran.keys().copied().filter(|rank| self.is_stale(*rank)).collect();
        for rank in stale {
            if let Some(Ok(prediction)) = self.ran.get_mut(&rank) {
                let why = format!("what rank {rank} receives from others differs from run to run");
                prediction.uncertain.push(note(why));
            }
        }
        Ok(())
    }

    fn ask_needs(&mut self) -> Result<(), PredictError> {
        for prediction in self.ran.values_mut().flatten() {
            if prediction.verdict == Verdict::DoesNotFit {
                prediction.ask_needs(&self.pair.first, self.program)?;
            }
        }
        Ok(())
    }

    /// One for each rank.
    fn all(&self, lines: &[Line]) -> Vec<Prediction> {
        let (roles, is_sampled) = (self.roles(lines), self.is_sampled(lines));
        let last = self.ranks.size.saturating_sub(1);
        let ends = [0, last].into_iter().filter_map(|rank| self.prediction(rank));
        let larger = ends.max_by_key(|one| (takes(one), Reverse(one.world.map(|world| world.rank))));
        let of = |rank: u32| -> Option<Prediction> {
            if let Some(own) = self.prediction(rank) {
                return Some(own.clone());
            }
            let (stands, doubt) = match lines.is_empty() {
                true => (larger?, None),
                false => match self.prediction(roles.of(rank)) {
                    Some(stands) => (stands, is_sampled.then_some(SAMPLED)),
                    // Not run, for there are too many: what it has of each line is known.
                    None => (
                        roles
                            .along(rank)
                            .filter_map(|one| self.prediction(one))
                            .max_by_key(|one| takes(one))?,
                        Some(SAMPLED),
                    ),
                },
            };
            let mut uncertain = stands.uncertain.clone();
            let doubt = doubt.or_else(|| self.has_smaller(stands).then_some(OTHER_DATA));
            uncertain.extend(doubt.map(|why| note(why.to_owned())));
            Some(Prediction {
                world: Some(self.ranks.world(rank)),
                like: stands.world,
                uncertain,
                ..stands.clone()
            })
        };
        (0..self.ranks.size).filter_map(of).collect()
    }

    /// Whether not all of a line were run along which ranks differ from one to the next.
    fn is_sampled(&self, lines: &[Line]) -> bool {
        lines.iter().any(|line| {
            let places = self.places(*line);
            let kinds: BTreeSet<u32> = places.into_iter().collect();
            line.count as usize > LONGEST && kinds.len() > 3
        })
    }

    /// Whether one that is like it took less.
    fn has_smaller(&self, one: &Prediction) -> bool {
        let differs = |other: &Prediction| {
            is_like(one, other)
                && (one.total, one.device.peak_allocated) != (other.total, other.device.peak_allocated)
        };
        self.ran.values().flatten().any(differs)
    }
}

/// Why a rank that was not run may take something else.
const OTHER_DATA: &str = "ranks that do the same took different amounts (other batches, a smaller shard): those that were not run are shown as the largest";
const SAMPLED: &str = "ranks differ from one to the next, and not all were run: the others are shown as the larger of those next to them";

fn note(why: String) -> Uncertain {
    Uncertain { what: "note".into(), why, place: None, count: 1 }
}

fn is_like(one: &Prediction, other: &Prediction) -> bool {
    let same = |a: &str, b: &str| !a.is_empty() && a == b;
    // Of one that ran out of memory, what it would have trained may not be known.
    let by_role = one.verdict == Verdict::Fits && same(&one.among.role, &other.among.role);
    one.verdict == other.verdict && (same(&one.among.counters, &other.among.counters) || by_role)
}

/// The lines along which ranks lie, by the groups that the first of them is in.
fn lines(groups: &[[u32; 3]], size: u32) -> Vec<Line> {
    let fits = |count: u32| count > 1 && count <= size;
    let lines = groups.iter().filter(|[first, distance, count]| *first == 0 && *distance > 0 && fits(*count));
    let lines: BTreeSet<Line> =
        lines.map(|[_, distance, count]| Line { distance: *distance, count: *count }).collect();
    // Lines that are part of another, or cross it, would count a place twice.
    let mut chosen: Vec<Line> = Vec::new();
    for line in lines {
        let after = chosen.last().map_or(1, |last| u64::from(last.distance) * u64::from(last.count));
        if u64::from(line.distance).is_multiple_of(after) {
            chosen.push(line);
        }
    }
    let covered = chosen.iter().fold(1, |all: u64, line| all.saturating_mul(line.count.into()));
    if covered == u64::from(size) { chosen } else { vec![Line { distance: 1, count: size }] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(distance: u32, count: u32) -> Line {
        Line { distance, count }
    }

    #[test]
    fn ranks_lie_along_the_groups_of_the_first() {
        assert_eq!(lines(&[], 8), [line(1, 8)], "one group of all");
        // A mesh of two machines, two stages and two parts of a tensor.
        assert_eq!(lines(&[[0, 1, 2], [0, 2, 2], [0, 4, 2]], 8), [line(1, 2), line(2, 2), line(4, 2)]);
        assert_eq!(lines(&[[0, 1, 4], [0, 4, 2]], 8), [line(1, 4), line(4, 2)]);
        // Groups that cross, and groups that leave ranks out, say nothing of where a rank is.
        assert_eq!(lines(&[[0, 1, 4], [0, 2, 4]], 8), [line(1, 8)]);
        assert_eq!(lines(&[[0, 2, 2]], 8), [line(1, 8)]);
        // Nor do groups of others, or a damaged fact.
        assert_eq!(lines(&[[4, 1, 4], [0, 0, 2]], 8), [line(1, 8)]);
    }

    #[test]
    fn who_stands_for_whom_follows_from_the_places_on_each_line() {
        assert_eq!(Roles::default().of(5), 0);
        // Of four stages the middle ones are alike, and of the two halves of a tensor each is another.
        let roles = Roles { lines: vec![(line(1, 2), vec![0, 1]), (line(2, 4), vec![0, 1, 1, 3])] };
        let stands: Vec<u32> = (0..8).map(|rank| roles.of(rank)).collect();
        assert_eq!(stands, [0, 1, 2, 3, 2, 3, 6, 7]);
    }
}
