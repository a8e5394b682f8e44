//! One device of one recording, as the page's script reads it: what it is in JSON, every allocation in columns.

use super::columns::{Column, Distinct, packed};
use super::data::{self, At, Columns, SubjectHead};
use super::limit::Limit;
use crate::exports::Clock;
use crate::json::explain::Waste;
use crate::replay::{doubt, room, words_for_memory};
use crate::shared::{Named, completeness, findings_of};
use crate::tune::{NamedTuning, advice, line_to_paste, stalls};
use oomph_explain::{
    Detail, DetailLine, DeviceExplanation, Explanation, OomExplanation, Outcome, Place, Reason,
};
use oomph_trace::{Device, NEVER, Recording};
use oomph_words::{bytes, harmless, printable};
use std::collections::HashMap;

/// What else is shown of a device.
pub struct Extras<'a> {
    /// What the process could have, if that is known.
    pub limit: Option<Limit>,
    /// What other settings would have done, with samples over time.
    pub what_if: Option<&'a NamedTuning<'a>>,
    /// The text of a line of a file, where it is at hand.
    pub source: &'a dyn Fn(&str, u32) -> Option<String>,
}

/// A device, ready to be put into a page.
pub struct Subject {
    pub(super) head: SubjectHead,
    /// What the page's `<script>`s hold, by id.
    pub(super) columns: Vec<(String, String)>,
    pub(super) answer: String,
    pub(super) recording: usize,
    pub(super) ordinal: u32,
    pub(super) headline: String,
}

/// Times have a resolution of this share of the recording, or of so many points of a line.
const FINEST_TIME: u64 = 1_000_000;
const MOST_TIMES: usize = 40_000;
/// How long a name may be.
const LONGEST: usize = 500;

impl Subject {
    /// The number of its recording, and its ordinal there.
    pub fn device(&self) -> (usize, u32) {
        (self.recording, self.ordinal)
    }

    /// Puts a device of a recording into columns. `number` is its place in the page, `of` the number of its recording.
    pub fn of(
        (number, of): (usize, usize),
        named: &Named,
        recording: &Recording,
        device: &DeviceExplanation,
        detail: &Detail,
        extras: &Extras,
    ) -> Self {
        let explanation = named.explanation;
        let mut packer = Packer { prefix: format!("c{number}-"), columns: Vec::new() };
        // Addresses are relative to the lowest: some are beyond the exact integers of JavaScript.
        let blocks = detail.address.iter().copied();
        let base = blocks.chain(detail.segments.iter().map(|change| change.range.address)).min().unwrap_or(0);
        let allocations = allocations(&mut packer, detail, base);
        let segments = segments(&mut packer, detail, base);
        let text = text(&mut packer, detail, extras.source);
        let times = (recording.devices.iter().find(|one| one.ordinal == device.ordinal))
            .and_then(|one| times(&mut packer, one));
        let (times, times_column) = times.unzip();
        let what_if = extras.what_if.map(|tuning| what_if(&mut packer, tuning));
        let headline = headline(explanation, device);
        let title = match explanation.devices.len() {
            1 => harmless(named.name),
            _ => format!("{}, device {}", harmless(named.name), device.ordinal),
        };
        let findings = (findings_of(explanation, device).enumerate())
            .map(|(index, finding)| data::Finding {
                code: finding.code,
                severity: finding.severity.name(),
                title: harmless(&finding.title),
                saving: finding.saving.as_ref().filter(|saving| !saving.missing).map(|saving| saving.bytes),
                anchor: super::answer::anchor(number, index),
            })
            .collect();
        let steps =
            device.steps.as_ref().zip(detail.steps.split_last()).map(|(steps, (end, begins))| data::Steps {
                begins: begins.to_vec(),
                end: *end,
                partial: steps.last_is_partial,
                repeated: steps.repeated,
                peaks: steps.peaks.clone(),
            });
        let head = SubjectHead {
            title,
            headline: harmless(&headline),
            file: harmless(named.name),
            recording: of,
            device: device.ordinal,
            format: explanation.format,
            conf: device.conf.as_deref().map(printable),
            events: device.events,
            seconds: device.seconds,
            complete: device.completeness.complete,
            completeness: completeness(device),
            limit: extras.limit.clone(),
            peak: data::Peak {
                allocated: At::of(device.peak.allocated),
                reserved: At::of(device.peak.reserved),
                requested: At::of(device.peak.requested),
                step: device.peak_step,
                place: device.peak_place.short(),
            },
            waste: Waste::of(&device.waste),
            steps,
            ooms: device.ooms.iter().map(oom).collect(),
            findings,
            times,
            address_base: format!("{base:#x}"),
            columns: Columns { allocations, segments, text, times: times_column },
            what_if,
            alike: None,
        };
        Self {
            head,
            columns: packer.columns,
            answer: super::answer::answer(number, named, device),
            recording: of,
            ordinal: device.ordinal,
            headline,
        }
    }
}

