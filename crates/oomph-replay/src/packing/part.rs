//! One independent stretch of time and the best placement found for it.

use super::best_fit;
use super::canonical_search::Outcome;
use super::first_fit::{self, Order, RECIPES, Recipe};
use super::occupancy::Occupancy;
use super::random::Random;
use super::restarts::Restarts;
use super::squeaky_wheel::SqueakyWheel;
use super::timeline::Timeline;
use super::watch::Watch;

/// The canonical search keeps a list of neighbours per item and takes linear time per node.
const SEARCHABLE_ITEMS: usize = 2000;
/// Items placed by first fit in one turn, all rounds together.
const ITEMS_PER_TURN: usize = 100_000;
const MAX_ROUNDS_PER_TURN: usize = 200;
/// How much the order of the crest is shuffled, in turn.
const JITTERS: [f64; 2] = [0.05, 0.3];
/// What to start from besides the recipe that did best.
const DEFAULT_RECIPE: Recipe = RECIPES[1];
/// Search nodes spent on one height in the first sweep over heights; doubles with every sweep.
const NODES_PER_HEIGHT: u64 = 25_000;
/// How much more to spend on the goal itself: a find there ends it all.
const GOAL_SHARE: u64 = 4;

/// A part of the problem that shares no moment with the rest.
pub(super) struct Part {
    pub timeline: Timeline,
    pub offsets: Vec<u64>,
    pub height: u64,
    pub method: &'static str,
    /// No placement is lower than this.
    pub bound: u64,
    /// The recipe that did best.
    recipe: Option<Recipe>,
    state: Option<State>,
}

/// What is kept between turns.
struct State {
    turn: u64,
    crowding: Vec<u64>,
    random: Random,
    occupancy: Occupancy,
    /// One from the best order known, one from the default.
    wheels: [SqueakyWheel; 2],
    search: Option<HeightSweep>,
}

/// Bisection over heights with the canonical search; what fails is tried again with more effort in the
/// next sweep.
struct HeightSweep {
    restarts: Restarts,
    sweep: u32,
    /// The greatest height at which this sweep has failed.
    failed: Option<u64>,
}

impl Part {
    /// Places the items by best fit.
    pub fn new(timeline: Timeline) -> Self {
        let offsets = best_fit::place(&timeline);
        let height = timeline.height(&offsets);
        let bound = timeline.peak();
        Part { timeline, offsets, height, method: "best fit", bound, recipe: None, state: None }
    }

    /// Takes a placement if it is lower.
    fn offer(&mut self, offsets: Vec<u64>, method: &'static str) -> bool {
        let height = self.timeline.height(&offsets);
        if height >= self.height {
            return false;
        }
        self.height = height;
        self.offsets = offsets;
        self.method = method;
        true
    }

    /// Tries the orders known to work well, until one reaches `goal`.
    pub fn try_orders(&mut self, goal: u64, watch: &mut Watch) {
        let goal = goal.max(self.bound);
        let crowding = self.timeline.crowding();
        let mut occupancy = Occupancy::new(self.timeline.moments);
        for recipe in RECIPES {
            if self.height <= goal || watch.is_over() {
                return;
            }
            let order = recipe.order(&self.timeline, &crowding);
            if self.try_order(&order, "first fit", &mut occupancy, watch) {
                self.recipe = Some(recipe);
            }
        }
    }

    fn try_order(
        &mut self,
        order: &[u32],
        method: &'static str,
        occupancy: &mut Occupancy,
        watch: &mut Watch,
    ) -> bool {
        let ceiling = self.height.saturating_sub(1);
        let placed = first_fit::place(&self.timeline, order, ceiling, occupancy, watch);
        placed.is_some_and(|offsets| self.offer(offsets, method))
    }

