//! Tries the ways to use the host on the running program, and keeps the fastest.
//!
//! What is best depends on the bus, on what the driver's calls cost and on how kernels use what they read over the bus: it
//! is measured. Once steps go alike, each way has a few steps; the first of them is not counted. Without any look at
//! memory or the driver: [`super::policy`] reports what it sees and does what is chosen.

use std::time::Duration;

/// A way to use the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What the report calls it.
    pub name: &'static str,
    /// Whether optimizer state is on the device during the optimizer's step, or on the host for good.
    pub state_moves: bool,
    /// Whether the coldest of the rest goes out when memory runs short and comes back before it is needed, or fixed parts
    /// of memory are on the host for good.
    pub rest_moves: bool,
}

/// All ways, the likely ones first. Those from [`WITH_STATE`] on differ only for a program with optimizer state.
pub const POLICIES: [Policy; 4] = [
    Policy { name: "everything moves", state_moves: true, rest_moves: true },
    Policy { name: "only optimizer state moves", state_moves: true, rest_moves: false },
    Policy { name: "optimizer state stays", state_moves: false, rest_moves: true },
    Policy { name: "everything stays", state_moves: false, rest_moves: false },
];
const WITH_STATE: usize = 2;

/// Steps that must go alike before anything is tried.
const STEPS_ALIKE: u32 = 2;
/// Steps of each way, of which the first is not counted.
const STEPS: u32 = 3;
/// A way that is so much slower than the best is left after one step that counts.
const MUCH_SLOWER: f64 = 1.5;
/// Steps after which all is tried again, and before which it is not, however much changes.
const AGAIN: u32 = 500;
const NOT_BEFORE: u32 = 50;

/// What a step was like, to compare the next with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pattern {
    /// Blocks that came and went.
    pub events: u64,
    /// The most granules that lived.
    pub peak: usize,
    /// Whether that was more than the device has.
    pub overflows: bool,
    /// Whether there is optimizer state.
    pub has_state: bool,
}

impl Pattern {
    fn is_like(self, other: Pattern) -> bool {
        let near = |one: u64, two: u64| one.abs_diff(two) * 20 <= one.max(two);
        let same = self.overflows == other.overflows && self.has_state == other.has_state;
        same && near(self.events, other.events) && near(self.peak as u64, other.peak as u64)
    }
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// So many steps went alike.
    Waiting(u32),
    /// So many steps of a way are over; the first of them was at that time.
    Trying(usize, u32, Duration),
    /// The best is in use for so many steps; so many of the last were unlike those it was found by.
    Kept(u32, u32),
}

/// What was tried and found.
#[derive(Clone, Debug)]
pub struct Trial {
    stage: Stage,
    policy: Policy,
    pattern: Pattern,
    times: [Option<Duration>; POLICIES.len()],
}

impl Default for Trial {
    fn default() -> Self {
        let [policy, ..] = POLICIES;
        Trial { stage: Stage::Waiting(0), policy, pattern: Pattern::default(), times: [None; POLICIES.len()] }
    }
}

impl Trial {
    /// One that uses a way whatever is measured.
    #[cfg(test)]
    pub(super) fn of(policy: Policy) -> Trial {
        Trial { policy, ..Trial::default() }
    }

    /// The way that is in use.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Whether it was chosen by measurement.
    #[cfg(test)]
    pub fn is_settled(&self) -> bool {
        matches!(self.stage, Stage::Kept(..))
    }

