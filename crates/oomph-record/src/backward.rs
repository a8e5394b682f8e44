//! Allocations of the backward pass, and the forward line that caused them.
//!
//! Autograd's threads have no Python stack, but every node of its graph has a number, which is known when the forward pass makes it and when the
//! backward pass runs it. Who sees both tells them: a prediction does, which sees every operation; a run does not.
//!
//! Boundary: knows numbers of nodes and of stacks; what a stack is, [`crate::tables`] knows.

use crate::spread::Map;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Graphs that are this old are gone.
const MOST: usize = 1 << 20;

/// How many recordings there were.
static COUNT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The recording in which this thread's backward pass was reported, and the stack that stands for it.
    static RUNS: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
}

/// Which stack made each node, by its number, and what threads run.
pub(crate) struct Forwards {
    recording: u64,
    made_by: Map<u64, u32>,
    newest: u64,
}

impl Forwards {
    /// Of a recording that begins.
    pub(crate) fn new() -> Self {
        Self { recording: COUNT.fetch_add(1, Relaxed) + 1, made_by: Map::default(), newest: 0 }
    }

    /// Whether it is known who made a node. The first has made it: operations that make none find the number of one before.
    pub(crate) fn knows(&self, number: u64) -> bool {
        self.made_by.contains_key(&number)
    }

    pub(crate) fn made(&mut self, number: u64, stack: u32) {
        self.made_by.insert(number, stack);
        self.newest = self.newest.max(number);
        if self.made_by.len() > MOST {
            let oldest = self.newest.saturating_sub(MOST as u64 / 2);
            self.made_by.retain(|number, _| *number > oldest);
        }
    }

    /// Who made a node; 0 if nobody knows.
    pub(crate) fn stack_of(&self, number: u64) -> u32 {
        self.made_by.get(&number).copied().unwrap_or(0)
    }

    /// This thread runs the backward pass that this stack stands for, until it runs another.
    pub(crate) fn runs(&self, stack: u32) {
        let _ = RUNS.try_with(|runs| runs.set((self.recording, stack)));
    }

    /// The stack of what this thread runs; 0 if it is not in a backward pass, or nobody has said so.
    pub(crate) fn running(&self) -> u32 {
        let (recording, stack) = RUNS.try_with(Cell::get).unwrap_or_default();
        if recording == self.recording { stack } else { 0 }
    }
}
