//! How much of the long lists an explanation keeps, of a GPU's memory and of the host's.

/// Lines: all that a program has, in practice.
pub(crate) const MOST_LINES: usize = 2000;
pub(crate) const MOST_STACKS: usize = 100;
/// Frames of each of these, the innermost.
pub(crate) const MOST_FRAMES: usize = 200;
