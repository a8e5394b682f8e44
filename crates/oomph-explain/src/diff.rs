//! What changed at the peak between two recordings, line by line.

use crate::explanation::{DeviceExplanation, Explanation};
use crate::finding::Place;
use crate::host::HostExplanation;
use oomph_trace::Peaks;
use std::collections::BTreeMap;

/// The difference of two recordings.
#[derive(Clone, Debug)]
pub struct Diff {
    pub devices: Vec<DeviceDiff>,
    /// Of the host's memory, where both recordings have it.
    pub host: Option<HostDiff>,
}

/// The difference of two processes' own memory.
#[derive(Clone, Debug)]
pub struct HostDiff {
    /// The most that was asked for at once, before and after.
    pub asked: (u64, u64),
    /// What the kernel counted of the process's own at the most, before and after; none where it was not read.
    pub own: (Option<u64>, Option<u64>),
    /// Kinds of which more or less was held at the peak, the largest change first.
    pub kinds: Vec<Change>,
    /// The same by line.
    pub lines: Vec<Change>,
}

/// The difference of one device.
#[derive(Clone, Debug)]
pub struct DeviceDiff {
    pub ordinal: u32,
    /// Its ordinal in the first recording: ranks of one run have a card each, with numbers of their own.
    pub ordinal_before: u32,
    /// The peaks before; `None` if only the second recording has the device.
    pub before: Option<Peaks>,
    /// The peaks after; `None` if only the first recording has the device.
    pub after: Option<Peaks>,
    /// Lines that hold more or less at the allocated peak, the largest change first.
    pub lines: Vec<Change>,
    /// The same by kind.
    pub kinds: Vec<Change>,
}

/// A change in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which line, or the name of a kind.
    pub what: What,
    /// Bytes before.
    pub before: u64,
    /// Bytes after.
    pub after: u64,
}

pub(crate) type What = Result<Place, &'static str>;

impl Change {
    /// Bytes more than before.
    pub fn grown(&self) -> i64 {
        grown(self.before, self.after)
    }
}

/// Bytes more than before. A stranger's numbers may be as large as they like.
pub fn grown(before: u64, after: u64) -> i64 {
    let distance = i64::try_from(after.abs_diff(before)).unwrap_or(i64::MAX);
    if after >= before { distance } else { -distance }
}

/// Compares two explanations. Lines are matched by file, line and function; what then is left over in a function, by
/// order: code above it may have moved it. Devices are matched by number, or where each recording has one, as ranks do, with
/// each other.
pub fn diff(before: &Explanation, after: &Explanation) -> Diff {
    let pairs: Vec<(u32, u32)> = match (before.devices.as_slice(), after.devices.as_slice()) {
        ([before], [after]) => vec![(before.ordinal, after.ordinal)],
        _ => {
            let all = before.devices.iter().chain(&after.devices).map(|device| device.ordinal);
            all.collect::<std::collections::BTreeSet<u32>>().into_iter().map(|one| (one, one)).collect()
        }
    };
    let devices = pairs
        .into_iter()
        .map(|(ordinal_before, ordinal)| {
            let find = |explanation: &Explanation, ordinal: u32| {
                explanation.devices.iter().find(|device| device.ordinal == ordinal).cloned()
            };
            let (before, after) = (find(before, ordinal_before), find(after, ordinal));
            let mut lines: BTreeMap<Place, (u64, u64)> = BTreeMap::new();
            let mut kinds: BTreeMap<&'static str, (u64, u64)> = BTreeMap::new();
            let mut add = |device: &DeviceExplanation, pick: fn(&mut (u64, u64)) -> &mut u64| {
                for line in &device.lines {
                    *pick(lines.entry(line.place.clone()).or_default()) += line.bytes;
                }
                for kind in &device.kinds {
                    *pick(kinds.entry(kind.kind.name()).or_default()) += kind.bytes;
                }
            };
            if let Some(device) = &before {
                add(device, |sums| &mut sums.0);
            }
            if let Some(device) = &after {
                add(device, |sums| &mut sums.1);
            }
            DeviceDiff {
                ordinal,
                ordinal_before,
                before: before.map(|device| device.peak),
                after: after.map(|device| device.peak),
                lines: changes(rejoin_moved(lines).into_iter().map(|(place, sums)| (Ok(place), sums))),
                kinds: changes(kinds.into_iter().map(|(kind, sums)| (Err(kind), sums))),
            }
        })
        .collect();
    let host = before.host.as_ref().zip(after.host.as_ref()).map(|(before, after)| of_host(before, after));
    Diff { devices, host }
}

fn of_host(before: &HostExplanation, after: &HostExplanation) -> HostDiff {
    let mut lines: BTreeMap<Place, (u64, u64)> = BTreeMap::new();
    let mut kinds: BTreeMap<&'static str, (u64, u64)> = BTreeMap::new();
    let mut add = |host: &HostExplanation, pick: fn(&mut (u64, u64)) -> &mut u64| {
        for line in &host.lines {
            let sum = pick(lines.entry(line.place.clone().unwrap_or(Place::NoStack)).or_default());
            *sum = sum.saturating_add(line.bytes);
        }
        for kind in &host.by_kind {
            let sum = pick(kinds.entry(kind.kind.name()).or_default());
            *sum = sum.saturating_add(kind.bytes);
        }
    };
    add(before, |sums| &mut sums.0);
    add(after, |sums| &mut sums.1);
    HostDiff {
        asked: (before.asked, after.asked),
        own: (before.own(), after.own()),
        kinds: changes(kinds.into_iter().map(|(kind, sums)| (Err(kind), sums))),
        lines: changes(rejoin_moved(lines).into_iter().map(|(place, sums)| (Ok(place), sums))),
    }
}

/// Lines of one function that are only before or only after, as many of each: the function was moved, not rewritten.
fn rejoin_moved(lines: BTreeMap<Place, (u64, u64)>) -> BTreeMap<Place, (u64, u64)> {
    let mut joined = BTreeMap::new();
    let mut gone: BTreeMap<(String, String), Vec<(Place, u64)>> = BTreeMap::new();
    let mut new = gone.clone();
    for (place, sums) in lines {
        let function = match &place {
            Place::Line { file, function, .. } => Some((file.clone(), function.clone())),
            _ => None,
        };
        match (function, sums) {
            (Some(function), (bytes, 0)) => gone.entry(function).or_default().push((place, bytes)),
            (Some(function), (0, bytes)) => new.entry(function).or_default().push((place, bytes)),
            _ => {
                joined.insert(place, sums);
            }
        }
    }
    for (function, before) in gone {
        let after = new.remove(&function).unwrap_or_default();
        if before.len() == after.len() {
            // Both in order of their lines.
            joined.extend(before.into_iter().zip(after).map(|((_, was), (place, is))| (place, (was, is))));
        } else {
            joined.extend(before.into_iter().map(|(place, was)| (place, (was, 0))));
            joined.extend(after.into_iter().map(|(place, is)| (place, (0, is))));
        }
    }
    joined.extend(new.into_values().flatten().map(|(place, is)| (place, (0, is))));
    joined
}

fn changes(sums: impl Iterator<Item = (What, (u64, u64))>) -> Vec<Change> {
    let mut changes: Vec<Change> = sums
        .map(|(what, (before, after))| Change { what, before, after })
        .filter(|change| change.before != change.after)
        .collect();
    changes.sort_by_key(|change| std::cmp::Reverse(change.grown().unsigned_abs()));
    changes
}
