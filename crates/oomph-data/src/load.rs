//! The second pass: values into buffers of exactly the size of the result.

use crate::arrays::convert::{Cast, Native, with_native};
use crate::arrays::{Csr, CsrBuilder};
use crate::choose::Number;
use crate::input::{Input, Options, Sparseness};
use crate::profile::{ChunkSize, Profiled, Reading};
use crate::tables::{Table, TextCells};
use crate::target::Target;
use crate::text::chunks::{Chunk, Chunks, in_threads};
use crate::text::json_lines::Keys;
use crate::text::{self, Columns, Fields, Place, TextColumn, TextFormat};
use crate::values::{Bits, Part, Values};
use crate::{BrokenRows, DataError, Observer, OnError, Pass, Policy, threads};
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_buffer::{Buffer, ScalarBuffer};
use arrow_schema::{ArrowError, Field, Schema, SchemaRef};
use serde::Serialize;
use std::sync::{Arc, Mutex, PoisonError};

/// A table in memory, as small as its policy allows.
pub struct Loaded {
    pub data: Data,
    /// Each column, in order.
    pub columns: Vec<LoadedColumn>,
    /// Rows that were left out.
    pub broken_rows: BrokenRows,
}

/// What a table became.
pub enum Data {
    /// One batch with all rows.
    Table(RecordBatch),
    /// A sparse matrix, a column of it for each column.
    Matrix(Csr),
}

/// What a column became.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoadedColumn {
    /// Its name.
    pub name: String,
    /// Its type now.
    #[serde(rename = "type")]
    pub type_name: String,
    /// What it takes.
    pub bytes: u64,
    /// The worst change of a value, as a part of it; none if every value is kept.
    pub worst_relative_error: Option<f64>,
}

/// A column and what it becomes under a policy.
pub(crate) struct Planned {
    pub(crate) name: String,
    /// Its place among all columns of the input.
    pub(crate) place: usize,
    pub(crate) target: Target,
    pub(crate) text_bytes: u64,
    pub(crate) nulls: u64,
    /// Its place among the columns whose text was counted.
    counted: usize,
    loaded: LoadedColumn,
}

impl Planned {
    /// Bytes of its text in a chunk.
    fn text_in(&self, chunk: &ChunkSize) -> usize {
        chunk.text_bytes.get(self.counted).copied().unwrap_or(0)
    }
}

/// What each column becomes.
pub(crate) fn plan(profiled: &Profiled, policy: Policy) -> Vec<Planned> {
    let plan = profiled.decisions.iter().map(|decision| {
        let (target, choice) = match policy {
            Policy::Exact => (&decision.exact, &decision.profile.exact),
            Policy::Relative(_) => (&decision.within, &decision.profile.within),
        };
        let name = decision.profile.name.clone();
        Planned {
            place: decision.place,
            counted: decision.counted,
            target: target.clone(),
            text_bytes: decision.text_bytes,
            nulls: decision.profile.nulls,
            loaded: LoadedColumn {
                name: name.clone(),
                type_name: choice.type_name.clone(),
                bytes: choice.bytes,
                worst_relative_error: choice.worst_relative_error,
            },
            name,
        }
    });
    plan.collect()
}

pub(crate) fn described(plan: &[Planned]) -> Vec<LoadedColumn> {
    plan.iter().map(|column| column.loaded.clone()).collect()
}

/// As batches of it have it, whose text is short.
pub(crate) fn batch_schema(plan: &[Planned]) -> SchemaRef {
    let fields: Vec<Field> =
        plan.iter().map(|column| Field::new(&column.name, column.target.arrow_type(0), true)).collect();
    Arc::new(Schema::new(fields))
}

