//! Parquet: row groups, decoded in batches of bounded size, page by page, so that a large row group takes no more memory
//! than a small one.

use super::guard::decoding;
use super::{Batches, Table, in_order};
use crate::DataError;
use crate::source::Source;
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use hashbrown::HashSet;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::basic::Type;
use parquet::errors::ParquetError;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{ChunkReader, Length};
use std::io::{self, Read};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Decoded bytes that a batch of [`Table::batches`] is meant to have.
const BATCH_BYTES: u64 = 8 << 20;
/// A batch has no more rows than this, however narrow.
const BATCH_ROWS: u64 = 1 << 16;
/// Read ahead of a column, at most: a request to object storage costs as much as a MiB, a local read nothing.
const REMOTE_BLOCK: usize = 1 << 20;
const LOCAL_BLOCK: usize = 64 << 10;
/// Read ahead of all columns of a table together.
const BLOCKS: usize = 16 << 20;
/// What writers let a page grow to.
const PAGE: u64 = 1 << 20;

/// A Parquet file whose footer has been read.
#[derive(Clone)]
pub struct File {
    source: Source,
    metadata: ArrowReaderMetadata,
    groups: Arc<[RowGroup]>,
}

/// A row group, as the footer has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowGroup {
    pub rows: u64,
    /// Bytes in the file.
    pub bytes: u64,
}

/// The row groups of a file, in order.
pub fn row_groups(source: &Source) -> Result<Vec<RowGroup>, DataError> {
    Ok(File::open(source.clone())?.groups.to_vec())
}

impl File {
    /// Reads the footer.
    pub fn open(source: Source) -> Result<Self, DataError> {
        let chunks =
            Chunks::new(source.clone(), Vec::new(), if source.remote() { REMOTE_BLOCK } else { LOCAL_BLOCK });
        let metadata = chunks.or_own_error(decoding(source.location(), || {
            ArrowReaderMetadata::load(&chunks, ArrowReaderOptions::new())
        }))?;
        let groups = metadata
            .metadata()
            .row_groups()
            .iter()
            .map(|group| {
                let rows = u64::try_from(group.num_rows());
                let bytes = group
                    .columns()
                    .iter()
                    .map(|column| u64::try_from(column.compressed_size()))
                    .sum::<Result<u64, _>>();
                Ok(RowGroup { rows: rows?, bytes: bytes? })
            })
            .collect::<Result<_, std::num::TryFromIntError>>()
            .map_err(|_| {
                DataError::unreadable(
                    source.location(),
                    "is damaged: a row group has less than no rows or bytes",
                )
            })?;
        Ok(Self { source, metadata, groups })
    }

    pub fn groups(&self) -> &[RowGroup] {
        &self.groups
    }

    /// About how many bytes a row of a group takes once decoded, in these columns or all, and whether that is more than a
    /// guess: fixed widths are known, strings only where the file says their size, not where it repeats them by number.
    pub fn row_bytes(&self, group: usize, columns: Option<&[usize]>) -> (u64, bool) {
        let Some(metadata) = self.metadata.metadata().row_groups().get(group) else { return (1, false) };
        let (mut total, mut known) = (0u64, true);
        for leaf in self.leaves(metadata, columns) {
            total = total.saturating_add(self.leaf_bytes(metadata, leaf));
            let column = metadata.column(leaf);
            known &= column.column_type() != Type::BYTE_ARRAY
                || column.unencoded_byte_array_data_bytes().is_some();
        }
        (total.div_ceil(metadata.num_rows().max(1) as u64).max(1), known)
    }

    /// About how many bytes of pages are in memory while a group is read, beside the rows: of each column the page that it is
    /// at.
    pub fn page_bytes(&self, group: usize, columns: Option<&[usize]>) -> u64 {
        let Some(metadata) = self.metadata.metadata().row_groups().get(group) else { return 0 };
        let of_leaf = |leaf| (metadata.column(leaf).uncompressed_size().max(0) as u64).min(PAGE);
        self.leaves(metadata, columns).map(of_leaf).fold(0, u64::saturating_add)
    }

