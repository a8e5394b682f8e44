//! Bytes that are in memory already.

use super::{ReadAt, Source};
use crate::DataError;
use std::sync::Arc;

struct Memory {
    location: String,
    bytes: Vec<u8>,
}

/// A source over bytes in memory.
pub fn memory(location: &str, bytes: Vec<u8>) -> Source {
    Arc::new(Memory { location: location.to_owned(), bytes })
}

impl ReadAt for Memory {
    fn location(&self) -> &str {
        &self.location
    }

    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), DataError> {
        let from = usize::try_from(offset)
            .ok()
            .and_then(|start| self.bytes.get(start..start.checked_add(into.len())?));
        let from = from.ok_or_else(|| super::ends_early(self, offset, into.len() as u64))?;
        into.copy_from_slice(from);
        Ok(())
    }
}
