//! Pickle protocol 4, with stacks and common texts written once.

use super::snapshot::{Encoder, encode};
use crate::intern::{FrameId, StackId, StringId};
use crate::recording::{PoolId, Recording};
use hashbrown::HashMap;
use std::io::{self, Write};

/// Writes a snapshot that `pickle.load`, `torch.cuda._memory_viz` and the memory_viz page read.
pub fn write_pickle(recording: &Recording, out: impl Write) -> io::Result<()> {
    let mut pickler = Pickler {
        out,
        memo: 0,
        keys: HashMap::new(),
        texts: HashMap::new(),
        strings: HashMap::new(),
        frames: HashMap::new(),
        stacks: HashMap::new(),
        open: Vec::new(),
    };
    pickler.out.write_all(&[0x80, 4])?;
    encode(recording, &mut pickler)?;
    pickler.out.write_all(b".")?;
    pickler.out.flush()
}

/// Containers are closed in batches of this many, as Python does: readers keep a batch on their stack.
const BATCH: usize = 1000;

struct Pickler<W> {
    out: W,
    memo: u32,
    keys: HashMap<&'static str, u32>,
    texts: HashMap<String, u32>,
    strings: HashMap<StringId, u32>,
    frames: HashMap<FrameId, u32>,
    stacks: HashMap<StackId, u32>,
    /// Elements written since the batch of the innermost open container began, and which kind it is.
    open: Vec<(usize, u8)>,
}

impl<W: Write> Pickler<W> {
    fn get(&mut self, slot: u32) -> io::Result<()> {
        match u8::try_from(slot) {
            Ok(slot) => self.out.write_all(&[b'h', slot]),
            Err(_) => {
                self.out.write_all(b"j")?;
                self.out.write_all(&slot.to_le_bytes())
            }
        }
    }

    fn memoize(&mut self) -> io::Result<u32> {
        self.out.write_all(&[0x94])?;
        self.memo += 1;
        Ok(self.memo - 1)
    }

    fn raw_text(&mut self, text: &str) -> io::Result<u32> {
        match u8::try_from(text.len()) {
            Ok(length) => self.out.write_all(&[0x8c, length])?,
            Err(_) => {
                self.out.write_all(b"X")?;
                let length = u32::try_from(text.len()).map_err(io::Error::other)?;
                self.out.write_all(&length.to_le_bytes())?;
            }
        }
        self.out.write_all(text.as_bytes())?;
        self.memoize()
    }

    fn string(&mut self, recording: &Recording, id: StringId) -> io::Result<()> {
        if let Some(&slot) = self.strings.get(&id) {
            return self.get(slot);
        }
        let slot = self.raw_text(recording.strings.get(id))?;
        self.strings.insert(id, slot);
        Ok(())
    }

    fn begin(&mut self, opcode: u8, length: usize, closing: u8) -> io::Result<()> {
        self.out.write_all(&[opcode])?;
        self.memoize()?;
        if length > 0 {
            self.out.write_all(b"(")?;
            self.open.push((0, closing));
        }
        Ok(())
    }

    fn end(&mut self, length: usize) -> io::Result<()> {
        if length > 0
            && let Some((_, closing)) = self.open.pop()
        {
            self.out.write_all(&[closing])?;
        }
        Ok(())
    }
}

impl<W: Write> Encoder for Pickler<W> {
    fn list(&mut self, length: usize) -> io::Result<()> {
        self.begin(b']', length, b'e')
    }

    fn end_list(&mut self, length: usize) -> io::Result<()> {
        self.end(length)
    }

    fn dict(&mut self, length: usize) -> io::Result<()> {
        self.begin(b'}', length, b'u')
    }

    fn end_dict(&mut self, length: usize) -> io::Result<()> {
        self.end(length)
    }

    fn key(&mut self, key: &'static str) -> io::Result<()> {
        if let Some(&slot) = self.keys.get(key) {
            return self.get(slot);
        }
        let slot = self.raw_text(key)?;
        self.keys.insert(key, slot);
        Ok(())
    }

    fn setting_key(&mut self, key: &str) -> io::Result<()> {
        self.text(key)
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        if let Some(&slot) = self.texts.get(text) {
            return self.get(slot);
        }
        let slot = self.raw_text(text)?;
        self.texts.insert(text.to_owned(), slot);
        Ok(())
    }

    fn int(&mut self, value: i128) -> io::Result<()> {
        if let Ok(value) = u8::try_from(value) {
            return self.out.write_all(&[b'K', value]);
        }
        if let Ok(value) = u16::try_from(value) {
            self.out.write_all(b"M")?;
            return self.out.write_all(&value.to_le_bytes());
        }
        if let Ok(value) = i32::try_from(value) {
            self.out.write_all(b"J")?;
            return self.out.write_all(&value.to_le_bytes());
        }
        let bytes = value.to_le_bytes();
        // As few bytes as keep the sign.
        let mut length = bytes.len();
        let filler = if value < 0 { 0xff } else { 0 };
        while length > 1 && bytes[length - 1] == filler && (bytes[length - 2] >= 0x80) == (value < 0) {
            length -= 1;
        }
        self.out.write_all(&[0x8a, length as u8])?;
        self.out.write_all(&bytes[..length])
    }

    fn float(&mut self, value: f64) -> io::Result<()> {
        self.out.write_all(b"G")?;
        self.out.write_all(&value.to_be_bytes())
    }

    fn bool(&mut self, value: bool) -> io::Result<()> {
        self.out.write_all(&[if value { 0x88 } else { 0x89 }])
    }

    fn pair(&mut self, pair: PoolId) -> io::Result<()> {
        self.int(i128::from(pair.0))?;
        self.int(i128::from(pair.1))?;
        self.out.write_all(&[0x86])?;
        self.memoize().map(|_| ())
    }

    fn stack(&mut self, recording: &Recording, stack: StackId) -> io::Result<()> {
        if let Some(&slot) = self.stacks.get(&stack) {
            return self.get(slot);
        }
        let frames = recording.stacks.get(stack);
        self.out.write_all(b"]")?;
        let slot = self.memoize()?;
        self.stacks.insert(stack, slot);
        for batch in frames.chunks(BATCH) {
            self.out.write_all(b"(")?;
            for &frame in batch {
                if let Some(&slot) = self.frames.get(&frame) {
                    self.get(slot)?;
                    continue;
                }
                self.out.write_all(b"}")?;
                let slot = self.memoize()?;
                self.frames.insert(frame, slot);
                let content = recording.stacks.frame(frame);
                self.out.write_all(b"(")?;
                self.key("name")?;
                self.string(recording, content.name)?;
                self.key("filename")?;
                self.string(recording, content.file)?;
                self.key("line")?;
                self.int(i128::from(content.line))?;
                self.out.write_all(b"u")?;
            }
            self.out.write_all(b"e")?;
        }
        Ok(())
    }

    fn next(&mut self) -> io::Result<()> {
        if let Some((written, closing)) = self.open.last_mut() {
            *written += 1;
            if *written == BATCH {
                *written = 0;
                let closing = *closing;
                self.out.write_all(&[closing, b'('])?;
            }
        }
        Ok(())
    }
}
