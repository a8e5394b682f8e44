//! Everything that this crate is tested with from outside, as one program: linking is most of what several would cost.

mod attacks;
mod properties;
mod real_recordings;
