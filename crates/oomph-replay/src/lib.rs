//! What would have happened: allocator models, replay, tuning, packing.

pub mod addresses;
pub mod allocator;
pub mod conf;
pub mod program;
pub mod torch;
pub mod version;
pub mod recorded;