    /// How long a step took, by way.
    pub fn times(&self) -> impl Iterator<Item = (&'static str, Duration)> + '_ {
        POLICIES.iter().zip(self.times).filter_map(|(policy, time)| time.map(|time| (policy.name, time)))
    }

    /// A step is over. `now` waits for the GPU, so it is asked only where it counts.
    pub fn step_ended(&mut self, pattern: Pattern, now: impl FnOnce() -> Duration) {
        let alike = pattern.is_like(self.pattern);
        match self.stage {
            Stage::Waiting(_) if !pattern.overflows => {
                // Nothing needs to be on the host: all of it comes back.
                let [first, ..] = POLICIES;
                (self.policy, self.pattern, self.stage) = (first, pattern, Stage::Waiting(0));
            }
            Stage::Waiting(steps) => {
                let steps = if alike { steps + 1 } else { 0 };
                (self.pattern, self.stage) = (pattern, Stage::Waiting(steps));
                if steps >= STEPS_ALIKE {
                    self.times = [None; POLICIES.len()];
                    self.try_from(0);
                }
            }
            Stage::Trying(..) if !alike => {
                self.pattern = pattern;
                self.policy = self.best();
                self.stage = Stage::Waiting(0);
            }
            Stage::Trying(index, 0, _) => self.stage = Stage::Trying(index, 1, now()),
            Stage::Trying(index, steps, began) => {
                let time = now().saturating_sub(began) / steps;
                let best = self.times.iter().flatten().min().copied();
                let hopeless = best.is_some_and(|best| time > best.mul_f64(MUCH_SLOWER));
                if steps + 1 < STEPS && !hopeless {
                    self.stage = Stage::Trying(index, steps + 1, began);
                    return;
                }
                if let Some(place) = self.times.get_mut(index) {
                    *place = Some(time);
                }
                self.try_from(index + 1);
            }
            Stage::Kept(steps, unlike) => {
                let unlike = if alike { 0 } else { unlike + 1 };
                self.stage = Stage::Kept(steps + 1, unlike);
                if steps >= AGAIN || unlike > STEPS_ALIKE && steps >= NOT_BEFORE {
                    self.stage = Stage::Waiting(0);
                }
            }
        }
    }

    /// Tries the next way, or keeps the best if there is none.
    fn try_from(&mut self, index: usize) {
        match POLICIES.get(index).filter(|_| self.pattern.has_state || index < WITH_STATE) {
            Some(policy) => {
                self.policy = *policy;
                self.stage = Stage::Trying(index, 0, Duration::ZERO);
            }
            None => {
                self.policy = self.best();
                self.stage = Stage::Kept(0, 0);
            }
        }
    }

    fn best(&self) -> Policy {
        let [first, ..] = POLICIES;
        let tried =
            POLICIES.iter().zip(self.times).filter_map(|(policy, time)| time.map(|time| (time, *policy)));
        tried.min_by_key(|(time, _)| *time).map_or(first, |(_, policy)| policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs steps that take so many milliseconds by way; gives how many it took until one was kept.
    fn settle(trial: &mut Trial, clock: &mut u64, times: [u64; 4], has_state: bool) -> usize {
        for step in 1..100 {
            let index = POLICIES.iter().position(|policy| *policy == trial.policy()).unwrap_or(0);
            *clock += times.get(index).copied().unwrap_or(0);
            let now = *clock;
            let pattern = Pattern { events: 1000, peak: 100, overflows: true, has_state };
            trial.step_ended(pattern, || Duration::from_millis(now));
            if trial.is_settled() {
                return step;
            }
        }
        0
    }

    #[test]
    fn the_fastest_way_is_kept_and_slow_ones_are_left_early() {
        let (mut trial, mut clock) = (Trial::default(), 0);
        assert_eq!(settle(&mut trial, &mut clock, [200, 400, 180, 170], true), 3 + 4 * 3 - 1);
        assert_eq!(trial.policy().name, "everything stays");
        let times: Vec<u128> = trial.times().map(|(_, time)| time.as_millis()).collect();
        assert_eq!(times, [200, 400, 180, 170]);

        let (mut trial, mut clock) = (Trial::default(), 0);
        settle(&mut trial, &mut clock, [200, 190, 1, 1], false);
        assert_eq!((trial.policy().name, trial.times().count()), ("only optimizer state moves", 2));
    }

    #[test]
    fn all_is_tried_again_when_steps_change_for_good() {
        let (mut trial, mut clock) = (Trial::default(), 0);
        settle(&mut trial, &mut clock, [200, 400, 180, 170], true);
        let other = Pattern { events: 2000, peak: 100, overflows: true, has_state: true };
        for _ in 0..NOT_BEFORE {
            trial.step_ended(other, || unreachable!("nothing is measured"));
            assert!(trial.is_settled());
        }
        trial.step_ended(other, || unreachable!("nothing is measured"));
        assert!(!trial.is_settled());
        assert_eq!(trial.policy().name, "everything stays", "until something better is known");
        trial.step_ended(Pattern { overflows: false, ..other }, || unreachable!("nothing is measured"));
        assert_eq!(trial.policy(), POLICIES[0], "what fits comes back");
    }

    #[test]
    fn steps_that_go_never_alike_try_nothing() {
        let mut trial = Trial::default();
        for step in 0..100 {
            let pattern =
                Pattern { events: 1000 + step % 2 * 500, peak: 100, overflows: true, has_state: true };
            trial.step_ended(pattern, || unreachable!("nothing is measured"));
        }
        assert_eq!(trial.policy(), POLICIES[0]);
    }
}
