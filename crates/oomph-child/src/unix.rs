//! Signals while a child runs.
//!
//! Whatever is sent to end oomph is passed on to the child, so that it is not left behind; but not SIGKILL, which nobody hears, nor real-time signals. What was sent to the whole process group
//! (Ctrl-C at a terminal, `timeout`, a job's scheduler) has reached the child already: passed on, it would come twice, and the second would
//! end a program that is saving its work after the first. The [`Witness`] tells the two apart.

use crate::witness::Witness;
use crate::{Ended, Running};
use rustix::process::{Pid, Signal, getpgid, getpgrp, kill_process};
use signal_hook::consts::{
    SIGABRT, SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGSYS, SIGTERM, SIGTRAP, SIGUSR1,
    SIGUSR2, SIGVTALRM, SIGXCPU, SIGXFSZ,
};
use signal_hook::iterator::{Handle, Signals};
use std::io;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What asks to end: whoever does not listen to these dies of them.
const ENDING: [i32; 13] = [
    SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGABRT, SIGALRM, SIGVTALRM, SIGPROF, SIGXCPU, SIGXFSZ, SIGIO, SIGTRAP,
    SIGSYS,
];
/// What a program may use for itself, as those under Slurm do to save their work.
const USER_DEFINED: [i32; 2] = [SIGUSR1, SIGUSR2];
/// What a terminal sends to all of a group: not passed on where that cannot be told.
const OF_TERMINALS: [i32; 2] = [SIGINT, SIGQUIT];

/// Whether a listener handles signals already.
pub(crate) static LISTENING: AtomicBool = AtomicBool::new(false);

/// How often a child is looked after that was asked to end.
const OFTEN: Duration = Duration::from_millis(20);
/// `timeout` and others send a signal to the process, and right after that to its group.
const RIGHT_AFTER: Duration = Duration::from_millis(50);

/// Receives signals from its start to the end of the process: they no longer end the process, its owner handles them.
#[derive(Debug)]
pub struct Listener {
    signals: Signals,
    first: Option<i32>,
    stop: Arc<AtomicBool>,
}

/// Ends what a listener runs, from another thread: as if SIGTERM had come, and to this listener alone.
#[derive(Clone, Debug)]
pub struct Stopper {
    stop: Arc<AtomicBool>,
    signals: Handle,
}

impl Stopper {
    /// The program is asked to end; nothing is started by this listener any more.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        // Whoever waits for a signal waits no longer.
        self.signals.close();
    }
}

impl Listener {
    /// Begins to listen. What was ignored before (nohup, a job in the background) is ignored on, by children too.
    pub fn start() -> io::Result<Listener> {
        LISTENING.store(true, Ordering::Relaxed);
        let ignored = ignored();
        let listened =
            ENDING.into_iter().chain(USER_DEFINED).filter(|signal| ignored & (1 << (signal - 1)) == 0);
        Ok(Listener { signals: Signals::new(listened.chain([SIGCHLD]))?, first: None, stop: Arc::default() })
    }

    /// What ends a program that runs, without a signal to this process.
    pub fn stopper(&self) -> Stopper {
        Stopper { stop: Arc::clone(&self.stop), signals: self.signals.handle() }
    }

    /// Waits for a signal that asks to end.
    pub fn wait(&mut self) -> i32 {
        loop {
            if let Some(signal) = self.heard() {
                return signal;
            }
            for signal in self.signals.wait() {
                note(&mut self.first, signal);
            }
        }
    }

    /// The first signal so far that asks to end.
    pub fn heard(&mut self) -> Option<i32> {
        for signal in self.signals.pending() {
            note(&mut self.first, signal);
        }
        if self.stop.load(Ordering::Acquire) {
            note(&mut self.first, SIGTERM);
        }
        self.first
    }

    /// Runs a program to its end. Asked to end, it gets this long before it is killed, or all the time it takes.
    /// If the signal to end was there before, nothing is started: the error is `Interrupted`.
    pub fn run(&mut self, command: &mut Command, patience: Option<Duration>) -> io::Result<Ended> {
        self.run_within(command, patience, None)
    }

