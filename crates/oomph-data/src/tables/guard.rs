//! Decoders of others, held so that a damaged file cannot take the process with it.

use crate::DataError;
use std::cell::Cell;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    /// Whether a panic of this thread is caught here.
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// A panic that becomes an error is not printed as well. What others have hooked in goes on hearing of all others.
fn keep_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !CAUGHT.get() {
                previous(panic);
            }
        }));
    });
}

/// Runs a decoder; its error and its panic are both errors of the file.
pub(super) fn decoding<T, E: Display>(
    location: &str,
    decode: impl FnOnce() -> Result<T, E>,
) -> Result<T, DataError> {
    keep_quiet();
    let outer = CAUGHT.replace(true);
    // What the decoder held is dropped with it: it is never seen half-changed.
    let decoded = catch_unwind(AssertUnwindSafe(decode));
    CAUGHT.set(outer);
    match decoded {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(DataError::unreadable(location, format!("is damaged: {error}"))),
        Err(_) => Err(DataError::unreadable(location, "is damaged: its decoder gave up")),
    }
}
