//! The extension module `oomph._native`: bindings and the command, no logic.
//!
//! What a user sees is in `python/oomph/data`; this hands its arguments to `oomph-data` and gives back what that says. Three
//! things are its own, because only it stands between the two: who holds the interpreter's lock and hears Ctrl-C ([`work`]),
//! whose memory a buffer is ([`memory`]), and how Arrow's data crosses ([`capsule`]).

mod capsule;
mod command;
mod errors;
mod input;
mod memory;
mod profile;
mod results;
mod stream;
mod work;

/// The module.
#[pyo3::pymodule(name = "_native")]
mod native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::command::command;
    #[pymodule_export]
    use crate::errors::DataError;
    #[pymodule_export]
    use crate::input::Input;
    #[pymodule_export]
    use crate::memory::Memory;
    #[pymodule_export]
    use crate::profile::Profile;
    #[pymodule_export]
    use crate::results::{Array, Column, Matrix, Table};
    #[pymodule_export]
    use crate::stream::Stream;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        oomph_data::source::on_waiting(crate::work::warn);
        // The package asks: a library of another version answers differently.
        module.add("VERSION", env!("CARGO_PKG_VERSION"))
    }
}
