//! Processes, as `/proc` has them.

use crate::{Gpus, Inside};
use serde::Serialize;
use std::path::Path;

/// A process.
#[derive(Debug, Clone, Serialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Who started it.
    pub parent: u32,
    /// Name of its user, or the number where there is no name.
    pub user: String,
    /// Short name.
    pub name: String,
    /// Program and arguments; the name where they cannot be read.
    pub command: String,
    /// As the kernel abbreviates it: R, S, D, Z (dead, not yet fetched), T …
    pub state: char,
    /// When it started, in milliseconds since 1970.
    pub started: u64,
    /// Milliseconds of processor time so far.
    pub processor: u64,
    /// In RAM, all of it: the three below.
    pub resident: u64,
    /// Of its own.
    pub anonymous: u64,
    /// Pages of files.
    pub file: u64,
    /// Shared memory.
    pub shared: u64,
    /// Out of RAM.
    pub swapped: u64,
    /// Locked or pinned, as far as the kernel counts it.
    pub pinned: u64,
    /// Memory on cards: card and bytes.
    pub on_gpus: Vec<(u32, Option<u64>)>,
    /// The container or the batch job it is in, if one can be seen.
    pub container: Option<String>,
    /// What it says of itself, if it runs under oomph.
    pub inside: Option<Inside>,
}

/// Remembers names of users.
pub(crate) struct Reader {}

impl Reader {
    pub(crate) fn new(_root: &Path) -> Self {
        Self {}
    }

    pub(crate) fn read(&mut self, _gpus: &Gpus) -> Vec<Process> {
        Vec::new()
    }
}