    /// The same, but it is killed if it is still there after this long.
    pub fn run_within(
        &mut self,
        command: &mut Command,
        patience: Option<Duration>,
        longest: Option<Duration>,
    ) -> io::Result<Ended> {
        self.run_by(|| command.spawn(), patience, longest)
    }

    /// The same for a program that is started in another way. Whoever knows of its end sends this process SIGCHLD then.
    pub fn run_by<R: Running>(
        &mut self,
        start: impl FnOnce() -> io::Result<R>,
        patience: Option<Duration>,
        longest: Option<Duration>,
    ) -> io::Result<Ended> {
        if self.heard().is_some() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let mut witnesses: Vec<Witness> = Witness::start().into_iter().collect();
        let mut child = start()?;
        let mut deadline = None;
        let last = longest.map(|longest| Instant::now() + longest);
        let mut is_stopped = false;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Ended { status, signal: self.heard() });
            }
            if !is_stopped && self.stop.load(Ordering::Acquire) {
                is_stopped = true;
                note(&mut self.first, SIGTERM);
                send(&mut child, SIGTERM);
            }
            let is_timed = is_stopped || last.is_some() || (self.first.is_some() && patience.is_some());
            let come: Vec<i32> = if is_timed {
                std::thread::sleep(OFTEN);
                self.signals.pending().collect()
            } else {
                // SIGCHLD is among them: this ends when the child does.
                self.signals.wait().collect()
            };
            for signal in &come {
                note(&mut self.first, *signal);
            }
            if come.iter().any(|signal| *signal != SIGCHLD) {
                self.pass_on(come, &mut child, &mut witnesses);
            }
            if let (Some(patience), Some(_), None) = (patience, self.first, deadline) {
                deadline = Some(Instant::now() + patience);
            }
            if [deadline, last].into_iter().flatten().any(|time| Instant::now() >= time) {
                child.kill()?;
            }
        }
    }

    /// Passes signals on that the child does not have from elsewhere.
    fn pass_on(&mut self, mut come: Vec<i32>, child: &mut impl Running, witnesses: &mut Vec<Witness>) {
        // One that has seen the first of them sees no more.
        witnesses.extend(Witness::start());
        std::thread::sleep(RIGHT_AFTER);
        for signal in self.signals.pending() {
            note(&mut self.first, signal);
            come.push(signal);
        }
        come.sort_unstable();
        come.dedup();
        let is_of_our_group =
            pid(child).is_some_and(|pid| getpgid(Some(pid)).is_ok_and(|group| group == getpgrp()));
        let mut has = |signal: i32| match witnesses.as_mut_slice() {
            [] => OF_TERMINALS.contains(&signal),
            all => all.iter_mut().any(|witness| witness.was_sent(signal)),
        };
        let missed: Vec<i32> = come
            .iter()
            .copied()
            .filter(|signal| *signal != SIGCHLD && !(is_of_our_group && has(*signal)))
            .collect();
        // Before the child hears of anything: whoever sees that it has may send the next. One of them goes on, and what another has seen
        // that is not yet heard of here counts then.
        let mut is_watched = false;
        witnesses.retain_mut(|witness| match witness.end() {
            None => !std::mem::replace(&mut is_watched, true),
            Some(signal) => {
                (ENDING.contains(&signal) || USER_DEFINED.contains(&signal)) && !come.contains(&signal)
            }
        });
        if !is_watched {
            witnesses.extend(Witness::start());
        }
        for signal in missed {
            send(child, signal);
        }
    }
}

fn note(first: &mut Option<i32>, signal: i32) {
    if first.is_none() && ENDING.contains(&signal) {
        *first = Some(signal);
    }
}

fn pid(child: &mut impl Running) -> Option<Pid> {
    child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)
}

fn send(child: &mut impl Running, signal: i32) {
    let Some(pid) = pid(child) else {
        // Nothing of it runs yet that could hear of a signal.
        if ENDING.contains(&signal) {
            let _ = child.kill();
        }
        return;
    };
    if let Some(signal) = Signal::from_named_raw(signal) {
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
