//! How it looks: one model, several renderers.
//!
//! Every renderer takes what another crate says and gives a string: for a terminal (with ANSI styles, which the caller
//! strips where they are not wanted), for scripts, and for issues and pull requests. [`text`], [`json`] and [`markdown`]
//! render what `oomph-explain` says; [`predict`], [`replay`], [`tune`], [`packing`] and [`gpus`] have all three in one file each.
//! Nothing is computed here, and nothing printed.

pub mod gpus;
pub mod json;
pub mod markdown;
pub mod packing;
pub mod predict;
pub mod replay;
mod shared;
pub mod text;
pub mod tune;

pub use shared::{Check, CheckLimit, Named, TextOptions, worst};
