//! `.oomph`: oomph's own recording format. Compact, versioned, and append-only.
//!
//! A recorder writes as it goes and may be killed at any time: whatever chunks are complete can be read.
//! Layout (all numbers little-endian; *varint* is LEB128, *zigzag* a signed number as varint):
//!
//! ```text
//! file    = magic[8] version:u16 flags:u16 chunk*          (flags: none so far; a reader refuses those it does not know)
//! magic   = "OOMPH\r\n\x1a"           (a transfer that mangles line ends or stops at ^Z is noticed)
//! chunk   = kind:u8 raw:u32 packed:u32 crc:u32 bytes[packed]
//!           raw: bytes when unpacked, at most 32 MiB; bytes: one zstd frame; crc: CRC-32 of bytes
//! ```
//!
//! | kind | content, unpacked |
//! |---|---|
//! | 1 strings | count, then for each: length, UTF-8. Ids count on from the last chunk; id 0 is "" and not written |
//! | 2 frames | count, then name, file, line each |
//! | 3 stacks | count, then for each: length, frame ids, innermost first. Id 0 is the empty stack and not written |
//! | 4 device | ordinal, flags (1 has a final state, 2 overflowed is known, 4 overflowed, 8 max_entries is known), max_entries, count of streams, streams (zigzag) |
//! | 5 events | device, count, then columns: actions (a byte each), addresses (zigzag differences), sizes, streams, stacks, times (zigzag differences), then five sparse columns (count, then row difference and value; a pool is two values): pool, compile context, metadata, category, forward traceback |
//! | 6 state | device, count of segments, then for each: address, size, stream, flags (1 small, 2 expandable), pool (two), stack, count of blocks, then for each: size, requested, state, stack |
//! | 7 settings | JSON |
//! | 8 annotations | count, then device, time (zigzag difference), name, stage each |
//! | 9 end | nothing: the recording is complete |
//! | 10 repeats | steps, events: so many steps so far were the same as one that is written, and were not written; a later one replaces it |
//! | 11 census | JSON: who held what at an out-of-memory, see [`crate::census::Census`] |
//! | 12 host events | count, then columns: actions, blocks (zigzag differences), sizes, how each was asked for (a byte), stacks, times (zigzag differences) |
//! | 13 resident | what the kernel counts of the process: time (zigzag), own memory, pages of files, shared memory, swap, the most pages that were ever there |
//! | 14 names | count, then frame and text each: what a frame of C is called, which was an address; also after the end |
//! | 15 host steps | time (zigzag), how many steps of the program had ended by then |
//!
//! Rows of an events chunk are numbered from 0 within the chunk. Chunks of a kind that a reader does not
//! know are skipped; a higher version is refused. Tables (1–3) come before the chunks that use them.

mod bytes;
mod following;
mod names;
mod reading;
mod writing;

use crate::budget::{LARGEST_RATIO, Swells};
use crate::layout::Kind;
pub use crate::layout::{MAGIC, VERSION};
pub use following::{Follower, Progress};
pub use names::append_names;
pub use reading::read;
pub(crate) use reading::read_within;
pub use writing::Writer;

/// What comes before the first chunk.
const HEADER: usize = 12;
/// No chunk unpacks to more.
const LARGEST_CHUNK: usize = 32 << 20;

/// Why an `.oomph` file cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The file could not be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// It does not begin as such a file does.
    #[error("this is not an oomph recording, or it was damaged in transfer")]
    Magic,
    /// It was written by a newer oomph.
    #[error("this recording has format version {0}; this oomph reads up to {VERSION}: update oomph")]
    Version(u16),
    /// A single stack or segment that is too large to be written.
    #[error("the recording has a stack or a segment too large for a chunk ({} MiB)", LARGEST_CHUNK >> 20)]
    TooLarge,
    /// It unpacks to more than any recording of its size.
    #[error("the recording grows more than {LARGEST_RATIO}-fold when unpacked, which no recording does")]
    Bomb,
    /// Something small that asks for memory without measure.
    #[error(transparent)]
    Swells(#[from] Swells),
    /// It says of itself what this oomph does not know.
    #[error("this recording has flags that this oomph does not know ({0:#06x}): update oomph")]
    Flags(u16),
    /// A chunk that is whole contradicts the layout.
    #[error("the recording is damaged: {0}")]
    Damaged(&'static str),
}
