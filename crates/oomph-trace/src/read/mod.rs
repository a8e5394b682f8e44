//! Readers: bytes in, a [`Recording`] out.
//!
//! One front end a format; [`read`] finds out which one is wanted by looking at the bytes, never at the
//! file's name. To add a format, add a module here and a line to `read_plain`.

mod assemble;
mod compressed;
mod html;
mod json;
mod pickle;
mod window;

use crate::budget::{Budget, Form, LARGEST_RATIO, Meter, Swells};
use crate::format;
use crate::recording::{Format, Recording, Warning};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Why a file gives no recording.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file could not be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// There is nothing in the file.
    #[error("the file is empty")]
    Empty,
    /// It is some other kind of file.
    #[error("this is not a memory snapshot or an oomph recording")]
    NotASnapshot,
    /// The file tries to make its reader run code.
    #[error(
        "refused: the file asks its reader to {} at byte {offset}{}; no real \
             snapshot does this, do not load it with Python",
        if *opcode == "REDUCE" { "call a function" } else { "load or build an object" },
        names.as_ref().map(|n| format!(" ({opcode} {n})")).unwrap_or_else(|| format!(" ({opcode})"))
    )]
    Refused {
        opcode: &'static str,
        offset: u64,
        /// What it would have imported.
        names: Option<String>,
    },
    /// A pickle opcode that nothing known writes.
    #[error("byte {offset} is not a pickle opcode (0x{opcode:02x}): the file is damaged")]
    UnknownOpcode { opcode: u8, offset: u64 },
    /// A pickle protocol that is too old or too new.
    #[error("pickle protocol {protocol} is not supported (2 to 5 are)")]
    Protocol { protocol: u8 },
    /// The pickle contradicts itself.
    #[error("damaged at byte {offset}: {what}")]
    Malformed { offset: u64, what: &'static str },
    /// The file ends before anything useful.
    #[error(
        "the file ends at byte {offset}, before any event or segment: it was cut off while being written"
    )]
    TruncatedTooEarly { offset: u64 },
    /// Not well-formed JSON.
    #[error("damaged JSON at line {line}, column {column}: {what}")]
    Json {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What the parser said.
        what: String,
    },
    /// An HTML page without a snapshot in it.
    #[error("this page has no snapshot in it (memory_viz pages carry one as base64)")]
    NoSnapshotInPage,
    /// Something small that unpacks to something enormous.
    #[error(
        "the compressed file grows more than {LARGEST_RATIO}-fold when unpacked, which no \
             recording does; unpack it yourself if you trust it"
    )]
    Bomb,
    /// Something small that asks for memory or work without measure.
    #[error(transparent)]
    Swells(#[from] Swells),
    /// An oomph recording that cannot be read.
    #[error(transparent)]
    Format(#[from] format::FormatError),
}

/// Reads a recording from a file.
pub fn read_path(path: impl AsRef<Path>) -> Result<Recording, ReadError> {
    read(File::open(path)?)
}

/// Reads a recording from a stream of bytes: any format, plain or compressed.
///
/// Reading and unpacking go on in a second thread while this one decodes.
pub fn read(source: impl Read + Send + 'static) -> Result<Recording, ReadError> {
    let (head, source) = peek(source, 8)?;
    match compressed::Compression::of(&head) {
        Some(compression) => {
            let (unpacked, state) = compressed::unpack(source, compression)?;
            let (head, unpacked) = match peek(unpacked, HEAD) {
                Ok(peeked) => peeked,
                Err(error) => return Err(state.explain(error.into())),
            };
            let outcome =
                read_plain(&head, compressed::read_ahead(unpacked, Some(state.packed())), Form::Compressed);
            outcome.map_err(|error| state.explain(error))
        }
        None => {
            let (head, source) = peek(source, HEAD)?;
            read_plain(&head, compressed::read_ahead(source, None), form_of(&head))
        }
    }
}

/// Reads a recording that is already in memory.
pub fn read_bytes(bytes: &[u8]) -> Result<Recording, ReadError> {
    if compressed::Compression::of(bytes).is_some() {
        return read(io::Cursor::new(bytes.to_vec()));
    }
    let head = &bytes[..bytes.len().min(HEAD)];
    read_plain(head, bytes, form_of(head))
}

/// How much of the beginning is read to recognise the format.
const HEAD: usize = 512;

/// Streams that the pickle reader can take chunk by chunk.
trait Stream: Read + Sized {
    fn chunks(self) -> impl window::Chunks;

    /// How much of the file was read, as it lies on the disk.
    fn meter(&self) -> Meter;
}

impl Stream for compressed::ReadAhead {
    fn chunks(self) -> impl window::Chunks {
        self.into_chunks()
    }

    fn meter(&self) -> Meter {
        self.meter()
    }
}

impl Stream for &[u8] {
    fn chunks(self) -> impl window::Chunks {
        self
    }

    fn meter(&self) -> Meter {
        let meter = Meter::default();
        meter.set(self.len() as u64);
        meter
    }
}

fn read_plain(head: &[u8], source: impl Stream, form: Form) -> Result<Recording, ReadError> {
    let budget = Budget::new(source.meter(), form);
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    if head.is_empty() {
        Err(ReadError::Empty)
    } else if head.starts_with(format::MAGIC) {
        Ok(format::read_within(source, budget)?)
    } else if head[0] == 0x80 {
        pickle::read(source.chunks(), Format::TorchPickle, budget)
    } else if text.starts_with(b"{") || text.starts_with(b"[") {
        json::read(skip_to_text(source), budget)
    } else if html::looks_like_html(text) {
        pickle::read(html::snapshot_in(source)?, Format::TorchHtml, budget)
    } else {
        Err(ReadError::NotASnapshot)
    }
}

/// How a file that is not compressed lies on the disk.
fn form_of(head: &[u8]) -> Form {
    if head.starts_with(format::MAGIC) { Form::Recording } else { Form::Plain }
}

/// A byte order mark is not JSON.
fn skip_to_text(source: impl Read) -> impl Read {
    let mut source = io::BufReader::with_capacity(1 << 16, source);
    if io::BufRead::fill_buf(&mut source).is_ok_and(|bytes| bytes.starts_with(b"\xef\xbb\xbf")) {
        io::BufRead::consume(&mut source, 3);
    }
    source
}

/// A stream whose first bytes were read and put back.
type Peeked<R> = io::Chain<io::Cursor<Vec<u8>>, R>;

/// The first bytes, and a stream that still has them.
fn peek<R: Read>(mut source: R, length: usize) -> io::Result<(Vec<u8>, Peeked<R>)> {
    let mut head = Vec::with_capacity(length);
    source.by_ref().take(length as u64).read_to_end(&mut head)?;
    Ok((head.clone(), io::Cursor::new(head).chain(source)))
}

fn truncation_warning(offset: u64) -> Warning {
    Warning {
        code: "truncated",
        message: format!("the file ends in the middle (at byte {offset}); what could be read is shown"),
    }
}
