//! Arrow IPC: the file format (Feather version 2 is the same) and the stream format, one record batch at a time.
//!
//! Both come down to a list of messages and where they lie; a stream's is made by going from message to message, without
//! reading their bodies.

use super::guard::decoding;
use super::{Batches, Table, in_order};
use crate::DataError;
use crate::source::{self, Format, Source};
use arrow_array::RecordBatch;
use arrow_buffer::{Buffer, MutableBuffer};
use arrow_ipc::convert::fb_to_schema;
use arrow_ipc::reader::{FileDecoder, read_footer_length};
use arrow_ipc::{Block, MessageHeader, MetadataVersion, root_as_footer, root_as_message};
use arrow_schema::{ArrowError, SchemaRef};
use std::sync::Arc;

const CONTINUES: [u8; 4] = [0xff; 4];
/// The magic at the end, and the length of the footer before it.
const TRAILER: u64 = 10;
/// No compression that is used makes more of a byte than this; a length beyond it is a lie.
const MOST_EXPANSION: i64 = 1 << 16;

/// An IPC file or stream whose messages have been found.
#[derive(Clone)]
pub struct File {
    source: Source,
    layout: Arc<Layout>,
}

struct Layout {
    schema: SchemaRef,
    version: MetadataVersion,
    dictionaries: Vec<Block>,
    batches: Vec<Batch>,
}

#[derive(Clone, Copy)]
struct Batch {
    block: Block,
    rows: u64,
    /// How many of the dictionaries come before it; a stream may replace them on the way.
    dictionaries: usize,
}

impl File {
    /// Finds the messages.
    pub fn open(source: Source, format: Format) -> Result<Self, DataError> {
        let layout = match format {
            Format::ArrowStream => of_stream(&source)?,
            _ => of_file(&source)?,
        };
        Ok(Self { source, layout: Arc::new(layout) })
    }

    /// How many record batches there are.
    pub fn batch_count(&self) -> usize {
        self.layout.batches.len()
    }

    /// Rows of a record batch.
    pub fn batch_rows(&self, index: usize) -> u64 {
        self.layout.batches[index].rows
    }

    /// Bytes of a record batch in the file.
    pub fn batch_bytes(&self, index: usize) -> u64 {
        let block = &self.layout.batches[index].block;
        (block.metaDataLength().max(0) as u64).saturating_add(block.bodyLength().max(0) as u64)
    }

    /// A reader of single record batches, in these columns (in that order) or all.
    pub fn reader(&self, columns: Option<&[usize]>) -> Reader {
        Reader { file: self.clone(), columns: columns.map(<[usize]>::to_vec), decoder: None, dictionaries: 0 }
    }

    /// The message and its body, or how many bytes it would take if that is more than `most`.
    fn read(&self, block: &Block, most: u64) -> Result<Result<Buffer, u64>, DataError> {
        let (offset, metadata, body) = extent(&self.source, block)?;
        if metadata + body > most {
            return Ok(Err(metadata + body));
        }
        // Aligned for every type, so that arrays need no copy of their own.
        let mut bytes = MutableBuffer::from_len_zeroed((metadata + body) as usize);
        self.source.read_at(offset, bytes.as_slice_mut())?;
        let unpacked = unpacked_bytes(&self.source, &bytes, metadata as usize)?;
        let needed = (metadata + body).saturating_add(unpacked);
        Ok(if needed > most { Err(needed) } else { Ok(bytes.into()) })
    }
}

/// Reads record batches of a file in any order.
pub struct Reader {
    file: File,
    columns: Option<Vec<usize>>,
    /// With the first `dictionaries` of the file's dictionaries.
    decoder: Option<FileDecoder>,
    dictionaries: usize,
}

/// What came of reading a record batch.
pub enum Read {
    Batch(RecordBatch),
    /// It would take so many bytes, more than it may.
    TooLarge(u64),
}

impl Reader {
    /// Bytes of a record batch in the file.
    pub fn bytes(&self, index: usize) -> u64 {
        self.file.batch_bytes(index)
    }

