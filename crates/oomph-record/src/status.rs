//! What this process says of itself while it is recorded: a small file of JSON for `oomph top`, written anew twice a second.
//!
//! `oomph-host` reads it (`inside.rs`) and says what the fields mean. The file lies in a folder of the user's own, and goes with the
//! recording. Whatever goes wrong here is nobody's business: nothing is said, and the recording goes on.

use std::fmt::Write as _;
use std::fs::{DirBuilder, Metadata, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often it is written while something changes, and while nothing does.
pub(crate) const EVERY: Duration = Duration::from_millis(500);
const EVERY_IDLE: Duration = Duration::from_secs(5);
/// Lines of a device that are reported.
pub(crate) const MOST_LINES: usize = 8;
/// A reader takes 64 KiB at most: from here on lines are left out.
const LONG: usize = 24 << 10;
/// Devices that are reported.
const MOST_DEVICES: usize = 32;
/// Longer names of cards are cut, longer names of recordings are left out.
const LONGEST_NAME: usize = 100;
const LONGEST_PATH: usize = 4096;
/// What nobody has written for so long, of a process that is not there, is removed.
const STALE: Duration = Duration::from_secs(60);
/// Files of a folder that are looked at.
const MOST_FILES: usize = 4096;
/// Linux on x86-64.
const O_NOFOLLOW: i32 = 0o400_000;
const O_NONBLOCK: i32 = 0o4_000;

unsafe extern "C" {
    fn geteuid() -> u32;
}

pub(crate) struct Status {
    /// Steps that ended.
    pub(crate) steps: u64,
    pub(crate) devices: Vec<DeviceStatus>,
}

/// A device at that moment.
pub(crate) struct DeviceStatus {
    pub(crate) device: u32,
    pub(crate) card: Option<Card>,
    pub(crate) allocated: u64,
    pub(crate) reserved: u64,
    pub(crate) peak: u64,
    pub(crate) last_peak: Option<u64>,
    /// Where memory that is held was asked for, the largest first.
    pub(crate) lines: Vec<(String, u64)>,
}

/// What a device is.
#[derive(Clone)]
pub(crate) struct Card {
    pub(crate) name: String,
    pub(crate) total: u64,
    pub(crate) is_virtual: bool,
}

/// Writes the file of this process; takes it away when dropped.
pub(crate) struct Publisher {
    /// Where it may lie; the first that will do is taken.
    folders: Vec<PathBuf>,
    folder: Option<PathBuf>,
    /// Whether they are oomph's own. In a folder that somebody named, nothing of others is removed.
    is_usual: bool,
    pid: u32,
    start_ticks: u64,
    recording: Option<String>,
    /// What was written last, but for the time, and when.
    written: Option<(String, Instant)>,
}

impl Publisher {
    /// Where the environment says. `None` if nothing is to be written, or this process cannot be distinguished from others.
    pub(crate) fn new(recording: &Path) -> Option<Self> {
        match std::env::var_os("OOMPH_STATUS_FOLDER") {
            Some(folder) if folder.is_empty() => None,
            Some(folder) => Self::within(vec![PathBuf::from(folder)], false, recording),
            None => Self::within(usual_folders(), true, recording),
        }
    }

    fn within(folders: Vec<PathBuf>, is_usual: bool, recording: &Path) -> Option<Self> {
        let start_ticks = start_ticks(&std::fs::read_to_string("/proc/self/stat").ok()?)?;
        let recording = recording.to_str().filter(|path| path.len() <= LONGEST_PATH).map(str::to_owned);
        let pid = std::process::id();
        Some(Self { folders, folder: None, is_usual, pid, start_ticks, recording, written: None })
    }

    /// Says it, unless the same was said just now.
    pub(crate) fn publish(&mut self, status: &Status) {
        let text = self.text(status);
        if let Some((last, when)) = &self.written
            && *last == text
            && when.elapsed() < EVERY_IDLE
        {
            return;
        }
        if self.folder.is_none() {
            self.folder = self.folders.iter().find(|folder| is_fit(folder)).cloned();
            if let Some(folder) = self.folder.as_ref().filter(|_| self.is_usual) {
                clean(folder);
            }
        }
        if self.write(&text).is_none() {
            // It may have been removed: it is looked for again.
            self.folder = None;
        }
        self.written = Some((text, Instant::now()));
    }

    fn path(&self) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{}.json", self.pid)))
    }

    /// Whole or not at all.
    fn write(&self, text: &str) -> Option<()> {
        let path = self.path()?;
        let part = path.with_file_name(format!(".{}.part", self.pid));
        let mut options = OpenOptions::new();
        options.create(true).write(true).truncate(true).mode(0o600).custom_flags(O_NOFOLLOW);
        let mut file = options.open(&part).ok()?;
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        // The text is an object but for its last key.
        file.write_all(format!("{text},\"time\":{time}}}\n").as_bytes()).ok()?;
        drop(file);
        std::fs::rename(&part, &path).ok()
    }

    fn text(&self, status: &Status) -> String {
        let mut out = String::new();
        let _ = write!(out, "{{\"pid\":{},\"start_ticks\":{}", self.pid, self.start_ticks);
        if let Some(recording) = &self.recording {
            out.push_str(",\"recording\":");
            quote(&mut out, recording);
        }
        let _ = write!(out, ",\"steps\":{},\"devices\":[", status.steps);
        for (index, device) in status.devices.iter().take(MOST_DEVICES).enumerate() {
            let _ = write!(out, "{}{{\"device\":{}", if index > 0 { "," } else { "" }, device.device);
            if let Some(card) = &device.card {
                let _ = write!(out, ",\"total\":{},\"is_virtual\":{},\"name\":", card.total, card.is_virtual);
                quote(&mut out, &card.name.chars().take(LONGEST_NAME).collect::<String>());
            }
            let (allocated, reserved, peak) = (device.allocated, device.reserved, device.peak);
            let _ = write!(out, ",\"allocated\":{allocated},\"reserved\":{reserved},\"peak\":{peak}");
            if let Some(peak) = device.last_peak {
                let _ = write!(out, ",\"last_peak\":{peak}");
            }
            out.push_str(",\"lines\":[");
            let lines = if out.len() < LONG { device.lines.as_slice() } else { &[] };
            for (index, (place, bytes)) in lines.iter().take(MOST_LINES).enumerate() {
                out.push_str(if index > 0 { ",{\"place\":" } else { "{\"place\":" });
                quote(&mut out, place);
                let _ = write!(out, ",\"bytes\":{bytes}}}");
            }
            out.push_str("]}");
        }
        out.push(']');
        out
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        if let Some(path) = self.path() {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Where `oomph-host` looks: see there for the reasons.
fn usual_folders() -> Vec<PathBuf> {
    // SAFETY: always succeeds.
    let user = unsafe { geteuid() };
    // With `sudo -E` it is somebody else's, who would find our folder in it.
    let is_ours = |path: &PathBuf| {
        path.is_absolute() && path.metadata().is_ok_and(|found| found.is_dir() && found.uid() == user)
    };
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(is_ours);
    let mut folders: Vec<PathBuf> = runtime.into_iter().map(|runtime| runtime.join("oomph")).collect();
    folders.push(PathBuf::from(format!("/run/user/{user}/oomph")));
    folders.push(PathBuf::from(format!("/tmp/oomph-{user}")));
    folders
}

/// Whether a folder is there, made if need be, and nobody else may write into it.
fn is_fit(folder: &Path) -> bool {
    let _ = DirBuilder::new().mode(0o700).create(folder);
    // SAFETY: always succeeds.
    let user = unsafe { geteuid() };
    // Not through a link: in a folder that everybody may write to, anybody could have put it there.
    std::fs::symlink_metadata(folder)
        .is_ok_and(|found| found.is_dir() && found.uid() == user && found.mode() & 0o022 == 0)
}

/// Removes what processes left that were killed, and nothing else: a file that this recorder did not write stays.
fn clean(folder: &Path) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.take(MOST_FILES) {
        let (name, path) = (entry.file_name(), entry.path());
        let Some(pid) = name.to_str().and_then(process_of) else { continue };
        let is_dead = !Path::new("/proc").join(pid).exists();
        if is_dead && is_left_by(&path, pid) == Some(true) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Whether a file is old, and begins as this recorder begins one of that process. (What it was killed in the midst of has no end.)
fn is_left_by(path: &Path, pid: &str) -> Option<bool> {
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(path).ok()?;
    let found = file.metadata().ok()?;
    // SAFETY: always succeeds.
    let user = unsafe { geteuid() };
    if !found.is_file() || found.uid() != user || !is_old(&found) {
        return Some(false);
    }
    let mut text = Vec::new();
    file.take(128).read_to_end(&mut text).ok()?;
    let ticks = text.strip_prefix(format!("{{\"pid\":{pid},\"start_ticks\":").as_bytes())?;
    let digits = ticks.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let rest = ticks.get(digits..)?;
    Some(digits > 0 && [&b",\"recording\":"[..], b",\"steps\":"].iter().any(|key| rest.starts_with(key)))
}

/// The process that a file is named after: `12.json`, `.12.part`.
fn process_of(name: &str) -> Option<&str> {
    let part = || name.strip_prefix('.')?.strip_suffix(".part");
    let pid = name.strip_suffix(".json").or_else(part)?;
    (!pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit())).then_some(pid)
}

/// A process that is alive writes more often, even one that cannot be seen from this container.
fn is_old(found: &Metadata) -> bool {
    let age = found.modified().ok().and_then(|written| SystemTime::now().duration_since(written).ok());
    age.is_some_and(|age| age > STALE)
}

/// When a process started: the 22nd field. The second, its name in brackets, may have anything in it.
fn start_ticks(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

fn quote(out: &mut String, text: &str) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            letter if letter.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(letter));
            }
            letter => out.push(letter),
        }
    }
    out.push('"');
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]
mod tests {
    use super::*;
    use oomph_host::{Inside, InsideDevice, InsideReader, Line};
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn status() -> Status {
        let lines = vec![("train.py:12 \"größe\"\\\n".to_owned(), 4096), ("backward pass".to_owned(), 512)];
        let card = Card { name: "Tesla T4".into(), total: 16 << 30, is_virtual: true };
        let device = |device, card| DeviceStatus {
            device,
            card,
            allocated: 5120,
            reserved: 2 << 20,
            peak: 9216,
            last_peak: (device == 0).then_some(8192),
            lines: lines.clone(),
        };
        Status { steps: 3, devices: vec![device(0, Some(card)), device(5, None)] }
    }

