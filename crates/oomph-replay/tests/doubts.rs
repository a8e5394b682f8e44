//! What cannot be exact is said not to be: cases in which it would be easy to claim too much.
#![allow(clippy::unwrap_used, clippy::panic)]

use oomph_replay::allocator::Memory;
use oomph_replay::answer::{Answer, Question, ask};
use oomph_replay::replayer::{Doubt, Replayer};
use oomph_replay::tune::{Fit, tune};
use oomph_settings::version::Version;
use oomph_trace::{Action, Device, History, Recording, read_path};
use std::path::Path;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// A recording of one stream, without stacks.
#[derive(Default)]
struct Events(Device);

impl Events {
    fn add(&mut self, action: Action, address: u64, size: u64) -> &mut Self {
        let events = &mut self.0.events;
        events.action.push(action);
        events.address.push(address);
        events.size.push(size);
        events.stream.push(0);
        events.stack.push(0);
        events.time.push(0);
        self
    }

    fn segment(&mut self, address: u64, size: u64) -> &mut Self {
        self.add(Action::SegmentAlloc, address, size)
    }

    fn alloc(&mut self, address: u64, size: u64) -> &mut Self {
        self.add(Action::Alloc, address, size)
    }

    fn free(&mut self, address: u64, size: u64) -> &mut Self {
        self.add(Action::FreeRequested, address, size).add(Action::FreeCompleted, address, size)
    }

    fn recording(self) -> Recording {
        let mut recording = Recording::default();
        recording.settings.known = true;
        recording.devices.push(Device { streams: vec![0], ..self.0 });
        recording
    }
}

fn answered(recording: &Recording, question: Question) -> Answer {
    ask(recording, &recording.devices[0], question).unwrap()
}

/// Two segments with equal holes, the lower one with two of them: which hole is taken decides whether the other segment
/// is free as a whole when all of it is asked for.
fn holes_in(first: u64, second: u64) -> Recording {
    let mut events = Events::default();
    events.segment(first, 64 * MIB).alloc(first, 64 * MIB);
    events.segment(second, 128 * MIB).alloc(second, 128 * MIB);
    events.free(first, 64 * MIB).free(second, 128 * MIB);
    events.alloc(first, 12 * MIB).alloc(first + 12 * MIB, 2 * MIB).alloc(first + 14 * MIB, 12 * MIB);
    events.alloc(first + 26 * MIB, 2 * MIB).alloc(first + 28 * MIB, 36 * MIB);
    events.alloc(second, 12 * MIB).alloc(second + 12 * MIB, 2 * MIB).alloc(second + 14 * MIB, 114 * MIB);
    events.free(first, 12 * MIB).free(first + 14 * MIB, 12 * MIB).free(second, 12 * MIB);
    events.alloc(first, 12 * MIB);
    events.free(first + 12 * MIB, 2 * MIB).free(first + 26 * MIB, 2 * MIB).free(first + 28 * MIB, 36 * MIB);
    events.free(second + 12 * MIB, 2 * MIB).free(second + 14 * MIB, 114 * MIB);
    events.alloc(second, 128 * MIB);
    events.recording()
}

#[test]
fn a_tie_is_seen_behind_an_equal_block_of_the_same_segment() {
    let recording = holes_in(0x7f00_0000_0000, 0x7f00_4000_0000);
    let as_it_was = answered(&recording, Question::default());
    assert_eq!((as_it_was.address_mismatches, as_it_was.replayed.is_exact()), (0, true));
    let question = Question {
        conf: Some("max_non_split_rounding_mb:64".to_owned()),
        version: Some(Version::new(2, 11)),
        ..Question::default()
    };
    let answer = answered(&recording, question.clone());
    let ties = Doubt::Ties { least: 192 * MIB, most: 320 * MIB, ends_alike: true };
    assert!(answer.replayed.doubts.contains(&ties), "{:?}", answer.replayed.doubts);
    // From 2.13 on addresses decide nothing, and the recording is still known to be of 2.11 or like it.
    let question = Question { version: Some(Version::new(2, 13)), ..question };
    let answer = answered(&recording, question);
    assert_eq!((answer.replayed.usage.reserved.peak, answer.address_mismatches), (192 * MIB, 0));
    assert!(answer.replayed.is_exact(), "{:?}", answer.replayed.doubts);
}

