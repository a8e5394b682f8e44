//! A process, as `/proc` has it: what it is, whose, and what of it is mapped.

use crate::error::AttachError;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A process that was there when this was made. Its number may be another's later: [`Process::is_there`] knows.
#[derive(Clone, Debug)]
pub struct Process {
    pub pid: u32,
    /// Its user and group.
    pub owner: (u32, u32),
    start: u64,
}

/// Calls of the system in which a thread waits for the world, and holds no lock of an allocator's or a loader's.
const WAITS: [(u32, &str); 17] = [
    (0, "read"),
    (7, "poll"),
    (23, "select"),
    (34, "pause"),
    (35, "sleep"),
    (43, "accept"),
    (45, "receive"),
    (47, "receive"),
    (61, "a child"),
    (230, "sleep"),
    (232, "epoll_wait"),
    (247, "a child"),
    (270, "select"),
    (271, "poll"),
    (281, "epoll_wait"),
    (288, "accept"),
    (441, "epoll_wait"),
];
/// A wait for a lock, of which nothing else is known.
pub(crate) const LOCK: u32 = 202;

/// Whether a thread in this call of the system waits for the world.
pub(crate) fn is_idle(call: u32) -> bool {
    WAITS.iter().any(|(number, _)| *number == call)
}

/// A part of a file that is mapped.
#[derive(Clone, Debug)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) is_code: bool,
    pub(crate) offset: u64,
    pub(crate) path: PathBuf,
}

impl Process {
    /// Finds it, if it is one that could be attached to.
    pub fn find(pid: u32) -> Result<Process, AttachError> {
        if pid == std::process::id() {
            return Err(AttachError::Itself(pid));
        }
        let status =
            fs::read_to_string(format!("/proc/{pid}/status")).map_err(|_| AttachError::NoProcess(pid))?;
        // What is a number there is a thread's, if another stands here.
        if number(&status, "Tgid:", 0) != Some(pid) {
            return Err(AttachError::NoProcess(pid));
        }
        let start = start_of(pid).ok_or(AttachError::NoProcess(pid))?;
        match field(&status, "State:").and_then(|state| state.chars().next()) {
            Some('Z' | 'X') => return Err(AttachError::Ended(pid)),
            Some('T') => return Err(AttachError::Stopped(pid)),
            _ => {}
        }
        if let Some(by) = number(&status, "TracerPid:", 0).filter(|by| *by != 0) {
            return Err(AttachError::Traced { pid, by });
        }
        if field(&status, "x86_Thread_features:").is_some_and(|features| features.contains("shstk")) {
            return Err(AttachError::Other {
                pid,
                why: "its calls are guarded by a shadow stack".to_owned(),
            });
        }
        // Real, effective, saved, and that of files.
        let owner = (number(&status, "Uid:", 1).unwrap_or(0), number(&status, "Gid:", 1).unwrap_or(0));
        Ok(Process { pid, owner, start })
    }

    /// Whether it runs still.
    pub fn is_there(&self) -> bool {
        start_of(self.pid) == Some(self.start)
    }

    /// What its program is called.
    pub fn name(&self) -> String {
        let name = fs::read_to_string(self.path("comm")).unwrap_or_default();
        name.trim_end().to_owned()
    }

    /// What it was started with.
    pub fn command(&self) -> Vec<PathBuf> {
        words(&fs::read(self.path("cmdline")).unwrap_or_default())
    }

    /// What its environment has of this name, as it was when it began.
    pub fn variable(&self, name: &str) -> Option<PathBuf> {
        let all = fs::read(self.path("environ")).ok()?;
        let start = format!("{name}=");
        all.split(|byte| *byte == 0).find_map(|one| Some(as_path(one.strip_prefix(start.as_bytes())?)))
    }

    /// Whether it sees the same file or folder by this path.
    pub fn sees(&self, path: &Path) -> Result<bool, AttachError> {
        let own = path.metadata().map_err(|error| self.wrong(&error))?;
        let there = self.path("root").join(path.strip_prefix("/").unwrap_or(path));
        match there.metadata() {
            Ok(there) => Ok((own.dev(), own.ino()) == (there.dev(), there.ino())),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(self.denied()),
            Err(_) => Ok(false),
        }
    }

    /// The call of the system in which its main thread waits, if it waits in one.
    pub fn waits_in(&self) -> Option<String> {
        let call = self.call_of(self.pid)?;
        Some(match WAITS.iter().find(|(number, _)| *number == call) {
            Some((_, name)) => (*name).to_owned(),
            None if call == LOCK => "a lock".to_owned(),
            None => format!("call {call} of the system"),
        })
    }

    /// The call of the system in which a thread is, if it is in one.
    pub(crate) fn call_of(&self, thread: u32) -> Option<u32> {
        let text = fs::read_to_string(self.path(&format!("task/{thread}/syscall"))).ok()?;
        text.split_whitespace().next()?.parse().ok()
    }

