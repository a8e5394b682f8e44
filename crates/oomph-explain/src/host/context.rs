//! Everything that rules of host memory look at: blocks with their lives, what they are, where they were made, and what the kernel counted.
//!
//! Boundary: it answers questions and decides nothing.

use super::blocks::{Block, Blocks};
use super::growth::{HostGrowth, growing};
use super::kernel::own;
use super::kinds::{HostKind, HostStack, Under, stacks};
use crate::finding::{Place, Where};
use crate::sources::{Sources, StackFacts};
use hashbrown::HashMap;
use oomph_trace::{CALLER, FrameId, Host, NATIVE, Recording, Resident, StackId};

/// Stacks without a line.
const NO_LINE: u32 = u32::MAX;

/// What the kernel counted at one moment, beside what was asked for then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    /// What the kernel counted.
    pub(crate) resident: Resident,
    /// Bytes of the process's own that were asked for and not given back.
    pub(crate) asked: u64,
}

impl Counted {
    /// What the kernel counts beyond what was asked for.
    pub(crate) fn beyond(&self) -> u64 {
        own(&self.resident).saturating_sub(self.asked)
    }
}

/// Host memory of one process, seen through and through.
pub(crate) struct HostContext<'a> {
    recording: &'a Recording,
    sources: &'a Sources,
    pub(crate) host: &'a Host,
    pub(crate) blocks: Blocks,
    stacks: Vec<HostStack>,
    /// The line of each stack, as a number.
    lines: Vec<u32>,
    /// A stack of each line.
    of_line: Vec<StackId>,
    /// Lines that grow, most first, by their numbers.
    pub(crate) growth: Vec<(u32, HostGrowth)>,
}

impl<'a> HostContext<'a> {
    /// Of a recording that has host memory.
    pub(crate) fn of(recording: &'a Recording, sources: &'a Sources, host: &'a Host) -> Self {
        let blocks = Blocks::of(&host.events);
        let mut numbers: HashMap<(u32, u32, u32), u32> = HashMap::new();
        let mut of_line = Vec::new();
        let lines: Vec<u32> = (0..recording.stacks.len() as StackId)
            .map(|stack| {
                let Some(frame) = sources.of_stack(stack).place else { return NO_LINE };
                let frame = recording.stacks.frame(frame);
                let next = numbers.len() as u32;
                *numbers.entry((frame.file, frame.line, frame.name)).or_insert_with(|| {
                    of_line.push(stack);
                    next
                })
            })
            .collect();
        let stacks = stacks(recording, sources);
        // What a library has when it is there is there once, however long that takes.
        let growth = growing(host, &blocks, |stack| {
            let imports = stacks.get(stack as usize).is_some_and(|stack| stack.under.importing);
            (!imports).then(|| lines.get(stack as usize).copied().unwrap_or(NO_LINE))
        });
        let mut context =
            Self { recording, sources, host, blocks, stacks, lines, of_line, growth: Vec::new() };
        context.growth = growth
            .into_iter()
            .map(|(line, growth)| (line, HostGrowth { place: context.place_of_line(line), ..growth }))
            .collect();
        context
    }

    /// The most that was asked for at once.
    pub(crate) fn peak(&self) -> u64 {
        self.blocks.most
    }

    /// What was alive then.
    pub(crate) fn at_peak(&self) -> impl Iterator<Item = &Block> {
        self.blocks.alive(self.blocks.peak)
    }

    pub(crate) fn kind(&self, block: &Block) -> HostKind {
        self.stacks.get(block.stack as usize).copied().unwrap_or_default().kind(block.how)
    }

    /// What was being done when a block was made.
    pub(crate) fn under(&self, block: &Block) -> Under {
        self.stacks.get(block.stack as usize).copied().unwrap_or_default().under
    }

    /// What the stack of a block means.
    pub(crate) fn facts(&self, block: &Block) -> &StackFacts {
        self.sources.of_stack(block.stack)
    }

