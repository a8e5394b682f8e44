//! What Rust made, for Python to look at and to take without copying.

use crate::capsule;
use crate::memory::{Memory, also_keeping, with_ownership};
use crate::profile::Profile;
use arrow_array::cast::AsArray;
use arrow_array::{Array as _, ArrayRef, RecordBatch, RecordBatchOptions, make_array};
use arrow_buffer::{BooleanBuffer, Buffer};
use arrow_data::ArrayDataBuilder;
use arrow_ipc::reader::StreamDecoder;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, DataType, Field, TimeUnit};
use oomph_data::arrays::{Compressed, Csr, Dense, Order, TypedBuffer};
use oomph_data::load::LoadedColumn;
use oomph_data::{BrokenRows, profile};
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyList};
use std::sync::{Arc, Mutex, OnceLock};

/// A table in memory: one batch of rows.
#[pyclass(frozen, module = "oomph._native")]
pub(crate) struct Table {
    batch: RecordBatch,
    /// Name, type, bytes and worst error of each column; empty where nothing was chosen (a batch of a stream).
    columns: Vec<LoadedColumn>,
    broken_rows: BrokenRows,
    profile: Option<profile::Profile>,
    /// Of each column, whether its values lie where Rust put them: others are of whoever gave them, and never written to.
    ours: Vec<bool>,
    /// A frame of pandas that has the same memory and may write to it. Pandas copies what another frame has too before it
    /// writes, so whoever looks at this memory keeps this frame.
    guard: OnceLock<Py<PyAny>>,
}

impl Table {
    pub(crate) fn loaded(
        batch: RecordBatch,
        columns: Vec<LoadedColumn>,
        broken_rows: BrokenRows,
        profile: profile::Profile,
    ) -> PyResult<Self> {
        let (schema, arrays, rows) = batch.into_parts();
        let (arrays, ours): (Vec<_>, Vec<_>) = arrays.into_iter().map(with_array_ownership).unzip();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(schema, arrays, &options).map_err(unfit)?;
        Ok(Self { batch, columns, broken_rows, profile: Some(profile), ours, guard: OnceLock::new() })
    }

    pub(crate) fn batch(batch: RecordBatch) -> Self {
        let ours = vec![false; batch.num_columns()];
        let (columns, broken_rows) = (Vec::new(), BrokenRows::default());
        Self { batch, columns, broken_rows, profile: None, ours, guard: OnceLock::new() }
    }
}

#[pymethods]
impl Table {
    /// How many rows.
    fn __len__(&self) -> usize {
        self.batch.num_rows()
    }

    /// The names of its columns.
    #[getter]
    fn names(&self) -> Vec<String> {
        self.batch.schema().fields().iter().map(|field| field.name().clone()).collect()
    }

    /// Name, type, bytes and worst relative error of each column.
    #[getter]
    fn described(&self) -> Vec<(String, String, u64, Option<f64>)> {
        let described = |column: &LoadedColumn| {
            (column.name.clone(), column.type_name.clone(), column.bytes, column.worst_relative_error)
        };
        self.columns.iter().map(described).collect()
    }

    /// Rows that were left out: how many, and line and reason of the first.
    #[getter]
    fn broken_rows(&self) -> (u64, Vec<(u64, String)>) {
        (
            self.broken_rows.count,
            self.broken_rows.first.iter().map(|row| (row.line, row.what.clone())).collect(),
        )
    }

    /// What the first pass found.
    #[getter]
    fn profile(&self) -> Option<Profile> {
        self.profile.clone().map(Profile)
    }

    /// A column by its place.
    fn column(&self, py: Python<'_>, place: usize) -> PyResult<Column> {
        match self.batch.columns().get(place) {
            Some(array) => Ok(Column {
                array: array.clone(),
                shape: self.batch.schema().fields().get(place).and_then(|field| shape_of_rows(field)),
                ours: self.ours[place],
                guard: self.guard.get().map(|guard| guard.clone_ref(py)),
            }),
            None => Err(PyIndexError::new_err("no such column")),
        }
    }

    /// Takes the frame that whoever looks at this memory keeps from now on.
    fn keep(&self, guard: Py<PyAny>) -> PyResult<()> {
        self.guard.set(guard).map_err(|_| PyTypeError::new_err("already kept"))
    }

