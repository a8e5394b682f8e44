//! Errors as Python's: the machine's are `OSError`, wrong use is `ValueError`, data that makes no sense is `oomph.data.DataError`.

use pyo3::PyErr;
use pyo3::create_exception;
use pyo3::exceptions::{PyKeyboardInterrupt, PyOSError, PyValueError};
use std::io;

create_exception!(
    oomph.data,
    DataError,
    PyValueError,
    "Data that cannot be read; the message names the place, and the line where there is one."
);

/// As Python raises it.
pub(crate) fn raised(error: oomph_data::DataError) -> PyErr {
    let message = error.to_string();
    match error {
        oomph_data::DataError::Io { error, .. } => PyErr::from(io::Error::new(error.kind(), message)),
        oomph_data::DataError::Row { .. } | oomph_data::DataError::Unreadable { .. } => {
            DataError::new_err(message)
        }
        oomph_data::DataError::Usage(_) => PyValueError::new_err(message),
        oomph_data::DataError::Stopped => PyKeyboardInterrupt::new_err(()),
        #[allow(unreachable_patterns)] // an error that is added later is at least raised
        _ => PyOSError::new_err(message),
    }
}
