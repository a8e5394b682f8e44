//! The smallest type for numbers: what one pass has to keep of them, and the choice from that.
//!
//! Boundary: values in, a [`Number`] out. Columns, arrays and files are for those who call.

use arrow_schema::DataType;
use half::f16;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Number {
    Int8,
    UInt8,
    Int16,
    UInt16,
    Int32,
    UInt32,
    Int64,
    UInt64,
    Float16,
    Float32,
    Float64,
}

impl Number {
    /// Bytes of one value.
    pub fn width(self) -> usize {
        match self {
            Self::Int8 | Self::UInt8 => 1,
            Self::Int16 | Self::UInt16 | Self::Float16 => 2,
            Self::Int32 | Self::UInt32 | Self::Float32 => 4,
            Self::Int64 | Self::UInt64 | Self::Float64 => 8,
        }
    }

    /// As NumPy, pandas and polars write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::UInt8 => "uint8",
            Self::Int16 => "int16",
            Self::UInt16 => "uint16",
            Self::Int32 => "int32",
            Self::UInt32 => "uint32",
            Self::Int64 => "int64",
            Self::UInt64 => "uint64",
            Self::Float16 => "float16",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
        }
    }

    /// Arrow's type of the same values.
    pub fn arrow_type(self) -> DataType {
        match self {
            Self::Int8 => DataType::Int8,
            Self::UInt8 => DataType::UInt8,
            Self::Int16 => DataType::Int16,
            Self::UInt16 => DataType::UInt16,
            Self::Int32 => DataType::Int32,
            Self::UInt32 => DataType::UInt32,
            Self::Int64 => DataType::Int64,
            Self::UInt64 => DataType::UInt64,
            Self::Float16 => DataType::Float16,
            Self::Float32 => DataType::Float32,
            Self::Float64 => DataType::Float64,
        }
    }

    /// The number type that an Arrow type is, if it is one.
    pub fn from_arrow(data_type: &DataType) -> Option<Self> {
        Some(match data_type {
            DataType::Int8 => Self::Int8,
            DataType::UInt8 => Self::UInt8,
            DataType::Int16 => Self::Int16,
            DataType::UInt16 => Self::UInt16,
            DataType::Int32 => Self::Int32,
            DataType::UInt32 => Self::UInt32,
            DataType::Int64 => Self::Int64,
            DataType::UInt64 => Self::UInt64,
            DataType::Float16 => Self::Float16,
            DataType::Float32 => Self::Float32,
            DataType::Float64 => Self::Float64,
            _ => return None,
        })
    }

    /// Whether it holds parts of a whole.
    pub fn is_float(self) -> bool {
        matches!(self, Self::Float16 | Self::Float32 | Self::Float64)
    }

    /// Whether an integer type holds both and all between.
    fn holds_range(self, min: i128, max: i128) -> bool {
        INTEGERS
            .into_iter()
            .any(|(number, lowest, highest)| number == self && lowest <= min && max <= highest)
    }

    /// The smallest integer type that holds both and all between; signed before unsigned.
    pub fn for_integers(min: i128, max: i128) -> Option<Self> {
        INTEGERS
            .into_iter()
            .find(|(_, lowest, highest)| *lowest <= min && max <= *highest)
            .map(|(number, ..)| number)
    }
}

/// By width; of one width the signed first.
const INTEGERS: [(Number, i128, i128); 8] = [
    (Number::Int8, i8::MIN as i128, i8::MAX as i128),
    (Number::UInt8, 0, u8::MAX as i128),
    (Number::Int16, i16::MIN as i128, i16::MAX as i128),
    (Number::UInt16, 0, u16::MAX as i128),
    (Number::Int32, i32::MIN as i128, i32::MAX as i128),
    (Number::UInt32, 0, u32::MAX as i128),
    (Number::Int64, i64::MIN as i128, i64::MAX as i128),
    (Number::UInt64, 0, u64::MAX as i128),
];

