//! Squeaky-wheel optimisation: places the items by first fit again and again, each time moving those that
//! ended up too high further to the front of the order.

use super::first_fit::{self, Order};
use super::occupancy::Occupancy;
use super::random::Random;
use super::timeline::Timeline;
use super::watch::Watch;

/// Rounds without a better height after which to return to the best order, with another step.
const PATIENCE: u32 = 60;
/// How far a squeaky item moves at most, in terms of the logarithm of its place in the order.
const STEPS: [f64; 3] = [0.3, 0.05, 1.0];
/// The share of its advance that an item loses in every round in which it does not squeak.
const DECAY: f64 = 0.05;

/// A course of rounds over one timeline that can be continued.
pub(super) struct SqueakyWheel {
    order: Order,
    /// Earlier is higher.
    urgency: Vec<f64>,
    initial: Vec<f64>,
    best: Vec<f64>,
    best_height: u64,
    stale_rounds: u32,
    step: usize,
    occupancy: Occupancy,
    random: Random,
}

impl SqueakyWheel {
    /// Starts from an order that places the items well.
    pub fn new(timeline: &Timeline, order: Order) -> Self {
        let mut urgency = vec![0.0; order.len()];
        for (place, &i) in order.iter().enumerate() {
            urgency[i as usize] = -(place as f64 + 1.0).ln();
        }
        SqueakyWheel {
            order,
            initial: urgency.clone(),
            best: urgency.clone(),
            urgency,
            best_height: u64::MAX,
            stale_rounds: 0,
            step: 0,
            occupancy: Occupancy::new(timeline.moments),
            random: Random::new(),
        }
    }

    /// Goes on for some rounds; the offsets of the lowest placement if it is lower than `height`.
    pub fn run(
        &mut self,
        timeline: &Timeline,
        target: u64,
        height: u64,
        rounds: usize,
        watch: &mut Watch,
    ) -> Option<Vec<u64>> {
        let mut lowest = None;
        let mut lowest_height = height;
        for _ in 0..rounds {
            self.order.sort_by(|&a, &b| self.urgency[b as usize].total_cmp(&self.urgency[a as usize]));
            let Some(offsets) = first_fit::place(timeline, &self.order, u64::MAX, &mut self.occupancy, watch)
            else {
                break;
            };
            let reached = timeline.height(&offsets);
            self.remember(reached);
            self.blame(timeline, &offsets, target);
            if reached < lowest_height {
                lowest_height = reached;
                lowest = Some(offsets);
            }
            if reached <= target {
                break;
            }
        }
        lowest
    }

    fn remember(&mut self, height: u64) {
        if height < self.best_height {
            self.best_height = height;
            self.best.copy_from_slice(&self.urgency);
            self.stale_rounds = 0;
            return;
        }
        self.stale_rounds += 1;
        if self.stale_rounds > PATIENCE {
            self.urgency.copy_from_slice(&self.best);
            self.stale_rounds = 0;
            self.step = (self.step + 1) % STEPS.len();
        }
    }

    fn blame(&mut self, timeline: &Timeline, offsets: &[u64], target: u64) {
        for (i, item) in timeline.items.iter().enumerate() {
            if offsets[i].saturating_add(item.size) > target {
                self.urgency[i] += STEPS[self.step] * self.random.unit();
            } else {
                self.urgency[i] -= DECAY * (self.urgency[i] - self.initial[i]);
            }
        }
    }
}
