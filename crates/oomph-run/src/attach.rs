//! Records the RAM of a process that runs already, until it ends or the recording is to end.
//!
//! A folder is made that the process can read, with the recorder's library and the Python that loads it (`python/oomph/live/ram_attached.py`, which says what else is in the folder). No thread stays in
//! the process. The recording is ended by a call of the library, from a thread that waits, or by Python when that runs; and by the library itself at its next write, when this process has gone without a word.

use oomph_attach::{AttachError, Process, Target};
use oomph_child::Listener;
use oomph_stage::libraries::RAM;
use oomph_stage::{StageError, folder, package};
use rustix::fs::{FlockOperation, OFlags, flock};
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

const SCRIPT: &str = "live/ram_attached.py";
const BESIDE_IT: &str = "live/ram_library.py";
/// How often it is looked whether anything has changed.
const OFTEN: Duration = Duration::from_millis(20);
/// A main thread that comes to Python has done so by then.
const SOON: Duration = Duration::from_millis(300);
/// Then it is said what is waited for.
const LONG: Duration = Duration::from_secs(3);
/// How often a thread that waits for a lock is asked to look up.
const WAKES: u32 = 3;
/// A thread that waits is looked for so long, before Python is asked.
const TO_FIND: Duration = Duration::from_millis(100);
/// To write the rest takes a thread that waits, or comes to Python.
const TO_END: Duration = Duration::from_secs(10);

/// What is to be recorded.
#[derive(Debug)]
pub struct Attach {
    pub process: Process,
    /// Where the recording goes. Whoever asks for it has made sure that it is nobody else's.
    pub output: PathBuf,
    /// How large it may become.
    pub most_bytes: u64,
    /// How long is recorded; until one of both ends without.
    pub longest: Option<Duration>,
}

/// What has come so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The main thread does not come to Python: where it waits, if it does.
    Waits(Option<String>),
    Began,
}

/// How the recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With the process, or when that became another program.
    WithProcess,
    /// As it was to: the process goes on.
    Stopped,
    /// The process has not come to end it: it will when it asks for memory next.
    NotYet,
    /// It never began: this signal came before.
    GaveUp(i32),
}

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The process cannot be attached to.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// What is put into it cannot be made.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// This process cannot listen to signals, or look at files.
    #[error(transparent)]
    Own(#[from] io::Error),
    /// `oomph run --ram` has started it.
    #[error("process {pid} is being recorded by oomph run --ram already")]
    OfRun { pid: u32, hint: String },
    /// Something else records it.
    #[error("the RAM of process {0} is being recorded already")]
    UnderWay(u32),
    /// The process cannot write the file.
    #[error("{}: process {pid} cannot write it: {error}", path.display())]
    File { pid: u32, path: PathBuf, error: io::Error },
    /// The recorder does not come into it.
    #[error("the RAM of process {pid} cannot be recorded: {why}")]
    NotThere {
        pid: u32,
        /// In the words of what is in it.
        why: String,
    },
}

impl RecordError {
    /// What to do about it.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Attach(error) => error.hint(),
            Self::OfRun { hint, .. } => Some(hint),
            Self::UnderWay(_) => Some(
                "by oomph.record, oomph.profile_ram or another oomph run --attach; there is one recording at a time",
            ),
            Self::File { .. } => Some("name a place that the process may write to with --output"),
            _ => None,
        }
    }
}

impl Attach {
    /// Records, and says what comes.
    pub fn run(&self, tell: &mut dyn FnMut(Event)) -> Result<End, RecordError> {
        let process = &self.process;
        if !RAM.exists() {
            return Err(AttachError::Platform.into());
        }
        let mut target = Target::find(process.clone())?;
        if let Some(hint) = of_run(process) {
            return Err(RecordError::OfRun { pid: process.pid, hint });
        }
        let mut listener = Listener::start()?;
        let folder = Folder::make(process, &self.task())?;
        self.give()?;
        target.run(&folder.script(), folder.path())?;

        let asked = Instant::now();
        let (mut wakes, mut has_said) = (0, false);
        let stop = loop {
            if let Some(answer) = folder.answer() {
                match answer.strip_prefix("began ").map(str::parse) {
                    Some(Ok(address)) => break address,
                    _ => return Err(self.wrong(&answer)),
                }
            }
            if let Some(signal) = listener.heard() {
                return Ok(End::GaveUp(signal));
            }
            if !target.is_there() {
                return Err(AttachError::Ended(process.pid).into());
            }
            wake(&target, asked, &mut wakes);
            if !has_said && asked.elapsed() > LONG {
                has_said = true;
                tell(Event::Waits(process.waits_in()));
            }
            sleep(OFTEN);
        };
        tell(Event::Began);

        let began = Instant::now();
        let is_enough = || self.longest.is_some_and(|longest| began.elapsed() >= longest);
        while target.is_there() && listener.heard().is_none() && !is_enough() {
            sleep(OFTEN);
        }
        self.end(&mut target, stop, &folder)
    }

