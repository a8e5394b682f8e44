//! Runs the canonical search over and over with different preferences.
//!
//! Whether a depth-first search finds a placement quickly or never is a matter of its first few
//! decisions. So many short searches with shuffled preferences do better than a long one.

use super::canonical_search::{self, Effort, Outcome};
use super::random::Random;
use super::timeline::Timeline;
use super::watch::Watch;

/// Nodes in the shortest search.
const NODES_UNIT: u64 = 1000;
/// Nodes in a search with preferences as they are: those deserve a better try.
const PLAIN_NODES: u64 = 5000;
/// With more items than this an exhaustive search has no hope to finish.
const PROVABLE_ITEMS: usize = 64;
/// How much the preferences are shuffled, in turn.
const JITTERS: [f64; 2] = [0.2, 0.5];
/// Coarseness of crowding when preferences are shuffled, so that the other traits get a say.
const CROWDING_GRADES: f64 = 16.0;

#[derive(Clone, Copy)]
enum Trait {
    Lifetime,
    Area,
    Crowding,
}

/// Preferences that work: the traits in order of importance.
const PREFERENCES: [[Trait; 3]; 4] = [
    [Trait::Lifetime, Trait::Area, Trait::Crowding],
    [Trait::Crowding, Trait::Area, Trait::Lifetime],
    [Trait::Crowding, Trait::Lifetime, Trait::Area],
    [Trait::Area, Trait::Crowding, Trait::Lifetime],
];

/// A course of searches over one timeline that can be continued.
pub(super) struct Restarts {
    crowding: Vec<u64>,
    searches: u64,
    random: Random,
}

impl Restarts {
    pub fn new(crowding: Vec<u64>) -> Self {
        Restarts { crowding, searches: 0, random: Random::new() }
    }

    /// Looks for a placement no higher than `capacity` until it has spent `nodes`.
    pub fn run(&mut self, timeline: &Timeline, capacity: u64, nodes: u64, watch: &mut Watch) -> Outcome {
        let mut effort = Effort { capacity, nodes: NODES_UNIT, exhaustive: true, deadline: watch.deadline() };
        let mut spent = 0;
        let mut searches = 0;
        while spent < nodes && !watch.is_over() {
            let preference = PREFERENCES[self.searches as usize % PREFERENCES.len()];
            let round = self.searches / PREFERENCES.len() as u64;
            let jitter = if round == 0 { 0.0 } else { JITTERS[round as usize % JITTERS.len()] };
            let order = self.shuffled(timeline, preference, jitter);
            // The first search of a run is the one that may prove the capacity too small.
            effort.exhaustive = searches == 0 && order.len() <= PROVABLE_ITEMS;
            effort.nodes = match round {
                0 => PLAIN_NODES,
                _ => NODES_UNIT * luby(searches / PREFERENCES.len() as u64 + 1),
            };
            match canonical_search::search(timeline, &order, effort) {
                Outcome::Unknown => {}
                settled => return settled,
            }
            spent += effort.nodes;
            searches += 1;
            self.searches += 1;
        }
        Outcome::Unknown
    }

    fn shuffled(&mut self, timeline: &Timeline, preference: [Trait; 3], jitter: f64) -> Vec<u32> {
        let peak = timeline.peak() as f64;
        let keys: Vec<[f64; 3]> = timeline
            .items
            .iter()
            .zip(&self.crowding)
            .map(|(item, &crowding)| {
                preference.map(|it| {
                    let shake = jitter * (2.0 * self.random.unit() - 1.0);
                    match it {
                        Trait::Lifetime => f64::from(item.lifetime()) * (1.0 + shake),
                        Trait::Area => item.area() as f64 * (1.0 + shake),
                        Trait::Crowding if jitter == 0.0 => crowding as f64,
                        Trait::Crowding => {
                            (crowding as f64 / peak * (1.0 + 0.1 * shake) * CROWDING_GRADES).floor()
                        }
                    }
                })
            })
            .collect();
        let mut order: Vec<u32> = (0..keys.len() as u32).collect();
        order.sort_by(|&a, &b| {
            let (a, b) = (&keys[a as usize], &keys[b as usize]);
            b.iter()
                .zip(a)
                .map(|(y, x)| y.total_cmp(x))
                .find(|o| o.is_ne())
                .unwrap_or(std::cmp::Ordering::Equal)
        });
        order
    }
}

/// The sequence 1, 1, 2, 1, 1, 2, 4, …: near-optimal lengths for runs of unknown difficulty.
fn luby(mut index: u64) -> u64 {
    loop {
        let power = (index + 1).next_power_of_two();
        if power == index + 1 {
            return power / 2;
        }
        index -= power / 2 - 1;
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn luby_sequence() {
        let start: Vec<u64> = (1..=15).map(super::luby).collect();
        assert_eq!(start, [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]);
    }
}
