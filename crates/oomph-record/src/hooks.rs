//! Where the recorder listens: functions that PyTorch's allocator calls in other libraries.
//!
//! - `c10::reportMemoryUsageToProfiler`: every block that is handed out or taken back, with its true size.
//! - `roundup_power2_divisions`: what was requested, before rounding.
//! - `cudaMalloc` and `cudaFree`: segments.
//! - On the virtual GPU `oomph-cuda` tells what is mapped into expandable segments. On a real card nobody does: it is worked out of what is reserved in all.
//!
//! Only the entries of `libc10_cuda` are redirected, and all calls are passed on.

use crate::elf::{self, Redirect};
use crate::{gauges, python, session};
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn pthread_atfork(
        before: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
}

const LIBRARY: &str = "libc10_cuda.so";
const REPORT: &CStr = c"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE";
const ROUND: [&CStr; 2] = [
    c"_ZN3c1016CachingAllocator26AcceleratorAllocatorConfig24roundup_power2_divisionsEm",
    c"_ZN3c104cuda20CUDACachingAllocator19CUDAAllocatorConfig24roundup_power2_divisionsEm",
];
const CURRENT_STREAM: &CStr = c"_ZN3c104cuda20getCurrentCUDAStreamEa";
/// PyTorch's number for CUDA among the kinds of devices.
const CUDA: u8 = 1;

/// The device is a C++ struct of two bytes in a register whose other bytes are anything: no number of two bytes here.
type Report = extern "C" fn(*mut c_void, i64, usize, usize, u64);
type Round = extern "C" fn(usize) -> usize;
type Malloc = extern "C" fn(*mut *mut c_void, usize) -> c_int;
type Free = extern "C" fn(*mut c_void) -> c_int;
type GetDevice = extern "C" fn(*mut c_int) -> c_int;
type GuardBlock = extern "C" fn(c_int, u64, i64);
type TellMappings = extern "C" fn(Mapping);
type Mapping = extern "C" fn(c_int, u64, u64, c_int);

/// A C++ struct of a device and a number, given back in two registers.
#[repr(C)]
struct Stream {
    device: u64,
    number: i64,
}
type CurrentStream = extern "C" fn(i8) -> Stream;

/// Where the calls really go, and others that are needed. Set once, before any entry is redirected.
static NEXT_REPORT: AtomicUsize = AtomicUsize::new(0);
static NEXT_ROUND: AtomicUsize = AtomicUsize::new(0);
static NEXT_MALLOC: AtomicUsize = AtomicUsize::new(0);
static NEXT_FREE: AtomicUsize = AtomicUsize::new(0);
static DEVICE_OF: AtomicUsize = AtomicUsize::new(0);
static STREAM_OF: AtomicUsize = AtomicUsize::new(0);
static GUARD_BLOCK: AtomicUsize = AtomicUsize::new(0);

static ATTACHED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static REQUESTED: Cell<u64> = const { Cell::new(0) };
}

/// What the calling thread asked the allocator for last, if that has not been served.
pub(crate) fn requested() -> u64 {
    REQUESTED.try_with(Cell::get).unwrap_or(0)
}

/// Redirects the allocator's calls. Whether PyTorch's allocator is there.
pub(crate) fn attach() -> bool {
    if ATTACHED.load(Relaxed) {
        return true;
    }
    let Some(library) = handle() else { return false };
    let of_library = |name: &CStr| {
        // SAFETY: a handle of the loader's; the name is a string.
        let found = unsafe { dlsym(library, name.as_ptr()) };
        (!found.is_null()).then_some(found as usize)
    };
    // What is preloaded comes first, as it does for everybody.
    let of_all = |name: &CStr| elf::find(name).or_else(|| of_library(name));
    let Some(report) = of_library(REPORT) else { return false };
    NEXT_REPORT.store(report, Relaxed);
    NEXT_ROUND.store(ROUND.into_iter().find_map(of_library).unwrap_or(0), Relaxed);
    for (place, name) in
        [(&NEXT_MALLOC, c"cudaMalloc"), (&NEXT_FREE, c"cudaFree"), (&DEVICE_OF, c"cudaGetDevice")]
    {
        place.store(of_all(name).unwrap_or(0), Relaxed);
    }
    STREAM_OF.store(of_library(CURRENT_STREAM).unwrap_or(0), Relaxed);
    GUARD_BLOCK.store(elf::find(c"oomph_guard_block").unwrap_or(0), Relaxed);
    let to = |name, to: usize| Redirect { name, to, from: &[], done: false };
    let mut redirects = vec![to(REPORT, report_hook as *const () as usize)];
    if NEXT_ROUND.load(Relaxed) != 0 {
        redirects.extend(ROUND.map(|name| to(name, round_hook as *const () as usize)));
    }
    if [&NEXT_MALLOC, &NEXT_FREE, &DEVICE_OF].iter().all(|place| place.load(Relaxed) != 0) {
        redirects.push(to(c"cudaMalloc", malloc_hook as *const () as usize));
        redirects.push(to(c"cudaFree", free_hook as *const () as usize));
    }
    elf::redirect(LIBRARY, &mut redirects);
    let listens = redirects.first().is_some_and(|redirect| redirect.done);
    if listens && !ATTACHED.swap(true, Relaxed) {
        if let Some(found) = elf::find(c"oomph_tell_mappings") {
            // SAFETY: the virtual GPU's function of that name.
            let tell = unsafe { std::mem::transmute::<usize, TellMappings>(found) };
            tell(mapping_hook);
        }
        // SAFETY: the handler only stores flags.
        unsafe { pthread_atfork(None, None, Some(session::forked)) };
    }
    listens
}