/// What is most to be said about a device.
fn headline(explanation: &Explanation, device: &DeviceExplanation) -> String {
    match findings_of(explanation, device).find(|one| one.severity <= oomph_explain::Severity::Warning) {
        Some(finding) => finding.title.clone(),
        None => format!(
            "{} allocated at the peak, and no problem found{}",
            bytes(device.peak.allocated.bytes),
            if device.completeness.complete { "" } else { " in what was recorded" }
        ),
    }
}

struct Packer {
    prefix: String,
    columns: Vec<(String, String)>,
}

impl Packer {
    /// Takes a column and says where it is.
    fn put(&mut self, name: &str, column: &Column) -> data::Column {
        self.put_packed(name, column.rows(), column.packed())
    }

    fn put_packed(&mut self, name: &str, rows: usize, packed: String) -> data::Column {
        let id = format!("{}{name}", self.prefix);
        self.columns.push((id.clone(), packed));
        data::Column { id, rows }
    }
}

fn allocations(packer: &mut Packer, detail: &Detail, base: u64) -> data::AllocationColumns {
    let born = packer.put("born", &Column::of_rising(detail.born.iter().map(|&born| u64::from(born))));
    let lives = detail.born.iter().zip(&detail.freed).map(|(&born, &freed)| match freed {
        NEVER => 0,
        freed => u64::from(freed.saturating_sub(born)) + 1,
    });
    let life = packer.put("life", &Column::of(lives));
    // What the program asked for decides most of what a block takes: one number stands for the whole shape.
    let (mut shapes, mut addresses) = (Distinct::default(), Distinct::default());
    let requests = detail.requested.iter().zip(&detail.rounded).zip(&detail.size);
    let shape = requests.map(|((&requested, &rounded), &size)| {
        (size, size.saturating_sub(requested), rounded.saturating_sub(requested))
    });
    let shape = packer.put("shape", &Column::of(shape.map(|shape| shapes.index(shape))));
    let address = detail.address.iter().map(|&address| addresses.index(address - base));
    let address = packer.put("address", &Column::of(address));
    let kind = packer.put("kind", &Column::of(detail.kind.iter().map(|&kind| kind as u64)));
    let stack = packer.put("stack", &Column::of(detail.stack.iter().map(|&stack| u64::from(stack))));
    let stream = packer.put("stream", &Column::of(detail.stream.iter().map(|&stream| u64::from(stream))));
    let shapes = packer.put("shapes", &shape_column(&shapes));
    let addresses = packer.put("addresses", &address_column(&addresses));
    let deferred = packer.put("deferred", &deferred_column(detail));
    data::AllocationColumns { born, life, shape, address, kind, stack, stream, shapes, addresses, deferred }
}

fn shape_column(shapes: &Distinct<(u64, u64, u64)>) -> Column {
    let mut column = Column::default();
    for &(size, slack, rounding) in shapes.values() {
        column.unsigned(size);
        column.unsigned(slack);
        column.unsigned(rounding);
        column.row();
    }
    column
}

fn address_column(addresses: &Distinct<u64>) -> Column {
    let (mut column, mut before) = (Column::default(), 0);
    for &address in addresses.values() {
        column.difference(address, before);
        column.row();
        before = address;
    }
    column
}

fn deferred_column(detail: &Detail) -> Column {
    let (mut column, mut before) = (Column::default(), 0);
    for &(index, back) in &detail.deferred {
        column.unsigned(u64::from(index - before));
        let freed = detail.freed.get(index as usize).copied().unwrap_or(back);
        column.unsigned(u64::from(back.saturating_sub(freed)));
        column.row();
        before = index;
    }
    column
}

fn segments(packer: &mut Packer, detail: &Detail, base: u64) -> data::Column {
    let mut pools: HashMap<oomph_trace::PoolId, u64> = HashMap::from([(oomph_trace::DEFAULT_POOL, 0)]);
    let (mut column, mut moment, mut address) = (Column::default(), 0, 0);
    for change in &detail.segments {
        let range = &change.range;
        let next = pools.len() as u64;
        column.unsigned(u64::from(change.moment.saturating_sub(moment)));
        column.unsigned(u64::from(change.taken));
        column.difference(range.address - base, address);
        column.unsigned(range.size);
        column.unsigned(u64::from(range.stream));
        column.unsigned(*pools.entry(range.pool).or_insert(next));
        column.unsigned(u64::from(range.small) | u64::from(range.expandable) << 1);
        column.unsigned(change.line.map_or(0, |line| u64::from(line) + 1));
        column.row();
        (moment, address) = (change.moment.max(moment), range.address - base);
    }
    packer.put("segments", &column)
}

