//! A text file in chunks of whole records, handed out in order to several threads.

use super::TextFormat;
use super::fields::LARGEST;
use crate::source::Source;
use crate::{BrokenRows, DataError, Observer, OnError, Pass, threads};
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// About what a chunk has: enough to be worth a thread's turn, little enough to stay in its cache with the places of its
/// cells.
const CHUNK: usize = 1 << 18;
/// And what it has of each column: what is noted of a column's part must be little beside the part.
const CHUNK_OF_A_COLUMN: usize = 1 << 12;
/// A record that is longer than this is not one: a quote was not closed, or lines do not end.
const LONGEST_RECORD: usize = 64 << 20;
/// JSON lines have no header that says how many columns there are, and what is noted of a chunk is as much as there are
/// keys: after so many chunks the next are twice as large, a few times.
const CHUNKS_OF_A_SIZE: usize = 256;
const LARGER_TIMES: usize = 4;

/// Whole records of a file.
pub(crate) struct Chunk {
    /// Counted from 0.
    pub(crate) number: usize,
    /// Counted from 1.
    pub(crate) first_line: u64,
    pub(crate) text: Vec<u8>,
}

/// Reads a file from its first record on.
pub(crate) struct Chunks<'a> {
    format: &'a TextFormat,
    location: String,
    total: u64,
    bytes: Box<dyn Read + Send>,
    /// How far into the file (compressed or not) the reading is.
    done: Arc<AtomicU64>,
    /// About what a chunk has here.
    chunk: usize,
    /// Read, and not handed out.
    rest: Vec<u8>,
    line: u64,
    number: usize,
    ended: bool,
    on_error: OnError,
    broken: BrokenRows,
}

impl<'a> Chunks<'a> {
    pub(crate) fn open(
        source: &Source,
        format: &'a TextFormat,
        on_error: OnError,
    ) -> Result<Self, DataError> {
        let (bytes, done) = super::bytes::open(source, format.compression)?;
        let mut chunks = Self {
            format,
            location: source.location().to_owned(),
            total: source.size(),
            bytes,
            done,
            chunk: CHUNK,
            rest: Vec::new(),
            line: 1,
            number: 0,
            ended: false,
            on_error,
            broken: BrokenRows::default(),
        };
        chunks.skip_header()?;
        Ok(chunks)
    }

    /// The first bytes, as far as a header could reach, without moving on.
    pub(crate) fn head(&mut self, most: usize) -> Result<&[u8], DataError> {
        while self.rest.len() < most && !self.ended {
            self.read_more(CHUNK)?;
        }
        Ok(&self.rest[..self.rest.len().min(most)])
    }

    /// The whole lines among the first bytes, without moving on.
    pub(crate) fn head_lines(&mut self) -> Result<&[u8], DataError> {
        self.head(CHUNK)?;
        let head = &self.rest[..self.rest.len().min(CHUNK)];
        let end = if self.ended { head.len() } else { memchr::memrchr(b'\n', head).map_or(0, |at| at + 1) };
        Ok(&head[..end])
    }

    fn skip_header(&mut self) -> Result<(), DataError> {
        if let Some(csv) = self.format.csv() {
            let mut most = CHUNK;
            // Until the first record is whole: what is left of a header must not be taken for a row.
            while csv.record_end(self.head(most)?, 0).is_none() && !self.ended {
                most *= 2;
                if most > LONGEST_RECORD {
                    let what =
                        "the first line does not end within 64 MiB: is it a CSV, and is a quote closed?";
                    return Err(DataError::unreadable(&self.location, what));
                }
            }
            self.refuse_old_line_ends()?;
            let columns = csv.count_cells(&self.rest);
            self.chunk = CHUNK.max(columns * CHUNK_OF_A_COLUMN).min(LONGEST_RECORD);
        } else {
            self.head(CHUNK)?;
        }
        let (start, line) = super::body_start(self.format, &self.rest);
        self.rest.drain(..start.min(self.rest.len()));
        self.line = line;
        Ok(())
    }

    /// Lines that end in a carriage return alone would all be one header.
    fn refuse_old_line_ends(&self) -> Result<(), DataError> {
        let head = &self.rest[..self.rest.len().min(CHUNK)];
        let alone = memchr::memchr_iter(b'\r', head).filter(|&at| head.get(at + 1) != Some(&b'\n')).count();
        if memchr::memchr(b'\n', head).is_none() && alone > 0 {
            let what = "lines end in carriage returns alone, as on old Macs; write it again with newlines (tr '\\r' '\\n')";
            return Err(DataError::unreadable(&self.location, what));
        }
        Ok(())
    }

