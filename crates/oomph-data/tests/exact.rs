//! Exactly: whatever is in a table, loading it gives every value back.

#![allow(clippy::unwrap_used, clippy::panic)] // a test fails by panicking

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{
    Array, ArrayRef, BooleanArray, DictionaryArray, LargeStringArray, PrimitiveArray, RecordBatch,
    StringArray,
};
use arrow_schema::{DataType, SchemaRef, TimeUnit};
use half::f16;
use oomph_data::input::{Input, Options, Sparseness};
use oomph_data::load::{Data, load};
use oomph_data::source::{Compression, memory};
use oomph_data::tables::{Batches, Table};
use oomph_data::text::TextFormat;
use oomph_data::{DataError, OnError, Policy, Unobserved, profile};
use proptest::prelude::*;
use std::sync::Arc;

/// What a cell says, apart from its type.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    Nothing,
    Integer(i128),
    /// Bits; one pattern for all that is not a number.
    Float(u64),
    Bool(bool),
    Text(String),
    Day(i32),
    /// Nanoseconds since 1970.
    Moment(i128),
}

fn float(value: f64) -> Value {
    if value.is_nan() { Value::Float(f64::NAN.to_bits()) } else { Value::Float(value.to_bits()) }
}

/// Whether a stored value is the one that was written: a whole float may have become an integer, and the reverse.
fn same(written: &Value, stored: &Value) -> bool {
    let alike = |bits: u64, integer: i128| {
        let value = f64::from_bits(bits);
        value == integer as f64 && value as i128 == integer && (value != 0.0 || value.is_sign_positive())
    };
    match (written, stored) {
        (Value::Float(bits), Value::Integer(integer)) | (Value::Integer(integer), Value::Float(bits)) => {
            alike(*bits, *integer)
        }
        (written, stored) => written == stored,
    }
}

/// Whether it is at least what the text says: `1.429574304060752e18` is a whole number of nineteen digits there, and
/// beside one that no float holds it is stored as that. Read as a float it is the one that was written.
fn same_as_in_text(written: &Value, stored: &Value) -> bool {
    match (written, stored) {
        (Value::Float(bits), Value::Integer(integer)) => {
            let value = f64::from_bits(*bits);
            // Without an exponent: the same digits, and zeros.
            *integer as f64 == value && value.to_string().parse() == Ok(*integer)
        }
        _ => false,
    }
}

fn value(array: &dyn Array, row: usize) -> Value {
    if array.is_null(row) {
        return Value::Nothing;
    }
    macro_rules! primitive {
        ($type:ty) => {
            array.as_primitive::<$type>().value(row)
        };
    }
    match array.data_type() {
        DataType::Null => Value::Nothing,
        DataType::Int8 => Value::Integer(primitive!(Int8Type).into()),
        DataType::UInt8 => Value::Integer(primitive!(UInt8Type).into()),
        DataType::Int16 => Value::Integer(primitive!(Int16Type).into()),
        DataType::UInt16 => Value::Integer(primitive!(UInt16Type).into()),
        DataType::Int32 => Value::Integer(primitive!(Int32Type).into()),
        DataType::UInt32 => Value::Integer(primitive!(UInt32Type).into()),
        DataType::Int64 => Value::Integer(primitive!(Int64Type).into()),
        DataType::UInt64 => Value::Integer(primitive!(UInt64Type).into()),
        DataType::Float16 => float(primitive!(Float16Type).to_f64()),
        DataType::Float32 => float(primitive!(Float32Type).into()),
        DataType::Float64 => float(primitive!(Float64Type)),
        DataType::Boolean => Value::Bool(array.as_boolean().value(row)),
        DataType::Date32 => Value::Day(primitive!(Date32Type)),
        DataType::Timestamp(TimeUnit::Second, _) => {
            Value::Moment(i128::from(primitive!(TimestampSecondType)) * 1_000_000_000)
        }
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            Value::Moment(i128::from(primitive!(TimestampMillisecondType)) * 1_000_000)
        }
        DataType::Timestamp(TimeUnit::Nanosecond, _) => {
            Value::Moment(primitive!(TimestampNanosecondType).into())
        }
        DataType::Utf8 => Value::Text(array.as_string::<i32>().value(row).to_owned()),
        DataType::LargeUtf8 => Value::Text(array.as_string::<i64>().value(row).to_owned()),
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            value(dictionary.values().as_ref(), dictionary.normalized_keys()[row])
        }
        other => panic!("{other}"),
    }
}

