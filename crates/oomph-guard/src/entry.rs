//! The driver's functions that take and give memory, and what the recorder calls.
//!
//! Each exported function has the arguments of NVIDIA's header, asks the guard, and calls the driver. Programs find them before
//! the driver's own: by name, or through `cuGetProcAddress`, which is here too and hands these out.

use crate::driver::{self, Handle, LOCATION_DEVICE, Properties, SUCCESS};
use crate::guard::{self, charged};
use crate::ledger::{Key, rounded};
use crate::overflow::Kind;
use crate::settings::Settings;
use crate::{context, launches, put, real, report};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

fn result_of(code: c_int, number: u64) -> Result<u64, c_int> {
    if code == SUCCESS { Ok(number) } else { Err(code) }
}

/// Gives C's caller what was got, or the error.
fn give(place: *mut u64, result: Result<u64, c_int>) -> c_int {
    match result {
        Ok(number) => {
            // SAFETY: an out parameter of C.
            unsafe { put(place, number) };
            SUCCESS
        }
        Err(code) => code,
    }
}

// ------------------------------------------------------------------------------------------------ memory

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAlloc_v2(place: *mut u64, size: usize) -> c_int {
    if !guard::is_on() || size == 0 {
        return real!(cuMemAlloc_v2(place, size));
    }
    let result = guard::allocate(size as u64, || {
        let mut address = 0;
        result_of(real!(cuMemAlloc_v2(&raw mut address, size)), address)
    });
    give(place, result)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: u64) -> c_int {
    if guard::is_on()
        && let Some(code) = guard::free(address)
    {
        return code;
    }
    real!(cuMemFree_v2(address))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> c_int {
    let code = real!(cuMemGetInfo_v2(free, total));
    if code == SUCCESS
        && guard::is_on()
        && let Some(device) = driver::current_device()
        && let Some((unused, all)) = driver::memory_info()
    {
        let (unused, all) = guard::with(|state| state.info(device, unused, all));
        // SAFETY: out parameters of C.
        unsafe {
            put(free, unused as usize);
            put(total, all as usize);
        }
    }
    code
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) -> c_int {
    let mut total = 0;
    let code = real!(cuDeviceTotalMem_v2(&raw mut total, device));
    if code == SUCCESS {
        let shown = if guard::is_on() { guard::shown_total(total as u64) as usize } else { total };
        // SAFETY: an out parameter of C.
        unsafe { put(bytes, shown) };
    }
    code
}

/// Calls the driver within the budget of this thread's device.
fn within_budget(
    bytes: u64,
    key: impl FnOnce(u64) -> Key,
    call: impl FnOnce() -> Result<u64, c_int>,
) -> Result<u64, c_int> {
    if !guard::is_on() {
        return call();
    }
    match driver::current_device() {
        Some(device) => charged(device, bytes, key, call),
        None => call(),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocPitch_v2(
    place: *mut u64,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> c_int {
    // Rows begin at multiples of 512 on every card so far.
    let bytes = (width as u64).next_multiple_of(512).saturating_mul(height as u64);
    let result = within_budget(rounded(bytes), Key::Address, || {
        let mut address = 0;
        result_of(real!(cuMemAllocPitch_v2(&raw mut address, pitch, width, height, element)), address)
    });
    give(place, result)
}

/// Managed memory is beside the budget: its pages leave the device when somebody needs the room, so that it never takes the last of it.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocManaged(place: *mut u64, size: usize, flags: c_uint) -> c_int {
    let call = || {
        let mut address = 0;
        result_of(real!(cuMemAllocManaged(&raw mut address, size, flags)), address)
    };
    give(place, if guard::is_on() { guard::managed(size as u64, call) } else { call() })
}

macro_rules! takes_from_a_pool {
    ($($name:ident($($argument:ident),*);)*) => {$(
        /// Counted as it is asked for: what the driver's pool keeps beyond that is not known.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(place: *mut u64, size: usize, $($argument: Handle),*) -> c_int {
            let result = within_budget((size as u64).next_multiple_of(512), Key::Address, || {
                let mut address = 0;
                result_of(real!($name(&raw mut address, size, $($argument),*)), address)
            });
            give(place, result)
        }
    )*};
}

takes_from_a_pool! {
    cuMemAllocAsync(stream);
    cuMemAllocAsync_ptsz(stream);
    cuMemAllocFromPoolAsync(pool, stream);
    cuMemAllocFromPoolAsync_ptsz(pool, stream);
}

macro_rules! gives_to_a_pool {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(address: u64, stream: Handle) -> c_int {
            if guard::is_on() && let Some(code) = guard::free(address) {
                return code;
            }
            real!($name(address, stream))
        }
    )*};
}

