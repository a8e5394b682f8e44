//! Writing: what is new since the last call becomes chunks at the end of the file.

use super::bytes::Out;
use super::{FormatError, Kind, LARGEST_CHUNK, MAGIC, VERSION};
use crate::intern::{FrameId, StringId};
use crate::recording::{Device, Host, Recording, SettingValue};
use std::io::Write;

/// Rows of an events chunk.
const ROWS: usize = 64 << 10;
/// Bytes of text after which a chunk is closed.
const TEXT: usize = 4 << 20;
const LEVEL: i32 = 3;

/// Writes a recording piece by piece.
///
/// [`append`](Self::append) may be called again and again as a recording grows; every call leaves a readable
/// file. [`finish`](Self::finish) adds the final state.
pub struct Writer<W: Write> {
    out: W,
    strings: usize,
    frames: usize,
    stacks: usize,
    annotations: usize,
    /// Events written so far, by device.
    events: Vec<(u32, usize)>,
    /// Of the host: events, what the kernel counted, and ends of steps.
    host: (usize, usize, usize),
    packed: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Begins a file.
    pub fn new(mut out: W) -> Result<Self, FormatError> {
        out.write_all(MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        out.write_all(&0u16.to_le_bytes())?;
        Ok(Self {
            out,
            strings: 1,
            frames: 0,
            stacks: 1,
            annotations: 0,
            events: Vec::new(),
            host: (0, 0, 0),
            packed: Vec::new(),
        })
    }

    /// Writes what the recording has more than at the last call.
    pub fn append(&mut self, recording: &Recording) -> Result<(), FormatError> {
        self.append_strings(recording)?;
        self.append_stacks(recording)?;
        for device in &recording.devices {
            self.append_events(device)?;
        }
        if let Some(host) = &recording.host {
            self.append_host(host)?;
        }
        self.append_annotations(recording)?;
        self.out.flush()?;
        Ok(())
    }

    /// Writes the rest, the settings and the final state, and says that the recording is complete.
    pub fn finish(mut self, recording: &Recording) -> Result<W, FormatError> {
        self.append(recording)?;
        self.chunk(Kind::Settings, &Out(settings_json(recording)))?;
        if recording.repeated.steps > 0 {
            let mut out = Out::default();
            out.varint(recording.repeated.steps);
            out.varint(recording.repeated.events);
            self.chunk(Kind::Repeats, &out)?;
        }
        for census in &recording.censuses {
            let json = serde_json::to_vec(census).map_err(std::io::Error::from)?;
            self.chunk(Kind::Census, &Out(json))?;
        }
        for device in &recording.devices {
            self.describe(device)?;
            if device.has_final_state {
                self.state(device)?;
            }
        }
        if !recording.source.truncated {
            self.chunk(Kind::End, &Out::default())?;
        }
        self.out.flush()?;
        Ok(self.out)
    }

    fn chunk(&mut self, kind: Kind, content: &Out) -> Result<(), FormatError> {
        write_chunk(&mut self.out, &mut self.packed, kind, content)
    }

    /// A chunk of `count` things that were put into `body`.
    fn counted(&mut self, kind: Kind, count: usize, body: &Out) -> Result<(), FormatError> {
        self.chunk(kind, &with_count(count, body))
    }

    fn append_strings(&mut self, recording: &Recording) -> Result<(), FormatError> {
        while self.strings < recording.strings.len() {
            let (mut body, mut count) = (Out::default(), 0);
            while self.strings < recording.strings.len() && body.0.len() < TEXT {
                body.text(recording.strings.get(self.strings as StringId));
                self.strings += 1;
                count += 1;
            }
            self.counted(Kind::Strings, count, &body)?;
        }
        Ok(())
    }

    fn append_stacks(&mut self, recording: &Recording) -> Result<(), FormatError> {
        let stacks = &recording.stacks;
        while self.frames < stacks.frames().len() {
            let (mut body, mut count) = (Out::default(), 0);
            for frame in stacks.frames().iter().skip(self.frames).take(ROWS) {
                body.varint(u64::from(frame.name));
                body.varint(u64::from(frame.file));
                body.varint(u64::from(frame.line));
                count += 1;
            }
            self.frames += count;
            self.counted(Kind::Frames, count, &body)?;
        }
        while self.stacks < stacks.len() {
            let (mut body, mut count) = (Out::default(), 0);
            while self.stacks < stacks.len() && body.0.len() < TEXT {
                let frames = stacks.get(self.stacks as u32);
                body.varint(frames.len() as u64);
                for &frame in frames {
                    body.varint(u64::from(frame));
                }
                self.stacks += 1;
                count += 1;
            }
            self.counted(Kind::Stacks, count, &body)?;
        }
        Ok(())
    }

    fn append_events(&mut self, device: &Device) -> Result<(), FormatError> {
        let index = match self.events.iter().position(|&(ordinal, _)| ordinal == device.ordinal) {
            Some(index) => index,
            None => {
                self.events.push((device.ordinal, 0));
                self.events.len() - 1
            }
        };
        let events = &device.events;
        if self.events[index].1 < events.len() {
            self.describe(device)?; // streams that the new events refer to
        }
        while self.events[index].1 < events.len() {
            let start = self.events[index].1;
            let end = (start + ROWS).min(events.len());
            let mut out = Out::default();
            out.varint(u64::from(device.ordinal));
            out.varint((end - start) as u64);
            for &action in &events.action[start..end] {
                out.byte(action as u8);
            }
            differences(&mut out, events.address[start..end].iter().map(|&a| a as i64));
            for &size in &events.size[start..end] {
                out.varint(size);
            }
            for column in [&events.stream, &events.stack] {
                for &id in &column[start..end] {
                    out.varint(u64::from(id));
                }
            }
            differences(&mut out, events.time[start..end].iter().copied());
            sparse(&mut out, &events.pool, start, end, |out, (first, second)| {
                out.varint(first);
                out.varint(second);
            });
            for column in [&events.compile_context, &events.metadata, &events.category, &events.forward] {
                sparse(&mut out, column, start, end, |out, id| out.varint(u64::from(id)));
            }
            self.chunk(Kind::Events, &out)?;
            self.events[index].1 = end;
        }
        Ok(())
    }

    fn append_host(&mut self, host: &Host) -> Result<(), FormatError> {
        let events = &host.events;
        while self.host.0 < events.len() {
            let rows = self.host.0..(self.host.0 + ROWS).min(events.len());
            let mut out = Out::default();
            out.varint(rows.len() as u64);
            for &action in &events.action[rows.clone()] {
                out.byte(action as u8);
            }
            differences(&mut out, events.block[rows.clone()].iter().map(|&block| block as i64));
            for &size in &events.size[rows.clone()] {
                out.varint(size);
            }
            for &how in &events.how[rows.clone()] {
                out.byte(how as u8);
            }
            for &stack in &events.stack[rows.clone()] {
                out.varint(u64::from(stack));
            }
            differences(&mut out, events.time[rows.clone()].iter().copied());
            self.chunk(Kind::HostEvents, &out)?;
            self.host.0 = rows.end;
        }
        for resident in host.resident.iter().skip(self.host.1) {
            let mut out = Out::default();
            out.zigzag(resident.time);
            for bytes in
                [resident.anonymous, resident.of_files, resident.shared, resident.swapped, resident.most]
            {
                out.varint(bytes);
            }
            self.chunk(Kind::Resident, &out)?;
        }
        self.host.1 = host.resident.len();
        for steps in host.steps.iter().skip(self.host.2) {
            let mut out = Out::default();
            out.zigzag(steps.time);
            out.varint(steps.ended);
            self.chunk(Kind::HostSteps, &out)?;
        }
        self.host.2 = host.steps.len();
        Ok(())
    }

    fn append_annotations(&mut self, recording: &Recording) -> Result<(), FormatError> {
        while self.annotations < recording.annotations.len() {
            let mut body = Out::default();
            let (mut count, mut before) = (0, 0i64);
            for annotation in recording.annotations.iter().skip(self.annotations).take(ROWS) {
                body.varint(u64::from(annotation.device));
                body.zigzag(annotation.time.wrapping_sub(before));
                body.varint(u64::from(annotation.name));
                body.byte(annotation.stage as u8);
                before = annotation.time;
                count += 1;
            }
            self.annotations += count;
            self.counted(Kind::Annotations, count, &body)?;
        }
        Ok(())
    }

    fn describe(&mut self, device: &Device) -> Result<(), FormatError> {
        let mut out = Out::default();
        out.varint(u64::from(device.ordinal));
        let flags = u8::from(device.has_final_state)
            | u8::from(device.overflowed.is_some()) << 1
            | u8::from(device.overflowed == Some(true)) << 2
            | u8::from(device.max_entries.is_some()) << 3;
        out.byte(flags);
        out.varint(device.max_entries.unwrap_or(0));
        out.varint(device.streams.len() as u64);
        for &stream in &device.streams {
            out.zigzag(stream);
        }
        self.chunk(Kind::Device, &out)
    }

    fn state(&mut self, device: &Device) -> Result<(), FormatError> {
        let mut segments = device.segments.iter().peekable();
        // An empty state is written too: no segments is not the same as not known.
        loop {
            let (mut body, mut count) = (Out::default(), 0);
            while body.0.len() < TEXT
                && let Some(segment) = segments.next()
            {
                body.varint(segment.address);
                body.varint(segment.size);
                body.varint(u64::from(segment.stream));
                body.byte(u8::from(segment.small) | u8::from(segment.expandable) << 1);
                body.varint(segment.pool.0);
                body.varint(segment.pool.1);
                body.varint(u64::from(segment.stack));
                body.varint(segment.blocks.len() as u64);
                for block in &device.blocks[segment.blocks.clone()] {
                    body.varint(block.size);
                    body.varint(block.requested);
                    body.byte(block.state as u8);
                    body.varint(u64::from(block.stack));
                }
                count += 1;
            }
            let mut content = Out::default();
            content.varint(u64::from(device.ordinal));
            content.varint(count);
            content.0.extend_from_slice(&body.0);
            self.chunk(Kind::State, &content)?;
            if segments.peek().is_none() {
                return Ok(());
            }
        }
    }
}

fn differences(out: &mut Out, values: impl Iterator<Item = i64>) {
    let mut before = 0i64;
    for value in values {
        out.zigzag(value.wrapping_sub(before));
        before = value;
    }
}

fn sparse<T: Copy>(
    out: &mut Out,
    column: &[(u32, T)],
    start: usize,
    end: usize,
    mut put: impl FnMut(&mut Out, T),
) {
    let from = column.partition_point(|&(row, _)| (row as usize) < start);
    let to = column.partition_point(|&(row, _)| (row as usize) < end);
    out.varint((to - from) as u64);
    let mut before = start as u32;
    for &(row, value) in &column[from..to] {
        out.varint(u64::from(row - before));
        before = row;
        put(out, value);
    }
}

fn settings_json(recording: &Recording) -> Vec<u8> {
    let object: serde_json::Map<String, serde_json::Value> =
        recording.settings.all.iter().map(|(name, value)| (name.clone(), value.to_json())).collect();
    let known = recording.settings.known;
    serde_json::to_vec(&serde_json::json!({ "known": known, "settings": object })).unwrap_or_default()
}

impl SettingValue {
    pub(crate) fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Bool(value) => (*value).into(),
            Self::Int(value) => (*value).into(),
            Self::Float(value) => (*value).into(),
            Self::Text(value) => value.as_str().into(),
            Self::Table(table) => {
                table.iter().map(|(key, value)| (key.clone(), serde_json::Value::from(*value))).collect()
            }
        }
    }
}

