//! Where processes cannot be called into.

use crate::error::AttachError;
use crate::interpreter::Functions;
use crate::process::Process;

pub(crate) fn is_possible() -> bool {
    false
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Page;

pub(crate) fn call(process: &Process, _: Functions, _: &mut Page, _: &[u8]) -> Result<(), AttachError> {
    let _ = process;
    Err(AttachError::Platform)
}

pub(crate) fn wake(_: &Process) {}
