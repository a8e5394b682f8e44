//! What processes that run under oomph say of themselves.
//!
//! Each writes a small file of JSON, `<pid>.json`, into a folder that only its user may write ([`folder`]), about twice a second
//! while something changes, every five seconds otherwise, and whole (written beside, then renamed). A file whose process is
//! gone, or is another one that got its number, says nothing.
//!
//! This is the reading side; the recorder (`oomph-record`), which lives inside the process and has no dependencies, writes. What
//! the files hold is anybody's who may run a program as this user: nothing in them is believed but numbers and short texts.

use rustix::fs::{Mode, OFlags};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::Metadata;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Longer files are none of ours.
const LONGEST: u64 = 64 << 10;
/// Files in one folder that are looked at.
const MOST_FILES: usize = 4096;
/// Devices, and lines of each, that are believed.
const MOST_DEVICES: usize = 64;
const MOST_LINES: usize = 8;
/// A living process writes every five seconds: what is older, of a process that is not there, is nobody's.
const STALE: Duration = Duration::from_secs(60);

/// What a process says of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Inside {
    /// Its number.
    pub pid: u32,
    /// Field 22 of `/proc/<pid>/stat`: with it the file is known to be of this process.
    pub start_ticks: u64,
    /// Milliseconds since 1970.
    pub time: u64,
    /// Steps of optimizers that ended.
    pub steps: u64,
    /// Its devices.
    pub devices: Vec<InsideDevice>,
    /// Where it is recorded to.
    #[serde(default)]
    pub recording: Option<String>,
}

/// PyTorch's memory on a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InsideDevice {
    /// As the process counts.
    pub device: u32,
    /// Name of the card.
    #[serde(default)]
    pub name: Option<String>,
    /// All memory of the card.
    #[serde(default)]
    pub total: Option<u64>,
    /// Whether the card is oomph's virtual one, which NVML outside does not know.
    #[serde(default)]
    pub is_virtual: bool,
    /// In tensors, now.
    pub allocated: u64,
    /// Taken from the driver, now.
    pub reserved: u64,
    /// The most that was allocated since the recording began.
    pub peak: u64,
    /// The most that was allocated in the last step that ended.
    #[serde(default)]
    pub last_peak: Option<u64>,
    /// The lines of code that hold most now, the largest first; at most eight.
    #[serde(default)]
    pub lines: Vec<Line>,
}

/// A line of code and what it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// `file.py:12 function`; the file without its folder. `no line (backward pass)` for what no Python asked for,
    /// `before the recording` for what was there already.
    pub place: String,
    /// In bytes, as requested.
    pub bytes: u64,
}

/// Where the files of this user are: `OOMPH_STATUS_FOLDER` if it is set, else `oomph` in `XDG_RUNTIME_DIR` or in
/// `/run/user/<number>`, else `/tmp/oomph-<number>`. (Not in `TMPDIR`: batch systems give each job its own.)
pub fn folder() -> PathBuf {
    folders().into_iter().next().unwrap_or_default()
}

/// Everywhere that files of this user can be: who writes them may have another environment. With `OOMPH_STATUS_FOLDER`, only
/// there, and nowhere if it is empty. For root, the places of all users as well.
fn folders() -> Vec<PathBuf> {
    if let Some(told) = std::env::var_os("OOMPH_STATUS_FOLDER") {
        return if told.is_empty() { Vec::new() } else { vec![PathBuf::from(told)] };
    }
    let mut folders = Vec::new();
    let mut add = |folder: PathBuf| {
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    };
    let me = geteuid();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(runtime) = runtime {
        add(runtime.join("oomph"));
    }
    let of_system = PathBuf::from(format!("/run/user/{}", me.as_raw()));
    if of_system.is_dir() {
        add(of_system.join("oomph"));
    }
    add(PathBuf::from(format!("/tmp/oomph-{}", me.as_raw())));
    if me.is_root() {
        names("/run/user").for_each(|user| add(Path::new("/run/user").join(user).join("oomph")));
        names("/tmp")
            .filter(|name| name.starts_with("oomph-"))
            .for_each(|name| add(Path::new("/tmp").join(name)));
    }
    folders
}

fn names(folder: &str) -> impl Iterator<Item = String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).take(MOST_FILES)
}

