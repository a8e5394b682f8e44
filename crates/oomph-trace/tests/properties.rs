//! Lifetimes against a model that knows everything, and readers against damaged files.

#![allow(clippy::unwrap_used, clippy::panic)] // a test fails by panicking

use oomph_settings::rounding::{MIB, SMALL_LIMIT, UNSPLIT_REMAINDER, round_size};
use oomph_trace::{
    Action, Block, BlockState, Device, Events, History, HostSteps, How, Recording, Resident, Segment,
    read_bytes,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A small allocator that places blocks first-fit in its segments with PyTorch's splitting rule, and remembers their true
/// sizes. It is independent of the code under test: it works from what it did, not from events.
#[derive(Default)]
struct Model {
    events: Events,
    /// address → (size, segment is small)
    segments: BTreeMap<u64, (u64, bool)>,
    /// address → (true size, requested)
    blocks: BTreeMap<u64, (u64, u64)>,
    next_segment: u64,
    allocated: u64,
    requested: u64,
    reserved: u64,
    peak: (u64, u64, u64),
    after_each: Vec<u64>,
}

impl Model {
    fn event(&mut self, action: Action, address: u64, size: u64) {
        self.events.action.push(action);
        self.events.address.push(address);
        self.events.size.push(size);
        self.events.stream.push(0);
        self.events.stack.push(0);
        self.events.time.push(self.events.action.len() as i64);
        self.peak.0 = self.peak.0.max(self.allocated);
        self.peak.1 = self.peak.1.max(self.requested);
        self.peak.2 = self.peak.2.max(self.reserved);
        self.after_each.push(self.allocated);
    }

    /// The free ranges of a segment.
    fn holes(&self, start: u64, size: u64) -> Vec<(u64, u64)> {
        let mut holes = Vec::new();
        let mut position = start;
        for (&address, &(length, _)) in self.blocks.range(start..start + size) {
            if address > position {
                holes.push((position, address - position));
            }
            position = address + length;
        }
        if position < start + size {
            holes.push((position, start + size - position));
        }
        holes
    }

    fn alloc(&mut self, requested: u64) {
        let rounded = round_size(requested, &[0; 16]);
        let small = rounded <= SMALL_LIMIT;
        let hole = (self.segments.iter())
            .filter(|(_, (_, is_small))| *is_small == small)
            .flat_map(|(&start, &(size, _))| self.holes(start, size))
            .find(|&(_, length)| length >= rounded);
        let (address, length) = hole.unwrap_or_else(|| {
            let size = oomph_settings::rounding::segment_size(rounded);
            let start = 0x7000_0000_0000 + self.next_segment;
            self.next_segment += size + 64 * MIB;
            self.segments.insert(start, (size, small));
            self.reserved += size;
            self.event(Action::SegmentAlloc, start, size);
            (start, size)
        });
        let remainder = length - rounded;
        let split = if small { remainder >= 512 } else { remainder > UNSPLIT_REMAINDER };
        let size = if split { rounded } else { length };
        self.blocks.insert(address, (size, requested));
        self.allocated += size;
        self.requested += requested;
        self.event(Action::Alloc, address, requested);
    }

    fn free(&mut self, pick: usize) {
        let Some((&address, &(size, requested))) = self.blocks.iter().nth(pick % self.blocks.len().max(1))
        else {
            return;
        };
        self.allocated -= size;
        self.event(Action::FreeRequested, address, requested);
        self.requested -= requested;
        self.blocks.remove(&address);
        self.event(Action::FreeCompleted, address, requested);
    }

    fn empty_cache(&mut self) {
        let free: Vec<u64> = (self.segments.iter())
            .filter(|&(&start, &(size, _))| self.blocks.range(start..start + size).next().is_none())
            .map(|(&start, _)| start)
            .collect();
        for start in free {
            let (size, _) = self.segments.remove(&start).unwrap();
            self.reserved -= size;
            self.event(Action::SegmentFree, start, size);
        }
    }

    /// The recording, without its first `forgotten` events, as a ring buffer leaves it.
    fn recording(&self, forgotten: usize) -> Recording {
        let mut device = Device { streams: vec![0], has_final_state: true, ..Device::default() };
        for (&start, &(size, small)) in &self.segments {
            let first = device.blocks.len();
            let mut position = start;
            let mut push = |address: u64, size: u64, requested: u64, state: BlockState| {
                device.blocks.push(Block { address, size, requested, state, stack: 0 });
            };
            for (&address, &(length, requested)) in self.blocks.range(start..start + size) {
                if address > position {
                    push(position, address - position, 0, BlockState::Free);
                }
                push(address, length, requested, BlockState::Allocated);
                position = address + length;
            }
            if position < start + size {
                push(position, start + size - position, 0, BlockState::Free);
            }
            let blocks = first..device.blocks.len();
            device.segments.push(Segment { address: start, size, small, blocks, ..Segment::default() });
        }
        let cut = |column: &[u64]| column[forgotten..].to_vec();
        device.events = Events {
            action: self.events.action[forgotten..].to_vec(),
            address: cut(&self.events.address),
            size: cut(&self.events.size),
            stream: self.events.stream[forgotten..].to_vec(),
            stack: self.events.stack[forgotten..].to_vec(),
            time: self.events.time[forgotten..].to_vec(),
            ..Events::default()
        };
        Recording { devices: vec![device], ..Recording::default() }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Alloc(u64),
    Free(usize),
    EmptyCache,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![1u64..2000, 1u64..2 * MIB, MIB..30 * MIB];
    let step = prop_oneof![
        6 => size.prop_map(Step::Alloc),
        4 => any::<usize>().prop_map(Step::Free),
        1 => Just(Step::EmptyCache),
    ];
    prop::collection::vec(step, 1..120)
}

fn run(steps: &[Step]) -> Model {
    let mut model = Model::default();
    for step in steps {
        match *step {
            Step::Alloc(size) => model.alloc(size),
            Step::Free(pick) => model.free(pick),
            Step::EmptyCache => model.empty_cache(),
        }
    }
    model
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_whole_recording_gives_the_true_sizes(steps in steps()) {
        let model = run(&steps);
        let recording = model.recording(0);
        let history = History::of(&recording, &recording.devices[0]);
        prop_assert_eq!(history.contradictions, 0);
        prop_assert_eq!(history.mismatches, 0);
        prop_assert_eq!(
            (history.peak.allocated.bytes, history.peak.requested.bytes, history.peak.reserved.bytes),
            model.peak
        );
        let all = &history.allocations;
        prop_assert_eq!(all.most_at_once(0..all.len(), |index| all.requested(index)), model.peak.1);
        for (row, &allocated) in model.after_each.iter().enumerate() {
            prop_assert_eq!(history.allocated_at(row as u32 + 1), allocated);
        }
        let alive: u64 = history.alive_at(model.events.len() as u32).iter().map(|&i| history.allocations.size(i as usize)).sum();
        prop_assert_eq!(alive, model.allocated);
        let reserved: u64 = history.reserved_at(model.events.len() as u32).iter().map(|r| r.size).sum();
        prop_assert_eq!(reserved, model.reserved);
    }

    #[test]
    fn a_forgotten_beginning_is_rebuilt_from_the_end(steps in steps(), share in 0.0f64..1.0) {
        let model = run(&steps);
        let forgotten = (model.events.len() as f64 * share) as usize;
        let recording = model.recording(forgotten);
        let history = History::of(&recording, &recording.devices[0]);
        prop_assert_eq!(history.contradictions, 0);
        // Reserved is exact; requested too; allocated may lack only what is said.
        let reserved: u64 = history.reserved_at(0).iter().map(|r| r.size).sum();
        let before: u64 = (0..forgotten).map(|row| match model.events.action[row] {
            Action::SegmentAlloc => model.events.size[row] as i64,
            Action::SegmentFree => -(model.events.size[row] as i64),
            _ => 0,
        }).sum::<i64>() as u64;
        prop_assert_eq!(reserved, before);
        prop_assert_eq!(history.end.requested, model.requested);
        for (row, &allocated) in model.after_each[forgotten..].iter().enumerate() {
            let found = history.allocated_at(row as u32 + 1);
            prop_assert!(found <= allocated && allocated <= found + history.uncertainty, "{} {} {}", found, allocated, history.uncertainty);
        }
    }

    #[test]
    fn a_damaged_snapshot_is_read_or_refused(at in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/shapes/protocol4.pickle");
        let mut bytes = std::fs::read(path).unwrap();
        for (index, value) in at {
            let index = index.index(bytes.len());
            bytes[index] = value;
        }
        if let Ok(recording) = read_bytes(&bytes) {
            for device in &recording.devices {
                History::of(&recording, device);
            }
        }
    }

    /// Chunks that are well-formed outside and anything inside: the sums are right, so all of it is decoded.
    #[test]
    fn hostile_chunks_of_the_own_format_are_read_or_refused(
        chunks in prop::collection::vec((0u8..15, prop::collection::vec(any::<u8>(), 0..200), any::<bool>()), 0..12),
    ) {
        let mut file = oomph_trace::format::MAGIC.to_vec();
        file.extend_from_slice(&[1, 0, 0, 0]);
        for (kind, content, lies) in chunks {
            let packed = zstd::encode_all(&content[..], 1).unwrap();
            let raw = if lies { 1 << 30 } else { content.len() as u32 };
            file.push(kind);
            file.extend_from_slice(&raw.to_le_bytes());
            file.extend_from_slice(&(packed.len() as u32).to_le_bytes());
            file.extend_from_slice(&crc32fast::hash(&packed).to_le_bytes());
            file.extend_from_slice(&packed);
        }
        if let Ok(recording) = read_bytes(&file) {
            for device in &recording.devices {
                History::of(&recording, device);
            }
        }
        let _ = oomph_trace::format::Follower::new(std::io::Cursor::new(file)).look(u64::MAX);
    }
}

/// Host memory as it was written, piece by piece: events, what the kernel counted, ends of steps.
#[test]
fn what_is_of_the_host_comes_back() {
    let mut recording = Recording::default();
    let mut writer = oomph_trace::format::Writer::new(Vec::new()).unwrap();
    for step in 1..=3u64 {
        let host = recording.host.get_or_insert_default();
        host.events.action.push(Action::Alloc);
        host.events.block.push(u64::MAX - step);
        host.events.size.push(step << 20);
        host.events.how.push(How::Object);
        host.events.stack.push(0);
        host.events.time.push(-(step as i64));
        host.resident.push(Resident { time: step as i64, anonymous: step << 30, ..Resident::default() });
        host.steps.push(HostSteps { time: i64::MAX, ended: step * 1000 });
        writer.append(&recording).unwrap();
    }
    let written = recording.host.as_ref().unwrap();
    let again = read_bytes(&writer.finish(&recording).unwrap()).unwrap().host.unwrap();
    assert_eq!(
        (again.events.block, again.events.size),
        (written.events.block.clone(), written.events.size.clone())
    );
    assert_eq!(
        (again.events.how, again.events.time),
        (written.events.how.clone(), written.events.time.clone())
    );
    assert_eq!((again.resident, again.steps), (written.resident.clone(), written.steps.clone()));
}

/// A steady loop, recorded by a PyTorch that wrote no times: what a real recording shrinks to at the most.
#[test]
fn steps_that_repeat_exactly_are_not_taken_for_a_bomb() {
    let mut recording = Recording::default();
    let mut device = Device { streams: vec![0], ..Device::default() };
    for row in 0..2_500_000u64 {
        // A step of 8,000 events, whose blocks lie anywhere.
        let block = ((row / 2) % 4_000).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44;
        device.events.action.push(if row % 2 == 0 { Action::Alloc } else { Action::FreeCompleted });
        device.events.address.push(0x7f00_0000_0000 + (block << 9));
        device.events.size.push(512 * (block % 5_000 + 1));
        device.events.stream.push(0);
        device.events.stack.push(0);
        device.events.time.push(0);
    }
    recording.devices.push(device);
    let writer = oomph_trace::format::Writer::new(Vec::new()).unwrap();
    let bytes = writer.finish(&recording).unwrap();
    let again = read_bytes(&bytes).unwrap_or_else(|error| panic!("{} bytes: {error}", bytes.len()));
    assert_eq!(again.devices[0].events.len(), 2_500_000);
}
