//! The columns of a text file whose types are decided, and a chunk's cells read into them.

use super::fields::{Field, Fields, Place};
use super::json_lines::Keys;
use super::parse::{self, Cell};
use super::{TextFormat, body_start, header_names, records_end, split};
use crate::choose::{Number, to_f16};
use crate::target::Target;
use crate::values::{Bits, Part, Values};
use crate::{BrokenRows, DataError, OnError};
use arrow_array::{ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Field as ArrowField, Schema, SchemaRef, TimeUnit};
use arrow_select::filter::filter_record_batch;
use std::sync::Arc;

/// A column and what it becomes.
#[derive(Clone)]
pub(crate) struct TextColumn {
    /// Its place in a row of the file.
    pub(crate) place: usize,
    pub(crate) name: String,
    pub(crate) target: Target,
}

/// The columns of a text file, with types. Cheap to clone.
#[derive(Clone)]
pub struct Columns {
    decided: Arc<Decided>,
}

struct Decided {
    format: TextFormat,
    /// Cells in a row of the file.
    width: usize,
    keys: Keys,
    columns: Vec<TextColumn>,
    schema: SchemaRef,
}

impl Columns {
    pub(crate) fn new(format: TextFormat, width: usize, keys: Keys, columns: Vec<TextColumn>) -> Self {
        let fields: Vec<ArrowField> = columns
            .iter()
            .map(|column| ArrowField::new(&column.name, column.target.arrow_type(0), true))
            .collect();
        let schema = Arc::new(Schema::new(fields));
        Self { decided: Arc::new(Decided { format, width, keys, columns, schema }) }
    }

    /// From the head of a file: int64, float64, bool, date32, timestamp\[us\] or string for each column. `at_end`: the
    /// head is the whole file. A value further on that does not fit its column's type is a broken row.
    pub fn infer(location: &str, format: &TextFormat, head: &[u8], at_end: bool) -> Result<Self, DataError> {
        let (start, line) = body_start(format, head);
        let body = &head[start.min(head.len())..];
        let end = if at_end { body.len() } else { records_end(format, body).unwrap_or(0) };
        let body = &body[..end];
        let mut keys = Keys::default();
        let names = if format.delimiter.is_some() {
            header_names(location, format, head)?
        } else {
            super::json_lines::new_keys(&mut keys, location, body)?;
            keys.names()
        };
        if names.is_empty() {
            return Err(DataError::unreadable(location, "no object with a key in the first lines"));
        }
        let (mut fields, mut broken) = (Fields::default(), BrokenRows::default());
        fields.clear(names.len());
        let place = Place { location, first_line: line, on_error: OnError::Skip };
        split(format, &keys, body, &place, &mut fields, &mut broken)?;
        let json = format.delimiter.is_none();
        let columns = names.iter().enumerate().map(|(place, name)| {
            let target = usual_type(format, json, fields.column(body, place));
            TextColumn { place, name: name.clone(), target }
        });
        let columns: Vec<TextColumn> = columns.collect();
        let keys = Keys::of(&names, vec![false; names.len()]);
        Ok(Self::new(format.clone(), names.len(), keys, columns))
    }

    /// Names and types.
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.decided.schema)
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.decided.keys
    }

    pub(crate) fn decided(&self) -> &[TextColumn] {
        &self.decided.columns
    }

    /// How the file is written.
    pub fn format(&self) -> &TextFormat {
        &self.decided.format
    }

    /// Only these, in this order.
    pub fn project(&self, names: &[String]) -> Result<Self, DataError> {
        let chosen = names.iter().map(|name| {
            let found = self.decided.columns.iter().find(|column| column.name == *name).cloned();
            found.ok_or_else(|| {
                no_column(name, self.decided.columns.iter().map(|column| column.name.as_str()))
            })
        });
        let chosen = chosen.collect::<Result<Vec<_>, DataError>>()?;
        Ok(Self::new(self.decided.format.clone(), self.decided.width, self.decided.keys.clone(), chosen))
    }
}

