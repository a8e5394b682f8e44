//! Processes, as `/proc` has them.
//!
//! `oomph top` looks every second, so as little as possible is read: `stat` each time; `status`, which has the memory and is
//! dear, if the process ran, faulted or changed its size since, and with it what it has open; and command, user and control group once, when it became another
//! program (`exec`), then now and then.
//! Threads of the kernel are left out. A process may be gone between two reads: then it is left out too.

use crate::inside::Reader as InsideReader;
use crate::stat::{Program, Stat, Trace};
use crate::text::{field, read};
use crate::{Gpus, Inside, OpenRecording, recordings};
use serde::Serialize;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// After so many samples everything is read again: a process can change its command, and lock memory, without a trace in `stat`.
const EVERY: u64 = 16;
/// Nothing longer is kept of a command.
pub(crate) const LONGEST_COMMAND: u64 = 4096;

/// The system is asked for so many users at most, in the whole life of this process, and waited for so long.
const MOST_ASKED: u32 = 50;
const LONGEST_ANSWER: Duration = Duration::from_secs(1);
/// A directory that did not answer in time so often is not asked again: whoever waits for a sample waits for it.
const MOST_SLOW: u32 = 3;
static ASKED: AtomicU32 = AtomicU32::new(0);
static SLOW: AtomicU32 = AtomicU32::new(0);

/// A process.
#[derive(Debug, Clone, Serialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Who started it.
    pub parent: u32,
    /// Name of its (effective) user, or the number where the system has no name.
    pub user: String,
    /// Short name.
    pub name: String,
    /// Program and arguments; the name where they cannot be read.
    pub command: String,
    /// As the kernel abbreviates it: R, S, D, Z (dead, not yet fetched), T …
    pub state: char,
    /// When it started, in milliseconds since 1970.
    pub started: u64,
    /// The same, as the kernel counts it: field 22 of `stat`. With its number it names a process for good.
    pub start_ticks: u64,
    /// Milliseconds of processor time so far.
    pub processor: u64,
    /// In RAM, all of it: the three below.
    pub resident: u64,
    /// Of its own.
    pub anonymous: u64,
    /// Pages of files.
    pub file: u64,
    /// Shared memory.
    pub shared: u64,
    /// Out of RAM.
    pub swapped: u64,
    /// Locked or pinned, as far as the kernel counts it: not what CUDA pins.
    pub pinned: u64,
    /// Memory on cards: card and bytes.
    pub on_gpus: Vec<(u32, Option<u64>)>,
    /// The container or the batch job it is in, if one can be seen: `docker:0123456789ab`, `slurm:123`.
    pub container: Option<String>,
    /// What it says of itself, if it runs under oomph.
    pub inside: Option<Inside>,
    /// What it is recorded to.
    pub recordings: Vec<OpenRecording>,
}

/// Keeps what need not be read each time.
pub(crate) struct Reader {
    /// Ends with a slash.
    proc: String,
    /// Names of users, or numbers where no name was found.
    users: HashMap<u32, String>,
    /// Whether the system may be asked for names that `/etc/passwd` does not have.
    asks: bool,
    /// When the machine started, in milliseconds since 1970.
    booted: u64,
    ticks_per_second: u64,
    known: HashMap<u32, Known>,
    inside: InsideReader,
    round: u64,
    path: String,
    text: Vec<u8>,
}

/// What is kept of a process.
struct Known {
    /// When it was last there.
    round: u64,
    start: u64,
    is_kernel: bool,
    program: Program,
    trace: Trace,
    memory: Memory,
    name: String,
    user: String,
    command: String,
    container: Option<String>,
    recordings: Vec<OpenRecording>,
}

