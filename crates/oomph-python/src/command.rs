//! The command `oomph`, inside the extension module: the wheel carries one library, not a program beside it that has most of the same code.

use pyo3::prelude::*;
use std::ffi::OsString;

/// Runs a command line, the program's name first, and gives its exit code. The interpreter's lock is free meanwhile: the command knows no Python.
#[pyfunction]
pub(crate) fn command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| oomph_cli::command(arguments))
}