    /// The number of a block's line.
    pub(crate) fn line(&self, block: &Block) -> u32 {
        self.lines.get(block.stack as usize).copied().unwrap_or(NO_LINE)
    }

    /// The line of a stack; none where no Python was running.
    pub(crate) fn place(&self, stack: StackId) -> Option<Place> {
        let facts = self.sources.of_stack(stack);
        Some(self.place_of_frame(facts.place?, facts.own))
    }

    fn place_of_frame(&self, id: FrameId, own: bool) -> Place {
        let frame = self.recording.stacks.frame(id);
        Place::Line {
            file: self.recording.strings.get(frame.file).to_owned(),
            line: frame.line,
            function: self.recording.strings.get(frame.name).to_owned(),
            own,
        }
    }

    /// All frames of a stack, innermost first. The library that asked is one of its own only where its functions are not known.
    pub(crate) fn frames(&self, stack: StackId) -> impl Iterator<Item = Place> {
        let ids = self.recording.stacks.get(stack);
        let name = |id: &FrameId| self.recording.strings.get(self.recording.stacks.frame(*id).name);
        let known = match ids {
            [first, second, ..] => usize::from(name(first) == CALLER && name(second).starts_with(NATIVE)),
            _ => 0,
        };
        ids.iter().skip(known).map(|&id| self.place_of_frame(id, self.sources.is_own(id)))
    }

    /// The line with this number.
    pub(crate) fn place_of_line(&self, line: u32) -> Option<Place> {
        self.place(*self.of_line.get(line as usize)?)
    }

    /// Blocks by their lines, for a finding: largest first.
    pub(crate) fn places<'b>(&self, blocks: impl IntoIterator<Item = &'b Block>) -> Vec<Where> {
        let mut lines: HashMap<u32, (u64, u64)> = HashMap::new();
        for block in blocks {
            let sum = lines.entry(self.line(block)).or_default();
            *sum = (sum.0.saturating_add(block.size), sum.1 + 1);
        }
        let mut lines: Vec<(u32, (u64, u64))> = lines.into_iter().collect();
        lines.sort_by_key(|&(line, (bytes, _))| (std::cmp::Reverse(bytes), line));
        lines
            .into_iter()
            .map(|(line, (bytes, count))| Where {
                place: self.place_of_line(line).unwrap_or(Place::NoStack),
                bytes,
                count,
            })
            .collect()
    }

    /// When the event was, in microseconds since 1970; of a row that is not there, the last.
    pub(crate) fn time(&self, row: usize) -> i64 {
        let times = &self.host.events.time;
        times.get(row).or(times.last()).copied().unwrap_or(0)
    }

    /// How long the recording is, in microseconds.
    pub(crate) fn duration(&self) -> u64 {
        let times = &self.host.events.time;
        let (first, last) = (times.first().copied().unwrap_or(0), times.last().copied().unwrap_or(0));
        u64::try_from(last.saturating_sub(first)).unwrap_or(0)
    }

    /// What the kernel counted, in order.
    pub(crate) fn readings(&self) -> Vec<Resident> {
        let mut readings: Vec<Resident> = self.host.resident.clone();
        readings.sort_by_key(|one| one.time);
        readings
    }

    /// What the kernel counted, in order, beside what was asked for at those times.
    pub(crate) fn counted(&self) -> Vec<Counted> {
        let times = &self.host.events.time;
        let resident = self.readings();
        let rows: Vec<usize> =
            resident.iter().map(|one| times.partition_point(|&time| time <= one.time)).collect();
        let asked = self.blocks.own_after(&rows);
        resident.into_iter().zip(asked).map(|(resident, asked)| Counted { resident, asked }).collect()
    }
}

/// The sum of blocks.
pub(super) fn sum<'b>(blocks: impl IntoIterator<Item = &'b Block>) -> u64 {
    blocks.into_iter().fold(0, |sum, block| sum.saturating_add(block.size))
}
