//! What a process could have, as the page shows it.

use crate::replay::{Typed, room};
use oomph_replay::allocator::Memory;
use oomph_replay::recorded::RecordedMemory;
use oomph_words::{bytes, printable};
use serde::Serialize;

/// What a process could have: a line in the timeline.
#[derive(Clone, Debug, Serialize)]
pub struct Limit {
    /// Bytes of segments.
    pub bytes: u64,
    /// What it is, in words.
    pub text: String,
}

impl Limit {
    /// What was asked about.
    pub fn asked(memory: Memory, typed: &Typed) -> Option<Self> {
        let bytes = room(memory)?;
        let text = match (&typed.card, memory.limit) {
            (Some(card), None) => format!("{}, what is usable of it", printable(card)),
            (_, Some(limit)) if limit <= memory.free => "the limit that was asked about".to_owned(),
            _ => "the memory that was asked about".to_owned(),
        };
        Some(Self { bytes, text })
    }

    /// What the recorded program had, if it ever ran short.
    pub fn recorded(memory: &RecordedMemory) -> Option<Self> {
        let room = room(memory.memory)?;
        let what =
            if memory.memory.limit.is_some() { "the limit on the process" } else { "what the device had" };
        let text = match memory.below {
            Some(below) if below > room + 1 => format!("{what}: at least this, less than {}", bytes(below)),
            _ => what.to_owned(),
        };
        Some(Self { bytes: room, text })
    }
}
