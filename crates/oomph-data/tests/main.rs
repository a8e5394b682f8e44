//! Everything that this crate is tested with from outside, as one program: linking is most of what several would cost.

mod exact;
mod stream;
