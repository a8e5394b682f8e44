//! Every value comes back, from wherever an array lies and whatever it becomes.

use super::*;
use crate::choose::Number;
use crate::source::memory;
use crate::target::csr_bytes;
use crate::{Observer, Pass, Unobserved};
use arrow_array::{ArrayRef, Float64Array, Int32Array};
use arrow_buffer::Buffer;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use half::f16;
use proptest::prelude::*;
use proptest::sample::select;
use std::io::Write;

/// A value of any number type, to compare with: integers as they are, floats as 64-bit ones.
#[derive(Debug, Clone, Copy)]
enum Value {
    Integer(i128),
    Float(f64),
}

/// The same number: −0.0 and 0 are two, NaN is NaN.
impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        match (*self, *other) {
            (Self::Integer(left), Self::Integer(right)) => left == right,
            (Self::Float(left), Self::Float(right)) => {
                left.to_bits() == right.to_bits() || (left.is_nan() && right.is_nan())
            }
            (Self::Integer(integer), Self::Float(float)) | (Self::Float(float), Self::Integer(integer)) => {
                float as i128 == integer
                    && integer as f64 == float
                    && !(float == 0.0 && float.is_sign_negative())
            }
        }
    }
}

const INTEGERS: [i128; 30] = {
    let mut borders = [0; 30];
    let bits = [7, 8, 15, 16, 24, 31, 32, 53, 63, 64];
    let mut at = 0;
    while at < bits.len() {
        borders[at * 3] = (1 << bits[at]) - 1;
        borders[at * 3 + 1] = 1 << bits[at];
        borders[at * 3 + 2] = -(1 << bits[at]);
        at += 1;
    }
    borders
};

fn float_borders() -> Vec<f64> {
    let mut borders = vec![
        0.0,
        -0.0,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::MAX,
        f64::MIN,
        f64::MIN_POSITIVE,
        5e-324,
        -1e-310,
        0.1,
        0.5,
    ];
    for power in [24, 53, 63, 64] {
        borders.extend([2f64.powi(power) - 1.0, 2f64.powi(power), 2f64.powi(power) + 1.0, -2f64.powi(power)]);
    }
    borders.extend([
        65504.0,
        65520.0,
        65519.99,
        5.96e-8,
        2f64.powi(-24),
        2f64.powi(-25),
        1e-40,
        f64::from(f32::MAX),
        2f64.powi(-149),
    ]);
    borders
}

/// The bytes of a value in a type, little endian, and the value that they are.
fn encode(value: Value, number: Number) -> (Vec<u8>, Value) {
    let integer = match value {
        Value::Integer(integer) => integer,
        Value::Float(float) => float as i128,
    };
    let float = match value {
        Value::Integer(integer) => integer as f64,
        Value::Float(float) => float,
    };
    macro_rules! integer {
        ($native:ty) => {{
            let stored = integer.clamp(<$native>::MIN as i128, <$native>::MAX as i128) as $native;
            (stored.to_le_bytes().to_vec(), Value::Integer(stored as i128))
        }};
    }
    match number {
        Number::Int8 => integer!(i8),
        Number::UInt8 => integer!(u8),
        Number::Int16 => integer!(i16),
        Number::UInt16 => integer!(u16),
        Number::Int32 => integer!(i32),
        Number::UInt32 => integer!(u32),
        Number::Int64 => integer!(i64),
        Number::UInt64 => integer!(u64),
        Number::Float16 => {
            let stored = f16::from_f64(float);
            (stored.to_le_bytes().to_vec(), Value::Float(stored.to_f64()))
        }
        Number::Float32 => {
            let stored = float as f32;
            (stored.to_le_bytes().to_vec(), Value::Float(f64::from(stored)))
        }
        Number::Float64 => (float.to_le_bytes().to_vec(), Value::Float(float)),
    }
}