/// A column that was asked for and is not there.
pub(crate) fn no_column<'a>(name: &str, there: impl Iterator<Item = &'a str>) -> DataError {
    let there: Vec<&str> = there.take(20).collect();
    DataError::Usage(format!("there is no column {name:?}; there are {}", there.join(", ")))
}

/// The type that a column is usually given, from some of its cells.
fn usual_type<'a>(format: &TextFormat, json: bool, cells: impl Iterator<Item = Field<'a>>) -> Target {
    let (mut ints, mut floats, mut booleans, mut days, mut moments, mut utc) =
        (false, false, false, false, false, None);
    for field in cells {
        if is_null(format, field) {
            continue;
        }
        let cell = parse::cell(field.text);
        match cell {
            Cell::Date(_) => days = true,
            Cell::Moment(moment) => {
                if utc.is_some_and(|utc| utc != moment.utc) || moment.in_unit(TimeUnit::Microsecond).is_none()
                {
                    return Target::Text;
                }
                utc = Some(moment.utc);
                moments = true;
            }
            _ if json && field.quoted => return Target::Text,
            Cell::Int(_) => ints = true,
            Cell::Float(_) => floats = true,
            Cell::Bool(..) => booleans = true,
            Cell::Empty => {}
            Cell::UInt(_) | Cell::Text(_) => return Target::Text,
        }
    }
    match (ints || floats, booleans, days, moments) {
        (true, false, false, false) => Target::Number(if floats { Number::Float64 } else { Number::Int64 }),
        (false, true, false, false) => Target::Bool,
        (false, false, true, false) => Target::Date,
        (false, false, false, true) => Target::Moment(TimeUnit::Microsecond, utc == Some(true)),
        _ => Target::Text,
    }
}

/// In a column of numbers or times.
#[inline]
pub(crate) fn is_null(format: &TextFormat, field: Field<'_>) -> bool {
    field.text.is_empty()
        || (field.text[0] >= b'A' || field.text[0] < b'-') && parse::is_null_word(field.text)
        || (!format.nulls.is_empty() && format.is_null(field.text))
}

/// In a column of text: quoted values are never null.
#[inline]
pub(crate) fn is_null_text(format: &TextFormat, field: Field<'_>) -> bool {
    !field.quoted && (field.text.is_empty() || (!format.nulls.is_empty() && format.is_null(field.text)))
}

/// Where a column's rows go.
pub(crate) struct Filled {
    /// Which rows have a value; none: all.
    pub(crate) valid: Option<Bits>,
    pub(crate) booleans: Option<Bits>,
    /// Rows whose cell does not fit the type.
    pub(crate) misfits: Vec<usize>,
}