fn csv() -> TextFormat {
    TextFormat {
        delimiter: Some(b','),
        header: true,
        quote: b'"',
        nulls: Vec::new(),
        compression: Compression::None,
    }
}

fn text_input(text: &str) -> Input {
    Input::Text { source: memory("t.csv", text.as_bytes().to_vec()), format: csv() }
}

fn loaded(input: &Input, policy: Policy, threads: usize) -> RecordBatch {
    let options = Options { policy, threads, sparse: Sparseness::Never, ..Options::default() };
    let profiled = profile::of(input, &options, &Unobserved).unwrap();
    let loaded = load(input, &profiled, &options, &Unobserved).unwrap();
    let Data::Table(batch) = loaded.data else { panic!("a matrix") };
    for ((column, said), array) in profiled.profile.columns.iter().zip(&loaded.columns).zip(batch.columns()) {
        let choice = if policy == Policy::Exact { &column.exact } else { &column.within };
        assert_eq!((&said.type_name, said.bytes), (&choice.type_name, choice.bytes));
        // What it takes is what was said, to the byte; a dictionary's values are counted apart.
        if !matches!(array.data_type(), DataType::Null | DataType::Dictionary(..)) {
            assert_eq!(
                array.to_data().get_slice_memory_size().unwrap() as u64,
                said.bytes,
                "{} {}",
                column.name,
                said.type_name
            );
        }
    }
    batch
}

fn written(value: &Value) -> String {
    match value {
        Value::Integer(integer) => integer.to_string(),
        Value::Float(bits) => format!("{:?}", f64::from_bits(*bits)),
        Value::Bool(value) => value.to_string(),
        Value::Text(text) => format!("\"{}\"", text.replace('"', "\"\"")),
        Value::Nothing | Value::Day(_) | Value::Moment(_) => String::new(),
    }
}

fn a_csv(columns: &[Vec<Value>]) -> String {
    let mut text = (0..columns.len()).map(|column| format!("c{column}")).collect::<Vec<_>>().join(",") + "\n";
    for row in 0..columns[0].len() {
        let cells: Vec<String> = columns.iter().map(|column| written(&column[row])).collect();
        text += &(cells.join(",") + "\n");
    }
    text
}

const FLOATS: [f64; 22] = [
    0.0,
    -0.0,
    1.0,
    -1.5,
    5e-324,
    -2.2250738585072014e-308,
    1e-45,
    6e-8,
    65504.0,
    65520.0,
    16_777_216.0,
    16_777_217.0,
    9_007_199_254_740_992.0,
    f64::MAX,
    f64::MIN_POSITIVE,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
    0.1,
    3.4028234663852886e38,
    1e39,
    -7.0,
];
const INTEGERS: [i128; 18] = [
    0,
    1,
    -1,
    127,
    128,
    255,
    256,
    -129,
    32_767,
    65_535,
    65_536,
    1 << 24,
    (1 << 24) + 1,
    (1 << 53) + 1,
    i64::MAX as i128,
    i64::MIN as i128,
    u64::MAX as i128,
    1 << 63,
];

fn a_float() -> impl Strategy<Value = f64> {
    prop_oneof![
        prop::sample::select(FLOATS.to_vec()),
        any::<f64>(),
        any::<f32>().prop_map(f64::from),
        any::<u16>().prop_map(|bits| f16::from_bits(bits).to_f64()),
        (-1000_i32..1000).prop_map(f64::from),
    ]
}

