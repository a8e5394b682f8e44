//! The shape of a PyTorch snapshot, passed to an encoder one value after the other.

use crate::intern::StackId;
use crate::recording::{Action, BlockState, Device, PoolId, Recording, SettingValue, Stage};
use std::io;

/// What an encoder must be able to write. Lengths come before the content.
pub(super) trait Encoder {
    fn list(&mut self, length: usize) -> io::Result<()>;
    fn end_list(&mut self, length: usize) -> io::Result<()>;
    fn dict(&mut self, length: usize) -> io::Result<()>;
    fn end_dict(&mut self, length: usize) -> io::Result<()>;
    fn key(&mut self, key: &'static str) -> io::Result<()>;
    fn setting_key(&mut self, key: &str) -> io::Result<()>;
    fn text(&mut self, text: &str) -> io::Result<()>;
    fn int(&mut self, value: i128) -> io::Result<()>;
    fn float(&mut self, value: f64) -> io::Result<()>;
    fn bool(&mut self, value: bool) -> io::Result<()>;
    fn pair(&mut self, pair: PoolId) -> io::Result<()>;
    /// The frames of a stack; an encoder that can refers back to one it has written.
    fn stack(&mut self, recording: &Recording, stack: StackId) -> io::Result<()>;
    /// Between the elements of a list or the pairs of a dictionary.
    fn next(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(super) fn encode(recording: &Recording, out: &mut impl Encoder) -> io::Result<()> {
    let knows_overflow = recording.devices.iter().any(|device| device.overflowed.is_some());
    let knows_most = recording.devices.iter().any(|device| device.max_entries.is_some());
    let keys = 4 + usize::from(knows_overflow) + usize::from(knows_most);
    out.dict(keys)?;
    out.key("segments")?;
    segments(recording, out)?;
    out.key("device_traces")?;
    // A list for every ordinal up to the highest: no machine has more than this.
    let devices = recording.devices.last().map_or(0, |device| device.ordinal as usize + 1).min(1 << 12);
    out.list(devices)?;
    for ordinal in 0..devices {
        match recording.devices.iter().find(|device| device.ordinal as usize == ordinal) {
            Some(device) => trace(recording, device, out)?,
            None => {
                out.list(0)?;
                out.end_list(0)?;
            }
        }
        out.next()?;
    }
    out.end_list(devices)?;
    out.key("allocator_settings")?;
    settings(recording, out)?;
    out.key("external_annotations")?;
    annotations(recording, out)?;
    let device =
        |ordinal: usize| recording.devices.iter().find(move |device| device.ordinal as usize == ordinal);
    if knows_overflow {
        out.key("trace_alloc_overflowed")?;
        out.list(devices)?;
        for ordinal in 0..devices {
            out.bool(device(ordinal).is_some_and(|device| device.overflowed == Some(true)))?;
            out.next()?;
        }
        out.end_list(devices)?;
    }
    if knows_most {
        out.key("trace_alloc_max_entries")?;
        out.list(devices)?;
        for ordinal in 0..devices {
            out.int(i128::from(device(ordinal).and_then(|device| device.max_entries).unwrap_or(0)))?;
            out.next()?;
        }
        out.end_list(devices)?;
    }
    out.end_dict(keys)
}

fn segments(recording: &Recording, out: &mut impl Encoder) -> io::Result<()> {
    let count = recording.devices.iter().map(|device| device.segments.len()).sum();
    out.list(count)?;
    for device in &recording.devices {
        for segment in &device.segments {
            let blocks = &device.blocks[segment.blocks.clone()];
            let sum = |states: &[BlockState]| -> u64 {
                blocks.iter().filter(|block| states.contains(&block.state)).map(|block| block.size).sum()
            };
            let active = [BlockState::Allocated, BlockState::PendingFree];
            let requested: u64 = blocks
                .iter()
                .filter(|block| active.contains(&block.state))
                .map(|block| block.requested)
                .sum();
            out.dict(12)?;
            for (key, value) in [
                ("device", u64::from(device.ordinal)),
                ("address", segment.address),
                ("total_size", segment.size),
                ("allocated_size", sum(&active[..1])),
                ("active_size", sum(&active)),
                ("requested_size", requested),
            ] {
                out.key(key)?;
                out.int(i128::from(value))?;
                out.next()?;
            }
            out.key("stream")?;
            out.int(stream(device, segment.stream))?;
            out.next()?;
            out.key("segment_type")?;
            out.text(if segment.small { "small" } else { "large" })?;
            out.next()?;
            out.key("segment_pool_id")?;
            out.pair(segment.pool)?;
            out.next()?;
            out.key("is_expandable")?;
            out.bool(segment.expandable)?;
            out.next()?;
            out.key("frames")?;
            out.stack(recording, segment.stack)?;
            out.next()?;
            out.key("blocks")?;
            out.list(blocks.len())?;
            for block in blocks {
                out.dict(5)?;
                for (key, value) in
                    [("address", block.address), ("size", block.size), ("requested_size", block.requested)]
                {
                    out.key(key)?;
                    out.int(i128::from(value))?;
                    out.next()?;
                }
                out.key("state")?;
                out.text(match block.state {
                    BlockState::Free => "inactive",
                    BlockState::Allocated => "active_allocated",
                    BlockState::PendingFree => "active_pending_free",
                })?;
                out.next()?;
                out.key("frames")?;
                out.stack(recording, block.stack)?;
                out.next()?;
                out.end_dict(5)?;
                out.next()?;
            }
            out.end_list(blocks.len())?;
            out.next()?;
            out.end_dict(12)?;
            out.next()?;
        }
    }
    out.end_list(count)
}

fn stream(device: &Device, id: u32) -> i128 {
    i128::from(device.streams.get(id as usize).copied().unwrap_or(0))
}

fn trace(recording: &Recording, device: &Device, out: &mut impl Encoder) -> io::Result<()> {
    let events = &device.events;
    let has_times = events.has_times();
    let mut sparse = Sparse::default();
    out.list(events.len())?;
    for row in 0..events.len() {
        let action = events.action[row];
        let at = row as u32;
        let pool = take(&events.pool, &mut sparse.pool, at);
        let context = take(&events.compile_context, &mut sparse.context, at);
        let metadata = take(&events.metadata, &mut sparse.metadata, at);
        let category = take(&events.category, &mut sparse.category, at);
        let forward = take(&events.forward, &mut sparse.forward, at);
        let has_stack = events.stack[row] != crate::intern::NO_STACK || action != Action::Snapshot;
        let length = 6
            + usize::from(has_times)
            + usize::from(has_stack)
            + usize::from(pool.is_some())
            + usize::from(category.is_some())
            + usize::from(forward.is_some());
        out.dict(length)?;
        out.key("action")?;
        out.text(action.name())?;
        out.next()?;
        out.key(if action == Action::OutOfMemory { "device_free" } else { "addr" })?;
        out.int(i128::from(events.address[row]))?;
        out.next()?;
        out.key("size")?;
        out.int(i128::from(events.size[row]))?;
        out.next()?;
        out.key("stream")?;
        out.int(stream(device, events.stream[row]))?;
        out.next()?;
        if has_times {
            out.key("time_us")?;
            out.int(i128::from(events.time[row]))?;
            out.next()?;
        }
        out.key("compile_context")?;
        out.text(context.map_or("N/A", |id| recording.strings.get(id)))?;
        out.next()?;
        out.key("user_metadata")?;
        out.text(metadata.map_or("", |id| recording.strings.get(id)))?;
        out.next()?;
        if let Some(pool) = pool {
            out.key("pool_id")?;
            out.pair(pool)?;
            out.next()?;
        }
        if let Some(id) = category {
            out.key("category")?;
            out.text(recording.strings.get(id))?;
            out.next()?;
        }
        if let Some(id) = forward {
            out.key("forward_frames")?;
            out.list(1)?;
            out.text(recording.strings.get(id))?;
            out.next()?;
            out.end_list(1)?;
            out.next()?;
        }
        if has_stack {
            out.key("frames")?;
            out.stack(recording, events.stack[row])?;
            out.next()?;
        }
        out.end_dict(length)?;
        out.next()?;
    }
    out.end_list(events.len())
}

/// Positions in the sparse columns.
#[derive(Default)]
struct Sparse {
    forward: usize,
    pool: usize,
    context: usize,
    metadata: usize,
    category: usize,
}

fn take<T: Copy>(column: &[(u32, T)], position: &mut usize, row: u32) -> Option<T> {
    match column.get(*position) {
        Some(&(at, value)) if at == row => {
            *position += 1;
            Some(value)
        }
        _ => None,
    }
}

fn settings(recording: &Recording, out: &mut impl Encoder) -> io::Result<()> {
    let all = &recording.settings.all;
    out.dict(all.len())?;
    for (key, value) in all {
        out.setting_key(key)?;
        match value {
            SettingValue::Bool(value) => out.bool(*value)?,
            SettingValue::Int(value) => out.int(i128::from(*value))?,
            SettingValue::Float(value) => out.float(*value)?,
            SettingValue::Text(value) => out.text(value)?,
            SettingValue::Table(table) => {
                out.dict(table.len())?;
                for (key, value) in table {
                    out.setting_key(key)?;
                    out.int(i128::from(*value))?;
                    out.next()?;
                }
                out.end_dict(table.len())?;
            }
        }
        out.next()?;
    }
    out.end_dict(all.len())
}

fn annotations(recording: &Recording, out: &mut impl Encoder) -> io::Result<()> {
    out.list(recording.annotations.len())?;
    for annotation in &recording.annotations {
        let stage = match annotation.stage {
            Stage::Start => Some("START"),
            Stage::End => Some("END"),
            Stage::Mark => None,
        };
        let length = 3 + usize::from(stage.is_some());
        out.dict(length)?;
        if let Some(stage) = stage {
            out.key("stage")?;
            out.text(stage)?;
            out.next()?;
        }
        out.key("name")?;
        out.text(recording.strings.get(annotation.name))?;
        out.next()?;
        out.key("device")?;
        out.int(i128::from(annotation.device))?;
        out.next()?;
        out.key("time_us")?;
        out.int(i128::from(annotation.time))?;
        out.next()?;
        out.end_dict(length)?;
        out.next()?;
    }
    out.end_list(recording.annotations.len())
}
