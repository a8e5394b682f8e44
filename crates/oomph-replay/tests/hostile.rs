//! Whatever a recording says, a replay ends, without a panic, and says what it made of it. (Tests check for overflow.)
#![allow(clippy::unwrap_used, clippy::panic)]

use oomph_replay::allocator::Memory;
use oomph_replay::answer::{Model, Question, ask, replayable};
use oomph_replay::replayer::{Doubt, Replayer};
use oomph_replay::tune::tune;
use oomph_settings::version::Version;
use oomph_trace::{Action, Device, History, Recording, read_bytes};
use std::path::Path;
use std::time::Duration;

/// A small generator, so that a failure can be repeated by its number.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.roll(choices.len() as u64) as usize]
    }
}

const SETTINGS: [&str; 7] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "roundup_power2_divisions:2",
    "garbage_collection_threshold:0.1,per_process_memory_fraction:0.5",
    "expandable_segments:True,max_split_size_mb:20,large_segment_size_mb:11",
    "max_split_size_mb:-1,max_non_split_rounding_mb:-1",
];

/// Events that no program makes: overlapping blocks, frees of nothing, sizes and addresses at the edge of 64 bits.
fn nonsense(dice: &mut Dice) -> Recording {
    let actions: Vec<Action> = Action::ALL.to_vec();
    // Readers let nothing larger than 16 TiB through.
    let sizes = [0, 1, 511, 512, 1 << 20, (1 << 20) + 1, 10 << 20, 20 << 20, 1 << 30, 1 << 44];
    let addresses = [0, 512, 1 << 21, 0x7000_0000_0000, 0x7000_0010_0000, u64::MAX - 511, u64::MAX];
    let mut device =
        Device { streams: vec![0, -1, i64::MAX], has_final_state: dice.roll(2) == 0, ..Device::default() };
    for row in 0..dice.roll(120) {
        let events = &mut device.events;
        events.action.push(dice.one_of(&actions));
        events.address.push(if dice.roll(4) == 0 { dice.one_of(&addresses) } else { dice.roll(64) << 21 });
        events.size.push(if dice.roll(3) == 0 { dice.one_of(&sizes) } else { dice.roll(64 << 20) });
        events.stream.push(dice.roll(3) as u32);
        events.stack.push(0);
        events.time.push(0);
        if dice.roll(10) == 0 {
            events.pool.push((row as u32, (dice.roll(2), dice.roll(3))));
        }
    }
    let mut recording = Recording::default();
    recording.settings.known = dice.roll(2) == 0;
    recording.settings.expandable_segments = dice.roll(3) == 0;
    recording.settings.max_split_size =
        (dice.roll(3) == 0).then(|| dice.one_of(&[0, 1, 1 << 20, 1 << 30, u64::MAX]));
    recording.settings.roundup_power2_divisions = [dice.one_of(&[0, 1, 2, 16, 1 << 31]); 16];
    recording.settings.garbage_collection_threshold = dice.one_of(&[0.0, 0.5, 1e300, -1.0, f64::NAN]);
    recording.devices.push(device);
    recording
}

fn question(dice: &mut Dice) -> Question {
    let sizes = [1, 512, 1 << 21, 1 << 30, u64::MAX];
    let free = dice.one_of(&sizes);
    let memory =
        Memory { total: dice.one_of(&sizes), free, limit: (dice.roll(2) == 0).then(|| dice.one_of(&sizes)) };
    Question {
        conf: (dice.roll(2) == 0).then(|| dice.one_of(&SETTINGS).to_owned()),
        memory: (dice.roll(2) == 0).then_some(memory),
        version: (dice.roll(2) == 0)
            .then(|| dice.one_of(&[Version::OLDEST, Version::new(2, 12), Version::NEWEST])),
        model: dice.one_of(&[Model::Torch, Model::Torch, Model::Bfc, Model::Packed]),
        fatal: None,
        patience: Duration::from_millis(1),
    }
}

#[test]
fn nonsense_is_replayed_without_a_panic() {
    let mut answered = 0;
    let seeds = std::env::var("OOMPH_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(4000);
    for seed in 0..seeds {
        let mut dice = Dice(seed);
        let recording = nonsense(&mut dice);
        let question = question(&mut dice);
        if let Ok(answer) = ask(&recording, &recording.devices[0], question) {
            answered += 1;
            let usage = &answer.replayed.usage;
            assert!(usage.allocated.now <= usage.allocated.peak, "seed {seed}");
        }
        if seed % 50 == 0 && replayable(&recording.devices[0]).is_ok() {
            let device = &recording.devices[0];
            let history = History::of(&recording, device);
            let replayer = Replayer::new(&recording, device, &history, None, None);
            let _ = tune(&replayer, None, &[], 50, &|_, _| {});
        }
    }
    assert!(answered > 2000, "{answered}");
}

#[test]
fn files_of_strangers_are_replayed_without_a_panic() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut replayed = 0;
    for folder in ["attacks", "fixtures/shapes"] {
        for entry in std::fs::read_dir(root.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let Ok(bytes) = std::fs::read(&path) else { continue };
            let Ok(recording) = read_bytes(&bytes) else { continue };
            for device in &recording.devices {
                for model in [Model::Torch, Model::Bfc] {
                    let conf = (model == Model::Torch).then(|| "expandable_segments:True".to_owned());
                    let question = Question { model, conf, ..Question::default() };
                    replayed += u32::from(ask(&recording, device, question).is_ok());
                }
            }
        }
    }
    assert!(replayed > 50, "{replayed}");
}

#[test]
fn frees_of_unknown_blocks_are_counted_and_said() {
    let mut recording = Recording::default();
    recording.source.truncated = true; // so that the final state is not believed
    let mut device = Device { streams: vec![0], ..Device::default() };
    for (action, address, size) in [
        (Action::SegmentAlloc, 0x7000_0000_0000, 2 << 20),
        (Action::Alloc, 0x7000_0000_0000, 1000),
        (Action::Alloc, 0x7000_0000_0000, 2000), // on top of a live one
        (Action::FreeRequested, 0x7000_0000_0000, 2000),
        (Action::FreeCompleted, 0x7000_0000_0000, 2000),
    ] {
        device.events.action.push(action);
        device.events.address.push(address);
        device.events.size.push(size);
        device.events.stream.push(0);
        device.events.stack.push(0);
        device.events.time.push(0);
    }
    recording.devices.push(device);
    let answer = ask(&recording, &recording.devices[0], Question::default()).unwrap();
    assert!(!answer.replayed.is_exact());
    let doubts = &answer.replayed.doubts;
    assert!(doubts.iter().any(|doubt| matches!(doubt, Doubt::Contradictions(1))), "{doubts:?}");
    assert!(doubts.iter().any(|doubt| matches!(doubt, Doubt::UnknownBlocks(1))), "{doubts:?}");
    assert!(doubts.contains(&Doubt::Incomplete) && doubts.contains(&Doubt::SettingsUnknown), "{doubts:?}");
}