fn an_integer() -> impl Strategy<Value = Value> {
    let known = prop::sample::select(INTEGERS.to_vec());
    prop_oneof![known, any::<i64>().prop_map(i128::from), any::<u64>().prop_map(i128::from), -200..300_i128]
        .prop_map(Value::Integer)
}

fn some_text() -> impl Strategy<Value = Value> {
    let known = prop::sample::select(vec!["NA", "", "007", "2024-01-01"]).prop_map(str::to_owned);
    prop_oneof!["[a-c]{1,2}", "[\\PC\"\n,]{0,8}", "[0-9]{1,30}", known].prop_map(Value::Text)
}

/// Columns of one kind each, with and without nulls, and such as mix kinds.
fn a_column(rows: usize) -> impl Strategy<Value = Vec<Value>> {
    let nothing = || Just(Value::Nothing);
    prop_oneof![
        prop::collection::vec(an_integer(), rows),
        prop::collection::vec(prop_oneof![3 => (0..100_i128).prop_map(Value::Integer), 1 => nothing()], rows),
        prop::collection::vec(a_float().prop_map(float), rows),
        prop::collection::vec(
            prop_oneof![3 => (-50..50_i32).prop_map(|value| float(value.into())), 1 => nothing()],
            rows
        ),
        prop::collection::vec(prop_oneof![a_float().prop_map(float), an_integer(), nothing()], rows),
        prop::collection::vec(prop_oneof![3 => some_text(), 1 => nothing()], rows),
        prop::collection::vec(prop_oneof![8 => any::<bool>().prop_map(Value::Bool), 1 => nothing()], rows),
        prop::collection::vec(
            prop_oneof![an_integer(), some_text(), any::<bool>().prop_map(Value::Bool)],
            rows
        ),
    ]
}

/// What a column of text says for a cell: how it is written.
fn as_text(value: &Value) -> Value {
    match value {
        Value::Nothing | Value::Text(_) => value.clone(),
        other => Value::Text(written(other)),
    }
}

/// What quoted text says in a column that is none.
fn as_value(value: &Value) -> Value {
    let Value::Text(text) = value else { return value.clone() };
    if let Ok(integer) = text.parse::<i128>()
        && integer.to_string() == *text
    {
        return Value::Integer(integer);
    }
    match text.as_str() {
        "" | "NA" => Value::Nothing,
        "2024-01-01" => Value::Day(19_723),
        _ => value.clone(),
    }
}

