//! A sparse matrix that is one already: SciPy's, from a file or from memory, with smaller indices and values.

use super::array::Array;
use super::convert::{Target, TypedBuffer, changed, room, with_native};
use super::csr::{Compressed, Csr, Index, with_index};
use super::dense::{Scan, load_dense, profile_of};
use super::{Arrays, Dtype, ShrinkOptions};
use crate::choose::Number;
use crate::source::Source;
use crate::summary::{Choice, ColumnProfile, Profile, Sparse};
use crate::target::{csr_bytes, small_indices};
use crate::{DataError, Observer, Pass, Policy, Unobserved};

/// The three arrays of a compressed matrix, and its shape.
pub struct SparseArrays {
    location: String,
    file_bytes: Option<u64>,
    shape: (u64, u64),
    compressed: Compressed,
    indptr: Array,
    indices: Array,
    data: Array,
}

/// What the first pass found, enough for the second.
pub struct ProfiledSparse {
    /// For people.
    pub profile: Profile,
    scan: Scan,
}

impl SparseArrays {
    /// From its parts, as SciPy names them.
    pub fn new(
        what: &str,
        shape: (u64, u64),
        compressed: Compressed,
        indptr: Array,
        indices: Array,
        data: Array,
    ) -> Result<Self, DataError> {
        let matrix =
            Self { location: what.to_owned(), file_bytes: None, shape, compressed, indptr, indices, data };
        let refuse = |why: &str| Err(DataError::unreadable(what, why));
        let one_dimension =
            [&matrix.indptr, &matrix.indices, &matrix.data].iter().all(|array| array.shape().len() == 1);
        if !one_dimension || matrix.indptr.elements().checked_sub(1) != Some(matrix.lines().0) {
            return refuse("is no sparse matrix: its arrays do not have the lengths that its shape asks for");
        }
        if matrix.indices.elements() != matrix.data.elements() {
            return refuse("is no sparse matrix: it has not as many indices as values");
        }
        if integer_type(&matrix.indptr).is_none() || integer_type(&matrix.indices).is_none() {
            return refuse("is no sparse matrix: its indices are not integers");
        }
        Ok(matrix)
    }

    /// Rows and columns.
    pub fn shape(&self) -> (u64, u64) {
        self.shape
    }

    /// Path, or what it is.
    pub fn location(&self) -> &str {
        &self.location
    }

    /// How many lines lie together, and how long each is.
    fn lines(&self) -> (u64, u64) {
        match self.compressed {
            Compressed::Rows => self.shape,
            Compressed::Columns => (self.shape.1, self.shape.0),
        }
    }

    /// The matrix that SciPy's `save_npz` wrote, or the arrays of any other archive.
    pub(super) fn recognise(source: &Source, mut arrays: Vec<(String, Array)>) -> Result<Arrays, DataError> {
        let has = |name: &str| arrays.iter().any(|(other, _)| other == name);
        if !["format", "shape", "data", "indices", "indptr"].into_iter().all(has) {
            return Ok(Arrays::Named(arrays));
        }
        let named = |name: &str| arrays.iter().find(|(other, _)| other == name).map(|(_, array)| array);
        let (format, shape) = match (named("format"), named("shape")) {
            (Some(format), Some(shape)) => (text(format)?, lengths(shape)?),
            _ => (None, None),
        };
        let compressed = match format.as_deref() {
            Some("csr") => Compressed::Rows,
            Some("csc") => Compressed::Columns,
            _ => return Ok(Arrays::Named(arrays)),
        };
        let Some(shape) = shape else { return Ok(Arrays::Named(arrays)) };
        let mut take = |name: &str| {
            let at = arrays.iter().position(|(other, _)| other == name);
            at.map(|at| arrays.swap_remove(at).1)
        };
        match (take("indptr"), take("indices"), take("data")) {
            (Some(indptr), Some(indices), Some(data)) => {
                let mut matrix = Self::new(source.location(), shape, compressed, indptr, indices, data)?;
                matrix.file_bytes = Some(source.size());
                Ok(Arrays::Sparse(matrix))
            }
            _ => Ok(Arrays::Named(arrays)),
        }
    }
}

