//! From the frames that are there to those that are recorded: with the lines that generated code was made from, and without oomph's own.
//!
//! Python says both, and beforehand: the hooks cannot ask. It holds for the process, whichever recording comes.
//!
//! Boundary: which frames are there, [`crate::python`] finds; who gets a number for them, [`crate::tables`] knows. `python/oomph/virtual/own_frames.py` leaves
//! out the same frames of a traceback.

use crate::python::Frame;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// The command that starts a prediction is given as a text.
const STARTER: &str = "<string>";
/// Wrapped around an optimizer's own step: what is further in is the optimizer's.
const AROUND_STEPS: &str = "stepping";
/// What PyTorch puts between an operation and a mode.
const AROUND_MODES: [&str; 3] =
    ["/torch/_dynamo/eval_frame.py", "/torch/_compile.py", "/torch/utils/_python_dispatch.py"];

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

/// What Python has said of files.
#[derive(Default)]
struct Known {
    /// Files of oomph's that a program runs under begin with this.
    own: Option<String>,
    /// By the generated file.
    made_from: HashMap<String, Vec<Lines>>,
}

/// Lines of a generated file, up to the next of these.
struct Lines {
    first: u32,
    /// What they were made from, innermost first.
    frames: Vec<Frame>,
}

fn known() -> MutexGuard<'static, Option<Known>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Files that begin with this are oomph's own.
pub(crate) fn leave_out(own: &str) {
    known().get_or_insert_default().own = Some(own.to_owned());
}

/// What a generated file was made from: the number of a line, and below it, each after a tab, line, function and file of every frame that it stands
/// for, with tabs between them.
pub(crate) fn made_from(file: &str, text: &str) {
    let mut all: Vec<Lines> = Vec::new();
    for row in text.lines() {
        match (row.strip_prefix('\t'), all.last_mut()) {
            (Some(row), Some(last)) => last.frames.extend(frame_of(row)),
            _ => all.extend(row.parse().ok().map(|first| Lines { first, frames: Vec::new() })),
        }
    }
    all.sort_by_key(|lines| lines.first);
    known().get_or_insert_default().made_from.insert(file.to_owned(), all);
}

fn frame_of(row: &str) -> Option<Frame> {
    let mut parts = row.splitn(3, '\t');
    let line = parts.next()?.parse().ok()?;
    Some(Frame { line, name: parts.next()?.to_owned(), file: parts.next()?.to_owned() })
}

/// The frames of a stack as they are recorded. Nobody is waited for long: in a forked child, who has the lock may be gone.
pub(crate) fn recorded(frames: Vec<Frame>) -> Vec<Frame> {
    const TRIES: usize = 1000;
    let lock = (0..TRIES).find_map(|_| match KNOWN.try_lock() {
        Err(TryLockError::WouldBlock) => {
            std::thread::yield_now();
            None
        }
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Ok(known) => Some(known),
    });
    match lock.as_ref().and_then(|known| known.as_ref()) {
        Some(known) => known.recorded(frames),
        None => frames,
    }
}

impl Known {
    fn recorded(&self, frames: Vec<Frame>) -> Vec<Frame> {
        let frames = match self.made_from.is_empty() {
            true => frames,
            false => self.with_what_it_was_made_from(frames),
        };
        match &self.own {
            Some(own) => without(own, frames),
            None => frames,
        }
    }

    /// Those that a generated line stands for come around it, as PyTorch's own recorder has them.
    fn with_what_it_was_made_from(&self, frames: Vec<Frame>) -> Vec<Frame> {
        let mut all = Vec::with_capacity(frames.len());
        for frame in frames {
            let lines = self.made_from.get(&frame.file).map(Vec::as_slice).unwrap_or_default();
            let after = lines.partition_point(|lines| lines.first <= frame.line);
            let lines = after.checked_sub(1).and_then(|at| lines.get(at));
            all.push(frame);
            all.extend(lines.into_iter().flat_map(|lines| &lines.frames).cloned());
        }
        all
    }
}

/// A stack, innermost first, as it would be if oomph were not there.
fn without(own: &str, mut frames: Vec<Frame>) -> Vec<Frame> {
    let is_own = |frame: &Frame| frame.file.starts_with(own);
    frames.retain(|frame| !(frame.name == AROUND_STEPS && is_own(frame)));
    // Outermost is what started the program; innermost are the operation called again, the mode, and its wrapping.
    while frames.last().is_some_and(|frame| is_own(frame) || frame.file == STARTER) {
        frames.pop();
    }
    let Some(last) = frames.iter().rposition(is_own) else { return frames };
    let is_around = |frame: &Frame| AROUND_MODES.iter().any(|file| frame.file.ends_with(file));
    frames.into_iter().skip(last + 1).skip_while(is_around).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "/tmp/oomph-1/python/_oomph_virtual/";

    fn frames(places: &[&str]) -> Vec<Frame> {
        let frame = |place: &&str| {
            let (name, file) = place.split_once(' ').unwrap();
            Frame { name: name.into(), file: file.replace('~', OWN.trim_end_matches('/')), line: 3 }
        };
        places.iter().map(frame).collect()
    }

    fn names(frames: &[Frame]) -> Vec<&str> {
        frames.iter().map(|frame| frame.name.as_str()).collect()
    }

    #[test]
    fn own_frames_are_left_out() {
        let starter = ["run_file ~/child.py", "main ~/child.py", "<module> <string>"];
        let stack = |inner: &[&str]| without(OWN, frames(&[inner, &starter].concat()));
        let under_a_mode = [
            "operation ~/values.py",
            "__torch_dispatch__ ~/values.py",
            "_fn /x/torch/_dynamo/eval_frame.py",
            "relu /x/torch/nn/functional.py",
            "forward /home/me/train.py",
        ];
        assert_eq!(names(&stack(&under_a_mode)), ["relu", "forward"]);
        let stepping = ["adam /x/torch/optim/adam.py", "stepping ~/child.py", "train /home/me/train.py"];
        assert_eq!(names(&stack(&stepping)), ["adam", "train"]);
        // Of somebody else's making, and in the midst.
        let made = ["__post_init__ /home/me/train.py", "__init__ <string>", "build /home/me/train.py"];
        assert_eq!(names(&stack(&made)), ["__post_init__", "__init__", "build"]);
        assert!(stack(&[]).is_empty());
    }

    #[test]
    fn generated_lines_stand_for_those_that_they_were_made_from() {
        let mut known = Known::default();
        let made = |file: &str| {
            made_from(file, "10\n\t7\tforward\t/home/me/model.py\n\t20\ttrain\t/home/me/train.py\n30\n");
            super::known().as_mut().and_then(|known| known.made_from.remove(file)).unwrap()
        };
        known.made_from.insert("/tmp/torchinductor_me/ab/cab.py".into(), made("a.py"));
        let call = |line| Frame { name: "call".into(), file: "/tmp/torchinductor_me/ab/cab.py".into(), line };
        assert_eq!(names(&known.recorded(vec![call(9)])), ["call"]);
        assert_eq!(names(&known.recorded(vec![call(12)])), ["call", "forward", "train"]);
        assert_eq!(names(&known.recorded(vec![call(31)])), ["call"]);
    }
}
