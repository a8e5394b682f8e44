//! What renderers share, and how a profile of data looks.
//!
//! [`terminal`], [`shell`] and [`markdown`] lay text out for where it goes; [`profile`] renders what `oomph-data` counted, for the command
//! and for the extension module alike. Boundary: strings out, nothing printed; recordings and what is said of them are `oomph-report`'s, so
//! that the extension module is built without them.

pub mod markdown;
pub mod profile;
pub mod shell;
pub mod terminal;
