//! A sliding window over a stream: the decoder indexes into it, and asks for more when it nears the end.
//!
//! One buffer, reused: a file of any size passes through the same few hundred KiB, which stay in the
//! processor's cache. (Mapping the file would be `unsafe`, and would count the whole file as our memory.)

use std::io::{self, Read};

/// Bytes behind the window's end that may always be read (they are zeros): fixed-size operands need no
/// check of their own.
pub(super) const PADDING: usize = 16;

const CAPACITY: usize = 512 << 10;

pub(super) struct Window<R> {
    source: R,
    buffer: Vec<u8>,
    /// Where unread bytes start.
    pub(super) position: usize,
    /// Where they end.
    end: usize,
    /// How many bytes of the stream lie before the buffer.
    before: u64,
    ended: bool,
}

impl<R: Read> Window<R> {
    pub(super) fn new(source: R) -> Self {
        Self { source, buffer: vec![0; CAPACITY + PADDING], position: 0, end: 0, before: 0, ended: false }
    }

    /// The buffer up to its end, padding behind it included. Index with `position`.
    pub(super) fn bytes(&self) -> (&[u8], usize) {
        (&self.buffer[..self.end + PADDING], self.end)
    }

    /// Where in the stream `position` is.
    pub(super) fn offset(&self) -> u64 {
        self.before + self.position as u64
    }

    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    /// Makes at least `wanted` unread bytes available, fewer only if the stream ends. The buffer grows
    /// with what arrives, not with what a length field claims.
    pub(super) fn fill(&mut self, wanted: usize) -> io::Result<()> {
        if self.position > 0 {
            self.buffer.copy_within(self.position..self.end, 0);
            self.before += self.position as u64;
            self.end -= self.position;
            self.position = 0;
        }
        loop {
            let room = self.buffer.len() - PADDING;
            if self.end == room {
                if self.end >= wanted {
                    break;
                }
                self.buffer.resize((2 * room).min(room + (64 << 20)) + PADDING, 0);
                continue;
            }
            match self.source.read(&mut self.buffer[self.end..room]) {
                Ok(0) => {
                    self.ended = true;
                    break;
                }
                Ok(n) => {
                    self.end += n;
                    if self.end >= wanted && self.end >= CAPACITY / 4 {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.buffer[self.end..self.end + PADDING].fill(0);
        Ok(())
    }
}
