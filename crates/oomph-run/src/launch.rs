//! Starts a program and waits for it.

use crate::left::{Left, Stage, Task};
use oomph_child::{Ended, Listener};
use oomph_gpus::Gpu;
use oomph_stage::guard::{Guard, Limits, Report};
use oomph_stage::installed::{Installed, InstalledError, interpreters};
use oomph_stage::libraries::RECORD;
use oomph_stage::ram::Ram;
use oomph_stage::{Launch, StageError, VirtualGpu, handed};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// A program to be run.
#[derive(Clone, Debug)]
pub struct Program {
    /// The interpreter, for scripts and modules.
    pub python: Option<PathBuf>,
    /// What to run, and its arguments.
    pub words: Vec<OsString>,
    /// Whether the first word is a module, as `python -m` takes it.
    pub module: bool,
    /// Where the recording goes; none is made without. Whoever asks for it has made sure that it is nobody else's.
    pub output: Option<PathBuf>,
    /// Where the recording of the first process's host memory goes, where one is made; those of others have their number behind its name.
    pub ram: Option<PathBuf>,
    /// Whether functions of C are recorded with it.
    pub native: bool,
    /// How large a recording may become.
    pub most_bytes: u64,
    /// What the program may have.
    pub limits: Limits,
    /// A virtual card instead of the machine's.
    pub gpu: Option<Gpu>,
    /// How many of them.
    pub devices: u32,
}

#[derive(Debug)]
pub struct Ran {
    pub ended: Ended,
    /// What its processes left.
    pub left: Vec<Left>,
    /// Whether the recorder came into any of them.
    pub was_entered: bool,
    /// What the guard of each process said.
    pub reports: Vec<Report>,
    /// Recordings of host memory, the first process's first.
    pub ram: Vec<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// Not built for Linux on x86-64 with glibc.
    #[error(
        "oomph run needs the recorder, which this build of oomph lacks: it is in the wheel for Linux on x86-64"
    )]
    Platform,
    /// No such file, and no such command.
    #[error("{0}: there is no such file, and no such command")]
    NoProgram(String),
    /// A notebook is run by its own kernel.
    #[error("{0} is a notebook, which its own kernel runs")]
    Notebook(String),
    #[error("no Python found: neither python3 nor python is on the path")]
    NoPython,
    #[error("{program}: {error}")]
    Start {
        /// What was to be started.
        program: String,
        error: io::Error,
    },
    /// No virtual card can be made here.
    #[error(transparent)]
    Installed(#[from] InstalledError),
    /// What is put under it cannot be made.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// The settings for the program cannot be written.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

impl LaunchError {
    /// What to do about it.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::NoProgram(_) => Some(
                "oomph run train.py --lr 1e-3, oomph run -m package.train, or oomph run torchrun train.py",
            ),
            Self::Notebook(_) => {
                Some("put %load_ext oomph into its first cell; %%oomph at the top of a cell records it")
            }
            Self::Stage(StageError::NoDriver) => Some(
                "without a GPU: oomph run --gpu t4 runs on a virtual card, and oomph predict says whether it fits",
            ),
            Self::NoPython => Some("name it with --python"),
            Self::Installed(error) => Some(error.hint()),
            _ => None,
        }
    }
}

