//! The real driver: its functions, found in the library that the settings name, and the [`Driver`] that the overflow needs.
//!
//! Structures and numbers are those of NVIDIA's `cuda.h`, which have not changed since they were introduced.

use crate::gate::GATE;
use crate::overflow::{Driver, Place};
use crate::settings::Settings;
use crate::{GRANULE, sys};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub const SUCCESS: c_int = 0;
pub const OUT_OF_MEMORY: c_int = 2;
/// What a call gets if there is no driver.
pub const NOT_INITIALIZED: c_int = 3;

pub type Handle = *mut c_void;

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Properties {
    pub kind: c_int,
    pub handle_types: c_int,
    pub location_kind: c_int,
    pub location: c_int,
    pub metadata: usize,
    pub flags: u64,
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Access {
    location_kind: c_int,
    location: c_int,
    flags: c_int,
}

const PINNED: c_int = 1;
pub const LOCATION_DEVICE: c_int = 1;
const LOCATION_HOST: c_int = 2;
const LOCATION_HOST_NUMA: c_int = 3;
const LOCATION_HOST_NUMA_CURRENT: c_int = 4;
const READ_AND_WRITE: c_int = 3;
/// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`.
const MAPS_MEMORY: c_int = 102;
/// `CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID`: the node of host memory that is nearest to the device.
const NUMA_NODE: c_int = 134;
const STREAM_NON_BLOCKING: c_uint = 1;

macro_rules! functions {
    ($($name:ident($($type:ty),*);)*) => {
        /// The driver's functions that are called from here; those that it does not have are missing.
        pub struct Api {
            $(pub $name: Option<extern "C" fn($($type),*) -> c_int>,)*
        }

        impl Api {
            fn load(library: Handle) -> Api {
                Api {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        let address = CStr::from_bytes_with_nul(name.as_bytes())
                            .map_or(std::ptr::null_mut(), |name| find(library, name));
                        // SAFETY: null or the driver's function of that name, which has this type.
                        unsafe { std::mem::transmute::<Handle, Option<extern "C" fn($($type),*) -> c_int>>(address) }
                    },)*
                }
            }
        }
    };
}

