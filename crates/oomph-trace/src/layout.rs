//! What a recorder and a reader of `.oomph` files agree on: the first bytes, kinds of chunks, numbers of actions, how numbers are written, which frame marks a backward pass.
//!
//! `oomph-record` compiles this file too, by its path: it lives in other people's processes and may depend on nothing. So nothing may be used here but `core` and `Vec`.

/// The first bytes of every file.
pub const MAGIC: &[u8; 8] = b"OOMPH\r\n\x1a";

/// The version that is written.
pub const VERSION: u16 = 1;

/// The file of a frame that the recorder puts innermost: the rest of the stack is of the forward pass, whose backward pass this is.
pub const FORWARD_FOLLOWS: &str = "<autograd>";

/// An enumeration whose numbers are part of the format: listed once, so that a list of all of them lacks none.
macro_rules! numbered {
    ($(#[$meta:meta])* $visibility:vis enum $name:ident { $($(#[$doc:meta])* $variant:ident = $number:literal,)* }) => {
        $(#[$meta])*
        #[repr(u8)]
        $visibility enum $name {
            $($(#[$doc])* $variant = $number,)*
        }

        impl $name {
            /// All of them, in order of their numbers.
            #[allow(dead_code)] // unused for the kinds of chunks
            $visibility const ALL: [Self; [$($number),*].len()] = [$(Self::$variant),*];

            /// The one with this number, if there is one.
            $visibility fn from_number(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

numbered! {
    /// Kinds of chunks.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Kind {
        /// Texts, each once.
        Strings = 1,
        /// Lines of functions.
        Frames = 2,
        /// Frames, innermost first.
        Stacks = 3,
        /// A device and its streams.
        Device = 4,
        /// What happened, in columns.
        Events = 5,
        /// What is reserved and alive at one moment.
        State = 6,
        Settings = 7,
        /// Named stretches of time.
        Annotations = 8,
        End = 9,
        /// Steps that were the same as one before.
        Repeats = 10,
        /// Who held what when memory ran out.
        Census = 11,
        /// What happened to host memory, in columns.
        HostEvents = 12,
        /// What the kernel counted of the process.
        Resident = 13,
        /// Names of frames of C, which were addresses while the process ran. They may come after the end.
        Names = 14,
        /// How many steps of the program had ended.
        HostSteps = 15,
    }
}

numbered! {
    /// What an event is. The numbers are part of the `.oomph` format.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Action {
        /// A block was handed out. `size` is what was requested.
        Alloc = 0,
        /// The program freed a block.
        FreeRequested = 1,
        /// The block is back in its pool.
        FreeCompleted = 2,
        /// A segment was taken from the device.
        SegmentAlloc = 3,
        /// A segment was given back to the device.
        SegmentFree = 4,
        /// Pages were mapped into an expandable segment.
        SegmentMap = 5,
        /// Pages were unmapped from an expandable segment.
        SegmentUnmap = 6,
        Snapshot = 7,
        /// Out of memory. `size` is the rounded request, `address` what the device had free.
        OutOfMemory = 8,
        /// A live block was given a note.
        Annotate = 9,
        /// An action this version does not know.
        Other = 10,
    }
}

numbered! {
    /// How host memory was asked for. The numbers are part of the `.oomph` format.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum How {
        /// A large block of the allocator's.
        Large = 0,
        /// A small one that stands for others, chosen by chance: its size is that of all of them.
        Sampled = 1,
        /// Pages of the kernel's, of this process alone.
        Mapped = 2,
        /// Pages that other processes may have too.
        Shared = 3,
        /// A small block of Python's own allocator that stands for others, chosen by chance: its size is that of all of them.
        Object = 4,
        /// Pages that CUDA has pinned for copies to and from the GPU.
        Pinned = 5,
    }
}

impl How {
    /// Whether the size is an estimate: one block that stands for many.
    #[allow(dead_code)] // who writes has no use for it
    pub fn is_sampled(self) -> bool {
        matches!(self, How::Sampled | How::Object)
    }
}

/// Bytes of small requests from one sample to the next, on average: a line that holds a hundred MiB of small blocks is then known to five percent, and a sample costs as much as some hundred small requests.
#[allow(dead_code)] // the GPU's recorder samples nothing
pub const SAMPLED_EVERY: u64 = 64 << 10;

/// The function of the innermost frame of a block of host memory, where its file is the library that had asked for it: no line of Python.
#[allow(dead_code)] // the GPU's recorder has none
pub const CALLER: &str = "<library>";

/// The function of a frame of C begins so. Its file is the library; behind this stands where in the file it is, `0x1a2b3c`, until the recording has its name.
#[allow(dead_code)] // the GPU's recorder has none
pub const NATIVE: &str = "<native> ";

impl Action {
    /// The name that PyTorch writes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::SegmentMap => "segment_map",
            Self::SegmentUnmap => "segment_unmap",
            Self::Snapshot => "snapshot",
            Self::OutOfMemory => "oom",
            Self::Annotate => "annotate",
            Self::Other => "other",
        }
    }
}

/// Appends a number: seven bits a byte, the least first.
pub(crate) fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a number that may be negative: small ones of either sign take few bytes.
pub(crate) fn push_zigzag(out: &mut Vec<u8>, value: i64) {
    push_varint(out, ((value << 1) ^ (value >> 63)) as u64);
}