/// Rounds to nearest, ties to even, in one rounding on every machine.
///
/// Through f32, as processors do it, a value can be rounded twice, to the wrong side. An f32 that was cut towards zero and
/// made odd remembers that something was cut.
pub fn to_f16(value: f64) -> f16 {
    let nearest = value as f32;
    let widened = f64::from(nearest);
    if widened == value || value.is_nan() {
        return f16::from_f32(nearest);
    }
    let cut = if widened.abs() > value.abs() { nearest.to_bits() - 1 } else { nearest.to_bits() };
    f16::from_f32(f32::from_bits(cut | 1))
}

/// What one pass keeps of numbers: enough to choose the smallest type for them, and to show what is in them.
#[derive(Debug, Clone, PartialEq)]
pub struct NumberStats {
    /// The type that the values have.
    pub source: Number,
    /// The largest relative error that [`NumberStats::within`] will be asked for; 0: it will not be asked.
    pub tolerance: f64,
    /// Values that are there.
    pub count: u64,
    /// Places without a value.
    pub nulls: u64,
    /// Zeros of either sign.
    pub zeros: u64,
    /// Zeros with a sign.
    pub negative_zeros: u64,
    /// Not a number.
    pub nans: u64,
    /// Infinite, of either sign.
    pub infinite: u64,
    /// Every value is a whole number; −0.0, NaN and infinities are not.
    pub integer_valued: bool,
    /// Every float is the same as a 16-bit one.
    pub exact_f16: bool,
    /// Every float is the same as a 32-bit one.
    pub exact_f32: bool,
    /// The worst relative error as 16-bit floats; infinite if above `tolerance`.
    pub worst_f16: f64,
    /// The worst relative error as 32-bit floats; infinite if above `tolerance`.
    pub worst_f32: f64,
    integers: Range<i128>,
    floats: Range<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Range<T> {
    min: T,
    max: T,
}

impl<T: Copy + PartialOrd> Range<T> {
    /// NaN is passed over: it is neither smaller nor larger.
    fn widen(&mut self, min: T, max: T) {
        if min < self.min {
            self.min = min;
        }
        if max > self.max {
            self.max = max;
        }
    }
}

/// Values checked together: they stay in the L1 cache from one check to the next.
const BLOCK: usize = 1024;

/// Running extremes kept side by side, so that the compiler uses vectors: it may not reorder floats by itself.
const LANES: usize = 8;

impl NumberStats {
    /// Of no values yet.
    pub fn new(source: Number, tolerance: f64) -> Self {
        Self {
            source,
            tolerance,
            count: 0,
            nulls: 0,
            zeros: 0,
            negative_zeros: 0,
            nans: 0,
            infinite: 0,
            integer_valued: true,
            exact_f16: true,
            exact_f32: true,
            worst_f16: 0.0,
            worst_f32: 0.0,
            integers: Range { min: i128::MAX, max: i128::MIN },
            floats: Range { min: f64::INFINITY, max: f64::NEG_INFINITY },
        }
    }

    /// Places without a value.
    pub fn add_nulls(&mut self, nulls: u64) {
        self.nulls += nulls;
    }

    /// One unsigned integer.
    #[inline]
    pub fn add_u64(&mut self, value: u64) {
        self.count += 1;
        self.zeros += u64::from(value == 0);
        self.integers.widen(value.into(), value.into());
    }

    pub fn add_i64_slice(&mut self, values: &[i64]) {
        self.add_integer_slice(values);
    }

    /// Integers of any width.
    pub fn add_integer_slice<T: Copy + Ord + Default + Into<i128>>(&mut self, values: &[T]) {
        let Some(first) = values.first() else { return };
        let (mut min, mut max) = (*first, *first);
        let mut zeros = 0;
        for value in values {
            min = min.min(*value);
            max = max.max(*value);
            zeros += u64::from(*value == T::default());
        }
        self.count += values.len() as u64;
        self.zeros += zeros;
        self.integers.widen(min.into(), max.into());
    }

