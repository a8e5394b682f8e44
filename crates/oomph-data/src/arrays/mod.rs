//! Arrays: `.npy`, `.npz` and what is in memory, profiled in one pass and stored smaller in a second.
//!
//! Boundary: bytes in a [`crate::source::Source`] or a buffer in; buffers of exactly the result's size out. Nothing is
//! unpickled, and no more than a block of the input is held.

mod archive;
mod array;
pub(crate) mod convert;
mod csr;
mod dense;
mod dtype;
mod npy;
mod npy_header;
mod npz;
mod sparse;
#[cfg(test)]
mod tests;

pub use array::Array;
pub use convert::TypedBuffer;
pub use csr::{Compressed, Csr, CsrBuilder};
pub use dense::{Dense, ProfiledArray, load_array, profile_array, shrink_array};
pub use dtype::{Dtype, Order};
pub use npy::write_npy;
use npy_header::MAGIC;
pub use sparse::{ProfiledSparse, SparseArrays, load_sparse, profile_sparse, shrink_sparse};

use crate::source::Source;
use crate::{DataError, Policy};

/// What a file of arrays holds.
#[allow(clippy::large_enum_variant)] // There is one for a file, never a list of them.
pub enum Arrays {
    /// `.npy`.
    One(Array),
    /// `.npz`: by name, in the order of the archive.
    Named(Vec<(String, Array)>),
    /// `.npz` of SciPy's `save_npz`.
    Sparse(SparseArrays),
}

/// Opens a `.npy` or `.npz` file, by what it begins with. Headers are read, no elements.
pub fn open(source: Source) -> Result<Arrays, DataError> {
    let mut start = [0; MAGIC.len()];
    if source.size() >= start.len() as u64 {
        source.read_at(0, &mut start)?;
    }
    if &start == MAGIC { npy::open(source).map(Arrays::One) } else { npz::open(source) }
}

/// Whether a matrix of numbers becomes sparse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SparseChoice {
    /// Where that takes fewer bytes.
    #[default]
    WhereSmaller,
    Never,
    /// In any case; what is no matrix of numbers is an error.
    Always,
}

/// How arrays are stored smaller.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ShrinkOptions {
    /// How much a value may change.
    pub policy: Policy,
    /// Of two-dimensional arrays.
    pub sparse: SparseChoice,
    /// Of sparse matrices: leave zeros out that are stored. (−0.0 stays.)
    pub drop_zeros: bool,
}

/// An array, stored smaller.
#[derive(Debug, Clone, PartialEq)]
pub enum Shrunk {
    Dense(Dense),
    /// The elements that are not zero.
    Csr(Csr),
}

impl Shrunk {
    /// Bytes of its buffers.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Dense(dense) => dense.values.bytes.len() as u64,
            Self::Csr(csr) => csr.bytes(),
        }
    }
}
