//! What the recorder writes down: an event of the allocator, and a mark in time.

use crate::layout::Action;

/// One row of a chunk of events.
#[derive(Clone, Copy)]
pub struct Event {
    pub action: Action,
    pub address: u64,
    pub size: u64,
    pub stream: u32,
    pub stack: u32,
    pub time: i64,
    /// A string's id, or 0.
    pub category: u32,
}

/// A name at a moment.
pub struct Annotation {
    pub device: u32,
    pub time: i64,
    /// A string's id.
    pub name: u32,
    pub stage: Stage,
}

#[derive(Clone, Copy)]
#[repr(u8)]
pub enum Stage {
    Start = 0,
    End = 1,
    Mark = 2,
}