#[test]
fn a_whole_number_with_an_exponent_is_what_the_text_says() {
    let batch = loaded(&text_input("c\n9007199254740993\n-1.429574304060752e18\n0.0\n"), Policy::Exact, 1);
    let stored: Vec<Value> = (0..3).map(|row| value(batch.column(0).as_ref(), row)).collect();
    let expected = [9_007_199_254_740_993, -1_429_574_304_060_752_000, 0];
    assert_eq!(stored, expected.map(Value::Integer));
    let written = float(-1.429574304060752e18);
    assert!(!same(&written, &stored[1]) && same_as_in_text(&written, &stored[1]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn csv_gives_every_value_back(
        columns in (1_usize..60).prop_flat_map(|rows| prop::collection::vec(a_column(rows), 1..5)),
        threads in 1_usize..3,
    ) {
        let text = a_csv(&columns);
        let batch = loaded(&text_input(&text), Policy::Exact, threads);
        prop_assert_eq!(batch.num_rows(), columns[0].len());
        for (number, column) in columns.iter().enumerate() {
            let array = batch.column(number);
            let is_text = matches!(array.data_type(), DataType::Utf8 | DataType::Dictionary(..));
            for (row, cell) in column.iter().enumerate() {
                let stored = value(array.as_ref(), row);
                let expected = if is_text { as_text(cell) } else { as_value(cell) };
                prop_assert!(same(&expected, &stored) || same_as_in_text(&expected, &stored), "row {}: {:?} became {:?} ({})\n{}", row, expected, stored, array.data_type(), text);
            }
        }
    }

    #[test]
    fn floats_change_by_no_more_than_was_allowed(values in prop::collection::vec(a_float(), 1..60), error in prop::sample::select(vec![1e-2, 1e-3, 1e-6, 1e-9])) {
        let input = text_input(&a_csv(&[values.iter().copied().map(float).collect()]));
        let options = Options { policy: Policy::Relative(error), ..Options::default() };
        let said = profile::of(&input, &options, &Unobserved).unwrap().profile.columns[0].within.worst_relative_error;
        let batch = loaded(&input, Policy::Relative(error), 2);
        let mut worst = 0.0_f64;
        for (row, before) in values.iter().enumerate() {
            let stored = value(batch.column(0).as_ref(), row);
            if same(&float(*before), &stored) {
                continue;
            }
            let Value::Float(after) = stored else { panic!("{stored:?}") };
            worst = worst.max(((before - f64::from_bits(after)) / before).abs());
        }
        prop_assert!(worst <= error);
        prop_assert_eq!(said.unwrap_or(0.0), worst);
    }

    #[test]
    fn arrow_gives_every_value_back(
        columns in (1_usize..60).prop_flat_map(|rows| prop::collection::vec(a_typed_column(rows), 1..6)),
        rows in 1_usize..20,
    ) {
        let batch = RecordBatch::try_from_iter(columns.into_iter().enumerate().map(|(number, array)| (format!("c{number}"), array))).unwrap();
        let parts = (0..batch.num_rows()).step_by(rows).map(|start| batch.slice(start, rows.min(batch.num_rows() - start)));
        let input = Input::Table(Arc::new(InMemory(batch.schema(), parts.collect())));
        let same_rows = |start: usize, part: &RecordBatch| {
            for row in 0..part.num_rows() {
                for (before, after) in batch.columns().iter().zip(part.columns()) {
                    let (written, stored) = (value(before.as_ref(), start + row), value(after.as_ref(), row));
                    prop_assert!(same(&written, &stored), "row {}: {:?} became {:?}", start + row, written, stored);
                }
            }
            Ok(())
        };
        same_rows(0, &loaded(&input, Policy::Exact, 2))?;
        // And through a file.
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("small.parquet");
        let options = Options::default();
        let profiled = profile::of(&input, &options, &Unobserved).unwrap();
        oomph_data::write::parquet_file(&input, &profiled, &out, &options, &Unobserved).unwrap();
        let Input::Table(read) = Input::open(&out.display().to_string(), &Default::default()).unwrap() else { panic!() };
        let mut start = 0;
        for part in read.batches(None).unwrap() {
            let part = part.unwrap();
            same_rows(start, &part)?;
            start += part.num_rows();
        }
        prop_assert_eq!(start, batch.num_rows());
    }
}

fn a_typed_column(rows: usize) -> impl Strategy<Value = ArrayRef> {
    macro_rules! of {
        ($type:ty, $values:expr) => {
            prop::collection::vec(prop::option::weighted(0.9, $values), rows)
                .prop_map(|values| Arc::new(PrimitiveArray::<$type>::from_iter(values)) as ArrayRef)
                .boxed()
        };
    }
    let words = || prop::collection::vec(prop::option::of("[a-b]{0,2}"), rows);
    prop_oneof![
        of!(Int64Type, prop_oneof![any::<i64>(), -3..3_i64, -40_000..40_000_i64]),
        of!(UInt64Type, prop_oneof![any::<u64>(), 0..300_u64]),
        of!(Int32Type, any::<i32>()),
        of!(UInt16Type, any::<u16>()),
        of!(Float64Type, a_float()),
        of!(Float64Type, (-20..20_i32).prop_map(f64::from)),
        of!(Float32Type, a_float().prop_map(|value| value as f32)),
        of!(Float16Type, any::<u16>().prop_map(f16::from_bits)),
        of!(Date32Type, any::<i32>()),
        of!(TimestampNanosecondType, any::<i64>()),
        of!(TimestampSecondType, -1_000_000..1_000_000_i64),
        words().prop_map(|values| Arc::new(StringArray::from_iter(values)) as ArrayRef),
        prop::collection::vec(prop::option::of(".{0,12}"), rows)
            .prop_map(|values| Arc::new(LargeStringArray::from_iter(values)) as ArrayRef),
        words().prop_map(|values| Arc::new(
            values.iter().map(Option::as_deref).collect::<DictionaryArray<Int32Type>>()
        ) as ArrayRef),
        prop::collection::vec(prop::option::of(any::<bool>()), rows)
            .prop_map(|values| Arc::new(BooleanArray::from(values)) as ArrayRef),
    ]
}

struct InMemory(SchemaRef, Vec<RecordBatch>);

impl Table for InMemory {
    fn location(&self) -> &str {
        "a table"
    }

    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.0)
    }

    fn rows(&self) -> Option<u64> {
        None
    }

    fn batches(&self, columns: Option<&[usize]>) -> Result<Batches, DataError> {
        let columns: Vec<usize> =
            columns.map_or_else(|| (0..self.0.fields().len()).collect(), <[usize]>::to_vec);
        let batches: Vec<_> = self.1.iter().map(|batch| Ok(batch.project(&columns).unwrap())).collect();
        Ok(Box::new(batches.into_iter()))
    }
}