/// Loads what was profiled.
pub fn load(
    input: &Input,
    profiled: &Profiled,
    options: &Options,
    observer: &dyn Observer,
) -> Result<Loaded, DataError> {
    let plan = plan(profiled, options.policy);
    let sparse = profiled.profile.sparse.zip(profiled.matrix).filter(|(sparse, _)| match options.sparse {
        Sparseness::Auto => sparse.smaller,
        Sparseness::Always => true,
        Sparseness::Never => false,
    });
    if options.sparse == Sparseness::Always && sparse.is_none() {
        return Err(DataError::Usage(format!(
            "{}: not a matrix: a sparse one needs 8 columns or more, all of numbers, without nulls",
            input.location()
        )));
    }
    let broken_rows = profiled.profile.broken_rows.clone();
    if let Some((sparse, number)) = sparse {
        // A matrix has one type, in which every value is kept.
        let plan = self::plan(profiled, Policy::Exact);
        let matrix = matrix(input, profiled, &plan, (sparse.stored, number), options.on_error, observer)?;
        let mut columns = described(&plan);
        for column in &mut columns {
            column.type_name = number.name().to_owned();
            column.bytes = sparse.bytes / plan.len().max(1) as u64;
        }
        return Ok(Loaded { data: Data::Matrix(matrix), columns, broken_rows });
    }
    let batch = match input {
        Input::Text { source, format } => {
            let chunks = Chunks::open(source, format, options.on_error)?;
            let columns = text_columns(format, profiled, &plan);
            let filler = TextFiller {
                location: source.location(),
                format,
                profiled,
                columns,
                on_error: options.on_error,
            };
            let filling = Filling::new(&plan, &profiled.chunks);
            filling.fill(source.location(), |parts| {
                let work = |fields: &mut Fields, chunk: Chunk| filler.fill(fields, &chunk, parts);
                in_threads(chunks, options.threads, (observer, Pass::Loading), Fields::default, work)
                    .map(|_| ())
            })?
        }
        Input::Table(table) => {
            load_table(table.as_ref(), &plan, &profiled.chunks, options.threads, observer)?
        }
    };
    if input.changed() {
        return Err(changed(input.location()));
    }
    Ok(Loaded { data: Data::Table(batch), columns: described(&plan), broken_rows })
}

pub(crate) fn text_columns(format: &TextFormat, profiled: &Profiled, plan: &[Planned]) -> Columns {
    let raw = profiled.readings.iter().map(|reading| *reading == Reading::RawText).collect();
    let keys = if format.delimiter.is_none() { Keys::of(&profiled.width, raw) } else { Keys::default() };
    let columns = plan.iter().map(|column| TextColumn {
        place: column.place,
        name: column.name.clone(),
        target: column.target.clone(),
    });
    Columns::new(format.clone(), profiled.width.len(), keys, columns.collect())
}

/// The file is not what it was when it was profiled.
pub(crate) fn changed(location: &str) -> DataError {
    DataError::unreadable(location, "changed while it was read; try again")
}

/// Columns that are being filled, chunk by chunk.
struct Filling<'a> {
    plan: &'a [Planned],
    chunks: &'a [ChunkSize],
    rows: usize,
    values: Vec<Values>,
}

/// What the threads share: for each chunk the part of each column that is its own, and the bits, which share bytes.
struct Parts<'a> {
    parts: Mutex<Vec<Option<Vec<Part<'a>>>>>,
    /// For each chunk its first row.
    starts: Vec<usize>,
    bits: Vec<Mutex<ColumnBits>>,
    /// Columns that are kept as they are: an array a chunk.
    kept: Mutex<Vec<Vec<Option<ArrayRef>>>>,
}

#[derive(Default)]
struct ColumnBits {
    valid: Option<Bits>,
    booleans: Option<Bits>,
}

impl<'a> Filling<'a> {
    fn new(plan: &'a [Planned], chunks: &'a [ChunkSize]) -> Self {
        let rows = chunks.iter().map(|chunk| chunk.rows).sum();
        let values =
            plan.iter().map(|column| Values::new(&column.target, rows, column.text_bytes as usize)).collect();
        Self { plan, chunks, rows, values }
    }

