//! How busy processes are: processor time between two samples.

use oomph_host::{Process, Sample};
use std::collections::HashMap;

/// A process: its number, and when it started, since numbers are used again.
pub(crate) type Id = (u32, u64);

pub(crate) fn id(process: &Process) -> Id {
    (process.pid, process.start_ticks)
}

/// Processor time as of the sample before.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    time: u64,
    processor: HashMap<Id, u64>,
    percent: HashMap<Id, f64>,
}

impl Rates {
    pub(crate) fn update(&mut self, sample: &Sample) {
        let passed = sample.time.saturating_sub(self.time);
        self.percent.clear();
        if self.time != 0 && passed > 0 {
            for process in &sample.processes {
                if let Some(before) = self.processor.get(&id(process)) {
                    let spent = process.processor.saturating_sub(*before);
                    self.percent.insert(id(process), spent as f64 * 100.0 / passed as f64);
                }
            }
        }
        self.processor.clear();
        self.processor.extend(sample.processes.iter().map(|process| (id(process), process.processor)));
        self.time = sample.time;
    }

    /// Per cent of a processor; none of a process that was not there before.
    pub(crate) fn of(&self, process: &Process) -> Option<f64> {
        self.percent.get(&id(process)).copied()
    }
}
