//! Bytes by range: local files and object storage behind one trait.

use crate::DataError;
use std::sync::Arc;

/// Something whose bytes can be read from anywhere, by several threads at once, more than once.
pub trait ReadAt: Send + Sync {
    /// Path or address, as errors name it.
    fn location(&self) -> &str;

    /// How many bytes there are.
    fn size(&self) -> u64;

    /// Fills `into` with the bytes from `offset` on; there must be that many.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), DataError>;
}

/// An opened input.
pub type Source = Arc<dyn ReadAt>;
