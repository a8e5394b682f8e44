//! The clock and the caller's say in when to stop.

use std::time::{Duration, Instant};

/// How often the caller is asked whether to go on.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);

/// Knows when to stop.
pub(super) struct Watch<'a> {
    deadline: Option<Instant>,
    progress: Option<&'a mut dyn FnMut(u64) -> bool>,
    last_report: Instant,
    best_height: u64,
    stopped: bool,
}

impl<'a> Watch<'a> {
    pub fn new(time: Duration, progress: &'a mut dyn FnMut(u64) -> bool) -> Self {
        let now = Instant::now();
        Watch {
            // A limit too far off to be represented is no limit.
            deadline: now.checked_add(time),
            progress: Some(progress),
            last_report: now,
            best_height: u64::MAX,
            stopped: false,
        }
    }

    /// A watch that never stops anything.
    pub fn unlimited() -> Self {
        Watch {
            deadline: None,
            progress: None,
            last_report: Instant::now(),
            best_height: u64::MAX,
            stopped: false,
        }
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Notes the best height so far, to be reported.
    pub fn note_height(&mut self, height: u64) {
        self.best_height = height;
    }

    /// Whether to stop now; reports progress when it is time to.
    pub fn is_over(&mut self) -> bool {
        if self.stopped {
            return true;
        }
        let now = Instant::now();
        self.stopped = self.deadline.is_some_and(|deadline| now >= deadline);
        if !self.stopped && now.duration_since(self.last_report) >= PROGRESS_INTERVAL {
            self.last_report = now;
            if let Some(progress) = &mut self.progress {
                self.stopped = !progress(self.best_height);
            }
        }
        self.stopped
    }
}
