//! Reading: chunk by chunk, as far as they are whole.

use super::bytes::In;
use super::{FormatError, HEADER, Kind, LARGEST_CHUNK, MAGIC, VERSION};
use crate::budget::{Budget, Counted, Form, Meter};
use crate::census::{Census, MOST_CENSUSES};
use crate::intern::{Frame, FrameId};
use crate::recording::{
    Action, Annotation, Block, BlockState, Device, Format, HostSteps, How, MOST_DEVICES, Recording, Repeated,
    Resident, Segment, SettingValue, Source, Stage, Warning,
};
use std::collections::BTreeMap;
use std::io::{self, Read};

/// Reads a recording. A file that was cut off gives what is whole, with a warning.
pub fn read(source: impl Read) -> Result<Recording, FormatError> {
    let meter = Meter::default();
    read_within(Counted::new(source, meter.clone()), Budget::new(meter, Form::Recording))
}

/// The same, within what the file may take.
pub(crate) fn read_within(mut source: impl Read, budget: Budget) -> Result<Recording, FormatError> {
    begins(&mut source)?;
    let mut reading = Reading::new(budget);
    let mut complete = false;
    loop {
        match next_chunk(&mut source, &mut reading.budget) {
            Ok(Next::Chunk(kind, content)) => match Kind::from_number(kind) {
                // Names are found when the process has ended.
                Some(Kind::Names) if complete => drop(reading.take(Kind::Names, &content)),
                _ if complete => {}
                Some(Kind::End) => complete = true,
                Some(kind) => reading.take(kind, &content)?,
                None => reading.unknown += 1,
            },
            Ok(Next::Ended) => break,
            // Behind the end may be anything.
            Err(_) if complete => break,
            Err(error) => return Err(error),
        }
    }
    Ok(reading.finish(complete))
}

/// Reads how a file begins.
pub(super) fn begins(source: &mut impl Read) -> Result<(), FormatError> {
    let mut header = [0u8; HEADER];
    source.read_exact(&mut header).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => FormatError::Magic,
        _ => FormatError::Io(error),
    })?;
    if !header.starts_with(MAGIC) {
        return Err(FormatError::Magic);
    }
    let version = u16::from_le_bytes([header[8], header[9]]);
    if version != VERSION {
        return Err(FormatError::Version(version));
    }
    let flags = u16::from_le_bytes([header[10], header[11]]);
    if flags != 0 {
        return Err(FormatError::Flags(flags));
    }
    Ok(())
}

/// What an event takes, with room to grow.
const EVENT: usize = 48;

pub(super) enum Next {
    Chunk(u8, Vec<u8>),
    Ended,
}

/// The next chunk, if it is whole: a short one, or one whose sum is wrong, is where a writer was killed.
pub(super) fn next_chunk(source: &mut impl Read, budget: &mut Budget) -> Result<Next, FormatError> {
    let mut header = [0u8; 13];
    let mut packed = Vec::new();
    if !fill(source, &mut header)? {
        return Ok(Next::Ended);
    }
    let number = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let (raw, length, crc) = (number(1) as usize, number(5), number(9));
    if raw > LARGEST_CHUNK || length as usize > LARGEST_CHUNK + (LARGEST_CHUNK >> 4) {
        return Err(FormatError::Damaged("a chunk claims to be larger than any is"));
    }
    source.take(u64::from(length)).read_to_end(&mut packed)?;
    if packed.len() < length as usize || crc32fast::hash(&packed) != crc {
        return Ok(Next::Ended);
    }
    if !budget.unpack(raw) {
        return Err(FormatError::Bomb);
    }
    let mut content = Vec::new();
    let mut unpacked = zstd::stream::read::Decoder::new(&packed[..])?.take(raw as u64 + 1);
    unpacked.read_to_end(&mut content).map_err(|_| FormatError::Damaged("a chunk does not unpack"))?;
    if content.len() != raw {
        return Err(FormatError::Damaged("a chunk unpacks to another size than it says"));
    }
    Ok(Next::Chunk(header[0], content))
}

