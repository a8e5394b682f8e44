//! The `.oomph` format, as far as a recorder writes it: chunks of columns, each whole when it is there.
//!
//! Chunks are zstd frames by the format. What is written here is stored, not compressed: a compressor does not belong into
//! other people's processes.

use std::ffi::{CStr, c_char, c_int, c_void};

const MAGIC: &[u8] = b"OOMPH\r\n\x1a\x01\0\0\0";

/// Kinds of chunks.
#[derive(Clone, Copy)]
#[repr(u8)]
pub enum Kind {
    Strings = 1,
    Frames = 2,
    Stacks = 3,
    Device = 4,
    Events = 5,
    State = 6,
    Settings = 7,
    Annotations = 8,
    End = 9,
    Repeats = 10,
}

unsafe extern "C" {
    fn open(path: *const c_char, flags: c_int, mode: c_int) -> c_int;
    fn write(file: c_int, bytes: *const c_void, count: usize) -> isize;
    fn ftruncate(file: c_int, length: i64) -> c_int;
    fn close(file: c_int) -> c_int;
}

/// Write only, made if it is not there, emptied, at the end, not for children.
const FLAGS: c_int = 0o1 | 0o100 | 0o1000 | 0o2000 | 0o2_000_000;
const INTERRUPTED: c_int = 4;

/// An `.oomph` file that grows.
pub struct File {
    descriptor: c_int,
    length: u64,
    most: u64,
    /// A write failed or the file is as large as it may be: nothing more is written.
    full: bool,
    scratch: Vec<u8>,
}

impl File {
    /// Begins a file. The error is the operating system's.
    pub fn create(path: &CStr, most: u64) -> Result<Self, c_int> {
        // SAFETY: a string of C.
        let descriptor = unsafe { open(path.as_ptr(), FLAGS, 0o644) };
        if descriptor < 0 {
            return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(5));
        }
        let mut file = Self { descriptor, length: 0, most, full: false, scratch: Vec::new() };
        file.append(MAGIC);
        if file.full { Err(28) } else { Ok(file) }
    }

    /// How long it is: where the next chunk will begin.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Whether it could not be written to its end.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Takes back what was written after `length`.
    pub fn truncate(&mut self, length: u64) {
        // SAFETY: our own descriptor. Appending goes on at the new end.
        if self.full || length > self.length || unsafe { ftruncate(self.descriptor, length as i64) } != 0 {
            return;
        }
        self.length = length;
    }

    /// Appends a chunk.
    pub fn chunk(&mut self, kind: Kind, content: &[u8]) {
        // What a reader takes at most.
        if content.len() > 32 << 20 {
            self.full = true;
            return;
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        scratch.extend_from_slice(&[0; 13]);
        stored(content, &mut scratch);
        let packed = scratch.len() - 13;
        let sum = crc32(scratch.get(13..).unwrap_or_default());
        let mut head = [kind as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        for (place, value) in [(1, content.len() as u32), (5, packed as u32), (9, sum)] {
            if let Some(bytes) = head.get_mut(place..place + 4) {
                bytes.copy_from_slice(&value.to_le_bytes());
            }
        }
        if let Some(bytes) = scratch.get_mut(..13) {
            bytes.copy_from_slice(&head);
        }
        self.append(&scratch);
        self.scratch = scratch;
    }

    fn append(&mut self, mut bytes: &[u8]) {
        if self.full || self.length + bytes.len() as u64 > self.most {
            self.full = true;
            return;
        }
        let from = self.length;
        while !bytes.is_empty() {
            // SAFETY: our own descriptor, and bytes that live.
            let written = unsafe { write(self.descriptor, bytes.as_ptr().cast(), bytes.len()) };
            if written < 0 && std::io::Error::last_os_error().raw_os_error() == Some(INTERRUPTED) {
                continue;
            }
            if written <= 0 {
                // The disk is full: what was whole stays whole.
                // SAFETY: our own descriptor.
                unsafe { ftruncate(self.descriptor, from as i64) };
                self.length = from;
                self.full = true;
                return;
            }
            self.length += written as u64;
            bytes = bytes.get(written as usize..).unwrap_or_default();
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: our own descriptor, closed once.
        unsafe { close(self.descriptor) };
    }
}

/// One zstd frame of stored blocks.
fn stored(content: &[u8], out: &mut Vec<u8>) {
    const LARGEST_BLOCK: usize = 128 << 10;
    // Magic number, then: a single segment whose size follows in four bytes.
    out.extend_from_slice(&[0x28, 0xB5, 0x2F, 0xFD, 0xA0]);
    out.extend_from_slice(&(content.len() as u32).to_le_bytes());
    let mut blocks = content.chunks(LARGEST_BLOCK).peekable();
    if blocks.peek().is_none() {
        out.extend_from_slice(&[1, 0, 0]);
    }
    while let Some(block) = blocks.next() {
        let header = ((block.len() as u32) << 3) | u32::from(blocks.peek().is_none());
        out.extend_from_slice(header.to_le_bytes().get(..3).unwrap_or_default());
        out.extend_from_slice(block);
    }
}

#[allow(clippy::indexing_slicing)] // computed by the compiler
const CRC_TABLE: [u32; 256] = {
    let mut table = [0u32; 256];
    let mut index = 0;
    while index < 256 {
        let mut value = index as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { (value >> 1) ^ 0xEDB8_8320 } else { value >> 1 };
            bit += 1;
        }
        table[index] = value;
        index += 1;
    }
    table
};

fn crc32(bytes: &[u8]) -> u32 {
    let step = |sum: u32, byte: &u8| {
        (sum >> 8) ^ CRC_TABLE.get(((sum ^ u32::from(*byte)) & 0xff) as usize).copied().unwrap_or_default()
    };
    !bytes.iter().fold(!0, step)
}

/// Content of a chunk under construction.
#[derive(Default)]
pub struct Content(pub Vec<u8>);

impl Content {
    pub fn byte(&mut self, value: u8) {
        self.0.push(value);
    }

    pub fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    pub fn zigzag(&mut self, value: i64) {
        self.varint(((value << 1) ^ (value >> 63)) as u64);
    }

    pub fn text(&mut self, text: &str) {
        self.varint(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::crc32;

    #[test]
    fn the_sum_is_that_of_everybody() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
    }
}
