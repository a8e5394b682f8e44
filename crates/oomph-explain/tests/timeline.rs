//! Memory over time, in real recordings: the picture loses no peak, and the kinds in it are those of the explanation.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use oomph_explain::{Column, Explanation, Kind, explain_over_time};
use std::path::Path;

fn explained(file: &str, columns: usize) -> Explanation {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures"));
    explain_over_time(&oomph_trace::read_path(folder.join(file)).unwrap(), columns)
}

#[test]
fn the_picture_shows_the_peaks_whatever_its_width() {
    for file in [
        "h200/leak_history8-cap4.0.pickle.xz",
        "h200/bert_var16.pickle.xz",
        "h200/bert_var16-expandable_segments_True.pickle.xz",
        "h200/ring.pickle.xz",
        "shapes/two_devices.pickle",
    ] {
        for columns in [1, 7, 600, 100_000] {
            for device in &explained(file, columns).devices {
                let timeline = device.timeline.as_ref().unwrap();
                assert_eq!(timeline.columns.len(), columns, "{file}");
                let most = |of: fn(&Column) -> u64| timeline.columns.iter().map(of).max().unwrap();
                assert_eq!(most(Column::allocated), device.peak.allocated.bytes, "{file} in {columns}");
                assert_eq!(most(|column| column.reserved), device.peak.reserved.bytes, "{file} in {columns}");
                let peak = &timeline.columns[timeline.peak];
                assert_eq!(peak.allocated(), device.peak.allocated.bytes, "{file} in {columns}");
                for kind in &device.kinds {
                    let position = Kind::ALL.iter().position(|&other| other == kind.kind).unwrap();
                    assert_eq!(peak.kinds[position], kind.bytes, "{file}: {:?}", kind.kind);
                }
            }
        }
    }
}

#[test]
fn out_of_memories_and_steps_are_where_they_were() {
    let explanation = explained("h200/leak_history8-cap4.0.pickle.xz", 600);
    let timeline = explanation.devices[0].timeline.as_ref().unwrap();
    assert_eq!(timeline.steps.len(), 5);
    assert!(timeline.steps.is_sorted());
    assert_eq!(timeline.ooms.iter().filter(|&&(_, fatal)| fatal).count(), 1);
    assert!(timeline.ooms.iter().all(|&(column, _)| column > timeline.steps[4]), "{:?}", timeline.ooms);
    assert_eq!(timeline.events, 1385);
}

#[test]
fn without_events_there_is_nothing_to_draw() {
    let explanation = explained("h200/plain_segments_only.pickle.xz", 600);
    assert!(explanation.devices[0].timeline.is_none());
    assert!(explained("h200/plain.pickle.xz", 0).devices[0].timeline.is_none());
}
