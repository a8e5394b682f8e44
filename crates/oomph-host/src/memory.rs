//! RAM as the kernel has it, and the control groups that limit it.

use serde::Serialize;
use std::path::Path;

/// RAM, swap, `/dev/shm` and the limits on them.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// As `/proc/meminfo` has it.
    pub ram: Option<Ram>,
    /// Swap.
    pub swap: Option<Swap>,
    /// `/dev/shm`, through which DataLoader workers hand batches over.
    pub shm: Option<Shm>,
    /// The control group of this process that limits it most, if any does.
    pub group: Option<Group>,
    /// Processors that may be used: the affinity mask and the quota of the group.
    pub processors: Option<f64>,
}

/// RAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Ram {
    /// All of it.
    pub total: u64,
    /// What new programs can have without swapping.
    pub available: u64,
    /// Used for nothing.
    pub free: u64,
    /// Of programs: heaps and stacks.
    pub anonymous: u64,
    /// Pages of files; most can be dropped.
    pub file: u64,
    /// Shared memory and tmpfs: `/dev/shm` is here.
    pub shared: u64,
    /// The kernel's own.
    pub kernel: u64,
    /// That cannot be moved out: locked (mlock, and what drivers count so).
    pub pinned: u64,
}

/// Swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Swap {
    /// All of it.
    pub total: u64,
    /// Used.
    pub used: u64,
}

/// `/dev/shm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Shm {
    /// All of it.
    pub total: u64,
    /// Used.
    pub used: u64,
}

/// A control group that limits memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Group {
    /// 1 or 2.
    pub version: u8,
    /// The smallest limit of the group and those above it.
    pub limit: u64,
    /// Charged to it.
    pub used: u64,
    /// Of that: of programs.
    pub anonymous: Option<u64>,
    /// Of that: pages of files.
    pub file: Option<u64>,
    /// Of that: shared memory.
    pub shared: Option<u64>,
    /// What is left before the kernel kills; pages of files count as free.
    pub left: u64,
    /// How often the kernel has killed in it.
    pub kills: Option<u64>,
}

/// A limit and what is left of it: the machine, or a control group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level {
    /// In bytes.
    pub limit: u64,
    /// In bytes; pages of files count as free.
    pub left: u64,
}

/// Every level that can be seen from this process, the machine first.
pub fn levels(_root: &Path) -> Vec<Level> {
    Vec::new()
}

impl Machine {
    pub(crate) fn read(_root: &Path) -> Self {
        Self { ram: None, swap: None, shm: None, group: None, processors: None }
    }
}
