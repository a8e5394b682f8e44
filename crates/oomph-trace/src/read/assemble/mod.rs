//! Puts a snapshot together from the operations that its encoding consists of.
//!
//! Pickle and JSON describe the same thing: nested lists and dictionaries. Both front ends drive this
//! little stack machine (push a value, open a list, close it); the machine recognises what a finished
//! dictionary *is* by its keys, and turns events, frames, blocks and segments into rows at once. No tree of
//! values is ever built for them, so memory follows the recording's size, not its encoding's.
//!
//! Boundary: nothing here executes or imports anything; a value is a number, a text, a list, a
//! dictionary or a tuple, and there is nothing else. Input is hostile: containers may be shared, refer to
//! themselves, or hold the wrong things. Each list is therefore *taken* once (a second taker finds it
//! empty), nothing recurses, and what makes no sense is counted and passed over.

mod finish;
mod machine;
mod typed;
mod value;

pub(super) use machine::{Assembler, LONGEST_TEXT};
pub(super) use typed::{EventRow, action_of};
pub(super) use value::{Value, View, known};
