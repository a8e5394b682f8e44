//! cuFFT: plans, and the workspaces that they need, by rules read off an H200 with cuFFT of CUDA 13.0.
//!
//! A transform of a length that one kernel can do needs nothing; a longer one needs a copy, one of a length with a large prime factor four (it is done by
//! convolution). Real lines of odd length are packed in pairs. The rules give what cuFFT says of 2,287 of 2,327 plans of one to three dimensions within 7 % or
//! 4 KiB (docs/measured/libraries.md); the others are single lengths for which cuFFT has, or lacks, a kernel of its own. Other architectures and versions have
//! other kernels, and nothing of them was measured.

use crate::put;
use std::ffi::{c_int, c_longlong, c_void};

const SUCCESS: c_int = 0;

/// What is transformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Complex numbers to complex ones.
    Complex,
    /// Real numbers to half of their spectrum, or back.
    Real,
}

/// The largest prime factor.
fn largest_prime(mut number: u64) -> u64 {
    let (mut prime, mut largest) = (2, 1);
    while prime * prime <= number {
        while number.is_multiple_of(prime) {
            number /= prime;
            largest = prime;
        }
        prime += 1;
    }
    largest.max(number)
}

/// From so many transforms on, lines of 32,768 complex numbers of eight bytes have a kernel of their own.
const MANY: u64 = 128;

/// How many copies of a line of complex numbers a transform of it needs; `unit` is the bytes of one.
fn copies(length: u64, batch: u64, unit: u64) -> u64 {
    let by_convolution = if unit == 8 { 4096 } else { 2048 };
    if length > by_convolution && largest_prime(length) > 127 {
        return 4;
    }
    let in_one_kernel = match (unit, length.is_power_of_two()) {
        (4, _) => 8192,
        (8, true) if batch >= MANY => 32_768,
        (_, true) => 16_384,
        (8, false) => 24_576,
        (_, false) => 12_288,
    };
    u64::from(length > in_one_kernel)
}

/// The bytes that a plan needs: lengths of its dimensions, how many transforms there are, bytes of a complex number.
pub fn workspace(kind: Kind, lengths: &[u64], batch: u64, unit: u64) -> u64 {
    let Some((&last, others)) = lengths.split_last() else { return 0 };
    let product = |numbers: &[u64]| numbers.iter().fold(1_u64, |all, one| all.saturating_mul(*one));
    let one = product(lengths).saturating_mul(unit);
    let all = one.saturating_mul(batch);
    // Along other dimensions than the last, numbers of a line lie apart, and only shorter lines are done in place.
    let is_apart =
        others.iter().any(|length| *length > 1024 && (!length.is_power_of_two() || *length > 4096));
    if kind == Kind::Complex {
        return all.saturating_mul(copies(last, batch, unit).max(u64::from(is_apart)));
    }
    let lines = if last.is_multiple_of(2) {
        let in_one_kernel = match unit {
            _ if !last.is_power_of_two() => 1024,
            8 if batch >= MANY => 65_536,
            4 | 8 => 16_384 / (8 / unit),
            _ => 4096,
        };
        // The one shorter length without a kernel among those that were asked about.
        if last > in_one_kernel || last == 500 { all / 2 } else { 0 }
    } else {
        let prime = largest_prime(last);
        let has_kernel = (prime <= 127 && last < 130) || (prime <= 13 && last < 4095);
        let packed = one.saturating_mul(batch.div_ceil(2));
        if has_kernel { 0 } else { packed.saturating_mul(1 + copies(last, batch, unit).max(1)) }
    };
    let half = product(others).saturating_mul(last / 2 + 1).saturating_mul(batch).saturating_mul(unit);
    lines.max(if is_apart { half } else { 0 })
}

/// What a `cudaDataType` is: whether it is complex, and the bytes of a complex number of its precision.
fn data_type(number: c_int) -> Option<(bool, u64)> {
    Some(match number {
        0 => (false, 8),
        1 => (false, 16),
        2 | 14 => (false, 4),
        4 => (true, 8),
        5 => (true, 16),
        6 | 15 => (true, 4),
        _ => return None,
    })
}