    fn publisher(folder: &Path) -> Publisher {
        Publisher::within(vec![folder.to_path_buf()], true, Path::new("/home/me/a \"b\".oomph")).unwrap()
    }

    /// What a reader finds of this process.
    fn read(folder: &Path) -> Option<Inside> {
        let mut reader = InsideReader::of(vec![folder.to_path_buf()]);
        reader.look();
        let ticks = start_ticks(&std::fs::read_to_string("/proc/self/stat").unwrap()).unwrap();
        reader.get(std::process::id(), ticks).cloned()
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn what_is_said_is_what_is_read_until_it_is_taken_away() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("oomph");
        let mut publisher = publisher(&folder);
        publisher.publish(&status());
        let status = read(&folder).unwrap();
        assert_eq!((status.pid, status.steps), (std::process::id(), 3));
        assert_eq!(status.recording.as_deref(), Some("/home/me/a \"b\".oomph"));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        assert!(now - status.time < 60_000);
        let lines = vec![
            Line { place: "train.py:12 \"größe\"\\\n".into(), bytes: 4096 },
            Line { place: "backward pass".into(), bytes: 512 },
        ];
        let first = InsideDevice {
            device: 0,
            name: Some("Tesla T4".into()),
            total: Some(16 << 30),
            is_virtual: true,
            allocated: 5120,
            reserved: 2 << 20,
            peak: 9216,
            last_peak: Some(8192),
            lines,
        };
        let second = InsideDevice {
            device: 5,
            name: None,
            total: None,
            is_virtual: false,
            last_peak: None,
            ..first.clone()
        };
        assert_eq!(status.devices, [first, second]);
        let mode = |path: &Path| path.metadata().unwrap().mode() & 0o777;
        assert_eq!(mode(&folder), 0o700);
        assert_eq!(mode(&publisher.path().unwrap()), 0o600);
        assert_eq!(names(&folder), [format!("{}.json", std::process::id())]);
        drop(publisher);
        assert!(names(&folder).is_empty());
    }

