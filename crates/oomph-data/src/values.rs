//! The values of a column that is being filled: one buffer of exactly the size of the result, which several threads fill
//! at once, each a part of its own.

use crate::choose::Number;
use crate::target::{SHORT_TEXT, Target};
use arrow_array::types::{ArrowDictionaryKeyType, Int8Type, Int16Type, Int32Type};
use arrow_array::{
    ArrayRef, BooleanArray, DictionaryArray, LargeStringArray, NullArray, PrimitiveArray, StringArray,
    make_array,
};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType};
use half::f16;
use std::sync::Arc;

macro_rules! values {
    ($($kind:ident: $type:ty),* $(,)?) => {
        /// A column's buffers, owned.
        pub(crate) enum Values {
            $($kind(Vec<$type>),)*
            Text { offsets: Vec<i32>, bytes: Vec<u8> },
            LargeText { offsets: Vec<i64>, bytes: Vec<u8> },
            /// Truths: in [`Bits`].
            Bits,
            Nothing,
        }

        /// The part of a column that belongs to some of its rows.
        pub(crate) enum Part<'a> {
            $($kind(&'a mut [$type]),)*
            /// `offsets` says where each row's text ends, from `base` on.
            Text { offsets: &'a mut [i32], bytes: &'a mut [u8], base: usize },
            LargeText { offsets: &'a mut [i64], bytes: &'a mut [u8], base: usize },
            Bits,
            Nothing,
        }

        impl Values {
            fn of_number(number: Number, rows: usize) -> Self {
                match number { $(Number::$kind => Self::$kind(vec![<$type>::default(); rows]),)* }
            }

            /// Cut into parts of so many rows, and so many bytes of text, each.
            pub(crate) fn parts(&mut self, rows: &[usize], text_bytes: &[usize]) -> Vec<Part<'_>> {
                match self {
                    $(Self::$kind(values) => cut(values, rows).into_iter().map(Part::$kind).collect(),)*
                    Self::Text { offsets, bytes } => {
                        let texts = cut(bytes, text_bytes).into_iter().zip(bases(text_bytes));
                        let offsets = cut(&mut offsets[1..], rows);
                        offsets.into_iter().zip(texts).map(|(offsets, (bytes, base))| Part::Text { offsets, bytes, base }).collect()
                    }
                    Self::LargeText { offsets, bytes } => {
                        let texts = cut(bytes, text_bytes).into_iter().zip(bases(text_bytes));
                        let offsets = cut(&mut offsets[1..], rows);
                        offsets.into_iter().zip(texts).map(|(offsets, (bytes, base))| Part::LargeText { offsets, bytes, base }).collect()
                    }
                    Self::Bits => rows.iter().map(|_| Part::Bits).collect(),
                    Self::Nothing => rows.iter().map(|_| Part::Nothing).collect(),
                }
            }

            fn buffer(self) -> Option<Buffer> {
                match self {
                    $(Self::$kind(values) => Some(Buffer::from_vec(values)),)*
                    _ => None,
                }
            }
        }
    };
}

values! {
    Int8: i8, UInt8: u8, Int16: i16, UInt16: u16, Int32: i32, UInt32: u32, Int64: i64, UInt64: u64,
    Float16: f16, Float32: f32, Float64: f64,
}

fn cut<'a, T>(mut whole: &'a mut [T], lengths: &[usize]) -> Vec<&'a mut [T]> {
    let mut parts = Vec::with_capacity(lengths.len());
    for &length in lengths {
        let (part, rest) = whole.split_at_mut(length.min(whole.len()));
        parts.push(part);
        whole = rest;
    }
    parts
}

fn bases(lengths: &[usize]) -> impl Iterator<Item = usize> {
    lengths.iter().scan(0, |base, length| {
        let here = *base;
        *base += length;
        Some(here)
    })
}

impl Values {
    /// For so many rows of a target; `text_bytes` of text together.
    pub(crate) fn new(target: &Target, rows: usize, text_bytes: usize) -> Self {
        match target {
            Target::Number(number) | Target::Fixed(_, number) => Self::of_number(*number, rows),
            Target::Date => Self::of_number(Number::Int32, rows),
            Target::Moment(..) => Self::of_number(Number::Int64, rows),
            Target::Dictionary(dictionary) => Self::of_number(dictionary.codes, rows),
            Target::Text if text_bytes as u64 > SHORT_TEXT => {
                Self::LargeText { offsets: vec![0; rows + 1], bytes: vec![0; text_bytes] }
            }
            Target::Text => Self::Text { offsets: vec![0; rows + 1], bytes: vec![0; text_bytes] },
            Target::Bool => Self::Bits,
            Target::Null | Target::Keep(_) => Self::Nothing,
        }
    }

