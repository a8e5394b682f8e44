//! What the recorder writes down: an event of the allocator, and a mark in time.

use crate::layout::Action;

/// One row of a chunk of events.
#[derive(Clone, Copy)]
pub(crate) struct Event {
    pub(crate) action: Action,
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) stream: u32,
    pub(crate) stack: u32,
    pub(crate) time: i64,
    /// A string's id, or 0.
    pub(crate) category: u32,
}

/// A name at a moment.
pub(crate) struct Annotation {
    pub(crate) device: u32,
    pub(crate) time: i64,
    /// A string's id.
    pub(crate) name: u32,
    pub(crate) stage: Stage,
}

#[derive(Clone, Copy)]
#[repr(u8)]
pub(crate) enum Stage {
    Start = 0,
    End = 1,
    Mark = 2,
}
