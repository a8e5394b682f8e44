//! Starts a process with what oomph puts under it. Every process on the virtual GPU, under the guard or with the recorder is started here:
//! this is the one place that writes another program's `LD_PRELOAD` and `PYTHONPATH`.

use crate::VirtualGpu;
use crate::guard::Guard;
use crate::ram::Ram;
use oomph_child::{Ended, Listener};
use oomph_gpus::Gpu;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tracing::{debug, info};

/// Which allocator Arrow takes.
const ARROW_ALLOCATOR: &str = "ARROW_DEFAULT_MEMORY_POOL";

/// A process to be started. The user's own `LD_PRELOAD` and `PYTHONPATH` come after what is put there.
#[derive(Debug)]
pub struct Launch {
    command: Command,
    preload: Vec<PathBuf>,
    python: Vec<PathBuf>,
    longest: Option<Duration>,
}

impl Launch {
    /// As the command says, with nothing under it yet.
    pub fn new(command: Command) -> Launch {
        Launch { command, preload: Vec::new(), python: Vec::new(), longest: None }
    }

    /// The command, for its input, output and variables.
    pub fn command(&mut self) -> &mut Command {
        &mut self.command
    }

    /// On `devices` virtual cards. Real ones, if there are any, are not what is asked about.
    pub fn on(&mut self, card: &VirtualGpu, gpu: &Gpu, devices: u32) {
        info!(gpu = gpu.name, memory = gpu.memory, devices, "on a virtual GPU");
        self.command.envs(card.environment(gpu, devices)).env_remove("CUDA_VISIBLE_DEVICES");
        self.preload.extend_from_slice(card.preload());
        self.python.extend(card.python().map(Path::to_path_buf));
    }

    /// Under a guard, which comes before the card.
    pub fn under(&mut self, guard: &Guard) {
        self.preload.splice(0..0, guard.preload.iter().cloned());
        self.command.env("OOMPH_GUARD", &guard.description);
    }

    /// With its host memory recorded. The library comes before all others: who comes after it is asked by it.
    pub fn recording_ram(&mut self, ram: &Ram) {
        self.preload.insert(0, ram.library.clone());
        self.command.env("OOMPH_RAM", &ram.description);
        // Another recorder's may be there.
        match ram.native {
            true => self.command.env("OOMPH_RAM_NATIVE", "1"),
            false => self.command.env_remove("OOMPH_RAM_NATIVE"),
        };
        // Arrow's own allocator maps arenas of which nobody knows the lines. Whoever has chosen one keeps it.
        if std::env::var_os(ARROW_ALLOCATOR).is_none() {
            self.command.env(ARROW_ALLOCATOR, "system");
        }
    }

    /// With a folder first on Python's path.
    pub fn with_python(&mut self, folder: &Path) {
        self.python.insert(0, folder.to_path_buf());
    }

    /// Killed if it is still there after this long.
    pub fn within(&mut self, longest: Option<Duration>) {
        self.longest = longest;
    }

    /// How long it may take.
    #[cfg(unix)]
    pub(crate) fn longest(&self) -> Option<Duration> {
        self.longest
    }

    /// The variables that are set for it, or removed, beside those of what is put under it.
    #[cfg(unix)]
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&OsStr, Option<&OsStr>)> {
        self.command.get_envs()
    }

    /// Runs it to its end. Signals that ask oomph to end reach it; with `patience` it is killed if it takes longer than that to obey.
    pub fn run(mut self, listener: &mut Listener, patience: Option<Duration>) -> io::Result<Ended> {
        if !self.preload.is_empty() {
            self.command.env("LD_PRELOAD", before("LD_PRELOAD", &self.preload));
        }
        if !self.python.is_empty() {
            self.command.env("PYTHONPATH", before("PYTHONPATH", &self.python));
        }
        // No arguments: people pass tokens in them, and this is what they paste into a bug report.
        let arguments = self.command.get_args().len();
        info!(program = %self.command.get_program().display(), arguments, "starting");
        for (name, value) in self.command.get_envs() {
            let value = if holds_arguments(name) { Some(OsStr::new("(not shown)")) } else { value };
            debug!(name = %name.display(), value = %value.unwrap_or(OsStr::new("(removed)")).display());
        }
        let began = Instant::now();
        let ended = listener.run_within(&mut self.command, patience, self.longest)?;
        info!(status = %ended.status, signal = ended.signal, seconds = began.elapsed().as_secs_f32(), "ended");
        Ok(ended)
    }
}

/// The tasks that oomph hands to its own Python have the program's arguments in them.
fn holds_arguments(variable: &OsStr) -> bool {
    ["OOMPH_PREDICT", "OOMPH_RUN"].iter().any(|name| variable == *name)
}

/// A variable that lists files or folders, with these first. The loader takes spaces for separators too, so what was there stays as it was written.
fn before(variable: &str, paths: &[PathBuf]) -> OsString {
    let mut list = OsString::new();
    for path in paths {
        if !list.is_empty() {
            list.push(":");
        }
        list.push(path);
    }
    if let Some(others) = std::env::var_os(variable).filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}
