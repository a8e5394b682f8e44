//! A profile, as Python reads it and as the command prints it.

use oomph_data::profile;
use oomph_render::profile::{Look, NamedProfile, text};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// What the first pass found.
#[pyclass(frozen, module = "oomph._native")]
pub(crate) struct Profile(pub(crate) profile::Profile);

#[pymethods]
impl Profile {
    /// Its fields, as `oomph data profile --format json` names them.
    fn json(&self) -> PyResult<String> {
        serde_json::to_string(&self.0).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// As `oomph data profile` prints it, without colours and without what to type next in a shell.
    fn text(&self, width: usize, all: bool) -> String {
        let named = NamedProfile { profile: &self.0, input: &self.0.location, options: &[], all };
        text(&[named], Look { width, colors: false, next: false })
    }
}
