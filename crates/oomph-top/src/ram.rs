//! What recordings of RAM say while they are written: how much each process has asked for, and which lines hold most.
//!
//! Boundary: which recordings a process writes is `oomph-host`'s to know, and how they are read `oomph-trace`'s. What is in them is a stranger's.

use crate::rates::{Id, id};
use oomph_host::{OpenRecording, Process};
use oomph_trace::format::{Follower, Progress};
use oomph_trace::{CALLER, HostSum, NATIVE, NO_PYTHON, StackId, Stacks, Strings};
use oomph_words::is_library_file;
use std::collections::HashMap;
use std::fs::File;

/// Lines of a process that are kept: as many as one says of itself.
const MOST_LINES: usize = 8;
/// Longer names are cut.
const LONGEST: usize = 100;
/// Read of each recording in one look, where whoever looks has no patience: a fifth of a second.
const AT_ONCE: u64 = 32 << 20;
/// A recording that cannot be read is begun again so often: another may have taken its place.
const MOST_TRIES: u32 = 3;

/// What a process holds, by its recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// Bytes that are asked for and not given back.
    pub(crate) asked: u64,
    /// By how much that may be off: small blocks are sampled.
    pub(crate) error: u64,
    /// The lines that hold most, the largest first.
    pub(crate) lines: Vec<HeldLine>,
    /// Where it is recorded to.
    pub(crate) recording: String,
}

/// What a line holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldLine {
    /// `file.py:12 function`; the file without its folder.
    pub(crate) place: String,
    pub(crate) bytes: u64,
    pub(crate) error: u64,
}

/// What all processes hold that are recorded.
pub(crate) type HeldBy = HashMap<Id, Held>;

/// Follows the recordings of all processes.
pub(crate) struct Recordings {
    followed: HashMap<(Id, OpenRecording), Followed>,
    at_once: u64,
}

impl Recordings {
    /// `is_hurried`: a long recording is read in several looks, and shown when it has been.
    pub(crate) fn new(is_hurried: bool) -> Self {
        Self { followed: HashMap::new(), at_once: if is_hurried { AT_ONCE } else { u64::MAX } }
    }

    /// What these processes hold now, as far as it is written.
    pub(crate) fn look(&mut self, processes: &[Process]) -> HeldBy {
        let mut before = std::mem::take(&mut self.followed);
        let mut held = HeldBy::new();
        for process in processes {
            for recording in &process.recordings {
                let key = (id(process), recording.clone());
                let mut followed = before.remove(&key).unwrap_or_default();
                if let Some(one) = followed.look(recording, self.at_once) {
                    held.insert(id(process), one);
                }
                self.followed.insert(key, followed);
            }
        }
        held
    }
}

/// A recording that is read as it grows.
#[derive(Default)]
struct Followed {
    follower: Option<Follower<File>>,
    places: Places,
    /// How often it could not be read since it could.
    failed: u32,
}

impl Followed {
    fn look(&mut self, recording: &OpenRecording, most: u64) -> Option<Held> {
        if self.failed >= MOST_TRIES {
            return None;
        }
        if self.follower.is_none() {
            (self.follower, self.places) = (recording.open().map(Follower::new), Places::default());
        }
        match self.follower.as_mut()?.look(most) {
            Ok(Progress::Current) => self.failed = 0,
            Ok(Progress::Behind | Progress::Ended | Progress::NotOfHost) => return None,
            Err(_) => {
                (self.follower, self.failed) = (None, self.failed + 1);
                return None;
            }
        }
        let follower = self.follower.as_ref()?;
        let total = follower.total();
        Some(Held {
            asked: total.bytes(),
            error: total.error(),
            lines: self.places.largest(follower),
            recording: recording.path.clone(),
        })
    }
}

/// The lines of stacks: the innermost one of the program's own, else the innermost of Python's.
#[derive(Default)]
struct Places {
    of_stack: Vec<usize>,
    /// By function, file and line, as the recording numbers them.
    numbers: HashMap<(u32, u32, u32), usize>,
    texts: Vec<String>,
}

impl Places {
    fn largest(&mut self, follower: &Follower<File>) -> Vec<HeldLine> {
        let (stacks, strings) = follower.tables();
        let mut sums: Vec<HostSum> = Vec::new();
        for (stack, sum) in follower.by_stack().iter().enumerate() {
            if stack == self.of_stack.len() {
                let place = self.place(stack as StackId, stacks, strings);
                self.of_stack.push(place);
            }
            let place = self.of_stack.get(stack).copied().unwrap_or(0);
            if place >= sums.len() {
                sums.resize(place + 1, HostSum::default());
            }
            if let Some(of_place) = sums.get_mut(place) {
                of_place.merge(sum);
            }
        }
        let mut lines: Vec<(usize, HostSum)> =
            sums.into_iter().enumerate().filter(|(_, sum)| sum.bytes() > 0).collect();
        lines.sort_by_key(|(place, sum)| (std::cmp::Reverse(sum.bytes()), *place));
        let line = |(place, sum): &(usize, HostSum)| HeldLine {
            place: self.texts.get(*place).cloned().unwrap_or_default(),
            bytes: sum.bytes(),
            error: sum.error(),
        };
        lines.iter().take(MOST_LINES).map(line).collect()
    }

