//! What data is read from, and the three things that are done with it.

use crate::capsule::Frame;
use crate::errors::raised;
use crate::memory::borrow;
use crate::profile::Profile;
use crate::results::{Array, Matrix, Table};
use crate::work;
use oomph_data::arrays::{self, Arrays, Compressed, ShrinkOptions, Shrunk, SparseArrays, SparseChoice};
use oomph_data::input::{self, Options, Sparseness};
use oomph_data::source::{self, Format};
use oomph_data::text::TextOverrides;
use oomph_data::{DataError, Observer, OnError, Policy, load, profile, write};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::Arc;

/// What data is read from.
#[pyclass(frozen, module = "oomph._native")]
pub(crate) struct Input {
    held: Held,
    text: TextOverrides,
}

enum Held {
    Location(String),
    Frame(Arc<Frame>),
    Arrays(Arc<Arrays>),
}

/// An input, ready to be read.
enum Opened {
    Table(input::Input),
    Arrays(Arc<Arrays>),
}

/// An array in Python's memory: owner, address and bytes of what it has, NumPy's name of the type, shape, where in the memory it
/// begins, strides.
type Described<'py> = (Bound<'py, PyAny>, usize, usize, String, Vec<u64>, usize, Vec<i64>);

fn in_memory(
    what: &str,
    (owner, address, bytes, descr, shape, start, strides): Described<'_>,
) -> PyResult<arrays::Array> {
    let buffer = borrow(&owner, address, bytes)?;
    arrays::Array::in_memory(what, buffer, &descr, &shape, start, &strides).map_err(raised)
}

#[pymethods]
impl Input {
    /// A path or an address.
    #[staticmethod]
    #[pyo3(signature = (location, delimiter=None, header=true, nulls=None))]
    fn location(
        location: String,
        delimiter: Option<String>,
        header: bool,
        nulls: Option<Vec<String>>,
    ) -> PyResult<Self> {
        let delimiter = match delimiter.as_deref().map(str::as_bytes) {
            None => None,
            Some([byte]) => Some(*byte),
            Some(_) => {
                return Err(PyValueError::new_err("a delimiter is one character of ASCII, such as \";\""));
            }
        };
        let text = TextOverrides { delimiter, no_header: !header, nulls: nulls.unwrap_or_default() };
        Ok(Self { held: Held::Location(location), text })
    }

    /// Anything that has `__arrow_c_stream__` or `__arrow_c_array__`.
    #[staticmethod]
    fn frame(object: &Bound<'_, PyAny>, name: String) -> PyResult<Self> {
        Ok(Self { held: Held::Frame(Arc::new(Frame::new(object, name)?)), text: TextOverrides::default() })
    }

    /// Elements in memory.
    #[staticmethod]
    fn array(what: &str, described: Described<'_>) -> PyResult<Self> {
        let array = in_memory(what, described)?;
        Ok(Self { held: Held::Arrays(Arc::new(Arrays::One(array))), text: TextOverrides::default() })
    }

    /// A compressed matrix in memory, by rows or by columns.
    #[staticmethod]
    fn sparse(
        what: &str,
        shape: (u64, u64),
        by_rows: bool,
        indptr: Described<'_>,
        indices: Described<'_>,
        data: Described<'_>,
    ) -> PyResult<Self> {
        let compressed = if by_rows { Compressed::Rows } else { Compressed::Columns };
        let [indptr, indices, data] = [indptr, indices, data].map(|described| in_memory(what, described));
        let matrix = SparseArrays::new(what, shape, compressed, indptr?, indices?, data?).map_err(raised)?;
        Ok(Self { held: Held::Arrays(Arc::new(Arrays::Sparse(matrix))), text: TextOverrides::default() })
    }

    /// Whether it is arrays or a matrix, not a table.
    fn holds_arrays(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(matches!(self.open(py)?, Opened::Arrays(_)))
    }

