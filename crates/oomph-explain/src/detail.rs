//! Every allocation with what is known of it, in columns: for pictures that can be looked into.
//!
//! An [`crate::Explanation`] says what was alive at the peak; this says it of every moment. Lines are the same as there: summed up
//! at the peak, both give the same bytes.

use crate::calls::{Calls, DetailLine, DetailStack, Origins};
use crate::context::Context;
use crate::kinds::Kind;
use crate::line::{LineKey, line_key, through};
use hashbrown::HashMap;
use oomph_settings::rounding::round_size;
use oomph_trace::{Moment, Ranges, Reserved, StackId, Stage};

/// One device, allocation by allocation.
#[derive(Clone, Debug, Default)]
pub struct Detail {
    pub ordinal: u32,
    /// The first moment at which an allocation is alive; 0 if it was there before. All columns are in this order.
    pub born: Vec<Moment>,
    /// The first moment at which it no longer is, or `NEVER`.
    pub freed: Vec<Moment>,
    /// What the block takes.
    pub size: Vec<u64>,
    /// What the program asked for.
    pub requested: Vec<u64>,
    /// That, rounded up as the allocator does.
    pub rounded: Vec<u64>,
    pub address: Vec<u64>,
    /// Index of its stream.
    pub stream: Vec<u32>,
    pub kind: Vec<Kind>,
    /// Index into the stacks of `origins`.
    pub stack: Vec<u32>,
    /// Where all of it came from.
    pub origins: Origins,
    /// Allocations that were freed before their block was back in its pool, and when it was.
    pub deferred: Vec<(u32, Moment)>,
    /// Memory taken from the device and given back, in order; what was there before is taken at moment 0.
    pub segments: Vec<SegmentChange>,
    /// Where steps begin, and the end of the last; empty if none were found.
    pub steps: Vec<Moment>,
    /// What the program named.
    pub annotations: Vec<Annotated>,
}

/// Memory taken from the device, or given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentChange {
    /// The first moment at which it is so.
    pub moment: Moment,
    /// Taken, or given back.
    pub taken: bool,
    pub range: Reserved,
    /// The line that asked for it, if that is known.
    pub line: Option<u32>,
}

/// A named range of moments, or a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Annotated {
    pub name: String,
    pub from: Moment,
    /// Where it ends; `None` for a mark.
    pub to: Option<Moment>,
}

impl Detail {
    /// Goes over all allocations once.
    pub(crate) fn of(context: &Context) -> Self {
        let (device, history) = (context.device, context.history);
        let all = &history.allocations;
        let divisions = &context.recording.settings.roundup_power2_divisions;
        let mut lines = Lines::default();
        let count = all.len();
        let mut detail = Self {
            ordinal: device.ordinal,
            born: (0..count).map(|i| all.born(i)).collect(),
            freed: (0..count).map(|i| all.freed(i)).collect(),
            size: (0..count).map(|i| all.size(i)).collect(),
            requested: (0..count).map(|i| all.requested(i)).collect(),
            rounded: (0..count).map(|i| round_size(all.requested(i), divisions).min(all.size(i))).collect(),
            address: (0..count).map(|i| all.address(i)).collect(),
            stream: (0..count).map(|i| all.stream(i)).collect(),
            kind: (0..count).map(|i| context.kinds.kind(i)).collect(),
            stack: (0..count).map(|i| lines.stack(context, all.stack(i), all.born(i))).collect(),
            deferred: all.deferred(),
            steps: context.steps.as_ref().map_or(Vec::new(), |steps| steps.boundaries.clone()),
            annotations: annotations(context),
            ..Self::default()
        };
        let before = history.reserved_at(0).into_iter().map(|range| (0, true, range));
        let changes = history.reserved_changes().map(|(moment, taken, range)| (moment, taken, *range));
        let mut line_of: HashMap<StackId, u32> = HashMap::new();
        detail.segments = before
            .chain(changes)
            .map(|(moment, taken, range)| {
                let line = (range.stack != oomph_trace::NO_STACK).then(|| {
                    *line_of.entry(range.stack).or_insert_with(|| {
                        let stack = lines.stack(context, range.stack, 1);
                        lines.stacks[stack as usize].line
                    })
                });
                SegmentChange { moment, taken, range, line }
            })
            .collect();
        detail.origins = lines.calls.into_origins(lines.stacks, lines.lines);
        detail
    }
}

impl Detail {
    /// What is taken from the device at `moment`, by address.
    pub fn reserved_at(&self, moment: Moment) -> Vec<Reserved> {
        let mut ranges = Ranges::default();
        for change in self.segments.iter().take_while(|change| change.moment <= moment) {
            ranges.change(change.taken, change.range);
        }
        ranges.into_ranges()
    }
}

/// Numbers stacks and lines as they are met.
#[derive(Default)]
struct Lines {
    stacks: Vec<DetailStack>,
    lines: Vec<DetailLine>,
    calls: Calls,
    seen_stacks: HashMap<(StackId, bool), u32>,
    seen_lines: HashMap<LineKey, u32>,
}

impl Lines {
    fn stack(&mut self, context: &Context, stack: StackId, born: Moment) -> u32 {
        let key = line_key(context, stack, born == 0);
        if let Some(&known) = self.seen_stacks.get(&(stack, key.before)) {
            return known;
        }
        let lines = &mut self.lines;
        let line = *self.seen_lines.entry(key).or_insert_with(|| {
            lines.push(DetailLine { place: context.place(stack, born), through: through(context, stack) });
            lines.len() as u32 - 1
        });
        let call = self.calls.of_stack(context.recording, context.sources, stack);
        let number = self.stacks.len() as u32;
        self.stacks.push(DetailStack { stack, line, call });
        self.seen_stacks.insert((stack, key.before), number);
        number
    }
}

/// Ranges by their ends: an end closes the last range of its name that is open.
fn annotations(context: &Context) -> Vec<Annotated> {
    let (recording, device) = (context.recording, context.device);
    if !device.events.has_times() {
        return Vec::new();
    }
    let moment_of = |time: i64| device.events.time.partition_point(|&at| at <= time) as Moment;
    let mut found: Vec<Annotated> = Vec::new();
    let mut open: HashMap<u32, Vec<usize>> = HashMap::new();
    for annotation in recording.annotations.iter().filter(|one| one.device == device.ordinal) {
        let at = moment_of(annotation.time);
        match annotation.stage {
            Stage::End => {
                if let Some(index) = open.get_mut(&annotation.name).and_then(Vec::pop) {
                    found[index].to = Some(at);
                }
                continue;
            }
            Stage::Start => open.entry(annotation.name).or_default().push(found.len()),
            Stage::Mark => {}
        }
        found.push(Annotated { name: recording.strings.get(annotation.name).to_owned(), from: at, to: None });
    }
    // What was never closed lasts to the end.
    for index in open.into_values().flatten() {
        found[index].to = Some(device.events.len() as Moment);
    }
    found
}
