//! Whether a signal was sent to the whole process group, or to this process alone. Nothing in the signal itself says so.
//!
//! A process that only waits is kept in the group: a signal that has ended it was sent to all, and the program has it already.
//! Boundary: what to do about that is for whoever passes signals on.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How often it is looked after while it ends.
const OFTEN: Duration = Duration::from_millis(5);
/// A signal that is on its way to it has ended it by then.
const LONGEST: Duration = Duration::from_secs(2);

/// The process that waits, gone when this is.
#[derive(Debug)]
pub(crate) struct Witness(Child);

impl Witness {
    /// None where there is no shell, or no further process may be.
    pub(crate) fn start() -> Option<Witness> {
        // It ends with its input, however this process ends, and leaves no core file.
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -c 0; exec cat"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok().map(Witness)
    }

    /// Whether this signal was sent to it too.
    pub(crate) fn was_sent(&mut self, signal: i32) -> bool {
        let until = Instant::now() + LONGEST;
        // The kernel notes at once what it has sent; on a busy machine it may take a while until a process ends of it.
        while self.end().is_none() && self.is_being_sent() && Instant::now() < until {
            std::thread::sleep(OFTEN);
        }
        self.end() == Some(signal)
    }

    /// The signal that has ended it; 0 if something else has.
    pub(crate) fn end(&mut self) -> Option<i32> {
        match self.0.try_wait() {
            Ok(ended) => ended.map(|status| status.signal().unwrap_or(0)),
            Err(_) => Some(0),
        }
    }

    fn is_being_sent(&self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()));
        let masks = ["SigPnd:", "ShdPnd:"];
        status.unwrap_or_default().lines().any(|line| {
            let mask = masks.iter().find_map(|name| line.strip_prefix(name));
            mask.is_some_and(|mask| mask.trim().contains(|digit| digit != '0'))
        })
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
