//! One device of one recording, as the page's script reads it: what it is in JSON, every allocation in columns.

use super::columns::{Column, Distinct};
use super::data::{self, At, Columns, SubjectHead};
use super::limit::Limit;
use super::packer::{Packer, text};
use super::times::times;
use crate::exports::Clock;
use crate::json::explain::Waste;
use crate::replay::{doubt, room, words_for_memory};
use crate::shared::{Named, completeness, findings_of};
use crate::tune::{NamedTuning, advice, line_to_paste, stalls};
use oomph_explain::{Detail, DeviceExplanation, Explanation, OomExplanation, Outcome, Reason};
use oomph_trace::{NEVER, Recording};
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
    /// None of RAM.
    pub(super) ordinal: Option<u32>,
    pub(super) headline: String,
    /// When it was recorded, if that is known.
    pub(super) span: Option<Span>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// In microseconds since 1970.
    pub start: i64,
    pub micros: u64,
}

impl Span {
    /// In microseconds since 1970.
    pub fn end(self) -> i64 {
        self.start.saturating_add_unsigned(self.micros)
    }
}

impl Subject {
    /// The number of its recording, and its ordinal there; none of RAM.
    pub fn device(&self) -> (usize, Option<u32>) {
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
        let mut packer = Packer::of(number);
        // Addresses are relative to the lowest: some are beyond the exact integers of JavaScript.
        let blocks = detail.address.iter().copied();
        let base = blocks.chain(detail.segments.iter().map(|change| change.range.address)).min().unwrap_or(0);
        let allocations = allocations(&mut packer, detail, base);
        let segments = segments(&mut packer, detail, base);
        let text = text(&mut packer, &detail.origins, &detail.annotations, None, extras.source);
        let events = recording.devices.iter().find(|one| one.ordinal == device.ordinal);
        let start = events.and_then(|one| one.events.time.first().copied()).filter(|&first| first != 0);
        let clock = events.zip(start).map(|(events, start)| Clock::of(events, start));
        let times = clock.as_ref().and_then(|clock| times(&mut packer, clock));
        let (times, times_column) = times.unzip();
        let what_if = extras.what_if.map(|tuning| what_if(&mut packer, tuning));
        let headline = headline(explanation, device);
        let title = match explanation.devices.len() {
            1 => harmless(named.name),
            _ => format!("{}, device {}", harmless(named.name), device.ordinal),
        };
        let findings = super::answer::findings(number, findings_of(explanation, device));
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
            device: Some(device.ordinal),
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
            ram: None,
            beside: None,
        };
        Self {
            head,
            columns: packer.into_columns(),
            answer: super::answer::answer(number, named, device),
            recording: of,
            ordinal: Some(device.ordinal),
            headline,
            span: start.zip(clock).map(|(start, clock)| Span { start, micros: clock.end() }),
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