#[test]
fn each_column_gets_the_smallest_type_that_keeps_it() {
    let text = "id,age,price,whole,zip,big,day,moment,name,empty,mixed\n\
        1,20,2.5,1.0,01234,18446744073709551615,2024-01-01,2024-01-01T10:00:00Z,a,,1\n\
        70000,,0.1,2,98765,1,2024-02-29,2024-01-01T10:00:00.5Z,b,,x\n";
    let profile = profile::of(&text_input(text), &Options::default(), &Unobserved).unwrap().profile;
    let types: Vec<&str> = profile.columns.iter().map(|column| column.exact.type_name.as_str()).collect();
    let expected = [
        "int32",
        "int8",
        "float64",
        "int8",
        "string",
        "uint64",
        "date32",
        "timestamp[ms, UTC]",
        "string",
        "null",
        "string",
    ];
    assert_eq!(types, expected);
    assert_eq!(profile.columns[2].within.type_name, "float32");
    assert_eq!(profile.columns[4].notes, ["leading zeros: kept as text"]);
    assert!(profile.columns[3].integer_valued);
    assert_eq!(profile.columns[6].range, Some(["2024-01-01".to_owned(), "2024-02-29".to_owned()]));
    assert_eq!((profile.columns[1].nulls, profile.columns[9].nulls), (1, 2));
}

#[test]
fn a_zip_code_after_many_numbers_is_text_from_the_first_one_on() {
    let text = format!("zip\n{}01234\n", "98765\n".repeat(60_000));
    let profile = profile::of(&text_input(&text), &Options::default(), &Unobserved).unwrap().profile;
    assert_eq!(profile.columns[0].exact.type_name, "dictionary[int8]");
    assert_eq!(
        (profile.columns[0].distinct, profile.columns[0].notes.join("")),
        (Some(2), "leading zeros: kept as text".to_owned())
    );
    let batch = loaded(&text_input(&text), Policy::Exact, 2);
    assert_eq!(value(batch.column(0).as_ref(), 59_999), Value::Text("98765".to_owned()));
    assert_eq!(value(batch.column(0).as_ref(), 60_000), Value::Text("01234".to_owned()));
}

