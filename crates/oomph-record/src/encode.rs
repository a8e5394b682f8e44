//! Contents of chunks: what is known, in the numbers of the `.oomph` format.
//!
//! Boundary: bytes out; where they go is [`crate::output`]'s.

use crate::event::{Annotation, Event};
use crate::file::Content;
use crate::ledger::Device;
use crate::state::Segment;

/// A device and its streams.
pub(crate) fn description(device: &Device) -> Content {
    let mut content = Content::default();
    content.varint(u64::from(device.ordinal));
    // A final state or none yet, and nothing was overwritten.
    content.byte(u8::from(device.is_final) | 2);
    content.varint(0);
    content.varint(device.streams.len() as u64);
    for stream in &device.streams {
        content.zigzag(*stream);
    }
    content
}

/// Events of a device, in columns.
pub(crate) fn events(device: u32, events: &[Event]) -> Content {
    let mut content = Content::default();
    content.varint(u64::from(device));
    content.varint(events.len() as u64);
    for event in events {
        content.byte(event.action as u8);
    }
    let mut before = 0i64;
    for event in events {
        content.zigzag((event.address as i64).wrapping_sub(before));
        before = event.address as i64;
    }
    for event in events {
        content.varint(event.size);
    }
    for event in events {
        content.varint(u64::from(event.stream));
    }
    for event in events {
        content.varint(u64::from(event.stack));
    }
    let mut before = 0i64;
    for event in events {
        content.zigzag(event.time.wrapping_sub(before));
        before = event.time;
    }
    // Pools, compiled regions, notes: not known here. Then categories, then forward tracebacks.
    for _ in 0..3 {
        content.varint(0);
    }
    content.varint(events.iter().filter(|event| event.category != 0).count() as u64);
    let mut before = 0;
    for (row, event) in events.iter().enumerate().filter(|(_, event)| event.category != 0) {
        content.varint((row - before) as u64);
        content.varint(u64::from(event.category));
        before = row;
    }
    content.varint(0);
    content
}

/// Names at moments.
pub(crate) fn annotations(annotations: &[Annotation]) -> Content {
    let mut content = Content::default();
    content.varint(annotations.len() as u64);
    let mut before = 0;
    for annotation in annotations {
        content.varint(u64::from(annotation.device));
        content.zigzag(annotation.time.wrapping_sub(before));
        content.varint(u64::from(annotation.name));
        content.byte(annotation.stage as u8);
        before = annotation.time;
    }
    content
}

/// How many steps were the same as one before, and how many events they were.
pub(crate) fn repeats(steps: u64, events: u64) -> Content {
    let mut content = Content::default();
    content.varint(steps);
    content.varint(events);
    content
}

/// Segments and blocks as PyTorch describes them, with streams and stacks as they are known here.
pub(crate) fn state(device: &Device, segments: &[Segment]) -> Content {
    let mut content = Content::default();
    content.varint(u64::from(device.ordinal));
    content.varint(segments.len() as u64);
    for segment in segments {
        let held = device.segments.range(..=segment.address).next_back();
        let (stream, stack) = held.map(|(_, held)| (held.stream, held.stack)).unwrap_or_default();
        for number in [segment.address, segment.size, u64::from(stream)] {
            content.varint(number);
        }
        content.byte(segment.flags);
        for number in [segment.pool.0, segment.pool.1, u64::from(stack), segment.blocks.len() as u64] {
            content.varint(number);
        }
        let mut address = segment.address;
        for block in &segment.blocks {
            let live = device.live.get(&address);
            // What waits for another stream has been recorded as free: when it completes is unknown.
            let state = if block.state == 2 && live.is_none() { 0 } else { block.state };
            content.varint(block.size);
            content.varint(block.requested);
            content.byte(state);
            content.varint(u64::from(live.filter(|_| state != 0).map_or(0, |live| live.stack)));
            address = address.wrapping_add(block.size);
        }
    }
    content
}