/// Stacks, annotations, and all names.
fn text(
    packer: &mut Packer,
    detail: &Detail,
    source: &dyn Fn(&str, u32) -> Option<String>,
) -> data::TextColumns {
    let mut calls = Column::default();
    for call in &detail.calls {
        calls.unsigned(call.parent.map_or(0, |parent| u64::from(parent) + 1));
        calls.unsigned(u64::from(call.frame));
        calls.row();
    }
    let nodes = packer.put("nodes", &calls);
    let mut stacks = Column::default();
    for stack in &detail.stacks {
        stacks.unsigned(stack.call.map_or(0, |call| u64::from(call) + 1));
        stacks.unsigned(u64::from(stack.line));
        stacks.row();
    }
    let stacks = packer.put("stacks", &stacks);
    let mut strings = Names::default();
    let frames = (detail.frames.iter())
        .map(|frame| {
            let flags = u32::from(frame.own) | u32::from(frame.native) << 1;
            (strings.index(&frame.function), strings.index(&frame.file), frame.line, flags)
        })
        .collect();
    let lines = detail.lines.iter().map(|line| line_row(&mut strings, line, source)).collect();
    let annotations = annotations(packer, &mut strings, detail);
    let tables = data::Text { strings: strings.all, frames, lines };
    // It is made of numbers and texts: there is nothing in it that cannot be written.
    let tables = serde_json::to_string(&tables).unwrap_or_default();
    let text = packer.put_packed("text", 1, packed(tables.as_bytes()));
    data::TextColumns { nodes, stacks, annotations, text }
}

/// As [`data::Text`] has it.
type LineRow = (i64, i64, u32, i64, u32, i64, i64);

fn line_row(strings: &mut Names, line: &DetailLine, source: &dyn Fn(&str, u32) -> Option<String>) -> LineRow {
    let label = strings.index(&line.place.short());
    let through = line.through.as_deref().map_or(-1, |through| strings.index(through));
    match &line.place {
        Place::Line { file, line, function, own } => {
            // Only the program's own lines are quoted.
            let text = own.then(|| source(file, *line)).flatten();
            let text = text.map_or(-1, |text| strings.index(text.trim()));
            let flags = u32::from(*own) | 2;
            (label, strings.index(file), *line, strings.index(function), flags, through, text)
        }
        _ => (label, -1, 0, -1, 0, through, -1),
    }
}

/// Strings of a recording, each once; a stranger's text without what moves cursors, and not endless.
#[derive(Default)]
struct Names {
    seen: HashMap<String, i64>,
    all: Vec<String>,
}

impl Names {
    fn index(&mut self, text: &str) -> i64 {
        if let Some(&index) = self.seen.get(text) {
            return index;
        }
        let index = self.all.len() as i64;
        self.all.push(harmless(text).chars().take(LONGEST).collect());
        self.seen.insert(text.to_owned(), index);
        index
    }
}

/// When events were: the corners of a line that is off by at most `within` microseconds. What is longer than a rounding error, a pause
/// above all, makes a corner.
fn times(packer: &mut Packer, device: &Device) -> Option<(data::Times, data::Column)> {
    let first = *device.events.time.first().filter(|&&first| first != 0)?;
    let clock = Clock::of(device, first);
    let mut within = clock.end() / FINEST_TIME;
    let mut corners = corners(clock.of_events(), within);
    while corners.len() > MOST_TIMES {
        within = 2 * within.max(1);
        corners = self::corners(clock.of_events(), within);
    }
    let (mut column, mut event, mut micros) = (Column::default(), 0, 0);
    for &(at, when) in &corners {
        column.unsigned((at - event) as u64);
        column.unsigned(when - micros);
        column.row();
        (event, micros) = (at, when);
    }
    Some((data::Times { within }, packer.put("times", &column)))
}

/// The fewest points of a rising sequence, found from left to right, between which straight lines are off by at most `within`.
fn corners(values: &[u64], within: u64) -> Vec<(usize, u64)> {
    let Some((&start, &end)) = values.first().zip(values.last()) else { return Vec::new() };
    let mut corners = vec![(0, start)];
    let (mut from, mut lowest, mut highest) = ((0, start), f64::NEG_INFINITY, f64::INFINITY);
    for (index, &value) in values.iter().enumerate().skip(1) {
        let run = |at: usize| (at - from.0) as f64;
        let slope = |value: f64| (value - from.1 as f64) / run(index);
        // A line that ends here must pass all points since the last corner.
        if slope(value as f64) < lowest || slope(value as f64) > highest {
            from = (index - 1, values[index - 1]);
            corners.push(from);
            (lowest, highest) = (f64::NEG_INFINITY, f64::INFINITY);
        }
        let run = (index - from.0) as f64;
        lowest = lowest.max((value as f64 - within as f64 - from.1 as f64) / run);
        highest = highest.min((value as f64 + within as f64 - from.1 as f64) / run);
    }
    if values.len() > 1 {
        corners.push((values.len() - 1, end));
    }
    corners
}

