//! A value of a snapshot in eight bytes, and the strings whose ids are fixed.

use crate::intern::{StackId, StringId};

macro_rules! known_strings {
    ($($name:ident = $text:literal),* $(,)?) => {
        /// Strings whose ids are fixed, so that recognising a key is comparing two integers.
        pub(crate) mod known {
            #![allow(non_camel_case_types, clippy::upper_case_acronyms)]
            #[repr(u32)]
            enum Order { EMPTY, $($name),* }
            $(pub(crate) const $name: u32 = Order::$name as u32;)*
            pub(crate) const TEXTS: &[&str] = &["", $($text),*];
            const _: () = assert!(Order::EMPTY as u32 == 0);
        }
    };
}

known_strings! {
    ACTION = "action", ADDR = "addr", SIZE = "size", STREAM = "stream", TIME_US = "time_us",
    FRAMES = "frames", DEVICE_FREE = "device_free", COMPILE_CONTEXT = "compile_context",
    USER_METADATA = "user_metadata", POOL_ID = "pool_id", FORWARD_FRAMES = "forward_frames",
    CATEGORY = "category",
    ALLOC = "alloc", FREE_REQUESTED = "free_requested", FREE_COMPLETED = "free_completed", FREE = "free",
    SEGMENT_ALLOC = "segment_alloc", SEGMENT_FREE = "segment_free", SEGMENT_MAP = "segment_map",
    SEGMENT_UNMAP = "segment_unmap", SNAPSHOT = "snapshot", OOM = "oom", ANNOTATE = "annotate",
    NAME = "name", FILENAME = "filename", LINE = "line",
    STATE = "state", ADDRESS = "address", REQUESTED_SIZE = "requested_size", HISTORY = "history",
    REAL_SIZE = "real_size", ACTIVE_ALLOCATED = "active_allocated",
    ACTIVE_PENDING_FREE = "active_pending_free", ACTIVE_AWAITING_FREE = "active_awaiting_free",
    BLOCKS = "blocks", DEVICE = "device", TOTAL_SIZE = "total_size", SEGMENT_TYPE = "segment_type",
    SMALL = "small", SEGMENT_POOL_ID = "segment_pool_id", IS_EXPANDABLE = "is_expandable",
    SEGMENTS = "segments", DEVICE_TRACES = "device_traces", ALLOCATOR_SETTINGS = "allocator_settings",
    EXTERNAL_ANNOTATIONS = "external_annotations", TRACE_ALLOC_OVERFLOWED = "trace_alloc_overflowed",
    TRACE_ALLOC_MAX_ENTRIES = "trace_alloc_max_entries", HOST_SEGMENTS = "host_segments",
    HOST_TRACES = "host_traces", STAGE = "stage", START = "START", END = "END", NOT_COMPILED = "N/A",
}

/// A value on the machine's stack: 60 bits of content over 4 bits of kind, so that a hostile file of
/// one-byte opcodes costs eight bytes each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Value(u64);

const TAG_BITS: u32 = 4;
const INLINE_INT_MAX: i64 = (1 << 59) - 1;

/// What a [`Value`] holds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum View {
    None,
    Bool(bool),
    Int(i64),
    /// Index into the table of numbers that do not fit inline.
    Wide(u32),
    Float(u32),
    Text(StringId),
    List(u32),
    Dict(u32),
    Tuple(u32),
    /// A finished event, without a dictionary of its own.
    Event(u32),
    /// A finished list of frames, without a list of its own.
    Stack(StackId),
}

impl Value {
    pub(crate) const NONE: Self = Self(0);

    pub(super) const fn tagged(tag: u64, payload: u64) -> Self {
        Self(payload << TAG_BITS | tag)
    }

    pub(crate) fn bool(value: bool) -> Self {
        Self::tagged(1, u64::from(value))
    }

    /// A number, if it fits inline.
    #[inline]
    pub(super) fn int(value: i64) -> Option<Self> {
        let fits = (-INLINE_INT_MAX..=INLINE_INT_MAX).contains(&value);
        fits.then_some(Self((value as u64) << TAG_BITS | 2))
    }

    pub(crate) fn text(id: StringId) -> Self {
        Self::tagged(5, u64::from(id))
    }

    pub(crate) fn list(id: u32) -> Self {
        Self::tagged(6, u64::from(id))
    }

    pub(crate) fn dict(id: u32) -> Self {
        Self::tagged(7, u64::from(id))
    }

    pub(crate) fn event(row: u32) -> Self {
        Self::tagged(9, u64::from(row))
    }

    pub(crate) fn stack(id: StackId) -> Self {
        Self::tagged(10, u64::from(id))
    }

    #[inline]
    pub(crate) fn view(self) -> View {
        let payload = self.0 >> TAG_BITS;
        match self.0 & 15 {
            0 => View::None,
            1 => View::Bool(payload != 0),
            2 => View::Int(self.0 as i64 >> TAG_BITS),
            3 => View::Wide(payload as u32),
            4 => View::Float(payload as u32),
            5 => View::Text(payload as u32),
            6 => View::List(payload as u32),
            7 => View::Dict(payload as u32),
            8 => View::Tuple(payload as u32),
            9 => View::Event(payload as u32),
            _ => View::Stack(payload as u32),
        }
    }

    #[inline]
    pub(crate) fn key(self) -> Option<StringId> {
        match self.view() {
            View::Text(id) => Some(id),
            _ => None,
        }
    }
}
