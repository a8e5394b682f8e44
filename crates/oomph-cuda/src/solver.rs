//! cuSOLVER, cuSPARSE, cuSPARSELt: handles, and buffer sizes, which the libraries answer only with a device.
//!
//! Sizes that matter for eigenvalues, singular values and QR follow rules ([`crate::dense`]). All others are answered with 0 and noted: a result then names the
//! function whose workspace is missing from it.

use crate::{calls, handle, lock, put};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Mutex;

const SUCCESS: c_int = 0;

/// Functions that make something: the handle's place is the first argument.
macro_rules! makes_a_handle {
    ($($name:ident)*) => {$(
        /// Gives a handle.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(place: *mut *mut c_void) -> c_int {
            // SAFETY: an out parameter of C.
            unsafe { put(place, handle() as *mut c_void) };
            SUCCESS
        }
    )*};
}

makes_a_handle! {
    cusolverDnCreate cusolverDnCreateParams cusolverDnCreateGesvdjInfo cusolverDnCreateSyevjInfo cusolverSpCreate
    cusparseCreate cusparseCreateMatDescr cusparseCreateBsrsv2Info cusparseCreateBsrsm2Info
    cusparseCreateCoo cusparseCreateCsr cusparseCreateCsc cusparseCreateBsr cusparseCreateConstCsr
    cusparseCreateDnMat cusparseCreateDnVec cusparseCreateConstDnMat cusparseCreateConstDnVec cusparseCreateSpVec
    cusparseSpGEMM_createDescr cusparseSpSV_createDescr cusparseSpSM_createDescr
}

/// Functions that say a size: the place's type, and as many arguments before it as there are underscores. Integers and
/// pointers all take one slot, so none of them needs its own type.
macro_rules! says_a_size {
    ($($name:ident $($before:ident)* => $size:ty $(, $also:ty)?;)*) => {$(
        /// Says 0, and that it does not know.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($before: usize,)* size: *mut $size $(, also: *mut $also)?) -> c_int {
            calls::note(stringify!($name));
            $(let _ = $before;)*
            // SAFETY: an out parameter of C.
            unsafe {
                put(size, 0);
                $(put::<$also>(also, 0);)?
            }
            SUCCESS
        }
    )*};
}

