//! A sliding window over a stream of chunks: the decoder indexes into it, and asks for more when it nears
//! the end.
//!
//! Buffers are reused and stay in the processor's cache, whatever the file's size. (Mapping the file would
//! be `unsafe`, and would count the whole file as our memory.) A chunk is decoded where it was read: only the
//! few bytes of an operation that straddles two chunks are copied, into the room left in front of each.

use std::io::{self, Read};

/// Bytes behind the window's end that may always be read (they are zeros): operands of fixed size need no
/// check of their own.
pub(super) const PADDING: usize = 16;

/// Room in front of a chunk for what was left of the one before.
const HEADROOM: usize = 4 << 10;

/// Bytes of a chunk.
const CHUNK: usize = 1 << 20;

/// A piece of a stream: `bytes[start..end]`, with [`PADDING`] zeros behind.
#[derive(Default)]
pub(super) struct Chunk {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes of the file that had been read when this piece was there, as it lies on the disk.
    pub(super) read: u64,
}

impl Chunk {
    /// Reads the next piece into this one's buffer. An empty piece is the end.
    pub(super) fn refill(mut self, source: &mut impl Read) -> io::Result<Self> {
        if self.bytes.len() != HEADROOM + CHUNK + PADDING {
            self.bytes = vec![0; HEADROOM + CHUNK + PADDING]; // zeroed by the system, not by us
        }
        (self.start, self.end) = (HEADROOM, HEADROOM);
        // A pipe or an unpacker may give little at a time: a chunk is worth a hand-over only when full.
        while self.end < HEADROOM + CHUNK {
            match source.read(&mut self.bytes[self.end..HEADROOM + CHUNK]) {
                Ok(0) => break,
                Ok(n) => self.end += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // What was read is given first; the error comes again with the next piece.
                Err(_) if self.end > HEADROOM => break,
                Err(error) => return Err(error),
            }
        }
        self.bytes[self.end..self.end + PADDING].fill(0);
        Ok(self)
    }

    pub(super) fn content(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }
}

/// Where chunks come from. `spare` is one that is no longer needed.
pub(super) trait Chunks {
    fn next(&mut self, spare: Chunk) -> io::Result<Chunk>;
}

impl<R: Read> Chunks for R {
    fn next(&mut self, spare: Chunk) -> io::Result<Chunk> {
        spare.refill(self)
    }
}

pub(super) struct Window<C> {
    source: C,
    chunk: Chunk,
    /// A buffer that is free, for the next piece.
    spare: Chunk,
    /// Where unread bytes start.
    pub(super) position: usize,
    /// How many bytes of the stream lie before the chunk's start.
    before: u64,
    ended: bool,
}

impl<C: Chunks> Window<C> {
    pub(super) fn new(source: C) -> Self {
        let chunk = Chunk { bytes: vec![0; PADDING], ..Chunk::default() };
        Self { source, chunk, spare: Chunk::default(), position: 0, before: 0, ended: false }
    }

    /// The chunk up to its end, padding behind it included. Index with `position`.
    pub(super) fn bytes(&self) -> (&[u8], usize) {
        (&self.chunk.bytes[..self.chunk.end + PADDING], self.chunk.end)
    }

    /// Where in the stream `position` is.
    pub(super) fn offset(&self) -> u64 {
        self.before + (self.position - self.chunk.start) as u64
    }

    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    /// Makes at least `wanted` unread bytes available, fewer only if the stream ends. Memory grows with
    /// what arrives, not with what a length field claims.
    pub(super) fn fill(&mut self, wanted: usize) -> io::Result<()> {
        while !self.ended && self.chunk.end - self.position < wanted {
            let next = self.source.next(std::mem::take(&mut self.spare))?;
            if next.content().is_empty() {
                self.ended = true;
                break;
            }
            self.before = self.offset();
            self.spare = self.join(next);
        }
        Ok(())
    }

    /// Puts what is left of this chunk in front of the next one; gives back the buffer that is free.
    fn join(&mut self, mut next: Chunk) -> Chunk {
        let left = self.position..self.chunk.end;
        if left.len() <= next.start {
            let start = next.start - left.len();
            next.bytes[start..next.start].copy_from_slice(&self.chunk.bytes[left]);
            next.start = start;
            self.position = start;
            std::mem::replace(&mut self.chunk, next)
        } else {
            // One value is larger than a chunk: gather it in this buffer.
            self.chunk.bytes.truncate(self.chunk.end);
            self.chunk.bytes.drain(..self.position);
            self.chunk.bytes.extend_from_slice(next.content());
            (self.chunk.start, self.position) = (0, 0);
            self.chunk.end = self.chunk.bytes.len();
            self.chunk.bytes.extend_from_slice(&[0; PADDING]);
            next
        }
    }
}
