//! The process's own memory: how much at the most, what it was, which lines had asked for it then, and which of them grow.
//!
//! Arrows inside: `blocks` (who lived when), `kinds` (what it is), `growth`, `kernel` (what it counted) ← `context` (all of it) ← `detail` (block by block), `rules` (one thing each).
//!
//! Boundary: what the kernel counted and what was asked for stand side by side; neither is made to fit the other.

mod blocks;
mod context;
mod detail;
mod growth;
mod kernel;
mod kinds;
pub(crate) mod rules;
#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod testing;
mod within;

pub use blocks::{HostStackBytes, host_by_stack};
pub(crate) use context::HostContext;
pub use detail::{HostCount, HostDetail};
pub use growth::{HostGrownSteps, HostGrowth};
pub use kinds::HostKind;
pub use within::{HostLineWithin, HostWithin, host_within};

use crate::finding::Place;
use crate::limits::{MOST_FRAMES, MOST_STACKS};
use hashbrown::HashMap;
use kernel::{own, own_by_mark};
use oomph_trace::{HostSum, How, Resident, StackId};

/// Host memory of one process.
#[derive(Clone, Debug)]
pub struct HostExplanation {
    /// Events that were written.
    pub events: u64,
    /// How long the recording is.
    pub seconds: f64,
    /// The most bytes that were asked for and not given back.
    pub asked: u64,
    /// When that was, in seconds after the first event.
    pub peak_seconds: f64,
    /// Of it, by how it was asked for, as [`How`] numbers it.
    pub by_how: [u64; How::ALL.len()],
    /// Of it, by what it is, largest first.
    pub by_kind: Vec<HostKindBytes>,
    /// By how much the estimate of the small ones may be off, twice its standard deviation.
    pub error: u64,
    /// The lines of it, largest first.
    pub lines: Vec<HostLine>,
    /// The stacks of it, largest first; those that hold least are left out where there are many.
    pub stacks: Vec<HostStackHeld>,
    /// What was held by pieces of source that were asked for: see [`host_within`].
    pub within: Vec<HostWithin>,
    /// Lines that hold more and more, most first.
    pub growth: Vec<HostGrowth>,
    /// What the kernel counted when most of the process's own was read.
    pub resident: Option<Resident>,
    /// How much the process's own may have been between two readings, by the kernel's high-water mark of all pages less those of files and shared ones; none where the readings have as much.
    pub own_by_mark: Option<u64>,
    /// What it counted as the process's own, where most was asked for, beyond what was asked for then: what allocators keep and round up, libraries, stacks of threads.
    /// What was asked for and never touched makes it less.
    pub beyond: Option<u64>,
    /// Pages of files that were in RAM then.
    pub of_files: Option<u64>,
    /// The most pages that were ever there at once, those of files among them.
    pub most_resident: u64,
    /// What each line was given, when its process started, of another's data; largest first.
    pub(crate) taken_over: Vec<HostLine>,
}

impl HostExplanation {
    /// What the kernel counted of the process's own at the most, in RAM and swapped; none where it was not read.
    pub fn own(&self) -> Option<u64> {
        self.resident.as_ref().map(own)
    }
}

/// What of a kind was held at the peak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostKindBytes {
    pub kind: HostKind,
    pub bytes: u64,
    /// Blocks that were recorded: of small ones, samples.
    pub blocks: u64,
    /// By how much samples may be off, twice the standard deviation.
    pub error: u64,
}

/// What a line had asked for at the peak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostLine {
    /// The line of the program's own code; none where no Python was running.
    pub place: Option<Place>,
    pub bytes: u64,
    /// Blocks that were recorded: of small ones, samples.
    pub blocks: u64,
    /// By how much samples may be off, twice the standard deviation.
    pub error: u64,
}

/// What a stack had asked for at the peak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostStackHeld {
    /// Its frames, innermost first: the library that asked, functions of C where they were recorded, lines of Python.
    pub frames: Vec<Place>,
    pub bytes: u64,
    /// Blocks that were recorded: of small ones, samples.
    pub blocks: u64,
    /// By how much samples may be off, twice the standard deviation.
    pub error: u64,
}

