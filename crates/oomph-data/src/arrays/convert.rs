//! Numbers of one type into a growing buffer of another, and whether they all arrived.

use super::Dtype;
use super::array::Block;
use crate::DataError;
use crate::choose::{Number, to_f16};
use arrow_buffer::{ArrowNativeType, Buffer};
use half::f16;

/// Elements of one type in one buffer, little endian, exactly as long as they are.
#[derive(Debug, Clone, PartialEq)]
pub struct TypedBuffer {
    pub dtype: Dtype,
    /// Aligned to the width of their numbers.
    pub bytes: Buffer,
}

/// A number type that the machine has.
pub(crate) trait Native: ArrowNativeType {
    /// Bit for bit, or both not a number.
    fn same(self, other: Self) -> bool;
    /// All bits zero: what a sparse matrix leaves out. −0.0 is not.
    fn is_empty(self) -> bool;
    fn widened(self) -> f64;
    /// The first whole number above all that it holds; not a number for floats, which go on to infinity.
    const END: f64;
}

/// Nearest, or whatever; [`append`] looks whether it came back.
pub(crate) trait Cast<T> {
    fn cast(self) -> T;
}

macro_rules! integers {
    ($($native:ty)*) => {$(
        impl Native for $native {
            fn same(self, other: Self) -> bool {
                self == other
            }
            fn is_empty(self) -> bool {
                self == 0
            }
            fn widened(self) -> f64 {
                self as f64
            }
            const END: f64 = (<$native>::MAX as i128 + 1) as f64;
        }
        impl Cast<f16> for $native {
            fn cast(self) -> f16 {
                to_f16(self as f64)
            }
        }
        impl Cast<$native> for f16 {
            fn cast(self) -> $native {
                self.to_f64() as $native
            }
        }
    )*};
}

macro_rules! floats {
    ($($native:ty, $widen:expr;)*) => {$(
        impl Native for $native {
            fn same(self, other: Self) -> bool {
                // Not `||`: branches would keep the loop from being vectorised.
                (self.to_bits() == other.to_bits()) | ((self != self) & (other != other))
            }
            fn is_empty(self) -> bool {
                self.to_bits() == 0
            }
            fn widened(self) -> f64 {
                $widen(self)
            }
            const END: f64 = f64::NAN;
        }
        impl Cast<f16> for $native {
            fn cast(self) -> f16 {
                to_f16($widen(self))
            }
        }
    )*};
}

macro_rules! primitive_casts {
    ($($from:ty => $($into:ty)*;)*) => {$($(
        impl Cast<$into> for $from {
            fn cast(self) -> $into {
                self as $into
            }
        }
    )*)*};
}

integers!(i8 u8 i16 u16 i32 u32 i64 u64);
floats! {
    f16, f16::to_f64;
    f32, f64::from;
    f64, |value| value;
}
primitive_casts! {
    i8 => i8 u8 i16 u16 i32 u32 i64 u64 f32 f64;
    u8 => i8 u8 i16 u16 i32 u32 i64 u64 f32 f64;
    i16 => i8 u8 i16 u16 i32 u32 i64 u64 f32 f64;
    u16 => i8 u8 i16 u16 i32 u32 i64 u64 f32 f64;
    i32 => i8 u8 i16 u16 i32 u32 i64 u64 f32 f64;
    u32 => i8 u8 i16 u16 i32 u32 i64 u64 f32 f64;
    i64 => i8 u8 i16 u16 i32 u32 i64 u64 f32 f64;
    u64 => i8 u8 i16 u16 i32 u32 i64 u64 f32 f64;
    f32 => i8 u8 i16 u16 i32 u32 i64 u64 f32 f64;
    f64 => i8 u8 i16 u16 i32 u32 i64 u64 f32 f64;
}

impl Cast<f32> for f16 {
    fn cast(self) -> f32 {
        self.to_f32()
    }
}

impl Cast<f64> for f16 {
    fn cast(self) -> f64 {
        self.to_f64()
    }
}