#[test]
fn a_header_longer_than_a_chunk_is_a_header() {
    let text = format!("\"{}\",b\n1,2\n3,4\n", "x".repeat(300_000));
    let batch = loaded(&text_input(&text), Policy::Exact, 2);
    assert_eq!((batch.num_rows(), batch.schema().field(0).name().len()), (2, 300_000));
    let wide = (0..40_000).map(|column| format!("c{column}")).collect::<Vec<_>>().join(",");
    let row = vec!["7"; 40_000].join(",");
    let batch = loaded(&text_input(&format!("{wide}\n{row}\n")), Policy::Exact, 2);
    assert_eq!((batch.num_rows(), batch.num_columns()), (1, 40_000));
}

#[test]
fn a_quote_that_does_not_close_costs_its_own_line() {
    let mut text = "a,b\n".to_owned();
    for row in 0..100_000 {
        text += &if row == 1000 { "999,\"oops\n".to_owned() } else { format!("{row},x\n") };
    }
    let options = Options { on_error: OnError::Skip, ..Options::default() };
    let profile = profile::of(&text_input(&text), &options, &Unobserved).unwrap().profile;
    let first = &profile.broken_rows.first[0];
    assert_eq!((profile.rows, profile.broken_rows.count, first.line), (99_999, 1, 1002));
    let failed = profile::of(&text_input(&text), &Options::default(), &Unobserved).map(|_| ()).unwrap_err();
    assert_eq!(failed.to_string(), "t.csv: line 1002: a quote opens and does not close");
}

#[test]
fn a_quote_that_closes_far_below_costs_two_lines() {
    let text = "a,b\n1,x\n2,\"oops\n3,x\n4,x\n5,\"y\"\n6,x\n";
    let options = Options { on_error: OnError::Skip, ..Options::default() };
    let profile = profile::of(&text_input(text), &options, &Unobserved).unwrap().profile;
    let lines: Vec<u64> = profile.broken_rows.first.iter().map(|row| row.line).collect();
    assert_eq!((profile.rows, lines), (5, vec![3]));
}

#[test]
fn a_file_that_is_written_over_between_the_passes_is_not_loaded() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "a\n100\n100\n").unwrap();
    let input = Input::open(&file.path().display().to_string(), &Default::default()).unwrap();
    let options = Options::default();
    let profiled = profile::of(&input, &options, &Unobserved).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    std::fs::write(file.path(), "a\n100\n101\n").unwrap();
    let failed = load(&input, &profiled, &options, &Unobserved).map(|_| ()).unwrap_err();
    assert!(failed.to_string().ends_with("changed while it was read; try again"), "{failed}");
}

#[test]
fn lines_that_end_in_carriage_returns_are_refused() {
    let failed = profile::of(&text_input("a,b\r1,2\r3,4\r"), &Options::default(), &Unobserved)
        .map(|_| ())
        .unwrap_err();
    assert!(failed.to_string().contains("carriage returns"), "{failed}");
}

#[test]
fn duplicate_names_are_numbered_in_time() {
    let text = format!("{}a\n{}1\n", "a,".repeat(20_000), "1,".repeat(20_000));
    let profile = profile::of(&text_input(&text), &Options::default(), &Unobserved).unwrap().profile;
    assert_eq!(profile.columns[20_000].name, "a.20000");
}

#[test]
fn a_broken_row_is_named_or_left_out() {
    let input = text_input("a,b\n1,2\n3\n4,5\n");
    let failed = profile::of(&input, &Options::default(), &Unobserved).map(|_| ()).unwrap_err();
    assert_eq!(failed.to_string(), "t.csv: line 3: 1 cells where there are 2 columns");
    let options = Options { on_error: OnError::Skip, ..Options::default() };
    let profiled = profile::of(&input, &options, &Unobserved).unwrap();
    let broken = &profiled.profile.broken_rows;
    assert_eq!((profiled.profile.rows, broken.count, broken.first[0].line), (2, 1, 3));
    let Data::Table(batch) = load(&input, &profiled, &options, &Unobserved).unwrap().data else { panic!() };
    assert_eq!(batch.num_rows(), 2);
}

