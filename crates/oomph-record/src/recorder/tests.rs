//! What a file says is what happened, whether it was written or counted.

use super::*;
use crate::file::Owner;
use crate::python::Frame;
use crate::state::Block;
use oomph_trace::Action as Told;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::Path;

const BASE: u64 = 0x7f00_0000_0000;

fn recorder(path: &Path, most: u64) -> Recorder {
    let path = CString::new(path.to_str().unwrap()).unwrap();
    Recorder::new(File::create(&path, most, Owner::Nobody).unwrap(), Extent::News)
}

fn read(path: &Path) -> oomph_trace::Recording {
    oomph_trace::format::read(&std::fs::read(path).unwrap()[..]).unwrap()
}

/// As the hook does it.
fn report(recorder: &mut Recorder, slot: u64, size: i64, reserved: u64) {
    let address = BASE + slot * (1 << 20);
    if !recorder.follow(0, address, size, reserved) {
        recorder.block(0, address, size, 0, reserved, 0, &Stack::empty());
    }
}

/// The same, from a line of its own.
fn report_from(recorder: &mut Recorder, line: u64, slot: u64, size: i64) {
    let frame = Frame { name: "step".into(), file: "/home/me/train.py".into(), line: line as u32 };
    let mut stack = Stack::empty();
    stack.hash = line + 1;
    recorder.tables.add_stack(stack.hash, vec![frame]);
    let address = BASE + slot * (1 << 20);
    if !recorder.follow(0, address, size, 0) {
        recorder.block(0, address, size, 0, 0, 0, &stack);
    }
}

