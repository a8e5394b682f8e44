//! The recording: what happened to memory, in order, in columns.
//!
//! Plain data. Readers fill it, `history` derives from it, nothing in it computes. A field that a
//! format does not carry is `None` or empty, never invented.

use crate::census::Census;
use crate::intern::{StackId, Stacks, StringId, Strings};
pub use crate::layout::{Action, CALLER, FORWARD_FOLLOWS, How, NATIVE, SAMPLED_EVERY};

/// Everything one file says about one process.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// What kind of file this was read from.
    pub source: Source,
    /// All text, by id.
    pub strings: Strings,
    /// All frames and stacks, by id.
    pub stacks: Stacks,
    /// The allocator's settings, as far as the file has them.
    pub settings: Settings,
    /// Named ranges and marks, by time.
    pub annotations: Vec<Annotation>,
    /// Devices that have events or segments, by ordinal.
    pub devices: Vec<Device>,
    /// The process's own memory, where that was recorded.
    pub host: Option<Host>,
    /// What a recorder saw but counted instead of writing.
    pub repeated: Repeated,
    /// Who held what when memory ran out, where a recorder inside the process could ask.
    pub censuses: Vec<Census>,
    /// What could not be read, and what was passed over.
    pub warnings: Vec<Warning>,
}

/// Steps that were the same as one that is in the recording, event by event and address by address: they left memory as they
/// found it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repeated {
    pub steps: u64,
    pub events: u64,
}

/// Where a recording came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The format, as a person would name it.
    pub format: Format,
    /// The file ended in the middle: what follows is what could be read before that.
    pub truncated: bool,
}

/// The formats that oomph reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// PyTorch's snapshot, pickled.
    #[default]
    TorchPickle,
    /// PyTorch's snapshot as JSON.
    TorchJson,
    /// PyTorch's snapshot inside a memory_viz page.
    TorchHtml,
    Oomph,
}

impl Format {
    /// The name that reports print.
    pub fn name(self) -> &'static str {
        match self {
            Self::TorchPickle => "PyTorch snapshot",
            Self::TorchJson => "PyTorch snapshot (JSON)",
            Self::TorchHtml => "PyTorch snapshot (memory_viz page)",
            Self::Oomph => "oomph recording",
        }
    }
}

/// Something the reader had to say; the recording is usable all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// A stable name for scripts.
    pub code: &'static str,
    /// One sentence for people.
    pub message: String,
}

/// No machine has more GPUs; a file that says so would cost an analysis for each.
pub(crate) const MOST_DEVICES: usize = 256;

/// One device of one process.
#[derive(Clone, Debug, Default)]
pub struct Device {
    /// The ordinal that the process gave it.
    pub ordinal: u32,
    /// What happened, oldest first.
    pub events: Events,
    /// The segments at the end, by address. Complete and true whatever the events lack.
    pub segments: Vec<Segment>,
    /// The blocks of those segments, by address; a segment names its range.
    pub blocks: Vec<Block>,
    /// Raw stream handles in order of first sight; events and segments refer to them by index.
    pub streams: Vec<i64>,
    /// How many events the recorder was set to keep, where the file says.
    pub max_entries: Option<u64>,
    /// Whether older events were overwritten, where the file says.
    pub overflowed: Option<bool>,
    /// Whether `segments` was in the file at all (a killed recorder has none).
    pub has_final_state: bool,
}

/// The memory of a process on the host.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// What happened, oldest first. Of blocks that came and went between two writes only those are there that were live when most was.
    pub events: HostEvents,
    /// What the kernel counted, oldest first.
    pub resident: Vec<Resident>,
    /// Ends of steps, oldest first: of fast ones not all.
    pub steps: Vec<HostSteps>,
}

/// How many steps of the program had ended at one moment. What was held then is in the events, whatever else is left out there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostSteps {
    /// When, in microseconds since 1970.
    pub time: i64,
    pub ended: u64,
}

/// What the line of host memory is called that was asked for where no Python was running.
pub const NO_PYTHON: &str = "no Python was running";

/// Events of host memory in columns, one row an event: [`Action::Alloc`] or [`Action::FreeCompleted`].
#[derive(Clone, Debug, Default)]
pub struct HostEvents {
    pub action: Vec<Action>,
    /// Which block: a number that no two live ones share.
    pub block: Vec<u64>,
    /// How much; of a sample, what it stands for.
    pub size: Vec<u64>,
    /// How it was asked for.
    pub how: Vec<How>,
    /// From where in the program.
    pub stack: Vec<StackId>,
    /// When, in microseconds since 1970.
    pub time: Vec<i64>,
}

impl HostEvents {
    /// How many events there are.
    pub fn len(&self) -> usize {
        self.action.len()
    }