#[test]
fn the_recorded_settings_in_less_memory_are_another_world() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/h200/bert_var16.pickle.xz");
    let recording = read_path(path).unwrap();
    let exact =
        |memory| answered(&recording, Question { memory: Some(memory), ..Question::default() }).replayed;
    // As much as it took, or more: every address is known.
    assert!(exact(Memory::of(8_715_763_712)).is_exact());
    // Less: segments go back, and where the driver puts the next ones is not known.
    let less = exact(Memory::of(6_645_874_688));
    assert!(less.usage.retries > 0);
    assert!(less.doubts.iter().any(|doubt| matches!(doubt, Doubt::Ties { .. })), "{:?}", less.doubts);
}

#[test]
fn what_waits_for_another_stream_is_not_needed() {
    let (first, second) = (0x7f00_0000_0000, 0x7f00_4000_0000);
    let mut events = Events::default();
    events.segment(first, 100 * MIB).alloc(first, 100 * MIB).add(Action::FreeRequested, first, 100 * MIB);
    events.segment(second, 100 * MIB).alloc(second, 100 * MIB);
    events.add(Action::FreeCompleted, first, 100 * MIB).free(second, 100 * MIB);
    let recording = events.recording();
    let answer =
        answered(&recording, Question { memory: Some(Memory::of(110 * MIB)), ..Question::default() });
    assert_eq!(answer.fit, Fit::Yes);
    assert_eq!((answer.lower_bound, answer.least.unwrap().bytes), (100 * MIB, 100 * MIB));
    assert!(answer.replayed.doubts.contains(&Doubt::DeferredFrees(1)));
}

#[test]
fn least_memory_counts_what_a_fraction_leaves_unused() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/h200/mlp64.pickle.xz");
    let recording = read_path(path).unwrap();
    let least = |conf: &str| {
        let question = Question {
            conf: Some(conf.to_owned()),
            version: Some(Version::new(2, 13)),
            ..Question::default()
        };
        answered(&recording, question).least.unwrap().bytes
    };
    let (whole, half) = (least(""), least("per_process_memory_fraction:0.5"));
    assert!((2 * whole..2 * whole + 4 * MIB).contains(&half), "{whole} {half}");
}

#[test]
fn recorded_settings_that_a_version_does_not_know_do_not_keep_it_from_tuning() {
    let mut recording = holes_in(0x7f00_0000_0000, 0x7f00_4000_0000);
    let tuned = |recording: &Recording, extra: &[String]| {
        let device = &recording.devices[0];
        let history = History::of(recording, device);
        let replayer = Replayer::new(recording, device, &history, Some(Version::new(2, 5)), None);
        tune(&replayer, None, extra, 0, &|_, _| {})
    };
    for conf in ["per_process_memory_fraction:0.5", "]],nonsense:[", "backend:cudaMallocAsync"] {
        recording.settings.conf = conf.to_owned();
        let trials = tuned(&recording, &[]).unwrap().trials;
        assert!(trials.iter().any(|trial| trial.conf == "expandable_segments:True"), "{conf}");
    }
    // What the user asks for is not passed over.
    assert!(tuned(&recording, &["nonsense:1".to_owned()]).is_err());
}

#[test]
fn settings_at_the_edge_of_64_bits_do_not_wrap() {
    let mut events = Events::default();
    events.segment(0x7f00_0000_0000, 20 * MIB).alloc(0x7f00_0000_0000, 2 * MIB);
    let recording = events.recording();
    let question =
        Question { conf: Some("large_segment_size_mb:17592186044415".to_owned()), ..Question::default() };
    let answer = answered(&recording, Question { memory: Some(Memory::of(1 << 30)), ..question });
    assert_eq!(answer.fit, Fit::No);
    assert!(answer.replayed.usage.reserved.peak <= 1 << 30);
}

#[test]
fn running_out_again_and_again_takes_no_longer_than_reading() {
    // Twenty thousand free pieces that cannot be given back, and a hundred thousand requests that find no room.
    let mut events = Events::default();
    let base = 0x7f00_0000_0000;
    events.segment(base, 800 * MIB);
    for piece in 0..40_000 {
        events.alloc(base + piece * 20_480, 20_000 + (piece % 7));
    }
    for piece in (0..40_000).step_by(2) {
        events.free(base + piece * 20_480, 20_000 + (piece % 7));
    }
    for _ in 0..100_000 {
        events.add(Action::OutOfMemory, 0, 1 << 40);
    }
    let recording = events.recording();
    let began = Instant::now();
    answered(&recording, Question::default());
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}
