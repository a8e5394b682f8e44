//! JSON. Stacks are written out each time: JSON cannot refer back.

use super::snapshot::{Encoder, encode};
use crate::intern::StackId;
use crate::recording::{PoolId, Recording};
use hashbrown::HashMap;
use std::io::{self, Write};

/// Writes a snapshot as JSON, in the shape that PyTorch's pickle has.
pub fn write_json(recording: &Recording, out: impl Write) -> io::Result<()> {
    let mut writer = JsonWriter { out, comma: false };
    encode(recording, &mut writer)?;
    writer.out.write_all(b"\n")?;
    writer.out.flush()
}

/// Bytes that stacks alone take in JSON. A stack that a million events share is stored once in a recording, and a million times there.
pub fn stacks_in_json(recording: &Recording) -> io::Result<u64> {
    let mut sizes: HashMap<StackId, u64> = HashMap::new();
    let mut sum = 0u64;
    for device in &recording.devices {
        let events = device.events.stack.iter().copied();
        let segments = device.segments.iter().map(|segment| segment.stack);
        let blocks = device.blocks.iter().map(|block| block.stack);
        for stack in events.chain(segments).chain(blocks) {
            let size = match sizes.get(&stack) {
                Some(&size) => size,
                None => {
                    let mut writer = JsonWriter { out: Counter(0), comma: false };
                    writer.stack(recording, stack)?;
                    sizes.insert(stack, writer.out.0);
                    writer.out.0
                }
            };
            sum = sum.saturating_add(size);
        }
    }
    Ok(sum)
}

/// Counts, and keeps nothing.
struct Counter(u64);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct JsonWriter<W> {
    out: W,
    /// Whether something comes before, in the same container.
    comma: bool,
}

impl<W: Write> JsonWriter<W> {
    fn open(&mut self, bracket: &[u8]) -> io::Result<()> {
        self.separate()?;
        self.comma = false;
        self.out.write_all(bracket)
    }

    fn close(&mut self, bracket: &[u8]) -> io::Result<()> {
        self.comma = true;
        self.out.write_all(bracket)
    }

    fn separate(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.comma, true) { self.out.write_all(b",") } else { Ok(()) }
    }

    fn scalar(&mut self, value: &impl serde::Serialize) -> io::Result<()> {
        self.separate()?;
        serde_json::to_writer(&mut self.out, value).map_err(io::Error::from)
    }
}

impl<W: Write> Encoder for JsonWriter<W> {
    fn list(&mut self, _: usize) -> io::Result<()> {
        self.open(b"[")
    }

    fn end_list(&mut self, _: usize) -> io::Result<()> {
        self.close(b"]")
    }

    fn dict(&mut self, _: usize) -> io::Result<()> {
        self.open(b"{")
    }

    fn end_dict(&mut self, _: usize) -> io::Result<()> {
        self.close(b"}")
    }

    fn key(&mut self, key: &'static str) -> io::Result<()> {
        self.setting_key(key)
    }

    fn setting_key(&mut self, key: &str) -> io::Result<()> {
        self.scalar(&key)?;
        self.comma = false;
        self.out.write_all(b":")
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        self.scalar(&text)
    }

    fn int(&mut self, value: i128) -> io::Result<()> {
        self.separate()?;
        write!(self.out, "{value}")
    }

    fn float(&mut self, value: f64) -> io::Result<()> {
        self.scalar(&value)
    }

    fn bool(&mut self, value: bool) -> io::Result<()> {
        self.scalar(&value)
    }

    fn pair(&mut self, pair: PoolId) -> io::Result<()> {
        self.scalar(&[pair.0, pair.1])
    }

    fn stack(&mut self, recording: &Recording, stack: StackId) -> io::Result<()> {
        self.open(b"[")?;
        for &frame in recording.stacks.get(stack) {
            let frame = recording.stacks.frame(frame);
            self.open(b"{")?;
            self.key("name")?;
            self.text(recording.strings.get(frame.name))?;
            self.key("filename")?;
            self.text(recording.strings.get(frame.file))?;
            self.key("line")?;
            self.int(i128::from(frame.line))?;
            self.close(b"}")?;
        }
        self.close(b"]")
    }
}
