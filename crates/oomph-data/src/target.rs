//! What a column becomes: its type, and what it takes in it.

use crate::choose::Number;
use crate::distinct::Distinct;
use arrow_array::{ArrayRef, StringArray};
use arrow_schema::{DataType, TimeUnit};
use std::sync::Arc;

/// What a column becomes.
#[derive(Clone)]
pub(crate) enum Target {
    /// No row has a value.
    Null,
    Bool,
    Number(Number),
    /// Days since 1970.
    Date,
    /// Since 1970; whether in UTC.
    Moment(TimeUnit, bool),
    Text,
    /// Numbers of different values.
    Dictionary(Arc<Dictionary>),
    /// The type that it has, whose values are as wide as this number.
    Fixed(DataType, Number),
    /// As it is, whatever it is.
    Keep(DataType),
}

/// The different values of a column of text.
pub(crate) struct Dictionary {
    pub(crate) distinct: Distinct,
    /// Of int8, int16 and int32 the smallest: what Arrow's neighbours take for codes.
    pub(crate) codes: Number,
    pub(crate) values: ArrayRef,
}

impl Dictionary {
    pub(crate) fn new(distinct: Distinct) -> Option<Self> {
        let last = distinct.len().saturating_sub(1) as i128;
        let codes = [Number::Int8, Number::Int16, Number::Int32]
            .into_iter()
            .find(|codes| last < 1 << (codes.width() * 8 - 1))?;
        let values: StringArray =
            distinct.values().map(|value| Some(std::str::from_utf8(value).unwrap_or_default())).collect();
        Some(Self { distinct, codes, values: Arc::new(values) })
    }

    fn bytes(&self) -> u64 {
        self.distinct.text_bytes() as u64 + 4 * (self.distinct.len() as u64 + 1)
    }
}

/// Offsets of 32 bits reach so far.
pub(crate) const SHORT_TEXT: u64 = i32::MAX as u64;

impl Target {
    /// `text_bytes`: of all values of a column of text together.
    pub(crate) fn arrow_type(&self, text_bytes: u64) -> DataType {
        match self {
            Self::Null => DataType::Null,
            Self::Bool => DataType::Boolean,
            Self::Number(number) => number.arrow_type(),
            Self::Date => DataType::Date32,
            Self::Moment(unit, utc) => DataType::Timestamp(*unit, utc.then(|| "UTC".into())),
            Self::Text if text_bytes > SHORT_TEXT => DataType::LargeUtf8,
            Self::Text => DataType::Utf8,
            Self::Dictionary(dictionary) => {
                DataType::Dictionary(Box::new(dictionary.codes.arrow_type()), Box::new(DataType::Utf8))
            }
            Self::Fixed(kept, _) | Self::Keep(kept) => kept.clone(),
        }
    }

    /// What so many rows take: values, validity, offsets and dictionary. What is kept as it is, is not known here.
    pub(crate) fn bytes(&self, rows: u64, nulls: u64, text_bytes: u64) -> u64 {
        let values = match self {
            Self::Null => return 0,
            Self::Bool => rows.div_ceil(8),
            Self::Number(number) | Self::Fixed(_, number) => rows * number.width() as u64,
            Self::Date => rows * 4,
            Self::Moment(..) => rows * 8,
            Self::Text => text_bytes + (rows + 1) * if text_bytes > SHORT_TEXT { 8 } else { 4 },
            Self::Dictionary(dictionary) => rows * dictionary.codes.width() as u64 + dictionary.bytes(),
            Self::Keep(_) => 0,
        };
        values + validity_bytes(rows, nulls)
    }
}

pub(crate) fn validity_bytes(rows: u64, nulls: u64) -> u64 {
    if nulls == 0 { 0 } else { rows.div_ceil(8) }
}

/// Whether 32 bits hold every index and pointer. SciPy and torch want both of one type.
pub(crate) fn small_indices(rows: u64, columns: u64, stored: u64) -> bool {
    rows.max(columns).max(stored) <= i32::MAX as u64
}

/// What a matrix takes as CSR with values of so many bytes: pointers, indices and values.
pub(crate) fn csr_bytes(rows: u64, columns: u64, stored: u64, width: usize) -> u64 {
    let index = if small_indices(rows, columns, stored) { 4 } else { 8 };
    let pointers = rows.saturating_add(1).saturating_mul(index);
    pointers.saturating_add(stored.saturating_mul(index + width as u64))
}

/// The name of a type as pandas, polars and pyarrow people know it.
pub(crate) fn type_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Boolean => "bool".to_owned(),
        DataType::Null => "null".to_owned(),
        DataType::Utf8 => "string".to_owned(),
        DataType::LargeUtf8 => "large_string".to_owned(),
        DataType::Utf8View => "string_view".to_owned(),
        DataType::Date32 => "date32".to_owned(),
        DataType::Timestamp(unit, zone) => {
            let unit = match unit {
                TimeUnit::Second => "s",
                TimeUnit::Millisecond => "ms",
                TimeUnit::Microsecond => "us",
                TimeUnit::Nanosecond => "ns",
            };
            zone.as_ref()
                .map_or_else(|| format!("timestamp[{unit}]"), |zone| format!("timestamp[{unit}, {zone}]"))
        }
        DataType::Dictionary(codes, values) if **values == DataType::Utf8 => {
            format!("dictionary[{}]", type_name(codes))
        }
        DataType::Dictionary(codes, values) => {
            format!("dictionary[{}, {}]", type_name(codes), type_name(values))
        }
        other => Number::from_arrow(other)
            .map_or_else(|| other.to_string().to_lowercase(), |number| number.name().to_owned()),
    }
}