    pub fn add_f64_slice(&mut self, values: &[f64]) {
        for block in values.chunks(BLOCK) {
            self.add_block(block);
        }
    }

    pub fn add_f32_slice(&mut self, values: &[f32]) {
        self.add_widened(values, f64::from);
    }

    pub fn add_f16_slice(&mut self, values: &[f16]) {
        self.add_widened(values, f16::to_f64);
    }

    fn add_widened<T: Copy>(&mut self, values: &[T], widen: impl Fn(T) -> f64) {
        let mut widened = [0.0; BLOCK];
        for block in values.chunks(BLOCK) {
            for (wide, value) in widened.iter_mut().zip(block) {
                *wide = widen(*value);
            }
            self.add_block(&widened[..block.len()]);
        }
    }

    #[inline]
    fn add_block(&mut self, block: &[f64]) {
        let count =
            |question: fn(f64) -> bool| block.iter().map(|value| u64::from(question(*value))).sum::<u64>();
        self.count += block.len() as u64;
        self.nans += count(|value| value.is_nan());
        let zeros = count(|value| value == 0.0);
        if zeros > 0 {
            self.zeros += zeros;
            self.negative_zeros += count(|value| value.to_bits() == 1 << 63);
        }
        self.floats.widen(
            extreme(block, f64::INFINITY, |value| value, |value, least| value < least),
            extreme(block, f64::NEG_INFINITY, |value| value, |value, most| value > most),
        );
        if self.floats.min == f64::NEG_INFINITY || self.floats.max == f64::INFINITY {
            self.infinite += count(f64::is_infinite);
        }
        if self.integer_valued {
            self.integer_valued =
                self.nans + self.infinite + self.negative_zeros == 0 && count(|value| !is_whole(value)) == 0;
        }
        if self.source == Number::Float64 {
            self.ask_f32(block);
        }
        if self.source != Number::Float16 {
            self.ask_f16(block);
        }
    }

    #[inline]
    fn ask_f32(&mut self, block: &[f64]) {
        let there_and_back = |value: f64| f64::from(value as f32);
        if self.exact_f32 {
            self.exact_f32 = block
                .iter()
                .map(|value| u64::from(there_and_back(*value) != *value && !value.is_nan()))
                .sum::<u64>()
                == 0;
        }
        if !self.exact_f32 && self.worst_f32 <= self.tolerance {
            let worst = extreme(
                block,
                self.worst_f32,
                |value| relative_error(value, there_and_back(value)),
                |error, worst| error > worst,
            );
            self.worst_f32 = self.tolerable(worst);
        }
    }

    #[inline]
    fn ask_f16(&mut self, block: &[f64]) {
        let there_and_back = |value: f64| to_f16(value).to_f64();
        if self.exact_f16 {
            // Most are plain, and that question is asked with vectors; the few others only where there are some.
            let plain = block.iter().map(|value| u64::from(is_plain_f16(*value))).sum::<u64>();
            self.exact_f16 = plain == block.len() as u64
                || block.iter().all(|value| there_and_back(*value) == *value || value.is_nan());
        }
        if !self.exact_f16 && self.worst_f16 <= self.tolerance {
            for value in block {
                let error = relative_error(*value, there_and_back(*value));
                if error > self.worst_f16 {
                    self.worst_f16 = self.tolerable(error);
                    if self.worst_f16 > self.tolerance {
                        break;
                    }
                }
            }
        }
    }

    /// What is above the tolerance is no longer measured, so how far above must not depend on the order of values.
    fn tolerable(&self, error: f64) -> f64 {
        if error > self.tolerance { f64::INFINITY } else { error }
    }

    /// Adds those of another part of the same values.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.nulls += other.nulls;
        self.zeros += other.zeros;
        self.negative_zeros += other.negative_zeros;
        self.nans += other.nans;
        self.infinite += other.infinite;
        self.integer_valued &= other.integer_valued;
        self.exact_f16 &= other.exact_f16;
        self.exact_f32 &= other.exact_f32;
        self.worst_f16 = self.worst_f16.max(other.worst_f16);
        self.worst_f32 = self.worst_f32.max(other.worst_f32);
        self.integers.widen(other.integers.min, other.integers.max);
        self.floats.widen(other.floats.min, other.floats.max);
    }

