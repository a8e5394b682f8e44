//! How oomph writes and reads numbers, and shows other people's text without harm.
//!
//! Sizes in bytes are written by [`bytes`] and read by [`Size`]; the Python package (`oomph/_sizes.py`) and the report's page (`web/src/format.ts`) do the
//! same in their languages, and one table of cases, `sizes.json`, holds all three to it. Boundary: no dependencies, and nothing about memory or GPUs.

mod harmless;
mod library_code;
mod numbers;
mod size;

pub use harmless::{harmless, printable};
pub use library_code::is_library_file;
pub use numbers::{bytes, grouped, percent, plural};
pub use size::Size;
