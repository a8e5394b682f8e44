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
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Mutex;

/// Along a line of more ranks that differ, not all are run.
const LONGEST: usize = 64;
/// How many of such a line are.
const SOME: u32 = 16;
/// How often ranks are run again that would receive other objects by now.
const ROUNDS: usize = 4;

/// How many ranks there are, and how many of them on one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks {
    /// All of them.
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
    let mut world = Known { pair, program, gpu, ranks, voice, ran: BTreeMap::new() };
    let last = ranks.size.saturating_sub(1);
    world.run(&[0, last], say)?;
    let roles = match last < 2 || world.is_like(0, last) {
        true => Roles::default(),
        false => world.roles(say)?,
    };
    world.settle(say)?;
    if asked.needs {
        world.ask_needs()?;
    }
    Ok(world.all(&roles))
}

/// The rank that takes the most: one that does not fit before one that does, and one of which nothing is known before both.
pub fn worst(predictions: Vec<Prediction>) -> Option<Prediction> {
    predictions.into_iter().max_by_key(|one| {
        let verdict = match one.verdict {
            Verdict::Fits => 0,
            Verdict::DoesNotFit => 1,
            Verdict::Unknown => 2,
        };
        (verdict, one.total, std::cmp::Reverse(one.world.map(|world| world.rank)))
    })
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

/// Which ranks stand for which.
#[derive(Debug, Default)]
struct Roles {
    /// Of each line along which ranks differ, for each place the one that stands for it.
    lines: Vec<(Line, Vec<u32>)>,
}

impl Roles {
    /// The rank that stands for this one.
    fn of(&self, rank: u32) -> u32 {
        let stands = |(line, places): &(Line, Vec<u32>)| {
            places.get(line.place(rank) as usize).copied().unwrap_or(0) * line.distance
        };
        self.lines.iter().map(stands).sum()
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
        let turns = |runner: &Runner| {
            let mut ran = Vec::new();
            loop {
                let next = left.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop_front();
                let Some((rank, voice)) = next else { return ran };
                let made = Prediction::make(runner, program, gpu, Some(ranks.world(rank)), voice);
                let is_end = matches!(&made, Err(error) if !matches!(error, PredictError::Failed(_)));
                ran.push((rank, made));
                if is_end {
                    return ran;
                }
            }
        };
        let Pair { first, second } = &mut *self.pair;
        let other = second.stopper();
        let ran = std::thread::scope(|scope| {
            let beside = (wanted.len() > 1).then(|| scope.spawn(move || turns(second)));
            let mut ran = turns(first);
            // Whatever ended this one, a signal say, ends the other.
            if ran
                .iter()
                .any(|(_, made)| matches!(made, Err(error) if !matches!(error, PredictError::Failed(_))))
            {
                other.stop();
            }
            if let Some(beside) = beside
                && let Ok(more) = beside.join()
            {
                ran.extend(more);
            }
            ran
        });
        for (rank, made) in ran {
            match made {
                // For want of what another rank sends, perhaps: what that is may be known later.
                Ok(_) | Err(PredictError::Failed(_)) => {
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
            Ok(prediction) => prediction.among.received.iter().any(|one| one.digest.is_none()),
            Err(_) => true,
        };
        self.ran.values().any(waits)
    }

    /// Finds out along which lines ranks differ, and who stands for whom.
    fn roles(&mut self, say: &mut Say) -> Result<Roles, PredictError> {
        let mut roles = Roles::default();
        for line in self.lines() {
            let places = if self.is_waited_for() {
                // One after another: each gets what those before it sent.
                for place in 0..line.count.min(LONGEST as u32) {
                    self.run(&[place * line.distance], say)?;
                }
                self.settle(say)?;
                self.like_neighbours(line)
            } else {
                self.along(line, say)?
            };
            if places.iter().any(|place| *place != 0) {
                roles.lines.push((line, places));
            }
        }
        if roles.lines.len() > 1 {
            // Where ranks differ along several lines, each combination is one of its own.
            let all: BTreeSet<u32> = (0..self.ranks.size).map(|rank| roles.of(rank)).collect();
            if all.len() <= LONGEST {
                self.run(&all.into_iter().collect::<Vec<_>>(), say)?;
            }
        }
        Ok(roles)
    }

    fn lines(&self) -> Vec<Line> {
        lines(self.prediction(0).map(|one| one.among.groups.as_slice()).unwrap_or_default(), self.ranks.size)
    }

    /// Runs as few ranks of a line as show who is like whom.
    fn along(&mut self, line: Line, say: &mut Say) -> Result<Vec<u32>, PredictError> {
        let rank = |place: u32| place * line.distance;
        let (middle, last) = (line.count / 2, line.count - 1);
        self.run(&[0, rank(last)], say)?;
        if self.is_like(0, rank(last)) {
            return Ok(vec![0; line.count as usize]);
        }
        // Those next to the ends show whether only the ends are different.
        self.run(&[rank(1), rank(middle)], say)?;
        if !self.is_like(rank(middle), rank(last)) {
            self.run(&[rank(last - 1)], say)?;
        }
        let between = |known: &Self, place: u32| known.is_like(rank(place), rank(middle));
        let ends = |known: &Self| between(known, 1) && (between(known, last) || between(known, last - 1));
        if !ends(self) {
            let all: Vec<u32> = match line.count as usize <= LONGEST {
                true => (0..line.count).map(rank).collect(),
                false => (0..SOME).map(|part| rank(part * last / (SOME - 1))).collect(),
            };
            self.run(&all, say)?;
        }
        Ok(self.like_neighbours(line))
    }

    /// For each place of a line, who stands for it: whoever was run stands for itself or the first like it, another for the one of its neighbours that takes more.
    fn like_neighbours(&self, line: Line) -> Vec<u32> {
        let known: Vec<u32> =
            (0..line.count).filter(|place| self.prediction(place * line.distance).is_some()).collect();
        let takes = |place: &u32| self.prediction(place * line.distance).map(|one| one.total);
        (0..line.count)
            .map(|place| {
                if known.contains(&place) {
                    let alike = |other: &&u32| self.is_like(**other * line.distance, place * line.distance);
                    return known.iter().find(alike).copied().unwrap_or(place);
                }
                let before = known.iter().rev().find(|other| **other < place);
                let after = known.iter().find(|other| **other > place);
                before
                    .into_iter()
                    .chain(after)
                    .max_by_key(|other| (takes(other), std::cmp::Reverse(**other)))
                    .copied()
                    .unwrap_or(0)
            })
            .collect()
    }

    /// Runs those again that would receive other objects by now: the last first, for stages of a pipeline wait for the next.
    fn settle(&mut self, say: &mut Say) -> Result<(), PredictError> {
        for round in 0..ROUNDS {
            let stale = |known: &Self, rank: u32| match known.ran.get(&rank) {
                Some(Ok(prediction)) => !known.pair.first.has_received(&prediction.among),
                Some(Err(_)) => round == 0,
                None => false,
            };
            let ranks: Vec<u32> = self.ran.keys().copied().rev().collect();
            let mut is_settled = true;
            for rank in ranks {
                if stale(self, rank) {
                    is_settled = false;
                    say(&[rank], false);
                    self.run_now(&[rank])?;
                }
            }
            if is_settled {
                break;
            }
        }
        // One that fails whatever it receives fails of itself.
        let failed = self.ran.iter().find(|(_, made)| made.is_err()).map(|(rank, _)| *rank);
        match failed.and_then(|rank| self.ran.remove(&rank)) {
            Some(Err(error)) => Err(error),
            _ => Ok(()),
        }
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
    fn all(&self, roles: &Roles) -> Vec<Prediction> {
        let last = self.ranks.size.saturating_sub(1);
        (0..self.ranks.size)
            .filter_map(|rank| {
                if let Some(own) = self.prediction(rank) {
                    return Some(own.clone());
                }
                let mut stands = roles.of(rank);
                // With other data, one of two that were run took more: what the others have is not known.
                if roles.lines.is_empty()
                    && self.prediction(last).map(|one| one.total) > self.prediction(0).map(|one| one.total)
                {
                    stands = last;
                }
                let stands = self.prediction(stands).or_else(|| self.prediction(0))?;
                let like = stands.world;
                let mut uncertain = stands.uncertain.clone();
                uncertain.extend(self.differ_in_data(last));
                Some(Prediction { world: Some(self.ranks.world(rank)), like, uncertain, ..stands.clone() })
            })
            .collect()
    }

    /// Whether ranks that train the same took different amounts, in words.
    fn differ_in_data(&self, last: u32) -> Option<Uncertain> {
        let (one, other) = (self.prediction(0)?, self.prediction(last)?);
        let differ = is_like(one, other) && one.among.counters != other.among.counters;
        differ.then(|| {
            let why = format!("ranks 0 and {last} train the same but took different amounts (other batches, a smaller shard): the others are shown as the larger");
            Uncertain { what: "note".into(), why, place: None, count: 1 }
        })
    }
}

fn is_like(one: &Prediction, other: &Prediction) -> bool {
    let same = |a: &str, b: &str| !a.is_empty() && a == b;
    one.verdict == other.verdict
        && (same(&one.among.counters, &other.among.counters) || same(&one.among.role, &other.among.role))
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
