//! What the GPU has done and what it still has to do.
//!
//! PyTorch reuses memory that another stream has used only once an event on that stream is complete, so that when events
//! complete decides how much is reserved. Nothing computes here, but a real GPU is behind the CPU that feeds it: by as
//! much as its queue holds when it is the slower of the two, which is when memory matters. So an event is complete
//! when the host has waited for it, directly or through streams that wait for each other, or when a queue's length of
//! kernels was launched after it.

use crate::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Launches that a GPU's queue holds before the CPU has to wait.
const QUEUE: u64 = 1024;
/// A program that only polls sees the event complete after so many queries: on a real GPU, time would pass.
const PATIENCE: u32 = 10_000;

static LAUNCHES: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds that work is said to have taken, of which little is known.
static CLOCK: AtomicU64 = AtomicU64::new(0);

/// When something was put into a stream.
#[derive(Clone, Copy, Debug)]
struct Recorded {
    stream: usize,
    tick: u64,
    launches: u64,
    clock: u64,
    asked: u32,
}

/// All streams and events.
#[derive(Debug, Default)]
struct Queue {
    tick: u64,
    events: BTreeMap<usize, Recorded>,
    /// Up to which tick a stream is known to be done.
    done: BTreeMap<usize, u64>,
    /// What a stream waits for: other streams, up to a tick.
    waits: BTreeMap<usize, BTreeMap<usize, u64>>,
    /// Up to which tick everything is done.
    all_done: u64,
}

static STATE: Mutex<Queue> = Mutex::new(Queue {
    tick: 1,
    events: BTreeMap::new(),
    done: BTreeMap::new(),
    waits: BTreeMap::new(),
    all_done: 0,
});

impl Queue {
    fn record(&mut self, event: usize, stream: usize, launches: u64, clock: u64) {
        self.tick += 1;
        self.events.insert(event, Recorded { stream, tick: self.tick, launches, clock, asked: 0 });
    }

    fn elapsed(&self, start: usize, end: usize) -> Option<u64> {
        let (start, end) = (self.events.get(&start)?, self.events.get(&end)?);
        end.clock.checked_sub(start.clock).filter(|time| *time > 0)
    }

    fn wait(&mut self, stream: usize, event: usize) {
        if let Some(recorded) = self.events.get(&event) {
            let tick = self.waits.entry(stream).or_default().entry(recorded.stream).or_default();
            *tick = recorded.tick.max(*tick);
        }
    }

    /// The host knows that a stream is done up to a tick, and so is what that stream waited for.
    fn finish(&mut self, stream: usize, tick: u64) {
        let done = self.done.entry(stream).or_default();
        if *done >= tick {
            return;
        }
        *done = tick;
        let waited: Vec<(usize, u64)> = self
            .waits
            .get(&stream)
            .map(|waits| waits.iter().map(|(to, tick)| (*to, *tick)).collect())
            .unwrap_or_default();
        for (other, tick) in waited {
            if other != stream {
                self.finish(other, tick);
            }
        }
    }

    fn is_done(&mut self, event: usize, launches: u64) -> bool {
        let Some(recorded) = self.events.get_mut(&event) else { return true };
        recorded.asked = recorded.asked.saturating_add(1);
        recorded.tick <= self.all_done
            || recorded.tick <= self.done.get(&recorded.stream).copied().unwrap_or(0)
            || launches.saturating_sub(recorded.launches) >= QUEUE
            || recorded.asked >= PATIENCE
    }
}

/// A kernel was launched.
pub fn launch() {
    LAUNCHES.fetch_add(1, Ordering::Relaxed);
}

/// An event was put into a stream.
pub fn record(event: usize, stream: usize) {
    lock(&STATE).record(event, stream, LAUNCHES.load(Ordering::Relaxed), CLOCK.load(Ordering::Relaxed));
}

/// Work takes so many nanoseconds.
pub fn spend(time: u64) {
    CLOCK.fetch_add(time, Ordering::Relaxed);
}

/// The nanoseconds between two events, if anything between them took time.
pub fn elapsed(start: usize, end: usize) -> Option<u64> {
    lock(&STATE).elapsed(start, end)
}

/// A stream will wait for an event.
pub fn wait(stream: usize, event: usize) {
    lock(&STATE).wait(stream, event);
}

/// Whether an event is complete.
pub fn is_done(event: usize) -> bool {
    lock(&STATE).is_done(event, LAUNCHES.load(Ordering::Relaxed))
}

/// The host waits for an event.
pub fn finish_event(event: usize) {
    let mut state = lock(&STATE);
    if let Some(recorded) = state.events.get(&event).copied() {
        state.finish(recorded.stream, recorded.tick);
    }
}

/// The host waits for a stream.
pub fn finish_stream(stream: usize) {
    let mut state = lock(&STATE);
    let tick = state.tick;
    state.finish(stream, tick);
}

/// The host waits for everything.
pub fn finish_all() {
    let mut state = lock(&STATE);
    state.all_done = state.tick;
}

/// An event is gone.
pub fn forget(event: usize) {
    lock(&STATE).events.remove(&event);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_done_when_the_host_waited_or_the_queue_went_by() {
        let mut queue = Queue::default();
        assert!(queue.is_done(1, 0), "an event that was never recorded");
        queue.record(1, 10, 0, 0);
        assert!(!queue.is_done(1, QUEUE - 1));
        assert!(queue.is_done(1, QUEUE));
        queue.record(2, 10, 0, 0);
        queue.finish(10, queue.tick);
        assert!(queue.is_done(2, 0));
    }

    #[test]
    fn waiting_for_a_stream_is_waiting_for_what_it_waits_for() {
        let mut queue = Queue::default();
        queue.record(1, 20, 0, 0);
        queue.wait(10, 1);
        queue.record(2, 20, 0, 0);
        queue.finish(10, queue.tick);
        assert!(queue.is_done(1, 0));
        assert!(!queue.is_done(2, 0), "what came after on the other stream is not");
    }

    #[test]
    fn a_program_that_polls_is_let_go() {
        let mut queue = Queue::default();
        queue.record(1, 10, 0, 0);
        assert!((0..PATIENCE).any(|_| queue.is_done(1, 0)));
    }

    #[test]
    fn time_passes_only_where_something_took_time() {
        let mut queue = Queue::default();
        queue.record(1, 10, 0, 5);
        queue.record(2, 10, 0, 5);
        queue.record(3, 10, 0, 12);
        assert_eq!((queue.elapsed(1, 2), queue.elapsed(1, 3), queue.elapsed(3, 1)), (None, Some(7), None));
        assert_eq!(queue.elapsed(1, 4), None, "an event that was never recorded");
    }
}
