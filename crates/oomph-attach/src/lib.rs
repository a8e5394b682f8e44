//! Runs a line of Python in a process that runs already.
//!
//! The line is run by the process's own main thread, between two instructions of its Python: never in the middle of `malloc`, and only when that thread comes back to Python. From 3.14 on Python has
//! that itself ([`remote`]). Before, a thread of the process is stopped for about a millisecond to call `Py_AddPendingCall` ([`injection`], which says what is put back), whose address is looked up
//! in the files that the process has mapped ([`interpreter`], [`symbols`]). What must be true of the process is looked at first ([`process`]), and why not is an [`AttachError`] with what to do.
//!
//! A function of C can be called too, where a thread waits for input, for time or for a child: Python need not run then.
//!
//! Boundary: what the line does, and how its success is heard of, is the caller's.

// Elsewhere nothing is called, and what would be is only looked up.
#![cfg_attr(not(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu")), allow(dead_code))]

mod error;
mod interpreter;
mod process;
mod remote;
mod symbols;
mod target;

#[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]
mod injection;
#[cfg(not(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu")))]
#[path = "elsewhere.rs"]
mod injection;

pub use error::AttachError;
pub use process::Process;
pub use target::Target;