    /// Its rows as bytes, for another process.
    fn packed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let pack = || {
            let mut writer = StreamWriter::try_new(Vec::new(), &self.batch.schema())?;
            writer.write(&self.batch)?;
            writer.into_inner()
        };
        Ok(PyBytes::new(py, &py.detach(pack).map_err(not_exportable)?))
    }

    /// The rows that were packed.
    #[staticmethod]
    fn unpacked(py: Python<'_>, packed: &[u8]) -> PyResult<Self> {
        // Not by a reader: that makes room for what a length says, and nonsense says gigabytes.
        let unpack = || {
            let mut decoder = StreamDecoder::new();
            let batch = decoder.decode(&mut Buffer::from(packed))?;
            if batch.is_none() {
                decoder.finish()?;
            }
            Ok(batch)
        };
        let batch = py.detach(unpack).map_err(not_exportable)?;
        batch.map(Self::batch).ok_or_else(|| PyValueError::new_err("packed rows without rows"))
    }

    /// For whoever takes Arrow data; as it is, whatever was requested.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema;
        let Some(guard) = self.guard.get() else {
            return capsule::give(py, self.batch.schema(), vec![self.batch.clone()]);
        };
        let arrays = self
            .batch
            .columns()
            .iter()
            .zip(&self.ours)
            .map(|(array, ours)| if *ours { guarded(py, array, guard) } else { Ok(array.clone()) });
        let arrays = arrays.collect::<PyResult<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(self.batch.num_rows()));
        let batch = RecordBatch::try_new_with_options(self.batch.schema(), arrays, &options);
        capsule::give(py, self.batch.schema(), vec![batch.map_err(unfit)?])
    }
}

fn not_exportable(error: ArrowError) -> PyErr {
    PyValueError::new_err(format!("rows that cannot cross to another process: {error}"))
}

/// A column of a table.
#[pyclass(frozen, module = "oomph._native")]
pub(crate) struct Column {
    array: ArrayRef,
    /// Of a row, where rows are arrays.
    shape: Option<Vec<usize>>,
    /// As the table has it.
    ours: bool,
    /// As the table has it.
    guard: Option<Py<PyAny>>,
}

#[pymethods]
impl Column {
    /// Its values as NumPy would name their type: numbers, booleans, codes of a dictionary; none of anything else.
    #[getter]
    fn values(&self, py: Python<'_>) -> Option<Memory> {
        if let Some(booleans) = self.array.as_boolean_opt() {
            return Some(unpacked(booleans.values()));
        }
        let (buffer, kind) = self.numbers()?;
        let buffer = match &self.guard {
            Some(guard) if self.ours => also_keeping(buffer, guard.clone_ref(py)),
            _ => buffer,
        };
        Some(Memory::new(buffer, kind.to_owned(), self.array.len()))
    }

    /// The same, to be written to: none where anybody but the table has the memory. Whoever takes it gives the table a frame to keep.
    #[getter]
    fn values_to_write(&self) -> Option<Memory> {
        if let Some(booleans) = self.array.as_boolean_opt() {
            return Some(unpacked(booleans.values()));
        }
        let (buffer, kind) = self.numbers()?;
        // The table and this column have the array; the array and this function its values.
        let alone = self.ours && Arc::strong_count(&self.array) == 2 && buffer.strong_count() == 2;
        alone.then(|| Memory::shared_to_write(buffer, kind.to_owned(), self.array.len()))
    }

    /// For whoever takes Arrow data.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        let _ = requested_schema;
        match &self.guard {
            Some(guard) if self.ours => capsule::give_column(py, &guarded(py, &self.array, guard)?),
            _ => capsule::give_column(py, &self.array),
        }
    }

    /// For each row whether it has a value; none if all have.
    #[getter]
    fn valid(&self) -> Option<Memory> {
        self.array.logical_nulls().filter(|nulls| nulls.null_count() > 0).map(|nulls| unpacked(nulls.inner()))
    }

    /// What the codes stand for, where it has codes.
    #[getter]
    fn dictionary(&self) -> Option<Column> {
        let dictionary = self.array.as_any_dictionary_opt()?;
        Some(Column::of(dictionary.values().clone()))
    }

    /// The values of all rows, one after the other, where rows are arrays of equally many.
    #[getter]
    fn elements(&self) -> Option<Column> {
        Some(Column::of(self.array.as_fixed_size_list_opt()?.values().clone()))
    }

    /// The shape of a row, where rows are arrays.
    #[getter]
    fn shape(&self) -> Option<Vec<usize>> {
        self.shape.clone()
    }

    /// NumPy's type of times, whose values are counts of its unit ("datetime64[us]").
    #[getter]
    fn time(&self) -> Option<String> {
        Some(match self.array.data_type() {
            DataType::Date32 => "datetime64[D]".to_owned(),
            DataType::Date64 => "datetime64[ms]".to_owned(),
            DataType::Timestamp(unit, _) => format!("datetime64[{}]", unit_name(*unit)),
            DataType::Duration(unit) | DataType::Time32(unit) | DataType::Time64(unit) => {
                format!("timedelta64[{}]", unit_name(*unit))
            }
            _ => return None,
        })
    }

    /// The zone of times that have one.
    #[getter]
    fn zone(&self) -> Option<String> {
        match self.array.data_type() {
            DataType::Timestamp(_, zone) => zone.as_ref().map(ToString::to_string),
            _ => None,
        }
    }

    /// Arrow's name of its type.
    #[getter]
    fn arrow_type(&self) -> String {
        self.array.data_type().to_string()
    }

    fn __len__(&self) -> usize {
        self.array.len()
    }

    /// Text or bytes as Python's, none where there is no value.
    fn to_list<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let array = self.array.as_ref();
        match array.data_type() {
            DataType::Utf8 => PyList::new(py, array.as_string::<i32>()),
            DataType::LargeUtf8 => PyList::new(py, array.as_string::<i64>()),
            DataType::Utf8View => PyList::new(py, array.as_string_view()),
            DataType::Binary => PyList::new(py, array.as_binary::<i32>()),
            DataType::LargeBinary => PyList::new(py, array.as_binary::<i64>()),
            DataType::BinaryView => PyList::new(py, array.as_binary_view()),
            DataType::Null => PyList::new(py, std::iter::repeat_n(None::<&str>, array.len())),
            other => {
                Err(PyTypeError::new_err(format!("{other} has no kin in Python; take it as Arrow data")))
            }
        }
    }
}

