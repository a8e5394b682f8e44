//! The CUDA driver: contexts, virtual memory for expandable segments, modules that Triton and bitsandbytes load.

use crate::card::Card;
use crate::state::{
    self, Handle, INVALID_DEVICE, INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED, OUT_OF_MEMORY, SUCCESS, new_handle,
};
use crate::{allocation, handle, loaded, lock, mappings, memory, put, queue};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Mutex;

/// Physical memory without an address: handle to device, or none if it is the host's, and bytes.
static PHYSICAL: Mutex<BTreeMap<u64, (Option<usize>, u64)>> = Mutex::new(BTreeMap::new());

/// Contexts are numbers: one a device.
fn context(device: usize) -> Handle {
    (0x6f6f_6d00 + device) as Handle
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDriverGetVersion(place: *mut c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, loaded::version()) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(count, Card::get().visible()) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGet(place: *mut c_int, ordinal: c_int) -> c_int {
    if !(0..Card::get().visible()).contains(&ordinal) {
        return INVALID_DEVICE;
    }
    // SAFETY: an out parameter of C.
    unsafe { put(place, ordinal) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetName(text: *mut c_char, length: c_int, _device: c_int) -> c_int {
    let length = usize::try_from(length).unwrap_or(0);
    let name = Card::get().name.as_bytes();
    if !text.is_null() && length > 0 {
        let count = name.len().min(length - 1);
        // SAFETY: the caller's buffer has `length` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(name.as_ptr().cast(), text, count);
            text.add(count).write(0);
        }
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetAttribute(value: *mut c_int, number: c_int, _device: c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(value, Card::get().attribute(number)) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(bytes, Card::get().memory as usize) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceComputeCapability(major: *mut c_int, minor: *mut c_int, _device: c_int) -> c_int {
    // SAFETY: out parameters of C.
    unsafe {
        put(major, Card::get().major);
        put(minor, Card::get().minor);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) -> c_int {
    let mut bytes = *b"oomph-virtual-gp";
    if let Some(last) = bytes.last_mut() {
        *last = device as u8;
    }
    // SAFETY: an out parameter of C.
    unsafe { put(uuid, bytes) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int) -> c_int {
    // SAFETY: out parameters of C.
    unsafe {
        put(flags, 0);
        put(active, c_int::from(state::has_context(device)));
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRetain(place: *mut Handle, device: c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, context(usize::try_from(device).unwrap_or(0))) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetCurrent(place: *mut Handle) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, context(state::device())) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetDevice(place: *mut c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, state::device() as c_int) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxCreate_v2(place: *mut Handle, _flags: c_uint, device: c_int) -> c_int {
    cuDevicePrimaryCtxRetain(place, device)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxPopCurrent_v2(place: *mut Handle) -> c_int {
    cuCtxGetCurrent(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetApiVersion(_context: Handle, place: *mut c_uint) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, 3020) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorString(code: c_int, text: *mut *const c_char) -> c_int {
    let words = match code {
        SUCCESS => c"no error",
        INVALID_VALUE => c"invalid argument",
        OUT_OF_MEMORY => c"out of memory",
        NOT_FOUND => c"named symbol not found",
        NOT_SUPPORTED => c"operation not supported",
        _ => c"error of the virtual GPU",
    };
    // SAFETY: an out parameter of C; the text lives as long as the library.
    unsafe { put(text, words.as_ptr()) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorName(code: c_int, text: *mut *const c_char) -> c_int {
    let words = match code {
        SUCCESS => c"CUDA_SUCCESS",
        INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
        OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
        NOT_FOUND => c"CUDA_ERROR_NOT_FOUND",
        NOT_SUPPORTED => c"CUDA_ERROR_NOT_SUPPORTED",
        _ => c"CUDA_ERROR_UNKNOWN",
    };
    // SAFETY: an out parameter of C; the text lives as long as the library.
    unsafe { put(text, words.as_ptr()) };
    SUCCESS
}

/// NVIDIA's own libraries reach undocumented tables by this; they then do without a device.
#[unsafe(no_mangle)]
pub extern "C" fn cuGetExportTable(table: *mut *const c_void, _id: *const c_void) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(table, std::ptr::null()) };
    NOT_FOUND
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetProcAddress(
    name: *const c_char,
    place: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> c_int {
    cuGetProcAddress_v2(name, place, version, flags, std::ptr::null_mut())
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetProcAddress_v2(
    name: *const c_char,
    place: *mut *mut c_void,
    _version: c_int,
    _flags: u64,
    status: *mut c_int,
) -> c_int {
    let found = loaded::entry_point(name);
    // SAFETY: out parameters of C.
    unsafe {
        put(place, found);
        put(status, c_int::from(found.is_null()));
    }
    if found.is_null() { NOT_FOUND } else { SUCCESS }
}

// ------------------------------------------------------------------------------------------------ memory

#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> c_int {
    allocation::give_info(free, total)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAlloc_v2(place: *mut *mut c_void, size: usize) -> c_int {
    allocation::give_memory(place, size)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: *mut c_void) -> c_int {
    queue::finish_all();
    allocation::take_memory(address)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocAsync(place: *mut *mut c_void, size: usize, _stream: Handle) -> c_int {
    allocation::give_pooled_memory(place, size, state::device())
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocFromPoolAsync(
    place: *mut *mut c_void,
    size: usize,
    pool: Handle,
    _stream: Handle,
) -> c_int {
    allocation::give_pooled_memory(place, size, allocation::device_of_pool(pool))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(address: *mut c_void, _stream: Handle) -> c_int {
    allocation::take_memory(address)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocHost_v2(place: *mut *mut c_void, size: usize) -> c_int {
    allocation::give_pinned(place, size)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostAlloc(place: *mut *mut c_void, size: usize, _flags: c_uint) -> c_int {
    allocation::give_pinned(place, size)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocManaged(place: *mut *mut c_void, size: usize, _flags: c_uint) -> c_int {
    allocation::give_managed(place, size)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(address: *mut c_void) -> c_int {
    allocation::take_pinned(address)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(to: *mut c_void, from: *const c_void, size: usize) -> c_int {
    // SAFETY: C's promise about host memory.
    unsafe { memory::copy(to, from, size) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: *const c_void, size: usize) -> c_int {
    // SAFETY: C's promise about host memory.
    unsafe { memory::copy(to, from, size) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    _stream: Handle,
) -> c_int {
    // SAFETY: C's promise about host memory.
    unsafe { memory::copy(to, from, size) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    _stream: Handle,
) -> c_int {
    // SAFETY: C's promise about host memory.
    unsafe { memory::copy(to, from, size) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAddressReserve(
    place: *mut u64,
    size: usize,
    _alignment: usize,
    _wanted: u64,
    _flags: u64,
) -> c_int {
    match memory::reserve(size as u64) {
        Some(address) => {
            // SAFETY: an out parameter of C.
            unsafe { put(place, address) };
            SUCCESS
        }
        None => OUT_OF_MEMORY,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAddressFree(address: u64, _size: usize) -> c_int {
    if memory::release(address) { SUCCESS } else { INVALID_VALUE }
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`; beyond are the host's.
const DEVICE: c_int = 1;

/// The fields of `CUmemAllocationProp` up to the device, the same in every version.
#[repr(C)]
pub struct AllocationProperties {
    kind: c_int,
    handle_types: c_int,
    location_kind: c_int,
    location: c_int,
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemCreate(
    place: *mut u64,
    size: usize,
    properties: *const AllocationProperties,
    _flags: u64,
) -> c_int {
    // Of the device, unless the host's memory is asked for.
    let device = if properties.is_null() {
        Some(state::device())
    } else {
        // SAFETY: the caller's struct.
        let (kind, location) = unsafe { ((*properties).location_kind, (*properties).location) };
        (kind <= DEVICE).then(|| usize::try_from(location).unwrap_or(0))
    };
    let size = size as u64;
    if let Some(device) = device
        && !memory::charge(device, size)
    {
        return OUT_OF_MEMORY;
    }
    let id = handle() as u64;
    lock(&PHYSICAL).insert(id, (device, size));
    // SAFETY: an out parameter of C.
    unsafe { put(place, id) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemRelease(id: u64) -> c_int {
    match lock(&PHYSICAL).remove(&id) {
        Some((device, size)) => {
            if let Some(device) = device {
                memory::discharge(device, size);
            }
            SUCCESS
        }
        None => INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemMap(address: u64, size: usize, _offset: usize, id: u64, _flags: u64) -> c_int {
    let device = lock(&PHYSICAL).get(&id).and_then(|(device, _)| *device);
    mappings::mapped(device, address, size as u64);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemUnmap(address: u64, size: usize) -> c_int {
    mappings::unmapped(address, size as u64);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetAllocationGranularity(
    place: *mut usize,
    _properties: *const AllocationProperties,
    _option: c_int,
) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, memory::UNIT as usize) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuPointerGetAttribute(value: *mut c_void, attribute: c_int, address: u64) -> c_int {
    let device = memory::device_of(address);
    // SAFETY: each attribute has the type that is written.
    unsafe {
        match (attribute, device) {
            (_, None) => return INVALID_VALUE,
            (1, Some(device)) => put(value.cast::<Handle>(), context(device)),
            (2, _) => put(value.cast::<c_uint>(), 2),
            (3, _) => put(value.cast::<u64>(), address),
            (9, Some(device)) => put(value.cast::<c_int>(), device as c_int),
            _ => put(value.cast::<c_int>(), 0),
        }
    }
    SUCCESS
}

// ----------------------------------------------------------------------------------------------- kernels

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleLoadData(place: *mut Handle, _image: *const c_void) -> c_int {
    new_handle(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleLoad(place: *mut Handle, _file: *const c_char) -> c_int {
    new_handle(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleLoadDataEx(
    place: *mut Handle,
    _image: *const c_void,
    _count: c_uint,
    _options: *mut c_int,
    _values: *mut *mut c_void,
) -> c_int {
    new_handle(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleGetFunction(place: *mut Handle, _module: Handle, _name: *const c_char) -> c_int {
    new_handle(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleGetGlobal_v2(
    place: *mut *mut c_void,
    size: *mut usize,
    _module: Handle,
    _name: *const c_char,
) -> c_int {
    allocation::give_variable(place, size)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuLibraryLoadData(place: *mut Handle) -> c_int {
    new_handle(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuLibraryGetKernel(place: *mut Handle, _library: Handle, _name: *const c_char) -> c_int {
    new_handle(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncGetAttribute(value: *mut c_int, attribute: c_int, _function: Handle) -> c_int {
    let number = match attribute {
        0 => 1024,
        4 => 32,
        5 | 6 => Card::get().capability(),
        8 => 49152,
        _ => 0,
    };
    // SAFETY: an out parameter of C.
    unsafe { put(value, number) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: *mut c_int,
    _function: Handle,
    threads: c_int,
    _shared: usize,
) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(blocks, Card::get().occupancy(threads)) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuOccupancyMaxActiveClusters(
    clusters: *mut c_int,
    _function: Handle,
    _config: *const c_void,
) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(clusters, Card::get().sms) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamCreate(place: *mut Handle, _flags: c_uint) -> c_int {
    new_handle(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamGetCtx(_stream: Handle, place: *mut Handle) -> c_int {
    cuCtxGetCurrent(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventCreate(place: *mut Handle, _flags: c_uint) -> c_int {
    new_handle(place)
}

launches! { cuLaunchKernel cuLaunchKernelEx cuLaunchCooperativeKernel }

does_nothing! {
    cuInit cuLogsRegisterCallback cuLogsUnregisterCallback cuCtxSetCurrent cuCtxPushCurrent_v2 cuCtxSynchronize cuCtxDestroy_v2 cuDevicePrimaryCtxRelease_v2
    cuMemSetAccess cuMemcpyAsync cuMemsetD32Async cuMemsetD8Async
    cuModuleUnload cuLibraryUnload cuFuncSetAttribute cuFuncSetCacheConfig
    cuTensorMapEncodeTiled
    cuStreamSynchronize cuStreamDestroy_v2 cuStreamWaitEvent cuEventRecord cuEventDestroy_v2 cuEventSynchronize
}

macro_rules! is_not_supported {
    ($($name:ident)*) => {$(
        /// One card in a plain machine has no such thing.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            NOT_SUPPORTED
        }
    )*};
}

is_not_supported! {
    cuMulticastCreate cuMulticastAddDevice cuMulticastBindMem cuMulticastUnbind
    cuMemExportToShareableHandle cuMemImportFromShareableHandle
}
