//! Workspaces of cuSOLVER for eigenvalues, singular values and QR, by rules read off an H200 with cuSOLVER of CUDA 13.0.
//!
//! Of eigenvalues the rule gives what `Xsyevd` says of 91 sizes from 1 to 16,384, in four types, within 0.1 %. The rules for QR and for
//! Jacobi's methods are near for most shapes (docs/measured/libraries.md). Nothing was measured on other
//! architectures or with other versions.

use crate::put;
use std::ffi::c_int;

const SUCCESS: c_int = 0;

/// Elements for eigenvalues and vectors of a symmetric matrix, by dividing it.
pub fn eigenvalues(n: u64) -> u64 {
    let square = n.saturating_mul(n);
    // What reduces the matrix to three diagonals, and what puts its vectors together: the larger counts.
    let reduces = 3 * square + 768 * n + 65_603;
    let joins = 4 * square + 127 * n + 32_963;
    reduces.max(joins)
}

/// Elements for the same by rotations.
pub fn eigenvalues_by_rotations(n: u64) -> u64 {
    n.saturating_mul(n) + 41 * n + 1000
}

/// Elements for singular values by rotations.
pub fn singular_values_by_rotations(rows: u64, columns: u64) -> u64 {
    let (long, short) = (rows.max(columns), rows.min(columns));
    let square = 2 * short.saturating_mul(short) + 73 * short + 2000;
    if long == short {
        return square;
    }
    // A matrix that is not square is first reduced to one that is.
    let reduced = 524_288 + 1024 * short + short.saturating_mul(short) + 85 * short;
    reduced.max(786_432).max(square + long.saturating_mul(short))
}

/// Elements for the QR decomposition of so many columns.
pub fn qr(columns: u64) -> u64 {
    (524_288 + 1024 * columns).max(786_432)
}

/// Elements for writing out its first factor.
pub fn first_factor(rows: u64, columns: u64) -> u64 {
    let panel = columns.min(128).saturating_mul(rows);
    panel + (256 * columns + 16_640.min(113 * columns)).max(33_024)
}

/// Bytes of an element of a `cudaDataType`.
fn element(kind: usize) -> u64 {
    match kind as u32 {
        1 | 4 => 8,
        5 => 16,
        _ => 4,
    }
}

fn say(device: *mut usize, host: *mut usize, elements: u64, kind: usize, times: u64) -> c_int {
    // Every one of these buffers has 128 bytes more.
    let bytes = elements.saturating_mul(element(kind)).saturating_mul(times).saturating_add(128);
    // SAFETY: out parameters of C.
    unsafe {
        put(device, usize::try_from(bytes).unwrap_or(0));
        put(host, 0);
    }
    SUCCESS
}

fn say_elements(place: *mut c_int, elements: u64) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, c_int::try_from(elements).unwrap_or(c_int::MAX)) };
    SUCCESS
}

/// An `int` among arguments that all take one slot: the upper half is not the caller's.
fn int(argument: usize) -> u64 {
    u64::from(argument as u32)
}

#[unsafe(no_mangle)]
pub extern "C" fn cusolverDnXsyevd_bufferSize(
    _handle: usize,
    _parameters: usize,
    _vectors: usize,
    _triangle: usize,
    n: u64,
    kind: usize,
    _a: usize,
    _lead: usize,
    _kind_of_values: usize,
    _values: usize,
    _compute: usize,
    device: *mut usize,
    host: *mut usize,
) -> c_int {
    say(device, host, eigenvalues(n), kind, 1)
}

#[unsafe(no_mangle)]
pub extern "C" fn cusolverDnXsyevBatched_bufferSize(
    _handle: usize,
    _parameters: usize,
    _vectors: usize,
    _triangle: usize,
    n: u64,
    kind: usize,
    _a: usize,
    _lead: usize,
    _kind_of_values: usize,
    _values: usize,
    _compute: usize,
    device: *mut usize,
    host: *mut usize,
    batch: u64,
) -> c_int {
    say(device, host, eigenvalues(n), kind, batch)
}

#[unsafe(no_mangle)]
pub extern "C" fn cusolverDnXgeqrf_bufferSize(
    _handle: usize,
    _parameters: usize,
    _rows: u64,
    columns: u64,
    kind: usize,
    _a: usize,
    _lead: usize,
    _kind_of_factors: usize,
    _factors: usize,
    _compute: usize,
    device: *mut usize,
    host: *mut usize,
) -> c_int {
    say(device, host, qr(columns), kind, 1)
}

