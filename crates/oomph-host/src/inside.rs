//! What processes that run under oomph say of themselves.
//!
//! Each writes a small file of JSON, `<pid>.json`, into a folder that only its user may write ([`folder`]), about twice a second
//! while something changes, every five seconds otherwise, and whole (written beside, then renamed). A file whose process is
//! gone, or is another one that got its number, says nothing. Nothing is removed here: that is for the writer.
//!
//! This is the reading side; the recorder (`oomph-record`), which lives inside the process and has no dependencies, writes. What
//! the files hold is anybody's who may run a program as this user: nothing in them is believed but numbers and short texts.

use crate::stat::start_ticks;
use rustix::fs::{Mode, OFlags};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::Metadata;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Longer files are none of ours.
const LONGEST: u64 = 64 << 10;
/// Longer texts are cut.
const LONGEST_TEXT: usize = 256;
const LONGEST_PATH: usize = 4096;
/// No card has more: a number above it is a broken file's.
const MOST_BYTES: u64 = 1 << 50;
/// Most files that are read in one folder.
const MOST_FILES: usize = 4096;
/// Devices, and lines of each, that are believed.
const MOST_DEVICES: usize = 64;
const MOST_LINES: usize = 8;

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
    /// `file.py:12 function`; the file without its folder. `backward pass` for what no Python asked for,
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
    if let Some(folder) = std::env::var_os("OOMPH_STATUS_FOLDER") {
        return if folder.is_empty() { Vec::new() } else { vec![PathBuf::from(folder)] };
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

/// Whose folder it is, if that is certain: no link, and writable by its owner alone. For users other than root, only their own.
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
        inside.clamp_to_plausible();
        Some((inside, found))
    }
}

impl Inside {
    /// A file may say anything: each device once, texts of a length to show, no more bytes than there are anywhere.
    fn clamp_to_plausible(&mut self) {
        let mut seen = Vec::new();
        self.devices.retain(|device| {
            let is_new = !seen.contains(&device.device);
            seen.push(device.device);
            let bytes = [device.allocated, device.reserved, device.peak];
            is_new
                && bytes
                    .into_iter()
                    .chain(device.total)
                    .chain(device.last_peak)
                    .all(|bytes| bytes <= MOST_BYTES)
        });
        self.devices.truncate(MOST_DEVICES);
        for device in &mut self.devices {
            device.lines.truncate(MOST_LINES);
            device.lines.iter_mut().for_each(|line| cut(&mut line.place, LONGEST_TEXT));
            device.name.iter_mut().for_each(|name| cut(name, LONGEST_TEXT));
        }
        self.recording.iter_mut().for_each(|path| cut(path, LONGEST_PATH));
    }
}

fn cut(text: &mut String, most: usize) {
    if text.len() > most {
        let end = (0..=most).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        text.truncate(end);
        text.shrink_to_fit();
    }
}

/// Reads what processes say of themselves, each file once for each time that it was written.
#[derive(Debug)]
pub struct Reader {
    /// `None`: wherever files can be, looked up each time.
    folders: Option<Vec<PathBuf>>,
    /// Where the kernel says which processes there are.
    proc: PathBuf,
    found: HashMap<PathBuf, Found>,
}

/// A file that is named after a process that is there.
#[derive(Debug)]
struct Found {
    owner: u32,
    /// Number of the file and when it was written: another when it has been written again.
    version: (u64, i64, i64),
    /// `None`: it makes no sense, or is of another process that had this number. It is kept, so as not to be read again.
    inside: Option<Inside>,
}

impl Default for Reader {
    fn default() -> Self {
        Self::new()
    }
}

impl Reader {
    /// Reads where the files of this user are; for root, of all users.
    pub fn new() -> Self {
        Self::at(None, PathBuf::from("/proc"))
    }

    /// Reads in these folders alone.
    pub fn of(folders: Vec<PathBuf>) -> Self {
        Self::at(Some(folders), PathBuf::from("/proc"))
    }

    fn at(folders: Option<Vec<PathBuf>>, proc: PathBuf) -> Self {
        Self { folders, proc, found: HashMap::new() }
    }

