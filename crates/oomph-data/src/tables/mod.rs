//! Tables that have types already: Parquet, Arrow IPC, and whatever gives Arrow batches.

use crate::DataError;
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;

/// Batches, one after the other.
pub type Batches = Box<dyn Iterator<Item = Result<RecordBatch, DataError>> + Send>;

/// A table that can be read more than once, in order.
pub trait Table: Send + Sync {
    /// Path, address, or what it is ("a pandas DataFrame").
    fn location(&self) -> &str;

    /// Names and types of all columns.
    fn schema(&self) -> SchemaRef;

    /// How many rows, where that is known without reading.
    fn rows(&self) -> Option<u64>;

    /// From the first row: the columns at these places of the schema, in that order, or all.
    fn batches(&self, columns: Option<&[usize]>) -> Result<Batches, DataError>;
}