    /// Lets `work` fill the parts, and makes a batch of them.
    fn fill(
        mut self,
        location: &str,
        work: impl FnOnce(&Parts<'_>) -> Result<(), DataError>,
    ) -> Result<RecordBatch, DataError> {
        let rows: Vec<usize> = self.chunks.iter().map(|chunk| chunk.rows).collect();
        let starts = rows.iter().scan(0, |next, rows| {
            let start = *next;
            *next += rows;
            Some(start)
        });
        let mut by_chunk: Vec<Vec<Part<'_>>> =
            rows.iter().map(|_| Vec::with_capacity(self.plan.len())).collect();
        for (column, values) in self.plan.iter().zip(&mut self.values) {
            let text = matches!(column.target, Target::Text);
            let text_bytes: Vec<usize> =
                self.chunks.iter().map(|chunk| if text { column.text_in(chunk) } else { 0 }).collect();
            for (parts, part) in by_chunk.iter_mut().zip(values.parts(&rows, &text_bytes)) {
                parts.push(part);
            }
        }
        let bits = self.plan.iter().map(|column| {
            let valid = (column.nulls > 0 && !matches!(column.target, Target::Null | Target::Keep(_)))
                .then(|| Bits::new(self.rows, false));
            let booleans = matches!(column.target, Target::Bool).then(|| Bits::new(self.rows, false));
            Mutex::new(ColumnBits { valid, booleans })
        });
        let parts = Parts {
            starts: starts.collect(),
            bits: bits.collect(),
            kept: Mutex::new(self.plan.iter().map(|_| Vec::new()).collect()),
            parts: Mutex::new(by_chunk.into_iter().map(Some).collect()),
        };
        work(&parts)?;
        let Parts { parts: left, bits, kept, .. } = parts;
        if left.into_inner().unwrap_or_else(PoisonError::into_inner).iter().any(Option::is_some) {
            return Err(changed(location));
        }
        let kept = kept.into_inner().unwrap_or_else(PoisonError::into_inner);
        let arrays = self.plan.iter().zip(self.values).zip(bits.into_iter().zip(kept)).map(
            |((column, values), (bits, kept))| {
                let ColumnBits { valid, booleans } =
                    bits.into_inner().unwrap_or_else(PoisonError::into_inner);
                if let Target::Keep(data_type) = &column.target {
                    let kept: Vec<ArrayRef> = kept.into_iter().flatten().collect();
                    let kept: Vec<&dyn Array> = kept.iter().map(AsRef::as_ref).collect();
                    return if kept.is_empty() {
                        Ok(arrow_array::new_empty_array(data_type))
                    } else {
                        arrow_select::concat::concat(&kept)
                    };
                }
                values.finish(&column.target, self.rows, valid, booleans)
            },
        );
        let batch = arrays.collect::<Result<Vec<_>, ArrowError>>().and_then(|arrays| {
            let fields: Vec<Field> = self
                .plan
                .iter()
                .zip(&arrays)
                .map(|(column, array)| Field::new(&column.name, array.data_type().clone(), true))
                .collect();
            let options = RecordBatchOptions::new().with_row_count(Some(self.rows));
            RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &options)
        });
        batch.map_err(|error| DataError::unreadable(location, error.to_string()))
    }
}

impl<'a> Parts<'a> {
    /// The parts of a chunk, once.
    fn take(&self, chunk: usize) -> Option<(usize, Vec<Part<'a>>)> {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner).get_mut(chunk)?.take()?;
        Some((*self.starts.get(chunk)?, parts))
    }

    fn put_bits(
        &self,
        column: usize,
        start: usize,
        rows: usize,
        valid: Option<&Bits>,
        booleans: Option<&Bits>,
    ) -> bool {
        let mut bits = self.bits[column].lock().unwrap_or_else(PoisonError::into_inner);
        match (&mut bits.valid, valid) {
            (Some(all), Some(valid)) => all.write(start, valid, rows),
            (Some(all), None) => all.set_range(start, rows),
            (None, None) => {}
            // There was no row without a value.
            (None, Some(_)) => return false,
        }
        if let (Some(all), Some(booleans)) = (&mut bits.booleans, booleans) {
            all.write(start, booleans, rows);
        }
        true
    }
}

/// Fills chunks of text.
struct TextFiller<'a> {
    location: &'a str,
    format: &'a TextFormat,
    profiled: &'a Profiled,
    columns: Columns,
    on_error: OnError,
}

