//! What the process's context takes of a device, which no allocation of the driver's shows: measured with NVML.
//!
//! First, the device's used memory before and after its context is made. Later, where NVML knows this process by its own
//! number (not in a container that numbers processes anew), its used memory less what the guard counted: contexts
//! grow when kernels are loaded. If neither is available, the context counts as nothing, and the report says so.

use crate::{driver, real, sys};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

type Device = *mut c_void;

/// `nvmlProcessInfo_t`, second version and later.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Process {
    number: c_uint,
    used: u64,
    instances: [c_uint; 2],
}

/// More processes than share one card.
const PROCESSES: usize = 256;
/// What a context takes at most; a difference beyond is another process's.
const LARGEST: u64 = 8 << 30;

/// The functions of NVML that are needed.
struct Nvml {
    by_uuid: unsafe extern "C" fn(*const c_char, *mut Device) -> c_int,
    memory: unsafe extern "C" fn(Device, *mut [u64; 3]) -> c_int,
    processes: Option<unsafe extern "C" fn(Device, *mut c_uint, *mut Process) -> c_int>,
}

impl Nvml {
    fn get() -> Option<&'static Nvml> {
        static NVML: OnceLock<Option<Nvml>> = OnceLock::new();
        NVML.get_or_init(Nvml::load).as_ref()
    }

    fn load() -> Option<Nvml> {
        let library = sys::open(c"libnvidia-ml.so.1");
        let init = sys::symbol(library, c"nvmlInit_v2");
        let by_uuid = sys::symbol(library, c"nvmlDeviceGetHandleByUUID");
        let memory = sys::symbol(library, c"nvmlDeviceGetMemoryInfo");
        let processes = sys::symbol(library, c"nvmlDeviceGetComputeRunningProcesses_v3");
        if init.is_null() || by_uuid.is_null() || memory.is_null() {
            return None;
        }
        // SAFETY: NVML's functions of those names, which have these types.
        unsafe {
            let init: unsafe extern "C" fn() -> c_int = std::mem::transmute(init);
            if init() != 0 {
                return None;
            }
            Some(Nvml {
                by_uuid: std::mem::transmute::<
                    Device,
                    unsafe extern "C" fn(*const c_char, *mut Device) -> c_int,
                >(by_uuid),
                memory: std::mem::transmute::<Device, unsafe extern "C" fn(Device, *mut [u64; 3]) -> c_int>(
                    memory,
                ),
                processes: std::mem::transmute::<
                    Device,
                    Option<unsafe extern "C" fn(Device, *mut c_uint, *mut Process) -> c_int>,
                >(processes),
            })
        }
    }

    /// The device that the driver calls so: the two number them differently.
    fn device(&self, device: usize) -> Option<Device> {
        let mut uuid = [0_u8; 16];
        if real!(cuDeviceGetUuid_v2(&raw mut uuid, c_int::try_from(device).ok()?)) != driver::SUCCESS {
            return None;
        }
        let mut name = String::from("GPU-");
        for (index, byte) in uuid.iter().enumerate() {
            if [4, 6, 8, 10].contains(&index) {
                name.push('-');
            }
            for digit in [byte >> 4, byte & 15] {
                name.push(char::from_digit(u32::from(digit), 16).unwrap_or('0'));
            }
        }
        let name = CString::new(name).ok()?;
        let mut found = std::ptr::null_mut();
        // SAFETY: a string that ends with a zero, and a place for a handle.
        (unsafe { (self.by_uuid)(name.as_ptr(), &raw mut found) } == 0 && !found.is_null()).then_some(found)
    }
}

/// Bytes of a device that are in use, by whomever.
pub fn used(device: usize) -> Option<u64> {
    let nvml = Nvml::get()?;
    let device = nvml.device(device)?;
    let mut memory = [0; 3];
    // SAFETY: a device of NVML's, and a place for total, free and used.
    (unsafe { (nvml.memory)(device, &raw mut memory) } == 0).then(|| memory.last().copied().unwrap_or(0))
}

/// Bytes of a device that this process uses, if NVML knows it.
pub fn used_by_us(device: usize) -> Option<u64> {
    let nvml = Nvml::get()?;
    let processes = nvml.processes?;
    let device = nvml.device(device)?;
    let mut found = [Process::default(); PROCESSES];
    let mut count = PROCESSES as c_uint;
    // SAFETY: a device of NVML's, and places for as many processes as are said.
    if unsafe { processes(device, &raw mut count, found.as_mut_ptr()) } != 0 {
        return None;
    }
    let us = std::process::id();
    let process = found.iter().take(count as usize).find(|process| process.number == us)?;
    // All ones: NVML is not allowed to say.
    (process.used != u64::MAX).then_some(process.used)
}

/// What making a context took, by the device's used memory before and after.
pub fn difference(before: Option<u64>, after: Option<u64>) -> Option<u64> {
    after?.checked_sub(before?).filter(|bytes| *bytes <= LARGEST)
}