says_a_size! {
    cusolverDnSgetrf_bufferSize a b c d e => c_int;
    cusolverDnDgetrf_bufferSize a b c d e => c_int;
    cusolverDnCgetrf_bufferSize a b c d e => c_int;
    cusolverDnZgetrf_bufferSize a b c d e => c_int;
    cusolverDnSpotrf_bufferSize a b c d e => c_int;
    cusolverDnDpotrf_bufferSize a b c d e => c_int;
    cusolverDnCpotrf_bufferSize a b c d e => c_int;
    cusolverDnZpotrf_bufferSize a b c d e => c_int;
    cusolverDnSsytrf_bufferSize a b c d => c_int;
    cusolverDnDsytrf_bufferSize a b c d => c_int;
    cusolverDnCsytrf_bufferSize a b c d => c_int;
    cusolverDnZsytrf_bufferSize a b c d => c_int;
    cusolverDnSgesvd_bufferSize a b c => c_int;
    cusolverDnDgesvd_bufferSize a b c => c_int;
    cusolverDnCgesvd_bufferSize a b c => c_int;
    cusolverDnZgesvd_bufferSize a b c => c_int;
    cusolverDnSgesvdjBatched_bufferSize a b c d e f g h i j k => c_int;
    cusolverDnDgesvdjBatched_bufferSize a b c d e f g h i j k => c_int;
    cusolverDnCgesvdjBatched_bufferSize a b c d e f g h i j k => c_int;
    cusolverDnZgesvdjBatched_bufferSize a b c d e f g h i j k => c_int;
    cusolverDnSgesvdaStridedBatched_bufferSize a b c d e f g h i j k l m n o p => c_int;
    cusolverDnDgesvdaStridedBatched_bufferSize a b c d e f g h i j k l m n o p => c_int;
    cusolverDnCgesvdaStridedBatched_bufferSize a b c d e f g h i j k l m n o p => c_int;
    cusolverDnZgesvdaStridedBatched_bufferSize a b c d e f g h i j k l m n o p => c_int;
    cusolverDnSsyevd_bufferSize a b c d e f g => c_int;
    cusolverDnDsyevd_bufferSize a b c d e f g => c_int;
    cusolverDnCheevd_bufferSize a b c d e f g => c_int;
    cusolverDnZheevd_bufferSize a b c d e f g => c_int;
    cusolverDnSsyevjBatched_bufferSize a b c d e f g => c_int;
    cusolverDnDsyevjBatched_bufferSize a b c d e f g => c_int;
    cusolverDnCheevjBatched_bufferSize a b c d e f g => c_int;
    cusolverDnZheevjBatched_bufferSize a b c d e f g => c_int;
    cusolverDnSormqr_bufferSize a b c d e f g h i j k => c_int;
    cusolverDnDormqr_bufferSize a b c d e f g h i j k => c_int;
    cusolverDnCunmqr_bufferSize a b c d e f g h i j k => c_int;
    cusolverDnZunmqr_bufferSize a b c d e f g h i j k => c_int;
    cusolverDnXgetrf_bufferSize a b c d e f g h => usize, usize;
    cusolverDnXpotrf_bufferSize a b c d e f g h => usize, usize;
    cusolverDnXsytrs_bufferSize a b c d e f g h i j k => usize, usize;
    cusolverDnXgeev_bufferSize a b c d e f g h i j k l m n o p q => usize, usize;
    cusparseSpMM_bufferSize a b c d e f g h i j => usize;
    cusparseSDDMM_bufferSize a b c d e f g h i j => usize;
    cusparseSpMV_bufferSize a b c d e f g h i => usize;
    cusparseSpSV_bufferSize a b c d e f g h i => usize;
    cusparseSpSM_bufferSize a b c d e f g h i j => usize;
    cusparseSpGEMM_workEstimation a b c d e f g h i j k => usize;
    cusparseSpGEMM_compute a b c d e f g h i j k => usize;
    cusparseXcoosort_bufferSizeExt a b c d e f => usize;
    cusparseXcsrsort_bufferSizeExt a b c d e f => usize;
    cusparseScsrgeam2_bufferSizeExt a b c d e f g h i j k l m n o p q r s => usize;
    cusparseDcsrgeam2_bufferSizeExt a b c d e f g h i j k l m n o p q r s => usize;
    cusparseCcsrgeam2_bufferSizeExt a b c d e f g h i j k l m n o p q r s => usize;
    cusparseZcsrgeam2_bufferSizeExt a b c d e f g h i j k l m n o p q r s => usize;
    cusparseSbsrsv2_bufferSize a b c d e f g h i j k => c_int;
    cusparseDbsrsv2_bufferSize a b c d e f g h i j k => c_int;
    cusparseCbsrsv2_bufferSize a b c d e f g h i j k => c_int;
    cusparseZbsrsv2_bufferSize a b c d e f g h i j k => c_int;
    cusparseSbsrsm2_bufferSize a b c d e f g h i j k l m => c_int;
    cusparseDbsrsm2_bufferSize a b c d e f g h i j k l m => c_int;
    cusparseCbsrsm2_bufferSize a b c d e f g h i j k l m => c_int;
    cusparseZbsrsm2_bufferSize a b c d e f g h i j k l m => c_int;
    cusparseLtMatmulGetWorkspace a b => usize;
}

#[unsafe(no_mangle)]
pub extern "C" fn cusparseSpMatGetSize(
    _matrix: *mut c_void,
    rows: *mut i64,
    columns: *mut i64,
    nonzero: *mut i64,
) -> c_int {
    calls::note("cusparseSpMatGetSize");
    // SAFETY: out parameters of C.
    unsafe {
        put(rows, 0);
        put(columns, 0);
        put(nonzero, 0);
    }
    SUCCESS
}

