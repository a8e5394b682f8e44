//! GPUs, as the driver's management library (NVML) has them.

use serde::Serialize;

/// The cards, or why there are none.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Gpus {
    /// Version of the driver.
    pub driver: Option<String>,
    /// The newest CUDA that it can do, as major and minor.
    pub cuda: Option<(u32, u32)>,
    /// Why there are no cards.
    pub missing: Option<Missing>,
    /// By their numbers.
    pub cards: Vec<Gpu>,
}

/// Why no card can be seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "why", content = "detail")]
pub enum Missing {
    /// There is no driver: its library was not found.
    NoLibrary,
    /// The library is there, the driver is not loaded.
    DriverNotLoaded,
    /// The library and the kernel's driver are of two versions: an update without a restart.
    VersionMismatch,
    /// This user may not.
    NoPermission,
    /// The driver is there and sees no card.
    NoCards,
    /// Something else, in NVML's words.
    Other(String),
}

/// A card.
#[derive(Debug, Clone, Serialize)]
pub struct Gpu {
    /// As NVML counts.
    pub index: u32,
    /// Of the card.
    pub uuid: Option<String>,
    /// As its maker calls it.
    pub name: String,
    /// All of its memory.
    pub total: u64,
    /// By all processes and the driver.
    pub used: u64,
    /// Kept by the driver and the firmware; no process can have it.
    pub reserved: Option<u64>,
    /// What is left.
    pub free: u64,
    /// Per cent of the time in which a kernel ran.
    pub busy: Option<u32>,
    /// In °C.
    pub temperature: Option<u32>,
    /// In milliwatts.
    pub power: Option<u32>,
    /// Compute capability.
    pub capability: Option<(u32, u32)>,
    /// Whether it is cut into MIG instances.
    pub mig: bool,
    /// Whether only one process may use it.
    pub exclusive: bool,
    /// Whether it is oomph's virtual card.
    pub is_virtual: bool,
    /// Who has memory on it.
    pub processes: Vec<GpuProcess>,
}

/// A process on a card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GpuProcess {
    /// Its number, as the host of the driver counts: within a container it may be nobody's.
    pub pid: u32,
    /// Its memory; none where the driver does not say (WSL, some containers).
    pub bytes: Option<u64>,
    /// What for.
    pub kind: Use,
}

/// What a process uses a card for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Use {
    /// CUDA.
    Compute,
    /// A screen.
    Graphics,
    /// Both.
    Both,
}

/// Keeps NVML open.
pub(crate) struct Reader {}

impl Reader {
    pub(crate) fn new() -> Self {
        Self {}
    }

    pub(crate) fn read(&mut self) -> Gpus {
        Gpus { missing: Some(Missing::NoLibrary), ..Gpus::default() }
    }
}