functions! {
    cuGetProcAddress(*const c_char, *mut Handle, c_int, u64);
    cuGetProcAddress_v2(*const c_char, *mut Handle, c_int, u64, *mut c_int);
    cuDevicePrimaryCtxRetain(*mut Handle, c_int);
    cuDeviceTotalMem_v2(*mut usize, c_int);
    cuDeviceGetAttribute(*mut c_int, c_int, c_int);
    cuDeviceGetUuid_v2(*mut [u8; 16], c_int);
    cuDeviceGetCount(*mut c_int);
    cuDeviceCanAccessPeer(*mut c_int, c_int, c_int);
    cuCtxGetDevice(*mut c_int);
    cuCtxGetCurrent(*mut Handle);
    cuCtxPushCurrent_v2(Handle);
    cuCtxPopCurrent_v2(*mut Handle);
    cuCtxSynchronize();
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemAlloc_v2(*mut u64, usize);
    cuMemFree_v2(u64);
    cuMemAllocPitch_v2(*mut u64, *mut usize, usize, usize, c_uint);
    cuMemAllocManaged(*mut u64, usize, c_uint);
    cuMemAllocAsync(*mut u64, usize, Handle);
    cuMemAllocAsync_ptsz(*mut u64, usize, Handle);
    cuMemAllocFromPoolAsync(*mut u64, usize, Handle, Handle);
    cuMemAllocFromPoolAsync_ptsz(*mut u64, usize, Handle, Handle);
    cuMemFreeAsync(u64, Handle);
    cuMemFreeAsync_ptsz(u64, Handle);
    cuMemHostAlloc(*mut Handle, usize, c_uint);
    cuMemFreeHost(Handle);
    cuMemCreate(*mut u64, usize, *const Properties, u64);
    cuMemRelease(u64);
    cuMemAddressReserve(*mut u64, usize, usize, u64, u64);
    cuMemAddressFree(u64, usize);
    cuMemMap(u64, usize, usize, u64, u64);
    cuMemUnmap(u64, usize);
    cuMemSetAccess(u64, usize, *const Access, usize);
    cuMemcpyAsync(u64, u64, usize, Handle);
    cuStreamCreate(*mut Handle, c_uint);
    cuStreamSynchronize(Handle);
    cuStreamBeginCapture_v2(Handle, c_int);
    cuStreamBeginCapture_v2_ptsz(Handle, c_int);
    cuStreamEndCapture(Handle, *mut Handle);
    cuStreamEndCapture_ptsz(Handle, *mut Handle);
    cuArrayCreate_v2(*mut Handle, *const c_void);
    cuArray3DCreate_v2(*mut Handle, *const c_void);
    cuArrayDestroy(Handle);
    cuLaunchKernel(Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, Handle, Handle);
    cuLaunchKernel_ptsz(Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, Handle, Handle);
    cuLaunchKernelEx(Handle, Handle, Handle, Handle);
    cuLaunchKernelEx_ptsz(Handle, Handle, Handle, Handle);
    cuLaunchCooperativeKernel(Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, Handle);
    cuLaunchCooperativeKernel_ptsz(Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, Handle);
    cuGraphLaunch(Handle, Handle);
    cuGraphLaunch_ptsz(Handle, Handle);
    cuMemcpyAsync_ptsz(u64, u64, usize, Handle);
    cuMemcpyHtoDAsync_v2(u64, Handle, usize, Handle);
    cuMemcpyHtoDAsync_v2_ptsz(u64, Handle, usize, Handle);
    cuMemcpyDtoHAsync_v2(Handle, u64, usize, Handle);
    cuMemcpyDtoHAsync_v2_ptsz(Handle, u64, usize, Handle);
    cuMemcpyDtoDAsync_v2(u64, u64, usize, Handle);
    cuMemcpyDtoDAsync_v2_ptsz(u64, u64, usize, Handle);
    cuMemcpyHtoD_v2(u64, Handle, usize);
    cuMemcpyHtoD_v2_ptds(u64, Handle, usize);
    cuMemcpyDtoH_v2(Handle, u64, usize);
    cuMemcpyDtoH_v2_ptds(Handle, u64, usize);
    cuMemcpyDtoD_v2(u64, u64, usize);
    cuMemcpyDtoD_v2_ptds(u64, u64, usize);
    cuMemcpy2DAsync_v2(Handle, Handle);
    cuMemcpy2DAsync_v2_ptsz(Handle, Handle);
    cuMemcpy3DAsync_v2(Handle, Handle);
    cuMemcpy3DAsync_v2_ptsz(Handle, Handle);
    cuMemsetD8Async(u64, u8, usize, Handle);
    cuMemsetD8Async_ptsz(u64, u8, usize, Handle);
    cuMemsetD16Async(u64, u16, usize, Handle);
    cuMemsetD16Async_ptsz(u64, u16, usize, Handle);
    cuMemsetD32Async(u64, c_uint, usize, Handle);
    cuMemsetD32Async_ptsz(u64, c_uint, usize, Handle);
}

/// A function of the driver's: its library's, or else of whoever comes next.
pub fn find(library: Handle, name: &CStr) -> Handle {
    let found = sys::symbol(library, name);
    if found.is_null() { sys::next(name) } else { found }
}

/// The real driver's library; null if there is none.
pub fn library() -> Handle {
    static LIBRARY: OnceLock<usize> = OnceLock::new();
    *LIBRARY.get_or_init(|| {
        CString::new(Settings::get().driver.as_str()).map_or(0, |path| sys::open(&path) as usize)
    }) as Handle
}

/// The real driver's functions.
pub fn api() -> &'static Api {
    static API: OnceLock<Api> = OnceLock::new();
    API.get_or_init(|| Api::load(library()))
}

