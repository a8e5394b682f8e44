//! Real recordings against what the GPU itself reported, and every shape the format comes in.

#![allow(clippy::unwrap_used, clippy::panic)] // a test fails by panicking

use oomph_trace::{Action, BlockState, History, Recording, export, format, read_bytes, read_path};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn fixtures() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures")).to_owned()
}

fn truth() -> Vec<Value> {
    let text = std::fs::read_to_string(fixtures().join("h200/truth.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn all_h200() -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = (std::fs::read_dir(fixtures().join("h200")).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "xz"))
        .collect();
    paths.sort();
    assert!(paths.len() >= 50, "the fixtures are there");
    paths
}

#[test]
fn peaks_equal_what_the_gpu_reported() {
    let mut compared = 0;
    for row in truth() {
        let case = row["case"].as_str().unwrap();
        let recording = read_path(fixtures().join(format!("h200/{case}.pickle.xz"))).unwrap();
        let history = History::of(&recording, &recording.devices[0]);
        let peak = |name: &str| row["stats"][format!("{name}_bytes.all.peak")].as_u64();
        assert_eq!(Some(history.peak.reserved.bytes), peak("reserved"), "{case}: reserved");
        assert_eq!(history.contradictions, 0, "{case}");
        assert_eq!(history.mismatches, 0, "{case}: every block alive at the end has its true size");
        // With enabled="state" the recorder keeps one event: what was before the end is not in the file.
        if case != "plain_state" {
            assert_eq!(Some(history.peak.allocated.bytes), peak("allocated"), "{case}: allocated");
            if let Some(requested) = peak("requested") {
                assert_eq!(history.peak.requested.bytes, requested, "{case}: requested");
            }
            compared += 1;
        }
        // An observer's snapshot is taken before the program unwinds, the counters after.
        if case != "plain_observer_oom" {
            let current = |name: &str| row["stats"][format!("{name}_bytes.all.current")].as_u64();
            assert_eq!(Some(history.end.allocated), current("allocated"), "{case}: at the end");
            assert_eq!(Some(history.end.reserved), current("reserved"), "{case}: at the end");
        }
        let ooms = recording.devices[0].events.count(Action::OutOfMemory) as u64;
        assert_eq!(Some(ooms), row["stats"]["num_ooms"].as_u64(), "{case}: out-of-memories");
    }
    assert!(compared >= 50, "{compared} recordings were compared");
}

#[test]
fn every_shape_of_the_format_reads_as_python_reads_it() {
    let folder = fixtures().join("shapes");
    let expected: Value =
        serde_json::from_str(&std::fs::read_to_string(folder.join("expected.json")).unwrap()).unwrap();
    let mut whole = 0;
    for (file, expected) in expected.as_object().unwrap() {
        let recording = read_path(folder.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        if expected.get("whole_segments").is_some() {
            truncated_shape(file, expected, &recording);
            continue;
        }
        whole += 1;
        let events: Vec<Value> = expected["events"].as_array().unwrap().clone();
        for (ordinal, expected) in events.iter().enumerate() {
            let device = recording.devices.iter().find(|device| device.ordinal as usize == ordinal);
            let expected = expected.as_object().unwrap();
            let total: u64 = expected.values().map(|count| count.as_u64().unwrap()).sum();
            assert_eq!(
                device.map_or(0, |device| device.events.len() as u64),
                total,
                "{file}: device {ordinal}"
            );
            for (name, count) in expected {
                let Some(action) = Action::ALL.into_iter().find(|action| action.name() == name) else {
                    continue;
                };
                let found = device.map_or(0, |device| device.events.count(action) as u64);
                assert_eq!(Some(found), count.as_u64(), "{file}: {name} on device {ordinal}");
            }
        }
        let sum = |pick: fn(&oomph_trace::Device) -> u64| recording.devices.iter().map(pick).sum::<u64>();
        let live = sum(|device| device.blocks.iter().filter(|b| b.state != BlockState::Free).count() as u64);
        let reserved = sum(|device| device.segments.iter().map(|segment| segment.size).sum());
        assert_eq!(Some(live), expected["live_blocks"].as_u64(), "{file}: live blocks");
        assert_eq!(Some(reserved), expected["reserved_bytes"].as_u64(), "{file}: reserved");
        assert_eq!(Some(recording.annotations.len() as u64), expected["annotations"].as_u64(), "{file}");
    }
    assert!(whole >= 20, "{whole} whole files");
}

/// What was whole in a file that is cut off must be there.
fn truncated_shape(file: &str, expected: &Value, recording: &Recording) {
    assert!(recording.source.truncated, "{file}: is known to be cut off");
    assert_eq!(recording.warnings[0].code, "truncated", "{file}");
    let events: usize = recording.devices.iter().map(|device| device.events.len()).sum();
    let segments: usize = recording.devices.iter().map(|device| device.segments.len()).sum();
    let wanted: u64 = match &expected["whole_events"] {
        Value::Array(devices) => devices
            .iter()
            .map(|device| match device {
                Value::Object(actions) => actions.values().map(|count| count.as_u64().unwrap()).sum::<u64>(),
                count => count.as_u64().unwrap(),
            })
            .sum(),
        Value::Object(actions) => actions.values().map(|count| count.as_u64().unwrap()).sum(),
        count => count.as_u64().unwrap(),
    };
    assert_eq!(events as u64, wanted, "{file}: every whole event is kept");
    assert_eq!(
        segments as u64,
        expected["whole_segments"].as_u64().unwrap(),
        "{file}: every whole segment is kept"
    );
}

fn assert_same(a: &Recording, b: &Recording, what: &str) {
    assert_eq!(a.devices.len(), b.devices.len(), "{what}");
    for (a_device, b_device) in a.devices.iter().zip(&b.devices) {
        let (x, y) = (&a_device.events, &b_device.events);
        assert_eq!(x.action, y.action, "{what}");
        assert_eq!(x.address, y.address, "{what}");
        assert_eq!(x.size, y.size, "{what}");
        assert_eq!(x.time, y.time, "{what}");
        let raw = |device: &oomph_trace::Device, id: u32| device.streams[id as usize];
        for row in 0..x.len() {
            assert_eq!(raw(a_device, x.stream[row]), raw(b_device, y.stream[row]), "{what}: stream of {row}");
            assert_eq!(frames(a, x.stack[row]), frames(b, y.stack[row]), "{what}: stack of {row}");
        }
        let texts = |r: &Recording, column: &[(u32, u32)]| -> Vec<(u32, String)> {
            column.iter().map(|&(row, id)| (row, r.strings.get(id).to_owned())).collect()
        };
        assert_eq!(texts(a, &x.metadata), texts(b, &y.metadata), "{what}");
        assert_eq!(texts(a, &x.compile_context), texts(b, &y.compile_context), "{what}");
        assert_eq!(texts(a, &x.category), texts(b, &y.category), "{what}");
        assert_eq!(x.pool, y.pool, "{what}");
        assert_eq!(a_device.segments.len(), b_device.segments.len(), "{what}");
        for (s, t) in a_device.segments.iter().zip(&b_device.segments) {
            assert_eq!(
                (s.address, s.size, s.small, s.pool, s.expandable),
                (t.address, t.size, t.small, t.pool, t.expandable),
                "{what}"
            );
            assert_eq!(frames(a, s.stack), frames(b, t.stack), "{what}");
        }
        assert_eq!(a_device.blocks.len(), b_device.blocks.len(), "{what}");
        for (s, t) in a_device.blocks.iter().zip(&b_device.blocks) {
            assert_eq!(
                (s.address, s.size, s.requested, s.state),
                (t.address, t.size, t.requested, t.state),
                "{what}"
            );
            assert_eq!(frames(a, s.stack), frames(b, t.stack), "{what}");
        }
    }
    let annotations = |r: &Recording| -> Vec<(u32, i64, String, u8)> {
        r.annotations
            .iter()
            .map(|x| (x.device, x.time, r.strings.get(x.name).to_owned(), x.stage as u8))
            .collect()
    };
    assert_eq!(annotations(a), annotations(b), "{what}");
    // Tables of settings have no order.
    let settings = |r: &Recording| {
        let s = &r.settings;
        (
            s.known,
            s.conf.clone(),
            s.max_split_size,
            s.expandable_segments,
            s.roundup_power2_divisions,
            s.all.len(),
        )
    };
    assert_eq!(settings(a), settings(b), "{what}");
}

fn frames(recording: &Recording, stack: u32) -> Vec<(String, String, u32)> {
    (recording.stacks.get(stack).iter())
        .map(|&id| recording.stacks.frame(id))
        .map(|f| (recording.strings.get(f.name).to_owned(), recording.strings.get(f.file).to_owned(), f.line))
        .collect()
}

#[test]
fn every_export_reads_back_the_same() {
    for path in all_h200() {
        let recording = read_path(&path).unwrap();
        if recording.devices.iter().map(|d| d.events.len()).sum::<usize>() > 20_000 {
            continue; // the same code, for ten times the time
        }
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let oomph = format::Writer::new(Vec::new()).unwrap().finish(&recording).unwrap();
        assert_same(&recording, &read_bytes(&oomph).unwrap(), &format!("{name} as .oomph"));
        let mut pickle = Vec::new();
        export::write_pickle(&recording, &mut pickle).unwrap();
        assert_eq!(pickle[..2], [0x80, 4], "memory_viz reads up to protocol 4");
        assert_same(&recording, &read_bytes(&pickle).unwrap(), &format!("{name} as pickle"));
        let mut json = Vec::new();
        export::write_json(&recording, &mut json).unwrap();
        assert_same(&recording, &read_bytes(&json).unwrap(), &format!("{name} as JSON"));
    }
}

#[test]
fn own_format_is_small() {
    let path = fixtures().join("h200/generate8.pickle.xz");
    let recording = read_path(&path).unwrap();
    let oomph = format::Writer::new(Vec::new()).unwrap().finish(&recording).unwrap();
    let unpacked = 25_374_518; // bytes of the pickle
    assert!(oomph.len() * 20 < unpacked, "{} bytes", oomph.len());
}

#[test]
fn a_killed_writer_leaves_every_whole_chunk_readable() {
    let recording = read_path(fixtures().join("h200/plain.pickle.xz")).unwrap();
    let mut writer = format::Writer::new(Vec::new()).unwrap();
    writer.append(&recording).unwrap();
    let whole = writer.finish(&recording).unwrap();
    let all = recording.devices[0].events.len();
    let mut seen = std::collections::BTreeSet::new();
    for length in (12..whole.len()).step_by(7) {
        let cut = read_bytes(&whole[..length]).unwrap_or_else(|error| panic!("cut at {length}: {error}"));
        assert!(cut.source.truncated);
        let events = cut.devices.first().map_or(0, |device| device.events.len());
        assert!(events == 0 || events == all, "chunks are whole or not there");
        seen.insert(events);
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [0, all]);
}

#[test]
fn a_snapshot_cut_anywhere_keeps_what_came_before() {
    let mut bytes = Vec::new();
    let recording = read_path(fixtures().join("h200/big_temp.pickle.xz")).unwrap();
    export::write_pickle(&recording, &mut bytes).unwrap();
    let (mut last, mut readable) = (0, 0);
    for length in 2..bytes.len() {
        match read_bytes(&bytes[..length]) {
            Ok(cut) => {
                readable += 1;
                let events = cut.devices.first().map_or(0, |device| device.events.len());
                assert!(events >= last, "cut at {length}: {events} events, {last} before");
                last = events;
                assert!(cut.source.truncated);
                for device in &cut.devices {
                    History::of(&cut, device);
                }
            }
            Err(error) => assert!(readable == 0, "cut at {length}: {error}, though less could be read"),
        }
    }
    assert_eq!(last, recording.devices[0].events.len());
}

#[test]
fn compressed_and_plain_read_the_same() {
    let path = fixtures().join("h200/plain.pickle.xz");
    let recording = read_path(&path).unwrap();
    let mut pickle = Vec::new();
    export::write_pickle(&recording, &mut pickle).unwrap();
    let gzip = {
        use std::io::Write;
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        out.write_all(&pickle).unwrap();
        out.finish().unwrap()
    };
    let zstd = zstd::encode_all(&pickle[..], 3).unwrap();
    assert_same(&recording, &read_bytes(&gzip).unwrap(), "gzip");
    assert_same(&recording, &read_bytes(&zstd).unwrap(), "zstd");
    // Cut off, it gives what could be unpacked: of gzip some, of a single zstd block nothing.
    assert!(read_bytes(&gzip[..gzip.len() / 2]).is_ok_and(|cut| cut.source.truncated));
    let error = read_bytes(&zstd[..zstd.len() / 2]).unwrap_err().to_string();
    assert!(error.contains("damaged or cut off"), "{error}");
}