/// Reads a column's cells into the part of its buffers that is theirs.
pub(crate) fn fill(
    format: &TextFormat,
    column: &TextColumn,
    fields: &Fields,
    chunk: &[u8],
    part: Part<'_>,
) -> Filled {
    let rows = fields.rows();
    let json = format.delimiter.is_none();
    let mut filled = Filled { valid: None, booleans: None, misfits: Vec::new() };
    let cells = fields.column(chunk, column.place);
    macro_rules! each {
        ($values:ident, $nothing:ident, $read:expr) => {{
            let read = $read;
            for (row, (field, value)) in cells.zip($values.iter_mut()).enumerate() {
                match read(field) {
                    Some(one) => *value = one,
                    None if $nothing(format, field) => {
                        filled.valid.get_or_insert_with(|| Bits::new(rows, true)).unset(row)
                    }
                    None => filled.misfits.push(row),
                }
            }
        }};
    }
    macro_rules! integers {
        ($values:ident, $type:ty) => {
            each!($values, is_null, |field: Field<'_>| integer(json, field)
                .and_then(|value| <$type>::try_from(value).ok()))
        };
    }
    macro_rules! codes {
        ($values:ident, $type:ty, $dictionary:ident) => {
            each!($values, is_null_text, |field: Field<'_>| {
                if is_null_text(format, field) {
                    None
                } else {
                    $dictionary.distinct.get(field.text).and_then(|code| <$type>::try_from(code).ok())
                }
            })
        };
    }
    match (part, &column.target) {
        (Part::Int8(values), Target::Dictionary(dictionary)) => codes!(values, i8, dictionary),
        (Part::Int16(values), Target::Dictionary(dictionary)) => codes!(values, i16, dictionary),
        (Part::Int32(values), Target::Dictionary(dictionary)) => codes!(values, i32, dictionary),
        (Part::Int32(values), Target::Date) => {
            each!(values, is_null, |field: Field<'_>| parse::date(field.text))
        }
        (Part::Int64(values), Target::Moment(unit, utc)) => {
            each!(values, is_null, |field: Field<'_>| {
                parse::moment(field.text)
                    .filter(|moment| moment.utc == *utc)
                    .and_then(|moment| moment.in_unit(*unit))
            })
        }
        (Part::Int8(values), _) => integers!(values, i8),
        (Part::UInt8(values), _) => integers!(values, u8),
        (Part::Int16(values), _) => integers!(values, i16),
        (Part::UInt16(values), _) => integers!(values, u16),
        (Part::Int32(values), _) => integers!(values, i32),
        (Part::UInt32(values), _) => integers!(values, u32),
        (Part::Int64(values), _) => integers!(values, i64),
        (Part::UInt64(values), _) => integers!(values, u64),
        (Part::Float16(values), _) => {
            each!(values, is_null, |field: Field<'_>| float(json, field).map(to_f16))
        }
        (Part::Float32(values), _) => {
            each!(values, is_null, |field: Field<'_>| float(json, field).map(|value| value as f32))
        }
        (Part::Float64(values), _) => {
            each!(values, is_null, |field: Field<'_>| float(json, field))
        }
        (Part::Text { offsets, bytes, base }, _) => {
            let mut at = 0;
            for (row, (field, offset)) in cells.zip(offsets.iter_mut()).enumerate() {
                at = put_text(format, field, row, rows, bytes, at, &mut filled);
                *offset = i32::try_from(base + at).unwrap_or(i32::MAX);
            }
        }
        (Part::LargeText { offsets, bytes, base }, _) => {
            let mut at = 0;
            for (row, (field, offset)) in cells.zip(offsets.iter_mut()).enumerate() {
                at = put_text(format, field, row, rows, bytes, at, &mut filled);
                *offset = (base + at) as i64;
            }
        }
        (Part::Bits, _) => {
            let mut booleans = Bits::new(rows, false);
            for (row, field) in cells.enumerate() {
                match parse::boolean(field.text) {
                    Some(true) if !(json && field.quoted) => booleans.set(row),
                    Some(false) if !(json && field.quoted) => {}
                    None if is_null(format, field) => {
                        filled.valid.get_or_insert_with(|| Bits::new(rows, true)).unset(row)
                    }
                    _ => filled.misfits.push(row),
                }
            }
            filled.booleans = Some(booleans);
        }
        (Part::Nothing, _) => {
            filled.misfits = cells
                .enumerate()
                .filter(|(_, field)| !is_null_text(format, *field))
                .map(|(row, _)| row)
                .collect();
        }
    }
    filled
}

/// Writes a row's text; gives where the next begins. A file that has grown since it was measured does not fit.
#[inline]
fn put_text(
    format: &TextFormat,
    field: Field<'_>,
    row: usize,
    rows: usize,
    bytes: &mut [u8],
    at: usize,
    filled: &mut Filled,
) -> usize {
    if is_null_text(format, field) {
        filled.valid.get_or_insert_with(|| Bits::new(rows, true)).unset(row);
        return at;
    }
    let end = at + field.text.len();
    match bytes.get_mut(at..end) {
        Some(room) => {
            room.copy_from_slice(field.text);
            end
        }
        None => {
            filled.misfits.push(row);
            at
        }
    }
}

/// A whole number, however it is written.
#[inline]
fn integer(json: bool, field: Field<'_>) -> Option<i128> {
    if let Some(value) = parse::int(field.text) {
        return if json && field.quoted { None } else { Some(value.into()) };
    }
    unusual_integer(json, field)
}

#[cold]
fn unusual_integer(json: bool, field: Field<'_>) -> Option<i128> {
    if json && field.quoted {
        return None;
    }
    match parse::cell(field.text) {
        Cell::UInt(value) => Some(value.into()),
        // A large one may be the nearest to what is written, and not that.
        Cell::Float(value) if value.abs() >= parse::WHOLE_FLOATS => parse::whole(field.text),
        Cell::Float(value) if value.fract() == 0.0 && !(value == 0.0 && value.is_sign_negative()) => {
            Some(value as i128)
        }
        _ => None,
    }
}

#[inline]
fn float(json: bool, field: Field<'_>) -> Option<f64> {
    if json && field.quoted {
        return None;
    }
    // What a number would lose is text, here as in the first pass.
    match field.text.strip_prefix(b"-").unwrap_or(field.text) {
        [b'0', b'0'..=b'9', ..] | [b'+', ..] => None,
        digits if digits.len() > 15 && digits.iter().all(u8::is_ascii_digit) => integer_as_float(field.text),
        _ => parse::float(field.text),
    }
}

/// An integer that is a float, to the last digit.
#[cold]
fn integer_as_float(text: &[u8]) -> Option<f64> {
    let value: i128 = std::str::from_utf8(text).ok()?.parse().ok()?;
    let nearest = value as f64;
    (nearest as i128 == value).then_some(nearest)
}

/// Bytes of a column's text in a chunk.
pub(crate) fn text_bytes(format: &TextFormat, place: usize, fields: &Fields, chunk: &[u8]) -> usize {
    fields
        .column(chunk, place)
        .filter(|field| !is_null_text(format, *field))
        .map(|field| field.text.len())
        .sum()
}

/// Reads whole records into a batch. `first_line` is the line on which the chunk begins.
pub fn decode(
    columns: &Columns,
    location: &str,
    chunk: &[u8],
    first_line: u64,
    on_error: OnError,
    broken: &mut BrokenRows,
) -> Result<RecordBatch, DataError> {
    let decided = &*columns.decided;
    let mut fields = Fields::default();
    fields.clear(decided.width);
    let place = Place { location, first_line, on_error };
    split(&decided.format, &decided.keys, chunk, &place, &mut fields, broken)?;
    let rows = fields.rows();
    let mut misfits: Vec<(usize, usize)> = Vec::new();
    let mut arrays: Vec<ArrayRef> = Vec::with_capacity(decided.columns.len());
    for (number, column) in decided.columns.iter().enumerate() {
        let text = if matches!(column.target, Target::Text) {
            text_bytes(&decided.format, column.place, &fields, chunk)
        } else {
            0
        };
        let mut values = Values::new(&column.target, rows, text);
        let part = values.parts(&[rows], &[text]).pop().unwrap_or(Part::Nothing);
        let filled = fill(&decided.format, column, &fields, chunk, part);
        misfits.extend(filled.misfits.iter().map(|&row| (row, number)));
        let array = values.finish(&column.target, rows, filled.valid, filled.booleans);
        arrays.push(array.map_err(|error| DataError::unreadable(location, error.to_string()))?);
    }
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let batch = RecordBatch::try_new_with_options(columns.schema(), arrays, &options)
        .map_err(|error| DataError::unreadable(location, error.to_string()))?;
    if misfits.is_empty() {
        return Ok(batch);
    }
    misfits.sort_unstable();
    misfits.dedup_by_key(|(row, _)| *row);
    let mut kept = vec![true; rows];
    for (row, number) in misfits {
        let column = &decided.columns[number];
        let cell = fields.column(chunk, column.place).nth(row).map_or(&[][..], |field| field.text);
        let what = misfit(&column.name, cell, &column.target.arrow_type(0));
        place.broken(chunk, fields.row_place(row), what, broken)?;
        kept[row] = false;
    }
    filter_record_batch(&batch, &BooleanArray::from(kept))
        .map_err(|error| DataError::unreadable(location, error.to_string()))
}

fn misfit(name: &str, cell: &[u8], data_type: &DataType) -> String {
    let shown: String = String::from_utf8_lossy(cell).chars().take(40).collect();
    format!("column {name:?}: {shown:?} is not {}", crate::target::type_name(data_type))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Compression;
    use arrow_array::cast::AsArray;
    use arrow_array::types::{Float64Type, Int64Type};

    fn csv() -> TextFormat {
        TextFormat {
            delimiter: Some(b','),
            header: true,
            quote: b'"',
            nulls: Vec::new(),
            compression: Compression::None,
        }
    }

    #[test]
    fn types_are_those_of_the_head_and_what_does_not_fit_is_named() {
        let head = b"id,x,day,name,ok\n1,2.5,2024-01-01,007,true\n2,NA,,\"\",\n";
        let columns = Columns::infer("t.csv", &csv(), head, true).unwrap();
        let types: Vec<String> = columns
            .schema()
            .fields()
            .iter()
            .map(|field| crate::target::type_name(field.data_type()))
            .collect();
        assert_eq!(types, ["int64", "float64", "date32", "string", "bool"]);
        let mut broken = BrokenRows::default();
        let body =
            b"1,2.5,2024-01-01,007,true\n2,NA,,\"\",\nx,1,,a,\n4,nan,2024-02-30,b,maybe\n5,-0,,,false\n";
        let batch = decode(&columns, "t.csv", body, 2, OnError::Skip, &mut broken).unwrap();
        assert_eq!(batch.column(0).as_primitive::<Int64Type>().values(), &[1, 2, 5]);
        let floats = batch.column(1).as_primitive::<Float64Type>();
        assert!(floats.is_null_at(1) && floats.value(2).is_sign_negative());
        let names: Vec<Option<&str>> = batch.column(3).as_string::<i32>().iter().collect();
        assert_eq!(names, [Some("007"), Some(""), None]);
        let named: Vec<(u64, &str)> = broken.first.iter().map(|row| (row.line, row.what.as_str())).collect();
        assert_eq!(
            named,
            [(4, "column \"id\": \"x\" is not int64"), (5, "column \"day\": \"2024-02-30\" is not date32")]
        );
        let failed = decode(&columns, "t.csv", body, 2, OnError::Fail, &mut broken).unwrap_err();
        assert_eq!(failed.to_string(), "t.csv: line 4: column \"id\": \"x\" is not int64");
    }

    #[test]
    fn an_integer_that_no_float_is_does_not_fit_among_floats() {
        let columns = Columns::infer("t.csv", &csv(), b"x\n0.5\n", true).unwrap();
        let mut broken = BrokenRows::default();
        let body = b"9007199254740992\n9007199254740993\n-9007199254740994\n1\n";
        let batch = decode(&columns, "t.csv", body, 2, OnError::Skip, &mut broken).unwrap();
        let kept = [9_007_199_254_740_992.0, -9_007_199_254_740_994.0, 1.0];
        assert_eq!(batch.column(0).as_primitive::<Float64Type>().values(), &kept);
        assert_eq!(broken.first[0].what, "column \"x\": \"9007199254740993\" is not float64");
    }

    trait NullAt {
        fn is_null_at(&self, row: usize) -> bool;
    }

    impl<A: arrow_array::Array> NullAt for A {
        fn is_null_at(&self, row: usize) -> bool {
            self.is_null(row)
        }
    }

    #[test]
    fn json_lines_keep_strings_and_numbers_apart() {
        let format = TextFormat { delimiter: None, header: false, ..csv() };
        let columns = Columns::infer("t.jsonl", &format, b"{\"a\": 1, \"b\": \"2\"}\n", true).unwrap();
        let mut broken = BrokenRows::default();
        let batch = decode(
            &columns,
            "t.jsonl",
            b"{\"b\": \"3\", \"a\": 4}\n{\"a\": \"5\"}\n{\"z\": 0}\n",
            1,
            OnError::Skip,
            &mut broken,
        )
        .unwrap();
        assert_eq!(batch.num_rows(), 2);
        assert_eq!(broken.first[0].line, 2);
        assert!(batch.column(0).is_null_at(1) && batch.column(1).as_string::<i32>().value(0) == "3");
    }
}
