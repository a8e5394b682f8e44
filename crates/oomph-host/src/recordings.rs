//! Recordings that a process writes: `.oomph` files among its open descriptors, of which it has the lock.
//!
//! Boundary: where they are. What is in them is for others, and anybody may have put anything there.

use crate::text::read;
use rustix::fs::{Mode, OFlags};
use serde::Serialize;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Recorders take descriptors from this number on, so as not to take those that a program counts on.
const FIRST: u32 = 100;
/// A process may have a hundred thousand files open: so many of them are looked at.
const MOST: usize = 64;

/// A file that a process has open and writes a recording to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct OpenRecording {
    /// The process.
    pub pid: u32,
    /// The number that it has there.
    pub descriptor: u32,
    /// Where it is, as the process sees it.
    pub path: String,
    /// `/proc/<pid>/fd/<descriptor>`: it leads there whatever file systems the process sees.
    #[serde(skip)]
    link: PathBuf,
}

impl OpenRecording {
    /// Opens it to read.
    pub fn open(&self) -> Option<File> {
        // Not a pipe, nor a device: looked at before, for to open one may do something, and after.
        std::fs::metadata(&self.link).ok().filter(|found| found.is_file())?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(&self.link, flags, Mode::empty()).ok()?);
        file.metadata().is_ok_and(|found| found.is_file()).then_some(file)
    }
}

/// Those of a process; none of one that this user may not look into. `proc` is the folder of all processes.
pub(crate) fn of(proc: &Path, pid: u32, parent: u32) -> Vec<OpenRecording> {
    let mut found = links(proc, pid);
    // A child that was forked has what its parent has open, and the parent writes it.
    found.retain(|one| match lock(proc, one) {
        Lock::Of(owner) => owner == pid,
        // The file system has no locks, or the kernel does not say.
        Lock::Unknown => !links(proc, parent).iter().any(|other| other.path == one.path),
    });
    found
}

fn links(proc: &Path, pid: u32) -> Vec<OpenRecording> {
    let folder = proc.join(pid.to_string()).join("fd");
    let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let recording = |descriptor: u32| {
        let link = folder.join(descriptor.to_string());
        let path = std::fs::read_link(&link).ok()?;
        let path = path.to_str().filter(|path| path.ends_with(".oomph"))?.to_owned();
        Some(OpenRecording { pid, descriptor, path, link })
    };
    numbers.filter(|number| *number >= FIRST).take(MOST).filter_map(recording).collect()
}

enum Lock {
    Of(u32),
    Unknown,
}

/// Who has locked a file: `lock: 1: FLOCK  ADVISORY  WRITE 4711 fd:00:1234 0 EOF`.
fn lock(proc: &Path, recording: &OpenRecording) -> Lock {
    let place = proc.join(recording.pid.to_string()).join("fdinfo").join(recording.descriptor.to_string());
    let text = read(&place);
    let mut owners = text.lines().filter_map(|line| {
        let mut words = line.strip_prefix("lock:")?.split_ascii_whitespace();
        words.nth(4)?.parse::<u32>().ok()
    });
    owners.next().map_or(Lock::Unknown, Lock::Of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A process with these files open, by number, and what the kernel says of their locks.
    fn process(proc: &Path, pid: u32, files: &[(u32, &str, Option<u32>)]) {
        for (number, path, owner) in files {
            for folder in ["fd", "fdinfo"] {
                std::fs::create_dir_all(proc.join(pid.to_string()).join(folder)).unwrap();
            }
            symlink(path, proc.join(format!("{pid}/fd/{number}"))).unwrap();
            let lock = owner.map_or(String::new(), |owner| {
                format!("lock:\t1: FLOCK  ADVISORY  WRITE {owner} fd:00:12 0 EOF\n")
            });
            std::fs::write(
                proc.join(format!("{pid}/fdinfo/{number}")),
                format!("pos:\t0\nflags:\t02\n{lock}"),
            )
            .unwrap();
        }
    }

    fn paths(proc: &Path, pid: u32, parent: u32) -> Vec<String> {
        of(proc, pid, parent).into_iter().map(|one| one.path).collect()
    }

    #[test]
    fn a_recording_is_that_of_the_process_which_locked_it() {
        let root = tempfile::tempdir().unwrap();
        let proc = root.path();
        let files = [(3, "/low.oomph", Some(7)), (100, "/a-ram.oomph", Some(7)), (101, "/b.txt", None)];
        process(proc, 7, &files);
        process(proc, 8, &[(100, "/a-ram.oomph", Some(7)), (102, "/a-ram-8.oomph", Some(8))]);
        assert_eq!(paths(proc, 7, 1), ["/a-ram.oomph"]);
        assert_eq!(paths(proc, 8, 7), ["/a-ram-8.oomph"], "a child that was forked");
        // Where there are no locks, the parent's is the parent's.
        process(proc, 17, &[(100, "/c.oomph", None)]);
        process(proc, 18, &[(100, "/c.oomph", None), (101, "/d.oomph", None)]);
        assert_eq!(
            (paths(proc, 17, 1), paths(proc, 18, 17)),
            (vec!["/c.oomph".into()], vec!["/d.oomph".into()])
        );
        assert!(paths(proc, 99, 1).is_empty());
    }

    #[test]
    fn only_files_are_opened() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("a.oomph");
        std::fs::write(&file, "x").unwrap();
        let folder = root.path().join("folder.oomph");
        std::fs::create_dir(&folder).unwrap();
        let proc = root.path().join("proc");
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        process(
            &proc,
            7,
            &[(100, &text(&file), None), (101, &text(&folder), None), (102, "/gone.oomph", None)],
        );
        let mut open: Vec<(u32, bool)> =
            of(&proc, 7, 1).iter().map(|one| (one.descriptor, one.open().is_some())).collect();
        open.sort_unstable();
        assert_eq!(open, [(100, true), (101, false), (102, false)]);
    }
}
