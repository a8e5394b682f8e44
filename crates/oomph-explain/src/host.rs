//! The process's own memory: how much at the most, and which lines had asked for it then.
//!
//! Boundary: what the kernel counted and what was asked for stand side by side; neither is made to fit the other.

use crate::finding::Place;
use crate::sources::Sources;
use oomph_trace::{Action, How, Recording, Resident, StackId};
use std::collections::HashMap;

/// Bytes of small requests from one sample to the next, on average: what `oomph-ram` draws by.
const MEAN: f64 = (256 << 10) as f64;

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
    /// Of it, by how it was asked for: large blocks, small ones (an estimate), pages of this process alone, pages that others may have.
    pub by_how: [u64; 4],
    /// By how much the estimate of the small ones may be off, twice its standard deviation.
    pub error: u64,
    /// The lines of it, largest first.
    pub lines: Vec<HostLine>,
    /// What the kernel counted when it counted most.
    pub resident: Option<Resident>,
    /// The most pages that were ever there at once, those of files among them.
    pub most_resident: u64,
}

/// What a line had asked for at the peak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostLine {
    /// The line of the program's own code; none where no Python was running.
    pub place: Option<Place>,
    /// Bytes.
    pub bytes: u64,
    /// Blocks that were recorded: of small ones, samples.
    pub blocks: u64,
    /// By how much samples may be off, twice the standard deviation.
    pub error: u64,
}

/// By how much a sample may be off, squared: it stands for `stands_for` bytes, of which it is one block.
fn variance(stands_for: u64) -> f64 {
    // A block of s bytes stands for s / p, and p is its chance: the variance of what it stands for is that squared, times 1 - p. For small blocks that is about the mean between two samples, squared.
    (stands_for as f64) * MEAN.min(stands_for as f64)
}

/// What a recording says of host memory, where it was recorded.
pub(crate) fn explain_host(recording: &Recording, sources: &Sources) -> Option<HostExplanation> {
    let host = recording.host.as_ref()?;
    let events = &host.events;
    let (mut total, mut most, mut rows) = (0i64, 0i64, 0usize);
    for row in 0..events.len() {
        total += match events.action[row] {
            Action::Alloc => events.size[row] as i64,
            _ => -(events.size[row] as i64),
        };
        if total > most {
            (most, rows) = (total, row + 1);
        }
    }
    let mut live: HashMap<u64, usize> = HashMap::new();
    for row in 0..rows {
        match events.action[row] {
            Action::Alloc => live.insert(events.address[row], row),
            _ => live.remove(&events.address[row]),
        };
    }
    let mut by_how = [0u64; 4];
    let mut of_stack: HashMap<StackId, (u64, u64, f64)> = HashMap::new();
    for &row in live.values() {
        let (size, how) = (events.size[row], events.how[row]);
        by_how[how as usize] += size;
        let entry = of_stack.entry(events.stack[row]).or_default();
        entry.0 += size;
        entry.1 += 1;
        entry.2 += if how == How::Sampled { variance(size) } else { 0.0 };
    }
    let off = |variance: f64| (2.0 * variance.sqrt()) as u64;
    let error = off(of_stack.values().map(|(_, _, variance)| variance).sum());
    let mut of_place: HashMap<Option<Place>, (u64, u64, f64)> = HashMap::new();
    for (stack, (bytes, blocks, variance)) in of_stack {
        let entry = of_place.entry(place_of(recording, sources, stack)).or_default();
        (entry.0, entry.1, entry.2) = (entry.0 + bytes, entry.1 + blocks, entry.2 + variance);
    }
    let mut lines: Vec<HostLine> = of_place
        .into_iter()
        .map(|(place, (bytes, blocks, variance))| HostLine { place, bytes, blocks, error: off(variance) })
        .collect();
    lines.sort_by(|one, other| other.bytes.cmp(&one.bytes).then_with(|| one.place.cmp(&other.place)));
    let begin = events.time.first().copied().or(host.resident.first().map(|one| one.time)).unwrap_or(0);
    let end = events.time.last().copied().into_iter().chain(host.resident.last().map(|one| one.time)).max();
    let seconds = |time: i64| time.saturating_sub(begin).max(0) as f64 / 1e6;
    let peak = rows.checked_sub(1).and_then(|row| events.time.get(row)).copied();
    Some(HostExplanation {
        events: events.len() as u64,
        seconds: seconds(end.unwrap_or(begin)),
        asked: most.max(0) as u64,
        peak_seconds: seconds(peak.unwrap_or(begin)),
        by_how,
        error,
        lines,
        resident: host.resident.iter().max_by_key(|one| one.anonymous + one.swapped).copied(),
        most_resident: host.resident.iter().map(|one| one.most).max().unwrap_or(0),
    })
}

fn place_of(recording: &Recording, sources: &Sources, stack: StackId) -> Option<Place> {
    let facts = sources.of_stack(stack);
    let frame = recording.stacks.frame(facts.place?);
    Some(Place::Line {
        file: recording.strings.get(frame.file).to_owned(),
        line: frame.line,
        function: recording.strings.get(frame.name).to_owned(),
        own: facts.own,
    })
}