    /// Ends the recording, in whichever way comes first. What goes wrong on one of them is no error: the library ends it too, when the folder is gone.
    fn end(&self, target: &mut Target, stop: u64, folder: &Folder) -> Result<End, RecordError> {
        folder.give(b"end  ")?;
        let asked = Instant::now();
        let (mut wakes, mut is_asked) = (0, false);
        while target.is_there() {
            if target.call_idle(stop).unwrap_or(false) || folder.answer().as_deref() == Some("ended") {
                return Ok(End::Stopped);
            }
            if asked.elapsed() > TO_END {
                return Ok(End::NotYet);
            }
            if !is_asked && asked.elapsed() > TO_FIND {
                is_asked = target.run(&folder.script(), folder.path()).is_ok();
            }
            if is_asked {
                wake(target, asked, &mut wakes);
            }
            sleep(OFTEN);
        }
        Ok(End::WithProcess)
    }

    /// As `ram_attached.py` reads it.
    fn task(&self) -> Vec<u8> {
        [format!("record {} ", self.most_bytes).as_bytes(), self.output.as_os_str().as_bytes()].concat()
    }

    /// The process may be another user's, who may not make a file here.
    fn give(&self) -> Result<(), RecordError> {
        let (user, group) = self.process.owner;
        let parent = self.output.parent().unwrap_or(Path::new("/"));
        if !self.process.sees(parent)? {
            return Err(AttachError::OtherFiles(self.process.pid).into());
        }
        if user == rustix::process::geteuid().as_raw() {
            return Ok(());
        }
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        let file = options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(&self.output)?;
        Ok(fchown(file, Some(user), Some(group))?)
    }

    fn wrong(&self, answer: &str) -> RecordError {
        const BUSY: i32 = 16;
        let pid = self.process.pid;
        match answer.strip_prefix("errno ").and_then(|number| number.parse().ok()) {
            Some(BUSY) => RecordError::UnderWay(pid),
            Some(number) => {
                let error = io::Error::from_raw_os_error(number);
                RecordError::File { pid, path: self.output.clone(), error }
            }
            None => RecordError::NotThere { pid, why: answer.to_owned() },
        }
    }
}

/// A main thread that waits for a lock is to look up: some times, for it may wait for one that is not Python's.
fn wake(target: &Target, asked: Instant, wakes: &mut u32) {
    if *wakes < WAKES && asked.elapsed() > SOON * (*wakes + 1) {
        *wakes += 1;
        target.wake();
    }
}

/// Where `oomph run --ram` has the recording of a process that it has started.
fn of_run(process: &Process) -> Option<String> {
    let text = process.variable("OOMPH_RAM")?;
    let stem = text.to_str()?.splitn(3, ':').nth(2)?.to_owned();
    let own = format!("{stem}-{}.oomph", process.pid);
    let path = if Path::new(&own).exists() { own } else { format!("{stem}.oomph") };
    Some(format!("its recording can be read while it runs: oomph explain {path}"))
}

/// What is put where the process finds it. Gone when this is: what the process has not begun to run by then, it never runs.
struct Folder {
    folder: tempfile::TempDir,
    /// All that is the process's to write.
    answer: File,
    /// Held locked as long as this is there.
    _command: File,
}

impl Folder {
    fn make(process: &Process, task: &[u8]) -> Result<Folder, RecordError> {
        let folder = folder::folder()?;
        let path = folder.path();
        let write = |error| StageError::write(path, error);
        RAM.write(path).map_err(write)?;
        for file in [SCRIPT, BESIDE_IT] {
            package::write_file(path, file).map_err(StageError::from)?;
        }
        let command = File::create(path.join("command")).map_err(write)?;
        flock(&command, FlockOperation::LockExclusive).map_err(io::Error::from)?;
        let mut options = OpenOptions::new();
        let answer =
            options.read(true).write(true).create_new(true).open(path.join("answer")).map_err(write)?;
        let folder = Folder { folder, answer, _command: command };
        folder.give(task)?;
        if !process.sees(folder.path())? {
            return Err(AttachError::OtherFiles(process.pid).into());
        }
        let (user, group) = process.owner;
        if user != rustix::process::geteuid().as_raw() {
            folder.show().map_err(|error| StageError::write(folder.path(), error))?;
            fchown(&folder.answer, Some(user), Some(group))?;
        }
        Ok(folder)
    }

    /// Another user's process reads what is in it. It stays ours: nobody else puts anything there.
    fn show(&self) -> io::Result<()> {
        for entry in std::fs::read_dir(self.path())? {
            std::fs::set_permissions(entry?.path(), Permissions::from_mode(0o644))?;
        }
        std::fs::set_permissions(self.path(), Permissions::from_mode(0o711))
    }

    /// Gives it something to do.
    fn give(&self, task: &[u8]) -> Result<(), StageError> {
        let path = self.path().join("task");
        std::fs::write(&path, task).map_err(|error| StageError::write(&path, error))
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn script(&self) -> PathBuf {
        self.path().join(Path::new(SCRIPT).file_name().unwrap_or_default())
    }

    /// What the process has said last.
    fn answer(&self) -> Option<String> {
        // It could write anything.
        let mut bytes = [0; 4096];
        let length = self.answer.read_at(&mut bytes, 0).ok()?;
        let text = String::from_utf8_lossy(&bytes[..length]);
        Some(text.split_once('\n')?.0.to_owned())
    }
}
