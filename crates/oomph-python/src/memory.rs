//! Memory that crosses between Python and Arrow without being copied.
//!
//! Outwards, [`Memory`] owns an Arrow buffer and shows NumPy where it is (`__array_interface__`: the stable interface of Python
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
    /// Whether Python may write to it.
    to_write: bool,
}

impl Memory {
    pub(crate) fn new(buffer: Buffer, kind: String, values: usize) -> Self {
        let (buffer, to_write) = with_ownership(buffer);
        Self { buffer, kind, values, to_write }
    }

    /// Memory that the caller vouches for: Rust allocated it, and whoever else has it takes care of itself.
    pub(crate) fn shared_to_write(buffer: Buffer, kind: String, values: usize) -> Self {
        Self { buffer, kind, values, to_write: true }
    }
}

/// A buffer, and whether Rust allocated it and nothing else refers to it: only then can it be made mutable, and Python write to it.
pub(crate) fn with_ownership(buffer: Buffer) -> (Buffer, bool) {
    match buffer.into_mutable() {
        Ok(mutable) => (Buffer::from(mutable), true),
        Err(shared) => (shared, false),
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
        interface.set_item("data", (self.buffer.as_ptr() as usize, !self.to_write))?;
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

// Held, never read.
impl RefUnwindSafe for Owner {}

/// A buffer, and what lives as long as it does.
struct Kept {
    _buffer: Buffer,
    _object: Py<PyAny>,
}

// Held, never read.
impl RefUnwindSafe for Kept {}

/// The same bytes, for whose sake an object is kept too.
pub(crate) fn also_keeping(buffer: Buffer, object: Py<PyAny>) -> Buffer {
    let (address, bytes) = (buffer.as_ptr(), buffer.len());
    let Some(pointer) = NonNull::new(address.cast_mut()) else { return buffer };
    let kept = Arc::new(Kept { _buffer: buffer, _object: object });
    // SAFETY: the bytes are those of the buffer that is kept.
    unsafe { Buffer::from_custom_allocation(pointer, bytes, kept) }
}

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
