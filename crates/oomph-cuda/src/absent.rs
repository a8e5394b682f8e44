//! What NVIDIA's libraries say of themselves, for those that are not installed.
//!
//! Where a library is installed, these questions are its own to answer, for they need no device. Where it is not, the stubs
//! lead here, to functions of the same name behind `oomph_absent_`. Versions are those that PyTorch was built with, as the
//! card's description has them. cuDNN's descriptors are in [`crate::dnn::absent`].

use crate::card::Card;
use crate::state::{self, SUCCESS};
use crate::{calls, handle, put};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// `CUPTI_ERROR_MAX_LIMIT_REACHED`: there is no further record.
const NO_MORE: c_int = 12;

/// Major, minor and patch of a version that is written with this many digits for each of the last two.
fn part(version: i64, kind: c_int, digits: u32) -> c_int {
    let unit = 10_i64.pow(digits);
    let number = match kind {
        0 => version / (unit * unit),
        1 => version / unit % unit,
        _ => version % unit,
    };
    c_int::try_from(number).unwrap_or(0)
}

#[unsafe(no_mangle)]
pub extern "C" fn oomph_absent_cudaRuntimeGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(version, Card::get().cuda) };
    SUCCESS
}

/// Name and text of the errors that the virtual GPU gives.
fn error(code: c_int) -> (*const c_char, *const c_char) {
    let (name, text) = match code {
        SUCCESS => (c"cudaSuccess", c"no error"),
        state::INVALID_VALUE => (c"cudaErrorInvalidValue", c"invalid argument"),
        state::OUT_OF_MEMORY => (c"cudaErrorMemoryAllocation", c"out of memory"),
        state::INVALID_DEVICE => (c"cudaErrorInvalidDevice", c"invalid device ordinal"),
        state::NOT_FOUND => (c"cudaErrorSymbolNotFound", c"named symbol not found"),
        state::NOT_READY => (c"cudaErrorNotReady", c"device not ready"),
        state::NOT_SUPPORTED => (c"cudaErrorNotSupported", c"operation not supported"),
        _ => (c"cudaErrorUnknown", c"unknown error"),
    };
    (name.as_ptr(), text.as_ptr())
}

#[unsafe(no_mangle)]
pub extern "C" fn oomph_absent_cudaGetErrorName(code: c_int) -> *const c_char {
    error(code).0
}

#[unsafe(no_mangle)]
pub extern "C" fn oomph_absent_cudaGetErrorString(code: c_int) -> *const c_char {
    error(code).1
}

/// Functions that put a status into words.
macro_rules! says_a_status {
    ($($name:ident)*) => {$(
        /// Never null: it is printed.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(status: c_int) -> *const c_char {
            if status == SUCCESS { c"success".as_ptr() } else { c"an error of the virtual GPU".as_ptr() }
        }
    )*};
}

says_a_status! {
    oomph_absent_cublasGetStatusName oomph_absent_cublasGetStatusString
    oomph_absent_cudnnGetErrorString
    oomph_absent_cusparseGetErrorName oomph_absent_cusparseGetErrorString
    oomph_absent_cusparseLtGetErrorName oomph_absent_cusparseLtGetErrorString
    oomph_absent_ncclGetErrorString
    oomph_absent_nvrtcGetErrorString
}

#[unsafe(no_mangle)]
pub extern "C" fn oomph_absent_cudnnGetLastErrorString(text: *mut c_char, size: usize) {
    if size > 0 {
        // SAFETY: the caller's buffer has `size` bytes.
        unsafe { put(text, 0) };
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn oomph_absent_cudnnGetVersion() -> usize {
    usize::try_from(Card::get().cudnn_version).unwrap_or(0)
}

#[unsafe(no_mangle)]
pub extern "C" fn oomph_absent_cudnnGetCudartVersion() -> usize {
    usize::try_from(Card::get().cuda).unwrap_or(0)
}

#[unsafe(no_mangle)]
pub extern "C" fn oomph_absent_cudnnGetProperty(kind: c_int, value: *mut c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(value, part(Card::get().cudnn_version, kind, 2)) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn oomph_absent_ncclGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(version, c_int::try_from(Card::get().nccl_version).unwrap_or(0)) };
    SUCCESS
}

/// Functions that say a version after their handle. Those of the mathematical libraries go with CUDA's.
macro_rules! says_a_version {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(_handle: *mut c_void, version: *mut c_int) -> c_int {
            // SAFETY: an out parameter of C.
            unsafe { put(version, c_int::try_from(Card::get().cublas_version).unwrap_or(0)) };
            SUCCESS
        }
    )*};
}

