//! From stacks to the lines that people know: the innermost one of the program's own, for what a process says of itself while
//! it runs. `oomph explain` looks at stacks far more closely, afterwards.

use crate::library_code::is_library_file;
use crate::python::Frame;
use crate::status::MOST_LINES;
use std::collections::HashMap;

/// A line of code, by number.
pub(crate) type Place = u32;

/// Threads without Python: autograd's.
pub(crate) const NO_LINE: Place = 0;
/// There before the recording was.
pub(crate) const BEFORE: Place = 1;

/// Longer names are cut.
const LONGEST: usize = 100;

/// Every line that memory was asked for from.
pub(crate) struct Places {
    /// By the number of a stack.
    of_stack: Vec<Place>,
    /// By the number of a frame.
    of_frame: HashMap<u32, Place>,
    texts: Vec<String>,
}

impl Places {
    pub(crate) fn new() -> Self {
        Self {
            of_stack: vec![NO_LINE],
            of_frame: HashMap::new(),
            texts: vec!["backward pass".into(), "before the recording".into()],
        }
    }

    /// The next stack: its frames, innermost first, and their numbers.
    pub(crate) fn add(&mut self, frames: &[Frame], ids: &[u32]) {
        let own = frames.iter().position(|frame| !is_library_file(&frame.file)).unwrap_or(0);
        let place = match (frames.get(own), ids.get(own)) {
            (Some(frame), Some(id)) => *self.of_frame.entry(*id).or_insert_with(|| {
                self.texts.push(text(frame));
                (self.texts.len() - 1) as Place
            }),
            _ => NO_LINE,
        };
        self.of_stack.push(place);
    }

    /// The next stack: its line is another's.
    pub(crate) fn add_same_as(&mut self, stack: u32) {
        self.of_stack.push(self.of(stack));
    }

    /// The line of a stack.
    pub(crate) fn of(&self, stack: u32) -> Place {
        self.of_stack.get(stack as usize).copied().unwrap_or(NO_LINE)
    }

    /// The lines that hold most, the largest first. `sums`: what lines hold, by their numbers.
    pub(crate) fn largest(&self, sums: &[u64]) -> Vec<(String, u64)> {
        let mut most: Vec<(u64, Place)> = Vec::with_capacity(MOST_LINES + 1);
        for (place, &bytes) in sums.iter().enumerate().filter(|(_, bytes)| **bytes > 0) {
            if most.len() == MOST_LINES && most.last().is_some_and(|(least, _)| *least >= bytes) {
                continue;
            }
            let at = most.partition_point(|(more, _)| *more >= bytes);
            most.insert(at, (bytes, place as Place));
            most.truncate(MOST_LINES);
        }
        most.into_iter().map(|(bytes, place)| (self.text(place).to_owned(), bytes)).collect()
    }

    /// `file.py:12 function`.
    fn text(&self, place: Place) -> &str {
        self.texts.get(place as usize).map_or("", String::as_str)
    }
}

/// What a line holds, in a list by their numbers that grows as needed.
pub(crate) fn sum_of(sums: &mut Vec<u64>, place: Place) -> Option<&mut u64> {
    let place = place as usize;
    if place >= sums.len() {
        sums.resize(place + 1, 0);
    }
    sums.get_mut(place)
}

fn text(frame: &Frame) -> String {
    let file = frame.file.rsplit('/').next().unwrap_or_default();
    let short = |text: &str| text.chars().take(LONGEST).collect::<String>();
    format!("{}:{} {}", short(file), frame.line, short(&frame.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(file: &str, line: u32, name: &str) -> Frame {
        Frame { name: name.into(), file: file.into(), line }
    }

    #[test]
    fn the_innermost_line_of_the_programs_own_is_named() {
        let mut places = Places::new();
        let library = frame("/usr/lib/python3.12/site-packages/torch/nn/modules/linear.py", 125, "forward");
        let own = frame("/home/user/project/train.py", 12, "step");
        let main = frame("/home/user/project/train.py", 40, "<module>");
        places.add(&[library, own, main], &[3, 4, 5]);
        places.add(&[frame("/home/user/project/train.py", 12, "step")], &[4]);
        places.add(&[frame("<string>", 1, "made")], &[6]);
        let texts: Vec<&str> = (0..4).map(|stack| places.text(places.of(stack))).collect();
        let expected = ["backward pass", "train.py:12 step", "train.py:12 step", "<string>:1 made"];
        assert_eq!(texts, expected);
        assert_eq!(places.of(1), places.of(2));
        assert_eq!(places.of(99), NO_LINE);
    }
}
