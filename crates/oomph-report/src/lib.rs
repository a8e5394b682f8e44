//! How it looks: one model, several renderers.
//!
//! Every renderer takes what another crate says and gives a string: for a terminal (with ANSI styles, which the caller
//! strips where they are not wanted), for scripts, for issues and pull requests, and for notebooks. [`text`], [`json`], [`markdown`]
//! and [`html`] (with a [`picture`]) render what `oomph-explain` says; [`predict`], [`model`], [`fit`], [`fix`], [`replay`], [`tune`], [`data`], [`doctor`] and [`gpus`] have text and Markdown in
//! one file each, and their JSON among the types of [`json`].
//! [`run`] is what follows a run. [`chrome_trace`] and [`tensorboard`] (with [`raster`]) write for other programs, [`speedscope`] and [`pprof`] what is
//! recorded of RAM. A [`page`] has
//! what it shows of other settings replayed; nothing else is computed here, and nothing printed.

pub mod chrome_trace;
pub mod data;
pub mod doctor;
mod exports;
pub mod fit;
pub mod fix;
pub mod gpus;
mod host;
pub mod html;
pub mod json;
pub mod markdown;
pub mod model;
pub mod page;
pub mod picture;
pub mod plan;
pub mod pprof;
pub mod predict;
mod ranks;
pub mod raster;
pub mod replay;
pub mod run;
mod shared;
pub mod speedscope;
pub mod tensorboard;
pub mod text;
pub mod tune;

pub use exports::Exported;
pub use shared::{Check, CheckLimit, Metric, NOTHING_RECORDED, Named, TextOptions, worst};
