//! The pickle front end: opcodes in, operations on the assembler out.
//!
//! A closed set of opcodes: those that build numbers, texts, lists, dictionaries and tuples. Every opcode
//! that could name a class, call a function or reach outside the file is refused by name. Python's writers
//! (protocols 2 to 5) and the C++ one (protocol 2, memoised after the value) come out the same.

mod event_template;
mod machine;
mod memo;
mod op;
mod operands;
mod stacks;

use super::ReadError;
use super::window::{Chunks, Window};
use crate::budget::Budget;
use crate::recording::Format;
use machine::{Ended, Machine};

/// Reads a pickled snapshot. The stream starts with the PROTO opcode.
pub(super) fn read(
    source: impl Chunks,
    format: Format,
    budget: Budget,
) -> Result<crate::Recording, ReadError> {
    let mut machine = Machine::new(budget);
    let mut window = Window::new(source);
    match machine.run(&mut window)? {
        Ended::Stop => machine.assembler.finish(format, false),
        Ended::Truncated => {
            let offset = window.offset();
            machine.assembler.close_what_is_open();
            let mut recording = machine.assembler.finish(format, true).map_err(|error| match error {
                ReadError::NotASnapshot => ReadError::TruncatedTooEarly { offset },
                other => other,
            })?;
            recording.warnings.insert(0, super::truncation_warning(offset));
            Ok(recording)
        }
    }
}
