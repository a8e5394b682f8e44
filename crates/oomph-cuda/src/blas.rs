//! cuBLAS and cuBLASLt: handles, descriptors, and one algorithm that always fits.
//!
//! Workspaces need no answer from here: PyTorch allocates them by its own rule, before it asks.

use crate::card::Card;
use crate::{handle, memory, put, sys};
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

/// An algorithm that needs nothing.
const FITS: Heuristic = Heuristic { algorithm: [0; 8], workspace: 0, state: 0, waves: 1.0, reserved: [0; 4] };

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
            put(results, FITS);
        }
        put(returned, found);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulAlgoCheck(
    _handle: Handle,
    _operation: Handle,
    _a: Handle,
    _b: Handle,
    _c: Handle,
    _d: Handle,
    _algorithm: *const [u64; 8],
    result: *mut Heuristic,
) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(result, FITS) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulAlgoInit(
    _handle: Handle,
    _compute: c_int,
    _scale: c_int,
    _a: c_int,
    _b: c_int,
    _c: c_int,
    _d: c_int,
    _id: c_int,
    algorithm: *mut [u64; 8],
) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(algorithm, [0; 8]) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulAlgoConfigGetAttribute(
    _algorithm: *const [u64; 8],
    _attribute: c_int,
    buffer: *mut u8,
    size: usize,
    written: *mut usize,
) -> c_int {
    if !buffer.is_null() {
        // SAFETY: the caller's buffer has `size` bytes.
        unsafe { buffer.write_bytes(0, size) };
    }
    // SAFETY: an out parameter of C.
    unsafe { put(written, size) };
    SUCCESS
}

/// What the installed library says of itself; it is not loaded otherwise, since a library of its name stands in for it. Without
/// one, what PyTorch was built with.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetVersion() -> usize {
    static VERSION: OnceLock<usize> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let path = CString::new(Card::get().cublas_lt.as_str()).unwrap_or_default();
        if path.is_empty() {
            return usize::try_from(Card::get().cublas_version).unwrap_or(0);
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

/// Functions whose result may lie in host memory, where it is read at once: its type, a value to live with, and as many
/// arguments before it as there are letters. Integers and pointers all take one slot, so none needs its own type.
macro_rules! gives_a_number {
    ($($name:ident $($before:ident)* => $type:ty, $value:expr;)*) => {$(
        /// Returns a number that was not computed.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($before: usize,)* result: *mut $type) -> c_int {
            $(let _ = $before;)*
            if !memory::is_device(result as u64) {
                // SAFETY: an out parameter of C, in host memory.
                unsafe { put(result, $value) };
            }
            SUCCESS
        }
    )*};
}

gives_a_number! {
    cublasSdot_v2 a b c d e f => f32, 0.0;
    cublasDdot_v2 a b c d e f => f64, 0.0;
    cublasCdotu_v2 a b c d e f => [f32; 2], [0.0; 2];
    cublasCdotc_v2 a b c d e f => [f32; 2], [0.0; 2];
    cublasZdotu_v2 a b c d e f => [f64; 2], [0.0; 2];
    cublasZdotc_v2 a b c d e f => [f64; 2], [0.0; 2];
    cublasSnrm2_v2 a b c d => f32, 0.0;
    cublasDnrm2_v2 a b c d => f64, 0.0;
    cublasScnrm2_v2 a b c d => f32, 0.0;
    cublasDznrm2_v2 a b c d => f64, 0.0;
    cublasSasum_v2 a b c d => f32, 0.0;
    cublasDasum_v2 a b c d => f64, 0.0;
    cublasScasum_v2 a b c d => f32, 0.0;
    cublasDzasum_v2 a b c d => f64, 0.0;
    cublasIsamax_v2 a b c d => c_int, 1;
    cublasIdamax_v2 a b c d => c_int, 1;
    cublasIcamax_v2 a b c d => c_int, 1;
    cublasIzamax_v2 a b c d => c_int, 1;
    cublasIsamin_v2 a b c d => c_int, 1;
    cublasIdamin_v2 a b c d => c_int, 1;
    cublasIcamin_v2 a b c d => c_int, 1;
    cublasIzamin_v2 a b c d => c_int, 1;
    // Whether the arguments were right: 0.
    cublasSgetrsBatched a b c d e f g h i => c_int, 0;
    cublasDgetrsBatched a b c d e f g h i => c_int, 0;
    cublasCgetrsBatched a b c d e f g h i => c_int, 0;
    cublasZgetrsBatched a b c d e f g h i => c_int, 0;
    cublasSgeqrfBatched a b c d e f => c_int, 0;
    cublasDgeqrfBatched a b c d e f => c_int, 0;
    cublasCgeqrfBatched a b c d e f => c_int, 0;
    cublasZgeqrfBatched a b c d e f => c_int, 0;
    cublasSgelsBatched a b c d e f g h i => c_int, 0;
    cublasDgelsBatched a b c d e f g h i => c_int, 0;
    cublasCgelsBatched a b c d e f g h i => c_int, 0;
    cublasZgelsBatched a b c d e f g h i => c_int, 0;
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
    cublasDotEx cublasSaxpy_v2 cublasDaxpy_v2 cublasSscal_v2 cublasDscal_v2 cublasScopy_v2 cublasDcopy_v2
    cublasStrsm_v2 cublasDtrsm_v2 cublasCtrsm_v2 cublasZtrsm_v2
    cublasStrsmBatched cublasDtrsmBatched cublasCtrsmBatched cublasZtrsmBatched
    cublasSgetrfBatched cublasDgetrfBatched cublasCgetrfBatched cublasZgetrfBatched
    cublasLtDestroy cublasLtMatmul cublasLtMatmulDescDestroy cublasLtMatmulDescSetAttribute
    cublasLtMatmulPreferenceDestroy cublasLtMatmulPreferenceSetAttribute
    cublasLtMatrixLayoutDestroy cublasLtMatrixLayoutSetAttribute
    cublasLtMatrixTransform cublasLtMatrixTransformDescDestroy cublasLtMatrixTransformDescSetAttribute
}
