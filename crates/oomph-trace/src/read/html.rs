//! A snapshot inside a memory_viz page: PyTorch's own exporter embeds the pickle as base64.

use super::ReadError;
use base64::engine::general_purpose::STANDARD;
use base64::read::DecoderReader;
use std::io::{self, BufRead, BufReader, Read};

/// What comes before the data in the page.
const OPENING: &[u8] = b"\"base64\": \"";

pub(super) fn looks_like_html(text: &[u8]) -> bool {
    let start = text.get(..14).unwrap_or(text).to_ascii_lowercase();
    start.starts_with(b"<!doctype html") || start.starts_with(b"<html") || start.starts_with(b"<head")
}

/// The decoded bytes of the first snapshot in the page.
pub(super) fn snapshot_in(source: impl Read) -> Result<impl Read, ReadError> {
    let mut source = BufReader::with_capacity(1 << 16, source);
    loop {
        let bytes = source.fill_buf()?;
        if bytes.is_empty() {
            return Err(ReadError::NoSnapshotInPage);
        }
        match memchr::memmem::find(bytes, OPENING) {
            Some(at) => {
                source.consume(at + OPENING.len());
                return Ok(DecoderReader::new(UntilQuote { source, ended: false }, &STANDARD));
            }
            None => {
                // Keep as much as could be the beginning of the opening, unless nothing more comes.
                let keep = if bytes.len() >= OPENING.len() { OPENING.len() - 1 } else { 0 };
                let tail = bytes[bytes.len() - keep..].to_vec();
                let consumed = bytes.len();
                source.consume(consumed);
                let next = source.fill_buf()?;
                let seam = [&tail[..], &next[..next.len().min(OPENING.len())]].concat();
                if let Some(at) = memchr::memmem::find(&seam, OPENING) {
                    source.consume(at + OPENING.len() - tail.len());
                    return Ok(DecoderReader::new(UntilQuote { source, ended: false }, &STANDARD));
                }
            }
        }
    }
}

/// The stream up to the closing quote.
struct UntilQuote<R> {
    source: R,
    ended: bool,
}

impl<R: BufRead> Read for UntilQuote<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.ended {
            return Ok(0);
        }
        let bytes = self.source.fill_buf()?;
        let length = bytes.len().min(into.len());
        let quote = memchr::memchr(b'"', &bytes[..length]);
        let taken = quote.unwrap_or(length);
        into[..taken].copy_from_slice(&bytes[..taken]);
        self.ended = quote.is_some();
        self.source.consume(taken);
        Ok(taken)
    }
}