says_a_version! {
    oomph_absent_cublasGetVersion_v2 oomph_absent_cusparseGetVersion oomph_absent_cusparseLtGetVersion
}

/// Functions that say a version, and have no handle.
macro_rules! says_its_version {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(version: *mut c_int) -> c_int {
            // SAFETY: an out parameter of C.
            unsafe { put(version, c_int::try_from(Card::get().cublas_version).unwrap_or(0)) };
            SUCCESS
        }
    )*};
}

says_its_version! { oomph_absent_cufftGetVersion oomph_absent_curandGetVersion oomph_absent_cusolverGetVersion }

/// Functions that say a part of a version.
macro_rules! says_a_property {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(kind: c_int, value: *mut c_int) -> c_int {
            // SAFETY: an out parameter of C.
            unsafe { put(value, part(Card::get().cublas_version, kind, 2)) };
            SUCCESS
        }
    )*};
}

says_a_property! {
    oomph_absent_cublasGetProperty oomph_absent_cufftGetProperty oomph_absent_curandGetProperty
    oomph_absent_cusolverGetProperty oomph_absent_cusparseGetProperty
}

#[unsafe(no_mangle)]
pub extern "C" fn oomph_absent_cuptiGetVersion(version: *mut c_uint) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(version, c_uint::try_from(Card::get().cuda).unwrap_or(0)) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn oomph_absent_cuptiGetResultString(_result: c_int, text: *mut *const c_char) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(text, c"a result of the virtual GPU".as_ptr()) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn oomph_absent_cuptiActivityGetNextRecord() -> c_int {
    NO_MORE
}

#[unsafe(no_mangle)]
pub extern "C" fn oomph_absent_nvshmem_info_get_version(major: *mut c_int, minor: *mut c_int) {
    // SAFETY: out parameters of C.
    unsafe {
        put(major, 3);
        put(minor, 0);
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn oomph_absent_nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> c_int {
    let cuda = Card::get().cuda;
    // SAFETY: out parameters of C.
    unsafe {
        put(major, cuda / 1000);
        put(minor, cuda % 1000 / 10);
    }
    SUCCESS
}

/// The compiler makes nothing: what is loaded of it does nothing either.
#[unsafe(no_mangle)]
pub extern "C" fn oomph_absent_nvrtcCreateProgram(program: *mut *mut c_void) -> c_int {
    calls::note("nvrtcCreateProgram");
    // SAFETY: an out parameter of C.
    unsafe { put(program, handle() as *mut c_void) };
    SUCCESS
}

/// Sizes of what the compiler made: one byte, the end of a text.
macro_rules! says_one_byte {
    ($($size:ident $text:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $size(_program: *mut c_void, size: *mut usize) -> c_int {
            // SAFETY: an out parameter of C.
            unsafe { put(size, 1) };
            SUCCESS
        }

        #[unsafe(no_mangle)]
        pub extern "C" fn $text(_program: *mut c_void, text: *mut u8) -> c_int {
            // SAFETY: the caller's buffer has the one byte that was said.
            unsafe { put(text, 0) };
            SUCCESS
        }
    )*};
}

says_one_byte! {
    oomph_absent_nvrtcGetCUBINSize oomph_absent_nvrtcGetCUBIN;
    oomph_absent_nvrtcGetPTXSize oomph_absent_nvrtcGetPTX;
    oomph_absent_nvrtcGetProgramLogSize oomph_absent_nvrtcGetProgramLog;
}

#[unsafe(no_mangle)]
pub extern "C" fn oomph_absent_nvrtcGetLoweredName(
    _program: *mut c_void,
    expression: *const c_char,
    name: *mut *const c_char,
) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(name, expression) };
    SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn a_version_has_its_parts() {
        assert_eq!([0, 1, 2].map(|kind| part(91_900, kind, 2)), [9, 19, 0]);
        assert_eq!([0, 1, 2].map(|kind| part(120_804, kind, 2)), [12, 8, 4]);
    }

    #[test]
    fn errors_have_cudas_own_words() {
        // SAFETY: constants of this module.
        let text = unsafe { CStr::from_ptr(oomph_absent_cudaGetErrorString(state::OUT_OF_MEMORY)) };
        assert_eq!(text, c"out of memory");
        // SAFETY: as above.
        let name = unsafe { CStr::from_ptr(oomph_absent_cudaGetErrorName(12_345)) };
        assert_eq!(name, c"cudaErrorUnknown");
    }
}
