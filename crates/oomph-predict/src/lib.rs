//! Runs a PyTorch script on a virtual GPU, to say what memory it will take.
//!
//! The user's own Python and PyTorch run the script; `oomph-stage` puts the virtual GPU under them and starts it. This crate says what to run
//! and collects what it left ([`run`]), says whether it fits ([`prediction`]), and tries values and cards ([`search`]). [`ranks`] runs as few of many ranks as show what each takes, and [`plan`] says how many of which cards that makes. [`fit`] asks for a plan
//! for a script's training step. [`host`] says what it takes of the host's memory. [`model`] writes the script for a model that is known by its name. [`patch`] changes a few lines and tries that out. [`refusal`] names a library that does not take the virtual GPU. How it looks is for `oomph-report`.

pub mod fit;
pub mod host;
pub mod model;
pub mod patch;
pub mod plan;
pub mod prediction;
pub mod ranks;
pub mod refusal;
pub mod run;
pub mod search;
