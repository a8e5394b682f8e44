//! Which plan of a convolution is taken where the program lets cuDNN try them (`torch.backends.cudnn.benchmark = True`).
//!
//! PyTorch then makes all plans that cuDNN proposes, allocates the largest of their workspaces at once, runs the first ten (`benchmark_limit`) for their time,
//! gives its cache back and takes the fastest. All of that happens here as it does on a card, but for the times: nothing takes time here. Plans are taken to be the
//! faster the earlier cuDNN proposes them, and no two take the same time, so that those behind the first are there if it gets no memory. On an H200 the one that won
//! had the first one's workspace in 67 of 100 of 737 convolutions, and one within 1 MiB of it in 88; no other rule did better. What any of those that were tried would have
//! needed is added up, so that a result can say a range.

use crate::{lock, memory, state};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// What the first plan is said to take, and how much longer each of the following: nanoseconds.
const TIME: u64 = 1_000_000;
const LONGER: u64 = 1_000;

/// Convolutions whose plans were tried, and what those need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tried {
    /// How many convolutions.
    pub count: u64,
    /// The most bytes that another plan would need less than the one that was taken, of any convolution.
    pub less: u64,
    /// And the most that one would need more.
    pub more: u64,
}

/// Plans that were made one after another, for one convolution.
#[derive(Debug)]
struct Search {
    /// Of plans that were made since the last convolution: their number in the order, and their workspace.
    plans: BTreeMap<usize, (u64, u64)>,
    /// Workspaces of those that were run: of the first, the least, the most.
    run: Option<(u64, u64, u64)>,
    /// The last number of one that was run.
    last: Option<u64>,
    /// Whether they were tried, and the one that won was not run yet.
    is_open: bool,
    tried: Tried,
}

impl Search {
    const fn new() -> Search {
        let tried = Tried { count: 0, less: 0, more: 0 };
        Search { plans: BTreeMap::new(), run: None, last: None, is_open: false, tried }
    }

    fn made(&mut self, plan: usize, workspace: u64) {
        if self.run.is_some() {
            self.plans.clear();
            (self.run, self.last, self.is_open) = (None, None, false);
        }
        let number = self.plans.len() as u64;
        self.plans.insert(plan, (number, workspace));
    }

    /// Whether this plan ends a trial: the first again, after others. The largest workspace is free by then.
    fn ends(&mut self, plan: usize) -> bool {
        let is_first = self.plans.get(&plan).is_some_and(|(number, _)| *number == 0);
        is_first && std::mem::take(&mut self.is_open)
    }

    fn ran(&mut self, plan: usize) -> u64 {
        let Some(&(number, workspace)) = self.plans.get(&plan) else { return TIME };
        let (first, least, most) = self.run.unwrap_or((workspace, workspace, workspace));
        let (least, most) = (least.min(workspace), most.max(workspace));
        self.run = Some((first, least, most));
        // A second one is run: they are tried, and all that follow are compared with the first.
        if self.last.is_some_and(|last| number > last) {
            self.is_open = true;
            let tried = &mut self.tried;
            tried.count += u64::from(self.last == Some(0));
            tried.less = tried.less.max(first - least);
            tried.more = tried.more.max(most - first);
        }
        self.last = self.last.max(Some(number));
        TIME + LONGER * number
    }
}

static SEARCH: Mutex<Search> = Mutex::new(Search::new());

pub fn made(plan: usize, workspace: i64) {
    lock(&SEARCH).made(plan, u64::try_from(workspace).unwrap_or(0));
}

/// A plan was run; the nanoseconds that it is said to take.
pub fn ran(plan: usize) -> u64 {
    let mut search = lock(&SEARCH);
    let time = search.ran(plan);
    if search.ends(plan) {
        memory::settle(state::device());
    }
    time
}

pub fn tried() -> Tried {
    lock(&SEARCH).tried
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_that_are_tried_differ_in_time_and_say_what_they_need() {
        let mut search = Search::new();
        for (plan, workspace) in [(1, 40), (2, 10), (3, 70), (4, 900)] {
            search.made(plan, workspace);
        }
        // Each twice, the last of them not at all, and the first once more because it won.
        let times: Vec<u64> = [1, 1, 2, 2, 3, 3, 1].iter().map(|plan| search.ran(*plan)).collect();
        assert_eq!(times, [TIME, TIME, TIME + 1000, TIME + 1000, TIME + 2000, TIME + 2000, TIME]);
        assert_eq!(search.tried, Tried { count: 1, less: 30, more: 30 });
        assert!(!search.ends(3) && search.ends(1), "the winner ends it");
        // In later steps the winner alone is run.
        search.ran(1);
        assert_eq!((search.tried.count, search.ends(1)), (1, false));
    }

    #[test]
    fn a_plan_that_is_not_compared_is_not_tried() {
        let mut search = Search::new();
        for plan in 1..5 {
            search.made(plan, 100 * plan as u64);
            search.ran(plan);
            search.ran(plan);
        }
        assert_eq!(search.tried, Tried::default());
        assert_eq!(search.ran(99), TIME, "one that was made for something else");
    }
}