    /// One record batch, if neither it nor a dictionary before it takes more than `most` bytes.
    pub fn read(&mut self, index: usize, most: u64) -> Result<Read, DataError> {
        let layout = self.file.layout.clone();
        let location = self.file.source.location();
        let batch = layout.batches.get(index);
        let batch =
            batch.ok_or_else(|| DataError::Usage(format!("{location}: there is no record batch {index}")))?;
        if self.dictionaries > batch.dictionaries {
            self.decoder = None;
        }
        let mut decoder = match self.decoder.take() {
            Some(decoder) => decoder,
            None => {
                self.dictionaries = 0;
                let mut decoder = FileDecoder::new(layout.schema.clone(), layout.version);
                if let Some(columns) = &self.columns {
                    let mut of_file = columns.clone();
                    of_file.sort_unstable();
                    decoder = decoder.with_projection(of_file);
                }
                decoder
            }
        };
        for block in &layout.dictionaries[self.dictionaries..batch.dictionaries] {
            let bytes = match self.file.read(block, most)? {
                Ok(bytes) => bytes,
                Err(needed) => return Ok(Read::TooLarge(needed)),
            };
            decoding(location, || decoder.read_dictionary(block, &bytes))?;
        }
        self.dictionaries = batch.dictionaries;
        let bytes = match self.file.read(&batch.block, most)? {
            Ok(bytes) => bytes,
            Err(needed) => return Ok(Read::TooLarge(needed)),
        };
        let decoded = decoding(location, || {
            let decoded = decoder.read_record_batch(&batch.block, &bytes)?;
            let decoded = decoded
                .ok_or_else(|| ArrowError::IpcError("a record batch is empty of everything".to_owned()))?;
            in_order(&decoded, self.columns.as_deref())
        })?;
        self.decoder = Some(decoder);
        if decoded.num_rows() as u64 != batch.rows {
            return Err(DataError::unreadable(
                location,
                "is damaged: a record batch does not have the rows that it says",
            ));
        }
        Ok(Read::Batch(decoded))
    }
}

impl Table for File {
    fn location(&self) -> &str {
        self.source.location()
    }

    fn format(&self) -> &str {
        "arrow ipc"
    }

    fn file_bytes(&self) -> Option<u64> {
        Some(self.source.size())
    }

    fn schema(&self) -> SchemaRef {
        self.layout.schema.clone()
    }

    fn rows(&self) -> Option<u64> {
        Some(self.layout.batches.iter().map(|batch| batch.rows).fold(0, u64::saturating_add))
    }

    fn batches(&self, columns: Option<&[usize]>) -> Result<Batches, DataError> {
        let mut reader = self.reader(columns);
        let mut failed = false;
        Ok(Box::new((0..self.batch_count()).map_while(move |index| {
            let batch = match (!failed).then(|| reader.read(index, u64::MAX))? {
                Ok(Read::Batch(batch)) => Ok(batch),
                Ok(Read::TooLarge(bytes)) => {
                    Err(DataError::Usage(format!("a record batch takes {bytes} bytes")))
                }
                Err(error) => Err(error),
            };
            failed = batch.is_err();
            Some(batch)
        })))
    }
}

fn damaged(source: &Source, what: &str) -> DataError {
    DataError::unreadable(source.location(), format!("is damaged: {what}"))
}

/// Where a block lies: offset, bytes of the message, bytes of its body. All of them are in the file.
fn extent(source: &Source, block: &Block) -> Result<(u64, u64, u64), DataError> {
    let offset = u64::try_from(block.offset());
    let (metadata, body) = (u64::try_from(block.metaDataLength()), u64::try_from(block.bodyLength()));
    let (Ok(offset), Ok(metadata), Ok(body)) = (offset, metadata, body) else {
        return Err(damaged(source, "a length is negative"));
    };
    let end = metadata.checked_add(body).and_then(|length| offset.checked_add(length));
    match end {
        Some(end) if end <= source.size() && metadata >= 8 => Ok((offset, metadata, body)),
        _ => Err(source::ends_early(&**source, offset, metadata.saturating_add(body))),
    }
}

/// The message without the marker and length before it.
fn message_of(metadata: &[u8]) -> &[u8] {
    let prefix = if metadata.starts_with(&CONTINUES) { 8 } else { 4 };
    metadata.get(prefix..).unwrap_or_default()
}

/// Bytes that compressed buffers become. They say so themselves, and the decoder allocates that before it looks: lies
/// are found here.
fn unpacked_bytes(source: &Source, bytes: &[u8], metadata: usize) -> Result<u64, DataError> {
    let (head, body) = bytes.split_at(metadata);
    let message = decoding(source.location(), || root_as_message(message_of(head)))?;
    let batch = match message.header_type() {
        MessageHeader::DictionaryBatch => {
            message.header_as_dictionary_batch().and_then(|dictionary| dictionary.data())
        }
        _ => message.header_as_record_batch(),
    };
    let Some(batch) = batch.filter(|batch| batch.compression().is_some()) else { return Ok(0) };
    let mut total = 0u64;
    // One without bytes has no length before them either.
    for buffer in batch.buffers().iter().flatten().filter(|buffer| buffer.length() > 0) {
        let start = usize::try_from(buffer.offset()).ok();
        let declared = start
            .and_then(|start| body.get(start..start.checked_add(8)?))
            .and_then(|bytes| bytes.try_into().ok());
        let declared = declared.map_or(0, i64::from_le_bytes);
        if declared > buffer.length().saturating_mul(MOST_EXPANSION) {
            return Err(damaged(source, "a compressed buffer says that it becomes longer than it can"));
        }
        // -1: it was not worth compressing.
        total = total.saturating_add(u64::try_from(declared).unwrap_or(0));
    }
    Ok(total)
}