fn integer_type(array: &Array) -> Option<Number> {
    match array.dtype() {
        Dtype::Number(number) if !number.is_float() => Some(*number),
        _ => None,
    }
}

/// A short string that is the whole array.
fn text(array: &Array) -> Result<Option<String>, DataError> {
    if array.elements() != 1 || array.bytes() > 64 {
        return Ok(None);
    }
    let mut blocks = array.blocks(Pass::Profiling, &Unobserved)?;
    let bytes = match blocks.next()? {
        Some(block) => block.bytes().to_vec(),
        None => return Ok(None),
    };
    // In four-byte characters, three of the bytes are zero.
    Ok(Some(bytes.into_iter().filter(|byte| *byte != 0).map(char::from).collect()))
}

fn lengths(array: &Array) -> Result<Option<(u64, u64)>, DataError> {
    if array.elements() != 2 || integer_type(array).is_none() {
        return Ok(None);
    }
    let lengths = integers::<i64>(array, Pass::Profiling, &Unobserved)?;
    Ok(match lengths.as_slice() {
        [rows, columns] => u64::try_from(*rows).ok().zip(u64::try_from(*columns).ok()),
        _ => None,
    })
}

/// Integers of any type, all of which the other type must hold.
fn integers<I: Target>(array: &Array, pass: Pass, observer: &dyn Observer) -> Result<Vec<I>, DataError> {
    let mut values = room(array.location(), array.elements())?;
    let mut blocks = array.blocks(pass, observer)?;
    let source = integer_type(array).unwrap_or(Number::Int64);
    while let Some(block) = blocks.next()? {
        if !I::append_block(source, &block, &mut values, 0.0) {
            return Err(DataError::unreadable(array.location(), "has indices that cannot be"));
        }
    }
    Ok(values)
}

/// Smallest and largest of an array of integers.
fn within_limits(array: &Array, limit: u64, observer: &dyn Observer) -> Result<(), DataError> {
    let scan = Scan::of(array, Policy::Exact, observer)?;
    match scan.integer_range() {
        Some((min, max)) if min < 0 || max >= i128::from(limit) => Err(DataError::unreadable(
            array.location(),
            format!("has indices from {min} to {max}, where 0 to {limit} (not included) are"),
        )),
        _ => Ok(()),
    }
}

/// Pointers begin at 0, never go back, and end at the number of values.
fn check_pointers(matrix: &SparseArrays, observer: &dyn Observer) -> Result<(), DataError> {
    let pointers = integers::<i64>(&matrix.indptr, Pass::Profiling, observer)?;
    let right = pointers.first() == Some(&0)
        && pointers.last().is_some_and(|last| *last as u64 == matrix.data.elements())
        && pointers.is_sorted();
    if right {
        Ok(())
    } else {
        Err(DataError::unreadable(
            matrix.indptr.location(),
            "does not lead through the values from first to last",
        ))
    }
}

/// The first pass: values are scanned, indices checked.
pub fn profile_sparse(
    matrix: &SparseArrays,
    within: Policy,
    observer: &dyn Observer,
) -> Result<ProfiledSparse, DataError> {
    check_pointers(matrix, observer)?;
    within_limits(&matrix.indices, matrix.lines().1, observer)?;
    let scan = Scan::of(&matrix.data, within, observer)?;
    let data = scan.column("data", &matrix.data);
    let (rows, columns) = matrix.shape;
    let stored = matrix.data.elements();
    let index = if small_indices(rows, columns, stored) { Number::Int32 } else { Number::Int64 };
    let bytes = csr_bytes(
        matrix.lines().0,
        matrix.lines().1,
        stored,
        data.exact.bytes.checked_div(stored).unwrap_or(0) as usize,
    );
    let places = rows.saturating_mul(columns);
    let dense = places.saturating_mul(scan.exact_width());
    let sparse = Sparse {
        stored,
        density: if places == 0 { 0.0 } else { stored as f64 / places as f64 },
        bytes,
        smaller: bytes < dense,
    };
    let columns = vec![
        data,
        index_column("indices", &matrix.indices, index),
        index_column("indptr", &matrix.indptr, index),
    ];
    let mut profile = profile_of(
        &matrix.location,
        "sparse matrix",
        matrix.file_bytes,
        rows,
        within,
        columns,
        Some(sparse),
        &[],
    );
    if matrix.file_bytes.is_some() {
        profile.peaks.retain(|peak| peak.loader == "oomph");
    }
    Ok(ProfiledSparse { profile, scan })
}