    /// Looks again. Changes nothing.
    pub fn look(&mut self) {
        let mut before = std::mem::take(&mut self.found);
        for folder in self.folders.clone().unwrap_or_else(folders) {
            let Some(owner) = owner(&folder) else { continue };
            let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
            for entry in entries.take(MOST_FILES) {
                let path = entry.path();
                // Of processes that are gone nothing is read: anybody could leave thousands of files to root.
                let process = pid_of(&path).and_then(|pid| Some((pid, start_ticks(&self.proc, pid)?)));
                let Some((pid, start)) = process else { continue };
                let Ok(now) = entry.metadata() else { continue };
                let known = before
                    .remove(&path)
                    .filter(|known| known.version == version(&now) && known.owner == owner);
                let mut found = known.unwrap_or_else(|| match Inside::of_file(&path, owner, pid) {
                    Some((inside, found)) => Found { owner, version: version(&found), inside: Some(inside) },
                    None => Found { owner, version: version(&now), inside: None },
                });
                found.inside = found.inside.filter(|inside| inside.start_ticks == start);
                self.found.insert(path, found);
            }
        }
    }

    /// What a process reported when [`look`](Self::look) was called last. `start_ticks` (field 22 of `/proc/<pid>/stat`) distinguishes it
    /// from another one that had its number before.
    pub fn get(&self, pid: u32, start_ticks: u64) -> Option<&Inside> {
        let found = self.found.values().filter_map(|found| Some((found.owner, found.inside.as_ref()?)));
        let of_process = found.filter(|(owner, inside)| {
            inside.pid == pid && inside.start_ticks == start_ticks && self.may_speak_for(*owner, pid)
        });
        of_process.map(|(_, inside)| inside).max_by_key(|inside| inside.time)
    }

    /// Root reads the files of all users: a file counts only for processes of its owner.
    fn may_speak_for(&self, owner: u32, pid: u32) -> bool {
        owner == geteuid().as_raw()
            || std::fs::metadata(self.proc.join(pid.to_string())).is_ok_and(|process| process.uid() == owner)
    }
}

fn version(found: &Metadata) -> (u64, i64, i64) {
    (found.ino(), found.mtime(), found.mtime_nsec())
}

