//! `.npz`: `.npy` files in a zip archive.

use super::archive::directory;
use super::npy_header::Header;
use super::sparse::SparseArrays;
use super::{Array, Arrays};
use crate::DataError;
use crate::source::Source;
use std::collections::HashSet;

/// Opens a `.npz` file: arrays by name (without `.npy`), in the order of the archive, or the matrix that SciPy's
/// `save_npz` wrote. Its directory and the headers of its arrays are read.
pub(super) fn open(source: Source) -> Result<Arrays, DataError> {
    let mut arrays = Vec::new();
    let mut names = HashSet::new();
    for member in directory(&source)? {
        let name = member.name.strip_suffix(".npy").unwrap_or(&member.name).to_owned();
        if !names.insert(name.clone()) {
            return Err(DataError::unreadable(source.location(), format!("holds {name:?} twice")));
        }
        let header = Header::read(&mut member.reader(4096)?, &member.location())?;
        arrays.push((name, Array::of_member(member, header)?));
    }
    SparseArrays::recognise(&source, arrays)
}