fn index_column(name: &str, array: &Array, index: Number) -> ColumnProfile {
    let choice = |name: String, width: u64| Choice {
        type_name: name,
        bytes: array.elements() * width,
        worst_relative_error: None,
    };
    let smallest = choice(index.name().to_owned(), index.width() as u64);
    ColumnProfile {
        now: choice(array.dtype().name(), array.dtype().width()),
        exact: smallest.clone(),
        within: smallest,
        ..ColumnProfile::blank(name)
    }
}

/// The second pass. A relative policy must be the one that was profiled with.
pub fn load_sparse(
    matrix: &SparseArrays,
    profiled: &ProfiledSparse,
    options: &ShrinkOptions,
    observer: &dyn Observer,
) -> Result<Csr, DataError> {
    let (rows, columns) = matrix.shape;
    let (lines, length) = matrix.lines();
    let (dtype, tolerance) = profiled.scan.chosen(options.policy);
    let data = load_dense(&matrix.data, dtype, tolerance, observer)?;
    with_index!(small_indices(rows, columns, matrix.data.elements()), Place => {
        let indptr = integers::<Place>(&matrix.indptr, Pass::Loading, observer)?;
        let indices = integers::<Place>(&matrix.indices, Pass::Loading, observer)?;
        // Checked again: they are what other programs will follow without a check.
        let leads = indptr.len() as u64 == lines + 1 && indptr.first() == Some(&0) && indptr.is_sorted() && indptr[indptr.len() - 1] as u64 == indices.len() as u64;
        if !leads || indices.iter().any(|index| *index < 0 || *index as u64 >= length) {
            return Err(changed(&matrix.location));
        }
        let parts = match data.number() {
            Some(number) if options.drop_zeros => with_native!(number, Value => without_zeros::<Value, Place>(indptr, indices, &data)),
            _ => (TypedBuffer::of(indptr), TypedBuffer::of(indices), data),
        };
        Ok(Csr { shape: matrix.shape, compressed: matrix.compressed, indptr: parts.0, indices: parts.1, data: parts.2 })
    })
}

/// Both passes.
pub fn shrink_sparse(
    matrix: &SparseArrays,
    options: &ShrinkOptions,
    observer: &dyn Observer,
) -> Result<(Csr, Profile), DataError> {
    let profiled = profile_sparse(matrix, options.policy, observer)?;
    let csr = load_sparse(matrix, &profiled, options, observer)?;
    Ok((csr, profiled.profile))
}

fn without_zeros<T: Target, I: Index>(
    mut indptr: Vec<I>,
    mut indices: Vec<I>,
    data: &TypedBuffer,
) -> (TypedBuffer, TypedBuffer, TypedBuffer) {
    let values: &[T] = data.bytes.typed_data();
    let mut kept = Vec::with_capacity(values.iter().filter(|value| !value.is_empty()).count());
    let mut at = 0;
    for end in indptr.iter_mut().skip(1) {
        while at < end.as_usize() {
            if !values[at].is_empty() {
                indices[kept.len()] = indices[at];
                kept.push(values[at]);
            }
            at += 1;
        }
        *end = I::of(kept.len() as u64);
    }
    indices.truncate(kept.len());
    indices.shrink_to_fit();
    (TypedBuffer::of(indptr), TypedBuffer::of(indices), TypedBuffer::of(kept))
}