fn handle() -> Option<*mut c_void> {
    let path = elf::path_of(LIBRARY)?;
    // SAFETY: a library that is loaded already: this only finds it (RTLD_LAZY and RTLD_NOLOAD).
    let handle = unsafe { dlopen(path.as_ptr(), 1 | 4) };
    (!handle.is_null()).then_some(handle)
}

/// The stream on which a device's blocks are made now, by PyTorch's own number.
fn current_stream(device: u8) -> i64 {
    let found = STREAM_OF.load(Relaxed);
    if found == 0 {
        return 0;
    }
    // SAFETY: PyTorch's function of that name; it reads a variable of the thread's.
    let current = unsafe { std::mem::transmute::<usize, CurrentStream>(found) };
    current(device as i8).number
}

extern "C" fn report_hook(block: *mut c_void, size: i64, allocated: usize, reserved: usize, device: u64) {
    let [kind, index, ..] = device.to_le_bytes();
    if kind == CUDA && usize::from(index) < gauges::MOST_DEVICES {
        gauges::set(u32::from(index), allocated as u64);
        let guard = GUARD_BLOCK.load(Relaxed);
        if guard != 0 {
            // SAFETY: the guard's function of that name.
            let report = unsafe { std::mem::transmute::<usize, GuardBlock>(guard) };
            report(c_int::from(index), block as u64, size);
        }
        if session::is_recording()
            && let Some(recorder) = session::lock().as_mut()
        {
            let (device, address, reserved) = (u32::from(index), block as u64, reserved as u64);
            let requested = REQUESTED.try_with(|place| if size > 0 { place.take() } else { 0 }).unwrap_or(0);
            if !recorder.follow(device, address, size, reserved) {
                let stack =
                    python::walk(0, if size > 0 { python::DEEPEST } else { recorder.frames_of_frees() });
                let stream = if size > 0 { current_stream(index) } else { 0 };
                recorder.block(device, address, size, requested, reserved, stream, &stack);
            }
        }
    }
    let next = NEXT_REPORT.load(Relaxed);
    if next != 0 {
        // SAFETY: the function that the call was meant for.
        let next = unsafe { std::mem::transmute::<usize, Report>(next) };
        next(block, size, allocated, reserved, device);
    }
}

extern "C" fn round_hook(size: usize) -> usize {
    let _ = REQUESTED.try_with(|place| place.set(size as u64));
    // SAFETY: the function that the call was meant for; without it nothing was redirected.
    let next = unsafe { std::mem::transmute::<usize, Round>(NEXT_ROUND.load(Relaxed)) };
    next(size)
}

extern "C" fn malloc_hook(place: *mut *mut c_void, size: usize) -> c_int {
    // SAFETY: the function that the call was meant for; without it nothing was redirected.
    let next = unsafe { std::mem::transmute::<usize, Malloc>(NEXT_MALLOC.load(Relaxed)) };
    let result = next(place, size);
    if result == 0 && session::is_recording() && !place.is_null() {
        let mut device: c_int = 0;
        // SAFETY: CUDA's function of that name; the place was written by the call that succeeded.
        let address = unsafe {
            std::mem::transmute::<usize, GetDevice>(DEVICE_OF.load(Relaxed))(&raw mut device);
            place.read() as u64
        };
        let stream = current_stream(device as u8);
        let stack = python::walk(0, python::DEEPEST);
        if let Some(recorder) = session::lock().as_mut() {
            recorder.segment(device as u32, address, size as u64, stream, &stack);
        }
    }
    result
}

extern "C" fn free_hook(address: *mut c_void) -> c_int {
    if !address.is_null() && session::is_recording() {
        let stack = python::walk(0, python::DEEPEST);
        if let Some(recorder) = session::lock().as_mut() {
            recorder.segment_freed(address as u64, &stack);
        }
    }
    // SAFETY: the function that the call was meant for; without it nothing was redirected.
    let next = unsafe { std::mem::transmute::<usize, Free>(NEXT_FREE.load(Relaxed)) };
    next(address)
}

extern "C" fn mapping_hook(device: c_int, address: u64, size: u64, is_mapped: c_int) {
    if !session::is_recording() {
        return;
    }
    let stack = python::walk(0, python::DEEPEST);
    match (u8::try_from(device), is_mapped) {
        (_, 0) => {
            if let Some(recorder) = session::lock().as_mut() {
                recorder.unmapped(address, size, &stack);
            }
        }
        (Ok(device), _) => {
            let stream = current_stream(device);
            if let Some(recorder) = session::lock().as_mut() {
                recorder.mapped(u32::from(device), address, size, stream, &stack);
            }
        }
        // Not a card's memory.
        _ => {}
    }
}
