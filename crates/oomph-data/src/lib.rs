//! Data that does not fit in RAM: what a table or an array takes now, what it could take with every value kept, and how to
//! read it so that it never takes more.
//!
//! A table is read twice. The first pass ([`profile`]) keeps counts and extremes, never rows, and says for each column the
//! smallest type that holds it; the second ([`load`]) fills buffers that have exactly the size of the result. What is
//! larger than that is read in batches under a budget ([`stream`]).
//!
//! Boundary: bytes and Arrow arrays in, Arrow arrays out. No query engine, no printing, no Python; of the rest of
//! oomph it knows `oomph-host`, for how much RAM there is.

pub mod arrays;
pub mod choose;
mod distinct;
mod error;
pub mod input;
pub mod load;
mod observer;
mod policy;
pub mod profile;
pub mod source;
pub mod stream;
mod summary;
pub mod tables;
mod target;
pub mod text;
mod threads;
mod values;
pub mod write;

pub use error::{BrokenRow, BrokenRows, DataError, OnError};
pub use observer::{Observer, Pass, Unobserved};
pub use policy::Policy;
