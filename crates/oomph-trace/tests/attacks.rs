//! Every attack that is committed is refused or read safely. Those that must be made first (bombs, millions of shared
//! values) are run by `tests/python/test_attacks.py`, with limits on memory and time.

#![allow(clippy::unwrap_used, clippy::panic)] // a test fails by panicking

use oomph_trace::{History, ReadError, read_path};
use std::path::Path;

#[test]
fn attacks_are_refused_or_read_safely() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../attacks"));
    let expected: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(folder.join("expected.json")).unwrap()).unwrap();
    let (mut refused, mut safe) = (0, 0);
    for (file, verdict) in expected["files"].as_object().unwrap() {
        let path = folder.join(file);
        if !path.exists() {
            continue;
        }
        let outcome = read_path(&path);
        match verdict.as_str().unwrap() {
            "refused" => {
                refused += 1;
                assert!(outcome.is_err(), "{file} must be refused");
            }
            _ => {
                safe += 1;
                if let Ok(recording) = outcome {
                    for device in &recording.devices {
                        History::of(&recording, device);
                    }
                }
            }
        }
    }
    assert!(refused >= 80 && safe >= 120, "{refused} refused, {safe} safe");
}

#[test]
fn a_snapshot_that_would_run_code_is_refused_by_name() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../attacks"));
    let mut named = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        // After STOP nothing is read, so nothing is found there.
        if !name.starts_with("code_") || !name.ends_with(".pickle") || name == "code_after_stop.pickle" {
            continue;
        }
        match read_path(&path) {
            Err(ReadError::Refused { .. }) => named += 1,
            Err(error) => panic!("{name}: {error}"),
            Ok(_) => panic!("{name} was read"),
        }
    }
    assert!(named >= 15, "{named}");
}
