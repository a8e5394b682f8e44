//! Writers for other people's formats: a recording as PyTorch would have written it.
//!
//! One description of the snapshot's shape ([`snapshot`]), two encoders: pickle protocol 4, which every
//! version of memory_viz reads, and JSON.

mod json;
mod pickle;
mod snapshot;

pub use json::{stacks_in_json, write_json};
pub use pickle::write_pickle;
