//! One array: what is in it, and its second pass into a smaller type, dense or sparse.

use super::array::Array;
use super::convert::{Target, TypedBuffer, changed, room, with_native};
use super::csr;
use super::{Dtype, Order, ShrinkOptions, Shrunk, SparseChoice};
use crate::choose::{Number, NumberStats};
use crate::summary::{Choice, ColumnProfile, Peak, Profile, Sizes, Sparse};
use crate::target::csr_bytes;
use crate::{BrokenRows, DataError, Observer, Pass, Policy};
use arrow_buffer::Buffer;

/// Every element, one after the other.
#[derive(Debug, Clone, PartialEq)]
pub struct Dense {
    pub values: TypedBuffer,
    /// The length along each dimension.
    pub shape: Vec<u64>,
    /// Which index changes fastest.
    pub order: Order,
}

/// What the first pass found, enough for the second.
pub struct ProfiledArray {
    /// For people.
    pub profile: Profile,
    scan: Scan,
}

/// What is in an array, and the types for it.
pub(super) struct Scan {
    /// Of the numbers that its elements are, or are made of; nothing but the count of strings.
    stats: NumberStats,
    exact: Dtype,
    within: Dtype,
    worst: Option<f64>,
}

/// The first pass. `within` is the policy that the profile's `within` answers to.
pub fn profile_array(
    array: &Array,
    within: Policy,
    observer: &dyn Observer,
) -> Result<ProfiledArray, DataError> {
    let scan = Scan::of(array, within, observer)?;
    let column = scan.column("array", array);
    let sparse = scan.sparse(array);
    let profile = profile_of(
        array.location(),
        array.format(),
        array.file_bytes(),
        rows(array),
        within,
        vec![column],
        sparse,
        array.notes(),
    );
    Ok(ProfiledArray { profile, scan })
}

/// The second pass. A relative policy must be the one that was profiled with.
pub fn load_array(
    array: &Array,
    profiled: &ProfiledArray,
    options: &ShrinkOptions,
    observer: &dyn Observer,
) -> Result<Shrunk, DataError> {
    profiled.scan.load(array, options, observer)
}

/// Both passes.
pub fn shrink_array(
    array: &Array,
    options: &ShrinkOptions,
    observer: &dyn Observer,
) -> Result<(Shrunk, Profile), DataError> {
    let profiled = profile_array(array, options.policy, observer)?;
    let shrunk = load_array(array, &profiled, options, observer)?;
    Ok((shrunk, profiled.profile))
}

fn rows(array: &Array) -> u64 {
    array.shape().first().copied().unwrap_or(1)
}

impl Scan {
    pub(super) fn of(array: &Array, within: Policy, observer: &dyn Observer) -> Result<Self, DataError> {
        let tolerance = match within {
            Policy::Exact => 0.0,
            Policy::Relative(error) => error,
        };
        let mut stats = NumberStats::new(numbers_of(array.dtype()), tolerance);
        let mut blocks = array.blocks(Pass::Profiling, observer)?;
        let mut zeros = 0;
        while let Some(block) = blocks.next()? {
            match array.dtype() {
                Dtype::Number(number) => add_numbers(&mut stats, *number, &block),
                Dtype::Bool => stats.add_integer_slice(block.numbers::<u8>()),
                Dtype::Datetime(_) | Dtype::Timedelta(_) => add_times(&mut stats, block.numbers()),
                Dtype::Complex64 => {
                    let parts = block.numbers::<f32>();
                    zeros += parts.chunks_exact(2).filter(|parts| **parts == [0.0, 0.0]).count() as u64;
                    stats.add_f32_slice(parts);
                }
                Dtype::Complex128 => {
                    let parts = block.numbers::<f64>();
                    zeros += parts.chunks_exact(2).filter(|parts| **parts == [0.0, 0.0]).count() as u64;
                    stats.add_f64_slice(parts);
                }
                Dtype::Bytes(_) | Dtype::Unicode(_) => {}
            }
        }
        let own = array.dtype().clone();
        let (exact, within, worst) = match &own {
            Dtype::Number(number) => {
                let exact = stats.exact().unwrap_or(*number);
                let (within, worst) = stats.within(tolerance).unwrap_or((exact, None));
                (Dtype::Number(exact), Dtype::Number(within), worst)
            }
            Dtype::Complex128 if stats.exact_f32 && stats.count > 0 => {
                (Dtype::Complex64, Dtype::Complex64, None)
            }
            _ => (own.clone(), own.clone(), None),
        };
        if matches!(own, Dtype::Complex64 | Dtype::Complex128) {
            stats.zeros = zeros;
        }
        Ok(Self { stats, exact, within, worst })
    }

