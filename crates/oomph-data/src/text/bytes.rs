//! The bytes of a text file in order, unpacked.

use crate::DataError;
use crate::source::Compression;
use crate::source::Source;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Reads a source from its beginning.
struct FromStart {
    source: Source,
    at: u64,
    done: Arc<AtomicU64>,
}

impl Read for FromStart {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.source.size() - self.at).unwrap_or(usize::MAX);
        let most = into.len().min(left);
        if most > 0 {
            self.source.read_at(self.at, &mut into[..most]).map_err(io::Error::other)?;
            self.at += most as u64;
            self.done.store(self.at, Ordering::Relaxed);
        }
        Ok(most)
    }
}

/// The unpacked bytes, and how far into the file they reach.
pub(crate) fn open(
    source: &Source,
    compression: Compression,
) -> Result<(Box<dyn Read + Send>, Arc<AtomicU64>), DataError> {
    let done = Arc::new(AtomicU64::new(0));
    let packed = FromStart { source: Arc::clone(source), at: 0, done: Arc::clone(&done) };
    let bytes: Box<dyn Read + Send> = match compression {
        Compression::None => Box::new(packed),
        Compression::Gzip => {
            Box::new(flate2::bufread::MultiGzDecoder::new(io::BufReader::with_capacity(1 << 18, packed)))
        }
        Compression::Zstd => {
            let unpacked =
                zstd::stream::read::Decoder::with_buffer(io::BufReader::with_capacity(1 << 18, packed));
            Box::new(unpacked.map_err(|error| DataError::io(source.location(), error))?)
        }
    };
    Ok((bytes, done))
}

/// What a read that failed says: the source's own words where it is the source that failed.
pub(crate) fn data_error(location: &str, error: io::Error) -> DataError {
    if !error.get_ref().is_some_and(|inner| inner.is::<DataError>()) {
        return DataError::io(location, error);
    }
    match error.into_inner().map(|inner| inner.downcast::<DataError>()) {
        Some(Ok(inner)) => *inner,
        _ => DataError::unreadable(location, "could not be read"),
    }
}