gives_to_a_pool! { cuMemFreeAsync cuMemFreeAsync_ptsz }

/// Physical memory of the device is charged; what does not fit is taken from the host, if there is an overflow.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemCreate(
    place: *mut u64,
    size: usize,
    properties: *const Properties,
    flags: u64,
) -> c_int {
    if !guard::is_on() || properties.is_null() {
        return real!(cuMemCreate(place, size, properties, flags));
    }
    // SAFETY: not null; the caller's struct.
    let asked = unsafe { *properties };
    let Ok(device) = usize::try_from(asked.location) else {
        return real!(cuMemCreate(place, size, properties, flags));
    };
    if asked.location_kind != LOCATION_DEVICE {
        return real!(cuMemCreate(place, size, properties, flags));
    }
    let create = |properties: &Properties| {
        let mut handle = 0;
        result_of(real!(cuMemCreate(&raw mut handle, size, std::ptr::from_ref(properties), flags)), handle)
    };
    let mut result = charged(device, rounded(size as u64), Key::Physical, || create(&asked));
    if result.is_err() {
        result = guard::on_host(device, size as u64, |location_kind, location| {
            create(&Properties { location_kind, location, ..asked })
        })
        .unwrap_or(result);
    }
    give(place, result)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemRelease(handle: u64) -> c_int {
    if guard::is_on() {
        guard::discharge_key(Key::Physical(handle));
    }
    real!(cuMemRelease(handle))
}

/// The start of `CUDA_ARRAY_DESCRIPTOR` and, with depth, of `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
struct Array {
    width: usize,
    height: usize,
    format: c_int,
    channels: c_uint,
}

#[repr(C)]
struct Array3D {
    width: usize,
    height: usize,
    depth: usize,
    format: c_int,
    channels: c_uint,
}

/// Bytes of an array. Formats say their width in their lower bits: 1, 2 and 8, 9 are 8 bits and so on; what is newer counts as 16.
fn array_bytes(extents: [usize; 3], format: c_int, channels: c_uint) -> u64 {
    let element = match format {
        0x01 | 0x08 => 1,
        0x03 | 0x0a | 0x20 => 4,
        0x02 | 0x09 | 0x10 => 2,
        _ => 4,
    };
    extents.iter().fold(element * u64::from(channels.max(1)), |bytes, extent| {
        bytes.saturating_mul(*extent.max(&1) as u64)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuArrayCreate_v2(place: *mut Handle, description: *const c_void) -> c_int {
    if description.is_null() {
        return real!(cuArrayCreate_v2(place, description));
    }
    // SAFETY: not null; the caller's struct.
    let array = unsafe { &*description.cast::<Array>() };
    let bytes = array_bytes([array.width, array.height, 1], array.format, array.channels);
    let result = within_budget(rounded(bytes), Key::Array, || {
        let mut handle = std::ptr::null_mut();
        result_of(real!(cuArrayCreate_v2(&raw mut handle, description)), handle as u64)
    });
    give(place.cast(), result)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuArray3DCreate_v2(place: *mut Handle, description: *const c_void) -> c_int {
    if description.is_null() {
        return real!(cuArray3DCreate_v2(place, description));
    }
    // SAFETY: not null; the caller's struct.
    let array = unsafe { &*description.cast::<Array3D>() };
    let bytes = array_bytes([array.width, array.height, array.depth], array.format, array.channels);
    let result = within_budget(rounded(bytes), Key::Array, || {
        let mut handle = std::ptr::null_mut();
        result_of(real!(cuArray3DCreate_v2(&raw mut handle, description)), handle as u64)
    });
    give(place.cast(), result)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuArrayDestroy(array: Handle) -> c_int {
    if guard::is_on() {
        guard::discharge_key(Key::Array(array as u64));
    }
    real!(cuArrayDestroy(array))
}

// ---------------------------------------------------------------------------------- contexts and graphs

/// Where contexts are made: what that takes is measured.
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRetain(place: *mut Handle, device: c_int) -> c_int {
    static MEASURED: [OnceLock<()>; 64] = [const { OnceLock::new() }; 64];
    let number = usize::try_from(device).unwrap_or(usize::MAX);
    let first = MEASURED.get(number).filter(|measured| guard::is_on() && measured.set(()).is_ok());
    if first.is_none() {
        return real!(cuDevicePrimaryCtxRetain(place, device));
    }
    let before = context::used(number);
    let code = real!(cuDevicePrimaryCtxRetain(place, device));
    if code == SUCCESS {
        guard::context_made(number, before, context::used(number));
    }
    code
}

macro_rules! begins_a_capture {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(stream: Handle, mode: c_int) -> c_int {
            if guard::is_on() {
                guard::capture(true);
            }
            let code = real!($name(stream, mode));
            if code != SUCCESS && guard::is_on() {
                guard::capture(false);
            }
            code
        }
    )*};
}

macro_rules! ends_a_capture {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(stream: Handle, graph: *mut Handle) -> c_int {
            let code = real!($name(stream, graph));
            if guard::is_on() {
                guard::capture(false);
            }
            code
        }
    )*};
}

begins_a_capture! { cuStreamBeginCapture_v2 cuStreamBeginCapture_v2_ptsz }
ends_a_capture! { cuStreamEndCapture cuStreamEndCapture_ptsz }

// ------------------------------------------------------------------------------------- finding functions

macro_rules! ours {
    ($($name:ident)*) => {
        /// The functions of the driver's that are here: by name, and by the address that the driver has for them.
        fn ours() -> &'static Ours {
            static OURS: OnceLock<Ours> = OnceLock::new();
            OURS.get_or_init(|| {
                let mut ours = Ours::default();
                $(
                    let name = stringify!($name);
                    ours.by_name.insert(name, $name as *const () as usize);
                    if let Ok(c_name) = CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        let address = driver::find(driver::library(), c_name) as usize;
                        if address != 0 {
                            ours.by_address.insert(address, $name as *const () as usize);
                        }
                    }
                )*
                // What starts work is of interest only where backing moves.
                let moves = Settings::get().overflow > 0;
                for (name, function) in launches::ALL.iter().filter(|_| moves) {
                    ours.by_name.insert(name.to_str().unwrap_or_default(), function.0 as usize);
                    let address = driver::find(driver::library(), name) as usize;
                    if address != 0 {
                        ours.by_address.insert(address, function.0 as usize);
                    }
                }
                ours
            })
        }
    };
}