    /// How it looks to people.
    pub(super) fn column(&self, name: &str, array: &Array) -> ColumnProfile {
        let choice = |dtype: &Dtype, worst| Choice {
            type_name: dtype.name(),
            bytes: array.elements() * dtype.width(),
            worst_relative_error: worst,
        };
        let shows_range =
            matches!(array.dtype(), Dtype::Number(_) | Dtype::Datetime(_) | Dtype::Timedelta(_));
        let is_float = matches!(array.dtype(), Dtype::Number(number) if number.is_float());
        ColumnProfile {
            now: choice(array.dtype(), None),
            exact: choice(&self.exact, None),
            within: choice(&self.within, self.worst),
            nulls: self.stats.nulls,
            zeros: self.stats.zeros,
            nans: self.stats.nans,
            infinite: self.stats.infinite,
            integer_valued: is_float && self.stats.count > 0 && self.stats.integer_valued,
            range: if shows_range { self.stats.range() } else { None },
            notes: array.notes().to_vec(),
            ..ColumnProfile::blank(name)
        }
    }

    /// The type for a policy, and by how much values differ in it.
    pub(super) fn chosen(&self, policy: Policy) -> (&Dtype, f64) {
        match policy {
            Policy::Exact => (&self.exact, 0.0),
            Policy::Relative(_) => (&self.within, self.worst.unwrap_or(0.0)),
        }
    }

    /// Bytes of an element in the smallest type that keeps all.
    pub(super) fn exact_width(&self) -> u64 {
        self.exact.width()
    }

    /// Smallest and largest of integers.
    pub(super) fn integer_range(&self) -> Option<(i128, i128)> {
        self.stats.integer_range()
    }

    /// Values that a sparse matrix stores: −0.0 is not what a missing one means.
    fn stored(&self) -> u64 {
        self.stats.count - self.stats.zeros + self.stats.negative_zeros
    }

    /// As a matrix, where it can be one.
    pub(super) fn sparse(&self, array: &Array) -> Option<Sparse> {
        let bytes = self.csr_bytes(array, &self.exact)?;
        let dense = array.elements() * self.exact.width();
        let density =
            if array.elements() == 0 { 0.0 } else { self.stored() as f64 / array.elements() as f64 };
        Some(Sparse { stored: self.stored(), density, bytes, smaller: bytes < dense })
    }

    fn csr_bytes(&self, array: &Array, dtype: &Dtype) -> Option<u64> {
        match (array.shape(), dtype) {
            (&[rows, columns], Dtype::Number(number)) => {
                Some(csr_bytes(rows, columns, self.stored(), number.width()))
            }
            _ => None,
        }
    }

    /// The second pass.
    pub(super) fn load(
        &self,
        array: &Array,
        options: &ShrinkOptions,
        observer: &dyn Observer,
    ) -> Result<Shrunk, DataError> {
        let (dtype, tolerance) = self.chosen(options.policy);
        let sparse = self.csr_bytes(array, dtype);
        let smaller = sparse.is_some_and(|bytes| bytes < array.elements() * dtype.width());
        if let (&Dtype::Number(source), &Dtype::Number(target)) = (array.dtype(), dtype)
            && (options.sparse == SparseChoice::Always
                || (options.sparse == SparseChoice::WhereSmaller && smaller))
        {
            let plan = csr::Plan { source, target, tolerance, stored: self.stored() };
            return csr::of_array(array, &plan, observer).map(Shrunk::Csr);
        }
        if options.sparse == SparseChoice::Always {
            let what =
                format!("{}: {} elements make no sparse matrix; numbers do", array.location(), dtype.name());
            return Err(DataError::Usage(what));
        }
        let values = load_dense(array, dtype, tolerance, observer)?;
        Ok(Shrunk::Dense(Dense { values, shape: array.shape().to_vec(), order: array.order() }))
    }
}

/// The numbers that an element is, or is made of.
fn numbers_of(dtype: &Dtype) -> Number {
    match dtype {
        Dtype::Number(number) => *number,
        Dtype::Complex64 => Number::Float32,
        Dtype::Complex128 => Number::Float64,
        Dtype::Datetime(_) | Dtype::Timedelta(_) => Number::Int64,
        Dtype::Bool | Dtype::Bytes(_) | Dtype::Unicode(_) => Number::UInt8,
    }
}