fn fill(source: &mut impl Read, into: &mut [u8]) -> io::Result<bool> {
    match source.read_exact(into) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// What chunks have given so far.
pub(super) struct Reading {
    pub(super) recording: Recording,
    devices: BTreeMap<u32, Device>,
    unknown: u64,
    pub(super) budget: Budget,
}

impl Reading {
    pub(super) fn new(budget: Budget) -> Self {
        Self { recording: Recording::default(), devices: BTreeMap::new(), unknown: 0, budget }
    }

    /// So many elements of so many bytes are about to be stored, with room to grow.
    fn charge(&mut self, count: usize, bytes: usize, what: &'static str) -> Result<(), FormatError> {
        if self.budget.charge(count.saturating_mul(bytes), what) {
            return Ok(());
        }
        Err(self
            .budget
            .refused()
            .map_or(FormatError::Damaged("it takes too much memory"), FormatError::Swells))
    }

    pub(super) fn take(&mut self, kind: Kind, content: &[u8]) -> Result<(), FormatError> {
        let input = In(content);
        match kind {
            Kind::Strings => self.strings(input),
            Kind::Frames => self.frames(input),
            Kind::Stacks => self.stacks(input),
            Kind::Device => self.describe(input),
            Kind::Events => self.events(input),
            Kind::State => self.state(input),
            Kind::Settings => self.settings(input.0),
            Kind::Annotations => self.annotations(input),
            Kind::Repeats => self.repeats(input),
            Kind::Census => {
                self.charge(input.0.len(), 8, "who held memory")?;
                self.census(input.0);
                Ok(())
            }
            Kind::HostEvents => self.host_events(input),
            Kind::Resident => self.resident(input),
            Kind::Names => self.names(input),
            Kind::HostSteps => self.host_steps(input),
            Kind::End => Ok(()),
        }
    }

    fn strings(&mut self, mut input: In) -> Result<(), FormatError> {
        let count = input.count()?;
        self.charge(count, 24, "texts")?;
        self.charge(input.0.len(), 2, "texts")?;
        for _ in 0..count {
            let before = self.recording.strings.len();
            self.recording.strings.intern(input.text()?);
            if self.recording.strings.len() == before {
                return Err(FormatError::Damaged("a string is in the table twice"));
            }
        }
        Ok(())
    }

    fn frames(&mut self, mut input: In) -> Result<(), FormatError> {
        let count = input.count()?;
        self.charge(count, 64, "frames")?;
        for _ in 0..count {
            let frame = Frame { name: input.number()?, file: input.number()?, line: input.number()? };
            self.recording.stacks.push_frame(frame);
        }
        Ok(())
    }

    /// Of frames of C, whose functions were addresses.
    fn names(&mut self, mut input: In) -> Result<(), FormatError> {
        let count = input.count()?;
        self.charge(count, 64, "names")?;
        self.charge(input.0.len(), 2, "names")?;
        for _ in 0..count {
            let frame = input.number()?;
            let name = self.recording.strings.intern(input.text()?);
            self.recording.stacks.rename(frame, name);
        }
        Ok(())
    }

    fn stacks(&mut self, mut input: In) -> Result<(), FormatError> {
        let mut frames: Vec<FrameId> = Vec::new();
        let count = input.count()?;
        self.charge(count, 32, "stacks")?;
        self.charge(input.0.len(), 6, "stacks")?;
        for _ in 0..count {
            frames.clear();
            for _ in 0..input.count()? {
                frames.push(input.number()?);
            }
            let before = self.recording.stacks.len();
            self.recording.stacks.intern(&frames);
            if self.recording.stacks.len() == before {
                return Err(FormatError::Damaged("a stack is in the table twice"));
            }
        }
        Ok(())
    }

    fn device(&mut self, ordinal: u32) -> Result<&mut Device, FormatError> {
        if self.devices.len() == MOST_DEVICES && !self.devices.contains_key(&ordinal) {
            return Err(FormatError::Damaged("it has more devices than any machine"));
        }
        Ok(self.devices.entry(ordinal).or_insert_with(|| Device { ordinal, ..Device::default() }))
    }

    fn describe(&mut self, mut input: In) -> Result<(), FormatError> {
        let ordinal = input.number()?;
        let flags = input.byte()?;
        let max_entries = input.varint()?;
        let count = input.count()?;
        self.charge(count, 8, "streams")?;
        let device = self.device(ordinal)?;
        device.overflowed = (flags & 2 != 0).then_some(flags & 4 != 0);
        device.max_entries = (flags & 8 != 0).then_some(max_entries);
        device.streams = (0..count).map(|_| input.zigzag()).collect::<Result<_, _>>()?;
        Ok(())
    }

    fn events(&mut self, mut input: In) -> Result<(), FormatError> {
        let ordinal = input.number()?;
        let count = input.count()?;
        self.charge(count, EVENT, "events")?;
        // Put back at the end: what is rare is charged when the columns are behind us.
        let mut events = std::mem::take(&mut self.device(ordinal)?.events);
        let base = events.len() as u32;
        for &number in input.bytes(count)? {
            let action = Action::from_number(number).ok_or(FormatError::Damaged("an unknown action"))?;
            events.action.push(action);
        }
        let mut before = 0i64;
        for _ in 0..count {
            before = before.wrapping_add(input.zigzag()?);
            events.address.push(before as u64);
        }
        for _ in 0..count {
            events.size.push(input.varint()?.min(oomph_settings::rounding::LARGEST_SIZE));
        }
        for column in [&mut events.stream, &mut events.stack] {
            for _ in 0..count {
                column.push(input.number()?);
            }
        }
        before = 0;
        for _ in 0..count {
            before = before.wrapping_add(input.zigzag()?);
            events.time.push(before);
        }
        let rows = base..base + count as u32;
        self.charge(input.0.len(), 12, "events")?;
        sparse(&mut input, &mut events.pool, rows.clone(), |input| Ok((input.varint()?, input.varint()?)))?;
        for column in
            [&mut events.compile_context, &mut events.metadata, &mut events.category, &mut events.forward]
        {
            sparse(&mut input, column, rows.clone(), |input| input.number())?;
        }
        self.device(ordinal)?.events = events;
        Ok(())
    }

    fn host_events(&mut self, mut input: In) -> Result<(), FormatError> {
        let count = input.count()?;
        self.charge(count, EVENT, "events")?;
        let events = &mut self.recording.host.get_or_insert_default().events;
        for &number in input.bytes(count)? {
            match Action::from_number(number) {
                Some(action @ (Action::Alloc | Action::FreeCompleted)) => events.action.push(action),
                _ => return Err(FormatError::Damaged("an unknown action")),
            }
        }
        let mut before = 0i64;
        for _ in 0..count {
            before = before.wrapping_add(input.zigzag()?);
            events.block.push(before as u64);
        }
        for _ in 0..count {
            events.size.push(input.varint()?.min(oomph_settings::rounding::LARGEST_SIZE));
        }
        for &number in input.bytes(count)? {
            events
                .how
                .push(How::from_number(number).ok_or(FormatError::Damaged("an unknown kind of memory"))?);
        }
        for _ in 0..count {
            events.stack.push(input.number()?);
        }
        before = 0;
        for _ in 0..count {
            before = before.wrapping_add(input.zigzag()?);
            events.time.push(before);
        }
        Ok(())
    }

    fn resident(&mut self, mut input: In) -> Result<(), FormatError> {
        self.charge(1, 2 * size_of::<Resident>(), "what the kernel counted")?;
        let time = input.zigzag()?;
        let mut bytes = || -> Result<u64, FormatError> {
            Ok(input.varint()?.min(oomph_settings::rounding::LARGEST_SIZE))
        };
        let (anonymous, of_files, shared, swapped, most) = (bytes()?, bytes()?, bytes()?, bytes()?, bytes()?);
        let resident = Resident { time, anonymous, of_files, shared, swapped, most };
        self.recording.host.get_or_insert_default().resident.push(resident);
        Ok(())
    }

    fn host_steps(&mut self, mut input: In) -> Result<(), FormatError> {
        self.charge(1, 2 * size_of::<HostSteps>(), "steps")?;
        let steps = HostSteps { time: input.zigzag()?, ended: input.varint()? };
        self.recording.host.get_or_insert_default().steps.push(steps);
        Ok(())
    }

    fn state(&mut self, mut input: In) -> Result<(), FormatError> {
        let ordinal = input.number()?;
        let count = input.count()?;
        self.charge(count, 160, "segments")?;
        // Four bytes a block at the least.
        self.charge(input.0.len() / 4, 64, "blocks")?;
        let device = self.device(ordinal)?;
        device.has_final_state = true;
        for _ in 0..count {
            let mut segment = Segment {
                address: input.varint()?,
                size: input.varint()?.min(oomph_settings::rounding::LARGEST_SIZE),
                stream: input.number()?,
                ..Segment::default()
            };
            let flags = input.byte()?;
            (segment.small, segment.expandable) = (flags & 1 != 0, flags & 2 != 0);
            segment.pool = (input.varint()?, input.varint()?);
            segment.stack = input.number()?;
            let start = device.blocks.len();
            let mut address = segment.address;
            for _ in 0..input.count()? {
                let block = Block {
                    address,
                    size: input.varint()?.min(oomph_settings::rounding::LARGEST_SIZE),
                    requested: input.varint()?.min(oomph_settings::rounding::LARGEST_SIZE),
                    state: match input.byte()? {
                        0 => BlockState::Free,
                        1 => BlockState::Allocated,
                        2 => BlockState::PendingFree,
                        _ => return Err(FormatError::Damaged("an unknown block state")),
                    },
                    stack: input.number()?,
                };
                address = address.wrapping_add(block.size);
                device.blocks.push(block);
            }
            segment.blocks = start..device.blocks.len();
            device.segments.push(segment);
        }
        Ok(())
    }

    fn settings(&mut self, json: &[u8]) -> Result<(), FormatError> {
        // A value of JSON in memory, from a byte and a comma.
        self.charge(json.len(), 64, "settings")?;
        let value: serde_json::Value =
            serde_json::from_slice(json).map_err(|_| FormatError::Damaged("the settings are not JSON"))?;
        let settings = &mut self.recording.settings;
        settings.known = value["known"].as_bool().unwrap_or(false);
        for (name, value) in value["settings"].as_object().into_iter().flatten() {
            let value = match value {
                serde_json::Value::Bool(value) => SettingValue::Bool(*value),
                serde_json::Value::String(text) => SettingValue::Text(text.clone()),
                serde_json::Value::Number(number) => match number.as_i64() {
                    Some(whole) => SettingValue::Int(whole),
                    None => SettingValue::Float(number.as_f64().unwrap_or(0.0)),
                },
                serde_json::Value::Object(table) => SettingValue::Table(
                    table.iter().filter_map(|(key, value)| Some((key.clone(), value.as_i64()?))).collect(),
                ),
                _ => continue,
            };
            settings.set(name, value);
        }
        Ok(())
    }

    fn annotations(&mut self, mut input: In) -> Result<(), FormatError> {
        let mut time = 0i64;
        let count = input.count()?;
        self.charge(count, 32, "annotations")?;
        for _ in 0..count {
            let device = input.number()?;
            time = time.wrapping_add(input.zigzag()?);
            let name = input.number()?;
            let stage = match input.byte()? {
                0 => Stage::Start,
                1 => Stage::End,
                _ => Stage::Mark,
            };
            self.recording.annotations.push(Annotation { device, time, name, stage });
        }
        Ok(())
    }

    fn repeats(&mut self, mut input: In) -> Result<(), FormatError> {
        self.recording.repeated = Repeated { steps: input.varint()?, events: input.varint()? };
        Ok(())
    }

    /// What cannot be read of it is passed over: the events say the same, without names.
    fn census(&mut self, json: &[u8]) {
        let censuses = &mut self.recording.censuses;
        match Census::parse(json) {
            Some(census) if censuses.len() < MOST_CENSUSES => censuses.push(census),
            Some(census) => censuses[MOST_CENSUSES - 1] = census,
            None => self.recording.warnings.push(Warning {
                code: "bad-census",
                message: "passed over what the recorder says of who held memory: it cannot be read"
                    .to_owned(),
            }),
        }
    }

    fn finish(self, complete: bool) -> Recording {
        let mut recording = self.recording;
        recording.source = Source { format: Format::Oomph, truncated: !complete };
        recording.devices = self.devices.into_values().collect();
        if !complete {
            recording.warnings.push(Warning {
                code: "truncated",
                message: "the recording was not finished: its writer was killed, the disk was full, or \
             --recording-limit reached, or the file was cut off; what could be read is shown"
                    .to_owned(),
            });
        }
        if self.unknown > 0 {
            recording.warnings.push(Warning {
                code: "unknown-chunks",
                message: format!("{} parts were written by a newer oomph and were passed over", self.unknown),
            });
        }
        recording
    }
}

fn sparse<T>(
    input: &mut In,
    column: &mut Vec<(u32, T)>,
    rows: std::ops::Range<u32>,
    mut value: impl FnMut(&mut In) -> Result<T, FormatError>,
) -> Result<(), FormatError> {
    let mut row = rows.start;
    for _ in 0..input.count()? {
        row = row
            .checked_add(input.number()?)
            .filter(|row| rows.contains(row))
            .ok_or(FormatError::Damaged("a value belongs to an event that is not there"))?;
        column.push((row, value(input)?));
    }
    Ok(())
}
