//! Runs another program and never leaves it behind: signals that end oomph reach it, and oomph ends after it.
//!
//! What a signal means to the caller (folders to remove, an exit code) is the caller's; this crate only says which one came.

#[cfg(not(unix))]
mod elsewhere;
#[cfg(unix)]
mod leftovers;
#[cfg(unix)]
mod unix;
#[cfg(unix)]
mod witness;

#[cfg(not(unix))]
pub use elsewhere::{Listener, RemovedOnSignal, Stopper};
#[cfg(unix)]
pub use leftovers::RemovedOnSignal;
use std::io;
use std::process::{Child, ExitStatus};
#[cfg(unix)]
pub use unix::{Listener, Stopper};

/// A program that runs: a child, or one that somebody else has started for oomph.
pub trait Running {
    /// Its number, once that is known.
    fn id(&mut self) -> Option<u32>;
    /// How it ended, if it has.
    fn try_wait(&mut self) -> io::Result<Option<ExitStatus>>;
    fn kill(&mut self) -> io::Result<()>;
}

impl Running for Child {
    fn id(&mut self) -> Option<u32> {
        Some(Child::id(self))
    }

    fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        Child::try_wait(self)
    }

    fn kill(&mut self) -> io::Result<()> {
        Child::kill(self)
    }
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its own end.
    pub status: ExitStatus,
    /// The first signal that oomph heard of meanwhile and that asks it to end.
    pub signal: Option<i32>,
}

impl Ended {
    /// The exit code, as a shell would say it: 128 and its number for a signal.
    pub fn code(&self) -> u8 {
        self.status
            .code()
            .map_or_else(|| killed(self.status), |code| u8::try_from(code & 0xff).unwrap_or(u8::MAX))
    }
}

/// The exit code of a process that this signal ended, as a shell reports it.
pub fn code_of(signal: i32) -> u8 {
    u8::try_from(signal & 0x7f).map_or(u8::MAX, |signal| 128 + signal)
}

#[cfg(unix)]
fn killed(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    status.signal().map_or(u8::MAX, code_of)
}

#[cfg(not(unix))]
fn killed(_status: ExitStatus) -> u8 {
    u8::MAX
}
