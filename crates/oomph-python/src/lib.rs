//! The extension module `oomph._native`: bindings, no logic.
