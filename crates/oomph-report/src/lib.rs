//! How it looks: one model, several renderers.
//!
//! Every renderer takes what `oomph-explain` says and gives a string: [`text`] for a terminal (with ANSI styles, which
//! the caller strips where they are not wanted), [`json`] for scripts, [`markdown`] for issues and pull requests.
//! Nothing is computed here, and nothing printed.

pub mod gpus;
pub mod json;
pub mod markdown;
pub mod packing;
pub mod replay;
mod shared;
pub mod text;
pub mod tune;

pub use shared::{Check, CheckLimit, Named, TextOptions, worst};
