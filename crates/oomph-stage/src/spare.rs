//! A spare interpreter: what the first run of a program left waiting, with its imports done, and forks for further runs
//! (`python/oomph/virtual/spare.py`).
//!
//! It comes to a socket in the folder of the run, its door. It is told the variables of a run and given its three files, and says the number
//! of the process that it forks, and how that ended. It ends when the socket is closed, however oomph ends, and takes the process with it that
//! runs.
//!
//! Boundary: that there is none, or none any more, is no error: whoever asks starts a process.

use crate::Launch;
use crate::handed;
use oomph_child::{Ended, Listener, Running};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal, getpid, kill_process};
use serde::Serialize;
use std::io::{self, BufRead, BufReader, ErrorKind, IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tracing::{debug, info};

/// How often it is looked for while it ends, and for how long.
const OFTEN: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_secs(1);

/// What the first run is told, to leave one.
#[derive(Debug, Serialize)]
pub struct Asked {
    door: String,
    /// What a fresh interpreter is given, for a run that cannot be forked after all.
    start: String,
    /// How many copies are left: as many as run at the same time.
    copies: u32,
}

/// The place where a spare waits.
#[derive(Debug)]
pub struct Spare {
    door: UnixListener,
    path: PathBuf,
    state: State,
    copies: u32,
    /// Whether the run has ended that was asked to leave one: none comes after that.
    is_over: Arc<AtomicBool>,
}

#[derive(Debug)]
enum State {
    /// Nothing was run yet that could leave one.
    Wanted,
    /// The first run was asked to.
    Asked,
    Here(Line),
    Gone,
}

impl Spare {
    /// Opens the door, in a folder of our own.
    pub fn open(folder: &Path) -> io::Result<Spare> {
        let path = folder.join("door");
        let door = UnixListener::bind(&path)?;
        door.set_nonblocking(true)?;
        Ok(Spare { door, path, state: State::Wanted, copies: 1, is_over: Arc::default() })
    }

    /// For somebody who runs the same at the same time, from a copy of it. Before anything is run.
    pub fn another(&mut self) -> io::Result<Spare> {
        let door = self.door.try_clone()?;
        self.copies += 1;
        let is_over = Arc::clone(&self.is_over);
        Ok(Spare { door, path: self.path.clone(), state: State::Asked, copies: 0, is_over })
    }

    /// What to tell the first run; nothing to those after it. `start`: the text of a fresh run.
    pub fn ask(&mut self, start: &str) -> Option<Asked> {
        if !matches!(self.state, State::Wanted) {
            return None;
        }
        self.state = State::Asked;
        Some(Asked { door: handed::text(&self.path), start: start.to_owned(), copies: self.copies })
    }

    /// The run has ended that was asked to leave one, or could not be started.
    pub fn first_is_over(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// Whether a run was asked to leave one.
    pub fn is_asked_for(&self) -> bool {
        !matches!(self.state, State::Wanted)
    }

    /// Runs what would be launched as a process, with these files for input and output. Gives nothing if there is no spare: it was not run then.
    pub fn run(
        &mut self,
        launch: &Launch,
        files: [BorrowedFd<'_>; 3],
        listener: &mut Listener,
        patience: Duration,
    ) -> io::Result<Option<Ended>> {
        self.await_it(listener);
        let State::Here(line) = &mut self.state else { return Ok(None) };
        let began = Instant::now();
        let variables: Vec<(String, Option<String>)> =
            launch.variables().map(|(name, value)| (handed::text(name), value.map(handed::text))).collect();
        let request = serde_json::to_vec(&variables)?;
        let ended = listener.run_by(
            || {
                line.ask(&request, files)?;
                Ok(&mut *line)
            },
            Some(patience),
            launch.longest(),
        );
        match ended {
            Ok(ended) => {
                info!(status = %ended.status, signal = ended.signal, seconds = began.elapsed().as_secs_f32(), "ended, from the spare interpreter");
                Ok(Some(ended))
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Err(error),
            Err(error) => {
                debug!(%error, "no spare interpreter");
                self.state = State::Gone;
                Ok(None)
            }
        }
    }
}

impl Spare {
    /// Waits until it has come, if a run was asked to leave one; or until it is known that none will.
    pub fn await_it(&mut self, listener: &mut Listener) {
        if matches!(self.state, State::Asked) {
            self.state = match self.comes(listener).and_then(Line::new) {
                Ok(line) => State::Here(line),
                Err(error) => {
                    debug!(%error, "no spare interpreter came");
                    State::Gone
                }
            };
        }
    }

    /// It comes before the first run begins, or never; whoever leaves none says so.
    fn comes(&self, listener: &mut Listener) -> io::Result<UnixStream> {
        let none = self.path.with_file_name("cold");
        loop {
            // In this order: what comes just before the end is not missed.
            let is_over = self.is_over.load(Ordering::Acquire) || none.exists();
            match self.door.accept() {
                Err(error)
                    if error.kind() == ErrorKind::WouldBlock && !is_over && listener.heard().is_none() =>
                {
                    std::thread::sleep(OFTEN);
                }
                result => return result.map(|(stream, _)| stream),
            }
        }
    }
}

impl Drop for Spare {
    /// It would end by itself. It is waited for all the same: whoever looks when oomph has ended finds nothing of it.
    fn drop(&mut self) {
        let line = match std::mem::replace(&mut self.state, State::Gone) {
            State::Here(line) => line,
            State::Asked => match self.door.accept().and_then(|(stream, _)| Line::new(stream)) {
                Ok(line) => line,
                Err(_) => return,
            },
            State::Wanted | State::Gone => return,
        };
        let until = Instant::now() + LONGEST;
        while Instant::now() < until {
            let said = lock(&line.said);
            let (spare, is_gone) = (said.spare, said.is_gone);
            drop(said);
            if let Some(pid) = spare {
                if !is_gone {
                    let _ = kill_process(pid, Signal::KILL);
                }
                if has_ended(pid) {
                    return;
                }
            }
            std::thread::sleep(OFTEN);
        }
    }
}

/// Whether a process is no more, or nothing of it is left but that nobody has asked how it ended.
fn has_ended(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).unwrap_or_default();
    // The state comes behind the name, which may have anything in it.
    stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with(['Z', 'X']))
}

/// The connection to a spare.
#[derive(Debug)]
struct Line {
    stream: UnixStream,
    said: Arc<Mutex<Said>>,
}

/// What it has said, of the run that goes on.
#[derive(Debug, Default)]
struct Said {
    spare: Option<Pid>,
    program: Option<Pid>,
    status: Option<i32>,
    is_gone: bool,
}

impl Line {
    fn new(stream: UnixStream) -> io::Result<Line> {
        stream.set_nonblocking(false)?;
        let said = Arc::default();
        let (from, into) = (stream.try_clone()?, Arc::clone(&said));
        std::thread::Builder::new().name("spare".into()).spawn(move || listen(from, &into))?;
        Ok(Line { stream, said })
    }

    fn ask(&mut self, request: &[u8], files: [BorrowedFd<'_>; 3]) -> io::Result<()> {
        let mut said = lock(&self.said);
        (said.program, said.status) = (None, None);
        drop(said);
        let length = u32::try_from(request.len()).map_err(|_| ErrorKind::InvalidInput)?.to_le_bytes();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&files));
        // So few bytes go whole. If nobody is there any more, that is an error, and no signal.
        sendmsg(&self.stream, &[IoSlice::new(&length)], &mut control, SendFlags::NOSIGNAL)?;
        self.stream.write_all(request)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // For the thread too, which has the same connection.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Notes what is said to the end of the connection. Whoever runs a program waits for signals, and is woken by the one that a child would cause.
fn listen(stream: UnixStream, said: &Mutex<Said>) {
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else { break };
        let Some((word, number)) = line.split_once(' ') else { continue };
        if word == "refused" {
            debug!(why = number, "the spare interpreter is of no use");
        }
        let Ok(number) = number.parse::<i32>() else { continue };
        let mut said = lock(said);
        match word {
            "spare" => said.spare = Pid::from_raw(number),
            "program" => said.program = Pid::from_raw(number),
            "ended" => said.status = Some(number),
            _ => {}
        }
        drop(said);
        let _ = kill_process(getpid(), Signal::CHILD);
    }
    lock(said).is_gone = true;
    let _ = kill_process(getpid(), Signal::CHILD);
}

fn lock(said: &Mutex<Said>) -> MutexGuard<'_, Said> {
    said.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Running for &mut Line {
    fn id(&mut self) -> Option<u32> {
        lock(&self.said).program.and_then(|pid| u32::try_from(pid.as_raw_pid()).ok())
    }

    /// An error if the spare is gone, and the program with it.
    fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        let said = lock(&self.said);
        match said.status {
            None if said.is_gone => Err(ErrorKind::UnexpectedEof.into()),
            status => Ok(status.map(ExitStatus::from_raw)),
        }
    }

    fn kill(&mut self) -> io::Result<()> {
        let said = lock(&self.said);
        // While it imports, there is no program yet. The number is its own as long as the connection is there; that of a program until the next is asked for.
        if let Some(pid) = said.program.or(said.spare).filter(|_| !said.is_gone) {
            let _ = kill_process(pid, Signal::KILL);
        }
        Ok(())
    }
}