    /// The array, without copying a value.
    pub(crate) fn finish(
        self,
        target: &Target,
        rows: usize,
        nulls: Option<Bits>,
        booleans: Option<Bits>,
    ) -> Result<ArrayRef, ArrowError> {
        let nulls = nulls.map(|bits| NullBuffer::new(bits.finish(rows)));
        let array: ArrayRef = match (self, target) {
            (Self::Bits, _) => {
                let booleans = booleans.unwrap_or_default().finish(rows);
                Arc::new(BooleanArray::new(booleans, nulls))
            }
            (Self::Nothing, _) => Arc::new(NullArray::new(rows)),
            (Self::Text { offsets, bytes }, _) => {
                let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
                Arc::new(StringArray::try_new(offsets, Buffer::from_vec(bytes), nulls)?)
            }
            (Self::LargeText { offsets, bytes }, _) => {
                let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
                Arc::new(LargeStringArray::try_new(offsets, Buffer::from_vec(bytes), nulls)?)
            }
            (values, Target::Dictionary(dictionary)) => {
                let codes = values.buffer().unwrap_or_else(|| Buffer::from_vec(Vec::<u8>::new()));
                match dictionary.codes {
                    Number::Int8 => dictionary_array::<Int8Type>(codes, nulls, rows, &dictionary.values)?,
                    Number::Int16 => dictionary_array::<Int16Type>(codes, nulls, rows, &dictionary.values)?,
                    _ => dictionary_array::<Int32Type>(codes, nulls, rows, &dictionary.values)?,
                }
            }
            (values, target) => {
                let buffer = values.buffer().unwrap_or_else(|| Buffer::from_vec(Vec::<u8>::new()));
                plain_array(target.arrow_type(0), buffer, nulls, rows)?
            }
        };
        Ok(array)
    }
}

fn dictionary_array<K: ArrowDictionaryKeyType>(
    codes: Buffer,
    nulls: Option<NullBuffer>,
    rows: usize,
    values: &ArrayRef,
) -> Result<ArrayRef, ArrowError> {
    let codes = PrimitiveArray::<K>::try_new(ScalarBuffer::new(codes, 0, rows), nulls)?;
    Ok(Arc::new(DictionaryArray::try_new(codes, Arc::clone(values))?))
}

fn plain_array(
    data_type: DataType,
    buffer: Buffer,
    nulls: Option<NullBuffer>,
    rows: usize,
) -> Result<ArrayRef, ArrowError> {
    let data = ArrayData::builder(data_type).len(rows).add_buffer(buffer).nulls(nulls).build()?;
    Ok(make_array(data))
}

/// Bits, one a row.
#[derive(Default, Clone)]
pub(crate) struct Bits {
    bytes: Vec<u8>,
}

impl Bits {
    /// All set, or none.
    pub(crate) fn new(rows: usize, set: bool) -> Self {
        Self { bytes: vec![if set { 0xff } else { 0 }; rows.div_ceil(8)] }
    }

    #[inline]
    pub(crate) fn unset(&mut self, row: usize) {
        self.bytes[row / 8] &= !(1 << (row % 8));
    }

    #[inline]
    pub(crate) fn set(&mut self, row: usize) {
        self.bytes[row / 8] |= 1 << (row % 8);
    }

    /// Writes the first `rows` of another over those from `at` on, which are unset.
    pub(crate) fn write(&mut self, at: usize, from: &Self, rows: usize) {
        let shift = at % 8;
        for (place, &byte) in from.bytes.iter().enumerate().take(rows.div_ceil(8)) {
            let left = rows - place * 8;
            let byte = if left < 8 { byte & ((1 << left) - 1) } else { byte };
            let to = at / 8 + place;
            self.bytes[to] |= byte << shift;
            if shift > 0 && byte >> (8 - shift) != 0 {
                self.bytes[to + 1] |= byte >> (8 - shift);
            }
        }
    }

    /// Sets `rows` bits from `at` on.
    pub(crate) fn set_range(&mut self, at: usize, rows: usize) {
        for row in at..at + rows {
            self.set(row);
        }
    }

    fn finish(mut self, rows: usize) -> BooleanBuffer {
        self.bytes.resize(rows.div_ceil(8), 0);
        BooleanBuffer::new(Buffer::from_vec(self.bytes), 0, rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bits_of_parts_are_those_of_the_whole(parts in prop::collection::vec(prop::collection::vec(any::<bool>(), 0..30), 0..8)) {
            let all: Vec<bool> = parts.concat();
            let mut whole = Bits::new(all.len(), false);
            let mut at = 0;
            for part in &parts {
                let mut bits = Bits::new(part.len(), true);
                for (row, set) in part.iter().enumerate() {
                    if !set {
                        bits.unset(row);
                    }
                }
                whole.write(at, &bits, part.len());
                at += part.len();
            }
            prop_assert_eq!(whole.finish(all.len()).iter().collect::<Vec<bool>>(), all);
        }
    }
}
