//! What would have happened: allocator models, replay, tuning, packing.
//!
//! A recording is read as a [`program`]: what was asked of the allocator, in order. Any model of an [`allocator`] can
//! then be put under it: PyTorch's own ([`torch`]), TensorFlow's ([`bfc`]), or one that knows the future ([`packed`],
//! planned by [`packing`]). [`recorded`] works out what world a recording was made in and proves the model on it,
//! [`replayer`] asks what other settings would have done, [`tune`] which of them is best, and [`answer`] puts it together.
//!
//! Arrows inside: `addresses`, `allocator` ← `torch`, `bfc` ← `clues` ← `program` ← `packed`, `recorded` ← `replayer`
//! ← `tune` ← `answer`. `packing` stands alone.
//!
//! Design constraints: no I/O, no randomness that is not seeded; whatever a recording says, no panic; a number that may be
//! wrong says why.

pub mod addresses;
pub mod allocator;
pub mod answer;
pub mod bfc;
mod clues;
pub mod packed;
pub mod packing;
pub mod program;
pub mod recorded;
pub mod replayer;
pub mod torch;
pub mod tune;