/// One thing that a program does.
#[derive(Clone, Debug)]
enum Operation {
    Toggle(u64, i64),
    Step,
    Flush,
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        6 => (0u64..6, 1i64..4).prop_map(|(slot, size)| Operation::Toggle(slot, size * 512)),
        1 => Just(Operation::Flush),
    ];
    // A few kinds of steps, again and again, so that patterns are found, left, and taken up again.
    (
        prop::collection::vec(prop::collection::vec(operation, 0..8), 1..4),
        prop::collection::vec(0usize..3, 0..40),
    )
        .prop_map(|(kinds, order)| {
            let mut all = Vec::new();
            for which in order {
                all.extend(kinds[which % kinds.len()].iter().cloned());
                all.push(Operation::Step);
            }
            all
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// What is in the file, with the steps that were counted, is what happened; the blocks that live are those that live.
    #[test]
    fn a_recording_is_what_happened_without_steps_that_repeat(operations in operations()) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.oomph");
        let mut recorder = recorder(&path, 1 << 30);
        recorder.segment(0, BASE, 64 << 20, 0, &Stack::empty());
        let mut live: BTreeMap<u64, i64> = BTreeMap::new();
        let (mut happened, mut steps) = (1u64, 0u64);
        // Every step as the naive model sees it: (events, live blocks afterwards).
        let mut whole: Vec<Vec<(bool, u64)>> = vec![Vec::new()];
        for operation in &operations {
            match operation {
                Operation::Toggle(slot, size) => {
                    let size = match live.remove(slot) {
                        Some(size) => { happened += 2; -size }
                        None => { live.insert(*slot, *size); happened += 1; *size }
                    };
                    whole.last_mut().unwrap().push((size > 0, *slot));
                    report(&mut recorder, *slot, size, 64 << 20);
                }
                Operation::Flush => recorder.flush(),
                Operation::Step => {
                    steps += 1;
                    recorder.step("Optimizer.step#A.step", true);
                    whole.push(Vec::new());
                }
            }
        }
        let counts = recorder.counts();
        prop_assert!(recorder.finish());
        let recording = read(&path);
        prop_assert!(!recording.source.truncated);
        let device = &recording.devices[0];
        prop_assert_eq!(device.events.len() as u64 + recording.repeated.events, happened);
        prop_assert_eq!(counts[2], recording.repeated.steps);
        let ends = recording.annotations.len() as u64;
        prop_assert_eq!(ends + recording.repeated.steps, steps);
        // Replayed, it ends where the program ended.
        let mut blocks: BTreeMap<u64, u64> = BTreeMap::new();
        for row in 0..device.events.len() {
            let slot = (device.events.address[row] - BASE) / (1 << 20);
            match device.events.action[row] {
                Told::Alloc => prop_assert!(blocks.insert(slot, device.events.size[row]).is_none()),
                Told::FreeRequested => prop_assert!(blocks.remove(&slot).is_some()),
                _ => {}
            }
        }
        let ours: BTreeMap<u64, u64> = live.iter().map(|(slot, size)| (*slot, *size as u64)).collect();
        prop_assert_eq!(blocks, ours);
        prop_assert!(device.events.time.is_sorted());
    }

    /// Whether a step is followed or written, lines hold what the blocks hold that are there.
    #[test]
    fn lines_hold_what_is_live_at_every_moment(operations in operations()) {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = recorder(&folder.path().join("a.oomph"), 1 << 30);
        let mut live: BTreeMap<u64, i64> = BTreeMap::new();
        for (number, operation) in operations.iter().enumerate() {
            match operation {
                Operation::Toggle(slot, size) => {
                    let size = live.remove(slot).map_or_else(|| { live.insert(*slot, *size); *size }, |size| -size);
                    report_from(&mut recorder, slot % 3, *slot, size);
                }
                Operation::Flush => recorder.flush(),
                Operation::Step => { recorder.step("Optimizer.step#A.step", true); }
            }
            let mut expected: BTreeMap<String, u64> = BTreeMap::new();
            for (slot, size) in &live {
                *expected.entry(format!("train.py:{} step", slot % 3)).or_default() += *size as u64;
            }
            let status = recorder.status();
            let lines = status.devices.first().map(|device| device.lines.clone()).unwrap_or_default();
            prop_assert!(lines.is_sorted_by(|a, b| a.1 >= b.1));
            prop_assert_eq!(lines.into_iter().collect::<BTreeMap<_, _>>(), expected, "after {} operations", number);
        }
    }

    /// A file that may not grow keeps room for its end: with what is there then, it contradicts nothing.
    #[test]
    fn a_file_that_became_too_large_ends_with_what_is_there(operations in operations(), most in 400u64..4000) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.oomph");
        let mut recorder = recorder(&path, most);
        recorder.segment(0, BASE, 64 << 20, 0, &Stack::empty());
        let mut live: BTreeMap<u64, i64> = BTreeMap::new();
        for operation in &operations {
            match operation {
                Operation::Toggle(slot, size) => {
                    let size = live.remove(slot).map_or_else(|| { live.insert(*slot, *size); *size }, |size| -size);
                    report(&mut recorder, *slot, size, 64 << 20);
                }
                Operation::Flush => recorder.flush(),
                Operation::Step => { recorder.step("Optimizer.step#A.step", true); }
            }
        }
        recorder.out_of_memory(0, 1 << 20, 0, &Stack::empty());
        recorder.finish();
        prop_assert!(std::fs::metadata(&path).unwrap().len() <= most);
        let recording = read(&path);
        let Some(device) = recording.devices.first() else { return Ok(()) };
        let mut blocks: BTreeMap<u64, u64> = BTreeMap::new();
        for row in 0..device.events.len() {
            let slot = device.events.address[row].wrapping_sub(BASE) / (1 << 20);
            match device.events.action[row] {
                Told::Alloc => prop_assert!(blocks.insert(slot, device.events.size[row]).is_none()),
                Told::FreeRequested => prop_assert!(blocks.remove(&slot).is_some()),
                _ => {}
            }
        }
        if device.events.action.contains(&Told::OutOfMemory) {
            let ours: BTreeMap<u64, u64> = live.iter().map(|(slot, size)| (*slot, *size as u64)).collect();
            prop_assert_eq!(blocks, ours);
        }
    }

    /// A writer that is killed leaves something to read, wherever it was cut.
    #[test]
    fn a_file_that_is_cut_anywhere_is_readable(operations in operations(), share in 0.0f64..1.0) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.oomph");
        let mut recorder = recorder(&path, 1 << 30);
        let mut live: BTreeMap<u64, i64> = BTreeMap::new();
        for operation in &operations {
            match operation {
                Operation::Toggle(slot, size) => {
                    let size = live.remove(slot).map_or_else(|| { live.insert(*slot, *size); *size }, |size| -size);
                    report(&mut recorder, *slot, size, 0);
                }
                Operation::Flush => recorder.flush(),
                Operation::Step => { recorder.step("Optimizer.step#A.step", true); }
            }
        }
        recorder.flush();
        let bytes = std::fs::read(&path).unwrap();
        let cut = 12 + ((bytes.len() - 12) as f64 * share) as usize;
        let recording = oomph_trace::format::read(&bytes[..cut]).unwrap();
        prop_assert!(recording.source.truncated);
    }
}