    pub fn is_empty(&self) -> bool {
        self.action.is_empty()
    }
}

/// What the kernel counted of a process at one moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// When, in microseconds since 1970.
    pub time: i64,
    /// Memory of its own: what the machine can only take back by swapping.
    pub anonymous: u64,
    /// Pages of files: what the machine can read again.
    pub of_files: u64,
    /// Shared memory.
    pub shared: u64,
    /// On the disk.
    pub swapped: u64,
    /// The most pages of all these that were ever there at once.
    pub most: u64,
}

/// Events in columns, one row an event. Columns that most recordings lack are sparse: (row, value).
#[derive(Clone, Debug, Default)]
pub struct Events {
    pub action: Vec<Action>,
    /// Where: a block's or a segment's address; for an out-of-memory, what the device had free.
    pub address: Vec<u64>,
    /// How much: requested bytes for blocks, real bytes for segments.
    pub size: Vec<u64>,
    /// Index into [`Device::streams`].
    pub stream: Vec<u32>,
    /// From where in the program.
    pub stack: Vec<StackId>,
    /// When, in microseconds since 1970; 0 where the file has no times.
    pub time: Vec<i64>,
    /// The private pool of an event, where the file names one that is not the default.
    pub pool: Vec<(u32, PoolId)>,
    /// The compiled region, where there is one.
    pub compile_context: Vec<(u32, StringId)>,
    /// The program's own note, where there is one.
    pub metadata: Vec<(u32, StringId)>,
    /// What the recorder says the memory is (kineto conversions only).
    pub category: Vec<(u32, StringId)>,
    /// The forward traceback of a backward allocation, where it was captured.
    pub forward: Vec<(u32, StringId)>,
}

impl Events {
    /// How many events there are.
    pub fn len(&self) -> usize {
        self.action.len()
    }

    pub fn is_empty(&self) -> bool {
        self.action.is_empty()
    }

    /// How many events are of this action.
    pub fn count(&self, action: Action) -> usize {
        self.action.iter().filter(|&&a| a == action).count()
    }

    /// Whether the events carry times.
    pub fn has_times(&self) -> bool {
        self.time.first().is_some_and(|&t| t != 0) || self.time.iter().any(|&t| t != 0)
    }
}

/// A private pool's name: (0, 0) is the default pool.
pub type PoolId = (u64, u64);

/// The pool that ordinary allocations come from.
pub const DEFAULT_POOL: PoolId = (0, 0);

/// Memory taken from the device in one piece.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    pub address: u64,
    /// Its bytes.
    pub size: u64,
    /// Index into [`Device::streams`].
    pub stream: u32,
    /// Whether it serves requests of at most 1 MiB.
    pub small: bool,
    pub pool: PoolId,
    /// Whether it grows and shrinks by pages.
    pub expandable: bool,
    /// Who made it.
    pub stack: StackId,
    /// Its blocks, as a range of [`Device::blocks`].
    pub blocks: std::ops::Range<usize>,
}

/// What a block is at the end of a recording. The numbers are part of the `.oomph` format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum BlockState {
    /// Cached, free for reuse.
    #[default]
    Free = 0,
    Allocated = 1,
    /// Let go by the program, held until another stream has passed.
    PendingFree = 2,
}

/// A piece of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    pub address: u64,
    /// Its bytes after rounding.
    pub size: u64,
    /// What the program asked for; without meaning when the block is free.
    pub requested: u64,
    pub state: BlockState,
    /// Who allocated it.
    pub stack: StackId,
}

/// The allocator's settings that decide where blocks go.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Whether the file has settings at all.
    pub known: bool,
    /// `PYTORCH_CUDA_ALLOC_CONF` as it was given.
    pub conf: String,
    /// `max_split_size_mb` in bytes, if set.
    pub max_split_size: Option<u64>,
    /// `garbage_collection_threshold`, 0 when off.
    pub garbage_collection_threshold: f64,
    pub expandable_segments: bool,
    /// `roundup_power2_divisions` for the intervals that start at 1, 2, 4 … 32768 MiB.
    pub roundup_power2_divisions: [u32; 16],
    /// All settings of the file, in its order, as text (for export).
    pub all: Vec<(String, SettingValue)>,
}

/// A setting as the file has it.
#[derive(Clone, Debug, PartialEq)]
pub enum SettingValue {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    /// A table of whole numbers.
    Table(Vec<(String, i64)>),
}

/// One end of a named range, or a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Annotation {
    /// Which device's events it lies among.
    pub device: u32,
    /// When, in microseconds since 1970.
    pub time: i64,
    pub name: StringId,
    /// Which end.
    pub stage: Stage,
}

/// Which end of a range an annotation is. The numbers are part of the `.oomph` format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    Start = 0,
    End = 1,
    /// No range: a mark.
    Mark = 2,
}
