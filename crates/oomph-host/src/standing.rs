//! One process as it is at this moment: for who is about to act on it, and may not go by a sample, which is older.

use crate::processes::{LONGEST_COMMAND, command};
use crate::stat::Stat;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

/// A process, now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Field 22 of `stat`: whether it is still the process that had this number.
    pub start_ticks: u64,
    /// Who started it.
    pub parent: u32,
    /// Ended, and not yet reaped by its parent.
    pub is_dead: bool,
    /// Short name.
    pub name: String,
}

impl Standing {
    /// The process with this pid; none if there is none.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = Stat::of(&std::fs::read(file(pid, "stat")).ok()?)?;
        let is_dead = matches!(stat.state, 'Z' | 'X');
        Some(Self { start_ticks: stat.start, parent: stat.parent, is_dead, name: stat.name })
    }
}

/// Program and arguments of a process, now; none where they cannot be read, and of a dead one.
pub fn command_of(pid: u32) -> Option<String> {
    let mut text = Vec::new();
    File::open(file(pid, "cmdline")).ok()?.take(LONGEST_COMMAND).read_to_end(&mut text).ok()?;
    Some(command(&text)).filter(|command| !command.is_empty())
}

fn file(pid: u32, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_is_seen_alive_dead_and_gone() {
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let pid = child.id();
        let alive = Standing::of(pid).unwrap();
        assert_eq!((alive.parent, alive.is_dead), (std::process::id(), false));
        child.kill().unwrap();
        while !Standing::of(pid).unwrap().is_dead {
            std::thread::yield_now();
        }
        assert_eq!(Standing::of(pid).unwrap().start_ticks, alive.start_ticks);
        assert_eq!(command_of(pid), None);
        child.wait().unwrap();
        assert_eq!(Standing::of(pid), None);
        assert!(command_of(std::process::id()).unwrap().contains("oomph_host"));
    }
}
