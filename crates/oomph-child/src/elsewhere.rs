//! Where there are no signals: programs are run, and that is all.

use crate::Ended;
use std::io;
use std::process::Command;
use std::time::Duration;

/// Hears of nothing.
#[derive(Debug)]
pub struct Listener;

/// Stops nothing.
#[derive(Clone, Debug)]
pub struct Stopper;

impl Stopper {
    /// For the sake of the other systems.
    pub fn stop(&self) {}
}

impl Listener {
    /// For the sake of the other systems.
    pub fn start() -> io::Result<Listener> {
        Ok(Listener)
    }

    /// For the sake of the other systems.
    pub fn stopper(&self) -> Stopper {
        Stopper
    }

    /// Waits forever.
    pub fn wait(&mut self) -> i32 {
        loop {
            std::thread::park();
        }
    }

    pub fn heard(&mut self) -> Option<i32> {
        None
    }

    /// Runs a program to its end.
    pub fn run(&mut self, command: &mut Command, _patience: Option<Duration>) -> io::Result<Ended> {
        Ok(Ended { status: command.status()?, signal: None })
    }

    pub fn run_within(
        &mut self,
        command: &mut Command,
        patience: Option<Duration>,
        _longest: Option<Duration>,
    ) -> io::Result<Ended> {
        self.run(command, patience)
    }
}

/// Nothing comes that could leave a file behind.
#[derive(Debug)]
pub struct RemovedOnSignal;

impl RemovedOnSignal {
    /// For the sake of the other systems.
    pub fn new(_path: &std::path::Path) -> Self {
        Self
    }
}
