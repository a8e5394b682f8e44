//! A text file cut into pieces at borders of records, in order.
//!
//! Where a piece ends depends on nothing but where it begins: so a stream can be taken up at any of them.

use super::limits::Limits;
use crate::source::{Compression, Sequential, Source};
use crate::text::{self, TextFormat};
use crate::{BrokenRows, DataError, OnError};
use std::io::{self, Read};

/// Whole records.
pub(super) struct Chunk {
    pub(super) text: Vec<u8>,
    /// In the file as it is unpacked.
    pub(super) offset: u64,
    /// Of the first record, counted from 1.
    pub(super) line: u64,
}

/// Read first to see a header: most end within it, and none of many short files is read as if it were long.
const HEADER: usize = 64 << 10;

pub(super) struct Cutter {
    location: String,
    format: TextFormat,
    limits: Limits,
    on_error: OnError,
    bytes: Box<dyn Read + Send>,
    /// Read, and not handed out.
    rest: Vec<u8>,
    ended: bool,
    offset: u64,
    line: u64,
    /// The names in the header, where the records were begun with.
    pub(super) names: Vec<String>,
    /// Lines that were given up because their quotes do not close.
    pub(super) broken: BrokenRows,
}

impl Cutter {
    /// From the first record.
    pub(super) fn open(
        source: &Source,
        format: &TextFormat,
        limits: Limits,
        on_error: OnError,
    ) -> Result<Self, DataError> {
        let mut cutter = Self::at(source, format, limits, on_error, 0, 1)?;
        let mut most = limits.text.min(HEADER);
        loop {
            cutter.fill(most)?;
            let (start, line) = text::body_start(format, &cutter.rest);
            if start < cutter.rest.len() || cutter.ended {
                if format.header {
                    cutter.names = text::header_names(source.location(), format, &cutter.rest)?;
                }
                cutter.take(start);
                cutter.line = line;
                return Ok(cutter);
            }
            if most >= limits.record {
                return Err(cutter.too_long(most));
            }
            most = (most * 2).min(limits.record);
        }
    }

    /// From a record that begins at this byte and line of a file that is not compressed.
    pub(super) fn at(
        source: &Source,
        format: &TextFormat,
        limits: Limits,
        on_error: OnError,
        offset: u64,
        line: u64,
    ) -> Result<Self, DataError> {
        Ok(Self {
            location: source.location().to_owned(),
            format: format.clone(),
            limits,
            on_error,
            bytes: unpacked(source, format.compression, offset, limits)?,
            rest: Vec::new(),
            ended: false,
            offset,
            line,
            names: Vec::new(),
            broken: BrokenRows::default(),
        })
    }

    /// The first bytes, as the file has them, for whoever decides types by them.
    pub(super) fn head(
        source: &Source,
        format: &TextFormat,
        limits: Limits,
        most: usize,
    ) -> Result<(Vec<u8>, bool), DataError> {
        let mut cutter = Self::at(source, format, limits, OnError::Fail, 0, 1)?;
        cutter.fill(most)?;
        Ok((cutter.rest, cutter.ended))
    }

    /// The next piece; none at the end.
    pub(super) fn next(&mut self) -> Result<Option<Chunk>, DataError> {
        let mut most = self.limits.text;
        loop {
            self.fill(most)?;
            if self.rest.is_empty() {
                // Lines that were dropped at the very end are still to be reported.
                let last = (self.broken.count > 0).then(|| Chunk {
                    text: Vec::new(),
                    offset: self.offset,
                    line: self.line,
                });
                return Ok(last);
            }
            let whole = &self.rest[..self.rest.len().min(most)];
            let end = if self.ended && whole.len() == self.rest.len() {
                Some(whole.len())
            } else {
                text::records_end(&self.format, whole)
            };
            if let Some(end) = end {
                let (offset, line) = (self.offset, self.line);
                let text = self.take(end);
                self.line += text::lines(&text);
                return Ok(Some(Chunk { text, offset, line }));
            }
            if most < self.limits.record {
                most = (most * 2).min(self.limits.record);
                continue;
            }
            if self.on_error == OnError::Fail {
                return Err(self.too_long(most));
            }
            self.broken.push(self.line, "the record does not end: a quote opens and does not close, or it is longer than the budget allows".to_owned());
            self.skip_line()?;
            self.line += 1;
            most = self.limits.text;
        }
    }

    /// To the end of the line, however far that is: what is left of it would be taken for rows.
    fn skip_line(&mut self) -> Result<(), DataError> {
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.rest) {
                self.take(at + 1);
                return Ok(());
            }
            self.take(self.rest.len());
            if self.ended {
                return Ok(());
            }
            self.fill(self.limits.block)?;
        }
    }

    /// Goes on to the piece that begins at this byte, where it was left before.
    pub(super) fn skip_to(&mut self, offset: u64) -> Result<(), DataError> {
        while self.offset < offset && self.next()?.is_some() {}
        if self.offset != offset {
            return Err(DataError::unreadable(
                &self.location,
                "does not have the piece that the token names",
            ));
        }
        self.broken = BrokenRows::default();
        Ok(())
    }

    /// Hands out the first bytes of the rest. What stays is short: it is copied, the chunk is not.
    fn take(&mut self, end: usize) -> Vec<u8> {
        let rest = self.rest[end..].to_vec();
        let mut text = std::mem::replace(&mut self.rest, rest);
        text.truncate(end);
        self.offset += end as u64;
        text
    }

    /// Reads until there are so many bytes, or no more.
    fn fill(&mut self, most: usize) -> Result<(), DataError> {
        let mut filled = self.rest.len();
        if self.ended || filled >= most {
            return Ok(());
        }
        self.rest.reserve_exact(most - filled);
        while filled < most {
            // Block by block: a short file is not made room for as if it were long.
            self.rest.resize(most.min(filled + self.limits.block), 0);
            match self.bytes.read(&mut self.rest[filled..]) {
                Ok(0) => {
                    self.ended = true;
                    break;
                }
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.rest.truncate(filled);
                    return Err(own_error(&self.location, error));
                }
            }
        }
        self.rest.truncate(filled);
        Ok(())
    }

    fn too_long(&self, most: usize) -> DataError {
        let what = format!(
            "the record does not end within {}: a quote opens and does not close, or the budget must be larger (at least {})",
            super::limits::shown(most as u64),
            super::limits::shown(Limits::budget_for_record(most as u64 * 2)),
        );
        DataError::Row { location: self.location.clone(), line: self.line, what }
    }
}

fn unpacked(
    source: &Source,
    compression: Compression,
    offset: u64,
    limits: Limits,
) -> Result<Box<dyn Read + Send>, DataError> {
    let packed = Sequential::new(source.clone(), offset, limits.block);
    Ok(match compression {
        Compression::None => Box::new(packed),
        Compression::Gzip => Box::new(flate2::read::MultiGzDecoder::new(packed)),
        Compression::Zstd => {
            let failed = |error| DataError::io(source.location(), error);
            let mut decoder = zstd::Decoder::new(packed).map_err(failed)?;
            // The window of a frame is memory too.
            decoder.window_log_max(limits.zstd_window_log()).map_err(failed)?;
            Box::new(decoder)
        }
    })
}

/// The source's own words where it is the source that failed.
fn own_error(location: &str, error: io::Error) -> DataError {
    match error.downcast::<DataError>() {
        Ok(own) => own,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            DataError::unreadable(location, "is cut short: the compressed text does not end")
        }
        Err(error) => DataError::io(location, error),
    }
}
