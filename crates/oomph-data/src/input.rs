//! What is read, and how.

use crate::policy::WITHIN;
use crate::source::{self, Compression, Format, Source};
use crate::tables::{self, Table};
use crate::text::{TextFormat, TextOverrides, no_column};
use crate::{DataError, OnError, Policy};
use std::collections::HashMap;
use std::sync::Arc;

/// Something with rows and columns.
pub enum Input {
    Text {
        source: Source,
        format: TextFormat,
    },
    /// A table that has types.
    Table(Arc<dyn Table>),
}

#[derive(Debug, Clone)]
pub struct Options {
    /// How much a value may change.
    pub policy: Policy,
    /// The relative error that a profile shows beside exactness.
    pub within: f64,
    /// What to do with broken rows.
    pub on_error: OnError,
    /// Which columns, in which order; none: all.
    pub columns: Option<Vec<String>>,
    /// Whether a matrix of mostly zeros is loaded as one.
    pub sparse: Sparseness,
    pub threads: usize,
}

/// Whether numbers are loaded as a sparse matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sparseness {
    /// Where that is smaller.
    #[default]
    Auto,
    Always,
    Never,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            policy: Policy::Exact,
            within: WITHIN,
            on_error: OnError::Fail,
            columns: None,
            sparse: Sparseness::Auto,
            threads: std::thread::available_parallelism().map_or(1, |threads| threads.get().min(8)),
        }
    }
}

impl Options {
    /// The places of the columns that were asked for.
    pub(crate) fn wanted(&self, names: &[String]) -> Result<Vec<usize>, DataError> {
        let Some(columns) = &self.columns else { return Ok((0..names.len()).collect()) };
        let place = |name: &String| {
            names
                .iter()
                .position(|there| there == name)
                .ok_or_else(|| no_column(name, names.iter().map(String::as_str)))
        };
        columns.iter().map(place).collect()
    }
}

impl Input {
    /// Opens a path or an address, and recognises what it is. An array (`.npy`, `.npz`) is none: see [`crate::arrays`].
    pub fn open(location: &str, text: &TextOverrides) -> Result<Self, DataError> {
        let source = source::open(location)?;
        let (format, compression) = source::recognise(source.as_ref())?;
        Self::of(source, format, compression, text)
    }

    /// Of a source whose format is known.
    pub fn of(
        source: Source,
        format: Format,
        compression: Compression,
        text: &TextOverrides,
    ) -> Result<Self, DataError> {
        if let Some(format) = TextFormat::recognised(format, compression, text) {
            return Ok(Self::Text { source, format });
        }
        tables::open(&source, format).map(Self::Table)
    }

    /// Path, address, or what it is.
    pub fn location(&self) -> &str {
        match self {
            Self::Text { source, .. } => source.location(),
            Self::Table(table) => table.location(),
        }
    }

    /// Whether its file was written to since it was opened.
    pub(crate) fn changed(&self) -> bool {
        match self {
            Self::Text { source, .. } => source.changed(),
            Self::Table(_) => false,
        }
    }

    /// What a table says about itself besides its columns.
    pub(crate) fn metadata(&self) -> HashMap<String, String> {
        match self {
            Self::Text { .. } => HashMap::new(),
            Self::Table(table) => table.schema().metadata().clone(),
        }
    }

    /// Whether its text is compressed.
    pub(crate) fn is_packed(&self) -> bool {
        matches!(self, Self::Text { format, .. } if format.compression != Compression::None)
    }

    pub(crate) fn file_bytes(&self) -> Option<u64> {
        match self {
            Self::Text { source, .. } => Some(source.size()),
            Self::Table(table) => table.file_bytes(),
        }
    }
}