fn decode(buffer: &TypedBuffer) -> Vec<Value> {
    let number = buffer.number().expect("numbers");
    let bytes = buffer.bytes.as_slice();
    macro_rules! decode {
        ($native:ty, $value:expr) => {
            bytes
                .chunks_exact(size_of::<$native>())
                .map(|bytes| $value(<$native>::from_le_bytes(bytes.try_into().unwrap())))
                .collect()
        };
    }
    match number {
        Number::Int8 => decode!(i8, |value| Value::Integer(i128::from(value))),
        Number::UInt8 => decode!(u8, |value| Value::Integer(i128::from(value))),
        Number::Int16 => decode!(i16, |value| Value::Integer(i128::from(value))),
        Number::UInt16 => decode!(u16, |value| Value::Integer(i128::from(value))),
        Number::Int32 => decode!(i32, |value| Value::Integer(i128::from(value))),
        Number::UInt32 => decode!(u32, |value| Value::Integer(i128::from(value))),
        Number::Int64 => decode!(i64, |value| Value::Integer(i128::from(value))),
        Number::UInt64 => decode!(u64, |value| Value::Integer(i128::from(value))),
        Number::Float16 => decode!(f16, |value: f16| Value::Float(value.to_f64())),
        Number::Float32 => decode!(f32, |value| Value::Float(f64::from(value))),
        Number::Float64 => decode!(f64, Value::Float),
    }
}

/// In C order, zeros of a sparse matrix filled in.
fn elements(shrunk: &Shrunk) -> Vec<Value> {
    match shrunk {
        Shrunk::Dense(dense) => {
            let values = decode(&dense.values);
            places(&dense.shape, dense.order).into_iter().map(|place| values[place]).collect()
        }
        Shrunk::Csr(csr) => dense_of(csr),
    }
}

fn dense_of(csr: &Csr) -> Vec<Value> {
    let integer = |value: &Value| match value {
        Value::Integer(integer) => *integer as usize,
        Value::Float(_) => panic!("an index"),
    };
    let indptr: Vec<usize> = decode(&csr.indptr).iter().map(integer).collect();
    let indices: Vec<usize> = decode(&csr.indices).iter().map(integer).collect();
    let data = decode(&csr.data);
    let zero = if csr.data.number().unwrap().is_float() { Value::Float(0.0) } else { Value::Integer(0) };
    let columns = csr.shape.1 as usize;
    let mut dense = vec![zero; csr.shape.0 as usize * columns];
    for line in 0..indptr.len() - 1 {
        for at in indptr[line]..indptr[line + 1] {
            let (row, column) =
                if csr.compressed == Compressed::Rows { (line, indices[at]) } else { (indices[at], line) };
            dense[row * columns + column] = data[at];
        }
    }
    dense
}

/// Where the elements of an array lie that is stored in an order, by C order.
fn places(shape: &[u64], order: Order) -> Vec<usize> {
    let count: u64 = shape.iter().product();
    (0..count)
        .map(|place| match order {
            Order::C => place as usize,
            Order::Fortran => {
                let (mut rest, mut at, mut size) = (place, 0, count);
                for (dimension, length) in shape.iter().enumerate() {
                    size /= length;
                    let index = rest / size;
                    rest %= size;
                    at += index * shape[..dimension].iter().product::<u64>();
                }
                at as usize
            }
        })
        .collect()
}

/// How an array is given.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Where {
    Memory,
    Strided,
    Npy,
    Stored,
    Deflated,
}

