//! Runs a PyTorch script on a virtual GPU, to say what memory it will take.
//!
//! The user's own Python and PyTorch run the script, with `oomph-cuda` preloaded under them. This crate finds what is
//! installed ([`installed`]), makes the libraries that are put under it ([`stubs`], [`stage`]), starts the processes
//! and collects what they left ([`run`]), says whether it fits ([`prediction`]), and tries values and cards ([`search`]).
//! [`fit`] asks for a plan for a
//! script's training step, by the Python package that the command carries (`package`). [`patch`] changes a few lines and tries that out. How it looks is for `oomph-report`.

pub mod fit;
pub mod installed;
mod package;
pub mod patch;
pub mod prediction;
pub mod run;
pub mod search;
pub mod stage;
pub mod stubs;