    /// Spends a short while on a lower placement, with one method after the other.
    pub fn improve(&mut self, goal: u64, watch: &mut Watch) {
        let goal = goal.max(self.bound);
        let mut state = self.state.take().unwrap_or_else(|| self.first_state());
        match (state.turn % 4, &mut state.search) {
            (0, _) => self.turn_wheel(&mut state.wheels[0], goal, watch),
            (1, _) => self.shuffle_orders(&mut state, goal, watch),
            (3, Some(sweep)) => self.search(sweep, goal, watch),
            _ => self.turn_wheel(&mut state.wheels[1], goal, watch),
        }
        state.turn += 1;
        self.state = Some(state);
    }

    fn first_state(&self) -> State {
        let crowding = self.timeline.crowding();
        let order = match self.recipe {
            Some(recipe) => recipe.order(&self.timeline, &crowding),
            None => self.order_of_offsets(),
        };
        let searchable = self.timeline.sums_fit && self.timeline.items.len() <= SEARCHABLE_ITEMS;
        State {
            turn: 0,
            random: Random::new(),
            occupancy: Occupancy::new(self.timeline.moments),
            wheels: [order, DEFAULT_RECIPE.order(&self.timeline, &crowding)]
                .map(|order| SqueakyWheel::new(&self.timeline, order)),
            search: searchable.then(|| HeightSweep::new(crowding.clone())),
            crowding,
        }
    }

    /// First fit in this order is no higher than the placement it is taken from.
    fn order_of_offsets(&self) -> Order {
        let mut order: Order = (0..self.offsets.len() as u32).collect();
        order.sort_by_key(|&i| self.offsets[i as usize]);
        order
    }

    fn rounds_per_turn(&self) -> usize {
        (ITEMS_PER_TURN / self.timeline.items.len().max(1)).clamp(1, MAX_ROUNDS_PER_TURN)
    }

    fn turn_wheel(&mut self, wheel: &mut SqueakyWheel, goal: u64, watch: &mut Watch) {
        let rounds = self.rounds_per_turn();
        if let Some(offsets) = wheel.run(&self.timeline, goal, self.height, rounds, watch) {
            self.offer(offsets, "squeaky wheel");
        }
    }

    fn shuffle_orders(&mut self, state: &mut State, goal: u64, watch: &mut Watch) {
        let recipe = self.recipe.unwrap_or(DEFAULT_RECIPE);
        for round in 0..self.rounds_per_turn() {
            if self.height <= goal || watch.is_over() {
                return;
            }
            let jitter = JITTERS[round % JITTERS.len()];
            let random = &mut state.random;
            let shake = || 1.0 + jitter * (2.0 * random.unit() - 1.0);
            let order = recipe.shuffled_order(&self.timeline, &state.crowding, shake);
            self.try_order(&order, "shuffled first fit", &mut state.occupancy, watch);
        }
    }

    fn search(&mut self, sweep: &mut HeightSweep, goal: u64, watch: &mut Watch) {
        let capacity = sweep.next_height(goal, self.height);
        let share = if capacity == goal { GOAL_SHARE } else { 1 };
        let nodes = share * (NODES_PER_HEIGHT << sweep.sweep.min(32));
        match sweep.restarts.run(&self.timeline, capacity, nodes, watch) {
            Outcome::Found(offsets) => {
                self.offer(offsets, "canonical search");
            }
            Outcome::Impossible => self.bound = self.bound.max(capacity + 1),
            Outcome::Unknown => sweep.failed = Some(capacity),
        }
    }
}

impl HeightSweep {
    fn new(crowding: Vec<u64>) -> Self {
        HeightSweep { restarts: Restarts::new(crowding), sweep: 0, failed: None }
    }

    /// The height to try next: the goal first, then half-way between what failed and what is known.
    fn next_height(&mut self, goal: u64, known: u64) -> u64 {
        let finest = (goal >> (10 + self.sweep.min(32))).max(1);
        if let Some(failed) = self.failed.filter(|&failed| failed >= goal && failed < known) {
            if known - failed > finest {
                return failed + (known - failed) / 2;
            }
            self.sweep += 1;
            self.failed = None;
        }
        goal
    }
}