fn array(
    values: &[Value],
    number: Number,
    shape: &[u64],
    order: Order,
    big_endian: bool,
    place: Where,
) -> (Array, Vec<Value>) {
    let encoded: Vec<(Vec<u8>, Value)> = values.iter().map(|value| encode(*value, number)).collect();
    let expected = encoded.iter().map(|(_, value)| *value).collect();
    let width = number.width();
    let mut bytes = vec![0; values.len() * width];
    for ((value, _), at) in encoded.iter().zip(places(shape, order)) {
        let mut value = value.clone();
        if big_endian {
            value.reverse();
        }
        bytes[at * width..(at + 1) * width].copy_from_slice(&value);
    }
    let descr = Dtype::Number(number).descr();
    let descr = if big_endian { descr.replace('<', ">") } else { descr };
    let array = match place {
        Where::Memory => {
            Array::in_memory("memory", Buffer::from(bytes), &descr, shape, 0, &strides(shape, width, order))
                .unwrap()
        }
        Where::Strided => {
            // Every element three widths from the last, from the end backwards, in memory that is not aligned.
            let mut apart = vec![0xee; values.len() * width * 3 + 1];
            for (at, value) in bytes.chunks_exact(width).enumerate() {
                let from = 1 + (values.len() - 1 - at) * width * 3;
                apart[from..from + width].copy_from_slice(value);
            }
            let strides: Vec<i64> = strides(shape, width, order).iter().map(|stride| stride * -3).collect();
            let start = 1 + values.len().saturating_sub(1) * width * 3;
            Array::in_memory("memory", Buffer::from(apart), &descr, shape, start, &strides).unwrap()
        }
        Where::Npy | Where::Stored | Where::Deflated => {
            let mut file = Vec::new();
            npy_header::write_header(&mut file, &Dtype::Number(number), order, shape).unwrap();
            let text = String::from_utf8_lossy(&file[10..]).replace(&Dtype::Number(number).descr(), &descr);
            file.truncate(10);
            file.extend(text.as_bytes());
            file.extend(&bytes);
            match place {
                Where::Npy => match open(memory("a.npy", file)).unwrap() {
                    Arrays::One(array) => array,
                    _ => panic!("one array"),
                },
                _ => match open(memory("a.npz", archive(&[("x.npy", &file)], place == Where::Deflated)))
                    .unwrap()
                {
                    Arrays::Named(mut arrays) => arrays.remove(0).1,
                    _ => panic!("named arrays"),
                },
            }
        }
    };
    (array, expected)
}

fn strides(shape: &[u64], width: usize, order: Order) -> Vec<i64> {
    (0..shape.len())
        .map(|dimension| {
            let inside = if order == Order::C { &shape[dimension + 1..] } else { &shape[..dimension] };
            inside.iter().product::<u64>() as i64 * width as i64
        })
        .collect()
}

/// A zip archive, written in another way than the one that is shipped.
fn archive(members: &[(&str, &[u8])], deflated: bool) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in members {
        let content = if deflated {
            let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        } else {
            bytes.to_vec()
        };
        let mut fields = vec![20, 0, 0, 0, if deflated { 8 } else { 0 }, 0, 0, 0, 0, 0];
        fields.extend(crc32fast::hash(bytes).to_le_bytes());
        fields.extend((content.len() as u32).to_le_bytes());
        fields.extend((bytes.len() as u32).to_le_bytes());
        fields.extend((name.len() as u16).to_le_bytes());
        fields.extend([0, 0]);
        directory.extend(b"PK\x01\x02\x14\0");
        directory.extend(&fields);
        directory.extend([0; 10]);
        directory.extend((file.len() as u32).to_le_bytes());
        directory.extend(name.as_bytes());
        file.extend(b"PK\x03\x04");
        file.extend(&fields);
        file.extend(name.as_bytes());
        file.extend(&content);
    }
    let start = file.len() as u32;
    file.extend(&directory);
    file.extend(b"PK\x05\x06\0\0\0\0");
    file.extend([(members.len() as u16).to_le_bytes(); 2].concat());
    file.extend((directory.len() as u32).to_le_bytes());
    file.extend(start.to_le_bytes());
    file.extend([0; 2]);
    file
}

/// As SciPy's `save_npz` writes it.
fn npz_of(csr: &Csr) -> Vec<u8> {
    let member = |dtype: &Dtype, shape: &[u64], bytes: &[u8]| {
        let mut member = Vec::new();
        npy_header::write_header(&mut member, dtype, Order::C, shape).unwrap();
        member.extend(bytes);
        member
    };
    let buffer = |buffer: &TypedBuffer| {
        let length = buffer.bytes.len() as u64 / buffer.dtype.width();
        member(&buffer.dtype, &[length], buffer.bytes.as_slice())
    };
    let format = match csr.compressed {
        Compressed::Rows => "csr",
        Compressed::Columns => "csc",
    };
    let shape = [csr.shape.0, csr.shape.1].map(|length| (length as i64).to_le_bytes()).concat();
    archive(
        &[
            ("indices.npy", &buffer(&csr.indices)),
            ("indptr.npy", &buffer(&csr.indptr)),
            ("data.npy", &buffer(&csr.data)),
            ("format.npy", &member(&Dtype::Bytes(3), &[], format.as_bytes())),
            ("shape.npy", &member(&Dtype::Number(Number::Int64), &[2], &shape)),
        ],
        false,
    )
}