fn unit_name(unit: TimeUnit) -> &'static str {
    match unit {
        TimeUnit::Second => "s",
        TimeUnit::Millisecond => "ms",
        TimeUnit::Microsecond => "us",
        TimeUnit::Nanosecond => "ns",
    }
}

/// A byte for each bit, as NumPy keeps booleans.
fn unpacked(bits: &BooleanBuffer) -> Memory {
    let bytes: Vec<u8> = bits.iter().map(u8::from).collect();
    let values = bytes.len();
    Memory::new(Buffer::from_vec(bytes), "|b1".to_owned(), values)
}

/// The shape of the rows of a column whose rows are arrays of equally many values. Arrow has a canonical way to say more than
/// the number of values: the extension type `arrow.fixed_shape_tensor`, in metadata of the field.
fn shape_of_rows(field: &Field) -> Option<Vec<usize>> {
    let DataType::FixedSizeList(_, elements) = field.data_type() else { return None };
    let elements = usize::try_from(*elements).ok()?;
    let declared = || {
        let metadata = field.metadata();
        if metadata.get("ARROW:extension:name")? != "arrow.fixed_shape_tensor" {
            return None;
        }
        let tensor: serde_json::Value =
            serde_json::from_str(metadata.get("ARROW:extension:metadata")?).ok()?;
        if tensor.get("permutation").is_some() {
            return None;
        }
        let shape: Vec<usize> = serde_json::from_value(tensor.get("shape")?.clone()).ok()?;
        let product = shape.iter().try_fold(1usize, |product, length| product.checked_mul(*length));
        (product == Some(elements)).then_some(shape)
    };
    declared().or(Some(vec![elements]))
}

impl Column {
    fn of(array: ArrayRef) -> Self {
        Self { array, shape: None, ours: false, guard: None }
    }

    /// Numbers, what is kept as numbers, and codes, where they lie, with NumPy's name of their type.
    fn numbers(&self) -> Option<(Buffer, &'static str)> {
        match self.array.as_any_dictionary_opt() {
            Some(dictionary) => numbers(dictionary.keys()),
            None => numbers(self.array.as_ref()),
        }
    }
}

/// An array, and whether its values lie where Rust put them.
fn with_array_ownership(array: ArrayRef) -> (ArrayRef, bool) {
    let is_numbers = array.as_any_dictionary_opt().is_some() || array.data_type().is_primitive();
    if !is_numbers {
        return (array, false);
    }
    let data = array.to_data();
    // From here on the values are in `data` only, if nothing else refers to them.
    drop(array);
    let (data_type, rows, nulls, offset, buffers, children) = data.into_parts();
    let (buffers, ours): (Vec<_>, Vec<_>) = buffers.into_iter().map(with_ownership).unzip();
    let data = ArrayDataBuilder::new(data_type)
        .len(rows)
        .nulls(nulls)
        .offset(offset)
        .buffers(buffers)
        .child_data(children);
    // SAFETY: the parts are those of an array that there was.
    (make_array(unsafe { data.build_unchecked() }), ours.into_iter().all(|ours| ours))
}