/// What `cufftType` says: real or complex numbers of four bytes a part, or of eight.
fn fft_type(number: c_int) -> Option<(Kind, u64)> {
    Some(match number {
        0x29 => (Kind::Complex, 8),
        0x2a | 0x2c => (Kind::Real, 8),
        0x69 => (Kind::Complex, 16),
        0x6a | 0x6c => (Kind::Real, 16),
        _ => return None,
    })
}

/// # Safety
/// `lengths` has `rank` numbers, or is null.
unsafe fn read<T: Copy + TryInto<u64>>(lengths: *const T, rank: c_int) -> Vec<u64> {
    let rank = usize::try_from(rank).unwrap_or(0).min(8);
    if lengths.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller vouches for so many numbers.
    (0..rank).map(|index| unsafe { lengths.add(index).read_unaligned() }.try_into().unwrap_or(0)).collect()
}

fn answer(size: *mut usize, kind: Option<(Kind, u64)>, lengths: &[u64], batch: c_longlong) -> c_int {
    let batch = u64::try_from(batch).unwrap_or(0);
    let bytes = kind.map_or(0, |(kind, unit)| workspace(kind, lengths, batch, unit));
    // SAFETY: an out parameter of C.
    unsafe { put(size, usize::try_from(bytes).unwrap_or(0)) };
    SUCCESS
}

/// Makes a plan of any types.
///
/// # Safety
/// `lengths` has `rank` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cufftXtMakePlanMany(
    _plan: c_int,
    rank: c_int,
    lengths: *const c_longlong,
    _in_embed: *const c_longlong,
    _in_stride: c_longlong,
    _in_distance: c_longlong,
    in_type: c_int,
    _out_embed: *const c_longlong,
    _out_stride: c_longlong,
    _out_distance: c_longlong,
    out_type: c_int,
    batch: c_longlong,
    size: *mut usize,
    _execution: c_int,
) -> c_int {
    let kind = data_type(in_type)
        .zip(data_type(out_type))
        .map(|((from, unit), (to, _))| (if from && to { Kind::Complex } else { Kind::Real }, unit));
    // SAFETY: the caller's array.
    answer(size, kind, &unsafe { read(lengths, rank) }, batch)
}

/// Says what such a plan would need.
///
/// # Safety
/// As for [`cufftXtMakePlanMany`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cufftXtGetSizeMany(
    plan: c_int,
    rank: c_int,
    lengths: *const c_longlong,
    in_embed: *const c_longlong,
    in_stride: c_longlong,
    in_distance: c_longlong,
    in_type: c_int,
    out_embed: *const c_longlong,
    out_stride: c_longlong,
    out_distance: c_longlong,
    out_type: c_int,
    batch: c_longlong,
    size: *mut usize,
    execution: c_int,
) -> c_int {
    // SAFETY: passed on as it came.
    unsafe {
        cufftXtMakePlanMany(
            plan,
            rank,
            lengths,
            in_embed,
            in_stride,
            in_distance,
            in_type,
            out_embed,
            out_stride,
            out_distance,
            out_type,
            batch,
            size,
            execution,
        )
    }
}

/// Functions that make plans of `cufftType`, or say what they would need: the type of the lengths.
macro_rules! plans_many {
    ($($name:ident $number:ty;)*) => {$(
        /// # Safety
        /// `lengths` has `rank` numbers.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            _plan: c_int,
            rank: c_int,
            lengths: *const $number,
            _in_embed: *const c_void,
            _in_stride: $number,
            _in_distance: $number,
            _out_embed: *const c_void,
            _out_stride: $number,
            _out_distance: $number,
            kind: c_int,
            batch: $number,
            size: *mut usize,
        ) -> c_int {
            // SAFETY: the caller's array.
            answer(size, fft_type(kind), &unsafe { read(lengths, rank) }, c_longlong::from(batch))
        }
    )*};
}