    /// Rows of one group, in batches of at most `batch_rows`, in these columns (in that order) or all. `blocks` bytes are
    /// read ahead, over all columns.
    pub fn read(
        &self,
        group: usize,
        rows: Range<u64>,
        columns: Option<&[usize]>,
        batch_rows: usize,
        blocks: usize,
    ) -> Result<Rows, DataError> {
        let location = self.source.location();
        let metadata =
            self.metadata.metadata().row_groups().get(group).filter(|_| rows.end <= self.groups[group].rows);
        let metadata = metadata.ok_or_else(|| {
            DataError::Usage(format!("{location}: there are no rows {rows:?} in row group {group}"))
        })?;
        let mut extents = Vec::new();
        for leaf in self.leaves(metadata, columns) {
            let (start, length) =
                decoding(location, || Ok::<_, ParquetError>(metadata.column(leaf).byte_range()))?;
            let end = start.checked_add(length).filter(|&end| end <= self.source.size());
            extents.push(start..end.ok_or_else(|| crate::source::ends_early(&*self.source, start, length))?);
        }
        let most = if self.source.remote() { REMOTE_BLOCK } else { LOCAL_BLOCK };
        let block = (blocks / extents.len().max(1)).clamp(4 << 10, most);
        let chunks = Chunks::new(self.source.clone(), extents, block);
        let mask = match columns {
            Some(columns) => ProjectionMask::roots(self.metadata.parquet_schema(), columns.iter().copied()),
            None => ProjectionMask::all(),
        };
        let wanted = rows.end.saturating_sub(rows.start);
        let reader = chunks.or_own_error(decoding(location, || {
            ParquetRecordBatchReaderBuilder::new_with_metadata(chunks.clone(), self.metadata.clone())
                .with_row_groups(vec![group])
                .with_projection(mask)
                .with_batch_size(batch_rows.max(1))
                .with_offset(rows.start as usize)
                .with_limit(wanted as usize)
                .build()
        }))?;
        Ok(Rows { chunks, reader: Some(reader), columns: columns.map(<[usize]>::to_vec), left: wanted })
    }

    /// The leaf columns of these columns of the schema.
    fn leaves<'a>(
        &'a self,
        group: &RowGroupMetaData,
        columns: Option<&[usize]>,
    ) -> impl Iterator<Item = usize> + use<'a> {
        let schema = self.metadata.parquet_schema();
        let wanted = columns.map(|columns| columns.iter().copied().collect::<HashSet<usize>>());
        (0..group.num_columns().min(schema.num_columns())).filter(move |&leaf| {
            wanted.as_ref().is_none_or(|wanted| wanted.contains(&schema.get_column_root_idx(leaf)))
        })
    }

    fn leaf_bytes(&self, group: &RowGroupMetaData, leaf: usize) -> u64 {
        let column = group.column(leaf);
        let schema = self.metadata.parquet_schema();
        let field = self.metadata.schema().fields().get(schema.get_column_root_idx(leaf));
        let values = column.num_values().max(0) as u64;
        // Of a string: offsets or views, and its bytes.
        let width = match (field.and_then(|field| field.data_type().primitive_width()), column.column_type())
        {
            (Some(width), _) => width as u64,
            (None, Type::BOOLEAN) => 1,
            (None, Type::INT32 | Type::FLOAT) => 4,
            (None, Type::FIXED_LEN_BYTE_ARRAY) => column.column_descr().type_length().max(0) as u64,
            (None, Type::BYTE_ARRAY) => 16,
            (None, _) => 8,
        };
        let text = match column.column_type() {
            Type::BYTE_ARRAY => {
                column.unencoded_byte_array_data_bytes().unwrap_or(column.uncompressed_size()).max(0) as u64
            }
            _ => 0,
        };
        values.saturating_mul(width).saturating_add(values / 8).saturating_add(text)
    }
}

impl Table for File {
    fn location(&self) -> &str {
        self.source.location()
    }

    fn format(&self) -> &str {
        "parquet"
    }

    fn file_bytes(&self) -> Option<u64> {
        Some(self.source.size())
    }

    fn schema(&self) -> SchemaRef {
        self.metadata.schema().clone()
    }

    fn rows(&self) -> Option<u64> {
        Some(self.groups.iter().map(|group| group.rows).fold(0, u64::saturating_add))
    }

    fn batches(&self, columns: Option<&[usize]>) -> Result<Batches, DataError> {
        let file = self.clone();
        let columns = columns.map(<[usize]>::to_vec);
        let groups = (0..self.groups.len()).flat_map(move |group| {
            let rows = (BATCH_BYTES / file.row_bytes(group, columns.as_deref()).0).clamp(1, BATCH_ROWS);
            let read =
                file.read(group, 0..file.groups[group].rows, columns.as_deref(), rows as usize, BLOCKS);
            let (rows, error) = match read {
                Ok(rows) => (Some(rows), None),
                Err(error) => (None, Some(Err(error))),
            };
            rows.into_iter().flatten().chain(error)
        });
        Ok(Box::new(groups))
    }
}

/// Batches of the rows of one row group.
pub struct Rows {
    chunks: Chunks,
    reader: Option<ParquetRecordBatchReader>,
    columns: Option<Vec<usize>>,
    /// Rows that have not come yet.
    left: u64,
}

