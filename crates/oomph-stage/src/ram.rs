//! The recorder of host memory: a library under all of the program's processes.

use crate::StageError;
use crate::libraries::RAM;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The library, and what it is told.
#[derive(Debug)]
pub struct Ram {
    pub(crate) library: PathBuf,
    pub(crate) description: OsString,
    pub(crate) native: bool,
}

impl Ram {
    /// Writes the library. `output`: the recording of the program's first process; others put their number behind its name. `native`: with functions of C.
    pub fn set(folder: &Path, output: &Path, most_bytes: u64, native: bool) -> Result<Ram, StageError> {
        if !RAM.exists() {
            return Err(StageError::Platform);
        }
        let library = RAM.write(folder).map_err(|error| StageError::write(folder, error))?;
        let mut description = OsString::from(format!("{}:{most_bytes}:", std::process::id()));
        description.push(output.with_extension(""));
        Ok(Ram { library, description, native })
    }
}