/// The process that a file is named after.
fn pid_of(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.strip_suffix(".json")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    fn inside(pid: u32, start_ticks: u64) -> Inside {
        let line = Line { place: "train.py:12 step".into(), bytes: 4096 };
        let device = InsideDevice {
            device: 0,
            name: Some("Tesla T4".into()),
            total: Some(16 << 30),
            is_virtual: true,
            allocated: 4096,
            reserved: 2 << 20,
            peak: 8192,
            last_peak: Some(8192),
            lines: vec![line; 9],
        };
        Inside { pid, start_ticks, time: 1, steps: 7, devices: vec![device], recording: None }
    }

    fn write(folder: &Path, name: &str, inside: &Inside) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, serde_json::to_vec(inside).unwrap()).unwrap();
        path
    }

    /// A folder that stands for `/proc`: each process started at 5.
    fn running(pids: &[u32]) -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        for pid in pids {
            start(proc.path(), *pid, 5);
        }
        proc
    }

    fn start(proc: &Path, pid: u32, ticks: u64) {
        let folder = proc.join(pid.to_string());
        std::fs::create_dir_all(&folder).unwrap();
        let text = format!("{pid} (python) S 1 1 1 0 -1 0 3 0 0 0 10 5 0 0 20 0 1 0 {ticks} 9 7 0\n");
        std::fs::write(folder.join("stat"), text).unwrap();
    }

    fn reader(folders: &[&Path], proc: &Path) -> Reader {
        Reader::at(Some(folders.iter().map(|folder| folder.to_path_buf()).collect()), proc.to_path_buf())
    }

    /// Where processes 1 to 14 and 100 run.
    fn look(folders: &[&Path]) -> Reader {
        let pids: Vec<u32> = (1..15).chain([100]).collect();
        let proc = running(&pids);
        let mut reader = reader(folders, proc.path());
        reader.look();
        reader
    }

    fn read(reader: &Reader) -> Vec<u32> {
        reader.found.values().filter_map(|found| Some(found.inside.as_ref()?.pid)).collect()
    }

    #[test]
    fn a_process_is_known_by_its_number_and_its_start() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "100.json", &inside(100, 5));
        let reader = look(&[folder.path()]);
        let inside = reader.get(100, 5).unwrap();
        assert_eq!((inside.steps, inside.devices[0].allocated), (7, 4096));
        assert_eq!(inside.devices[0].lines.len(), MOST_LINES);
        assert!(reader.get(100, 6).is_none(), "another process that got its number");
        assert!(reader.get(101, 5).is_none());
    }

    #[test]
    fn a_file_is_read_again_when_it_has_been_written_again_and_forgotten_when_it_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let proc = running(&[100]);
        let mut reader = reader(&[folder.path()], proc.path());
        for steps in [7, 8] {
            let part = write(folder.path(), ".100.part", &Inside { steps, ..inside(100, 5) });
            assert!(look(&[folder.path()]).get(100, 5).is_none_or(|inside| inside.steps < steps));
            std::fs::rename(part, folder.path().join("100.json")).unwrap();
            reader.look();
            assert_eq!(reader.get(100, 5).unwrap().steps, steps);
        }
        std::fs::remove_file(folder.path().join("100.json")).unwrap();
        reader.look();
        assert!(reader.get(100, 5).is_none());
    }

    #[test]
    fn of_two_folders_the_newer_word_counts() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(one.path(), "100.json", &Inside { time: 2, steps: 9, ..inside(100, 5) });
        write(two.path(), "100.json", &inside(100, 5));
        assert_eq!(look(&[one.path(), two.path()]).get(100, 5).unwrap().steps, 9);
        assert_eq!(look(&[two.path(), one.path()]).get(100, 5).unwrap().steps, 9);
    }

    #[test]
    fn what_makes_no_sense_says_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path();
        for (name, text) in [
            ("1.json", "".to_owned()),
            ("2.json", "{\"pid\":2,\"start_ticks\":5".into()),
            ("3.json", "[3,5,1,0,[],null]".repeat(2)),
            ("4.json", serde_json::to_string(&inside(5, 5)).unwrap()),
            ("6.json", " ".repeat(LONGEST as usize) + &serde_json::to_string(&inside(6, 5)).unwrap()),
            ("7.json", "{\"pid\":7,\"start_ticks\":-5,\"time\":1,\"steps\":1,\"devices\":[]}".into()),
            ("8.json", "[".repeat(60_000)),
            ("99999999999999999999.json", "{}".into()),
            ("x.json", serde_json::to_string(&inside(9, 5)).unwrap()),
        ] {
            std::fs::write(here.join(name), text).unwrap();
        }
        std::fs::create_dir(here.join("10.json")).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        symlink(write(elsewhere.path(), "11.json", &inside(11, 5)), here.join("11.json")).unwrap();
        symlink("/dev/zero", here.join("12.json")).unwrap();
        let made = std::process::Command::new("mkfifo").arg(here.join("13.json")).status().unwrap();
        assert!(made.success());
        write(here, "14.json", &inside(14, 5));
        assert_eq!(read(&look(&[here])), [14]);
    }

    #[test]
    fn folders_that_others_may_write_and_links_are_not_read() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("oomph");
        std::fs::create_dir(&folder).unwrap();
        write(&folder, "100.json", &inside(100, 5));
        for (mode, is_read) in [(0o700, true), (0o755, true), (0o777, false), (0o770, false)] {
            std::fs::set_permissions(&folder, PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(look(&[&folder]).get(100, 5).is_some(), is_read, "{mode:o}");
        }
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o700)).unwrap();
        let link = place.path().join("link");
        symlink(&folder, &link).unwrap();
        assert!(look(&[&link]).get(100, 5).is_none());
        assert!(look(&[&place.path().join("nothing")]).get(100, 5).is_none());
    }

    /// Only root can give files away.
    #[test]
    fn nobody_speaks_for_another_users_process() {
        if !geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let proc = running(&[100]);
        let look = || {
            let mut reader = reader(&[folder.path()], proc.path());
            reader.look();
            reader
        };
        let path = write(folder.path(), "100.json", &inside(100, 5));
        assert!(look().get(100, 5).is_some());
        chown(&path, Some(12345), None).unwrap();
        assert!(look().get(100, 5).is_none(), "a file of another user");
        chown(folder.path(), Some(12345), None).unwrap();
        assert_eq!(read(&look()), [100], "root reads folders of others");
        assert!(look().get(100, 5).is_none(), "but this process is root's");
        chown(proc.path().join("100"), Some(12345), None).unwrap();
        assert!(look().get(100, 5).is_some(), "and this one is theirs");
    }

    #[test]
    fn what_a_process_said_is_forgotten_when_it_is_gone_or_another_has_its_number() {
        let folder = tempfile::tempdir().unwrap();
        let proc = running(&[100]);
        let mut reader = reader(&[folder.path()], proc.path());
        write(folder.path(), "100.json", &inside(100, 5));
        write(folder.path(), "101.json", &inside(101, 5));
        reader.look();
        assert_eq!(read(&reader), [100], "101 is not there");
        start(proc.path(), 100, 6);
        reader.look();
        assert_eq!(read(&reader), [] as [u32; 0], "another process that got its number");
        write(folder.path(), "100.json", &inside(100, 6));
        reader.look();
        assert!(reader.get(100, 6).is_some(), "it speaks for itself");
        std::fs::remove_dir_all(proc.path().join("100")).unwrap();
        reader.look();
        assert!(reader.found.is_empty());
    }

    #[test]
    fn thousands_of_files_that_say_nothing_are_neither_read_nor_kept() {
        let folder = tempfile::tempdir().unwrap();
        let proc = running(&[100]);
        for number in 0..2000 {
            write(folder.path(), &format!("{}.json", 10_000 + number), &inside(10_000 + number, 5));
            std::fs::write(folder.path().join(format!("{number}.txt")), "x").unwrap();
        }
        write(folder.path(), "100.json", &inside(100, 5));
        let mut reader = reader(&[folder.path()], proc.path());
        let began = std::time::Instant::now();
        for _ in 0..10 {
            reader.look();
            assert_eq!(reader.found.len(), 1);
            assert!(reader.get(100, 5).is_some());
        }
        // It takes a hundredth of that: who samples each second has no time to read them.
        assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
    }

    #[test]
    fn a_file_that_says_nothing_is_read_once() {
        let folder = tempfile::tempdir().unwrap();
        let proc = running(&[100]);
        let path = write(folder.path(), "100.json", &inside(100, 4));
        let mut reader = reader(&[folder.path()], proc.path());
        reader.look();
        // The same file with the same time: what it says now is not seen.
        let written = path.metadata().unwrap().modified().unwrap();
        write(folder.path(), "100.json", &inside(100, 5));
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(written).unwrap();
        reader.look();
        assert!(reader.get(100, 5).is_none());
    }

    #[test]
    fn what_cannot_be_is_left_out_and_long_texts_are_cut() {
        let folder = tempfile::tempdir().unwrap();
        let mut large = inside(100, 5);
        let first = large.devices[0].clone();
        large.devices[0].lines[0].place = "é".repeat(1000);
        large.devices[0].name = Some("n".repeat(10_000));
        large.recording = Some("r".repeat(10_000));
        large.devices.push(InsideDevice { allocated: 1, ..first.clone() });
        large.devices.push(InsideDevice { device: 1, total: Some(u64::MAX), ..first.clone() });
        large.devices.push(InsideDevice { device: 2, ..first });
        write(folder.path(), "100.json", &large);
        let reader = look(&[folder.path()]);
        let read = reader.get(100, 5).unwrap();
        let devices: Vec<(u32, u64)> =
            read.devices.iter().map(|device| (device.device, device.allocated)).collect();
        assert_eq!(devices, [(0, 4096), (2, 4096)]);
        assert_eq!(read.devices[0].lines[0].place, "é".repeat(LONGEST_TEXT / 2));
        assert_eq!(read.devices[0].name.as_ref().unwrap().len(), LONGEST_TEXT);
        assert_eq!(read.recording.as_ref().unwrap().len(), LONGEST_PATH);
    }

    #[test]
    fn nothing_is_ever_removed() {
        let folder = tempfile::tempdir().unwrap();
        // No process has so high a number.
        let dead = 4_194_400;
        let left = write(folder.path(), &format!("{dead}.json"), &inside(dead, 5));
        let others = folder.path().join("4194401.json");
        std::fs::write(&others, "[1, 2, 3]").unwrap();
        for path in [&left, &others] {
            let file = std::fs::File::options().write(true).open(path).unwrap();
            file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        }
        let mut reader = Reader::of(vec![folder.path().to_path_buf()]);
        reader.look();
        reader.look();
        assert!(left.exists() && others.exists());
        assert_eq!(std::fs::read_to_string(&others).unwrap(), "[1, 2, 3]");
    }
}
