//! Memory that crosses between Python and Arrow without being copied.
//!
//! Outwards, [`Memory`] owns an Arrow buffer and tells NumPy where it is (`__array_interface__`: the stable interface of Python
//! 3.10 has no buffer protocol to offer). Inwards, [`borrow`] makes an Arrow buffer of an address that a Python object gave, and
//! keeps that object.

use arrow_buffer::Buffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::panic::RefUnwindSafe;
use std::ptr::NonNull;
use std::sync::Arc;

/// A one-dimensional array of numbers that Rust made. `numpy.asarray` views it.
#[pyclass(frozen, module = "oomph._native")]
pub(crate) struct Memory {
    buffer: Buffer,
    /// NumPy's name of the type ("<i8").
    kind: String,
    /// How many values.
    values: usize,
    /// Whether nobody else has the buffer.
    ours_alone: bool,
}

impl Memory {
    pub(crate) fn new(buffer: Buffer, kind: String, values: usize) -> Self {
        // Only what Rust allocated, and only one has, can be made mutable: the same question as whether Python may write to it.
        let (buffer, ours_alone) = match buffer.into_mutable() {
            Ok(mutable) => (Buffer::from(mutable), true),
            Err(shared) => (shared, false),
        };
        Self { buffer, kind, values, ours_alone }
    }
}

#[pymethods]
impl Memory {
    /// Where it is, for NumPy.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", &self.kind)?;
        interface.set_item("shape", (self.values,))?;
        interface.set_item("data", (self.buffer.as_ptr() as usize, !self.ours_alone))?;
        Ok(interface)
    }

    /// Its bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.buffer.len()
    }

    fn __len__(&self) -> usize {
        self.values
    }
}

/// A Python object whose memory Arrow uses: it lives as long as the buffer does.
struct Owner {
    _object: Py<PyAny>,
}

// Held, never looked at.
impl RefUnwindSafe for Owner {}

/// The bytes at an address that `owner` vouches for.
///
/// The caller (python/oomph/data) got address and length from NumPy or from a view of a buffer, and `owner` is what keeps them. As
/// with every zero-copy view, whoever writes to them from another thread meanwhile gets what they deserve: values of neither
/// version, but no other memory.
pub(crate) fn borrow(owner: &Bound<'_, PyAny>, address: usize, bytes: usize) -> PyResult<Buffer> {
    let Some(pointer) = NonNull::new(address as *mut u8) else {
        return if bytes == 0 {
            Ok(Buffer::from_vec(Vec::<u8>::new()))
        } else {
            Err(PyValueError::new_err("memory at address 0"))
        };
    };
    let owner = Arc::new(Owner { _object: owner.clone().unbind() });
    // SAFETY: the bytes are the owner's, which the buffer keeps.
    Ok(unsafe { Buffer::from_custom_allocation(pointer, bytes, owner) })
}