impl Iterator for Rows {
    type Item = Result<RecordBatch, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let reader = self.reader.as_mut()?;
        let location = self.chunks.0.source.location();
        let batch = decoding(location, || {
            reader.next().map(|batch| in_order(&batch?, self.columns.as_deref())).transpose()
        });
        match self.chunks.or_own_error(batch) {
            Ok(Some(batch)) if batch.num_rows() as u64 <= self.left && batch.num_rows() > 0 => {
                self.left -= batch.num_rows() as u64;
                Some(Ok(batch))
            }
            Ok(None) if self.left == 0 => {
                self.reader = None;
                None
            }
            Ok(_) => {
                self.reader = None;
                let what = "is damaged: a row group does not hold the rows that the footer says it has";
                Some(Err(DataError::unreadable(location, what)))
            }
            Err(error) => {
                self.reader = None;
                Some(Err(error))
            }
        }
    }
}

/// The source as the Parquet reader wants it, with a block read ahead for each column.
#[derive(Clone)]
struct Chunks(Arc<ChunksInner>);

struct ChunksInner {
    source: Source,
    block_size: usize,
    blocks: Mutex<Vec<Block>>,
    /// The reader beneath turns errors into text; the first one of ours is kept as it was.
    failure: Mutex<Option<DataError>>,
}

/// What is in memory of one column's bytes.
struct Block {
    extent: Range<u64>,
    begin: u64,
    bytes: Vec<u8>,
}

impl Chunks {
    fn new(source: Source, mut extents: Vec<Range<u64>>, block_size: usize) -> Self {
        // In order, to be found among many thousand.
        extents.sort_unstable_by_key(|extent| extent.start);
        let blocks = extents
            .into_iter()
            .map(|extent| Block { begin: extent.start, extent, bytes: Vec::new() })
            .collect();
        Self(Arc::new(ChunksInner {
            source,
            block_size,
            blocks: Mutex::new(blocks),
            failure: Mutex::new(None),
        }))
    }

    /// The result, or the error of the source that was behind it.
    fn or_own_error<T>(&self, result: Result<T, DataError>) -> Result<T, DataError> {
        result.map_err(|error| {
            self.0.failure.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or(error)
        })
    }

    fn fill(&self, offset: u64, into: &mut [u8]) -> Result<(), DataError> {
        let ChunksInner { source, block_size, blocks, .. } = &*self.0;
        let mut blocks = blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let behind = blocks.partition_point(|block| block.extent.start <= offset);
        let of_column = blocks[..behind].last_mut().filter(|block| block.extent.contains(&offset));
        let Some(block) = of_column else {
            return source.read_at(offset, into);
        };
        let mut filled = 0;
        while filled < into.len() {
            let at = offset + filled as u64;
            let wanted = into.len() - filled;
            let held = at
                .checked_sub(block.begin)
                .and_then(|skip| block.bytes.get(skip as usize..))
                .unwrap_or_default();
            if !held.is_empty() {
                let count = held.len().min(wanted);
                into[filled..filled + count].copy_from_slice(&held[..count]);
                filled += count;
                continue;
            }
            let ahead = block.extent.end.saturating_sub(at).min(*block_size as u64) as usize;
            if wanted >= ahead {
                source.read_at(at, &mut into[filled..])?;
                break;
            }
            block.bytes.resize(ahead, 0);
            block.begin = at;
            if let Err(error) = source.read_at(at, &mut block.bytes) {
                block.bytes.clear();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Keeps the error, and gives one to hand upwards.
    fn failed(&self, error: DataError) -> ParquetError {
        let words = ParquetError::General(error.to_string());
        self.0.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        words
    }
}

impl Length for Chunks {
    fn len(&self) -> u64 {
        self.0.source.size()
    }
}

impl ChunkReader for Chunks {
    type T = ChunksFrom;

    fn get_read(&self, start: u64) -> Result<ChunksFrom, ParquetError> {
        Ok(ChunksFrom { chunks: self.clone(), at: start })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.len()) {
            return Err(self.failed(crate::source::ends_early(&*self.0.source, start, length as u64)));
        }
        let mut into = vec![0; length];
        self.fill(start, &mut into).map_err(|error| self.failed(error))?;
        Ok(into.into())
    }
}

/// Reads on from an offset.
struct ChunksFrom {
    chunks: Chunks,
    at: u64,
}

impl Read for ChunksFrom {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.chunks.len().saturating_sub(self.at).min(into.len() as u64) as usize;
        self.chunks
            .fill(self.at, &mut into[..count])
            .map_err(|error| io::Error::other(self.chunks.failed(error)))?;
        self.at += count as u64;
        Ok(count)
    }
}
