//! What `oomph diff` prints.

use super::document;
use super::explain::{Peaks, Place};
use crate::shared::{Named, died};
use oomph_explain as model;
use serde::Serialize;

/// The difference of two recordings.
pub fn diff(diff: &model::Diff, before: &Named, after: &Named) -> String {
    let death = |named: &Named| died(named.explanation).map(|died| Death { step: died.step });
    document(Diff {
        before: before.name,
        after: after.name,
        died: Deaths { before: death(before), after: death(after) },
        devices: diff.devices.iter().map(Device::of).collect(),
        host: diff.host.as_ref().map(Host::of),
    })
}

#[derive(Serialize)]
struct Diff<'a> {
    /// The first file, as it was given.
    before: &'a str,
    /// The second file.
    after: &'a str,
    /// **Stable.** Where a program ran out of memory and died. Its peaks are then what it had reached, not what it needs.
    died: Deaths,
    /// One for each ordinal of either recording.
    devices: Vec<Device<'a>>,
    /// The process's own memory, where both recordings have it.
    host: Option<Host<'a>>,
}

#[derive(Serialize)]
struct Host<'a> {
    /// The most that was asked for at once.
    asked: Change,
    /// What the kernel counted of the process's own at the most; `null` where it was not read in both.
    anonymous: Option<Change>,
    /// What changed at the peak, by kind: see `by_kind` of [explain](#explain)'s host.
    by_kind: Vec<KindChange>,
    /// What changed at the peak, by line.
    by_line: Vec<LineChange<'a>>,
}

impl<'a> Host<'a> {
    fn of(host: &'a model::HostDiff) -> Self {
        let change =
            |(before, after): (u64, u64)| Change { before, after, grown: model::grown(before, after) };
        Self {
            asked: change(host.asked),
            anonymous: host.own.0.zip(host.own.1).map(change),
            by_kind: host.kinds.iter().filter_map(KindChange::of).collect(),
            by_line: host.lines.iter().filter_map(LineChange::of).collect(),
        }
    }
}

#[derive(Serialize)]
struct Deaths {
    /// The first program; `null` if it did not die.
    before: Option<Death>,
    /// The second.
    after: Option<Death>,
}

#[derive(Serialize)]
struct Death {
    /// The step, from 1.
    step: Option<u64>,
}

#[derive(Serialize)]
struct Device<'a> {
    /// The device.
    ordinal: u32,
    /// The peaks; `null` if the first recording has no such device.
    before: Option<Peaks>,
    /// Those of the second recording.
    after: Option<Peaks>,
    /// What changed, by kind.
    by_kind: Vec<KindChange>,
    /// What changed, by line.
    by_line: Vec<LineChange<'a>>,
}

impl<'a> Device<'a> {
    fn of(device: &'a model::DeviceDiff) -> Self {
        Self {
            ordinal: device.ordinal,
            before: device.before.as_ref().map(Peaks::of),
            after: device.after.as_ref().map(Peaks::of),
            by_kind: device.kinds.iter().filter_map(KindChange::of).collect(),
            by_line: device.lines.iter().filter_map(LineChange::of).collect(),
        }
    }
}

#[derive(Serialize)]
struct KindChange {
    /// See [kind](#kind).
    kind: String,
    /// By how much.
    #[serde(flatten)]
    change: Change,
}

impl KindChange {
    fn of(change: &model::Change) -> Option<Self> {
        let kind = change.what.as_ref().err()?;
        Some(Self { kind: kind.to_lowercase().replace(' ', "_"), change: Change::of(change) })
    }
}

#[derive(Serialize)]
struct LineChange<'a> {
    /// Where.
    #[serde(flatten)]
    place: Place<'a>,
    /// By how much.
    #[serde(flatten)]
    change: Change,
}

impl<'a> LineChange<'a> {
    fn of(change: &'a model::Change) -> Option<Self> {
        let place = change.what.as_ref().ok()?;
        Some(Self { place: Place::of(place), change: Change::of(change) })
    }
}

#[derive(Serialize)]
struct Change {
    /// Bytes before.
    before: u64,
    /// Bytes after.
    after: u64,
    /// `after` less `before`; may be negative.
    grown: i64,
}

impl Change {
    fn of(change: &model::Change) -> Self {
        Self { before: change.before, after: change.after, grown: change.grown() }
    }
}