plans_many! {
    cufftMakePlanMany c_int;
    cufftMakePlanMany64 c_longlong;
    cufftGetSizeMany c_int;
    cufftGetSizeMany64 c_longlong;
}

#[unsafe(no_mangle)]
pub extern "C" fn cufftCreate(place: *mut c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, 1) };
    SUCCESS
}

does_nothing! { cufftDestroy cufftSetAutoAllocation cufftSetStream cufftSetWorkArea cufftXtExec }

#[cfg(test)]
mod tests {
    use super::Kind::{Complex, Real};
    use super::*;

    /// What cuFFT of CUDA 13.0 said on an H200.
    #[test]
    fn workspaces_are_those_that_were_measured() {
        let measured: &[(Kind, &[u64], u64, u64, u64)] = &[
            (Complex, &[1021], 16, 8, 0),
            (Complex, &[16_384], 1, 8, 0),
            (Complex, &[32_768], 16, 8, 4_194_304),
            (Complex, &[65_536], 1, 16, 1_048_576),
            (Complex, &[16_384], 1, 4, 65_536),
            (Complex, &[1024, 1024], 8, 8, 0),
            (Complex, &[2000, 2000], 1, 8, 32_000_000),
            (Complex, &[8192, 31], 4, 8, 8_126_464),
            (Complex, &[31, 8192], 4, 8, 0),
            (Complex, &[256, 256, 256], 2, 8, 0),
            (Real, &[16_384], 16, 8, 0),
            (Real, &[32_768], 16, 8, 2_097_152),
            (Real, &[16_384], 16, 4, 524_288),
            (Real, &[65_536], 127, 8, 33_292_288),
            (Real, &[65_536], 128, 8, 0),
            (Real, &[131_072], 128, 8, 67_108_864),
            (Complex, &[32_768], 128, 8, 0),
            (Complex, &[65_536], 128, 8, 67_108_864),
            (Real, &[48_000], 1, 8, 192_000),
            (Real, &[1000], 64, 8, 0),
            (Real, &[1080, 1920], 4, 8, 33_212_160),
            (Real, &[500, 500], 8, 8, 8_000_000),
        ];
        for &(kind, lengths, batch, unit, bytes) in measured {
            assert_eq!(workspace(kind, lengths, batch, unit), bytes, "{kind:?} {lengths:?} × {batch}");
        }
    }

    /// Where cuFFT pads, or adds tables, the rule is near.
    #[test]
    fn long_primes_and_odd_lines_are_near() {
        let measured: &[(Kind, &[u64], u64, u64)] = &[
            (Complex, &[1_000_003], 1, 32_401_408),
            (Complex, &[10_007], 16, 5_185_536),
            (Real, &[1_000_003], 16, 323_201_216),
            (Real, &[1021], 1, 16_360),
            (Real, &[531_441], 1, 8_503_176),
            (Real, &[509, 509], 8, 16_581_920),
        ];
        for &(kind, lengths, batch, bytes) in measured {
            let said = workspace(kind, lengths, batch, 8) as f64;
            assert!((said / bytes as f64 - 1.0).abs() < 0.07, "{kind:?} {lengths:?} × {batch}: {said}");
        }
    }

    #[test]
    fn types_are_told_apart() {
        assert_eq!((data_type(6), data_type(0), data_type(99)), (Some((true, 4)), Some((false, 8)), None));
        assert_eq!((fft_type(0x29), fft_type(0x6a)), (Some((Complex, 8)), Some((Real, 16))));
        let mut size = 1_usize;
        let lengths: [c_longlong; 1] = [65_536];
        // SAFETY: an array of one number, and a place.
        unsafe {
            cufftXtMakePlanMany(
                1,
                1,
                lengths.as_ptr(),
                std::ptr::null(),
                1,
                65_536,
                4,
                std::ptr::null(),
                1,
                65_536,
                4,
                8,
                &raw mut size,
                4,
            );
        }
        assert_eq!(size, 8 * 8 * 65_536);
    }
}
