//! A file on this machine, read at offsets. Never mapped: a mapped file that is cut short kills the reader.

use super::{ReadAt, Source};
use crate::DataError;
use rustix::fs::OFlags;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::sync::Arc;

struct Local {
    location: String,
    file: File,
    size: u64,
    version: String,
}

/// The time of the last change.
fn version(metadata: &Metadata) -> String {
    format!("{}.{:09}", metadata.mtime(), metadata.mtime_nsec())
}

pub(super) fn open(path: &str) -> Result<Source, DataError> {
    let refused = |error| DataError::io(path, error);
    // Without waiting: a pipe that nobody writes to would never open.
    let without_waiting = OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(true).custom_flags(without_waiting).open(path).map_err(refused)?;
    let metadata = file.metadata().map_err(refused)?;
    if metadata.is_dir() {
        return Err(DataError::unreadable(path, "is a folder; end it with / to mean every data file in it"));
    }
    if !metadata.is_file() {
        let what = if metadata.file_type().is_fifo() {
            "is a pipe, and what comes through one cannot be read twice; write it into a file first"
        } else {
            "is a device, not a plain file; copy what it gives into one first"
        };
        return Err(DataError::unreadable(path, what));
    }
    let version = version(&metadata);
    Ok(Arc::new(Local { location: path.to_owned(), file, size: metadata.len(), version }))
}

impl ReadAt for Local {
    fn location(&self) -> &str {
        &self.location
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), DataError> {
        if offset.checked_add(into.len() as u64).is_none_or(|end| end > self.size) {
            return Err(super::ends_early(self, offset, into.len() as u64));
        }
        self.file.read_exact_at(into, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => DataError::unreadable(
                &self.location,
                format!(
                    "was {} bytes long when it was opened, and has become shorter while it was read",
                    self.size
                ),
            ),
            _ => DataError::io(&self.location, error),
        })
    }

    fn version(&self) -> String {
        self.version.clone()
    }

    fn changed(&self) -> bool {
        self.file.metadata().is_ok_and(|now| version(&now) != self.version || now.len() != self.size)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    #[test]
    fn a_file_that_becomes_shorter_is_an_error() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[7; 100]).unwrap();
        let source = super::open(file.path().to_str().unwrap()).unwrap();
        let mut into = [0; 10];
        source.read_at(90, &mut into).unwrap();
        assert_eq!(into, [7; 10]);
        assert!(source.read_at(95, &mut into).unwrap_err().to_string().contains("is 100 bytes long"));
        file.as_file().set_len(50).unwrap();
        assert!(source.read_at(90, &mut into).unwrap_err().to_string().contains("has become shorter"));
    }

    #[test]
    fn a_pipe_that_nobody_writes_to_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe.csv");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
            .unwrap();
        let error = super::open(pipe.to_str().unwrap()).err().unwrap().to_string();
        assert!(error.ends_with("pipe.csv: is a pipe, and what comes through one cannot be read twice; write it into a file first"), "{error}");
        let error = super::open("/dev/zero").err().unwrap().to_string();
        assert_eq!(error, "/dev/zero: is a device, not a plain file; copy what it gives into one first");
    }

    #[test]
    fn a_folder_is_refused_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let error = super::open(folder.path().to_str().unwrap()).err().unwrap();
        assert!(error.to_string().contains("end it with /"));
    }
}