impl TextFiller<'_> {
    fn fill(&self, fields: &mut Fields, chunk: &Chunk, parts: &Parts<'_>) -> Result<(), DataError> {
        let gone = || changed(self.location);
        let rows = self.profiled.chunks.get(chunk.number).ok_or_else(gone)?.rows;
        fields.clear(self.profiled.width.len());
        let place = Place { location: self.location, first_line: chunk.first_line, on_error: self.on_error };
        text::split(
            self.format,
            self.columns.keys(),
            &chunk.text,
            &place,
            fields,
            &mut BrokenRows::default(),
        )?;
        if fields.rows() != rows {
            return Err(gone());
        }
        let (start, parts_of_chunk) = parts.take(chunk.number).ok_or_else(gone)?;
        for ((number, column), part) in self.columns.decided().iter().enumerate().zip(parts_of_chunk) {
            let filled = text::fill(self.format, column, fields, &chunk.text, part);
            let is_placed = parts.put_bits(
                number,
                start,
                rows,
                filled.valid.as_ref().filter(|_| !matches!(column.target, Target::Null)),
                filled.booleans.as_ref(),
            );
            if !filled.misfits.is_empty() || !is_placed {
                return Err(gone());
            }
        }
        Ok(())
    }
}

fn load_table(
    table: &dyn Table,
    plan: &[Planned],
    chunks: &[ChunkSize],
    threads: usize,
    observer: &dyn Observer,
) -> Result<RecordBatch, DataError> {
    let location = table.location();
    let places: Vec<usize> = plan.iter().map(|column| column.place).collect();
    let total: usize = chunks.iter().map(|chunk| chunk.rows).sum();
    Filling::new(plan, chunks).fill(location, |parts| {
        let mut batches = table.batches(Some(&places))?.enumerate();
        let next = || batches.next().map(|(number, batch)| batch.map(|batch| (number, batch))).transpose();
        let work = |_: &mut (), (number, batch): (usize, RecordBatch)| {
            fill_batch(location, plan, chunks, parts, number, &batch)?;
            let done = parts.starts.get(number).map_or(total, |start| start + batch.num_rows());
            observer.advanced(Pass::Loading, done as u64, total as u64);
            Ok(())
        };
        threads::share(threads, observer, next, || (), work).map(|_| ())
    })
}

fn fill_batch(
    location: &str,
    plan: &[Planned],
    chunks: &[ChunkSize],
    parts: &Parts<'_>,
    number: usize,
    batch: &RecordBatch,
) -> Result<(), DataError> {
    let gone = || changed(location);
    if chunks.get(number).map(|chunk| chunk.rows) != Some(batch.num_rows()) {
        return Err(gone());
    }
    let (start, parts_of_batch) = parts.take(number).ok_or_else(gone)?;
    for (((column_number, column), part), array) in
        plan.iter().enumerate().zip(parts_of_batch).zip(batch.columns())
    {
        if matches!(column.target, Target::Keep(_)) {
            let mut kept = parts.kept.lock().unwrap_or_else(PoisonError::into_inner);
            let kept = &mut kept[column_number];
            if kept.len() <= number {
                kept.resize(number + 1, None);
            }
            kept[number] = Some(Arc::clone(array));
            continue;
        }
        if matches!(column.target, Target::Null) {
            continue;
        }
        let (valid, booleans) = fill_array(&column.target, array, part).ok_or_else(gone)?;
        if !parts.put_bits(column_number, start, array.len(), valid.as_ref(), booleans.as_ref()) {
            return Err(gone());
        }
    }
    Ok(())
}