#[test]
fn a_steady_program_is_followed_and_its_steps_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.oomph");
    let mut recorder = recorder(&path, 1 << 30);
    for step in 0..100 {
        for slot in 0..10 {
            report(&mut recorder, slot, 512, 0);
        }
        for slot in 0..10 {
            report(&mut recorder, slot, -512, 0);
        }
        let is_new = recorder.step("Optimizer.step#A.step", true);
        assert_eq!(is_new, step == 0, "step {step}");
    }
    assert_eq!(recorder.counts(), [3000, 2970, 99, 0]);
    assert!(recorder.finish());
    assert_eq!(read(&path).repeated, oomph_trace::Repeated { steps: 99, events: 2970 });
}

/// `loss = …` in a loop: the old one is there until the new one is.
#[test]
fn steps_that_are_alike_by_turns_are_followed_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.oomph");
    let mut recorder = recorder(&path, 1 << 30);
    for step in 0..100 {
        report(&mut recorder, step % 2, 512, 0);
        if step > 0 {
            report(&mut recorder, (step + 1) % 2, -512, 0);
        }
        recorder.step("Optimizer.step#A.step", true);
    }
    assert!(recorder.finish());
    let recording = read(&path);
    assert!(recording.repeated.steps >= 94, "{:?}", recording.repeated);
    assert_eq!(recording.devices[0].events.len() as u64 + recording.repeated.events, 100 + 2 * 99);
}

#[test]
fn a_step_that_leaves_the_pattern_is_written_from_its_begin() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.oomph");
    let mut recorder = recorder(&path, 1 << 30);
    for last in [2, 2, 3] {
        for slot in [0, 1, last] {
            report(&mut recorder, slot, 512, 0);
        }
        for slot in [0, 1, last] {
            report(&mut recorder, slot, -512, 0);
        }
        recorder.step("Optimizer.step#A.step", true);
    }
    assert!(recorder.finish());
    let recording = read(&path);
    assert_eq!((recording.devices[0].events.len(), recording.repeated.steps), (18, 1));
}

#[test]
fn a_file_ends_where_it_may_not_grow() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.oomph");
    let mut recorder = recorder(&path, 4096);
    for slot in 0..10_000 {
        report(&mut recorder, slot, 512, 0);
        if slot % 100 == 0 {
            recorder.flush();
        }
    }
    assert!(!recorder.finish());
    assert!(std::fs::metadata(&path).unwrap().len() <= 4096);
    let recording = read(&path);
    assert!(recording.source.truncated && !recording.devices[0].events.is_empty());
}

#[test]
fn a_free_is_whole_wherever_a_chunk_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.oomph");
    // So small that chunks end after 256 rows.
    let mut recorder = recorder(&path, 64 << 10);
    report(&mut recorder, 9, 512, 0);
    for _ in 0..600 {
        report(&mut recorder, 0, 512, 0);
        report(&mut recorder, 0, -512, 0);
    }
    assert!(recorder.finish());
    let events = &read(&path).devices[0].events;
    assert_eq!((events.count(Told::FreeRequested), events.count(Told::FreeCompleted)), (600, 600));
}

