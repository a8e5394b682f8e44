//! Pieces into slabs: record batches that are decoded at once.
//!
//! Where the slabs of a piece end depends on the piece alone, never on threads or on time: windows, and with them the
//! shuffle and the token, are counted in slabs.

use super::limits::{Limits, shown};
use super::measure::bytes_of;
use super::plan::{Kind, Part, Piece, Plan};
use super::rows_of_arrays::Rows;
use crate::source::{self, Source};
use crate::tables::{Table, ipc, parquet};
use crate::text::{self, Columns};
use crate::{BrokenRows, DataError};
use arrow_array::{RecordBatch, RecordBatchOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a worker has to do.
pub(super) enum Work {
    Listed(Piece),
    /// Text that was cut while the file was read in order.
    Chunk {
        input: usize,
        text: Vec<u8>,
        line: u64,
        broken: BrokenRows,
    },
}

/// Where slabs go.
pub(super) trait Sink {
    /// Waits until so many bytes may be taken, for the current slab.
    fn reserve(&mut self, bytes: u64) -> Result<(), DataError>;

    /// Hands a slab on; its bytes take the place of what was reserved.
    fn push(&mut self, batch: RecordBatch, bytes: u64) -> Result<(), DataError>;
}

/// Decodes pieces; keeps the input of the last one open.
pub(super) struct Decoder {
    plan: Arc<Plan>,
    expansion: Arc<Expansion>,
    open: Option<(usize, Opened)>,
}

enum Opened {
    Parquet(parquet::File, Vec<usize>),
    Ipc(ipc::Reader),
    Text(Source),
    Npy(Rows),
}

/// How many bytes a byte of text becomes, at most, as far as it was seen.
pub(super) struct Expansion(AtomicU64);

impl Expansion {
    /// While a chunk is decoded, the places of its cells are in memory as well.
    const PLACES: u64 = 8;

    pub(super) fn new() -> Self {
        Self(AtomicU64::new(4))
    }

    /// Bytes to reserve for a chunk of text.
    pub(super) fn bytes(&self, text: u64) -> u64 {
        text.saturating_mul(1 + Self::PLACES + self.0.load(Ordering::Relaxed))
    }

    fn saw(&self, text: u64, decoded: u64) {
        self.0.fetch_max(decoded.div_ceil(text.max(1)), Ordering::Relaxed);
    }
}

impl Decoder {
    pub(super) fn new(plan: Arc<Plan>, expansion: Arc<Expansion>) -> Self {
        Self { plan, expansion, open: None }
    }

    /// Decodes a piece. What was left out is added to `broken`.
    pub(super) fn decode(
        &mut self,
        work: Work,
        sink: &mut dyn Sink,
        broken: &mut BrokenRows,
    ) -> Result<(), DataError> {
        let plan = self.plan.clone();
        match (work, &plan.kind) {
            (Work::Chunk { input, text, line, broken: given_up }, Kind::Text(columns)) => {
                broken.append(given_up);
                let location = source::shown(plan.inputs[input].location());
                self.text(columns, &location, text, line, sink, broken)
            }
            (Work::Listed(piece), Kind::Text(columns)) => {
                let Part::Text { offset, length, line } = piece.part else { return Ok(()) };
                let Opened::Text(source) = self.opened(piece.input)? else { return Ok(()) };
                let source = source.clone();
                sink.reserve(self.expansion.bytes(length))?;
                let text = source::bytes(&*source, offset, length)?;
                self.text(columns, source.location(), text, line, sink, broken)
            }
            (Work::Listed(piece), _) => match piece.part {
                Part::Group { group, first, rows, row_bytes, known } => {
                    self.group(piece.input, group, (first, rows), row_bytes, known, sink)
                }
                Part::Batch(index) => self.batch(piece.input, index, sink),
                Part::Rows { first, rows } => self.rows(piece.input, first, rows, sink),
                Part::Text { .. } => Ok(()),
            },
            (Work::Chunk { .. }, _) => Ok(()),
        }
    }

    fn opened(&mut self, input: usize) -> Result<&mut Opened, DataError> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != input) {
            self.open = None;
            let source = self.plan.inputs[input].open()?;
            let opened = match &self.plan.kind {
                Kind::Parquet => {
                    let file = parquet::File::open(source)?;
                    let columns = self.plan.places(file.location(), &file.schema())?;
                    Opened::Parquet(file, columns)
                }
                Kind::Ipc(format) => {
                    let file = ipc::File::open(source, *format)?;
                    let columns = self.plan.places(file.location(), &file.schema())?;
                    Opened::Ipc(file.reader(Some(&columns)))
                }
                Kind::Text(_) => Opened::Text(source),
                Kind::Npy => Opened::Npy(Rows::open(source)?),
            };
            self.open = Some((input, opened));
        }
        match &mut self.open {
            Some((_, opened)) => Ok(opened),
            None => Err(DataError::Stopped),
        }
    }

    fn text(
        &mut self,
        columns: &Columns,
        location: &str,
        text: Vec<u8>,
        line: u64,
        sink: &mut dyn Sink,
        broken: &mut BrokenRows,
    ) -> Result<(), DataError> {
        let batch = text::decode(columns, location, &text, line, self.plan.on_error, broken)?;
        let length = text.len() as u64;
        drop(text);
        let bytes = bytes_of(&batch);
        self.expansion.saw(length, bytes);
        self.push(location, batch, bytes, sink)
    }

    fn group(
        &mut self,
        input: usize,
        group: usize,
        (first, rows): (u64, u64),
        row_bytes: u64,
        known: bool,
        sink: &mut dyn Sink,
    ) -> Result<(), DataError> {
        let limits = self.plan.limits;
        let location = source::shown(self.plan.inputs[input].location());
        let mut row_bytes = row_bytes;
        let rows_of = |row_bytes: u64| (limits.slab / row_bytes.max(1)).clamp(1, 1 << 16);
        // Strings may be longer than the file lets one guess: begin with few.
        let mut at_once = if known { rows_of(row_bytes) } else { rows_of(row_bytes.saturating_mul(8)) };
        let mut done = 0;
        while done < rows {
            let plan = self.plan.clone();
            let Opened::Parquet(file, columns) = self.opened(input)? else { return Ok(()) };
            let range = first + done..first + rows;
            let mut reader = file.read(group, range, Some(columns), at_once as usize, limits.block * 2)?;
            loop {
                sink.reserve(row_bytes.saturating_mul(at_once.min(rows - done)))?;
                let Some(batch) = reader.next().transpose()? else {
                    return Ok(());
                };
                let bytes = bytes_of(&batch);
                done += batch.num_rows() as u64;
                row_bytes = bytes.div_ceil(batch.num_rows().max(1) as u64).max(1);
                push(&plan, &location, batch, bytes, sink)?;
                let better = rows_of(row_bytes);
                // Worth beginning anew for: slabs twice too large, or eight times too small.
                if (better * 2 < at_once || better / 8 > at_once) && done < rows {
                    at_once = better;
                    break;
                }
            }
        }
        Ok(())
    }

    fn batch(&mut self, input: usize, index: usize, sink: &mut dyn Sink) -> Result<(), DataError> {
        let limits = self.plan.limits;
        let share = limits.share;
        let location = source::shown(self.plan.inputs[input].location());
        let Opened::Ipc(reader) = self.opened(input)? else { return Ok(()) };
        // How much it becomes is seen only when it is read: as long again is a guess.
        sink.reserve(reader.bytes(index).saturating_mul(2).min(share))?;
        match reader.read(index, share)? {
            ipc::Read::Batch(batch) => {
                let bytes = bytes_of(&batch);
                self.push(&location, batch, bytes, sink)
            }
            ipc::Read::TooLarge(bytes) => Err(too_large(&limits, &location, "record batch", bytes)),
        }
    }

    fn rows(&mut self, input: usize, first: u64, rows: u64, sink: &mut dyn Sink) -> Result<(), DataError> {
        let (slab, share) = (self.plan.limits.slab, self.plan.limits.share);
        let location = source::shown(self.plan.inputs[input].location());
        let plan = self.plan.clone();
        let Opened::Npy(array) = self.opened(input)? else { return Ok(()) };
        if array.row_bytes() > share {
            return Err(too_large(&plan.limits, &location, "row", array.row_bytes()));
        }
        let at_once = (slab / array.row_bytes().max(1)).max(1);
        let mut done = 0;
        while done < rows {
            let count = at_once.min(rows - done);
            sink.reserve(count * array.row_bytes())?;
            let batch = array.read(first + done, count)?;
            let bytes = bytes_of(&batch);
            push(&plan, &location, batch, bytes, sink)?;
            done += count;
        }
        Ok(())
    }

    fn push(
        &self,
        location: &str,
        batch: RecordBatch,
        bytes: u64,
        sink: &mut dyn Sink,
    ) -> Result<(), DataError> {
        push(&self.plan, location, batch, bytes, sink)
    }
}

/// Hands a slab on under the schema of the stream.
fn push(
    plan: &Plan,
    location: &str,
    batch: RecordBatch,
    bytes: u64,
    sink: &mut dyn Sink,
) -> Result<(), DataError> {
    if bytes > plan.limits.share {
        return Err(too_large(
            &plan.limits,
            location,
            if batch.num_rows() == 1 { "row" } else { "part that is decoded at once" },
            bytes,
        ));
    }
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    let batch = RecordBatch::try_new_with_options(plan.schema.clone(), batch.columns().to_vec(), &options)
        .map_err(|error| DataError::unreadable(location, format!("is damaged: {error}")))?;
    sink.push(batch, bytes)
}

fn too_large(limits: &Limits, location: &str, what: &str, bytes: u64) -> DataError {
    DataError::Usage(format!(
        "{location}: a {what} takes {} in memory, more than the budget allows; give a budget of at least {}",
        shown(bytes),
        shown(limits.budget_for_share(bytes)),
    ))
}
