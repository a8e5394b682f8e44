//! How long work reports its progress, and how it is stopped.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// The first: what is in it.
    Profiling,
    /// The second: values into buffers.
    Loading,
    /// The second: values into a file.
    Writing,
}

/// Watches long work. Called between chunks, from any thread.
pub trait Observer: Sync {
    /// So many of so many bytes of the input are behind.
    fn advanced(&self, _pass: Pass, _done: u64, _total: u64) {}

    /// Whether to end with [`crate::DataError::Stopped`].
    fn stopped(&self) -> bool {
        false
    }
}

pub struct Unobserved;

impl Observer for Unobserved {}