    /// Its threads, the main one first.
    pub(crate) fn threads(&self) -> Vec<u32> {
        let entries = fs::read_dir(self.path("task")).into_iter().flatten().flatten();
        let mut all: Vec<u32> =
            entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        // The kernel's own workers for io_uring stand among them, and run nothing of the program's.
        let name = |thread: &u32| fs::read_to_string(self.path(&format!("task/{thread}/comm")));
        all.retain(|thread| !name(thread).is_ok_and(|name| name.starts_with("iou-")));
        all.sort_by_key(|thread| (*thread != self.pid, *thread));
        all
    }

    /// What it has mapped of files.
    pub(crate) fn mappings(&self) -> Result<Vec<Mapping>, AttachError> {
        let text = fs::read(self.path("maps")).map_err(|error| self.wrong(&error))?;
        Ok(text.split(|byte| *byte == b'\n').filter_map(mapping).collect())
    }

    /// Where the file is that it has mapped under this path.
    pub(crate) fn file(&self, path: &Path) -> PathBuf {
        self.path("root").join(path.strip_prefix("/").unwrap_or(path))
    }

    /// A file about it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        Path::new("/proc").join(self.pid.to_string()).join(name)
    }

    /// What an error of the system's means for it.
    pub(crate) fn wrong(&self, error: &io::Error) -> AttachError {
        match error.kind() {
            _ if !self.is_there() => AttachError::Ended(self.pid),
            io::ErrorKind::PermissionDenied => self.denied(),
            _ => AttachError::Other { pid: self.pid, why: error.to_string() },
        }
    }

    /// Why this process may not.
    pub(crate) fn denied(&self) -> AttachError {
        let pid = self.pid;
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let traced = read(&format!("/proc/{pid}/status"));
        if let Some(by) = number(&traced, "TracerPid:", 0).filter(|by| *by != 0) {
            return AttachError::Traced { pid, by };
        }
        let own = number(&read("/proc/self/status"), "Uid:", 1).unwrap_or(0);
        if own != 0 && own != self.owner.0 {
            return AttachError::OtherUser { pid, user: self.owner.0 };
        }
        match read("/proc/sys/kernel/yama/ptrace_scope").trim().parse() {
            Ok(scope) if scope == 3 || scope > 0 && own != 0 => AttachError::Scope { pid, scope },
            _ => AttachError::Denied(pid),
        }
    }
}

/// When it began, in the kernel's ticks: of two processes of one number, one began later.
fn start_of(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, may have anything in it.
    let mut fields = text.get(text.rfind(')')? + 2..)?.split(' ');
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

fn number(status: &str, name: &str, place: usize) -> Option<u32> {
    field(status, name)?.split_whitespace().nth(place)?.parse().ok()
}

fn words(text: &[u8]) -> Vec<PathBuf> {
    text.split(|byte| *byte == 0).filter(|word| !word.is_empty()).map(as_path).collect()
}

fn as_path(bytes: &[u8]) -> PathBuf {
    std::ffi::OsString::from_vec(bytes.to_vec()).into()
}

/// `7f0c-7f0d r-xp 00001000 fe:00 1234   /usr/lib/libpython3.12.so.1.0`
fn mapping(line: &[u8]) -> Option<Mapping> {
    let text = String::from_utf8_lossy(line);
    let mut fields = text.split_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let rights = fields.next()?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let offset = hex(fields.next()?)?;
    let path = line.iter().position(|byte| *byte == b'/').map(|place| as_path(&line[place..]))?;
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        is_code: rights.as_bytes().get(2) == Some(&b'x'),
        offset,
        path,
    })
}

#[cfg(test)]
mod tests {
    use super::{Process, mapping};
    use crate::AttachError;
    use std::path::Path;

    #[test]
    fn a_line_of_maps_is_read() {
        let line =
            b"7f0c00001000-7f0c00002000 r-xp 00001000 fe:00 1234      /usr/lib/my libpython3.12.so.1.0";
        let one = mapping(line).unwrap();
        assert_eq!((one.start, one.end, one.offset), (0x7f0c_0000_1000, 0x7f0c_0000_2000, 0x1000));
        assert!(one.is_code);
        assert_eq!(one.path, Path::new("/usr/lib/my libpython3.12.so.1.0"));
        assert!(mapping(b"7ffd-7ffe rw-p 00000000 00:00 0   [stack]").is_none());
        assert!(mapping(b"").is_none());
    }

    #[test]
    fn a_process_ends_and_is_not_there() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::find(child.id()).unwrap();
        // Its words come a moment after it has begun.
        while process.command().is_empty() {
            std::thread::yield_now();
        }
        assert!(process.is_there() && process.command()[0] == Path::new("sleep"));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!process.is_there());
        assert!(matches!(Process::find(child.id()), Err(AttachError::NoProcess(_))));
        assert!(matches!(Process::find(std::process::id()), Err(AttachError::Itself(_))));
    }
}
