//! The machine as it is now: GPUs as NVML has them, RAM as the kernel has it, the limits of control groups, processes, and what
//! processes that run under oomph say of themselves.
//!
//! Reads, and decides nothing: views (`oomph top`), checks (`oomph doctor`) and loaders (`oomph data`) do. What cannot be
//! read is absent, never zero. Bytes throughout.

mod asked;
mod environment;
#[cfg(test)]
#[path = "../tests/nvml/mod.rs"]
mod fake_nvml;
mod gpus;
mod inside;
mod memory;
mod processes;
mod recordings;
mod smi;
mod standing;
mod stat;
mod text;

pub use environment::{Environment, Surroundings, hides_others};
pub use gpus::{Gpu, GpuProcess, Gpus, Missing, Unreadable, Use};
pub use inside::{Inside, InsideDevice, Line, Reader as InsideReader, folder as inside_folder};
pub use memory::{Group, Level, Machine, Ram, Shm, Swap, levels};
pub use processes::{Process, user_of_directory};
pub use recordings::OpenRecording;
pub use standing::{Standing, command_of};

use serde::Serialize;
use std::path::PathBuf;

/// Everything at one moment.
#[derive(Debug, Clone, Serialize)]
pub struct Sample {
    /// Milliseconds since 1970.
    pub time: u64,
    /// RAM and its limits.
    pub machine: Machine,
    /// Cards, and who is on them.
    pub gpus: Gpus,
    /// Processes, by their numbers.
    pub processes: Vec<Process>,
}

/// Takes samples; keeps open what need not be opened each time.
pub struct Sampler {
    root: PathBuf,
    gpus: asked::Asked,
    processes: processes::Reader,
}

impl Sampler {
    /// Looks for NVML where the system has it, or uses the library that the variable `OOMPH_NVML` names, if it is not empty; that
    /// there is none is no error.
    pub fn new() -> Self {
        let library = std::env::var_os("OOMPH_NVML").filter(|named| !named.is_empty());
        Self { gpus: asked::Asked::new(library.map(Into::into)), ..Self::at("/") }
    }

    /// With `/proc`, `/sys`, `/dev` and `/etc` below another folder: for tests, and for a host seen from within a container.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        Self { gpus: asked::Asked::new(None), processes: processes::Reader::new(&root), root }
    }

    /// The same with this library for NVML.
    #[must_use]
    pub fn with_nvml(self, library: impl Into<PathBuf>) -> Self {
        Self { gpus: asked::Asked::new(Some(library.into())), ..self }
    }

    /// The same for a view that goes on while the driver wakes up, which can take half a minute: it waits two seconds for the first
    /// answer too.
    #[must_use]
    pub fn hurried(self) -> Self {
        Self { gpus: self.gpus.hurried(), ..self }
    }

    /// What is now. Of cards, if the driver does not answer, what it said last ([`Gpus::silent_for`]).
    pub fn sample(&mut self) -> Sample {
        let gpus = self.gpus.read();
        let processes = self.processes.read(&gpus);
        let time = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_millis() as u64);
        Sample { time, machine: Machine::read(&self.root), gpus, processes }
    }
}

impl Default for Sampler {
    fn default() -> Self {
        Self::new()
    }
}