/// Functions that say a number of elements: arguments before its place, and the number. Integers and pointers all take one slot.
macro_rules! says_elements {
    ($($name:ident ($($before:ident)*) $elements:expr;)*) => {$(
        /// Says how many elements the workspace has.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($before: usize,)* place: *mut c_int) -> c_int {
            $(let _ = $before;)*
            say_elements(place, $elements)
        }
    )*};
}

says_elements! {
    cusolverDnSsyevj_bufferSize (a b c n e f g) eigenvalues_by_rotations(int(n));
    cusolverDnDsyevj_bufferSize (a b c n e f g) eigenvalues_by_rotations(int(n));
    cusolverDnCheevj_bufferSize (a b c n e f g) eigenvalues_by_rotations(int(n));
    cusolverDnZheevj_bufferSize (a b c n e f g) eigenvalues_by_rotations(int(n));
    cusolverDnSgesvdj_bufferSize (a b c m n f g h i j k l) singular_values_by_rotations(int(m), int(n));
    cusolverDnDgesvdj_bufferSize (a b c m n f g h i j k l) singular_values_by_rotations(int(m), int(n));
    cusolverDnCgesvdj_bufferSize (a b c m n f g h i j k l) singular_values_by_rotations(int(m), int(n));
    cusolverDnZgesvdj_bufferSize (a b c m n f g h i j k l) singular_values_by_rotations(int(m), int(n));
    cusolverDnSgeqrf_bufferSize (a m n d e) qr(int(n));
    cusolverDnDgeqrf_bufferSize (a m n d e) qr(int(n));
    cusolverDnCgeqrf_bufferSize (a m n d e) qr(int(n));
    cusolverDnZgeqrf_bufferSize (a m n d e) qr(int(n));
    cusolverDnSorgqr_bufferSize (a m n d e f g) first_factor(int(m), int(n));
    cusolverDnDorgqr_bufferSize (a m n d e f g) first_factor(int(m), int(n));
    cusolverDnCungqr_bufferSize (a m n d e f g) first_factor(int(m), int(n));
    cusolverDnZungqr_bufferSize (a m n d e f g) first_factor(int(m), int(n));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What cuSOLVER said on an H200: size, elements of the workspace.
    #[test]
    fn workspaces_are_those_that_were_measured() {
        let of_eigenvalues = [
            (1, 66_342),
            (100, 172_411),
            (512, 1_245_251),
            (1000, 4_159_987),
            (4096, 67_662_019),
            (16_384, 1_075_855_555),
        ];
        for (n, elements) in of_eigenvalues {
            assert!(eigenvalues(n).abs_diff(elements) <= 56, "{n}: {}", eigenvalues(n));
        }
        for (n, elements) in [(16, 2325), (100, 15_288), (512, 281_104), (2048, 4_279_360)] {
            let said = eigenvalues_by_rotations(n);
            assert!(said.abs_diff(elements) <= (elements / 90).max(1500), "{n}: {said}");
        }
        for (n, elements) in [(16, 3616), (100, 29_408), (512, 559_648), (2048, 8_539_200)] {
            let said = singular_values_by_rotations(n, n);
            assert!(said.abs_diff(elements) <= (elements / 90).max(3000), "{n}: {said}");
        }
        for (rows, columns, elements) in
            [(1000, 100, 786_592), (1000, 500, 1_328_832), (4096, 2048, 14_749_952)]
        {
            let said = singular_values_by_rotations(rows, columns);
            assert!(said.abs_diff(elements) <= elements / 5, "{rows} by {columns}: {said}");
        }
        assert_eq!([100, 512, 1000, 2048].map(qr), [786_432, 1_048_576, 1_548_288, 2_621_440]);
        assert_eq!(first_factor(1000, 16), 49_024);
        assert_eq!(first_factor(4096, 2048), 1_065_216);
        assert_eq!(first_factor(1000, 1000), 400_640);
    }

    #[test]
    fn bytes_follow_from_the_type() {
        let (mut device, mut host) = (0_usize, 1_usize);
        for (kind, bytes) in [(0, 4_981_132), (1, 9_962_136), (4, 9_962_136), (5, 19_924_144)] {
            cusolverDnXsyevd_bufferSize(
                0,
                0,
                1,
                0,
                512,
                kind,
                0,
                512,
                0,
                0,
                kind,
                &raw mut device,
                &raw mut host,
            );
            assert_eq!((device, host), (bytes, 0));
        }
        cusolverDnXsyevBatched_bufferSize(
            0,
            0,
            1,
            0,
            16,
            0,
            0,
            16,
            0,
            0,
            0,
            &raw mut device,
            &raw mut host,
            8,
        );
        assert!(device.abs_diff(2_514_912) < 2_514_912 / 1000, "{device}");
    }
}