fn annotations(packer: &mut Packer, strings: &mut Names, detail: &Detail) -> data::Column {
    let (mut column, mut before) = (Column::default(), 0);
    for one in &detail.annotations {
        column.unsigned(strings.index(&one.name) as u64);
        column.difference(u64::from(one.from), before);
        column.unsigned(one.to.map_or(0, |to| u64::from(to.saturating_sub(one.from)) + 1));
        column.row();
        before = u64::from(one.from);
    }
    packer.put("annotations", &column)
}

fn oom(oom: &OomExplanation) -> data::Oom {
    let why = match oom.reason {
        Reason::OutOfMemory => "what was alive needed it all",
        Reason::Fragmentation => "enough was free, in pieces that are too small",
        Reason::OtherStream => "a piece that fits belonged to another stream",
        Reason::PrivatePool => "a piece that fits belonged to a private pool",
        Reason::NotLookedInto => "one of many",
    };
    let end = match oom.outcome {
        Outcome::Fatal => "the program ended here",
        Outcome::CaughtByLibrary => "a library went on with less",
        Outcome::CaughtByProgram => "the program caught it",
    };
    data::Oom {
        moment: oom.event,
        size: oom.size,
        fatal: oom.outcome == Outcome::Fatal,
        text: format!("out of memory: {} asked for, {why}; {end}", bytes(oom.size)),
        place: oom.place.short(),
    }
}

fn what_if(packer: &mut Packer, named: &NamedTuning) -> data::WhatIf {
    let tuning = named.tuning;
    let trials = (tuning.trials.iter().zip(&named.fits).enumerate())
        .map(|(index, (trial, fits))| {
            // What happens in the memory that there is says more than what happens with plenty.
            let replayed = trial.asked.as_ref().unwrap_or(&trial.plenty);
            let (mut column, mut event, mut reserved) = (Column::default(), 0, 0);
            for sample in &replayed.outcome.timeline {
                column.unsigned(u64::from(sample.event - event));
                column.difference(sample.reserved, reserved);
                column.row();
                (event, reserved) = (sample.event, sample.reserved);
            }
            data::Trial {
                conf: printable(&trial.conf),
                recorded: trial.recorded,
                best: tuning.best == Some(index),
                fit: fits.map(data::Fit::of),
                peak_reserved: trial.plenty.usage.reserved.peak,
                retries: stalls(trial),
                least: trial.least.map(|least| least.bytes),
                samples: packer.put(&format!("samples{index}"), &column),
            }
        })
        .collect();
    data::WhatIf {
        trials,
        died: named.died,
        lower_bound: tuning.lower_bound,
        memory: tuning
            .memory
            .and_then(room)
            .map(|_| words_for_memory(tuning.memory, named.typed, "for").trim_start_matches(", ").to_owned()),
        verdict: advice(named).join(" "),
        paste: line_to_paste(tuning),
        doubts: tuning.doubts().iter().map(doubt).collect(),
        torch: named.version.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a reader of the corners would say of every value.
    fn between(corners: &[(usize, u64)], at: usize) -> f64 {
        let next = corners.partition_point(|&(index, _)| index < at).max(1).min(corners.len() - 1);
        let ((from, low), (to, high)) = (corners[next - 1], corners[next]);
        low as f64 + (high - low) as f64 * (at - from) as f64 / (to - from) as f64
    }

    #[test]
    fn a_pause_is_where_it_was() {
        // Three microseconds an event, and a minute's sleep in the middle.
        let values: Vec<u64> =
            (0..450_000).map(|i| 3 * i + if i > 210_030 { 60_000_000 } else { 0 }).collect();
        let corners = corners(&values, 60);
        assert!(corners.len() <= 4, "{}", corners.len());
        for (at, &value) in values.iter().enumerate() {
            assert!((between(&corners, at) - value as f64).abs() <= 60.0, "event {at}");
        }
    }

    #[test]
    fn lines_between_corners_are_within_what_is_said() {
        let mut state = 7_u64;
        let mut value = 0;
        let values: Vec<u64> = (0..50_000)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                value += match state >> 60 {
                    0 => 5_000,
                    few => few,
                };
                value
            })
            .collect();
        for within in [0, 1, 50, 100_000] {
            let corners = corners(&values, within);
            for (at, &value) in values.iter().enumerate() {
                assert!(
                    (between(&corners, at) - value as f64).abs() <= within as f64 + 1e-3,
                    "{within}: {at}"
                );
            }
        }
        assert_eq!(corners(&[5], 1), [(0, 5)]);
        assert_eq!(corners(&[], 1), []);
    }
}