/// Whose folder it is, if that is certain: no link, and nobody else may write into it. To others than root, only their own.
fn owner(folder: &Path) -> Option<u32> {
    let found = std::fs::symlink_metadata(folder).ok()?;
    let me = geteuid();
    let is_for_us = found.uid() == me.as_raw() || me.is_root();
    (found.is_dir() && found.mode() & 0o022 == 0 && is_for_us).then_some(found.uid())
}

impl Inside {
    /// What a process says of itself now. Who asks about many keeps a [`Reader`].
    pub fn read(pid: u32, start_ticks: u64) -> Option<Self> {
        let mut reader = Reader::new();
        reader.look();
        reader.get(pid, start_ticks).cloned()
    }

    /// One file, if it is of this owner and makes sense.
    fn of_file(path: &Path, owner: u32, pid: u32) -> Option<(Self, Metadata)> {
        // Whoever owns the folder may put a link or a pipe there.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = std::fs::File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
        let found = file.metadata().ok()?;
        if !found.is_file() || found.uid() != owner || found.len() > LONGEST {
            return None;
        }
        let mut text = Vec::new();
        file.take(LONGEST).read_to_end(&mut text).ok()?;
        let mut inside: Self = serde_json::from_slice(&text).ok()?;
        if inside.pid != pid {
            return None;
        }
        inside.devices.truncate(MOST_DEVICES);
        inside.devices.iter_mut().for_each(|device| device.lines.truncate(MOST_LINES));
        Some((inside, found))
    }
}

/// Reads what processes say of themselves, each file once for each time that it was written.
#[derive(Debug, Default)]
pub struct Reader {
    /// `None`: wherever files can be, looked up each time.
    folders: Option<Vec<PathBuf>>,
    found: HashMap<PathBuf, Found>,
}

#[derive(Debug)]
struct Found {
    owner: u32,
    /// Number of the file and when it was written: another when it has been written again.
    version: (u64, i64, i64),
    inside: Inside,
}

impl Reader {
    /// Reads where the files of this user are; for root, of all users.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads in these folders alone.
    pub fn of(folders: Vec<PathBuf>) -> Self {
        Self { folders: Some(folders), found: HashMap::new() }
    }

    /// Looks again. Removes files that dead processes of this user have left.
    pub fn look(&mut self) {
        let mut before = std::mem::take(&mut self.found);
        for folder in self.folders.clone().unwrap_or_else(folders) {
            let Some(owner) = owner(&folder) else { continue };
            let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
            for entry in entries.take(MOST_FILES) {
                let path = entry.path();
                let Some(pid) = pid_of(&path) else { continue };
                let Ok(now) = entry.metadata() else { continue };
                if owner == geteuid().as_raw() && is_left_over(&now, pid) {
                    let _ = std::fs::remove_file(&path);
                    continue;
                }
                let known = before.remove(&path).filter(|known| known.version == version(&now));
                let read = || {
                    let (inside, found) = Inside::of_file(&path, owner, pid)?;
                    Some(Found { owner, version: version(&found), inside })
                };
                if let Some(found) = known.or_else(read) {
                    self.found.insert(path, found);
                }
            }
        }
    }

    /// What a process said when [`look`](Self::look) was called last. `start_ticks` (field 22 of `/proc/<pid>/stat`) tells it
    /// from another one that had its number before.
    pub fn get(&self, pid: u32, start_ticks: u64) -> Option<&Inside> {
        let of_process = self.found.values().filter(|found| {
            let inside = &found.inside;
            inside.pid == pid && inside.start_ticks == start_ticks && may_speak_for(found.owner, pid)
        });
        of_process.map(|found| &found.inside).max_by_key(|inside| inside.time)
    }
}

fn version(found: &Metadata) -> (u64, i64, i64) {
    (found.ino(), found.mtime(), found.mtime_nsec())
}

/// The process that a file is named after.
fn pid_of(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.strip_suffix(".json")?.parse().ok()
}

/// Whether a file was left by a process that is dead. (It may be alive out of sight, in another container: then its file is
/// young.)
fn is_left_over(found: &Metadata, pid: u32) -> bool {
    let age = found.modified().ok().and_then(|written| SystemTime::now().duration_since(written).ok());
    age.is_some_and(|age| age > STALE) && !Path::new("/proc").join(pid.to_string()).exists()
}

/// Root reads everybody's files: nobody speaks for another user's process.
fn may_speak_for(owner: u32, pid: u32) -> bool {
    owner == geteuid().as_raw()
        || std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|process| process.uid() == owner)
}
