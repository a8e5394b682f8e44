//! What would have happened: allocator models, replay, tuning, packing.

pub mod addresses;
pub mod allocator;
pub mod bfc;
pub mod conf;
pub mod program;
pub mod torch;
pub mod tune;
pub mod version;
pub mod recorded;
pub mod replayer;
