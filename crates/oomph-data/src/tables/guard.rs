//! Decoders of others, held so that a damaged file cannot take the process with it.

use crate::DataError;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a decoder; its error and its panic are both errors of the file.
pub(super) fn decoding<T, E: Display>(
    location: &str,
    decode: impl FnOnce() -> Result<T, E>,
) -> Result<T, DataError> {
    // What the decoder had in hand is dropped with it: nobody sees it half-changed.
    match catch_unwind(AssertUnwindSafe(decode)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(DataError::unreadable(location, format!("is damaged: {error}"))),
        Err(_) => Err(DataError::unreadable(location, "is damaged: its decoder gave up")),
    }
}
