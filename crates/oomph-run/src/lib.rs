//! Runs a program as it is, with oomph inside: a recorder in each of its Python processes, a guard under its CUDA.
//!
//! The program is started as its user would start it. Only its environment differs: a folder on `PYTHONPATH` whose
//! `sitecustomize` puts the recorder into every Python process, the program's own children included ([`left`]), and what
//! `oomph-stage` puts under CUDA: a guard where a budget is set, a virtual card where one is asked for. Standard input, output and the terminal are the program's; signals
//! reach it; its exit code is the result ([`launch`]).
//!
//! A process that runs already gets the recorder of host memory alone, for as long as the command is there ([`attach`]).
//!
//! What the recordings say is for others (`oomph-explain`) to say.

#[cfg(unix)]
pub mod attach;
pub mod launch;
pub mod left;

pub use launch::{LaunchError, Program, Ran};
