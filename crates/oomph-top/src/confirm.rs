//! Signals to a process, and to no other.
//!
//! A pid may be another process's by the time the user has read a question. So the process is held by a file descriptor that
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

/// What a process is called at the moment in which it is held: it may have become another program since the sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) name: String,
    /// Program and arguments; the name where they cannot be read.
    pub(crate) command: String,
}

#[cfg(target_os = "linux")]
pub(crate) use linux::Target;

#[cfg(not(target_os = "linux"))]
pub(crate) use elsewhere::Target;

#[cfg(target_os = "linux")]
mod linux {
    use super::{Named, Way};
    use crate::rates::Id;
    use oomph_host::{Standing, command_of};
    use rustix::fd::OwnedFd;
    use rustix::io::Errno;
    use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

    /// A process that is held.
    #[derive(Debug)]
    pub(crate) struct Target {
        pid: Pid,
        /// None before Linux 5.3, and where a container forbids it.
        handle: Option<OwnedFd>,
        id: Id,
    }

    impl Target {
        /// Gets hold of a process, if it is still the one that was sampled.
        pub(crate) fn aim(id: Id) -> Result<(Self, Named), String> {
            let (number, started) = id;
            let gone = || format!("{number} has ended");
            let pid = i32::try_from(number).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
            // All other processes end with it.
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
            let command = command_of(number);
            // After the rest: if it is the one that was sampled now, it was when its command was read.
            let now = Standing::of(number).filter(|now| !now.is_dead).ok_or_else(gone)?;
            if now.start_ticks != started {
                return Err(format!("{number} is another process by now"));
            }
            let command = command.unwrap_or_else(|| now.name.clone());
            Ok((Self { pid, handle, id }, Named { name: now.name, command }))
        }

        /// Whether it is no more; another that got its number does not count.
        pub(crate) fn has_ended(&self) -> bool {
            let (number, started) = self.id;
            Standing::of(number).is_none_or(|now| now.is_dead || now.start_ticks != started)
        }

        pub(crate) fn send(&self, way: Way) -> Result<(), String> {
            let signal = if way == Way::Ask { Signal::TERM } else { Signal::KILL };
            let number = self.pid.as_raw_nonzero();
            // A zombie accepts signals without effect.
            let sent = match &self.handle {
                _ if self.has_ended() => Err(Errno::SRCH),
                Some(handle) => pidfd_send_signal(handle, signal),
                None => kill_process(self.pid, signal),
            };
            sent.map_err(|error| match error {
                Errno::SRCH => format!("{number} has ended"),
                Errno::PERM => format!("{number} is another user's: not permitted"),
                other => format!("{number}: {other}"),
            })
        }
    }

    #[cfg(test)]
    mod tests {
        #![allow(clippy::unwrap_used)]
        use super::*;
        use std::os::unix::process::ExitStatusExt;
        use std::process::{Command, Stdio};

        fn start(pid: u32) -> u64 {
            Standing::of(pid).unwrap().start_ticks
        }

        #[test]
        fn a_process_gets_the_signal_that_was_meant_for_it() {
            for (way, number) in [(Way::Ask, 15), (Way::Force, 9)] {
                let mut child = Command::new("sleep").arg("100").spawn().unwrap();
                let (target, _) = Target::aim((child.id(), start(child.id()))).unwrap();
                assert!(!target.has_ended());
                target.send(way).unwrap();
                assert_eq!(child.wait().unwrap().signal(), Some(number));
                assert!(target.send(way).unwrap_err().contains("has ended"));
            }
        }

        #[test]
        fn a_dead_process_is_known_to_be_before_anybody_fetches_it() {
            let mut child = Command::new("sleep").arg("100").spawn().unwrap();
            let id = (child.id(), start(child.id()));
            let (target, _) = Target::aim(id).unwrap();
            child.kill().unwrap();
            while !target.has_ended() {
                std::thread::yield_now();
            }
            assert!(target.send(Way::Ask).unwrap_err().contains("has ended"));
            assert!(Target::aim(id).unwrap_err().contains("has ended"));
            child.wait().unwrap();
            assert!(target.has_ended());
        }

        #[test]
        fn a_process_is_called_what_it_is_when_it_is_held() {
            let mut child = Command::new("sh")
                .args(["-c", "read line; exec sleep 100"])
                .stdin(Stdio::piped())
                .spawn()
                .unwrap();
            let id = (child.id(), start(child.id()));
            drop(child.stdin.take());
            while command_of(id.0).is_none_or(|command| !command.starts_with("sleep")) {
                std::thread::yield_now();
            }
            let (_, named) = Target::aim(id).unwrap();
            assert_eq!((named.name.as_str(), named.command.as_str()), ("sleep", "sleep 100"));
            child.kill().unwrap();
            child.wait().unwrap();
        }

        #[test]
        fn another_process_with_its_number_is_left_alone() {
            let mut child = Command::new("sleep").arg("100").spawn().unwrap();
            let earlier = start(child.id()) - 1;
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
    use super::{Named, Way};
    use crate::rates::Id;

    /// There are no processes to see here.
    #[derive(Debug)]
    pub(crate) struct Target;

    impl Target {
        pub(crate) fn aim(_: Id) -> Result<(Self, Named), String> {
            Err("signals are sent on Linux only".to_owned())
        }

        pub(crate) fn has_ended(&self) -> bool {
            false
        }

        pub(crate) fn send(&self, _: Way) -> Result<(), String> {
            Err("signals are sent on Linux only".to_owned())
        }
    }
}
