//! The first pass over a table that has types.

use super::{ChunkSize, ColumnProfile, Decision, Profiled, choice, text::day_text};
use crate::arrays::convert::with_native;
use crate::choose::{Number, NumberStats};
use crate::distinct::Counting;
use crate::input::Options;
use crate::tables::{Table, TextCells};
use crate::target::{Dictionary, Target, type_name, validity_bytes};
use crate::{BrokenRows, DataError, Observer, Pass};
use arrow_array::cast::AsArray;
use arrow_array::types::Date32Type;
use arrow_array::{Array, ArrayRef};
use arrow_buffer::{Buffer, ScalarBuffer};
use arrow_schema::DataType;
use std::sync::Arc;

/// What one pass keeps of a column.
struct ColumnScan {
    data_type: DataType,
    /// As it is in memory.
    now: u64,
    nulls: u64,
    kind: Kind,
    /// Bytes of its text so far.
    text_bytes: u64,
}

enum Kind {
    Numbers(NumberStats),
    Text(Counting),
    Truths,
    Days([i32; 2]),
    /// Kept as it is.
    Other,
}

impl ColumnScan {
    fn new(data_type: &DataType, tolerance: f64) -> Self {
        let kind = match data_type {
            DataType::Boolean => Kind::Truths,
            DataType::Date32 => Kind::Days([i32::MAX, i32::MIN]),
            other if TextCells::are_in(other) => Kind::Text(Counting::default()),
            other => Number::from_arrow(other)
                .map_or(Kind::Other, |number| Kind::Numbers(NumberStats::new(number, tolerance))),
        };
        Self { data_type: data_type.clone(), now: 0, nulls: 0, kind, text_bytes: 0 }
    }

    /// Reads a batch's column; gives its bytes as text.
    fn add(&mut self, array: &ArrayRef) -> usize {
        let before = self.text_bytes;
        self.now += array.to_data().get_slice_memory_size().unwrap_or(0) as u64;
        self.nulls += array.logical_null_count() as u64;
        match &mut self.kind {
            Kind::Numbers(stats) => add_numbers(stats, array),
            Kind::Text(counting) => {
                if let Some(cells) = TextCells::of(array.as_ref()) {
                    for row in 0..array.len() {
                        if let Some(text) = cells.text(row) {
                            self.text_bytes += text.len() as u64;
                            counting.add(text);
                        }
                    }
                }
            }
            Kind::Days(range) => {
                for day in array.as_primitive::<Date32Type>().iter().flatten() {
                    *range = [range[0].min(day), range[1].max(day)];
                }
            }
            Kind::Truths | Kind::Other => {}
        }
        (self.text_bytes - before) as usize
    }

    fn decide(&self, name: &str, rows: u64, relative_error: f64) -> Decision {
        let now = self.now.max(validity_bytes(rows, self.nulls));
        let mut profile = ColumnProfile {
            now: super::Choice {
                type_name: type_name(&self.data_type),
                bytes: now,
                worst_relative_error: None,
            },
            nulls: self.nulls,
            ..ColumnProfile::blank(name)
        };
        let (mut worst, mut exact, mut within) = (None, self.as_it_is(), None);
        match &self.kind {
            _ if self.nulls == rows && rows > 0 => exact = Target::Null,
            Kind::Numbers(stats) => {
                profile.zeros = stats.zeros;
                profile.nans = stats.nans;
                profile.infinite = stats.infinite;
                profile.range = stats.range();
                profile.integer_valued = stats.source.is_float() && stats.integer_valued && stats.count > 0;
                if let Some(number) = stats.exact() {
                    exact = Target::Number(number);
                }
                if let Some((number, error)) = stats.within(relative_error) {
                    within = Some(Target::Number(number));
                    worst = error;
                }
            }
            Kind::Text(counting) => {
                let distinct = counting.finish();
                profile.distinct = distinct.as_ref().map(|distinct| distinct.len() as u64);
                let text = Target::Text.bytes(rows, self.nulls, self.text_bytes);
                let dictionary = distinct.filter(|distinct| distinct.len() > 0).and_then(Dictionary::new);
                let dictionary = dictionary.map(|dictionary| Target::Dictionary(Arc::new(dictionary)));
                exact = dictionary
                    .filter(|target| target.bytes(rows, self.nulls, 0) < text)
                    .unwrap_or(Target::Text);
            }
            Kind::Days(range) if range[0] <= range[1] => profile.range = Some(range.map(day_text)),
            Kind::Truths | Kind::Days(_) | Kind::Other => {}
        }
        let text_bytes = if matches!(exact, Target::Text) { self.text_bytes } else { 0 };
        let size = |target: &Target| match target {
            Target::Keep(_) => now,
            target => target.bytes(rows, self.nulls, text_bytes),
        };
        let within = within.unwrap_or_else(|| exact.clone());
        profile.exact = choice(&exact, size(&exact), text_bytes, None);
        profile.within = choice(&within, size(&within), text_bytes, worst);
        Decision { place: 0, counted: 0, profile, exact, within, text_bytes }
    }