fn add_numbers(stats: &mut NumberStats, number: Number, block: &super::array::Block<'_>) {
    match number {
        Number::Int8 => stats.add_integer_slice(block.numbers::<i8>()),
        Number::UInt8 => stats.add_integer_slice(block.numbers::<u8>()),
        Number::Int16 => stats.add_integer_slice(block.numbers::<i16>()),
        Number::UInt16 => stats.add_integer_slice(block.numbers::<u16>()),
        Number::Int32 => stats.add_integer_slice(block.numbers::<i32>()),
        Number::UInt32 => stats.add_integer_slice(block.numbers::<u32>()),
        Number::Int64 => stats.add_integer_slice(block.numbers::<i64>()),
        Number::UInt64 => stats.add_integer_slice(block.numbers::<u64>()),
        Number::Float16 => stats.add_f16_slice(block.numbers()),
        Number::Float32 => stats.add_f32_slice(block.numbers()),
        Number::Float64 => stats.add_f64_slice(block.numbers()),
    }
}

/// NumPy's "not a time" is the least integer.
fn add_times(stats: &mut NumberStats, times: &[i64]) {
    for run in times.split(|time| *time == i64::MIN) {
        stats.add_i64_slice(run);
    }
    stats.add_nulls(times.iter().filter(|time| **time == i64::MIN).count() as u64);
}

pub(super) fn load_dense(
    array: &Array,
    dtype: &Dtype,
    tolerance: f64,
    observer: &dyn Observer,
) -> Result<TypedBuffer, DataError> {
    match (array.dtype(), dtype) {
        (&Dtype::Number(source), &Dtype::Number(target)) => {
            with_native!(target, Value => convert::<Value>(array, source, array.elements(), tolerance, observer).map(TypedBuffer::of))
        }
        (Dtype::Complex128, Dtype::Complex64) => {
            let parts = convert::<f32>(array, Number::Float64, array.elements() * 2, 0.0, observer)?;
            Ok(TypedBuffer { dtype: Dtype::Complex64, bytes: Buffer::from_vec(parts) })
        }
        (own, _) => {
            let bytes = match own.part_width() {
                1 => Buffer::from_vec(copy::<u8>(array, observer)?),
                4 => Buffer::from_vec(copy::<u32>(array, observer)?),
                _ => Buffer::from_vec(copy::<u64>(array, observer)?),
            };
            Ok(TypedBuffer { dtype: own.clone(), bytes })
        }
    }
}

fn convert<T: Target>(
    array: &Array,
    source: Number,
    count: u64,
    tolerance: f64,
    observer: &dyn Observer,
) -> Result<Vec<T>, DataError> {
    let mut values = room(array.location(), count)?;
    let mut blocks = array.blocks(Pass::Loading, observer)?;
    while let Some(block) = blocks.next()? {
        if !T::append_block(source, &block, &mut values, tolerance) {
            return Err(changed(array.location()));
        }
    }
    Ok(values)
}

/// As it is, in words of the width that the machine aligns its parts to.
fn copy<T: arrow_buffer::ArrowNativeType>(
    array: &Array,
    observer: &dyn Observer,
) -> Result<Vec<T>, DataError> {
    let mut words = room(array.location(), array.bytes() / size_of::<T>() as u64)?;
    let mut blocks = array.blocks(Pass::Loading, observer)?;
    while let Some(block) = blocks.next()? {
        words.extend_from_slice(block.numbers::<T>());
    }
    Ok(words)
}

/// Puts columns together.
#[allow(clippy::too_many_arguments)]
pub(super) fn profile_of(
    location: &str,
    format: &str,
    file_bytes: Option<u64>,
    rows: u64,
    within: Policy,
    columns: Vec<ColumnProfile>,
    sparse: Option<Sparse>,
    notes: &[String],
) -> Profile {
    let bytes = Sizes::of(&columns);
    let smallest = sparse.filter(|sparse| sparse.smaller).map_or(bytes.exact, |sparse| sparse.bytes);
    let mut peaks = vec![Peak { loader: "oomph".to_owned(), bytes: smallest + WORKING, error: 0.05 }];
    if file_bytes.is_some() {
        peaks.insert(0, Peak { loader: "numpy".to_owned(), bytes: bytes.now, error: 0.05 });
    }
    Profile {
        location: location.to_owned(),
        format: format.to_owned(),
        file_bytes,
        rows,
        within_policy: within.to_string(),
        columns,
        bytes,
        sparse,
        peaks,
        broken_rows: BrokenRows::default(),
        notes: notes.to_vec(),
    }
}

/// What a pass holds besides its result: a request, a block, and the block in its new type.
const WORKING: u64 = 6 << 20;
