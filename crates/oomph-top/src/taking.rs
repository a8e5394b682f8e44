//! A sample, and what recordings of RAM say at that time.

use crate::ram::{HeldBy, Recordings};
use oomph_host::{Sample, Sampler};

/// What is known at one moment.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) sample: Sample,
    pub(crate) ram: HeldBy,
}

#[cfg(test)]
impl From<Sample> for Taken {
    fn from(sample: Sample) -> Self {
        Self { sample, ram: HeldBy::new() }
    }
}

/// Takes samples, and follows what is recorded meanwhile.
pub(crate) struct Taker {
    sampler: Sampler,
    recordings: Recordings,
}

impl Taker {
    pub(crate) fn new() -> Self {
        Self { sampler: Sampler::new(), recordings: Recordings::new(false) }
    }

    /// For a view that goes on while a driver wakes up, or a long recording is read.
    pub(crate) fn hurried() -> Self {
        Self { sampler: Sampler::new().hurried(), recordings: Recordings::new(true) }
    }

    pub(crate) fn take(&mut self) -> Taken {
        let sample = self.sampler.sample();
        let ram = self.recordings.look(&sample.processes);
        Taken { sample, ram }
    }
}
