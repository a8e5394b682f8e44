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
        Some(Self { kind: kind.replace(' ', "_"), change: Change::of(change) })
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