    fn place(&mut self, stack: StackId, stacks: &Stacks, strings: &Strings) -> usize {
        if self.texts.is_empty() {
            self.texts.push(NO_PYTHON.to_owned());
        }
        let frames = stacks.get(stack).iter().map(|&frame| stacks.frame(frame));
        let is_of_python = |name: &str| name != CALLER && !name.starts_with(NATIVE);
        let of_python: Vec<_> = frames.filter(|frame| is_of_python(strings.get(frame.name))).collect();
        let own = of_python.iter().find(|frame| !is_library_file(strings.get(frame.file)));
        let Some(frame) = own.or(of_python.first()) else { return 0 };
        let next = self.texts.len();
        *self.numbers.entry((frame.name, frame.file, frame.line)).or_insert_with(|| {
            let file = strings.get(frame.file);
            let file = file.rsplit(['/', '\\']).next().unwrap_or(file);
            let short = |text: &str| text.chars().take(LONGEST).collect::<String>();
            self.texts.push(format!("{}:{} {}", short(file), frame.line, short(strings.get(frame.name))));
            next
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::staged;
    use oomph_host::Sampler;
    use oomph_trace::format::Writer;
    use oomph_trace::{Action, Frame, How, Recording};
    use std::os::unix::fs::symlink;
    use std::path::Path;

    /// A block of so many bytes, innermost frame first.
    fn alloc(recording: &mut Recording, size: u64, how: How, frames: &[(&str, &str, u32)]) {
        let frames: Vec<u32> = (frames.iter())
            .map(|&(name, file, line)| {
                let (name, file) = (recording.strings.intern(name), recording.strings.intern(file));
                recording.stacks.intern_frame(Frame { name, file, line })
            })
            .collect();
        let stack = recording.stacks.intern(&frames);
        let events = &mut recording.host.get_or_insert_default().events;
        events.action.push(Action::Alloc);
        events.block.push(events.time.len() as u64);
        events.size.push(size);
        events.how.push(how);
        events.stack.push(stack);
        events.time.push(0);
    }

    /// A process below this folder that has one recording open.
    fn machine(root: &Path, recording: &Path) -> Sampler {
        let process = root.join("proc/7");
        for folder in ["fd", "fdinfo"] {
            std::fs::create_dir_all(process.join(folder)).unwrap();
        }
        std::fs::write(process.join("stat"), "7 (python) S 1 1 1 0 -1 0 3 0 0 0 10 5 0 0 20 0 1 0 5 9 7 0\n")
            .unwrap();
        std::fs::write(process.join("status"), "Uid:\t0\t0\t0\t0\nVmRSS:\t 99 kB\nRssAnon:\t 9 kB\n")
            .unwrap();
        symlink(recording, process.join("fd/100")).unwrap();
        Sampler::at(root)
    }

    #[test]
    fn lines_are_the_programs_own_and_follow_the_file() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("train-ram.oomph");
        let mut recording = Recording::default();
        let numpy = (CALLER, "/v/site-packages/numpy/core.so", 0);
        let library = ("ones", "/v/site-packages/numpy/numeric.py", 200);
        alloc(&mut recording, 3 << 20, How::Large, &[numpy, library, ("main", "/home/me/train.py", 7)]);
        alloc(&mut recording, 1 << 20, How::Large, &[("main", "/home/me/train.py", 7)]);
        alloc(&mut recording, 2 << 20, How::Object, &[library]);
        alloc(&mut recording, 1 << 10, How::Mapped, &[numpy]);
        let mut writer = Writer::new(File::create(&path).unwrap()).unwrap();
        writer.append(&recording).unwrap();
        let mut sampler = machine(root.path(), &path);
        let mut recordings = Recordings::new(false);
        let held = recordings.look(&sampler.sample().processes);
        let held = &held[&(7, 5)];
        assert_eq!((held.asked, held.recording.as_str()), ((6 << 20) + (1 << 10), path.to_str().unwrap()));
        let lines: Vec<(&str, u64)> = held.lines.iter().map(|one| (one.place.as_str(), one.bytes)).collect();
        let expected = [("train.py:7 main", 4 << 20), ("numeric.py:200 ones", 2 << 20), (NO_PYTHON, 1 << 10)];
        assert_eq!(lines, expected);
        // One sample stands for all of the second.
        assert_eq!(held.error, held.lines[1].error);
        assert!(held.error > 512 << 10 && held.lines[0].error == 0, "{held:?}");

        for line in 0..20 {
            alloc(&mut recording, 8 << 20, How::Large, &[("fill", "/home/me/train.py", line % 10)]);
        }
        writer.append(&recording).unwrap();
        let held = &recordings.look(&sampler.sample().processes)[&(7, 5)];
        assert_eq!((held.lines.len(), held.lines[0].bytes), (MOST_LINES, 16 << 20));
        writer.finish(&recording).unwrap();
        assert!(recordings.look(&sampler.sample().processes).is_empty(), "it is over");
    }

    #[test]
    fn what_is_no_recording_is_left_alone_after_a_few_tries() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x.oomph");
        std::fs::write(&path, "this is no recording").unwrap();
        let processes = machine(root.path(), &path).sample().processes;
        let mut recordings = Recordings::new(true);
        (0..9).for_each(|_| assert!(recordings.look(&processes).is_empty()));
        assert_eq!(recordings.followed.values().next().unwrap().failed, MOST_TRIES);
        assert!(recordings.look(&staged::no_gpu().processes).is_empty() && recordings.followed.is_empty());
    }
}