    fn read_more(&mut self, most: usize) -> Result<(), DataError> {
        let start = self.rest.len();
        self.rest.resize(start + most, 0);
        let mut filled = start;
        while filled < self.rest.len() {
            match self.bytes.read(&mut self.rest[filled..]) {
                Ok(0) => {
                    self.ended = true;
                    break;
                }
                Ok(read) => filled += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.rest.truncate(start);
                    return Err(super::bytes::data_error(&self.location, error));
                }
            }
        }
        self.rest.truncate(filled);
        Ok(())
    }

    /// The next whole records.
    pub(crate) fn next(&mut self) -> Result<Option<Chunk>, DataError> {
        if self.format.delimiter.is_none() {
            self.chunk = CHUNK << (self.number / CHUNKS_OF_A_SIZE).min(LARGER_TIMES);
        }
        loop {
            if !self.ended && self.rest.len() < self.chunk {
                self.read_more(self.chunk - self.rest.len())?;
            }
            if self.rest.is_empty() {
                return Ok(None);
            }
            let end = if self.ended && self.rest.len() <= LARGEST && self.format.ends_whole(&self.rest) {
                Some(self.rest.len())
            } else {
                self.format.records_end(&self.rest)
            };
            if let Some(end) = end {
                // What is left over is short: it is copied, the chunk is not.
                let rest = self.rest[end..].to_vec();
                let mut text = std::mem::replace(&mut self.rest, rest);
                text.truncate(end);
                let chunk = Chunk { number: self.number, first_line: self.line, text };
                self.number += 1;
                self.line += super::lines(&chunk.text);
                return Ok(Some(chunk));
            }
            if self.ended || self.rest.len() > LONGEST_RECORD {
                self.give_up_a_record()?;
            } else {
                let most = LONGEST_RECORD + 1 - self.rest.len();
                self.read_more(self.rest.len().max(self.chunk).min(most))?;
            }
        }
    }

    /// A quote opened on the first line and nothing closes it, or the line does not end. It is broken, the next one may not
    /// be.
    fn give_up_a_record(&mut self) -> Result<(), DataError> {
        let has_ends = memchr::memchr(b'\n', &self.rest).is_some();
        let what = if has_ends || self.rest.len() <= LONGEST_RECORD {
            "a quote opens and does not close"
        } else {
            "the line does not end within 64 MiB, which is longer than rows are: do lines end, and in newlines?"
        };
        let what = what.to_owned();
        if self.on_error == OnError::Fail {
            return Err(DataError::Row { location: self.location.clone(), line: self.line, what });
        }
        self.broken.push(self.line, what);
        // To the end of the line, however far that is: what is left of it would be taken for rows.
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.rest) {
                self.rest.drain(..=at);
                break;
            }
            self.rest.clear();
            if self.ended {
                break;
            }
            self.read_more(CHUNK)?;
        }
        self.line += 1;
        Ok(())
    }
}

/// The names of the columns of a file.
pub(crate) fn header(source: &Source, format: &TextFormat) -> Result<Vec<String>, DataError> {
    let mut whole = format.clone();
    whole.header = false;
    let mut chunks = Chunks::open(source, &whole, OnError::Fail)?;
    let mut most = CHUNK;
    loop {
        let head = chunks.head(most)?;
        let complete = format.csv().is_none_or(|csv| csv.record_end(head, 0).is_some());
        if complete || head.len() < most || most > LONGEST_RECORD {
            return super::header_names(source.location(), format, head);
        }
        most *= 2;
    }
}

/// Hands the chunks of a file to several threads; gives what each made of its own, and the rows that were left out
/// because no chunk could hold them.
pub(crate) fn in_threads<State: Send>(
    mut chunks: Chunks<'_>,
    threads: usize,
    (observer, pass): (&dyn Observer, Pass),
    begin: impl Fn() -> State + Sync,
    work: impl Fn(&mut State, Chunk) -> Result<(), DataError> + Sync,
) -> Result<(Vec<State>, BrokenRows), DataError> {
    let (total, done) = (chunks.total, Arc::clone(&chunks.done));
    let work = |state: &mut State, chunk: Chunk| {
        work(state, chunk)?;
        observer.advanced(pass, done.load(Ordering::Relaxed).min(total), total);
        Ok(())
    };
    let states = threads::share(threads, observer, || chunks.next(), begin, work)?;
    Ok((states, chunks.broken))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{Compression, memory};

    #[test]
    fn a_line_without_an_end_is_one_broken_row_and_not_held() {
        let text = [b"a\n1\n".as_slice(), &vec![b'2'; 3 * LONGEST_RECORD], b"\n3\n"].concat();
        let source = memory("t.csv", text);
        let format = TextFormat {
            delimiter: Some(b','),
            header: true,
            quote: b'"',
            nulls: Vec::new(),
            compression: Compression::None,
        };
        let mut chunks = Chunks::open(&source, &format, OnError::Skip).unwrap();
        let mut read = Vec::new();
        while let Some(chunk) = chunks.next().unwrap() {
            read.push((chunk.first_line, chunk.text));
            assert!(chunks.rest.capacity() <= 2 * LONGEST_RECORD, "{}", chunks.rest.capacity());
        }
        // None of the line is taken for a row.
        assert_eq!(read, [(2, b"1\n".to_vec()), (4, b"3\n".to_vec())]);
        assert_eq!((chunks.broken.count, chunks.broken.first[0].line), (1, 3));
        let mut chunks = Chunks::open(&source, &format, OnError::Fail).unwrap();
        chunks.next().unwrap();
        let error = chunks.next().err().unwrap().to_string();
        assert!(error.starts_with("t.csv: line 3: the line does not end within 64 MiB"), "{error}");
    }
}
