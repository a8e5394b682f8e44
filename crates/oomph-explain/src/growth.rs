//! Growth: what steps leave behind, step after step.

use crate::observed::Observed;
use hashbrown::HashSet;
use oomph_trace::{Moment, StackId};

/// Less than this is noise: a counter, a random state.
const LEAST: u64 = 1 << 20;
/// So many rounds make a pattern.
const ROUNDS: usize = 3;

/// Growth from step to step.
#[derive(Clone, Debug)]
pub(crate) struct Growth {
    /// The blocks that are kept.
    pub(crate) kept: Vec<u32>,
    /// The median of what a step leaves behind.
    pub(crate) per_step: u64,
    /// How many steps leave something behind, the first and last not counted.
    pub(crate) steps: usize,
}

impl Growth {
    /// Finds it, if steps leave something behind again and again.
    pub(crate) fn find(observed: &Observed) -> Option<Self> {
        let steps = observed.steps.as_ref()?;
        let all = &observed.history.allocations;
        // What the last step holds may be rightly its own; what the first makes may be meant to stay.
        let end: Moment = match observed.fatal() {
            Some(oom) => oom.moment,
            None => observed.device.events.len() as Moment,
        };
        let last = match steps.at(end) {
            Some(step) => step,
            None => steps.count().saturating_sub(1),
        };
        let mut kept: Vec<Vec<u32>> = vec![Vec::new(); steps.count()];
        for index in observed.history.alive_at(end) {
            let Some(step) = steps.at(all.born(index as usize)) else { continue };
            let kind = observed.kinds.kind(index as usize);
            if !kind.is_of_the_model() {
                kept[step].push(index);
            }
        }
        let sums: Vec<u64> =
            kept.iter().map(|step| step.iter().map(|&i| all.size(i as usize)).sum()).collect();
        let middle = sums.get(1..last)?;
        // A round of the program may take several of an optimizer's steps: only one of them may leak.
        let (growing, per_step) =
            (1..=LONGEST_ROUND).find_map(|round| leaving_again_and_again(middle, round))?;
        // The first step makes things that are meant to stay; of those, what the others leave behind too is leaked.
        let leaking: HashSet<StackId> =
            kept[1..last].iter().flatten().map(|&index| all.stack(index as usize)).collect();
        let kept: Vec<u32> = kept
            .into_iter()
            .take(last)
            .flatten()
            .filter(|&index| leaking.contains(&all.stack(index as usize)))
            .collect();
        Some(Self { kept, per_step, steps: growing })
    }
}

/// The most optimizer steps that are taken as one round.
const LONGEST_ROUND: usize = 4;

/// How many rounds leave something behind, and how much in the median, if nearly all do: a leak leaves as much
/// every time, a cache that filled up once does not.
fn leaving_again_and_again(sums: &[u64], round: usize) -> Option<(usize, u64)> {
    let mut rounds: Vec<u64> = sums.chunks_exact(round).map(|steps| steps.iter().sum()).collect();
    let growing = rounds.iter().filter(|&&sum| sum >= LEAST).count();
    // Of a short recording, two rounds in the middle are all there is.
    let enough = if rounds.len() == 2 && round == 1 { 2 } else { ROUNDS };
    if growing < enough || growing * 10 < rounds.len() * 8 {
        return None;
    }
    rounds.sort_unstable();
    Some((growing, rounds[rounds.len() / 2]))
}
