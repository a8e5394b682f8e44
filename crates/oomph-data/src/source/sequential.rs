//! A source as a reader, from an offset on.

use super::Source;
use std::io::{self, Read};

/// Reads on from an offset, a block at a time.
pub struct Sequential {
    source: Source,
    block: Vec<u8>,
    block_size: usize,
    /// Where in the block the reader is.
    at: usize,
    /// Where in the source the next block begins.
    next: u64,
}

impl Sequential {
    /// From `offset`, in blocks of `block_size` bytes (1 to 4 MiB suit object storage).
    pub fn new(source: Source, offset: u64, block_size: usize) -> Self {
        Self { source, block: Vec::new(), block_size: block_size.max(1), at: 0, next: offset }
    }

    /// Where in the source the reader is.
    pub fn position(&self) -> u64 {
        self.next - (self.block.len() - self.at) as u64
    }
}

impl Read for Sequential {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.at == self.block.len() {
            let left = self.source.size().saturating_sub(self.next);
            let length = left.min(self.block_size as u64) as usize;
            // A large reader takes its bytes without a copy in between.
            if into.len() >= length {
                self.source.read_at(self.next, &mut into[..length]).map_err(io::Error::other)?;
                self.next += length as u64;
                return Ok(length);
            }
            self.at = 0;
            self.block.resize(length, 0);
            if let Err(error) = self.source.read_at(self.next, &mut self.block) {
                self.block.clear();
                return Err(io::Error::other(error));
            }
            self.next += length as u64;
        }
        let count = into.len().min(self.block.len() - self.at);
        into[..count].copy_from_slice(&self.block[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_comes_once_whatever_the_sizes() {
        let bytes: Vec<u8> = (0..10_000u32).map(|number| (number % 251) as u8).collect();
        for block in [1, 7, 1000, 20_000] {
            for step in [1, 13, 4096] {
                let mut reader = Sequential::new(crate::source::memory("m", bytes.clone()), 5, block);
                let mut read = Vec::new();
                let mut into = vec![0; step];
                loop {
                    let count = reader.read(&mut into).unwrap();
                    if count == 0 {
                        break;
                    }
                    read.extend_from_slice(&into[..count]);
                    assert_eq!(reader.position(), 5 + read.len() as u64);
                }
                assert_eq!(read, bytes[5..]);
            }
        }
    }
}
