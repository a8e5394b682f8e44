//! The model is held against what PyTorch's allocator did on a real GPU (H200, torch 2.11): recordings of programs, random
//! allocations under random settings, and the same programs under other settings.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use oomph_replay::addresses::Addresses;
use oomph_replay::allocator::{Allocator, Memory, Refusal};
use oomph_replay::program::{Options, Program};
use oomph_replay::recorded::Reproduction;
use oomph_replay::replayer::{Doubt, Replayer};
use oomph_replay::torch::Torch;
use oomph_settings::conf::Conf;
use oomph_settings::version::Version;
use oomph_trace::{Action, History, Recording, read_path};
use serde_json::Value;
use std::path::{Path, PathBuf};

const TORCH: Version = Version::new(2, 11);

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

fn recordings(folder: &str) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = (std::fs::read_dir(fixtures().join(folder)).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "xz"))
        .collect();
    paths.sort();
    paths
}

fn truth(folder: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(fixtures().join(folder).join("truth.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

fn ooms(recording: &Recording) -> Vec<u32> {
    let events = &recording.devices[0].events;
    (0..events.len() as u32).filter(|&row| events.action[row as usize] == Action::OutOfMemory).collect()
}

#[test]
fn every_block_lies_where_pytorch_put_it() {
    let (mut files, mut blocks) = (0, 0);
    for folder in ["h200", "settings"] {
        for path in recordings(folder) {
            let recording = read_path(&path).unwrap();
            let device = &recording.devices[0];
            let history = History::of(&recording, device);
            let replayer = Replayer::new(&recording, device, &history, Some(TORCH), None);
            let reproduction = &replayer.reproduction;
            assert_eq!(reproduction.outcome.address_mismatches, 0, "{}", name(&path));
            assert_eq!(reproduction.differences(), 0, "{}", name(&path));
            assert_eq!(reproduction.outcome.unknown_frees, 0, "{}", name(&path));
            // Out of memory at the same events, for the same reason.
            let again: Vec<u32> = reproduction.outcome.ooms.iter().map(|oom| oom.event).collect();
            assert_eq!(again, ooms(&recording), "{}", name(&path));
            for oom in &reproduction.outcome.ooms {
                let device_free = device.events.address[oom.event as usize];
                let limited = device_free >= oom.refusal.segment();
                assert_eq!(matches!(oom.refusal, Refusal::Limit { .. }), limited, "{}", name(&path));
            }
            files += 1;
            blocks += device.events.count(Action::Alloc);
        }
    }
    assert!(files >= 81 && blocks > 100_000, "{files} recordings, {blocks} blocks");
}

#[test]
fn the_version_is_found_by_what_reproduces_the_recording() {
    for case in ["bert_var16", "generate8", "gpt24-bf16", "thrash"] {
        let recording = read_path(fixtures().join(format!("h200/{case}.pickle.xz"))).unwrap();
        let device = &recording.devices[0];
        let history = History::of(&recording, device);
        let replayer = Replayer::new(&recording, device, &history, None, None);
        assert_eq!(replayer.version(), TORCH, "{case}");
        // Later versions choose among equal blocks by other rules, and the recording shows it.
        let newer =
            Reproduction::under(replayer.program(), &replayer.conf, Memory::UNLIMITED, Version::NEWEST);
        assert!(newer.outcome.address_mismatches > 0, "{case}");
        // Asked about another version, it still knows which one made the recording.
        let asked = Replayer::new(&recording, device, &history, Some(Version::NEWEST), None);
        assert_eq!((asked.version(), asked.reproduction.version), (Version::NEWEST, TORCH), "{case}");
        assert_eq!(asked.reproduction.differences(), 0, "{case}");
    }
}

/// What PyTorch counts, and where the model has it.
fn statistics(torch: &Torch) -> Vec<(&'static str, u64)> {
    let usage = torch.usage();
    vec![
        ("allocated_bytes.all.peak", usage.allocated.peak),
        ("allocated_bytes.all.current", usage.allocated.now),
        ("reserved_bytes.all.peak", usage.reserved.peak),
        ("reserved_bytes.all.current", usage.reserved.now),
        ("active_bytes.all.peak", usage.active.peak),
        ("active_bytes.all.current", usage.active.now),
        ("requested_bytes.all.peak", usage.requested.peak),
        ("requested_bytes.all.current", usage.requested.now),
        ("inactive_split_bytes.all.peak", usage.inactive_split.peak),
        ("inactive_split_bytes.all.current", usage.inactive_split.now),
        ("segment.all.peak", usage.segments.peak),
        ("segment.all.current", usage.segments.now),
        ("num_alloc_retries", usage.retries),
        ("num_ooms", usage.ooms),
        ("num_device_alloc", usage.device_allocs),
        ("num_device_free", usage.device_frees),
    ]
}

/// What a fraction of a card comes to, in bytes.
fn limit(fraction: f64, total: u64, version: Version) -> u64 {
    let bytes = fraction * total as f64;
    if version >= Version::new(2, 13) { bytes.round() as u64 } else { bytes as u64 }
}

/// Replays every random trace of a folder as the version that made it; what is not as PyTorch had it.
fn random_traces(folder: &str) -> (usize, usize, Vec<String>) {
    let (mut events, mut out_of_memory, mut wrong) = (0, 0, Vec::new());
    for row in truth(folder) {
        let case = row["case"].as_str().unwrap();
        let version: Version = row["torch"].as_str().unwrap().parse().unwrap();
        let recording = read_path(fixtures().join(format!("{folder}/{case}.pickle.xz"))).unwrap();
        let device = &recording.devices[0];
        let history = History::of(&recording, device);
        let conf = Conf::parse(row["conf"].as_str().unwrap(), version).unwrap();
        assert_eq!(conf, oomph_replay::recorded::conf_of(&recording.settings), "{case}");
        let program = Program::of(device, &history, &conf);
        let total = row["total"].as_u64().unwrap();
        let limit = row["fraction"].as_f64().map(|fraction| limit(fraction, total, version));
        let memory = Memory { total, free: 1 << 40, limit };
        let reproduction = Reproduction::under(&program, &conf, memory, version);
        assert_eq!(reproduction.differences(), 0, "{case} by {version}");
        let (segments, maps) = program.segment_addresses();
        let mut torch = Torch::new(conf, version, memory, Addresses::recorded(segments, maps));
        let open = program.import_before(&mut torch);
        program.play(&mut torch, open, &Options::default());
        for (key, ours) in statistics(&torch) {
            let theirs = row["stats"][key].as_u64().unwrap();
            if ours != theirs {
                wrong.push(format!("{case} {key}: PyTorch {version} {theirs}, oomph {ours}"));
            }
        }
        events += device.events.len();
        out_of_memory += reproduction.outcome.ooms.len();
    }
    (events, out_of_memory, wrong)
}

#[test]
fn random_allocations_under_random_settings_end_alike() {
    let (events, ooms, wrong) = random_traces("random");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(events > 100_000 && ooms > 300, "{events} events, {ooms} out-of-memories");
}

#[test]
fn later_versions_end_alike_by_their_own_rules() {
    for folder in ["random/torch2.12", "random/torch2.13", "random/torch2.15"] {
        let (events, ooms, wrong) = random_traces(folder);
        assert!(wrong.is_empty(), "{folder}: {}", wrong.join("\n"));
        assert!(events > 25_000 && ooms > 50, "{folder}: {events} events, {ooms} out-of-memories");
    }
}

#[test]
fn versions_and_limits_are_inferred_from_the_recording_alone() {
    for folder in ["random", "random/torch2.12", "random/torch2.13", "random/torch2.15"] {
        for path in recordings(folder) {
            let recording = read_path(&path).unwrap();
            let device = &recording.devices[0];
            let history = History::of(&recording, device);
            let replayer = Replayer::new(&recording, device, &history, None, None);
            assert_eq!(replayer.reproduction.differences(), 0, "{folder} {}", name(&path));
        }
    }
}

#[test]
fn other_settings_peak_as_the_gpu_measured() {
    let (mut all, mut exact, mut claimed) = (0, 0, 0);
    for row in truth("settings") {
        let recording = read_path(fixtures().join(row["recording"].as_str().unwrap())).unwrap();
        let device = &recording.devices[0];
        let history = History::of(&recording, device);
        let replayer = Replayer::new(&recording, device, &history, Some(TORCH), None);
        let conf = row["conf"].as_str().unwrap();
        let parsed = Conf::parse(conf, TORCH).unwrap();
        let replayed = replayer.under(&parsed, Memory::UNLIMITED, &Options::default());
        let (ours, theirs) = (replayed.usage.reserved.peak, row["reserved"].as_u64().unwrap());
        let case =
            format!("{} with {conf:?}: GPU {theirs}, replay {ours}, {:?}", row["case"], replayed.doubts);
        all += 1;
        exact += u32::from(ours == theirs);
        if replayed.is_exact() {
            claimed += 1;
            assert_eq!(ours, theirs, "{case}");
        }
        // How long frees wait for another stream is decided by the GPU's pace, which no replay knows.
        if replayed.doubts.iter().any(|doubt| matches!(doubt, Doubt::DeferredFrees(_))) {
            continue;
        }
        let error = (ours as f64 / theirs as f64 - 1.0).abs();
        assert!(error < 0.01, "{case}: {:.2} % off", 100.0 * error);
        if let Some(Doubt::Ties { least, most, .. }) =
            replayed.doubts.iter().find(|doubt| matches!(doubt, Doubt::Ties { .. }))
        {
            assert!((*least..=*most).contains(&ours), "{case}");
        }
    }
    println!("{exact} of {all} to the byte; {claimed} claimed to be");
    assert!(all >= 260 && exact * 100 >= all * 95, "{exact} of {all} to the byte");
    assert!(claimed * 100 >= all * 75, "{claimed} of {all} claimed exact");
}

#[test]
fn what_hangs_on_the_drivers_addresses_is_told_from_what_does_not() {
    let mib = |case: &str| {
        let recording = read_path(fixtures().join(format!("h200/{case}.pickle.xz"))).unwrap();
        let device = &recording.devices[0];
        let history = History::of(&recording, device);
        let (least, most) = Replayer::quick(&recording, device, &history, None).reserved_elsewhere(8);
        (least >> 20, history.peak.reserved.bytes >> 20, most >> 20)
    };
    assert_eq!(mib("gpt24-bf16"), (4926, 4926, 4926));
    assert_eq!(mib("compiled"), (712, 712, 744));
    assert_eq!(mib("checkpointed"), (386, 402, 406));
}