/// Calls a function of the driver; [`NOT_INITIALIZED`] if it is missing. Arguments are what C's caller gave, or places
/// of our own.
#[macro_export]
macro_rules! real {
    ($name:ident($($argument:expr),* $(,)?)) => {
        match $crate::driver::api().$name {
            Some(function) => function($($argument),*),
            None => $crate::driver::NOT_INITIALIZED,
        }
    };
}

/// The device of this thread's context.
pub fn current_device() -> Option<usize> {
    let mut device = 0;
    if real!(cuCtxGetDevice(&raw mut device)) != SUCCESS {
        return None;
    }
    usize::try_from(device).ok()
}

/// Free and total bytes, as the driver says.
pub fn memory_info() -> Option<(u64, u64)> {
    let (mut free, mut total) = (0, 0);
    (real!(cuMemGetInfo_v2(&raw mut free, &raw mut total)) == SUCCESS).then_some((free as u64, total as u64))
}

/// Where host memory may come from, best first: as kind and number of a location. Which of them a driver takes depends
/// on its version.
pub fn host_locations(device: usize) -> Vec<(c_int, c_int)> {
    let mut node = 0;
    let device = c_int::try_from(device).unwrap_or(0);
    if real!(cuDeviceGetAttribute(&raw mut node, NUMA_NODE, device)) != SUCCESS {
        node = 0;
    }
    vec![(LOCATION_HOST_NUMA, node.max(0)), (LOCATION_HOST_NUMA_CURRENT, 0), (LOCATION_HOST, 0)]
}

/// Calls of the driver, by what they do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Calls {
    pub maps: u64,
    pub unmaps: u64,
    pub allows: u64,
    pub copies: u64,
}

/// The driver as the overflow of one device uses it.
pub struct Cuda {
    device: c_int,
    context: Handle,
    stream: Handle,
    /// Where host memory comes from: the first of these that the driver takes.
    host: Vec<(c_int, c_int)>,
    /// Who may use the memory: the device, and its peers, as with memory of `cuMemAlloc`.
    users: Vec<Access>,
    /// How often backing was changed, and copies begun: what moves cost beside the bytes.
    pub calls: Calls,
    began: Instant,
}

// SAFETY: the handles are the driver's, which may be used from any thread.
unsafe impl Send for Cuda {}

impl Cuda {
    /// For the device of the context that is current now. Nothing if it cannot map memory, as under some hypervisors.
    pub fn new(device: usize) -> Option<Cuda> {
        let device = c_int::try_from(device).ok()?;
        let mut maps = 0;
        if real!(cuDeviceGetAttribute(&raw mut maps, MAPS_MEMORY, device)) != SUCCESS || maps == 0 {
            return None;
        }
        let mut context = std::ptr::null_mut();
        if real!(cuCtxGetCurrent(&raw mut context)) != SUCCESS || context.is_null() {
            return None;
        }
        let mut stream = std::ptr::null_mut();
        if real!(cuStreamCreate(&raw mut stream, STREAM_NON_BLOCKING)) != SUCCESS {
            return None;
        }
        Some(Cuda {
            device,
            context,
            stream,
            host: host_locations(device as usize),
            users: users_of(device),
            calls: Calls::default(),
            began: Instant::now(),
        })
    }

    /// Runs with the device's context current.
    fn here(&self, work: impl FnOnce() -> bool) -> bool {
        let mut current = std::ptr::null_mut();
        if real!(cuCtxGetCurrent(&raw mut current)) == SUCCESS && current == self.context {
            return work();
        }
        if real!(cuCtxPushCurrent_v2(self.context)) != SUCCESS {
            return false;
        }
        let done = work();
        real!(cuCtxPopCurrent_v2(&raw mut current));
        done
    }
}

