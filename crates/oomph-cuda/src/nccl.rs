//! NCCL: communicators of ranks that are not there. Collectives move nothing.
//!
//! What NCCL itself takes of the device (buffers for each channel) is not modelled; a result says so.

use crate::{calls, handle, put};
use std::ffi::{c_char, c_int, c_void};

const SUCCESS: c_int = 0;

type Communicator = *mut c_void;

/// `ncclUniqueId`: 128 bytes.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetUniqueId(id: *mut [u8; 128]) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(id, [0x6f; 128]) };
    SUCCESS
}

fn new_communicator(place: *mut Communicator) -> c_int {
    calls::note("ncclCommInitRank");
    // SAFETY: an out parameter of C.
    unsafe { put(place, handle() as Communicator) };
    SUCCESS
}

// The id is a struct by value, on the stack: arguments in registers are not moved by it.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitRank(place: *mut Communicator) -> c_int {
    new_communicator(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitRankConfig(place: *mut Communicator) -> c_int {
    new_communicator(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitRankScalable(place: *mut Communicator) -> c_int {
    new_communicator(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitAll(places: *mut Communicator, count: c_int) -> c_int {
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the caller's array has `count` places.
        new_communicator(unsafe { places.add(index) });
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommSplit(
    _from: Communicator,
    _color: c_int,
    _key: c_int,
    place: *mut Communicator,
) -> c_int {
    new_communicator(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommShrink(
    _from: Communicator,
    _ranks: *mut c_int,
    _count: c_int,
    place: *mut Communicator,
) -> c_int {
    new_communicator(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommGetAsyncError(_communicator: Communicator, place: *mut c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, SUCCESS) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommCount(_communicator: Communicator, place: *mut c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, 1) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommUserRank(_communicator: Communicator, place: *mut c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, 0) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_communicator: Communicator) -> *const c_char {
    c"".as_ptr()
}

macro_rules! moves_nothing {
    ($($name:ident)*) => {$(
        /// Succeeds; nobody is at the other end.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            SUCCESS
        }
    )*};
}

moves_nothing! {
    ncclGroupStart ncclGroupEnd ncclGroupSimulateEnd ncclCommAbort ncclCommDestroy ncclCommFinalize
    ncclAllReduce ncclAllGather ncclReduceScatter ncclBroadcast ncclBcast ncclReduce ncclSend ncclRecv ncclAlltoAll
    ncclCommRegister ncclCommDeregister ncclRedOpCreatePreMulSum ncclRedOpDestroy
}