/// Writes an array into a column's part. None: a value has no room there.
pub(crate) fn fill_array(
    target: &Target,
    array: &ArrayRef,
    part: Part<'_>,
) -> Option<(Option<Bits>, Option<Bits>)> {
    let rows = array.len();
    let mut valid = array.logical_nulls().filter(|nulls| nulls.null_count() > 0).map(|nulls| {
        let mut bits = Bits::new(rows, true);
        for row in 0..rows {
            if nulls.is_null(row) {
                bits.unset(row);
            }
        }
        bits
    });
    let mut booleans = None;
    match (target, part) {
        (Target::Bool, _) => {
            let array = arrow_array::cast::as_boolean_array(array);
            let mut bits = Bits::new(rows, false);
            for row in 0..rows {
                if array.is_valid(row) && array.value(row) {
                    bits.set(row);
                }
            }
            booleans = Some(bits);
        }
        (Target::Number(_), part) => put_numbers(array, part)?,
        (Target::Fixed(..), Part::UInt32(values)) => values.copy_from_slice(
            &array.to_data().buffers().first()?.typed_data::<u32>()[array.offset()..][..rows],
        ),
        (Target::Fixed(..), Part::UInt64(values)) => values.copy_from_slice(
            &array.to_data().buffers().first()?.typed_data::<u64>()[array.offset()..][..rows],
        ),
        (Target::Text | Target::Dictionary(_), part) => {
            let cells = TextCells::of(array.as_ref())?;
            // A code may stand for no value: which rows have one is the cells' to say.
            valid = put_text(target, &cells, rows, part)?;
        }
        _ => return None,
    }
    Some((valid, booleans))
}

fn put_text(target: &Target, cells: &TextCells<'_>, rows: usize, part: Part<'_>) -> Option<Option<Bits>> {
    let mut valid: Option<Bits> = None;
    let mut at = 0;
    macro_rules! each {
        ($values:ident, $write:expr) => {{
            #[allow(unused_mut)]
            let mut write = $write;
            for (row, value) in $values.iter_mut().enumerate() {
                let text = cells.text(row);
                if text.is_none() {
                    valid.get_or_insert_with(|| Bits::new(rows, true)).unset(row);
                }
                *value = write(text)?;
            }
        }};
    }
    macro_rules! codes {
        ($values:ident, $type:ty, $dictionary:ident) => {
            each!($values, |text: Option<&[u8]>| match text {
                Some(text) => $dictionary.distinct.get(text).and_then(|code| <$type>::try_from(code).ok()),
                None => Some(0),
            })
        };
    }
    match (part, target) {
        (Part::Int8(values), Target::Dictionary(dictionary)) => codes!(values, i8, dictionary),
        (Part::Int16(values), Target::Dictionary(dictionary)) => codes!(values, i16, dictionary),
        (Part::Int32(values), Target::Dictionary(dictionary)) => codes!(values, i32, dictionary),
        (Part::Text { offsets, bytes, base }, _) => each!(offsets, |text: Option<&[u8]>| {
            at += append(bytes, at, text)?;
            i32::try_from(base + at).ok()
        }),
        (Part::LargeText { offsets, bytes, base }, _) => each!(offsets, |text: Option<&[u8]>| {
            at += append(bytes, at, text)?;
            i64::try_from(base + at).ok()
        }),
        _ => return None,
    }
    Some(valid)
}

fn append(bytes: &mut [u8], at: usize, text: Option<&[u8]>) -> Option<usize> {
    let text = text.unwrap_or_default();
    bytes.get_mut(at..at + text.len())?.copy_from_slice(text);
    Some(text.len())
}

/// Numbers of any type into numbers of another that was chosen for them.
fn put_numbers(array: &ArrayRef, part: Part<'_>) -> Option<()> {
    let data = array.to_data();
    let from = Number::from_arrow(array.data_type())?;
    let buffer = data.buffers().first()?;
    with_native!(from, From => {
        let values: ScalarBuffer<From> = ScalarBuffer::new(Buffer::clone(buffer), data.offset(), data.len());
        match part {
            Part::Int8(into) => put_whole(array, &values, into),
            Part::UInt8(into) => put_whole(array, &values, into),
            Part::Int16(into) => put_whole(array, &values, into),
            Part::UInt16(into) => put_whole(array, &values, into),
            Part::Int32(into) => put_whole(array, &values, into),
            Part::UInt32(into) => put_whole(array, &values, into),
            Part::Int64(into) => put_whole(array, &values, into),
            Part::UInt64(into) => put_whole(array, &values, into),
            Part::Float16(into) => put_nearest(&values, into),
            Part::Float32(into) => put_nearest(&values, into),
            Part::Float64(into) => put_nearest(&values, into),
            _ => None,
        }
    })
}