    /// Smallest and largest, where all values are whole numbers of at most 64 bits.
    pub fn integer_range(&self) -> Option<(i128, i128)> {
        let mut range = self.integers;
        if self.floats.min <= self.floats.max {
            // Saturates, and what it saturates to has no type.
            range.widen(self.floats.min as i128, self.floats.max as i128);
        }
        let all = self.integer_valued
            && range.min <= range.max
            && Number::for_integers(range.min, range.max).is_some();
        all.then_some((range.min, range.max))
    }

    /// Smallest and largest of the floats; NaN is neither.
    pub(crate) fn float_range(&self) -> Option<(f64, f64)> {
        (self.floats.min <= self.floats.max).then_some((self.floats.min, self.floats.max))
    }

    /// Smallest and largest as text; NaN is neither.
    pub fn range(&self) -> Option<[String; 2]> {
        if self.source.is_float() {
            self.float_range().map(|(min, max)| [float_text(min), float_text(max)])
        } else {
            self.integer_range().map(|(min, max)| [min.to_string(), max.to_string()])
        }
    }

    /// The smallest type that keeps every value; none if there is no value. A type of the source's own width would save
    /// nothing: then it stays what it is.
    pub fn exact(&self) -> Option<Number> {
        if self.count == 0 {
            return None;
        }
        let integer = self.integer_range().and_then(|(min, max)| Number::for_integers(min, max));
        if !self.source.is_float() {
            return integer.map(|integer| {
                if integer.width() == self.source.width() && self.holds(self.source) {
                    self.source
                } else {
                    integer
                }
            });
        }
        let float = if self.exact_f16 {
            Number::Float16
        } else if self.exact_f32 {
            Number::Float32
        } else {
            Number::Float64
        };
        let float = if float.width() > self.source.width() { self.source } else { float };
        match integer {
            Some(integer) if integer.width() <= float.width() && integer.width() < self.source.width() => {
                Some(integer)
            }
            _ => Some(float),
        }
    }

    /// Whether every value is the same in this type. Of integers in a float type only their range is known:
    /// true where the type holds all integers of the range.
    pub fn holds(&self, number: Number) -> bool {
        let integers = self.integer_range();
        if !number.is_float() {
            return integers.is_some_and(|(min, max)| number.holds_range(min, max));
        }
        if self.source.is_float() {
            return match number {
                Number::Float16 => self.exact_f16,
                Number::Float32 => self.exact_f32,
                _ => true,
            };
        }
        let whole_up_to = match number {
            Number::Float16 => 1 << 11,
            Number::Float32 => 1 << 24,
            _ => 1i128 << 53,
        };
        integers.is_some_and(|(min, max)| -whole_up_to <= min && max <= whole_up_to)
    }

    /// The smallest type in which no float changes by more than this part of itself, and the worst change, where there is
    /// one. Integers never change. Asked for more than `tolerance`, the answer may be larger than need be.
    pub fn within(&self, relative_error: f64) -> Option<(Number, Option<f64>)> {
        let exact = self.exact()?;
        if self.source.is_float() {
            for (float, worst) in [(Number::Float16, self.worst_f16), (Number::Float32, self.worst_f32)] {
                let measured = if float == Number::Float16 { !self.exact_f16 } else { !self.exact_f32 };
                if measured && worst <= relative_error.min(self.tolerance) && float.width() < exact.width() {
                    return Some((float, Some(worst)));
                }
            }
        }
        Some((exact, None))
    }
}

fn extreme(block: &[f64], start: f64, of: impl Fn(f64) -> f64, better: impl Fn(f64, f64) -> bool) -> f64 {
    let choose = |value: f64, best: f64| if better(value, best) { value } else { best };
    let mut lanes = [start; LANES];
    let mut rows = block.chunks_exact(LANES);
    for row in &mut rows {
        for (lane, value) in lanes.iter_mut().zip(row) {
            *lane = choose(of(*value), *lane);
        }
    }
    let best = lanes.into_iter().fold(start, |best, lane| choose(lane, best));
    rows.remainder().iter().fold(best, |best, value| choose(of(*value), best))
}