impl Known {
    fn of(stat: &Stat) -> Self {
        Self {
            round: 0,
            start: stat.start,
            is_kernel: stat.is_kernel,
            program: stat.program,
            trace: stat.trace,
            memory: Memory::default(),
            name: String::new(),
            user: String::new(),
            command: String::new(),
            container: None,
            recordings: Vec::new(),
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Memory {
    anonymous: u64,
    file: u64,
    shared: u64,
    swapped: u64,
    pinned: u64,
}

impl Reader {
    pub(crate) fn new(root: &Path) -> Self {
        // Elsewhere it is another machine's, or a test's.
        let is_here = root == Path::new("/");
        let inside = if is_here { InsideReader::new() } else { InsideReader::of(Vec::new()) };
        Self {
            proc: format!("{}/", root.join("proc").display()),
            users: users(&read(&root.join("etc/passwd"))),
            asks: is_here,
            booted: field(&read(&root.join("proc/stat")), "btime").unwrap_or(0).saturating_mul(1000),
            ticks_per_second: rustix::param::clock_ticks_per_second().max(1),
            known: HashMap::new(),
            inside,
            round: 0,
            path: String::new(),
            text: Vec::new(),
        }
    }

    pub(crate) fn read(&mut self, gpus: &Gpus) -> Vec<Process> {
        self.round += 1;
        self.inside.look();
        let mut on_gpus: HashMap<u32, Vec<(u32, Option<u64>)>> = HashMap::new();
        for card in &gpus.cards {
            for process in &card.processes {
                on_gpus.entry(process.pid).or_default().push((card.index, process.bytes));
            }
        }
        let entries = std::fs::read_dir(&self.proc).into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let mut processes: Vec<Process> = numbers.filter_map(|pid| self.process(pid, &on_gpus)).collect();
        processes.sort_unstable_by_key(|process| process.pid);
        let round = self.round;
        self.known.retain(|_, known| known.round == round);
        processes
    }

    fn process(&mut self, pid: u32, on_gpus: &HashMap<u32, Vec<(u32, Option<u64>)>>) -> Option<Process> {
        let round = self.round;
        let is_due = (round + u64::from(pid)).is_multiple_of(EVERY);
        if let Some(known) = self.known.get_mut(&pid)
            && known.is_kernel
            && !is_due
        {
            known.round = round;
            return None;
        }
        self.load(pid, "stat", u64::MAX)?;
        let stat = Stat::of(&self.text)?;
        let known = self.known.remove(&pid).filter(|known| known.start == stat.start);
        let is_same = |known: &Known| known.name == stat.name && known.program == stat.program;
        let is_due = is_due || !known.as_ref().is_some_and(is_same);
        let mut known = known.unwrap_or_else(|| Known::of(&stat));
        known.round = round;
        known.is_kernel = stat.is_kernel;
        known.program = stat.program;
        if is_due && !stat.is_kernel {
            known.name.clone_from(&stat.name);
            self.describe(pid, &mut known);
        }
        if (is_due || known.trace != stat.trace) && !stat.is_kernel {
            self.measure(pid, &mut known)?;
            known.recordings = recordings::of(Path::new(&self.proc), pid, stat.parent);
            known.trace = stat.trace;
        }
        let process = (!stat.is_kernel).then(|| {
            let memory = known.memory;
            Process {
                pid,
                parent: stat.parent,
                user: known.user.clone(),
                name: stat.name,
                command: known.command.clone(),
                state: stat.state,
                started: self.booted.saturating_add(self.milliseconds(stat.start)),
                start_ticks: stat.start,
                processor: self.milliseconds(stat.trace.processor),
                resident: memory.anonymous.saturating_add(memory.file).saturating_add(memory.shared),
                anonymous: memory.anonymous,
                file: memory.file,
                shared: memory.shared,
                swapped: memory.swapped,
                pinned: memory.pinned,
                on_gpus: on_gpus.get(&pid).cloned().unwrap_or_default(),
                container: known.container.clone(),
                inside: self.inside.get(pid, stat.start).cloned(),
                recordings: known.recordings.clone(),
            }
        });
        self.known.insert(pid, known);
        process
    }

    /// Command and control group.
    fn describe(&mut self, pid: u32, known: &mut Known) {
        if self.load(pid, "cmdline", LONGEST_COMMAND).is_some() {
            let command = command(&self.text);
            // A dead process has none any more.
            if !command.is_empty() {
                known.command = command;
            }
        }
        if known.command.is_empty() {
            known.command.clone_from(&known.name);
        }
        if self.load(pid, "cgroup", u64::MAX).is_some() {
            known.container = container(&String::from_utf8_lossy(&self.text));
        }
    }

    /// User and memory.
    fn measure(&mut self, pid: u32, known: &mut Known) -> Option<()> {
        self.load(pid, "status", u64::MAX)?;
        let status = Status::of(&self.text);
        if let Some(user) = status.user {
            let asks = self.asks;
            let ask = || asks.then(|| ask(user)).flatten().unwrap_or_else(|| user.to_string());
            known.user = self.users.entry(user).or_insert_with(ask).clone();
        }
        known.memory = status.memory;
        // What is locked is counted by address: it need not be in RAM.
        known.memory.pinned = status.memory.pinned.min(status.resident);
        if !status.is_split && status.resident > 0 {
            // Kernels before 4.5 and gVisor do not distinguish files from shared memory.
            self.load(pid, "statm", u64::MAX)?;
            let text = String::from_utf8_lossy(&self.text);
            let pages =
                text.split_whitespace().nth(2).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
            known.memory.file = pages.saturating_mul(rustix::param::page_size() as u64).min(status.resident);
            known.memory.anonymous = status.resident - known.memory.file;
        }
        Some(())
    }

    /// A file of a process, into `text`.
    fn load(&mut self, pid: u32, name: &str, most: u64) -> Option<()> {
        self.path.clear();
        write!(self.path, "{}{pid}/{name}", self.proc).ok()?;
        self.text.clear();
        File::open(&self.path).ok()?.take(most).read_to_end(&mut self.text).ok()?;
        Some(())
    }

    fn milliseconds(&self, ticks: u64) -> u64 {
        ticks.saturating_mul(1000) / self.ticks_per_second
    }
}

/// What is taken from `status`.
struct Status {
    user: Option<u32>,
    /// Whether the kernel says what is of files and what is shared.
    is_split: bool,
    resident: u64,
    memory: Memory,
}

impl Status {
    fn of(text: &[u8]) -> Self {
        let mut status = Self { user: None, is_split: false, resident: 0, memory: Memory::default() };
        for line in text.split(|byte| *byte == b'\n') {
            let Some((name, value)) = std::str::from_utf8(line).ok().and_then(|line| line.split_once(':'))
            else {
                continue;
            };
            let mut values = value.split_ascii_whitespace();
            let mut bytes =
                || values.next().and_then(|value| value.parse().ok()).unwrap_or(0u64).saturating_mul(1 << 10);
            match name {
                // Real, effective, saved, of files.
                "Uid" => status.user = values.nth(1).and_then(|value| value.parse().ok()),
                "VmLck" | "VmPin" => status.memory.pinned = status.memory.pinned.saturating_add(bytes()),
                "VmRSS" => status.resident = bytes(),
                "RssAnon" => {
                    status.is_split = true;
                    status.memory.anonymous = bytes();
                }
                "RssFile" => status.memory.file = bytes(),
                "RssShmem" => status.memory.shared = bytes(),
                "VmSwap" => {
                    status.memory.swapped = bytes();
                    // Nothing of interest comes after it.
                    break;
                }
                _ => {}
            }
        }
        status
    }
}

/// Program and arguments in one line.
pub(crate) fn command(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.trim_end_matches('\0').replace('\0', " ").trim().to_owned()
}

/// Numbers and names, as `/etc/passwd` has them.
fn users(passwd: &str) -> HashMap<u32, String> {
    let line = |line: &str| {
        let mut parts = line.split(':');
        let (name, number) = (parts.next()?, parts.nth(1)?);
        Some((number.parse().ok()?, name.to_owned()))
    };
    let mut users = HashMap::new();
    for (number, name) in passwd.lines().filter_map(line) {
        // The first name of a number is the one that others show.
        users.entry(number).or_insert(name);
    }
    users
}

/// Number and name of a user whom `/etc/passwd` does not know, by either: one may be in a directory (LDAP, SSSD), which `getent`
/// asks as the system is set up. `None` too if it was asked often enough, or is slow.
pub fn user_of_directory(who: &str) -> Option<(u32, String)> {
    let is_plain = |letter: char| letter.is_alphanumeric() || "._-@\\$".contains(letter);
    if who.is_empty() || who.starts_with('-') || !who.chars().all(is_plain) {
        return None;
    }
    if SLOW.load(Ordering::Relaxed) >= MOST_SLOW || ASKED.fetch_add(1, Ordering::Relaxed) >= MOST_ASKED {
        return None;
    }
    let answer = answer(Command::new("getent").args(["passwd", who]), LONGEST_ANSWER);
    if answer == Answer::TooLate {
        SLOW.fetch_add(1, Ordering::Relaxed);
    }
    let Answer::Text(text) = answer else { return None };
    let found = users(&text).into_iter().next();
    found.filter(|(_, name)| !name.is_empty() && !name.contains(char::is_control))
}

fn ask(user: u32) -> Option<String> {
    user_of_directory(&user.to_string()).filter(|(number, _)| *number == user).map(|(_, name)| name)
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Text(String),
    None,
    TooLate,
}

/// What a program prints that ends well and in time. One that has more to say than a pipe holds does not end.
fn answer(command: &mut Command, most: Duration) -> Answer {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let Ok(mut program) = command.spawn() else { return Answer::None };
    let began = Instant::now();
    loop {
        match program.try_wait() {
            Ok(Some(end)) if end.success() => break,
            Ok(None) if began.elapsed() < most => std::thread::sleep(Duration::from_millis(2)),
            Ok(Some(_)) => return Answer::None,
            Ok(None) | Err(_) => {
                let _ = program.kill();
                let _ = program.wait();
                return Answer::TooLate;
            }
        }
    }
    // Read once, not to its end: what it has started may still hold the pipe.
    let mut text = vec![0; 4096];
    let read = program.stdout.as_mut().and_then(|pipe| pipe.read(&mut text).ok()).unwrap_or(0);
    Answer::Text(String::from_utf8_lossy(text.get(..read).unwrap_or_default()).into_owned())
}

/// The container or the batch job in which this group is, the innermost: Docker, Podman and Kubernetes put the container's
/// number into the name of the group, LXC its name, Slurm the number of the job.
pub(crate) fn container(groups: &str) -> Option<String> {
    groups.lines().find_map(|line| {
        let (_, path) = line.split_once(':')?.1.split_once(':')?;
        path.rsplit('/').find_map(|part| {
            if let Some(job) = part.strip_prefix("job_").filter(|_| path.contains("slurm")) {
                return Some(format!("slurm:{job}"));
            }
            if let Some(name) = part.strip_prefix("lxc.payload.") {
                return Some(format!("lxc:{name}"));
            }
            let part = part.strip_suffix(".scope").unwrap_or(part);
            let id = part.rsplit(['-', ':']).next().filter(|id| id.len() == 64)?;
            if !id.bytes().all(|byte| byte.is_ascii_hexdigit()) || part.contains("conmon") {
                return None;
            }
            let kinds = [("kubepods", "kubernetes"), ("libpod", "podman"), ("docker", "docker")];
            let kind =
                kinds.iter().find(|(mark, _)| path.contains(mark)).map_or("container", |(_, kind)| kind);
            Some(format!("{kind}:{}", &id[..12]))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stat::KERNEL_THREAD;
    use crate::text::tests::root_with;
    use crate::{Gpu, GpuProcess, Use};

    fn stat(pid: u32, name: &str, state: char, flags: u64, faults: u64, start: u64) -> String {
        let parent = if flags == 0 { 1 } else { 0 };
        format!(
            "{pid} ({name}) {state} {parent} 1 1 0 -1 {flags} {faults} 0 0 0 10 5 0 0 20 0 1 0 {start} 9 7 0\n"
        )
    }

    fn status(user: u32, anonymous: u64) -> String {
        format!(
            "Name:\tx\nUid:\t0\t{user}\t0\t0\nVmLck:\t 4 kB\nVmPin:\t 8 kB\nVmRSS:\t 99 kB\nRssAnon:\t{anonymous} kB\n\
             RssFile:\t 20 kB\nRssShmem:\t 30 kB\nVmSwap:\t 40 kB\nThreads:\t1\n"
        )
    }

    fn write(root: &Path, name: &str, text: &str) {
        let path = root.join("proc").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn machine() -> tempfile::TempDir {
        let id = "0123456789abcdef".repeat(4);
        root_with(&[
            (
                "etc/passwd",
                "root:x:0:0::/:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\nalso:x:1000:1:::\nbroken\n",
            ),
            ("proc/stat", "cpu 1 2 3\nbtime 1700000000\n"),
            ("proc/2/stat", &stat(2, "kthreadd", 'S', KERNEL_THREAD, 0, 1)),
            ("proc/41/stat", &stat(41, "a) R (b\n) c", 'S', 0, 3, 250)),
            ("proc/41/status", &status(1000, 10)),
            ("proc/41/cmdline", "python\0train.py\0--name\0two words\0"),
            ("proc/41/cgroup", &format!("0::/system.slice/docker-{id}.scope\n")),
            ("proc/42/stat", &stat(42, "gone", 'Z', 0, 3, 300)),
            ("proc/42/status", "Name:\tgone\nUid:\t4242\t4242\t4242\t4242\n"),
            ("proc/42/cmdline", ""),
            ("proc/43/status", &status(0, 1)),
            ("proc/self/stat", "no number"),
        ])
    }

    #[test]
    fn processes_are_read() {
        let root = machine();
        let mut reader = Reader::new(root.path());
        reader.ticks_per_second = 100;
        let card = Gpu {
            index: 1,
            processes: vec![
                GpuProcess { pid: 41, bytes: Some(7), kind: Use::Compute },
                GpuProcess { pid: 4711, bytes: None, kind: Use::Graphics },
            ],
            ..Gpu::default()
        };
        let found = reader.read(&Gpus { cards: vec![card], ..Gpus::default() });
        assert_eq!(found.iter().map(|process| process.pid).collect::<Vec<_>>(), [41, 42], "43 is gone");
        let process = &found[0];
        assert_eq!((process.name.as_str(), process.state, process.parent), ("a) R (b\n) c", 'S', 1));
        assert_eq!(process.command, "python train.py --name two words");
        assert_eq!(process.user, "ann");
        assert_eq!((process.started, process.start_ticks, process.processor), (1_700_000_002_500, 250, 150));
        assert_eq!(
            [
                process.resident,
                process.anonymous,
                process.file,
                process.shared,
                process.swapped,
                process.pinned
            ],
            [60 << 10, 10 << 10, 20 << 10, 30 << 10, 40 << 10, 12 << 10]
        );
        assert_eq!(process.on_gpus, [(1, Some(7))]);
        assert_eq!(process.container.as_deref(), Some("docker:0123456789ab"));
        let dead = &found[1];
        assert_eq!(
            (dead.command.as_str(), dead.user.as_str(), dead.state, dead.resident),
            ("gone", "4242", 'Z', 0)
        );
    }

    #[test]
    fn memory_is_read_again_when_the_process_has_moved() {
        let root = machine();
        let mut reader = Reader::new(root.path());
        let mut anonymous = || {
            let found = reader.read(&Gpus::default());
            found.iter().find(|process| process.pid == 41).unwrap().anonymous >> 10
        };
        assert_eq!(anonymous(), 10);
        write(root.path(), "41/status", &status(1000, 11));
        assert_eq!(anonymous(), 10, "nothing in stat has moved");
        for faults in 4..6 {
            write(root.path(), "41/stat", &stat(41, "a) R (b\n) c", 'S', 0, faults, 250));
            write(root.path(), "41/status", &status(1000, 10 * faults));
            assert_eq!(anonymous(), 10 * faults);
        }
        write(root.path(), "41/status", &status(1000, 12));
        assert!((0..EVERY).any(|_| anonymous() == 12), "it is read now and then anyway");
    }

    #[test]
    fn another_process_with_the_same_number_is_another() {
        let root = machine();
        let mut reader = Reader::new(root.path());
        reader.read(&Gpus::default());
        write(root.path(), "41/stat", &stat(41, "a) R (b\n) c", 'S', 0, 3, 999));
        write(root.path(), "41/cmdline", "other\0");
        write(root.path(), "41/status", &status(0, 77));
        std::fs::remove_dir_all(root.path().join("proc/42")).unwrap();
        let found = reader.read(&Gpus::default());
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].command.as_str(), found[0].user.as_str(), found[0].anonymous),
            ("other", "root", 77 << 10)
        );
        assert_eq!(reader.known.len(), 2, "the kernel's thread and this one; what is gone is forgotten");
    }

    #[test]
    fn a_process_that_became_another_program_is_described_anew() {
        let root = machine();
        let mut reader = Reader::new(root.path());
        // Not one of the samples in which everything is read.
        reader.round = EVERY * 3 - 41;
        let before = stat(41, "python", 'S', 0, 3, 250);
        for (command, changed) in [
            ("one", before.clone()),
            ("forked", before.replace(" -1 0 ", " -1 64 ")),
            ("elsewhere", before.replace(" 9 7 0\n", " 9 7 0 4096 8192 65536\n")),
            ("another stack", before.replace(" 9 7 0\n", " 9 7 0 4096 8192 131072\n")),
        ] {
            write(root.path(), "41/stat", &changed);
            write(root.path(), "41/cmdline", &format!("{command}\0"));
            assert_eq!(reader.read(&Gpus::default())[0].command, command);
        }
    }

    #[test]
    fn a_number_of_the_kernel_may_become_a_programs() {
        let root = machine();
        let mut reader = Reader::new(root.path());
        reader.read(&Gpus::default());
        write(root.path(), "2/stat", &stat(2, "python", 'R', 0, 3, 999));
        write(root.path(), "2/status", &status(0, 5));
        assert!((0..EVERY).any(|_| reader.read(&Gpus::default()).iter().any(|process| process.pid == 2)));
    }

    #[test]
    fn kernels_that_do_not_split_are_understood() {
        let root = machine();
        write(root.path(), "41/status", "Uid:\t0\t0\t0\t0\nVmRSS:\t 1000 kB\n");
        write(root.path(), "41/statm", "900 250 3 0 0 0 0\n");
        let found = Reader::new(root.path()).read(&Gpus::default());
        let file = 3 * rustix::param::page_size() as u64;
        assert_eq!(
            (found[0].anonymous, found[0].file, found[0].resident),
            ((1000 << 10) - file, file, 1000 << 10)
        );
    }

    #[test]
    fn broken_files_are_left_out() {
        for text in ["", "7", "7 (", "7 )x(", "7 (x)", "7 (x) ", "\u{0}\u{0}", "7 (x) S"] {
            let root = root_with(&[("proc/7/stat", text), ("proc/7/status", "Uid:\nVmRSS: x\n:\n\n")]);
            let found = Reader::new(root.path()).read(&Gpus::default());
            assert!(found.iter().all(|process| process.resident == 0 && process.name == "x"), "{text:?}");
        }
        assert!(Reader::new(Path::new("/nonexistent")).read(&Gpus::default()).is_empty());
    }

    fn shell(script: &str, most: Duration) -> Answer {
        answer(Command::new("sh").args(["-c", script]), most)
    }

    #[test]
    fn who_answers_in_time_is_believed() {
        let most = Duration::from_secs(60);
        assert_eq!(shell("echo ann:x:7:", most), Answer::Text("ann:x:7:\n".into()));
        assert_eq!(shell("echo ann:x:7:; exit 2", most), Answer::None);
        assert_eq!(answer(&mut Command::new("/nonexistent/getent"), most), Answer::None);
        let began = Instant::now();
        assert_eq!(shell("exec sleep 60", Duration::from_millis(50)), Answer::TooLate);
        assert_eq!(shell("exec yes", Duration::from_millis(50)), Answer::TooLate);
        assert!(began.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_user_is_asked_for_once_and_only_here() {
        // Nearly every system has getent and answers in time.
        assert!(user_of_directory("0").is_none_or(|found| found == (0, "root".to_owned())));
        assert_eq!(user_of_directory("--help"), None);
        assert_eq!(user_of_directory(""), None);
        let root = machine();
        let mut reader = Reader::new(root.path());
        assert!(!reader.asks, "not for a machine below another folder");
        reader.read(&Gpus::default());
        assert_eq!(reader.users.get(&4242).map(String::as_str), Some("4242"));
        assert!(Reader::new(Path::new("/")).asks);
        // No system has a name for this one: it is a number, and not asked for again.
        reader.asks = true;
        let unknown = 4_000_000_007u32;
        write(root.path(), "41/status", &status(unknown, 10));
        reader.known.clear();
        reader.read(&Gpus::default());
        let asked = ASKED.load(Ordering::Relaxed);
        assert!((1..=MOST_ASKED).contains(&asked));
        reader.known.clear();
        let found = reader.read(&Gpus::default());
        assert_eq!(found[0].user, unknown.to_string());
        assert_eq!(ASKED.load(Ordering::Relaxed), asked);
    }

    #[test]
    fn containers_and_jobs_are_named() {
        let id = "0123456789abcdef".repeat(4);
        let named = |path: &str| container(&format!("1:name=systemd:/\n0::{}\n", path.replace("ID", &id)));
        for (path, name) in [
            ("/docker/ID", "docker:0123456789ab"),
            ("/docker/ID/init", "docker:0123456789ab"),
            ("/system.slice/docker-ID.scope", "docker:0123456789ab"),
            (
                "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID.scope/container",
                "podman:0123456789ab",
            ),
            ("/kubepods/besteffort/pod123/ID", "kubernetes:0123456789ab"),
            ("/kubepods.slice/kubepods-pod1.slice/cri-containerd-ID.scope", "kubernetes:0123456789ab"),
            (
                "/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:ID",
                "kubernetes:0123456789ab",
            ),
            ("/garden/ID", "container:0123456789ab"),
            ("/lxc.payload.web/init.scope", "lxc:web"),
            ("/slurm/uid_1000/job_77/step_0/task_1", "slurm:77"),
            ("/system.slice/slurmstepd.scope/job_78/step_batch/user/task_0", "slurm:78"),
        ] {
            assert_eq!(named(path).as_deref(), Some(name), "{path}");
        }
        for path in [
            "/",
            "/user.slice/job_1",
            "/system.slice/ssh.service",
            "/x/libpod-conmon-ID.scope",
            "/0123456789ab",
        ] {
            assert_eq!(named(path), None, "{path}");
        }
        assert_eq!(container("broken\n::\n"), None);
    }
}
