//! A Python that runs a script and answers in JSON. It has a time limit, and is not waited for beyond it, nor is what it has started.

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use serde::de::DeserializeOwned;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// What became of a child.
pub(crate) struct Ran {
    /// What it has printed, also if it failed.
    pub(crate) out: Vec<u8>,
    /// Why it failed, if it did: its last words.
    pub(crate) failed: Option<String>,
}

/// The last answer in what a child has printed. Others print too: start-up files before it, libraries at the end.
pub(crate) fn answer<T: DeserializeOwned>(out: &[u8]) -> Option<T> {
    out.rsplit(|&byte| byte == b'\n').find_map(|line| serde_json::from_slice(line).ok())
}

/// Runs a script. Neither it nor what it starts is waited for beyond its time.
pub(crate) fn run(python: &Path, script: &str, until: Instant) -> Ran {
    /// Output printed before the end is read at once, unless another process holds the pipe open.
    const REST: Duration = Duration::from_secs(1);
    let began = Instant::now();
    let started = Command::new(python)
        .args(["-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ran { out: Vec::new(), failed: Some("there is no such program".to_owned()) };
        }
        Err(error) => return Ran { out: Vec::new(), failed: Some(error.to_string()) },
    };
    let out = Heard::from(child.stdout.take());
    let err = Heard::from(child.stderr.take());
    let has_ended = wait(&child, until);
    let rest = until.min(Instant::now() + REST);
    let (out, err) = (out.by(rest), err.by(rest));
    // It is reaped only after that: until then its pid, and that of its group, is not reused.
    if let Some(group) = Pid::from_raw(i32::try_from(child.id()).unwrap_or(0)) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    if !has_ended {
        // One that is stuck in the kernel dies when it can.
        let _ = wait(&child, Instant::now() + REST).then(|| child.wait());
        let patience = until.saturating_duration_since(began).as_secs();
        return Ran { out, failed: Some(format!("no answer in {patience} s")) };
    }
    Ran {
        out,
        failed: child.wait().map_or_else(|error| Some(error.to_string()), |end| last_words(end, &err)),
    }
}

/// Why a child failed. One that a signal ended had no time for words: those that it has left are about something else.
fn last_words(end: ExitStatus, err: &[u8]) -> Option<String> {
    if end.success() {
        return None;
    }
    let err = String::from_utf8_lossy(err);
    let last = err.lines().rev().find(|line| !line.trim().is_empty()).filter(|_| end.signal().is_none());
    Some(last.map_or_else(|| format!("it ended with {end}"), |line| line.trim().to_owned()))
}

/// Whether this is our own description of how a child ended, and not its output: ours has nothing private in it.
pub(crate) fn is_how_it_ended(why: &str) -> bool {
    const OURS: [&str; 21] = [
        "a", "an", "answer", "ended", "error", "exit", "in", "is", "it", "message", "no", "program", "s",
        "signal:", "status:", "such", "there", "with", "without", "(core", "dumped)",
    ];
    let is_signal = |word: &str| {
        let name = word.strip_prefix("(SIG").and_then(|rest| rest.strip_suffix(')'));
        name.is_some_and(|name| name.len() <= 8 && name.chars().all(|one| one.is_ascii_uppercase()))
    };
    let is_ours = |word: &str| OURS.contains(&word) || word.parse::<u8>().is_ok() || is_signal(word);
    why.split(' ').all(is_ours)
}

/// Whether a child ends in time. It is not fetched.
fn wait(child: &Child, until: Instant) -> bool {
    let Some(pid) = Pid::from_raw(i32::try_from(child.id()).unwrap_or(0)) else { return false };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    loop {
        match waitid(WaitId::Pid(pid), options) {
            Ok(Some(_)) => return true,
            _ if Instant::now() >= until => return false,
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// What a child has said so far. A thread listens; if others keep the pipe open, it is left to itself.
struct Heard {
    bytes: Arc<Mutex<Vec<u8>>>,
    is_all: mpsc::Receiver<()>,
}

impl Heard {
    fn from(stream: Option<impl Read + Send + 'static>) -> Self {
        const MOST: usize = 4 << 20;
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let (ended, is_all) = mpsc::channel();
        let heard = Arc::clone(&bytes);
        std::thread::spawn(move || {
            let mut piece = [0; 1 << 14];
            let Some(mut stream) = stream else { return };
            // What is too much is read and dropped, so that the child does not wait.
            while let Ok(count @ 1..) = stream.read(&mut piece) {
                let mut bytes = heard.lock().unwrap_or_else(PoisonError::into_inner);
                let room = MOST.saturating_sub(bytes.len()).min(count);
                bytes.extend_from_slice(&piece[..room]);
            }
            drop(ended);
        });
        Self { bytes, is_all }
    }

    /// All of it, or what there is by then.
    fn by(self, until: Instant) -> Vec<u8> {
        let _ = self.is_all.recv_timeout(until.saturating_duration_since(Instant::now()));
        std::mem::take(&mut *self.bytes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_python_that_hangs_fails_or_is_not_there_is_said_so() {
        let soon = || Instant::now() + Duration::from_secs(30);
        let why = |script: &str| run(Path::new("/bin/sh"), script, soon()).failed;
        assert_eq!(why("echo hello"), None);
        assert_eq!(why("echo one >&2; echo two >&2; echo >&2; exit 3").as_deref(), Some("two"));
        assert!(why("echo a warning >&2; kill -SEGV $$").unwrap().starts_with("it ended with signal: 11"));
        let began = Instant::now();
        let ran = run(Path::new("/bin/sh"), "echo first; sleep 60; true", began + Duration::from_millis(500));
        assert_eq!((ran.out.as_slice(), ran.failed.as_deref()), (&b"first\n"[..], Some("no answer in 0 s")));
        assert!(began.elapsed() < Duration::from_secs(20));
        assert!(run(Path::new("/nowhere/python"), "", soon()).failed.unwrap().contains("no such"));
    }

    #[test]
    fn how_a_child_ended_is_distinguished_from_its_output() {
        let soon = Instant::now() + Duration::from_secs(30);
        let why = |script: &str| run(Path::new("/bin/sh"), script, soon).failed.unwrap();
        for script in ["kill -SEGV $$", "kill -ABRT $$", "exit 3"] {
            assert!(is_how_it_ended(&why(script)), "{}", why(script));
        }
        assert!(is_how_it_ended(&run(Path::new("/nowhere/python"), "", soon).failed.unwrap()));
        assert!(is_how_it_ended("no answer in 120 s"));
        for own in ["", "it ended with alice", "ImportError: no", "it ended with (SIGn)"] {
            assert!(!is_how_it_ended(own), "{own}");
        }
    }

    #[test]
    fn the_last_line_that_is_an_answer_is_taken() {
        assert_eq!(answer::<u32>(b"started\n1\n2\nlibrary unloaded\n"), Some(2));
        assert_eq!(answer::<u32>(b"nothing\n"), None);
    }

    #[test]
    fn what_a_child_leaves_behind_is_not_waited_for_and_ends() {
        let began = Instant::now();
        let ran = run(Path::new("/bin/sh"), "sleep 45 & echo $!", began + Duration::from_secs(30));
        assert!(began.elapsed() < Duration::from_secs(20));
        let left = String::from_utf8(ran.out).unwrap();
        let stat = format!("/proc/{}/stat", left.trim());
        let runs = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
        while runs() {
            assert!(began.elapsed() < Duration::from_secs(30), "{left} still runs");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
