//! Tables that have types already: Parquet, Arrow IPC, and whatever gives Arrow batches.
//!
//! Boundary: bytes of a [`Source`] in, record batches out, one after the other and never more than one at a time. Files are
//! not trusted: what they say about lengths is held against the size of the file, and where the decoders beneath
//! panic, that is an error like any other (`guard`).

mod guard;
pub mod ipc;
pub mod parquet;

use crate::DataError;
use crate::source::{Format, Source};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use std::sync::Arc;

/// Batches, one after the other.
pub type Batches = Box<dyn Iterator<Item = Result<RecordBatch, DataError>> + Send>;

/// A table that can be read more than once, in order.
pub trait Table: Send + Sync {
    /// Path, address, or what it is ("a pandas DataFrame").
    fn location(&self) -> &str;

    /// "parquet", "arrow ipc", or "arrow" where it is in memory.
    fn format(&self) -> &str {
        "arrow"
    }

    /// Bytes of its file, where it has one.
    fn file_bytes(&self) -> Option<u64> {
        None
    }

    /// Names and types of all columns.
    fn schema(&self) -> SchemaRef;

    /// How many rows, where that is known without reading.
    fn rows(&self) -> Option<u64>;

    /// From the first row: the columns at these places of the schema, in that order, or all.
    fn batches(&self, columns: Option<&[usize]>) -> Result<Batches, DataError>;
}

/// Opens a table of one of the formats that have types: Parquet and Arrow IPC.
pub fn open(source: &Source, format: Format) -> Result<Arc<dyn Table>, DataError> {
    match format {
        Format::Parquet => Ok(Arc::new(parquet::File::open(source.clone())?)),
        Format::ArrowFile | Format::ArrowStream => Ok(Arc::new(ipc::File::open(source.clone(), format)?)),
        Format::Csv { .. } | Format::JsonLines | Format::Npy | Format::Npz => {
            Err(DataError::unreadable(source.location(), "is neither Parquet nor Arrow IPC"))
        }
    }
}

/// Columns in the order that was asked for; readers give them in the order of the file.
fn in_order(batch: &RecordBatch, columns: Option<&[usize]>) -> Result<RecordBatch, arrow_schema::ArrowError> {
    let Some(columns) = columns else { return Ok(batch.clone()) };
    let mut of_file = columns.to_vec();
    of_file.sort_unstable();
    let places: Vec<usize> = columns.iter().filter_map(|column| of_file.binary_search(column).ok()).collect();
    batch.project(&places)
}
