//! Signals to a process, and to no other.
//!
//! A number may be another process's by the time somebody has read a question. So the process is held by a file descriptor that
//! the kernel ties to it (pidfd), opened and checked before the question is asked.

/// How a process is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// SIGTERM: it can save its work.
    Ask,
    /// SIGKILL.
    Force,
}

impl Way {
    pub(crate) fn sent(self) -> &'static str {
        match self {
            Way::Ask => "SIGTERM was sent; it may take a while to save its work",
            Way::Force => "SIGKILL was sent; if it stays, it waits for a device or a disk",
        }
    }
}

#[cfg(target_os = "linux")]
pub(crate) use linux::Target;

#[cfg(not(target_os = "linux"))]
pub(crate) use elsewhere::Target;

#[cfg(target_os = "linux")]
mod linux {
    use super::Way;
    use crate::rates::Id;
    use rustix::fd::OwnedFd;
    use rustix::io::Errno;
    use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

    /// A process that is held.
    #[derive(Debug)]
    pub(crate) struct Target {
        pid: Pid,
        /// None before Linux 5.3, and where a container forbids it.
        handle: Option<OwnedFd>,
        started: u64,
    }

    impl Target {
        /// Gets hold of a process, if it is still the one that was sampled.
        pub(crate) fn aim((number, started): Id) -> Result<Self, String> {
            let gone = || format!("{number} has ended");
            let pid = i32::try_from(number).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
            // With it ends everybody else.
            if number == 1 {
                return Err(
                    "1 is the first process of the machine or of this container: not from here".to_owned()
                );
            }
            let handle = match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(handle) => Some(handle),
                Err(Errno::SRCH) => return Err(gone()),
                Err(_) => None,
            };
            if start(number).ok_or_else(gone)? != started {
                return Err(format!("{number} is another process by now"));
            }
            Ok(Self { pid, handle, started })
        }

        /// Sends it a signal.
        pub(crate) fn send(&self, way: Way) -> Result<(), String> {
            let signal = if way == Way::Ask { Signal::TERM } else { Signal::KILL };
            let number = self.pid.as_raw_nonzero();
            let sent = match &self.handle {
                Some(handle) => pidfd_send_signal(handle, signal),
                None if start(number.get() as u32) == Some(self.started) => kill_process(self.pid, signal),
                None => Err(Errno::SRCH),
            };
            sent.map_err(|error| match error {
                Errno::SRCH => format!("{number} has ended"),
                Errno::PERM => format!("{number} is another user's: not permitted"),
                other => format!("{number}: {other}"),
            })
        }
    }

    /// When a process started, in ticks since the machine did: the 22nd field, the 20th after the name, which may hold anything.
    fn start(pid: u32) -> Option<u64> {
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        let text = String::from_utf8_lossy(&stat);
        let (_, fields) = text.rsplit_once(')')?;
        fields.split_ascii_whitespace().nth(19)?.parse().ok()
    }

    #[cfg(test)]
    mod tests {
        #![allow(clippy::unwrap_used)]
        use super::*;
        use std::os::unix::process::ExitStatusExt;
        use std::process::Command;

        #[test]
        fn a_process_gets_the_signal_that_was_meant_for_it() {
            for (way, number) in [(Way::Ask, 15), (Way::Force, 9)] {
                let mut child = Command::new("sleep").arg("100").spawn().unwrap();
                let target = Target::aim((child.id(), start(child.id()).unwrap())).unwrap();
                target.send(way).unwrap();
                assert_eq!(child.wait().unwrap().signal(), Some(number));
                assert!(target.send(way).unwrap_err().contains("has ended"));
            }
        }

        #[test]
        fn another_process_with_its_number_is_left_alone() {
            let mut child = Command::new("sleep").arg("100").spawn().unwrap();
            let earlier = start(child.id()).unwrap() - 1;
            assert!(Target::aim((child.id(), earlier)).unwrap_err().contains("another process"));
            assert!(child.try_wait().unwrap().is_none());
            child.kill().unwrap();
            child.wait().unwrap();
            for number in [0, child.id(), u32::MAX, 1] {
                assert!(Target::aim((number, earlier)).is_err(), "{number}");
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use super::Way;
    use crate::rates::Id;

    /// There are no processes to see here.
    #[derive(Debug)]
    pub(crate) struct Target;

    impl Target {
        pub(crate) fn aim(_: Id) -> Result<Self, String> {
            Err("signals are sent on Linux only".to_owned())
        }

        pub(crate) fn send(&self, _: Way) -> Result<(), String> {
            Err("signals are sent on Linux only".to_owned())
        }
    }
}