/// Not a number where there is nothing to measure: NaN, infinities that stay, zeros.
fn relative_error(value: f64, stored: f64) -> f64 {
    (value - stored).abs() / value.abs()
}

/// Adding and taking away 2^52 rounds to a whole number, in two operations that every processor has for vectors.
fn is_whole(value: f64) -> bool {
    const ALL_WHOLE_FROM: f64 = 4_503_599_627_370_496.0;
    let size = value.abs();
    (size + ALL_WHOLE_FROM) - ALL_WHOLE_FROM == size || size >= ALL_WHOLE_FROM
}

/// Zeros, and normal numbers of 11 bits with an exponent that f16 has: all but a few of those that f16 holds.
fn is_plain_f16(value: f64) -> bool {
    const LOW_BITS: u64 = (1 << 42) - 1;
    const LEAST: u64 = (1023 - 14) << 52;
    const BEYOND: u64 = (1023 + 16) << 52;
    let magnitude = value.to_bits() & !(1 << 63);
    (magnitude == 0) | ((magnitude & LOW_BITS == 0) & (LEAST..BEYOND).contains(&magnitude))
}

fn float_text(value: f64) -> String {
    // Zeros of both signs are equal: which of them is the extreme must not depend on which came first.
    let value = value + 0.0;
    let size = value.abs();
    if size != 0.0 && !(1e-5..1e16).contains(&size) && size.is_finite() {
        format!("{value:e}")
    } else {
        value.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Integers before floats of their width.
    const BY_WIDTH: [Number; 11] = [
        Number::Int8,
        Number::UInt8,
        Number::Int16,
        Number::UInt16,
        Number::Float16,
        Number::Int32,
        Number::UInt32,
        Number::Float32,
        Number::Int64,
        Number::UInt64,
        Number::Float64,
    ];

    fn borders() -> Vec<f64> {
        let mut borders =
            vec![0.0, 1.0, 0.5, 0.1, f64::MIN_POSITIVE, f64::MAX, f64::INFINITY, f64::NAN, 5e-324, 1e-310];
        for exponent in [7, 8, 11, 15, 16, 24, 31, 32, 51, 52, 53, 63, 64, 65] {
            let power = 2f64.powi(exponent);
            borders.extend([
                power,
                power - 1.0,
                power + 1.0,
                power.next_up(),
                power.next_down(),
                power + 0.5,
            ]);
        }
        // Where f16 and f32 end, above and below.
        for border in [
            65504.0,
            65519.999,
            65520.0,
            2f64.powi(-14),
            2f64.powi(-24),
            2f64.powi(-25),
            f64::from(f32::MAX),
            3.4028235677973366e38,
        ] {
            borders.extend([border, border.next_up(), border.next_down()]);
        }
        for border in [f64::from(f32::MIN_POSITIVE), 2f64.powi(-149), 2f64.powi(-150)] {
            borders.extend([border, border.next_up(), border.next_down(), border * 3.0]);
        }
        let negative: Vec<f64> = borders.iter().map(|value| -value).collect();
        borders.extend(negative);
        borders
    }

    fn float() -> impl Strategy<Value = f64> {
        prop_oneof![
            proptest::sample::select(borders()),
            any::<u64>().prop_map(f64::from_bits),
            any::<u32>().prop_map(|bits| f64::from(f32::from_bits(bits))),
            any::<u16>().prop_map(|bits| f16::from_bits(bits).to_f64()),
            (-300i64..300).prop_map(|value| value as f64),
            any::<i64>().prop_map(|value| value as f64),
        ]
    }

    /// Alike values, so that small types are chosen too.
    fn floats() -> impl Strategy<Value = Vec<f64>> {
        prop_oneof![
            proptest::collection::vec(float(), 0..40),
            proptest::collection::vec(any::<u16>().prop_map(|bits| f16::from_bits(bits).to_f64()), 0..40),
            proptest::collection::vec(any::<u32>().prop_map(|bits| f64::from(f32::from_bits(bits))), 0..40),
            proptest::collection::vec((-40_000i64..70_000).prop_map(|value| value as f64), 0..40),
            proptest::collection::vec(any::<i64>().prop_map(|value| value as f64), 0..40),
            proptest::collection::vec(0.9f64..1e6, 0..40),
        ]
    }

    fn same(left: f64, right: f64) -> bool {
        left.to_bits() == right.to_bits() || (left.is_nan() && right.is_nan())
    }

    fn stored(value: f64, number: Number) -> f64 {
        match number {
            Number::Float16 => to_f16(value).to_f64(),
            Number::Float32 => f64::from(value as f32),
            Number::Float64 => value,
            integer => {
                let (_, lowest, highest) =
                    INTEGERS.into_iter().find(|(number, ..)| *number == integer).expect("listed");
                (value as i128).clamp(lowest, highest) as f64
            }
        }
    }

    fn of(values: &[f64], tolerance: f64) -> NumberStats {
        let mut stats = NumberStats::new(Number::Float64, tolerance);
        stats.add_f64_slice(values);
        stats
    }

    proptest! {
        #[test]
        fn exact_is_the_smallest_that_gives_every_float_back(values in floats()) {
            let chosen = of(&values, 0.0).exact();
            let holds = |number: Number| values.iter().all(|value| same(stored(*value, number), *value));
            let smallest = BY_WIDTH.into_iter().find(|number| holds(*number) && (number.width() < 8 || *number == Number::Float64));
            prop_assert_eq!(chosen, if values.is_empty() { None } else { smallest });
        }

        #[test]
        fn within_names_the_worst_error_and_holds_to_it(values in floats(), tolerance in prop_oneof![Just(1e-3), Just(1e-6), Just(1e-9), Just(0.5)]) {
            let stats = of(&values, tolerance);
            let Some((number, worst)) = stats.within(tolerance) else { return Ok(()) };
            let errors = |number: Number| values.iter().map(move |value| {
                let stored = stored(*value, number);
                if same(stored, *value) {
                    0.0
                } else if value.is_nan() || stored.is_nan() || stored.is_infinite() || stored == 0.0 {
                    f64::INFINITY
                } else {
                    ((value - stored) / value).abs()
                }
            }).fold(0.0, f64::max);
            prop_assert_eq!(worst.unwrap_or(0.0), errors(number));
            let smallest = [Number::Float16, Number::Float32].into_iter().find(|float| errors(*float) <= tolerance);
            prop_assert!(number.width() <= smallest.map_or(8, Number::width));
        }

        #[test]
        fn parts_merge_into_the_whole(values in floats(), cut in 0usize..40, tolerance in prop_oneof![Just(0.0), Just(1e-6), Just(1e-3)]) {
            let whole = of(&values, tolerance);
            let (left, right) = values.split_at(cut.min(values.len()));
            let mut merged = of(left, tolerance);
            merged.merge(&of(right, tolerance));
            prop_assert_eq!(&merged, &whole);
            let mut single = NumberStats::new(Number::Float64, tolerance);
            values.iter().for_each(|value| single.add_f64_slice(&[*value]));
            prop_assert_eq!(&single, &whole);
        }

        #[test]
        fn floats_are_counted(values in floats()) {
            let stats = of(&values, 0.0);
            let count = |question: fn(&f64) -> bool| values.iter().filter(|value| question(value)).count() as u64;
            prop_assert_eq!(stats.count, values.len() as u64);
            prop_assert_eq!(stats.zeros, count(|value| *value == 0.0));
            prop_assert_eq!(stats.negative_zeros, count(|value| *value == 0.0 && value.is_sign_negative()));
            prop_assert_eq!(stats.nans, count(|value| value.is_nan()));
            prop_assert_eq!(stats.infinite, count(|value| value.is_infinite()));
            let whole = |value: &f64| value.fract() == 0.0 && !(*value == 0.0 && value.is_sign_negative());
            prop_assert_eq!(stats.integer_valued, values.iter().all(whole));
        }

        #[test]
        fn integers_get_the_smallest_that_holds_the_range(values in proptest::collection::vec(any::<i64>(), 1..20), shift in 0u32..64) {
            let values: Vec<i64> = values.into_iter().map(|value| value >> shift).collect();
            let mut stats = NumberStats::new(Number::Int64, 0.0);
            stats.add_i64_slice(&values);
            let chosen = stats.exact().expect("there are values");
            let (_, lowest, highest) = INTEGERS.into_iter().find(|(number, ..)| *number == chosen).expect("an integer");
            let holds = |lowest: i128, highest: i128| values.iter().all(|value| (lowest..=highest).contains(&i128::from(*value)));
            prop_assert!(holds(lowest, highest));
            prop_assert!(INTEGERS.into_iter().filter(|(number, ..)| number.width() < chosen.width()).all(|(_, lowest, highest)| !holds(lowest, highest)));
            prop_assert_eq!(stats.within(0.5), Some((chosen, None)));
        }

        #[test]
        fn f16_is_the_nearest(value in float()) {
            prop_assume!(value.is_finite());
            let nearest = to_f16(value);
            if nearest.is_infinite() {
                prop_assert!(value.abs() >= 65520.0);
            } else {
                let distance = |other: f16| (other.to_f64() - value).abs();
                for neighbour in [nearest.to_bits().wrapping_add(1), nearest.to_bits().wrapping_sub(1)].map(f16::from_bits) {
                    if neighbour.is_finite() {
                        prop_assert!(distance(nearest) < distance(neighbour) || (distance(nearest) == distance(neighbour) && nearest.to_bits() & 1 == 0));
                    }
                }
            }
            prop_assert_eq!(nearest.is_sign_negative(), value.is_sign_negative());
        }
    }

    #[test]
    fn whole_numbers_end_where_they_end() {
        let exact = |values: &[f64]| of(values, 0.0).exact();
        assert_eq!(exact(&[0.0, 127.0]), Some(Number::Int8));
        assert_eq!(exact(&[0.0, 128.0]), Some(Number::UInt8));
        assert_eq!(exact(&[-1.0, 128.0]), Some(Number::Int16));
        assert_eq!(exact(&[-0.0, 127.0]), Some(Number::Float16));
        assert_eq!(exact(&[1.0, f64::NAN]), Some(Number::Float16));
        assert_eq!(exact(&[-65504.0, 65504.0]), Some(Number::Float16));
        assert_eq!(exact(&[-65504.0, 65503.0]), Some(Number::Int32));
        assert_eq!(exact(&[16_777_217.0]), Some(Number::Int32));
        assert_eq!(exact(&[16_777_217.0, f64::NAN]), Some(Number::Float64));
        assert_eq!(exact(&[9_007_199_254_740_991.0]), Some(Number::Float64));
        assert_eq!(exact(&[-2_251_799_813_685_248.5]), Some(Number::Float64));
        assert_eq!(exact(&[]), None);
    }

    #[test]
    fn what_saves_nothing_changes_nothing() {
        let mut bytes = NumberStats::new(Number::UInt8, 0.0);
        bytes.add_integer_slice(&[1u8, 2]);
        assert_eq!(bytes.exact(), Some(Number::UInt8));
        let mut singles = NumberStats::new(Number::Float32, 0.0);
        singles.add_f32_slice(&[16_777_216.0, 16_777_215.0]);
        assert_eq!(singles.exact(), Some(Number::Float32));
        let mut text = NumberStats::new(Number::Int64, 0.0);
        text.add_i64_slice(&[1]);
        text.add_u64(u64::MAX);
        assert_eq!(text.exact(), Some(Number::UInt64));
    }
}
