//! Growth: what steps leave behind, step after step.

use crate::context::Context;
use crate::kinds::Kind;
use oomph_trace::Moment;

/// Less than this is noise: a counter, a random state.
const LEAST: u64 = 1 << 20;
/// So many steps in a row make a pattern.
const STEPS: usize = 3;

/// Growth from step to step.
#[derive(Clone, Debug)]
pub struct Growth {
    /// The blocks that are kept.
    pub kept: Vec<u32>,
    /// The median of what a step leaves behind.
    pub per_step: u64,
    /// How many steps leave something behind, the first and last not counted.
    pub steps: usize,
}

impl Growth {
    /// Finds it, if steps leave something behind again and again.
    pub fn find(context: &Context) -> Option<Self> {
        let steps = context.steps.as_ref()?;
        let all = &context.history.allocations;
        // What the last step holds may be rightly its own; what the first makes may be meant to stay.
        let end: Moment = match context.fatal() {
            Some(oom) => oom.moment,
            None => context.device.events.len() as Moment,
        };
        let last = match steps.at(end) {
            Some(step) => step,
            None => steps.count().saturating_sub(1),
        };
        let mut kept: Vec<Vec<u32>> = vec![Vec::new(); steps.count()];
        for index in context.history.alive_at(end) {
            let Some(step) = steps.at(all.born(index as usize)) else { continue };
            let kind = context.kinds.kind(index as usize);
            if !matches!(kind, Kind::Parameter | Kind::OptimizerState | Kind::Gradient | Kind::Workspace) {
                kept[step].push(index);
            }
        }
        let sums: Vec<u64> =
            kept.iter().map(|step| step.iter().map(|&i| all.size(i as usize)).sum()).collect();
        let middle = sums.get(1..last)?;
        // A leak leaves as much every time; a cache that filled up once does not.
        let growing = middle.iter().filter(|&&sum| sum >= LEAST).count();
        if growing < STEPS.min(middle.len().max(2)) || growing * 10 < middle.len() * 8 {
            return None;
        }
        let mut sorted = middle.to_vec();
        sorted.sort_unstable();
        let per_step = sorted[sorted.len() / 2];
        // The first step leaks as much as the others do.
        let kept: Vec<u32> = kept.into_iter().take(last).flatten().collect();
        Some(Growth { kept, per_step, steps: growing })
    }
}