/// Writes names of frames, for a file that is a recording already.
pub(super) fn write_names(out: &mut impl Write, names: &[(FrameId, String)]) -> Result<(), FormatError> {
    let (mut body, mut count, mut packed) = (Out::default(), 0, Vec::new());
    for (frame, name) in names {
        body.varint(u64::from(*frame));
        body.text(name);
        count += 1;
        if body.0.len() >= TEXT {
            write_chunk(out, &mut packed, Kind::Names, &with_count(count, &body))?;
            (body, count) = (Out::default(), 0);
        }
    }
    match count {
        0 => Ok(()),
        _ => write_chunk(out, &mut packed, Kind::Names, &with_count(count, &body)),
    }
}

fn with_count(count: usize, body: &Out) -> Out {
    let mut content = Out::default();
    content.varint(count as u64);
    content.0.extend_from_slice(&body.0);
    content
}

fn write_chunk(
    out: &mut impl Write,
    packed: &mut Vec<u8>,
    kind: Kind,
    content: &Out,
) -> Result<(), FormatError> {
    if content.0.len() > LARGEST_CHUNK {
        // One stack or one segment of tens of MiB: nothing real, and no reader would take it.
        return Err(FormatError::TooLarge);
    }
    packed.clear();
    zstd::stream::copy_encode(&content.0[..], &mut *packed, LEVEL)?;
    let mut header = vec![kind as u8];
    for number in [content.0.len() as u32, packed.len() as u32, crc32fast::hash(packed)] {
        header.extend_from_slice(&number.to_le_bytes());
    }
    out.write_all(&header)?;
    out.write_all(packed)?;
    Ok(())
}
