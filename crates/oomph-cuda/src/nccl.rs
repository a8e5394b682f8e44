//! NCCL: communicators of ranks that are not there. Collectives move nothing.
//!
//! What NCCL itself takes of the device (buffers for each channel) is not modelled; a result says so.

use crate::{calls, handle, lock, put, runtime, state};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Mutex;

const SUCCESS: c_int = 0;
const CUDA_ERROR: c_int = 1;

type Communicator = *mut c_void;

/// `ncclUniqueId`: 128 bytes.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetUniqueId(id: *mut [u8; 128]) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(id, [0x6f; 128]) };
    SUCCESS
}

/// How many ranks a communicator has, and which it is.
static RANKS: Mutex<BTreeMap<usize, (c_int, c_int)>> = Mutex::new(BTreeMap::new());

fn ranks(communicator: Communicator) -> (c_int, c_int) {
    lock(&RANKS).get(&(communicator as usize)).copied().unwrap_or((1, 0))
}

fn new_communicator(place: *mut Communicator, count: c_int, rank: c_int) -> c_int {
    calls::note("ncclCommInitRank");
    let communicator = handle();
    lock(&RANKS).insert(communicator, (count, rank));
    // SAFETY: an out parameter of C.
    unsafe { put(place, communicator as Communicator) };
    SUCCESS
}

// The id is a struct by value, on the stack: arguments in registers are not moved by it.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitRank(place: *mut Communicator, count: c_int, rank: c_int) -> c_int {
    new_communicator(place, count, rank)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitRankConfig(place: *mut Communicator, count: c_int, rank: c_int) -> c_int {
    new_communicator(place, count, rank)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitRankScalable(place: *mut Communicator, count: c_int, rank: c_int) -> c_int {
    new_communicator(place, count, rank)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitAll(places: *mut Communicator, count: c_int) -> c_int {
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the caller's array has `count` places.
        new_communicator(unsafe { places.add(index) }, count, index as c_int);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommSplit(
    from: Communicator,
    _color: c_int,
    _key: c_int,
    place: *mut Communicator,
) -> c_int {
    let (count, rank) = ranks(from);
    new_communicator(place, count, rank)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommShrink(
    from: Communicator,
    _ranks: *mut c_int,
    _count: c_int,
    place: *mut Communicator,
) -> c_int {
    let (count, rank) = ranks(from);
    new_communicator(place, count, rank)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommGetAsyncError(_communicator: Communicator, place: *mut c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, SUCCESS) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommCount(communicator: Communicator, place: *mut c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, ranks(communicator).0) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommUserRank(communicator: Communicator, place: *mut c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, ranks(communicator).1) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommGetUniqueId(_communicator: Communicator, id: *mut [u8; 128]) -> c_int {
    ncclGetUniqueId(id)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommGrow(
    from: Communicator,
    _ranks: c_int,
    _id: *const [u8; 128],
    _rank: c_int,
    place: *mut Communicator,
) -> c_int {
    let (count, rank) = ranks(from);
    new_communicator(place, count, rank)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommMemStats(_communicator: Communicator, _what: c_int, place: *mut u64) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, 0) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommWindowRegister(
    _communicator: Communicator,
    _buffer: *mut c_void,
    _size: usize,
    place: *mut *mut c_void,
) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, handle() as *mut c_void) };
    SUCCESS
}

/// Memory of the device, as `cudaMalloc` gives it.
#[unsafe(no_mangle)]
pub extern "C" fn ncclMemAlloc(place: *mut *mut c_void, size: usize) -> c_int {
    if runtime::memory::cudaMalloc(place, size) == state::SUCCESS { SUCCESS } else { CUDA_ERROR }
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclMemFree(address: *mut c_void) -> c_int {
    if runtime::memory::cudaFree(address) == state::SUCCESS { SUCCESS } else { CUDA_ERROR }
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_communicator: Communicator) -> *const c_char {
    c"".as_ptr()
}

macro_rules! moves_nothing {
    ($($name:ident)*) => {$(
        /// Succeeds; there is no peer.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            SUCCESS
        }
    )*};
}

moves_nothing! {
    ncclGroupStart ncclGroupEnd ncclGroupSimulateEnd ncclCommAbort ncclCommDestroy ncclCommFinalize
    ncclAllReduce ncclAllGather ncclReduceScatter ncclBroadcast ncclBcast ncclReduce ncclSend ncclRecv ncclAlltoAll
    ncclCommRegister ncclCommDeregister ncclCommWindowDeregister ncclRedOpCreatePreMulSum ncclRedOpDestroy
}