/// Into integers: each must come back as it was.
fn put_whole<From: Native + Cast<Into>, Into: Native + Cast<From>>(
    array: &ArrayRef,
    values: &[From],
    into: &mut [Into],
) -> Option<()> {
    let mut kept = true;
    for (row, (value, into)) in values.iter().zip(into.iter_mut()).enumerate() {
        let one: Into = value.cast();
        let back: From = one.cast();
        let same = back.same(*value);
        kept &= same || array.is_null(row);
        *into = if same { one } else { Into::default() };
    }
    kept.then_some(())
}

/// Into floats: the nearest; how near is known from the first pass.
fn put_nearest<From: Native + Cast<Into>, Into: Native>(values: &[From], into: &mut [Into]) -> Option<()> {
    for (value, into) in values.iter().zip(into.iter_mut()) {
        *into = value.cast();
    }
    Some(())
}

/// Fills a sparse matrix, chunk by chunk in order.
fn matrix(
    input: &Input,
    profiled: &Profiled,
    plan: &[Planned],
    (stored, number): (u64, Number),
    on_error: OnError,
    observer: &dyn Observer,
) -> Result<Csr, DataError> {
    let location = input.location();
    let mut builder = CsrBuilder::new(location, profiled.profile.rows, plan.len() as u64, stored, number)?;
    let mut push = |batch: &RecordBatch| {
        let columns: Vec<&dyn Array> = batch.columns().iter().map(AsRef::as_ref).collect();
        builder.push_rows(&columns)
    };
    each_batch(input, profiled, plan, Pass::Loading, on_error, observer, &mut push)?;
    builder.finish()
}

/// Each batch of an input in the types of a plan, in order.
pub(crate) fn each_batch(
    input: &Input,
    profiled: &Profiled,
    plan: &[Planned],
    pass: Pass,
    on_error: OnError,
    observer: &dyn Observer,
    work: &mut dyn FnMut(&RecordBatch) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let total = profiled.profile.rows;
    let mut rows = 0_u64;
    let mut advance = |batch: &RecordBatch| -> Result<(), DataError> {
        if observer.stopped() {
            return Err(DataError::Stopped);
        }
        rows += batch.num_rows() as u64;
        observer.advanced(pass, rows, total);
        work(batch)
    };
    match input {
        Input::Text { source, format } => {
            let columns = text_columns(format, profiled, plan);
            let mut chunks = Chunks::open(source, format, on_error)?;
            while let Some(chunk) = chunks.next()? {
                let known = profiled.profile.broken_rows.count;
                let mut broken = BrokenRows::default();
                let batch = text::decode(
                    &columns,
                    source.location(),
                    &chunk.text,
                    chunk.first_line,
                    on_error,
                    &mut broken,
                )?;
                if broken.count > known
                    || profiled.chunks.get(chunk.number).map(|chunk| chunk.rows) != Some(batch.num_rows())
                {
                    return Err(changed(source.location()));
                }
                advance(&batch)?;
            }
        }
        Input::Table(table) => {
            let places: Vec<usize> = plan.iter().map(|column| column.place).collect();
            for (number, batch) in table.batches(Some(&places))?.enumerate() {
                let batch = batch?;
                let sizes = profiled.chunks.get(number..=number).ok_or_else(|| changed(table.location()))?;
                let converted = Filling::one(plan, sizes).fill(table.location(), |parts| {
                    fill_batch(table.location(), plan, sizes, parts, 0, &batch)
                })?;
                advance(&converted)?;
            }
        }
    }
    if rows == total && !input.changed() { Ok(()) } else { Err(changed(input.location())) }
}

impl<'a> Filling<'a> {
    /// Of one chunk alone.
    fn one(plan: &'a [Planned], chunk: &'a [ChunkSize]) -> Self {
        let rows = chunk.iter().map(|chunk| chunk.rows).sum();
        let text = |column: &Planned| chunk.iter().map(|chunk| column.text_in(chunk)).sum();
        let values = plan.iter().map(|column| Values::new(&column.target, rows, text(column))).collect();
        Self { plan, chunks: chunk, rows, values }
    }
}