#[test]
fn the_first_censuses_and_the_last_are_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.oomph");
    let mut recorder = recorder(&path, 1 << 30);
    for asked in 0..40 {
        recorder.out_of_memory(0, 512, 0, &Stack::empty());
        recorder.census(format!("{{\"asked\":{asked},\"holders\":[{{\"name\":\"history\"}}]}}").as_bytes());
    }
    let killed: Vec<u64> = read(&path).censuses.iter().map(|census| census.asked).collect();
    assert_eq!(killed, (0..15).collect::<Vec<u64>>());
    assert!(recorder.finish());
    let recording = read(&path);
    let asked: Vec<u64> = recording.censuses.iter().map(|census| census.asked).collect();
    assert_eq!(asked, (0..15).chain([39]).collect::<Vec<u64>>());
    assert_eq!(recording.censuses[15].holders[0].name, "history");
    assert!(!recording.source.truncated && recording.warnings.is_empty());
}

#[test]
fn a_census_for_which_there_is_no_room_costs_no_events() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.oomph");
    let mut recorder = recorder(&path, 64 << 10);
    report(&mut recorder, 0, 512, 0);
    recorder.census(format!("{{\"asked\":1,\"x\":\"{}\"}}", "x".repeat(100 << 10)).as_bytes());
    report(&mut recorder, 1, 512, 0);
    assert!(recorder.finish());
    let recording = read(&path);
    assert_eq!(
        (recording.devices[0].events.len(), recording.censuses.len(), recording.source.truncated),
        (2, 0, false)
    );
}

#[test]
fn a_status_has_what_pytorch_reports_and_what_was_there_before() {
    let folder = tempfile::tempdir().unwrap();
    let mut recorder = recorder(&folder.path().join("a.oomph"), 1 << 30);
    // A device that no other test has: gauges are the process's.
    let device = 9;
    let block = |size, requested, state| Block { size, requested, state };
    let blocks = vec![block(1024, 1000, 1), block(512, 0, 0), block(2048, 2048, 1)];
    let segment = Segment { address: BASE, size: 2 << 20, blocks, ..Segment::default() };
    recorder.begin_with(device, &[segment]);
    recorder.card(device, Card { name: "T4".into(), total: 16 << 30, is_virtual: true });
    let status = recorder.status();
    let here = &status.devices[0];
    assert_eq!((status.steps, here.device, here.allocated, here.peak), (0, device, 3072, 3072));
    assert_eq!((here.reserved, here.last_peak), (2 << 20, None));
    assert_eq!(here.lines, [("before the recording".to_owned(), 3048)]);
    assert!(here.card.as_ref().is_some_and(|card| card.is_virtual && card.name == "T4"));
    for (most, rest) in [(9000, 4000), (7000, 4000)] {
        gauges::set(device, most);
        gauges::set(device, rest);
        recorder.step("Optimizer.step#A.step", true);
    }
    let status = recorder.status();
    let here = &status.devices[0];
    assert_eq!((status.steps, here.allocated, here.peak, here.last_peak), (2, 4000, 9000, Some(7000)));
}

#[test]
fn the_lines_that_hold_most_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let mut recorder = recorder(&folder.path().join("a.oomph"), 1 << 30);
    for line in 1..=20 {
        report_from(&mut recorder, line, line, 512 * (line as i64 * 7 % 20 + 1));
    }
    let largest: Vec<u64> = recorder.status().devices[0].lines.iter().map(|line| line.1 / 512).collect();
    assert_eq!(largest, [20, 19, 18, 17, 16, 15, 14, 13]);
}