#[derive(Default)]
struct Ours {
    by_name: HashMap<&'static str, usize>,
    by_address: HashMap<usize, usize>,
}

ours! {
    cuMemAlloc_v2 cuMemFree_v2 cuMemGetInfo_v2 cuDeviceTotalMem_v2 cuMemAllocPitch_v2 cuMemAllocManaged
    cuMemAllocAsync cuMemAllocAsync_ptsz cuMemAllocFromPoolAsync cuMemAllocFromPoolAsync_ptsz
    cuMemFreeAsync cuMemFreeAsync_ptsz cuMemCreate cuMemRelease
    cuArrayCreate_v2 cuArray3DCreate_v2 cuArrayDestroy cuDevicePrimaryCtxRetain
    cuStreamBeginCapture_v2 cuStreamBeginCapture_v2_ptsz cuStreamEndCapture cuStreamEndCapture_ptsz
    cuGetProcAddress cuGetProcAddress_v2
}

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: u64 = 2;
/// From this version of CUDA on, memory has 64-bit sizes, and the functions that take them end in `_v2`.
const WIDE: c_int = 3020;

/// What replaces a function that the driver found: by its address, or else by the name and version that were asked
/// for.
fn replacement(name: *const c_char, found: usize, version: c_int, flags: u64) -> Option<usize> {
    if let Some(ours) = ours().by_address.get(&found) {
        return Some(*ours);
    }
    if name.is_null() || version < WIDE {
        return None;
    }
    // SAFETY: a string of C's caller.
    let name = unsafe { CStr::from_ptr(name) }.to_str().ok()?;
    let known = |name: &str| ours().by_name.get(name).copied();
    if name == "cuGetProcAddress" {
        return known(if version >= 12_000 { "cuGetProcAddress_v2" } else { name });
    }
    // A capture of the first version has no mode: the driver's own serves it.
    if name == "cuStreamBeginCapture" && version < 10_010 {
        return None;
    }
    let ends: &[&str] =
        if flags & PER_THREAD != 0 { &["_v2_ptsz", "_v2_ptds", "_ptsz", "_v2", ""] } else { &["_v2", ""] };
    ends.iter().find_map(|end| known(&format!("{name}{end}")))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetProcAddress(
    name: *const c_char,
    place: *mut Handle,
    version: c_int,
    flags: u64,
) -> c_int {
    let code = real!(cuGetProcAddress(name, place, version, flags));
    replace(code, name, place, version, flags);
    code
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetProcAddress_v2(
    name: *const c_char,
    place: *mut Handle,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> c_int {
    let code = real!(cuGetProcAddress_v2(name, place, version, flags, status));
    replace(code, name, place, version, flags);
    code
}

fn replace(code: c_int, name: *const c_char, place: *mut Handle, version: c_int, flags: u64) {
    if code != SUCCESS || place.is_null() {
        return;
    }
    // SAFETY: not null; the driver wrote there.
    let found = unsafe { place.read_unaligned() } as usize;
    if found != 0
        && let Some(ours) = replacement(name, found, version, flags)
    {
        // SAFETY: an out parameter of C.
        unsafe { put(place, ours as Handle) };
    }
}

// ------------------------------------------------------------------------------------------ the recorder

/// A block that PyTorch's allocator handed out (`size` above 0) or took back for good (below 0).
#[unsafe(no_mangle)]
pub extern "C" fn oomph_guard_block(device: c_int, address: u64, size: i64) {
    if guard::is_on()
        && let Ok(device) = usize::try_from(device)
    {
        guard::block(device, address, size);
    }
}

/// What lives in a block: 1 parameter, 2 gradient, 3 optimizer state, 4 frozen weights, 5 weights of adapters.
#[unsafe(no_mangle)]
pub extern "C" fn oomph_guard_kind(address: u64, size: u64, kind: c_int) {
    let kind = match kind {
        1 | 4 | 5 => Kind::Parameter,
        2 => Kind::Gradient,
        3 => Kind::State,
        _ => return,
    };
    if guard::is_on() {
        guard::kind(address, size, kind);
    }
}

/// An optimizer's step is about to begin (0), or has ended (1).
#[unsafe(no_mangle)]
pub extern "C" fn oomph_guard_phase(phase: c_int) {
    if guard::is_on() {
        guard::phase(phase);
    }
}

/// Writes the report, as JSON that ends with a zero, and gives its length. If that is not less than `size`, it is cut.
#[unsafe(no_mangle)]
pub extern "C" fn oomph_guard_report(buffer: *mut c_char, size: usize) -> usize {
    let text = report::json();
    if !buffer.is_null() && size > 0 {
        let count = text.len().min(size - 1);
        // SAFETY: the caller's buffer has `size` bytes, and no more than one less are copied.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, count);
            buffer.add(count).write(0);
        }
    }
    text.len()
}

/// When the process ends: the report goes where the settings say.
extern "C" fn at_exit() {
    report::write();
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
