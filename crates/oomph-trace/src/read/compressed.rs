//! Unpacking and reading ahead, each bounded.
//!
//! A compressed file is unpacked as a stream; one that grows without measure is refused before it fills
//! the memory.

use super::ReadError;
use super::window::{Chunk, Chunks};
use crate::budget::{Counted, Meter, may_unpack};
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// xz may ask for a dictionary of gigabytes; its strongest preset takes 65 MiB.
const XZ_MEMORY: u64 = 256 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    Gzip,
    Xz,
    Zstd,
}

impl Compression {
    pub(super) fn of(head: &[u8]) -> Option<Self> {
        if head.starts_with(&[0x1f, 0x8b]) {
            Some(Self::Gzip)
        } else if head.starts_with(b"\xfd7zXZ\0") {
            Some(Self::Xz)
        } else if head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
            Some(Self::Zstd)
        } else {
            None
        }
    }
}

/// What became of the unpacking, for an error message that names the cause rather than its effect.
#[derive(Clone, Default)]
pub(super) struct State {
    packed: Meter,
    bomb: Arc<AtomicBool>,
}

impl State {
    /// How much of the file was read, as it lies on the disk.
    pub(super) fn packed(&self) -> Meter {
        self.packed.clone()
    }

    pub(super) fn explain(&self, error: ReadError) -> ReadError {
        if self.bomb.load(Ordering::Relaxed) { ReadError::Bomb } else { error }
    }
}

/// A stream of unpacked bytes. One that breaks off is read as a file that ends there.
pub(super) fn unpack(
    source: impl Read + Send + 'static,
    compression: Compression,
) -> Result<(Box<dyn Read + Send>, State), ReadError> {
    let state = State::default();
    let counted = io::BufReader::with_capacity(1 << 16, Counted::new(source, state.packed()));
    let unpacked: Box<dyn Read + Send> = match compression {
        Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(counted)),
        Compression::Xz => {
            let stream =
                liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY, liblzma::stream::CONCATENATED)
                    .map_err(io::Error::from)?;
            Box::new(liblzma::bufread::XzDecoder::new_stream(counted, stream))
        }
        Compression::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(counted)?;
            decoder.window_log_max(27)?;
            Box::new(decoder)
        }
    };
    Ok((Box::new(Bounded { unpacked, length: 0, state: state.clone() }), state))
}

struct Bounded {
    unpacked: Box<dyn Read + Send>,
    length: u64,
    state: State,
}

impl Read for Bounded {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = match self.unpacked.read(into) {
            Ok(n) => n,
            // Cut off, or damaged from here on: what came before is still good.
            Err(error) if error.kind() != io::ErrorKind::Interrupted && self.length > 0 => return Ok(0),
            Err(error) => {
                let what = format!("the compressed file is damaged or cut off at its beginning ({error})");
                return Err(io::Error::new(error.kind(), what));
            }
        };
        self.length += n as u64;
        if !may_unpack(self.state.packed.read(), self.length) {
            self.state.bomb.store(true, Ordering::Relaxed);
            return Err(io::Error::other("compression bomb"));
        }
        Ok(n)
    }
}

const CHUNKS_AHEAD: usize = 4;

/// Reads in a second thread, a few chunks ahead. `packed` says how much of the file was read, where that is not what comes out.
pub(super) fn read_ahead(mut source: impl Read + Send + 'static, packed: Option<Meter>) -> ReadAhead {
    let (full, chunks) = sync_channel(CHUNKS_AHEAD);
    let (empty, spares) = sync_channel::<Chunk>(CHUNKS_AHEAD + 2);
    // Not joined: a reader that waits on a pipe would hold us up. It stops when the channel is closed.
    std::thread::spawn(move || {
        let mut plain = 0;
        loop {
            let mut chunk = spares.try_recv().unwrap_or_default().refill(&mut source);
            if let Ok(chunk) = &mut chunk {
                plain += chunk.content().len() as u64;
                chunk.read = packed.as_ref().map_or(plain, Meter::read);
            }
            let last = chunk.as_ref().map_or(true, |chunk| chunk.content().is_empty());
            if full.send(chunk).is_err() || last {
                return;
            }
        }
    });
    ReadAhead { chunks, empty, chunk: Chunk::default(), position: 0, meter: Meter::default() }
}

/// The receiving end. Whole chunks for who can use them ([`Chunks`]), plain reading for the others.
pub(super) struct ReadAhead {
    chunks: Receiver<io::Result<Chunk>>,
    empty: SyncSender<Chunk>,
    chunk: Chunk,
    position: usize,
    meter: Meter,
}

impl ReadAhead {
    /// How much of the file was read for what was handed over: not more, whatever lies ready. So the same file meets the same limits each time.
    pub(super) fn meter(&self) -> Meter {
        self.meter.clone()
    }

    /// Hands the chunks over as they are.
    pub(super) fn into_chunks(self) -> impl Chunks {
        WholeChunks(self)
    }

    fn next_chunk(&mut self, spare: Chunk) -> io::Result<Chunk> {
        let _ = self.empty.try_send(spare);
        // A sender that is gone has said everything.
        let Ok(next) = self.chunks.recv() else { return Ok(Chunk::default()) };
        let next = next?;
        self.meter.set(next.read);
        Ok(next)
    }
}

struct WholeChunks(ReadAhead);

impl Chunks for WholeChunks {
    fn next(&mut self, spare: Chunk) -> io::Result<Chunk> {
        self.0.next_chunk(spare)
    }
}

impl Read for ReadAhead {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.position == self.chunk.content().len() {
            // Before the next comes: if none does, the reader may ask again.
            self.position = 0;
            let spare = std::mem::take(&mut self.chunk);
            self.chunk = self.next_chunk(spare)?;
        }
        let left = &self.chunk.content()[self.position..];
        let n = into.len().min(left.len());
        into[..n].copy_from_slice(&left[..n]);
        self.position += n;
        Ok(n)
    }
}
