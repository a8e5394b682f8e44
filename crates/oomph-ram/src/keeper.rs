//! Whoever has begun a recording from outside, in another process: it holds a file locked for as long as it is there, and takes it away when it ends.
//!
//! The file is looked at by its path: programs close descriptors that they do not know, and get their numbers for files of their own.

use crate::file::is_unlocked;
use std::ffi::CStr;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

pub(crate) struct Keeper(PathBuf);

impl Keeper {
    pub(crate) fn new(path: &CStr) -> Self {
        Self(OsStr::from_bytes(path.to_bytes()).into())
    }

    /// Whether nobody is there any more. Where that cannot be found out, somebody is.
    pub(crate) fn is_gone(&self) -> bool {
        match std::fs::File::open(&self.0) {
            Ok(file) => is_unlocked(&file),
            Err(error) => error.kind() == ErrorKind::NotFound,
        }
    }
}