#[test]
fn kinds_are_written_once_for_each_block() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.oomph");
    let mut recorder = recorder(&path, 1 << 30);
    report(&mut recorder, 0, 512, 0);
    recorder.kinds(0, &[BASE, BASE, BASE + 7], "parameter");
    recorder.kinds(0, &[BASE], "parameter");
    assert!(recorder.finish());
    let recording = read(&path);
    let events = &recording.devices[0].events;
    assert_eq!(events.action, [Told::Alloc, Told::Annotate]);
    assert_eq!(recording.strings.get(events.category[0].1), "parameter");
}

#[test]
fn a_whole_recording_has_every_step() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.oomph");
    let name = CString::new(path.to_str().unwrap()).unwrap();
    let mut recorder = Recorder::new(File::create(&name, 1 << 30, Owner::Nobody).unwrap(), Extent::Whole);
    for _ in 0..20 {
        report(&mut recorder, 1, 512, 0);
        report(&mut recorder, 1, -512, 0);
        assert!(recorder.step("Optimizer.step#A.step", true));
    }
    assert!(recorder.finish());
    let recording = read(&path);
    assert_eq!(recording.repeated, oomph_trace::Repeated::default());
    assert_eq!((recording.devices[0].events.len(), recording.annotations.len()), (60, 20));
}

#[test]
fn what_a_backward_pass_asks_for_has_the_line_of_its_forward() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.oomph");
    let mut recorder = recorder(&path, 1 << 30);
    let frame = |line| Frame { name: "forward".into(), file: "/home/me/train.py".into(), line };
    for (number, line) in [(7, 3), (7, 4), (8, 5)] {
        let mut stack = Stack::empty();
        stack.hash = u64::from(line);
        recorder.tables.add_stack(stack.hash, vec![frame(line)]);
        recorder.forward(number, || stack);
    }
    recorder.backward(7, "MulBackward0");
    report(&mut recorder, 1, 512, 0);
    // Not where it is freed, nor of a node that nobody saw.
    report(&mut recorder, 1, -512, 0);
    recorder.backward(9, "AddBackward0");
    report(&mut recorder, 2, 512, 0);
    assert!(recorder.finish());
    let recording = read(&path);
    let lines_of = |row: usize| -> Vec<(String, String, u32)> {
        let frames = recording.stacks.get(recording.devices[0].events.stack[row]).iter();
        let text = |id| recording.strings.get(id).to_owned();
        frames
            .map(|frame| recording.stacks.frame(*frame))
            .map(|frame| (text(frame.name), text(frame.file), frame.line))
            .collect()
    };
    let line = |name: &str, file: &str, line| (name.to_owned(), file.to_owned(), line);
    assert_eq!(lines_of(0), [line("MulBackward0", "<autograd>", 0), line("forward", "/home/me/train.py", 3)]);
    assert!((1..4).all(|row| lines_of(row).is_empty()));
}

#[test]
fn what_is_mapped_page_by_page_is_one_event() {
    const PAGE: u64 = 2 << 20;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.oomph");
    let mut recorder = recorder(&path, 1 << 30);
    for page in 0..4 {
        recorder.mapped(0, BASE + page * PAGE, PAGE, 0, &Stack::empty());
    }
    // What is reserved in all is known already: nothing is worked out of it.
    recorder.block(0, BASE, 512, 0, 4 * PAGE, 0, &Stack::empty());
    for page in [1, 2, 7] {
        recorder.unmapped(BASE + page * PAGE, PAGE, &Stack::empty());
    }
    recorder.block(0, BASE, -512, 0, 2 * PAGE, 0, &Stack::empty());
    recorder.mapped(0, BASE + PAGE, PAGE, 0, &Stack::empty());
    assert!(recorder.finish());
    let recording = read(&path);
    let events = &recording.devices[0].events;
    let rows = |action: Told| -> Vec<(u64, u64)> {
        let rows = (0..events.len()).filter(|&row| events.action[row] == action);
        rows.map(|row| ((events.address[row] - BASE) / PAGE, events.size[row] / PAGE)).collect()
    };
    assert_eq!(rows(Told::SegmentMap), [(0, 4), (1, 1)]);
    assert_eq!(rows(Told::SegmentUnmap), [(1, 2)]);
}
