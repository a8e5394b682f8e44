//! Signals while a child runs.
//!
//! Ctrl-C (SIGINT) and Ctrl-\ (SIGQUIT) go to every process of the terminal, the child included: passed on, they would come twice,
//! and the second would end a program that is saving its work after the first. The others are sent to oomph alone.

use crate::Ended;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use std::io;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What asks to end.
const ENDING: [i32; 4] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];
/// What a program may use for itself, as those under Slurm do to save their work.
const USER_DEFINED: [i32; 2] = [SIGUSR1, SIGUSR2];
const PASSED_ON: [i32; 4] = [SIGHUP, SIGTERM, SIGUSR1, SIGUSR2];

/// Whether a listener handles signals already.
pub(crate) static LISTENING: AtomicBool = AtomicBool::new(false);

/// How often a child is looked after that was asked to end.
const OFTEN: Duration = Duration::from_millis(20);

/// Receives signals from its start to the end of the process: they no longer end the process, its owner handles them.
#[derive(Debug)]
pub struct Listener {
    signals: Signals,
    first: Option<i32>,
}

impl Listener {
    /// Begins to listen. What was ignored before (nohup, a job in the background) is ignored on, by children too.
    pub fn start() -> io::Result<Listener> {
        LISTENING.store(true, Ordering::Relaxed);
        let ignored = ignored();
        let listened =
            ENDING.into_iter().chain(USER_DEFINED).filter(|signal| ignored & (1 << (signal - 1)) == 0);
        Ok(Listener { signals: Signals::new(listened.chain([SIGCHLD]))?, first: None })
    }

    /// The first signal so far that asks to end.
    pub fn heard(&mut self) -> Option<i32> {
        for signal in self.signals.pending() {
            note(&mut self.first, signal);
        }
        self.first
    }

    /// Runs a program to its end. Asked to end, it gets this long before it is killed, or all the time it takes.
    /// If the signal to end was there before, nothing is started: the error is `Interrupted`.
    pub fn run(&mut self, command: &mut Command, patience: Option<Duration>) -> io::Result<Ended> {
        if self.heard().is_some() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let mut child = command.spawn()?;
        let mut deadline = None;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Ended { status, signal: self.heard() });
            }
            let come: Vec<i32> = if self.first.is_some() && patience.is_some() {
                std::thread::sleep(OFTEN);
                self.signals.pending().collect()
            } else {
                // SIGCHLD is among them: this ends when the child does.
                self.signals.wait().collect()
            };
            for signal in come {
                note(&mut self.first, signal);
                if PASSED_ON.contains(&signal) {
                    send(&child, signal);
                }
            }
            if let (Some(patience), Some(_), None) = (patience, self.first, deadline) {
                deadline = Some(Instant::now() + patience);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                child.kill()?;
            }
        }
    }
}

fn note(first: &mut Option<i32>, signal: i32) {
    if first.is_none() && ENDING.contains(&signal) {
        *first = Some(signal);
    }
}

fn send(child: &Child, signal: i32) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let (Some(pid), Some(signal)) = (pid, Signal::from_named_raw(signal)) {
        // It has not been waited for, so the number is still its own; if it has ended meanwhile, nothing happens.
        let _ = kill_process(pid, signal);
    }
}

/// The signals that this process ignores, as Linux shows them; elsewhere none are known.
pub(crate) fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