/// What is seen of host memory.
pub(crate) fn explain_host(context: &HostContext) -> HostExplanation {
    let (host, blocks) = (context.host, &context.blocks);
    let events = &host.events;
    let mut all = HostSum::default();
    let mut by_how = [0u64; How::ALL.len()];
    let mut of_kind: HashMap<HostKind, HostSum> = HashMap::new();
    let mut of_line: HashMap<u32, HostSum> = HashMap::new();
    let mut of_stack: HashMap<StackId, HostSum> = HashMap::new();
    let mut taken_over: HashMap<u32, HostSum> = HashMap::new();
    for block in context.at_peak() {
        all.add(block.size, block.how);
        if let Some(bytes) = by_how.get_mut(block.how as usize) {
            *bytes = bytes.saturating_add(block.size);
        }
        of_kind.entry(context.kind(block)).or_default().add(block.size, block.how);
        of_line.entry(context.line(block)).or_default().add(block.size, block.how);
        of_stack.entry(block.stack).or_default().add(block.size, block.how);
        let under = context.under(block);
        if under.starting && !under.importing {
            taken_over.entry(context.line(block)).or_default().add(block.size, block.how);
        }
    }
    // Address space that was asked for and never touched is no row.
    let mut by_kind: Vec<HostKindBytes> = of_kind
        .into_iter()
        .filter(|(_, sum)| sum.bytes() > 0)
        .map(|(kind, sum)| HostKindBytes {
            kind,
            bytes: sum.bytes(),
            blocks: sum.blocks(),
            error: sum.error(),
        })
        .collect();
    by_kind.sort_by_key(|one| (std::cmp::Reverse(one.bytes), one.kind));
    let begin = events.time.first().copied().or(host.resident.first().map(|one| one.time)).unwrap_or(0);
    let end = events.time.last().copied().into_iter().chain(host.resident.last().map(|one| one.time)).max();
    let seconds = |time: i64| time.saturating_sub(begin).max(0) as f64 / 1e6;
    let peak = blocks.peak.checked_sub(1).and_then(|row| events.time.get(row)).copied();
    let resident = host.resident.iter().max_by_key(|one| own(one)).copied();
    // The first of several.
    let at_peak = context.counted().into_iter().rev().max_by_key(|one| one.asked);
    HostExplanation {
        events: events.len() as u64,
        seconds: seconds(end.unwrap_or(begin)),
        asked: blocks.most,
        peak_seconds: seconds(peak.unwrap_or(begin)),
        by_how,
        by_kind,
        error: all.error(),
        lines: lines(context, of_line),
        stacks: stacks(context, of_stack),
        within: Vec::new(),
        growth: context.growth.iter().map(|(_, growth)| growth.clone()).collect(),
        resident,
        own_by_mark: own_by_mark(&context.readings()),
        beyond: at_peak.map(|one| one.beyond()),
        of_files: at_peak.map(|one| one.resident.of_files),
        most_resident: host.resident.iter().map(|one| one.most).max().unwrap_or(0),
        taken_over: lines(context, taken_over),
    }
}

fn lines(context: &HostContext, sums: HashMap<u32, HostSum>) -> Vec<HostLine> {
    let mut lines: Vec<HostLine> = sums
        .into_iter()
        .filter(|(_, sum)| sum.bytes() > 0)
        .map(|(line, sum)| HostLine {
            place: context.place_of_line(line),
            bytes: sum.bytes(),
            blocks: sum.blocks(),
            error: sum.error(),
        })
        .collect();
    lines.sort_by(|one, other| other.bytes.cmp(&one.bytes).then_with(|| one.place.cmp(&other.place)));
    lines
}

fn stacks(context: &HostContext, sums: HashMap<StackId, HostSum>) -> Vec<HostStackHeld> {
    let mut sums: Vec<(StackId, HostSum)> = sums.into_iter().filter(|(_, sum)| sum.bytes() > 0).collect();
    sums.sort_by_key(|&(stack, sum)| (std::cmp::Reverse(sum.bytes()), stack));
    sums.truncate(MOST_STACKS);
    let held = |(stack, sum): (StackId, HostSum)| HostStackHeld {
        frames: context.frames(stack).take(MOST_FRAMES).collect(),
        bytes: sum.bytes(),
        blocks: sum.blocks(),
        error: sum.error(),
    };
    sums.into_iter().map(held).collect()
}

#[cfg(test)]
mod tests {
    use super::testing::Program;
    use oomph_trace::How;

    #[test]
    fn what_a_stranger_writes_overflows_nothing() {
        let mut program = Program::default();
        let lines =
            [program.line("a.py", 1), program.asked_by("/v/site-packages/numpy/x.so", "b.py", 2), 0, 77];
        for wait in [i64::MIN / 4, i64::MAX / 2, 1, i64::MIN / 4] {
            for how in How::ALL {
                for stack in lines {
                    let address = program.alloc(how, u64::MAX, stack);
                    program.alloc(how, 0, stack);
                    program.free(address.wrapping_mul(3));
                }
            }
            program.wait(wait);
            program.counted(u64::MAX);
        }
        if let Some(host) = &mut program.recording.host {
            host.resident.iter_mut().for_each(|one| one.swapped = u64::MAX);
        }
        let host = program.explained();
        assert_eq!((host.asked, host.by_kind[0].bytes), (u64::MAX, u64::MAX));
        assert_eq!(host.own(), Some(u64::MAX));
        let explanation = program.explanation();
        let diff = crate::diff::diff(&explanation, &explanation);
        assert!(diff.host.is_some_and(|host| host.lines.is_empty()));
        crate::explanation::findings_of_processes(&[&explanation, &explanation]);
    }
}