/// The same array, whose values keep an object too.
fn guarded(py: Python<'_>, array: &ArrayRef, guard: &Py<PyAny>) -> PyResult<ArrayRef> {
    let data = array.to_data();
    let keeping = data.buffers().iter().map(|buffer| also_keeping(buffer.clone(), guard.clone_ref(py)));
    let keeping = keeping.collect();
    data.into_builder().buffers(keeping).build().map(make_array).map_err(unfit)
}

/// Cannot be: the parts are those of an array that there is.
fn unfit(error: ArrowError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The values of an array of numbers, or of what is kept as numbers, where they lie.
fn numbers(array: &dyn arrow_array::Array) -> Option<(Buffer, &'static str)> {
    let kind = match array.data_type() {
        DataType::Int8 => "|i1",
        DataType::UInt8 => "|u1",
        DataType::Int16 => "<i2",
        DataType::UInt16 => "<u2",
        DataType::Int32 | DataType::Date32 | DataType::Time32(_) => "<i4",
        DataType::UInt32 => "<u4",
        DataType::Int64
        | DataType::Date64
        | DataType::Timestamp(..)
        | DataType::Duration(_)
        | DataType::Time64(_) => "<i8",
        DataType::UInt64 => "<u8",
        DataType::Float16 => "<f2",
        DataType::Float32 => "<f4",
        DataType::Float64 => "<f8",
        _ => return None,
    };
    let width = array.data_type().primitive_width()?;
    let data = array.to_data();
    let buffer = data.buffers().first()?.slice_with_length(data.offset() * width, data.len() * width);
    Some((buffer, kind))
}

/// A sparse matrix. Its buffers are handed over once, and are then their taker's alone.
#[pyclass(frozen, module = "oomph._native")]
pub(crate) struct Matrix {
    shape: (u64, u64),
    by_rows: bool,
    names: Option<Vec<String>>,
    profile: profile::Profile,
    parts: Mutex<Option<[TypedBuffer; 3]>>,
}

impl Matrix {
    pub(crate) fn new(csr: Csr, names: Option<Vec<String>>, profile: profile::Profile) -> Self {
        let by_rows = csr.compressed == Compressed::Rows;
        Self {
            shape: csr.shape,
            by_rows,
            names,
            profile,
            parts: Mutex::new(Some([csr.indptr, csr.indices, csr.data])),
        }
    }
}

#[pymethods]
impl Matrix {
    /// Rows and columns.
    #[getter]
    fn shape(&self) -> (u64, u64) {
        self.shape
    }

    /// Whether rows lie together (CSR), not columns (CSC).
    #[getter]
    fn by_rows(&self) -> bool {
        self.by_rows
    }

    /// The names of its columns, where it was a table.
    #[getter]
    fn names(&self) -> Option<Vec<String>> {
        self.names.clone()
    }

    /// What the first pass found.
    #[getter]
    fn profile(&self) -> Profile {
        Profile(self.profile.clone())
    }

    /// Index pointers, indices and values; once.
    fn take(&self) -> PyResult<(Memory, Memory, Memory)> {
        let parts = self.parts.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let [indptr, indices, data] = parts.ok_or_else(|| PyTypeError::new_err("already taken"))?.map(memory);
        Ok((indptr, indices, data))
    }
}

/// An array. Its buffer is handed over once, and is then its taker's alone.
#[pyclass(frozen, module = "oomph._native")]
pub(crate) struct Array {
    shape: Vec<u64>,
    fortran: bool,
    profile: profile::Profile,
    values: Mutex<Option<TypedBuffer>>,
}

impl Array {
    pub(crate) fn new(dense: Dense, profile: profile::Profile) -> Self {
        Self {
            shape: dense.shape,
            fortran: dense.order == Order::Fortran,
            profile,
            values: Mutex::new(Some(dense.values)),
        }
    }
}

#[pymethods]
impl Array {
    /// Its length along each dimension.
    #[getter]
    fn shape(&self) -> Vec<u64> {
        self.shape.clone()
    }

    /// Whether the first index changes fastest.
    #[getter]
    fn fortran(&self) -> bool {
        self.fortran
    }

    /// What the first pass found.
    #[getter]
    fn profile(&self) -> Profile {
        Profile(self.profile.clone())
    }

    /// Its elements, one after the other; once.
    fn take(&self) -> PyResult<Memory> {
        let values = self.values.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        values.map(memory).ok_or_else(|| PyTypeError::new_err("already taken"))
    }
}

fn memory(buffer: TypedBuffer) -> Memory {
    let width = buffer.dtype.width().max(1);
    let values = buffer.bytes.len() as u64 / width;
    Memory::new(buffer.bytes, buffer.dtype.descr(), values as usize)
}