impl Program {
    /// Runs it to its end.
    pub fn run(&self) -> Result<Ran, LaunchError> {
        if !RECORD.exists() {
            return Err(LaunchError::Platform);
        }
        let mut launch = Launch::new(self.command()?);
        let stage = Stage::set()?;
        let task = Task {
            library: handed::text(&stage.library),
            folder: handed::text(stage.folder()),
            output: self.output.as_deref().map(handed::text),
            most_bytes: self.most_bytes,
            starter: std::process::id(),
            processes: std::fs::read_link("/proc/self/ns/pid").map(|of| handed::text(&of)).ok(),
        };
        launch.command().env("OOMPH_RUN", serde_json::to_string(&task)?);
        launch.with_python(&stage.python());
        let card = match &self.gpu {
            None => None,
            Some(gpu) => {
                let card = VirtualGpu::set(&Installed::find(self.python_of_card().as_deref())?)?;
                launch.on(&card, gpu, self.devices);
                Some(card)
            }
        };
        let guard = match self.limits {
            Limits { budget: None, overflow: 0 } => None,
            limits => {
                let over = card.as_ref().map(VirtualGpu::driver);
                Some(Guard::set(stage.folder(), limits, over.as_deref())?)
            }
        };
        if let Some(guard) = &guard {
            launch.under(guard);
        }
        let began = SystemTime::now();
        if let Some(output) = &self.ram {
            launch.recording_ram(&Ram::set(stage.folder(), output, self.most_bytes, self.native)?);
        }
        let start = |error| LaunchError::Start {
            program: self.words.first().map(|word| word.display().to_string()).unwrap_or_default(),
            error,
        };
        // A program that saves its work when it is asked to end gets all the time it takes.
        let ended =
            Listener::start().and_then(|mut listener| launch.run(&mut listener, None)).map_err(start)?;
        let reports = guard.map(|guard| guard.reports()).unwrap_or_default();
        let ram = self.ram.as_deref().map(|output| recordings_of_ram(output, began)).unwrap_or_default();
        Ok(Ran { ended, left: stage.collect(), was_entered: stage.was_entered(), reports, ram })
    }

    fn command(&self) -> Result<Command, LaunchError> {
        let Some((first, rest)) = self.words.split_first() else {
            return Err(LaunchError::NoProgram(String::new()));
        };
        if self.module {
            let mut command = Command::new(self.interpreter()?);
            command.arg("-m").arg(first).args(rest);
            return Ok(command);
        }
        let path = Path::new(first);
        let bytes = first.as_encoded_bytes();
        if bytes.ends_with(b".ipynb") {
            return Err(LaunchError::Notebook(first.display().to_string()));
        }
        // As a shell would: a name without a folder is a command's, unless it is a script that lies here.
        let has_folder = bytes.contains(&b'/');
        if path.is_file() && (bytes.ends_with(b".py") || has_folder && !is_executable(path))
            || path.is_dir() && path.join("__main__.py").is_file()
        {
            let mut command = Command::new(self.interpreter()?);
            command.arg(first).args(rest);
            return Ok(command);
        }
        if has_folder && path.is_file() || on_path(first).is_some() {
            let mut command = Command::new(first);
            command.args(rest);
            return Ok(command);
        }
        if path.is_file() {
            let mut command = Command::new(self.interpreter()?);
            command.arg(first).args(rest);
            return Ok(command);
        }
        Err(LaunchError::NoProgram(first.display().to_string()))
    }

    /// Whose PyTorch the virtual card is made for: an interpreter that is run by its name is meant.
    pub fn python_of_card(&self) -> Option<PathBuf> {
        let first = self.words.first().map_or(Path::new(""), Path::new);
        let is_python = first.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python"));
        self.python.clone().or_else(|| (is_python && !self.module).then(|| first.to_path_buf()))
    }

    fn interpreter(&self) -> Result<PathBuf, LaunchError> {
        if let Some(python) = &self.python {
            return Ok(python.clone());
        }
        interpreters().iter().find_map(|name| on_path(name.as_ref())).ok_or(LaunchError::NoPython)
    }
}

/// Those that were begun since then: `train-ram.oomph`, and `train-ram-PID.oomph` of other processes.
fn recordings_of_ram(output: &Path, began: SystemTime) -> Vec<PathBuf> {
    let stem = output.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let is_ours = |name: &str| {
        let Some(number) = name.strip_prefix(&stem).and_then(|rest| rest.strip_suffix(".oomph")) else {
            return false;
        };
        number.is_empty() || number.strip_prefix('-').is_some_and(|digits| digits.parse::<u32>().is_ok())
    };
    let mut found: Vec<(u32, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_new = entry.metadata().and_then(|one| one.modified()).is_ok_and(|when| when >= began);
        if let Some(name) = name.to_str().filter(|name| is_new && is_ours(name)) {
            let number =
                name.trim_end_matches(".oomph").rsplit('-').next().and_then(|digits| digits.parse().ok());
            found.push((number.unwrap_or(0), folder.join(name)));
        }
    }
    found.sort();
    found.into_iter().map(|(_, path)| path).collect()
}

fn on_path(name: &OsStr) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file() && is_executable(path))
}

#[cfg(unix)]
fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|metadata| metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_executable(_path: &Path) -> bool {
    true
}