const NUMBERS: [Number; 11] = [
    Number::Int8,
    Number::UInt8,
    Number::Int16,
    Number::UInt16,
    Number::Int32,
    Number::UInt32,
    Number::Int64,
    Number::UInt64,
    Number::Float16,
    Number::Float32,
    Number::Float64,
];

fn shape() -> impl Strategy<Value = Vec<u64>> {
    prop_oneof![
        Just(vec![]),
        (0u64..30).prop_map(|length| vec![length]),
        (0u64..8, 0u64..8).prop_map(|(rows, columns)| vec![rows, columns]),
        (1u64..5, 1u64..5, 1u64..5).prop_map(|(first, second, third)| vec![first, second, third]),
    ]
}

fn values(count: usize) -> impl Strategy<Value = Vec<Value>> {
    let one = prop_oneof![
        select(&INTEGERS[..]).prop_map(Value::Integer),
        select(float_borders()).prop_map(Value::Float),
        any::<u64>().prop_map(|bits| Value::Float(f64::from_bits(bits))),
        any::<f32>().prop_map(|value| Value::Float(f64::from(value))),
        any::<i64>().prop_map(|value| Value::Integer(value.into())),
    ];
    let small = (-200i128..300).prop_map(Value::Integer);
    let mostly_zero =
        prop_oneof![9 => Just(Value::Integer(0)), 1 => select(float_borders()).prop_map(Value::Float)];
    prop_oneof![
        proptest::collection::vec(one, count),
        proptest::collection::vec(small, count),
        proptest::collection::vec(mostly_zero, count)
    ]
}

