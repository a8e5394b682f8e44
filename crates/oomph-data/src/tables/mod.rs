//! Tables that have types already: Parquet, Arrow IPC, and whatever gives Arrow batches.
//!
//! Boundary: bytes of a [`Source`] in, record batches out, one after the other and never more than one at a time. Files are
//! not trusted: what they say about lengths is held against the size of the file, and where the decoders beneath
//! panic, that is an error like any other (`guard`).

mod guard;
pub mod ipc;
pub mod parquet;
mod text_cells;

use crate::DataError;
use crate::source::{Format, Source};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use std::sync::Arc;
pub(crate) use text_cells::TextCells;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::memory;
    use ::parquet::arrow::ArrowWriter;
    use ::parquet::basic::{Compression, ZstdLevel};
    use ::parquet::file::properties::WriterProperties;
    use arrow_array::types::Int8Type;
    use arrow_array::{ArrayRef, DictionaryArray, Float64Array, Int64Array, StringArray};
    use arrow_ipc::CompressionType;
    use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
    use arrow_select::concat::concat_batches;

    fn batches(replaced: bool) -> Vec<RecordBatch> {
        let batch = |from: i64| {
            let numbers = Int64Array::from_iter((from..from + 1000).map(|row| (row % 7 != 0).then_some(row)));
            let floats = Float64Array::from_iter_values((from..from + 1000).map(|row| row as f64 / 3.0));
            let texts = StringArray::from_iter_values((from..from + 1000).map(|row| format!("row {row}")));
            // Every batch its own dictionary: a stream may replace it.
            let kinds = (from..from + 1000).map(|row| ["a", "b", "c"][row as usize % 3]);
            let kinds: DictionaryArray<Int8Type> = if replaced {
                kinds.collect()
            } else {
                let keys = kinds.map(|kind| Some((kind.as_bytes()[0] - b'a') as i8)).collect();
                DictionaryArray::new(keys, Arc::new(StringArray::from(vec!["a", "b", "c"])))
            };
            RecordBatch::try_from_iter([
                ("number", Arc::new(numbers) as ArrayRef),
                ("float", Arc::new(floats) as ArrayRef),
                ("text", Arc::new(texts) as ArrayRef),
                ("kind", Arc::new(kinds) as ArrayRef),
            ])
            .unwrap()
        };
        vec![batch(0), batch(1000), batch(2000)]
    }

    fn files() -> Vec<(Format, Vec<u8>)> {
        let batches = batches(false);
        let schema = batches[0].schema();
        let properties = WriterProperties::builder()
            .set_max_row_group_row_count(Some(700))
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .build();
        let mut parquet = ArrowWriter::try_new(Vec::new(), schema.clone(), Some(properties)).unwrap();
        let mut file = FileWriter::try_new(Vec::new(), &schema).unwrap();
        let options =
            || IpcWriteOptions::default().try_with_compression(Some(CompressionType::LZ4_FRAME)).unwrap();
        let mut feather = FileWriter::try_new_with_options(Vec::new(), &schema, options()).unwrap();
        let mut stream = StreamWriter::try_new_with_options(Vec::new(), &schema, options()).unwrap();
        for batch in &batches {
            parquet.write(batch).unwrap();
            file.write(batch).unwrap();
            feather.write(batch).unwrap();
        }
        for batch in &self::batches(true) {
            stream.write(batch).unwrap();
        }
        vec![
            (Format::Parquet, parquet.into_inner().unwrap()),
            (Format::ArrowFile, file.into_inner().unwrap()),
            (Format::ArrowFile, feather.into_inner().unwrap()),
            (Format::ArrowStream, stream.into_inner().unwrap()),
        ]
    }

    fn read(
        format: Format,
        bytes: Vec<u8>,
        columns: Option<&[usize]>,
    ) -> Result<Vec<RecordBatch>, DataError> {
        open(&memory("table", bytes), format)?.batches(columns)?.collect()
    }

    #[test]
    fn every_value_of_every_format_comes_back() {
        let written = concat_batches(&batches(false)[0].schema(), &batches(false)).unwrap();
        for (format, bytes) in files() {
            let read_back = read(format, bytes.clone(), None).unwrap();
            assert_eq!(concat_batches(&written.schema(), &read_back).unwrap(), written, "{format:?}");
            let projected = read(format, bytes.clone(), Some(&[2, 0])).unwrap();
            let wanted = written.project(&[2, 0]).unwrap();
            assert_eq!(concat_batches(&wanted.schema(), &projected).unwrap(), wanted, "{format:?}");
            assert_eq!(open(&memory("table", bytes), format).unwrap().rows(), Some(3000));
        }
    }

    #[test]
    fn a_part_of_a_row_group_can_be_read() {
        let (_, bytes) = files().swap_remove(0);
        let file = parquet::File::open(memory("table", bytes)).unwrap();
        let groups: Vec<u64> = file.groups().iter().map(|group| group.rows).collect();
        assert_eq!(groups.iter().sum::<u64>(), 3000);
        let rows: Vec<RecordBatch> =
            file.read(1, 100..451, Some(&[0]), 100, 1 << 20).unwrap().map(Result::unwrap).collect();
        let rows = concat_batches(&rows[0].schema(), &rows).unwrap();
        let all = concat_batches(&batches(false)[0].schema(), &batches(false)).unwrap();
        assert_eq!(rows, all.slice(groups[0] as usize + 100, 351).project(&[0]).unwrap());
        assert!(file.read(1, 100..100_000, None, 100, 1 << 20).is_err());
    }

    #[test]
    fn a_file_that_is_cut_short_is_an_error() {
        for (format, bytes) in files() {
            for length in (0..bytes.len() - 1).step_by(bytes.len() / 97 + 1) {
                let result = read(format, bytes[..length].to_vec(), None);
                // A stream without its end mark is whole, if it ends between two messages.
                let rows = result.map(|batches| batches.iter().map(RecordBatch::num_rows).sum::<usize>());
                assert!(
                    rows.is_err() || (format == Format::ArrowStream && rows.unwrap().is_multiple_of(1000)),
                    "{format:?} {length}"
                );
            }
        }
    }

    #[test]
    fn a_flipped_bit_never_ends_the_process() {
        for (format, bytes) in files() {
            for place in 0..400 {
                let mut damaged = bytes.clone();
                // Heads and footers have the lengths; they get most of the damage.
                let at = match place % 4 {
                    0 => place * bytes.len() / 400,
                    1 => place % bytes.len(),
                    _ => bytes.len() - 1 - place % bytes.len(),
                };
                damaged[at] ^= 1 << (place % 8);
                if let Ok(batches) = read(format, damaged, None) {
                    assert!(batches.iter().map(RecordBatch::num_rows).sum::<usize>() < 100_000);
                }
            }
        }
    }

    #[test]
    fn a_buffer_that_says_it_becomes_huge_is_refused_before_it_is_allocated() {
        let (_, bytes) = files().swap_remove(2);
        // The length of a compressed buffer comes before its LZ4 frame.
        let frame = [4, 34, 77, 24];
        let at = bytes.windows(4).position(|window| window == frame).unwrap();
        let mut damaged = bytes;
        damaged[at - 8..at].copy_from_slice(&(1i64 << 46).to_le_bytes());
        let error = read(Format::ArrowFile, damaged, None).unwrap_err().to_string();
        assert!(error.contains("longer than it can"), "{error}");
    }
}
