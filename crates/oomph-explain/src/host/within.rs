//! A piece of source, a function or a notebook's cell: what each of its lines held, with what it called.
//!
//! Each stack counts at its innermost line there, so that the lines sum to what the piece held.

use super::blocks::Blocks;
use oomph_trace::{FrameId, Host, HostSum, NATIVE, Recording, StackId};
use std::collections::BTreeMap;

/// What a piece of source held at the peak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostWithin {
    /// As it was asked for.
    pub piece: String,
    /// Its lines that held something, in their order.
    pub lines: Vec<HostLineWithin>,
}

/// What a line held at the peak, and what it had called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLineWithin {
    pub line: u32,
    pub bytes: u64,
    /// Blocks that were recorded: of small ones, samples.
    pub blocks: u64,
    /// By how much samples may be off, twice the standard deviation.
    pub error: u64,
}

/// By line of a piece of source, of which `is_there` knows the file and the lines.
pub fn host_within(
    recording: &Recording,
    host: &Host,
    is_there: impl Fn(&str, u32) -> bool,
) -> Vec<HostLineWithin> {
    let of_frame: Vec<Option<u32>> = (recording.stacks.frames().iter())
        .map(|frame| {
            let (name, file) = (recording.strings.get(frame.name), recording.strings.get(frame.file));
            (frame.line > 0 && !name.starts_with(NATIVE) && is_there(file, frame.line)).then_some(frame.line)
        })
        .collect();
    let line_of_frame = |id: &FrameId| of_frame.get(*id as usize).copied().flatten();
    let of_stack: Vec<Option<u32>> = (0..recording.stacks.len() as StackId)
        .map(|stack| recording.stacks.get(stack).iter().find_map(line_of_frame))
        .collect();
    let blocks = Blocks::of(&host.events);
    let mut sums: BTreeMap<u32, HostSum> = BTreeMap::new();
    for block in blocks.alive(blocks.peak) {
        if let Some(line) = of_stack.get(block.stack as usize).copied().flatten() {
            sums.entry(line).or_default().add(block.size, block.how);
        }
    }
    let within = |(line, sum): (u32, HostSum)| HostLineWithin {
        line,
        bytes: sum.bytes(),
        blocks: sum.blocks(),
        error: sum.error(),
    };
    sums.into_iter().map(within).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::Program;
    use super::*;
    use oomph_trace::How;

    #[test]
    fn a_line_has_what_it_called() {
        let mut program = Program::default();
        let helped = program.stack(&[
            ("ones", "/v/numpy.py", 9),
            ("helper", "b.py", 3),
            ("work", "a.py", 12),
            ("<module>", "a.py", 40),
        ]);
        let own = program.stack(&[("work", "a.py", 13), ("<module>", "a.py", 40)]);
        let before = program.stack(&[("<module>", "a.py", 2)]);
        for (stack, size) in [(helped, 100), (own, 20), (before, 7), (helped, 1)] {
            program.alloc(How::Large, size, stack);
        }
        let host = program.recording.host.clone().unwrap_or_default();
        let within = |first: u32, last: u32| {
            let all = host_within(&program.recording, &host, |file, line| {
                file == "a.py" && (first..=last).contains(&line)
            });
            all.into_iter().map(|one| (one.line, one.bytes, one.blocks)).collect::<Vec<_>>()
        };
        assert_eq!(within(11, 14), [(12, 101, 2), (13, 20, 1)]);
        assert_eq!(within(0, 99), [(2, 7, 1), (12, 101, 2), (13, 20, 1)]);
        assert_eq!(within(40, 40), [(40, 121, 3)]);
        assert_eq!(within(50, 60), []);
    }
}
