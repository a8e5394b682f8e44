//! What happened to GPU memory: the recording, and a reader for each format it comes in.
//!
//! It turns bytes into a [`Recording`] (events in columns, stacks and strings
//! stored once, the final segments, the settings) and derives lifetimes from it ([`History`]). What it means
//! and what to do about it is the business of other crates.
//!
//! Design constraints:
//! - **Nothing is executed.** A PyTorch snapshot is a pickle, and `pickle.load` runs what a stranger wrote
//!   into it. The reader here knows numbers, texts, lists, dictionaries and tuples, and refuses the rest.
//! - **One pass, bounded memory.** A file streams through a small window; rows are stored as they complete.
//! - **Nothing is lost that could be read.** A file cut off in the middle gives what came before.
//! - **No panic** on any input, no `unsafe`.
//!
//! # Example
//!
//! A recording is built (or read), written piece by piece as it grows, and read back:
//!
//! ```
//! use oomph_trace::{Action, Device, Frame, History, Recording, format, read_bytes};
//!
//! let mut recording = Recording::default();
//! let frame = Frame {
//!     name: recording.strings.intern("forward"),
//!     file: recording.strings.intern("model.py"),
//!     line: 42,
//! };
//! let frame = recording.stacks.intern_frame(frame);
//! let stack = recording.stacks.intern(&[frame]);
//!
//! let mut device = Device { streams: vec![0], ..Device::default() };
//! for (action, address, size) in [
//!     (Action::SegmentAlloc, 0x7000_0000, 2 << 20),
//!     (Action::Alloc, 0x7000_0000, 1000),
//!     (Action::FreeCompleted, 0x7000_0000, 1000),
//! ] {
//!     device.events.action.push(action);
//!     device.events.address.push(address);
//!     device.events.size.push(size);
//!     device.events.stream.push(0);
//!     device.events.stack.push(stack);
//!     device.events.time.push(0);
//! }
//! recording.devices.push(device);
//!
//! let mut writer = format::Writer::new(Vec::new())?;
//! writer.append(&recording)?; // readable from here on, even if the process dies
//! let bytes = writer.finish(&recording)?;
//!
//! let again = read_bytes(&bytes)?;
//! let history = History::of(&again, &again.devices[0]);
//! assert_eq!(history.peak.requested.bytes, 1000);
//! assert_eq!(history.peak.allocated.bytes, 1024); // rounded to 512
//! assert_eq!(history.peak.reserved.bytes, 2 << 20);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod budget;
pub mod census;
pub mod export;
pub mod format;
mod history;
mod host_sum;
mod intern;
mod layout;
mod read;
mod recording;

pub use budget::{Form, Swells};
pub use history::{Allocations, History, Moment, NEVER, Peak, Peaks, Ranges, Reserved, Totals};
pub use host_sum::HostSum;
pub use intern::{Frame, FrameId, NO_STACK, StackId, Stacks, StringId, Strings};
pub use read::{ReadError, read, read_bytes, read_path};
pub use recording::{
    Action, Annotation, Block, BlockState, CALLER, DEFAULT_POOL, Device, Events, FORWARD_FOLLOWS, Format,
    Host, HostEvents, HostSteps, How, NATIVE, NO_PYTHON, PoolId, Recording, Repeated, Resident,
    SAMPLED_EVERY, Segment, SettingValue, Settings, Source, Stage, Warning,
};
