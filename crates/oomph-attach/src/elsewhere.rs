//! Where processes cannot be called into.

use crate::error::AttachError;
use crate::interpreter::Interpreter;
use crate::process::Process;

pub(crate) fn is_possible() -> bool {
    false
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Page;

pub(crate) fn call(_: &Process, _: &Interpreter, _: &mut Page, _: &[u8]) -> Result<(), AttachError> {
    Err(AttachError::Platform)
}

pub(crate) fn call_idle(_: &Process, _: &Interpreter, _: u64) -> Result<bool, AttachError> {
    Err(AttachError::Platform)
}

pub(crate) fn wake(_: &Process) {}