/// Runs code with a type for a [`Number`].
macro_rules! with_native {
    ($number:expr, $native:ident => $code:expr) => {
        match $number {
            $crate::choose::Number::Int8 => {
                type $native = i8;
                $code
            }
            $crate::choose::Number::UInt8 => {
                type $native = u8;
                $code
            }
            $crate::choose::Number::Int16 => {
                type $native = i16;
                $code
            }
            $crate::choose::Number::UInt16 => {
                type $native = u16;
                $code
            }
            $crate::choose::Number::Int32 => {
                type $native = i32;
                $code
            }
            $crate::choose::Number::UInt32 => {
                type $native = u32;
                $code
            }
            $crate::choose::Number::Int64 => {
                type $native = i64;
                $code
            }
            $crate::choose::Number::UInt64 => {
                type $native = u64;
                $code
            }
            $crate::choose::Number::Float16 => {
                type $native = half::f16;
                $code
            }
            $crate::choose::Number::Float32 => {
                type $native = f32;
                $code
            }
            $crate::choose::Number::Float64 => {
                type $native = f64;
                $code
            }
        }
    };
}
pub(crate) use with_native;

/// A type that values of every other can be appended as.
pub(super) trait Target: Native {
    const NUMBER: Number;

    /// As [`append`]; the block's numbers are of type `from`.
    fn append_block(from: Number, block: &Block<'_>, into: &mut Vec<Self>, tolerance: f64) -> bool;
}

macro_rules! targets {
    ($($number:ident $native:ty;)*) => {$(
        impl Target for $native {
            const NUMBER: Number = Number::$number;

            fn append_block(from: Number, block: &Block<'_>, into: &mut Vec<Self>, tolerance: f64) -> bool {
                with_native!(from, Source => append::<Source, Self>(block.numbers(), into, tolerance))
            }
        }
    )*};
}

targets! {
    Int8 i8;
    UInt8 u8;
    Int16 i16;
    UInt16 u16;
    Int32 i32;
    UInt32 u32;
    Int64 i64;
    UInt64 u64;
    Float16 f16;
    Float32 f32;
    Float64 f64;
}

/// Appends values as another type. False if one of them differs there by more than `tolerance`, a part of it.
fn append<S: Native + Cast<T>, T: Native + Cast<S>>(from: &[S], into: &mut Vec<T>, tolerance: f64) -> bool {
    // In small chunks: what was written is checked while it is in the L1 cache.
    from.chunks(1024).all(|from| {
        let start = into.len();
        into.extend(from.iter().map(|value| Cast::<T>::cast(*value)));
        let pairs = || from.iter().zip(&into[start..]);
        let lost = pairs().map(|(value, stored)| u64::from(!value.same(stored.cast()))).sum::<u64>();
        // The way back from a float ends at the largest integer: it would pass for what was rounded up from there.
        let from_integer_to_float = !S::END.is_nan() && T::END.is_nan();
        if from_integer_to_float && pairs().any(|(_, stored)| stored.widened() >= S::END) {
            return false;
        }
        lost == 0
            || (tolerance > 0.0
                && pairs()
                    .all(|(value, stored)| value.same(stored.cast()) || within(*value, *stored, tolerance)))
    })
}

fn within<S: Native, T: Native>(value: S, stored: T, tolerance: f64) -> bool {
    let (value, stored) = (value.widened(), stored.widened());
    (value - stored).abs() / value.abs() <= tolerance
}

/// Room for exactly so many values, or an error where there is none.
pub(super) fn room<T>(location: &str, count: u64) -> Result<Vec<T>, DataError> {
    let mut values = Vec::new();
    let reserved = usize::try_from(count).is_ok_and(|count| values.try_reserve_exact(count).is_ok());
    if reserved {
        Ok(values)
    } else {
        Err(out_of_memory(location, count.saturating_mul(size_of::<T>() as u64)))
    }
}

fn out_of_memory(location: &str, bytes: u64) -> DataError {
    DataError::io(
        location,
        std::io::Error::new(std::io::ErrorKind::OutOfMemory, format!("there is no memory for {bytes} bytes")),
    )
}

/// The error of values that are not those that were profiled.
pub(super) fn changed(location: &str) -> DataError {
    DataError::unreadable(
        location,
        "was changed while it was read: its values do not fit the type that was chosen for them",
    )
}

impl TypedBuffer {
    pub(super) fn of<T: Target>(values: Vec<T>) -> Self {
        Self { dtype: Dtype::Number(T::NUMBER), bytes: Buffer::from_vec(values) }
    }

    /// The type of its numbers, where they are single numbers.
    pub fn number(&self) -> Option<Number> {
        match self.dtype {
            Dtype::Number(number) => Some(number),
            _ => None,
        }
    }
}