fn given() -> impl Strategy<Value = (Vec<Value>, Number, Vec<u64>, Order, bool, Where)> {
    shape().prop_flat_map(|shape| {
        let count = shape.iter().product::<u64>() as usize;
        let places = [Where::Memory, Where::Strided, Where::Npy, Where::Stored, Where::Deflated];
        (
            values(count),
            select(&NUMBERS[..]),
            Just(shape),
            select(vec![Order::C, Order::Fortran]),
            any::<bool>(),
            select(places.to_vec()),
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn exact_gives_back_every_value((values, number, shape, order, big_endian, place) in given(), sparse in select(vec![SparseChoice::WhereSmaller, SparseChoice::Never, SparseChoice::Always])) {
        let (array, expected) = array(&values, number, &shape, order, big_endian, place);
        let sparse = if shape.len() == 2 { sparse } else { SparseChoice::WhereSmaller };
        let options = ShrinkOptions { sparse, ..ShrinkOptions::default() };
        let (shrunk, profile) = shrink_array(&array, &options, &Unobserved).unwrap();
        prop_assert_eq!(elements(&shrunk), expected);
        let profiled = match (&shrunk, profile.sparse) {
            (Shrunk::Csr(_), Some(sparse)) => sparse.bytes,
            _ => profile.bytes.exact,
        };
        prop_assert_eq!(shrunk.bytes(), profiled);
        prop_assert!(profile.bytes.exact <= profile.bytes.now);
        if sparse == SparseChoice::WhereSmaller {
            prop_assert!(shrunk.bytes() <= profile.bytes.exact);
        }
    }

    #[test]
    fn within_keeps_to_its_word((values, number, shape, order, big_endian, place) in given(), error in select(vec![1e-3, 1e-6])) {
        let (array, expected) = array(&values, number, &shape, order, big_endian, place);
        let options = ShrinkOptions { policy: Policy::Relative(error), ..ShrinkOptions::default() };
        let (shrunk, profile) = shrink_array(&array, &options, &Unobserved).unwrap();
        let worst = profile.columns[0].within.worst_relative_error.unwrap_or(0.0);
        prop_assert!(worst <= error);
        for (stored, expected) in elements(&shrunk).into_iter().zip(expected) {
            let near = match (stored, expected) {
                (Value::Float(stored), Value::Float(expected)) => ((stored - expected) / expected).abs() <= worst,
                _ => false,
            };
            prop_assert!(stored == expected || near, "{:?} became {:?}", expected, stored);
        }
    }

    #[test]
    fn what_is_written_is_read_back((values, number, shape, order, big_endian, place) in given()) {
        let (array, expected) = array(&values, number, &shape, order, big_endian, place);
        let options = ShrinkOptions { sparse: SparseChoice::Never, ..ShrinkOptions::default() };
        let (shrunk, _) = shrink_array(&array, &options, &Unobserved).unwrap();
        let Shrunk::Dense(dense) = &shrunk else { panic!("dense") };
        let mut file = Vec::new();
        write_npy(&mut file, dense).unwrap();
        let archive = archive(&[("a.npy", &file), ("b.npy", &file)], false);
        let Arrays::One(alone) = open(memory("a.npy", file)).unwrap() else { panic!("one array") };
        let Arrays::Named(named) = open(memory("a.npz", archive)).unwrap() else { panic!("two arrays") };
        prop_assert_eq!(named.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        for again in named.iter().map(|(_, array)| array).chain([&alone]) {
            prop_assert_eq!(again.shape(), array.shape());
            prop_assert_eq!(elements(&shrink_array(again, &options, &Unobserved).unwrap().0), expected.clone());
        }
    }

    #[test]
    fn a_matrix_survives_its_file_and_shrinks(values in values(35), number in select(&NUMBERS[..]), large in any::<bool>(), by_columns in any::<bool>()) {
        let (array, expected) = array(&values, number, &[5, 7], Order::C, false, Where::Memory);
        let options = ShrinkOptions { sparse: SparseChoice::Always, ..ShrinkOptions::default() };
        let (shrunk, _) = shrink_array(&array, &options, &Unobserved).unwrap();
        let Shrunk::Csr(mut csr) = shrunk else { panic!("sparse") };
        prop_assert_eq!(csr.indptr.dtype.name(), "int32");
        let mut expected = expected;
        if by_columns {
            // The same buffers by columns are the matrix turned over.
            csr.compressed = Compressed::Columns;
            csr.shape = (7, 5);
            expected = (0..35).map(|at| expected[at % 5 * 7 + at / 5]).collect();
        }
        if large {
            let widen = |buffer: &TypedBuffer| TypedBuffer::of(buffer.bytes.typed_data::<i32>().iter().map(|index| i64::from(*index)).collect::<Vec<i64>>());
            (csr.indptr, csr.indices) = (widen(&csr.indptr), widen(&csr.indices));
        }
        let Arrays::Sparse(matrix) = open(memory("a.npz", npz_of(&csr))).unwrap() else { panic!("sparse") };
        let (again, profile) = shrink_sparse(&matrix, &ShrinkOptions::default(), &Unobserved).unwrap();
        prop_assert_eq!(dense_of(&again), expected);
        prop_assert_eq!((again.shape, again.compressed), (csr.shape, csr.compressed));
        prop_assert_eq!(profile.bytes.exact, again.bytes());
        prop_assert!(again.bytes() <= csr.bytes());
    }

    #[test]
    fn a_damaged_archive_never_panics(flips in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..4), cut in 0usize..40, deflated in any::<bool>(), sparse in any::<bool>()) {
        let mut file = if sparse {
            let (array, _) = array(&[Value::Integer(0), Value::Integer(3)], Number::Int64, &[1, 2], Order::C, false, Where::Memory);
            let options = ShrinkOptions { sparse: SparseChoice::Always, ..ShrinkOptions::default() };
            let Shrunk::Csr(csr) = shrink_array(&array, &options, &Unobserved).unwrap().0 else { panic!("sparse") };
            npz_of(&csr)
        } else {
            let mut member = Vec::new();
            npy_header::write_header(&mut member, &Dtype::Number(Number::Int16), Order::C, &[50]).unwrap();
            member.extend([1; 100]);
            archive(&[("a.npy", &member), ("b.npy", &member)], deflated)
        };
        let length = file.len();
        for (at, with) in flips {
            file[at % length] ^= with;
        }
        file.truncate(length - cut);
        match open(memory("a.npz", file)) {
            Ok(Arrays::Named(arrays)) => for (_, array) in &arrays {
                let _ = shrink_array(array, &ShrinkOptions::default(), &Unobserved);
            },
            Ok(Arrays::Sparse(matrix)) => {
                let _ = shrink_sparse(&matrix, &ShrinkOptions::default(), &Unobserved);
            }
            Ok(Arrays::One(_)) | Err(_) => {}
        }
    }

    #[test]
    fn columns_of_a_table_make_the_matrix_of_its_rows(rows in proptest::collection::vec((any::<bool>(), -5i32..5, select(vec![0.0, -0.0, 1.5, f64::NAN])), 0..50), cut in 0usize..50) {
        let integers: Vec<i32> = rows.iter().map(|(there, value, _)| i32::from(*there) * value).collect();
        let floats: Vec<f64> = rows.iter().map(|(.., value)| *value).collect();
        let columns: [ArrayRef; 3] = [
            std::sync::Arc::new(Int32Array::from(integers.clone())),
            std::sync::Arc::new(Float64Array::from(floats.clone())),
            std::sync::Arc::new(Int32Array::from(vec![0; rows.len()])),
        ];
        let expected: Vec<Value> = integers.iter().zip(&floats).flat_map(|(integer, float)| [Value::Float(f64::from(*integer)), Value::Float(*float), Value::Float(0.0)]).collect();
        let stored = expected.iter().filter(|value| **value != Value::Float(0.0)).count() as u64;
        let cut = cut.min(rows.len());
        let push_all = |stored| {
            let mut builder = CsrBuilder::new("table", rows.len() as u64, 3, stored, Number::Float16)?;
            for (from, length) in [(0, cut), (cut, rows.len() - cut)] {
                let part: Vec<ArrayRef> = columns.iter().map(|column| column.slice(from, length)).collect();
                builder.push_rows(&part.iter().map(|column| &**column).collect::<Vec<_>>())?;
            }
            builder.finish()
        };
        let csr = push_all(stored).unwrap();
        prop_assert_eq!(dense_of(&csr), expected);
        prop_assert_eq!(csr.bytes(), csr_bytes(rows.len() as u64, 3, stored, 2));
        prop_assert!(push_all(stored + 1).is_err());
    }
}

#[test]
fn blocks_join_without_a_seam() {
    // More than one block, of a width that does not divide rows evenly.
    let count = 300_007u64;
    for place in [Where::Memory, Where::Strided, Where::Npy, Where::Deflated] {
        let values: Vec<Value> =
            (0..count).map(|at| Value::Integer(if at % 5 == 0 { at.into() } else { 0 })).collect();
        let (array, expected) =
            array(&values, Number::Float64, &[1, count], Order::C, place == Where::Npy, place);
        for sparse in [SparseChoice::Never, SparseChoice::Always] {
            let (shrunk, profile) =
                shrink_array(&array, &ShrinkOptions { sparse, ..ShrinkOptions::default() }, &Unobserved)
                    .unwrap();
            assert_eq!(profile.columns[0].exact.type_name, "int32");
            assert!(elements(&shrunk) == expected);
        }
    }
}

#[test]
fn a_profile_says_what_is_in_it() {
    let values = [0.0, -0.0, 1.5, f64::NAN, f64::INFINITY, 0.0, 0.0, 0.0].map(Value::Float);
    let (array, _) = array(&values, Number::Float64, &[2, 4], Order::C, false, Where::Npy);
    let profile = profile_array(&array, Policy::Relative(1e-6), &Unobserved).unwrap().profile;
    let column = &profile.columns[0];
    assert_eq!(
        (profile.format.as_str(), profile.rows, profile.bytes.now, profile.bytes.exact),
        ("npy", 2, 64, 16)
    );
    assert_eq!((column.zeros, column.nans, column.infinite, column.integer_valued), (5, 1, 1, false));
    assert_eq!(column.range, Some(["0".to_owned(), "inf".to_owned()]));
    let sparse = profile.sparse.unwrap();
    assert_eq!((sparse.stored, sparse.density, sparse.smaller), (4, 0.5, false));
}

#[test]
fn types_that_are_no_numbers_pass_through() {
    let bytes: Vec<u8> = (0..48).collect();
    for (descr, name) in [
        ("|b1", "bool"),
        ("<c8", "complex64"),
        ("<M8[ns]", "datetime64[ns]"),
        ("<m8[s]", "timedelta64[s]"),
        ("|S3", "bytes"),
        ("<U2", "str"),
    ] {
        let width = Dtype::parse(descr).unwrap().0.width();
        let array =
            Array::in_memory("memory", Buffer::from(bytes.clone()), descr, &[48 / width], 0, &[width as i64])
                .unwrap();
        let (shrunk, profile) = shrink_array(&array, &ShrinkOptions::default(), &Unobserved).unwrap();
        let Shrunk::Dense(dense) = shrunk else { panic!("dense") };
        assert_eq!(dense.values.bytes.as_slice(), bytes);
        assert_eq!((profile.columns[0].exact.type_name.as_str(), profile.bytes.exact), (name, 48));
    }
}

#[test]
fn complex_numbers_shrink_where_that_is_exact() {
    for (parts, name) in [([1.0, -0.5, 0.0, -0.0], "complex64"), ([1.0, 0.1, 0.0, 0.0], "complex128")] {
        let array =
            Array::in_memory("memory", Buffer::from_vec(parts.to_vec()), "<c16", &[2], 0, &[16]).unwrap();
        let (shrunk, profile) = shrink_array(&array, &ShrinkOptions::default(), &Unobserved).unwrap();
        let Shrunk::Dense(dense) = shrunk else { panic!("dense") };
        assert_eq!((dense.values.dtype.name().as_str(), profile.columns[0].zeros), (name, 1));
    }
}

#[test]
fn missing_times_are_nulls() {
    let array =
        Array::in_memory("memory", Buffer::from_vec(vec![5i64, i64::MIN, -3]), "<M8[D]", &[3], 0, &[8])
            .unwrap();
    let profile = profile_array(&array, Policy::Exact, &Unobserved).unwrap().profile;
    assert_eq!(
        (profile.columns[0].nulls, profile.columns[0].range.clone()),
        (1, Some(["-3".to_owned(), "5".to_owned()]))
    );
}

#[test]
fn strides_may_not_lead_out_of_memory() {
    let buffer = Buffer::from_vec(vec![0i64; 4]);
    for (shape, start, strides) in [
        (vec![5], 0, vec![8]),
        (vec![2], 0, vec![-8]),
        (vec![2, 3], 0, vec![8, 8 << 60]),
        (vec![1], 25, vec![8]),
    ] {
        let error = Array::in_memory("an array", buffer.clone(), "<i8", &shape, start, &strides)
            .map(|_| ())
            .unwrap_err();
        assert!(error.to_string().contains("out of its memory"), "{error}");
    }
    // Along a dimension of nothing there is nowhere to go.
    assert!(Array::in_memory("an array", buffer, "<i8", &[0], 99, &[1 << 40]).is_ok());
}

#[test]
fn broadcast_arrays_are_read_as_what_they_show() {
    let array =
        Array::in_memory("an array", Buffer::from_vec(vec![7i64]), "<i8", &[3, 2], 0, &[0, 0]).unwrap();
    let (shrunk, _) = shrink_array(&array, &ShrinkOptions::default(), &Unobserved).unwrap();
    assert_eq!(elements(&shrunk), vec![Value::Integer(7); 6]);
}

#[test]
fn damage_in_an_archive_is_reported() {
    let mut member = Vec::new();
    npy_header::write_header(&mut member, &Dtype::Number(Number::Int16), Order::C, &[50]).unwrap();
    member.extend([1; 100]);
    let mut file = archive(&[("a.npy", &member)], false);
    let at = file.windows(4).position(|bytes| bytes == [1; 4]).unwrap();
    file[at] = 2;
    let Arrays::Named(arrays) = open(memory("a.npz", file)).unwrap() else { panic!("named") };
    let error = shrink_array(&arrays[0].1, &ShrinkOptions::default(), &Unobserved).unwrap_err().to_string();
    assert!(error.starts_with("a.npz: a.npy: ") && error.contains("checksum"), "{error}");
}

#[test]
fn a_bomb_is_refused_before_it_is_inflated() {
    let mut member = Vec::new();
    npy_header::write_header(&mut member, &Dtype::Number(Number::Float64), Order::C, &[2]).unwrap();
    member.extend(vec![0; 1 << 20]);
    let error =
        open(memory("a.npz", archive(&[("a.npy", &member)], true))).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("longer than the shape"), "{error}");
}

#[test]
fn indices_that_lead_nowhere_are_refused() {
    let part = |values: Vec<i64>| {
        let length = values.len() as u64;
        Array::in_memory("part", Buffer::from_vec(values), "<i8", &[length], 0, &[8]).unwrap()
    };
    let matrix = |indptr: Vec<i64>, indices: Vec<i64>| {
        let stored = indices.len();
        SparseArrays::new(
            "a matrix",
            (2, 3),
            Compressed::Rows,
            part(indptr),
            part(indices),
            part(vec![1; stored]),
        )
    };
    let shrunk = |indptr, indices| {
        matrix(indptr, indices)
            .and_then(|matrix| shrink_sparse(&matrix, &ShrinkOptions::default(), &Unobserved))
    };
    assert!(shrunk(vec![0, 1, 2], vec![0, 2]).is_ok());
    for (indptr, indices) in [
        (vec![0, 1, 2], vec![0, 3]),
        (vec![0, 1, 2], vec![0, -1]),
        (vec![0, 3, 2], vec![0, 1]),
        (vec![1, 1, 2], vec![0, 1]),
        (vec![0, 1, 1], vec![0, 1]),
        (vec![0, 2], vec![0, 1]),
        (vec![], vec![]),
    ] {
        assert!(shrunk(indptr.clone(), indices.clone()).is_err(), "{indptr:?} {indices:?}");
    }
}

#[test]
fn stored_zeros_stay_unless_they_are_dropped() {
    let part = |descr: &str, bytes: Buffer, width: i64| {
        let length = bytes.len() as u64 / width as u64;
        Array::in_memory("part", bytes, descr, &[length], 0, &[width]).unwrap()
    };
    let matrix = SparseArrays::new(
        "a matrix",
        (3, 4),
        Compressed::Rows,
        part("<i4", Buffer::from_vec(vec![0, 2, 2, 5]), 4),
        part("<i4", Buffer::from_vec(vec![0, 3, 1, 2, 3]), 4),
        part("<f8", Buffer::from_vec(vec![0.0, 2.5, -0.0, 0.0, 1.0]), 8),
    )
    .unwrap();
    for (drop_zeros, indptr, indices) in
        [(false, vec![0, 2, 2, 5], vec![0, 3, 1, 2, 3]), (true, vec![0, 1, 1, 3], vec![3, 1, 3])]
    {
        let options = ShrinkOptions { drop_zeros, ..ShrinkOptions::default() };
        let (csr, _) = shrink_sparse(&matrix, &options, &Unobserved).unwrap();
        assert_eq!(csr.indptr.bytes.typed_data::<i32>(), indptr);
        assert_eq!(csr.indices.bytes.typed_data::<i32>(), indices);
        assert_eq!(csr.data.dtype.name(), "float16");
    }
}

#[test]
fn indices_have_64_bits_from_2_to_the_31_on() {
    let below = (1u64 << 31) - 1;
    assert_eq!(csr_bytes(1, below, 10, 1), 2 * 4 + 10 * 5);
    assert_eq!(csr_bytes(1, below + 1, 10, 1), 2 * 8 + 10 * 9);
    assert_eq!(csr_bytes(u64::MAX, u64::MAX, u64::MAX, 8), u64::MAX);
}

#[test]
fn nothing_is_reserved_that_cannot_be() {
    // A shape without elements may be as long as it likes, until pointers are to be made for its rows.
    let (array, _) = array(&[], Number::Float64, &[1 << 60, 0], Order::C, false, Where::Memory);
    assert!(shrink_array(&array, &ShrinkOptions::default(), &Unobserved).is_ok());
    let always = ShrinkOptions { sparse: SparseChoice::Always, ..ShrinkOptions::default() };
    assert!(shrink_array(&array, &always, &Unobserved).unwrap_err().to_string().contains("no memory"));
}

#[test]
fn a_pass_can_be_watched_and_stopped() {
    struct Impatient;
    impl Observer for Impatient {
        fn advanced(&self, pass: Pass, done: u64, total: u64) {
            assert!(pass == Pass::Profiling && done <= total);
        }
        fn stopped(&self) -> bool {
            true
        }
    }
    let (array, _) = array(&[Value::Integer(1)], Number::Int64, &[1], Order::C, false, Where::Npy);
    assert!(matches!(profile_array(&array, Policy::Exact, &Impatient), Err(DataError::Stopped)));
}