    /// The first pass: a `Profile`; of an archive of several arrays, pairs of name and profile.
    #[pyo3(signature = (within, columns, on_error, progress=None))]
    fn profile(
        &self,
        py: Python<'_>,
        within: &str,
        columns: Option<Vec<String>>,
        on_error: &str,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let options = options(within, columns, on_error, "auto")?;
        let opened = self.open(py)?;
        let profiles = work::run(py, progress.as_ref(), |watch| match &opened {
            Opened::Table(input) => Ok(Profiles::One(Box::new(profile::of(input, &options, watch)?.profile))),
            Opened::Arrays(arrays) => profile_arrays(arrays, options.policy, watch),
        })?;
        match profiles {
            Profiles::One(profile) => Profile(*profile).into_py_any(py),
            Profiles::Named(named) => {
                let pairs: Vec<(String, Profile)> =
                    named.into_iter().map(|(name, profile)| (name, Profile(profile))).collect();
                pairs.into_py_any(py)
            }
        }
    }

    /// Both passes, into memory: a `Table`, a `Matrix` or an `Array`; of an archive of several arrays, pairs of name and array.
    #[pyo3(signature = (policy, columns, on_error, sparse, progress=None))]
    fn load(
        &self,
        py: Python<'_>,
        policy: &str,
        columns: Option<Vec<String>>,
        on_error: &str,
        sparse: &str,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let options = options(policy, columns, on_error, sparse)?;
        let opened = self.open(py)?;
        let product = work::run(py, progress.as_ref(), |watch| match &opened {
            Opened::Table(input) => {
                let profiled = profile::of(input, &options, watch)?;
                let loaded = load::load(input, &profiled, &options, watch)?;
                Ok(Product::Table(Box::new(loaded), Box::new(profiled.profile)))
            }
            Opened::Arrays(arrays) => shrink_arrays(arrays, &options, watch),
        })?;
        product.give(py)
    }