    fn as_it_is(&self) -> Target {
        match self.data_type.primitive_width() {
            _ if self.data_type == DataType::Boolean => Target::Bool,
            Some(4) => Target::Fixed(self.data_type.clone(), Number::UInt32),
            Some(8) => Target::Fixed(self.data_type.clone(), Number::UInt64),
            _ => Target::Keep(self.data_type.clone()),
        }
    }

    fn numbers_without_nulls(&self) -> Option<NumberStats> {
        match &self.kind {
            Kind::Numbers(stats) if self.nulls == 0 => Some(stats.clone()),
            _ => None,
        }
    }
}

fn add_numbers(stats: &mut NumberStats, array: &ArrayRef) {
    let data = array.to_data();
    stats.add_nulls(array.null_count() as u64);
    let Some(buffer) = data.buffers().first() else { return };
    with_native!(stats.source, Native => {
        let values: ScalarBuffer<Native> = ScalarBuffer::new(Buffer::clone(buffer), data.offset(), data.len());
        match array.nulls() {
            None => Slice::add(stats, &values),
            Some(nulls) => {
                // Runs of rows that have values, as they lie.
                for (start, end) in nulls.valid_slices() {
                    Slice::add(stats, &values[start..end]);
                }
            }
        }
    });
}

/// Values of one type, counted.
trait Slice: Sized {
    fn add(stats: &mut NumberStats, values: &[Self]);
}

macro_rules! slices {
    ($($native:ty: $add:ident),*) => {$(
        impl Slice for $native {
            fn add(stats: &mut NumberStats, values: &[Self]) {
                stats.$add(values);
            }
        }
    )*};
}

slices! {
    i8: add_integer_slice, u8: add_integer_slice, i16: add_integer_slice, u16: add_integer_slice, i32: add_integer_slice,
    u32: add_integer_slice, i64: add_integer_slice, u64: add_integer_slice, half::f16: add_f16_slice, f32: add_f32_slice, f64: add_f64_slice
}

pub(super) fn profile(
    table: &dyn Table,
    options: &Options,
    relative_error: f64,
    observer: &dyn Observer,
) -> Result<Profiled, DataError> {
    let schema = table.schema();
    let names: Vec<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
    let wanted = options.wanted(&names)?;
    let mut columns: Vec<ColumnScan> = wanted
        .iter()
        .map(|&column| ColumnScan::new(schema.field(column).data_type(), relative_error))
        .collect();
    let (mut rows, mut chunks) = (0_u64, Vec::new());
    let total = table.rows().unwrap_or(0);
    for batch in table.batches(Some(&wanted))? {
        if observer.stopped() {
            return Err(DataError::Stopped);
        }
        let batch = batch?;
        let text_bytes =
            columns.iter_mut().zip(batch.columns()).map(|(column, array)| column.add(array)).collect();
        chunks.push(ChunkSize { rows: batch.num_rows(), text_bytes });
        rows += batch.num_rows() as u64;
        observer.advanced(Pass::Profiling, rows, total.max(rows));
    }
    let decisions = wanted.iter().zip(&columns).enumerate().map(|(counted, (&place, scan))| Decision {
        place,
        counted,
        ..scan.decide(&names[place], rows, relative_error)
    });
    let decisions = decisions.collect();
    let matrix = columns.iter().map(ColumnScan::numbers_without_nulls).collect();
    let mut profiled =
        super::assemble(table.location(), table.format(), rows, decisions, matrix, BrokenRows::default());
    profiled.chunks = chunks;
    profiled.width = names;
    Ok(profiled)
}