#[test]
fn mostly_zeros_become_a_sparse_matrix() {
    let cell =
        |row: i128, column: i128| Value::Integer(if (row * 7 + column) % 19 == 0 { row % 100 } else { 0 });
    let columns: Vec<Vec<Value>> =
        (0..20).map(|column| (0..500).map(|row| cell(row, column)).collect()).collect();
    let input = text_input(&a_csv(&columns));
    let options = Options::default();
    let profiled = profile::of(&input, &options, &Unobserved).unwrap();
    let sparse = profiled.profile.sparse.unwrap();
    assert!(sparse.smaller);
    let Data::Matrix(matrix) = load(&input, &profiled, &options, &Unobserved).unwrap().data else { panic!() };
    assert_eq!((matrix.shape, matrix.bytes()), ((500, 20), sparse.bytes));
    let dense = Options { sparse: Sparseness::Never, ..options };
    let Data::Table(batch) = load(&input, &profiled, &dense, &Unobserved).unwrap().data else { panic!() };
    assert_eq!(batch.column(0).data_type(), &DataType::Int8);
}

#[test]
fn a_large_file_is_read_by_several_threads_in_order() {
    let rows: u32 = 300_000;
    let mut text = "id,word,x\n".to_owned();
    for row in 0..rows {
        text += &format!("{row},w{},{}\n", row % 300, f64::from(row) / 4.0);
    }
    let batch = loaded(&text_input(&text), Policy::Exact, 3);
    let types: Vec<String> =
        batch.schema().fields().iter().map(|field| field.data_type().to_string()).collect();
    assert_eq!(types, ["Int32", "Dictionary(Int16, Utf8)", "Float32"]);
    assert_eq!(batch.num_rows(), rows as usize);
    for row in (0..rows as usize).step_by(997) {
        assert_eq!(value(batch.column(0).as_ref(), row), Value::Integer(row as i128));
        assert_eq!(value(batch.column(1).as_ref(), row), Value::Text(format!("w{}", row % 300)));
        assert_eq!(value(batch.column(2).as_ref(), row), float(row as f64 / 4.0));
    }
}

#[test]
fn json_lines_have_the_same_columns_whatever_the_threads_do() {
    let mut text = String::new();
    for row in 0..120_000 {
        text += &match row % 40_000 {
            39_998 => format!("{{\"late{row}\": {row}, \"id\": {row}}}\n"),
            _ => format!(
                "{{\"id\": {row}, \"name\": \"n{}\", \"mixed\": {}}}\n",
                row % 5,
                if row % 2 == 0 { "1" } else { "\"1\"" }
            ),
        };
    }
    let format = TextFormat { delimiter: None, header: false, ..csv() };
    let input = Input::Text { source: memory("t.jsonl", text.into_bytes()), format };
    for threads in [1, 2, 3] {
        let batch = loaded(&input, Policy::Exact, threads);
        let schema = batch.schema();
        let columns: Vec<(&str, String)> = schema
            .fields()
            .iter()
            .map(|field| (field.name().as_str(), field.data_type().to_string()))
            .collect();
        let words = "Dictionary(Int8, Utf8)".to_owned();
        let expected = [
            ("id", "Int32".to_owned()),
            ("name", words.clone()),
            ("mixed", words),
            ("late39998", "UInt16".to_owned()),
            ("late79998", "Int32".to_owned()),
            ("late119998", "Int32".to_owned()),
        ];
        assert_eq!(columns, expected);
        assert_eq!(value(batch.column(2).as_ref(), 0), Value::Text("1".to_owned()));
        assert_eq!(
            value(batch.column(2).as_ref(), 1),
            Value::Text("\"1\"".to_owned()),
            "a string is not the number"
        );
        assert_eq!(value(batch.column(3).as_ref(), 39_998), Value::Integer(39_998));
        assert_eq!(value(batch.column(1).as_ref(), 39_998), Value::Nothing);
        assert_eq!(value(batch.column(0).as_ref(), 119_999), Value::Integer(119_999));
    }
}