    /// Both passes, into a Parquet file. Gives JSON that says what was written.
    #[pyo3(signature = (out, policy, columns, on_error, progress=None))]
    fn write(
        &self,
        py: Python<'_>,
        out: PathBuf,
        policy: &str,
        columns: Option<Vec<String>>,
        on_error: &str,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<String> {
        let options = options(policy, columns, on_error, "never")?;
        let opened = self.open(py)?;
        let written = work::run(py, progress.as_ref(), |watch| match &opened {
            Opened::Table(input) => {
                let profiled = profile::of(input, &options, watch)?;
                write::parquet_file(input, &profiled, &out, &options, watch)
            }
            Opened::Arrays(_) => Err(DataError::Usage(
                "an array is not written as Parquet; shrink it without out=, and save what that gives"
                    .to_owned(),
            )),
        })?;
        serde_json::to_string(&written).map_err(|error| PyValueError::new_err(error.to_string()))
    }
}

impl Input {
    /// Finds out what it is; of what is in memory, that is known.
    fn open(&self, py: Python<'_>) -> PyResult<Opened> {
        let location = match &self.held {
            Held::Location(location) => location.clone(),
            Held::Frame(frame) => return Ok(Opened::Table(input::Input::Table(frame.clone()))),
            Held::Arrays(arrays) => return Ok(Opened::Arrays(arrays.clone())),
        };
        let text = self.text.clone();
        work::wait(py, move || {
            let source = source::open(&location)?;
            let (format, compression) = source::recognise(source.as_ref())?;
            match format {
                Format::Npy | Format::Npz => {
                    arrays::open(source).map(|arrays| Opened::Arrays(Arc::new(arrays)))
                }
                _ => input::Input::of(source, format, compression, &text).map(Opened::Table),
            }
        })
    }
}

/// Of what was read, before it becomes Python's.
enum Product {
    Table(Box<load::Loaded>, Box<profile::Profile>),
    Array(Shrunk, Box<profile::Profile>),
    Named(Vec<(String, Shrunk, profile::Profile)>),
}

impl Product {
    fn give(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self {
            Self::Table(loaded, profile) => match loaded.data {
                load::Data::Table(batch) => {
                    Table::loaded(batch, loaded.columns, loaded.broken_rows, *profile)?.into_py_any(py)
                }
                load::Data::Matrix(csr) => {
                    let names = loaded.columns.iter().map(|column| column.name.clone()).collect();
                    Matrix::new(csr, Some(names), *profile).into_py_any(py)
                }
            },
            Self::Array(shrunk, profile) => give_array(py, shrunk, *profile),
            Self::Named(named) => {
                let pairs = named
                    .into_iter()
                    .map(|(name, shrunk, profile)| Ok((name, give_array(py, shrunk, profile)?)));
                pairs.collect::<PyResult<Vec<_>>>()?.into_py_any(py)
            }
        }
    }
}

fn give_array(py: Python<'_>, shrunk: Shrunk, profile: profile::Profile) -> PyResult<Py<PyAny>> {
    match shrunk {
        Shrunk::Dense(dense) => Array::new(dense, profile).into_py_any(py),
        Shrunk::Csr(csr) => Matrix::new(csr, None, profile).into_py_any(py),
    }
}

enum Profiles {
    One(Box<profile::Profile>),
    Named(Vec<(String, profile::Profile)>),
}

fn profile_arrays(arrays: &Arrays, within: Policy, watch: &dyn Observer) -> Result<Profiles, DataError> {
    let one = |profile| Ok(Profiles::One(Box::new(profile)));
    match arrays {
        Arrays::One(array) => one(arrays::profile_array(array, within, watch)?.profile),
        Arrays::Sparse(matrix) => one(arrays::profile_sparse(matrix, within, watch)?.profile),
        Arrays::Named(named) => {
            let each = named.iter().map(|(name, array)| {
                Ok((name.clone(), arrays::profile_array(array, within, watch)?.profile))
            });
            each.collect::<Result<_, DataError>>().map(Profiles::Named)
        }
    }
}

fn shrink_arrays(arrays: &Arrays, options: &Options, watch: &dyn Observer) -> Result<Product, DataError> {
    let sparse = match options.sparse {
        Sparseness::Auto => SparseChoice::WhereSmaller,
        Sparseness::Always => SparseChoice::Always,
        Sparseness::Never => SparseChoice::Never,
    };
    let options = ShrinkOptions { policy: options.policy, sparse, drop_zeros: false };
    let boxed = |(shrunk, profile)| Product::Array(shrunk, Box::new(profile));
    match arrays {
        Arrays::One(array) => arrays::shrink_array(array, &options, watch).map(boxed),
        Arrays::Sparse(matrix) => arrays::shrink_sparse(matrix, &options, watch)
            .map(|(csr, profile)| boxed((Shrunk::Csr(csr), profile))),
        Arrays::Named(named) => {
            let each = named.iter().map(|(name, array)| {
                let (shrunk, profile) = arrays::shrink_array(array, &options, watch)?;
                Ok((name.clone(), shrunk, profile))
            });
            each.collect::<Result<_, DataError>>().map(Product::Named)
        }
    }
}

fn options(policy: &str, columns: Option<Vec<String>>, on_error: &str, sparse: &str) -> PyResult<Options> {
    let on_error = match on_error {
        "fail" => OnError::Fail,
        "skip" => OnError::Skip,
        _ => {
            return Err(PyValueError::new_err(format!(
                "on_error={on_error:?} is neither \"fail\" nor \"skip\""
            )));
        }
    };
    let sparse = match sparse {
        "auto" => Sparseness::Auto,
        "always" => Sparseness::Always,
        "never" => Sparseness::Never,
        _ => {
            return Err(PyValueError::new_err(format!(
                "sparse={sparse:?} is none of \"auto\", \"always\" and \"never\""
            )));
        }
    };
    Ok(Options { policy: policy.parse().map_err(raised)?, on_error, columns, sparse, ..Options::default() })
}
