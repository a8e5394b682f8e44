//! Puts oomph under another program.
//!
//! [`installed`] finds the Python, its PyTorch and NVIDIA's libraries; [`fetched`] gets a PyTorch with CUDA where there is none; [`virtual_gpu`] makes the libraries that stand in for CUDA
//! (with [`stubs`] for what they need not answer); [`guard`] those that hold a program to a budget, [`ram`] the one that records its host memory; [`libraries`] and [`package`] are
//! what the command carries: four libraries and the Python package ([`carried`] has them). [`handed`] is how paths reach that Python. [`launch`] starts a process with any of them: every
//! process on the virtual GPU is started there, whoever asks, or forked from one that was ([`spare`]).
//!
//! What the program does there, and what that means, is for others to say.

mod carried;
pub mod fetched;
pub mod folder;
pub mod guard;
pub mod handed;
pub mod installed;
pub mod launch;
pub mod libraries;
pub mod package;
#[cfg(from_checkout)]
mod python_files;
pub mod ram;
#[cfg(unix)]
pub mod spare;
pub mod stubs;
pub mod virtual_gpu;

pub use folder::StageError;
pub use launch::Launch;
#[cfg(unix)]
pub use spare::Spare;
pub use virtual_gpu::VirtualGpu;