/// No pivot is zero.
#[unsafe(no_mangle)]
pub extern "C" fn cusparseXbsrsv2_zeroPivot(
    _handle: *mut c_void,
    _info: *mut c_void,
    position: *mut c_int,
) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(position, -1) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cusparseXbsrsm2_zeroPivot(
    handle: *mut c_void,
    info: *mut c_void,
    position: *mut c_int,
) -> c_int {
    cusparseXbsrsv2_zeroPivot(handle, info, position)
}

/// A sum of two sparse matrices has at most as many elements as both.
#[unsafe(no_mangle)]
pub extern "C" fn cusparseXcsrgeam2Nnz(
    _handle: *mut c_void,
    _rows: c_int,
    _columns: c_int,
    _a: *mut c_void,
    elements_a: c_int,
    _rows_a: *const c_int,
    _columns_a: *const c_int,
    _b: *mut c_void,
    elements_b: c_int,
    _rows_b: *const c_int,
    _columns_b: *const c_int,
    _c: *mut c_void,
    _rows_c: *mut c_int,
    total: *mut c_int,
) -> c_int {
    calls::note("cusparseXcsrgeam2Nnz");
    // SAFETY: an out parameter of C.
    unsafe { put(total, elements_a.saturating_add(elements_b)) };
    SUCCESS
}

/// Structured matrices of cuSPARSELt, by descriptor: bytes of the dense matrix, and of one element.
static STRUCTURED: Mutex<BTreeMap<usize, (u64, u64)>> = Mutex::new(BTreeMap::new());

#[unsafe(no_mangle)]
pub extern "C" fn cusparseLtStructuredDescriptorInit(
    _handle: *const c_void,
    descriptor: *mut c_void,
    rows: i64,
    columns: i64,
    _lead: i64,
    _alignment: c_uint,
    kind: c_int,
) -> c_int {
    // cudaDataType: 32-bit floats are 0, halves 2, bfloat16 14; what else is structured has a byte (int8, float8).
    let element = match kind {
        0 => 4,
        2 | 14 => 2,
        _ => 1,
    };
    let elements = u64::try_from(rows.saturating_mul(columns)).unwrap_or(0);
    lock(&STRUCTURED).insert(descriptor as usize, (elements * element, element));
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cusparseLtMatDescriptorDestroy(descriptor: *const c_void) -> c_int {
    lock(&STRUCTURED).remove(&(descriptor as usize));
    SUCCESS
}

/// Half of the elements, and two bits for each that say where it was.
#[unsafe(no_mangle)]
pub extern "C" fn cusparseLtSpMMACompressedSize2(
    _handle: *const c_void,
    descriptor: *const c_void,
    size: *mut usize,
    buffer: *mut usize,
) -> c_int {
    let (bytes, element) = lock(&STRUCTURED).get(&(descriptor as usize)).copied().unwrap_or((0, 1));
    let sixteenths = if element == 1 { 10 } else { 9 };
    calls::note("cusparseLtSpMMACompressedSize2");
    // SAFETY: out parameters of C.
    unsafe {
        put(size, (bytes / 16 * sixteenths) as usize);
        put(buffer, 0);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cusparseLtMatmulAlgGetAttribute(
    _handle: *const c_void,
    _selection: *const c_void,
    _attribute: c_int,
    data: *mut u8,
    size: usize,
) -> c_int {
    if !data.is_null() {
        // SAFETY: the caller's buffer has `size` bytes.
        unsafe { data.write_bytes(0, size) };
    }
    SUCCESS
}

macro_rules! computes_nothing {
    ($($name:ident)*) => {$(
        /// Succeeds; kernels do nothing here.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            SUCCESS
        }
    )*};
}

computes_nothing! {
    cusolverDnSetStream cusolverDnDestroy cusparseSetStream cusparseDestroy cusparseSetPointerMode
    cusparseLtInit cusparseLtDestroy cusparseLtDenseDescriptorInit cusparseLtMatmulDescriptorInit
    cusparseLtMatmulDescSetAttribute cusparseLtMatmulAlgSelectionInit cusparseLtMatmulAlgSetAttribute
    cusparseLtMatmulPlanInit cusparseLtMatmulPlanDestroy cusparseLtMatmulSearch cusparseLtSpMMACompress2 cusparseLtMatmul
}