fn of_file(source: &Source) -> Result<Layout, DataError> {
    let location = source.location();
    let size = source.size();
    let trailer = source::bytes(&**source, size.saturating_sub(TRAILER), TRAILER)?;
    let trailer: [u8; TRAILER as usize] =
        trailer.try_into().map_err(|_| damaged(source, "it has no footer"))?;
    let length = decoding(location, || read_footer_length(trailer))? as u64;
    let start = size.checked_sub(TRAILER + length).ok_or_else(|| source::ends_early(&**source, 0, length))?;
    let footer = source::bytes(&**source, start, length)?;
    let footer = decoding(location, || root_as_footer(&footer))?;
    let schema = footer.schema().ok_or_else(|| damaged(source, "its footer has no schema"))?;
    let schema = decoding(location, || readable(schema))?;
    let dictionaries: Vec<Block> = footer.dictionaries().iter().flatten().copied().collect();
    let batches = footer.recordBatches().into_iter().flatten().map(|&block| {
        let (offset, metadata, _) = extent(source, &block)?;
        let metadata = source::bytes(&**source, offset, metadata)?;
        let message = decoding(location, || root_as_message(message_of(&metadata)))?;
        let rows = message.header_as_record_batch().and_then(|batch| u64::try_from(batch.length()).ok());
        let rows = rows.ok_or_else(|| damaged(source, "a block that the footer names is no record batch"))?;
        Ok(Batch { block, rows, dictionaries: dictionaries.len() })
    });
    let batches = batches.collect::<Result<_, DataError>>()?;
    Ok(Layout { schema, version: footer.version(), dictionaries, batches })
}

fn of_stream(source: &Source) -> Result<Layout, DataError> {
    let location = source.location();
    let mut at = 0;
    let mut schema = None;
    let mut dictionaries = Vec::new();
    let mut batches = Vec::new();
    while at < source.size() {
        let prefix = source::bytes(&**source, at, (source.size() - at).min(8))?;
        let (prefix_length, length) = match prefix.strip_prefix(&CONTINUES) {
            Some(length) => (8, length),
            // Before Arrow 0.15 there was no marker.
            None => (4, &prefix[..prefix.len().min(4)]),
        };
        let length =
            length.try_into().map(i32::from_le_bytes).map_err(|_| damaged(source, "it is cut short"))?;
        if length == 0 {
            break;
        }
        let length = u64::try_from(length).map_err(|_| damaged(source, "a length is negative"))?;
        let metadata = source::bytes(&**source, at + prefix_length, length)?;
        let message = decoding(location, || root_as_message(&metadata))?;
        let block = Block::new(at as i64, (prefix_length + length) as i32, message.bodyLength());
        let (_, head, body) = extent(source, &block)?;
        at += head + body;
        match message.header_type() {
            MessageHeader::Schema if schema.is_none() => {
                let found =
                    message.header_as_schema().ok_or_else(|| damaged(source, "its schema is missing"))?;
                schema = Some((decoding(location, || readable(found))?, message.version()));
            }
            MessageHeader::DictionaryBatch => dictionaries.push(block),
            MessageHeader::RecordBatch => {
                let rows =
                    message.header_as_record_batch().and_then(|batch| u64::try_from(batch.length()).ok());
                let rows = rows.ok_or_else(|| damaged(source, "a record batch has less than no rows"))?;
                batches.push(Batch { block, rows, dictionaries: dictionaries.len() });
            }
            _ => {
                return Err(damaged(
                    source,
                    "a message is neither a schema, a dictionary nor a record batch",
                ));
            }
        }
    }
    let (schema, version) = schema.ok_or_else(|| damaged(source, "it has no schema"))?;
    Ok(Layout { schema, version, dictionaries, batches })
}

fn readable(schema: arrow_ipc::Schema<'_>) -> Result<SchemaRef, ArrowError> {
    if !schema.endianness().equals_to_target_endianness() {
        return Err(ArrowError::IpcError(
            "it was written on a machine with the other order of bytes".to_owned(),
        ));
    }
    Ok(Arc::new(fb_to_schema(schema)))
}