/// A device and those of its peers that can reach it.
fn users_of(device: c_int) -> Vec<Access> {
    let user = |location| Access { location_kind: LOCATION_DEVICE, location, flags: READ_AND_WRITE };
    let mut users = vec![user(device)];
    let mut count = 0;
    if real!(cuDeviceGetCount(&raw mut count)) != SUCCESS {
        return users;
    }
    for other in (0..count).filter(|other| *other != device) {
        let mut reaches = 0;
        if real!(cuDeviceCanAccessPeer(&raw mut reaches, other, device)) == SUCCESS && reaches != 0 {
            users.push(user(other));
        }
    }
    users
}

/// Physical memory at a location.
fn piece_at(location_kind: c_int, location: c_int, bytes: u64) -> Option<u64> {
    let properties =
        Properties { kind: PINNED, handle_types: 0, location_kind, location, metadata: 0, flags: 0 };
    let mut piece = 0;
    (real!(cuMemCreate(&raw mut piece, bytes as usize, &raw const properties, 0)) == SUCCESS).then_some(piece)
}

impl Driver for Cuda {
    fn create(&mut self, place: Place, bytes: u64) -> Option<u64> {
        if place == Place::Device {
            return piece_at(LOCATION_DEVICE, self.device, bytes);
        }
        // The first location that serves is kept; if the first piece cannot be had from any, there is no such memory.
        while let Some((kind, location)) = self.host.first().copied() {
            if let Some(piece) = piece_at(kind, location, bytes) {
                self.host.truncate(1);
                return Some(piece);
            }
            if self.host.len() == 1 {
                return None;
            }
            self.host.remove(0);
        }
        None
    }

    fn release(&mut self, piece: u64) {
        real!(cuMemRelease(piece));
    }

    fn reserve(&mut self, bytes: u64) -> Option<u64> {
        let mut address = 0;
        let done = real!(cuMemAddressReserve(&raw mut address, bytes as usize, GRANULE as usize, 0, 0));
        (done == SUCCESS).then_some(address)
    }

    fn give_back(&mut self, address: u64, bytes: u64) {
        real!(cuMemAddressFree(address, bytes as usize));
    }

    fn map(&mut self, address: u64, piece: u64, bytes: u64) -> bool {
        self.calls.maps += 1;
        real!(cuMemMap(address, bytes as usize, 0, piece, 0)) == SUCCESS
    }

    fn unmap(&mut self, address: u64, bytes: u64) -> bool {
        self.calls.unmaps += 1;
        real!(cuMemUnmap(address, bytes as usize)) == SUCCESS
    }

    fn allow(&mut self, address: u64, bytes: u64) -> bool {
        self.calls.allows += 1;
        let all = self.users.len();
        let users = self.users.as_ptr();
        let give = |count: usize| real!(cuMemSetAccess(address, bytes as usize, users, count)) == SUCCESS;
        if give(all) {
            return true;
        }
        // Without peers, then; from here on, too.
        let alone = all > 1 && give(1);
        self.users.truncate(1);
        alone
    }

    fn open_to_host(&mut self, address: u64, bytes: u64) {
        if let Some((location_kind, location)) = self.host.first().copied() {
            let access = Access { location_kind, location, flags: READ_AND_WRITE };
            real!(cuMemSetAccess(address, bytes as usize, &raw const access, 1));
        }
    }

    fn copy(&mut self, to: u64, from: u64, bytes: u64) -> bool {
        self.calls.copies += 1;
        let stream = self.stream;
        self.here(|| real!(cuMemcpyAsync(to, from, bytes as usize, stream)) == SUCCESS)
    }

    fn finish_copies(&mut self) -> bool {
        let stream = self.stream;
        self.here(|| real!(cuStreamSynchronize(stream)) == SUCCESS)
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// First with the gate open: what the GPU does may wait for what another thread starts.
    fn synchronize(&mut self) -> bool {
        let wait = || real!(cuCtxSynchronize()) == SUCCESS;
        self.here(wait) && GATE.close(self.device as usize) && self.here(wait)
    }
}
