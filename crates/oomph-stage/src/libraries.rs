//! The libraries that the command carries, as files.

use crate::carried;
use crate::folder::{is_private, make_private, places};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The virtual GPU: `oomph-cuda`.
pub(crate) const CUDA: Library = Library { name: "liboomph_cuda.so" };
/// The recorder of a GPU's memory: `oomph-record`.
pub const RECORD: Library = Library { name: "liboomph_record.so" };
/// What holds a program to a budget: `oomph-guard`.
pub(crate) const GUARD: Library = Library { name: "liboomph_guard.so" };
/// The recorder of the machine's memory: `oomph-ram`.
pub const RAM: Library = Library { name: "liboomph_ram.so" };

/// A library that is carried.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    pub(crate) name: &'static str,
}

impl Library {
    /// Whether it exists for this machine.
    pub fn exists(self) -> bool {
        carried::HAS_LIBRARIES
    }

    /// Writes it into a folder.
    pub fn write(self, folder: &Path) -> io::Result<PathBuf> {
        let path = folder.join(self.name);
        std::fs::write(&path, carried::library(self.name)?)?;
        Ok(path)
    }
}

/// A recorder's library as a file that stays, for processes that oomph did not start: in the user's cache, by its content.
pub fn recorder(library: Library) -> io::Result<PathBuf> {
    if !library.exists() {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this build of oomph lacks the recorder: it is in the wheel for Linux on x86-64",
        ));
    }
    let mut hasher = DefaultHasher::new();
    let bytes = carried::library(library.name)?;
    bytes.hash(&mut hasher);
    let version = format!("{}-{:016x}", env!("CARGO_PKG_VERSION"), hasher.finish());
    let cache = oomph_gpus::folders::cache().map(|folder| folder.join("oomph"));
    let mut reasons = Vec::new();
    for folder in cache.into_iter().chain(in_shared_folders()) {
        match keep(&folder, &version, library.name, &bytes) {
            Ok(path) => return Ok(path),
            Err(error) => reasons.push(format!("{}: {error}", folder.display())),
        }
    }
    Err(io::Error::other(format!("there is no folder to keep the recorder in: {}", reasons.join("; "))))
}

/// Where there is no cache that can be written: a folder of this user's own where everybody writes.
fn in_shared_folders() -> impl Iterator<Item = PathBuf> {
    #[cfg(unix)]
    let user = format!("oomph-{}", rustix::process::geteuid().as_raw());
    #[cfg(not(unix))]
    let user = "oomph".to_owned();
    places().map(move |place| place.join(&user))
}

/// Whole or not at all, whoever else writes it at the same time; and only where nobody else can change it.
fn keep(folder: &Path, version: &str, name: &str, bytes: &[u8]) -> io::Result<PathBuf> {
    make_private(folder)?;
    let folder = folder.join(version);
    make_private(&folder)?;
    let path = folder.join(name);
    if is_private(&path) && std::fs::read(&path).is_ok_and(|there| there == bytes) {
        return Ok(path);
    }
    let mut file = tempfile::NamedTempFile::new_in(&folder)?;
    file.write_all(bytes)?;
    file.persist(&path)?;
    Ok(path)
}
