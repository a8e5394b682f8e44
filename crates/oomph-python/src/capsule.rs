//! Arrow data in and out of Python, by the PyCapsule interface: batches cross as pointers, and no Python package is needed for it.

use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi};
use arrow_array::ffi_stream::{ArrowArrayStreamReader, FFI_ArrowArrayStream};
use arrow_array::{
    Array, ArrayRef, RecordBatch, RecordBatchIterator, RecordBatchReader, StructArray, make_array,
};
use arrow_schema::{ArrowError, SchemaRef};
use oomph_data::DataError;
use oomph_data::tables::{Batches, Table};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};
use std::ffi::CStr;

/// The names that the interface gives to capsules.
const STREAM: &CStr = c"arrow_array_stream";
const SCHEMA: &CStr = c"arrow_schema";
const ARRAY: &CStr = c"arrow_array";

type Reader = Box<dyn RecordBatchReader + Send>;

/// Batches for whoever asks `__arrow_c_stream__`.
pub(crate) fn give<'py>(
    py: Python<'py>,
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
) -> PyResult<Bound<'py, PyCapsule>> {
    let reader = RecordBatchIterator::new(batches.into_iter().map(Ok), schema);
    PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(reader)), STREAM)
}

/// A column, for whoever asks `__arrow_c_array__`: its type, and its values.
pub(crate) fn give_column<'py>(
    py: Python<'py>,
    array: &ArrayRef,
) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
    let schema = FFI_ArrowSchema::try_from(array.data_type())
        .map_err(|error| PyTypeError::new_err(error.to_string()))?;
    let values = FFI_ArrowArray::new(&array.to_data());
    Ok((PyCapsule::new_with_value(py, schema, SCHEMA)?, PyCapsule::new_with_value(py, values, ARRAY)?))
}

/// The batches of an object that has `__arrow_c_stream__` or `__arrow_c_array__`.
fn take(object: &Bound<'_, PyAny>) -> PyResult<Reader> {
    if object.hasattr("__arrow_c_stream__")? {
        let capsule = object.call_method0("__arrow_c_stream__")?.cast_into::<PyCapsule>()?;
        let pointer = capsule.pointer_checked(Some(STREAM))?.cast::<FFI_ArrowArrayStream>();
        // SAFETY: a capsule of this name holds such a stream, by Arrow's definition; it is moved out, and an empty one left.
        let reader = unsafe { ArrowArrayStreamReader::from_raw(pointer.as_ptr()) };
        return Ok(Box::new(reader.map_err(not_a_table)?));
    }
    let pair = object.call_method0("__arrow_c_array__")?.cast_into::<PyTuple>()?;
    let (schema, array) = pair.extract::<(Bound<'_, PyCapsule>, Bound<'_, PyCapsule>)>()?;
    let schema = schema.pointer_checked(Some(SCHEMA))?.cast::<FFI_ArrowSchema>();
    let array = array.pointer_checked(Some(ARRAY))?.cast::<FFI_ArrowArray>();
    // SAFETY: capsules of these names hold these structures, by Arrow's definition, and the two belong together. The array is
    // moved out, and an empty one left; the schema is only read, while its capsule is alive.
    let data = unsafe { from_ffi(FFI_ArrowArray::from_raw(array.as_ptr()), schema.as_ref()) }
        .map_err(not_a_table)?;
    let array = make_array(data);
    let Some(rows) = array.as_any().downcast_ref::<StructArray>() else {
        return Err(PyTypeError::new_err(format!(
            "an Arrow array of {} is a column, not a table",
            array.data_type()
        )));
    };
    let batch = RecordBatch::from(rows);
    Ok(Box::new(RecordBatchIterator::new([Ok(batch.clone())], batch.schema())))
}

fn not_a_table(error: ArrowError) -> PyErr {
    PyValueError::new_err(format!("Arrow data that cannot be taken as a table: {error}"))
}

/// A table in Python's memory: asked for its batches anew on each pass.
pub(crate) struct Frame {
    object: Py<PyAny>,
    name: String,
    schema: SchemaRef,
    rows: Option<u64>,
}

impl Frame {
    pub(crate) fn new(object: &Bound<'_, PyAny>, name: String) -> PyResult<Self> {
        let schema = take(object)?.schema();
        // A relation of DuckDB has no length until it is run, and says so by raising.
        let rows = object.len().ok().map(|rows| rows as u64);
        Ok(Self { object: object.clone().unbind(), name, schema, rows })
    }
}

impl Table for Frame {
    fn location(&self) -> &str {
        &self.name
    }

    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn rows(&self) -> Option<u64> {
        self.rows
    }

    fn batches(&self, columns: Option<&[usize]>) -> Result<Batches, DataError> {
        let reader = Python::attach(|py| take(self.object.bind(py)))
            .map_err(|error| DataError::unreadable(&self.name, error.to_string()))?;
        if reader.schema() != self.schema {
            return Err(DataError::unreadable(&self.name, "its columns changed while it was read"));
        }
        let columns = columns.map(<[usize]>::to_vec);
        let name = self.name.clone();
        Ok(Box::new(reader.map(move |batch| {
            let batch = batch.and_then(|batch| {
                columns.as_ref().map_or(Ok(batch.clone()), |columns| batch.project(columns))
            });
            batch.map_err(|error| DataError::unreadable(&name, error.to_string()))
        })))
    }
}
