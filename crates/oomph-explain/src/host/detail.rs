//! Every block of host memory with what is known of it, in columns: for pictures that can be looked into.
//!
//! Boundary: blocks as the recording has them, and the kernel's counts beside them. Summed up at the peak by line, they are the bytes of [`super::HostExplanation`].

use super::context::HostContext;
use super::kernel::own;
use super::kinds::HostKind;
use crate::calls::{Calls, DetailLine, DetailStack, Origins};
use crate::finding::Place;
use crate::sources::Sources;
use hashbrown::HashMap;
use oomph_trace::{How, Moment, NEVER, Recording, Resident, StackId};

/// Host memory of one process, block by block.
#[derive(Clone, Debug, Default)]
pub struct HostDetail {
    /// The first moment at which a block is alive. All columns are in this order.
    pub born: Vec<Moment>,
    /// The first moment at which it no longer is, or `NEVER`.
    pub freed: Vec<Moment>,
    /// Bytes; of a sample, what it stands for.
    pub size: Vec<u64>,
    /// How it was asked for.
    pub how: Vec<How>,
    pub kind: Vec<HostKind>,
    /// Index into the stacks of `origins`.
    pub stack: Vec<u32>,
    /// Where all of it came from. A line without a stack is one for which no Python was running.
    pub origins: Origins,
    /// When most was asked for.
    pub peak: Moment,
    /// What the kernel counted, in order.
    pub counted: Vec<HostCount>,
}

/// What the kernel counted at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCount {
    /// When, in microseconds since 1970.
    pub time: i64,
    /// Of the process's own, in RAM and swapped.
    pub own: u64,
    /// Pages of files.
    pub of_files: u64,
}

impl HostDetail {
    /// Goes over all blocks once. Address space that was never touched has none of their bytes.
    pub(crate) fn of(context: &HostContext, recording: &Recording, sources: &Sources) -> Self {
        let mut detail = Self { peak: moment(context.blocks.peak), ..Self::default() };
        let (mut stacks, mut lines, mut calls) = (Vec::new(), Vec::new(), Calls::default());
        let mut seen_stacks: HashMap<StackId, u32> = HashMap::new();
        let mut seen_lines: HashMap<u32, u32> = HashMap::new();
        for block in &context.blocks.all {
            let stack = *seen_stacks.entry(block.stack).or_insert_with(|| {
                let number = context.line(block);
                let line = *seen_lines.entry(number).or_insert_with(|| {
                    let place = context.place_of_line(number).unwrap_or(Place::NoStack);
                    lines.push(DetailLine { place, through: None });
                    lines.len() as u32 - 1
                });
                let call = calls.of_stack(recording, sources, block.stack);
                stacks.push(DetailStack { stack: block.stack, line, call });
                stacks.len() as u32 - 1
            });
            detail.born.push(moment(block.born + 1));
            detail.freed.push(block.freed.map_or(NEVER, |row| moment(row + 1)));
            detail.size.push(block.size);
            detail.how.push(block.how);
            detail.kind.push(context.kind(block));
            detail.stack.push(stack);
        }
        detail.origins = calls.into_origins(stacks, lines);
        let count = |one: &Resident| HostCount { time: one.time, own: own(one), of_files: one.of_files };
        detail.counted = context.readings().iter().map(count).collect();
        detail
    }
}

/// The state after so many events.
fn moment(events: usize) -> Moment {
    Moment::try_from(events).unwrap_or(NEVER - 1)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{MIB, Program};
    use super::*;
    use crate::explanation::explain_in_detail;

    #[test]
    fn blocks_sum_up_to_the_lines_of_the_explanation() {
        let mut program = Program::default();
        let (one, other) = (program.line("work.py", 5), program.line("work.py", 9));
        let gone = program.alloc(How::Large, 30 * MIB, one);
        program.free(gone);
        program.alloc(How::Large, 40 * MIB, other);
        program.alloc(How::Object, MIB, one);
        program.alloc(How::Mapped, 0, one);
        program.alloc(How::Mapped, 2 * MIB, 0);
        program.counted(50 * MIB);
        let (explanation, details) = explain_in_detail(&program.recording, 0);
        let (host, detail) = (explanation.host.unwrap(), details.host.unwrap());
        assert_eq!(
            (&detail.born[..], &detail.freed[..]),
            (&[1, 3, 4, 5, 6][..], &[2, NEVER, NEVER, NEVER, NEVER][..])
        );
        assert_eq!(detail.peak, 6);
        let mut lines: Vec<(u64, Option<Place>)> = Vec::new();
        for (line, at) in detail.origins.lines.iter().enumerate() {
            let held = (0..detail.born.len()).filter(|&i| {
                let stack = detail.origins.stacks[detail.stack[i] as usize];
                stack.line as usize == line && detail.born[i] <= detail.peak && detail.peak < detail.freed[i]
            });
            lines.push((held.map(|i| detail.size[i]).sum(), Some(at.place.clone())));
        }
        lines.sort_by_key(|&(bytes, _)| std::cmp::Reverse(bytes));
        let told =
            host.lines.iter().map(|line| (line.bytes, Some(line.place.clone().unwrap_or(Place::NoStack))));
        assert_eq!(lines, told.collect::<Vec<_>>());
        assert_eq!(detail.counted[0].own, 50 * MIB);
        let is_listed = |kind: &HostKind| HostKind::ALL.iter().filter(|one| *one == kind).count() == 1;
        assert!(detail.kind.iter().all(is_listed));
    }
}