    #[test]
    fn what_was_said_just_now_is_not_written_again() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("oomph");
        let mut publisher = publisher(&folder);
        publisher.publish(&status());
        std::fs::remove_file(publisher.path().unwrap()).unwrap();
        publisher.publish(&status());
        assert!(read(&folder).is_none());
        publisher.publish(&Status { steps: 4, ..status() });
        assert_eq!(read(&folder).unwrap().steps, 4);
        // Somebody cleans up: it comes again, once there is something to say.
        std::fs::remove_dir_all(&folder).unwrap();
        publisher.publish(&Status { steps: 5, ..status() });
        publisher.publish(&Status { steps: 6, ..status() });
        assert_eq!(read(&folder).unwrap().steps, 6);
    }

    #[test]
    fn nothing_is_written_through_a_link_nor_where_others_may_write() {
        let place = tempfile::tempdir().unwrap();
        let other = place.path().join("other");
        std::fs::create_dir(&other).unwrap();
        let link = place.path().join("link");
        symlink(&other, &link).unwrap();
        publisher(&link).publish(&status());
        assert!(names(&other).is_empty());
        std::fs::set_permissions(&other, PermissionsExt::from_mode(0o777)).unwrap();
        publisher(&other).publish(&status());
        assert!(names(&other).is_empty());
        // A link in the place of the file that is written first.
        let folder = place.path().join("oomph");
        DirBuilder::new().mode(0o700).create(&folder).unwrap();
        let target = place.path().join("target");
        std::fs::write(&target, "theirs").unwrap();
        symlink(&target, folder.join(format!(".{}.part", std::process::id()))).unwrap();
        publisher(&folder).publish(&status());
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "theirs");
    }

    /// What another process would have said, but for the time.
    fn text_of(pid: u32) -> String {
        let mut publisher = publisher(Path::new("nowhere"));
        publisher.pid = pid;
        publisher.text(&status())
    }

    /// A file that nobody has written for so many seconds.
    fn old(folder: &Path, name: &str, text: &str, age: u64) {
        std::fs::write(folder.join(name), text).unwrap();
        let file = std::fs::File::options().write(true).open(folder.join(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
    }

    #[test]
    fn files_of_dead_processes_are_removed_when_they_are_old() {
        let place = tempfile::tempdir().unwrap();
        let alive = std::process::id();
        let dead = |name: &str, text: &str, age: u64| old(place.path(), name, text, age);
        // No process has so high a number.
        dead("4194400.json", &format!("{},\"time\":1}}\n", text_of(4_194_400)), 100);
        dead(".4194400.part", &text_of(4_194_400)[..100], 100);
        let bare = "{\"pid\":4194402,\"start_ticks\":7,\"steps\":3,\"devices\":[],\"time\":1}\n";
        dead("4194402.json", bare, 100);
        dead("4194401.json", &text_of(4_194_401), 1);
        dead(&format!("{alive}.json"), &text_of(alive), 100);
        clean(place.path());
        let mut left = names(place.path());
        left.sort();
        let mut expected = vec!["4194401.json".to_owned(), format!("{alive}.json")];
        expected.sort();
        assert_eq!(left, expected);
    }

    #[test]
    fn what_oomph_did_not_write_stays() {
        let place = tempfile::tempdir().unwrap();
        let text = text_of(4_194_400);
        let files = [
            ("4194401.json", text.as_str()),
            ("4194402.json", ""),
            ("4194403.json", "[1, 2, 3]"),
            ("4194404.json", "{\"pid\":4194404}"),
            ("4194405.json", "{\"pid\":4194405,\"start_ticks\":,\"steps\":1"),
            ("4194406.json", "{\"pid\":4194406,\"start_ticks\":5,\"mine\":1}"),
            (".4194407.part", "half a word"),
            ("notes.json", &text),
        ];
        files.iter().for_each(|(name, text)| old(place.path(), name, text, 100));
        std::fs::create_dir(place.path().join("4194408.json")).unwrap();
        old(place.path(), "target", &text, 100);
        symlink(place.path().join("target"), place.path().join("4194400.json")).unwrap();
        let before = names(place.path()).len();
        clean(place.path());
        assert_eq!(names(place.path()).len(), before);
    }

    #[test]
    fn in_a_folder_that_somebody_named_nothing_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let name = "4194400.json";
        let mut publisher = publisher(place.path());
        old(place.path(), name, &text_of(4_194_400), 100);
        publisher.is_usual = false;
        publisher.publish(&status());
        assert!(publisher.path().unwrap().exists() && place.path().join(name).exists());
        publisher.is_usual = true;
        publisher.folder = None;
        publisher.publish(&Status { steps: 4, ..status() });
        assert!(!place.path().join(name).exists());
    }

    #[test]
    fn a_file_is_never_longer_than_a_reader_takes() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("oomph");
        let mut publisher = publisher(&folder);
        // The most that a reader believes of a card.
        let most = 1 << 50;
        let line = ("\u{1}".repeat(220), u64::MAX);
        let device = |device| DeviceStatus {
            device,
            card: Some(Card { name: "\u{1}".repeat(200), total: most, is_virtual: false }),
            allocated: most,
            reserved: most,
            peak: most,
            last_peak: Some(most),
            lines: vec![line.clone(); MOST_LINES],
        };
        publisher.publish(&Status { steps: u64::MAX, devices: (0..64).map(device).collect() });
        let status = read(&folder).unwrap();
        assert_eq!((status.devices.len(), status.devices[0].lines.len()), (MOST_DEVICES, MOST_LINES));
        assert!(status.devices[31].lines.is_empty());
    }

    #[test]
    fn a_process_may_have_any_name() {
        let fields: Vec<String> = (3..=52).map(|field| field.to_string()).collect();
        assert_eq!(start_ticks(&format!("7 (a) b (c d) {}", fields.join(" "))), Some(22));
        assert_eq!(start_ticks("7 (a"), None);
        assert_eq!(start_ticks("7 (a) S 1"), None);
    }
}
