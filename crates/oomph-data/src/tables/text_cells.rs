//! The text of a column, whichever of Arrow's layouts it has.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, LargeStringArray, StringArray, StringViewArray};
use arrow_schema::DataType;

/// Text by row.
pub(crate) enum TextCells<'a> {
    Short(&'a StringArray),
    Large(&'a LargeStringArray),
    View(&'a StringViewArray),
    /// Codes of different values; a code may stand for no value.
    Codes(Vec<Option<usize>>, &'a ArrayRef),
}

impl<'a> TextCells<'a> {
    /// Whether a type is one of text.
    pub(crate) fn are_in(data_type: &DataType) -> bool {
        match data_type {
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
            DataType::Dictionary(_, values) => {
                matches!(**values, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
            }
            _ => false,
        }
    }

    pub(crate) fn of(array: &'a dyn Array) -> Option<Self> {
        Some(match array.data_type() {
            DataType::Utf8 => Self::Short(array.as_string()),
            DataType::LargeUtf8 => Self::Large(array.as_string()),
            DataType::Utf8View => Self::View(array.as_string_view()),
            DataType::Dictionary(..) => {
                let dictionary = array.as_any_dictionary_opt()?;
                if dictionary.values().is_empty() {
                    return Some(Self::Codes(vec![None; array.len()], dictionary.values()));
                }
                let codes = dictionary.normalized_keys();
                let nulls = dictionary.nulls();
                let codes = codes
                    .into_iter()
                    .enumerate()
                    .map(|(row, code)| nulls.is_none_or(|nulls| nulls.is_valid(row)).then_some(code));
                Self::Codes(codes.collect(), dictionary.values())
            }
            _ => return None,
        })
    }

    /// The text of a row, if it has one.
    pub(crate) fn text(&self, row: usize) -> Option<&[u8]> {
        match self {
            Self::Short(array) => array.is_valid(row).then(|| array.value(row).as_bytes()),
            Self::Large(array) => array.is_valid(row).then(|| array.value(row).as_bytes()),
            Self::View(array) => array.is_valid(row).then(|| array.value(row).as_bytes()),
            Self::Codes(codes, values) => {
                let code = codes.get(row).copied().flatten()?;
                if values.is_null(code) {
                    return None;
                }
                Some(match values.data_type() {
                    DataType::Utf8 => values.as_string::<i32>().value(code).as_bytes(),
                    DataType::LargeUtf8 => values.as_string::<i64>().value(code).as_bytes(),
                    _ => values.as_string_view().value(code).as_bytes(),
                })
            }
        }
    }
}
