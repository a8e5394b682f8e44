//! cuBLAS and cuBLASLt: handles, descriptors, and one algorithm that always fits.
//!
//! Workspaces need no answer from here: PyTorch allocates them by its own rule, before it asks.

use crate::card::Card;
use crate::{handle, put, sys};
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::OnceLock;

const SUCCESS: c_int = 0;

type Handle = *mut c_void;

fn new_handle(place: *mut Handle) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, handle() as Handle) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasCreate_v2(place: *mut Handle) -> c_int {
    new_handle(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasGetMathMode(_handle: Handle, mode: *mut c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(mode, 0) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasGetPointerMode_v2(_handle: Handle, mode: *mut c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(mode, 0) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasGetStream_v2(_handle: Handle, stream: *mut Handle) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(stream, std::ptr::null_mut()) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtCreate(place: *mut Handle) -> c_int {
    new_handle(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulDescCreate(place: *mut Handle, _compute: c_int, _scale: c_int) -> c_int {
    new_handle(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulPreferenceCreate(place: *mut Handle) -> c_int {
    new_handle(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatrixLayoutCreate(
    place: *mut Handle,
    _kind: c_int,
    _rows: u64,
    _columns: u64,
    _lead: i64,
) -> c_int {
    new_handle(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatrixTransformDescCreate(place: *mut Handle, _scale: c_int) -> c_int {
    new_handle(place)
}

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
pub struct Heuristic {
    algorithm: [u64; 8],
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    _handle: Handle,
    _operation: Handle,
    _a: Handle,
    _b: Handle,
    _c: Handle,
    _d: Handle,
    _preference: Handle,
    wanted: c_int,
    results: *mut Heuristic,
    returned: *mut c_int,
) -> c_int {
    let found = c_int::from(wanted > 0);
    // SAFETY: the caller's array has `wanted` elements.
    unsafe {
        if found == 1 {
            put(
                results,
                Heuristic { algorithm: [0; 8], workspace: 0, state: 0, waves: 1.0, reserved: [0; 4] },
            );
        }
        put(returned, found);
    }
    SUCCESS
}

/// What the installed library says of itself; it is not loaded otherwise, since a library of its name stands in for it.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetVersion() -> usize {
    static VERSION: OnceLock<usize> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let path = CString::new(Card::get().cublas_lt.as_str()).unwrap_or_default();
        if path.is_empty() {
            return 0;
        }
        // SAFETY: C strings; the function of that name has this type and needs no device.
        unsafe {
            let library = sys::dlopen(path.as_ptr(), sys::RTLD_LAZY);
            let address =
                if library.is_null() { library } else { sys::dlsym(library, c"cublasLtGetVersion".as_ptr()) };
            if address.is_null() {
                return 0;
            }
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> usize>(address)()
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetStatusString(_status: c_int) -> *const c_char {
    c"status of the virtual GPU".as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetStatusName(status: c_int) -> *const c_char {
    cublasLtGetStatusString(status)
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

// All others of the two libraries are stubs, which do the same but are reported.
computes_nothing! {
    cublasDestroy_v2 cublasSetStream_v2 cublasSetMathMode cublasSetPointerMode_v2 cublasSetWorkspace_v2
    cublasSetSmCountTarget cublasSetAtomicsMode
    cublasSgemm_v2 cublasDgemm_v2 cublasCgemm_v2 cublasZgemm_v2 cublasHgemm
    cublasSgemmEx cublasGemmEx cublasGemmEx_64 cublasGemmBatchedEx cublasGemmStridedBatchedEx
    cublasSgemmStridedBatched cublasDgemmStridedBatched cublasCgemmStridedBatched cublasZgemmStridedBatched
    cublasHgemmStridedBatched cublasSgemmBatched cublasDgemmBatched cublasCgemmBatched cublasZgemmBatched
    cublasSgemv_v2 cublasDgemv_v2 cublasCgemv_v2 cublasZgemv_v2 cublasSger_v2 cublasDger_v2
    cublasSdot_v2 cublasDdot_v2 cublasDotEx cublasCdotu_v2 cublasCdotc_v2 cublasZdotu_v2 cublasZdotc_v2
    cublasSaxpy_v2 cublasDaxpy_v2 cublasSscal_v2 cublasDscal_v2 cublasScopy_v2 cublasDcopy_v2
    cublasStrsm_v2 cublasDtrsm_v2 cublasCtrsm_v2 cublasZtrsm_v2
    cublasStrsmBatched cublasDtrsmBatched cublasCtrsmBatched cublasZtrsmBatched
    cublasSgetrfBatched cublasDgetrfBatched cublasCgetrfBatched cublasZgetrfBatched
    cublasSgetrsBatched cublasDgetrsBatched cublasCgetrsBatched cublasZgetrsBatched
    cublasSgeqrfBatched cublasDgeqrfBatched cublasCgeqrfBatched cublasZgeqrfBatched
    cublasSgelsBatched cublasDgelsBatched cublasCgelsBatched cublasZgelsBatched
    cublasSnrm2_v2 cublasDnrm2_v2
    cublasLtDestroy cublasLtMatmul cublasLtMatmulDescDestroy cublasLtMatmulDescSetAttribute
    cublasLtMatmulPreferenceDestroy cublasLtMatmulPreferenceSetAttribute
    cublasLtMatrixLayoutDestroy cublasLtMatrixLayoutSetAttribute
    cublasLtMatrixTransform cublasLtMatrixTransformDescDestroy cublasLtMatrixTransformDescSetAttribute
}
