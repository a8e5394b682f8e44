//! NVML: what PyTorch and monitors ask of the driver's management library.

use crate::card::Card;
use crate::{driver, memory, put};
use std::ffi::{c_char, c_int, c_uint, c_void};

const SUCCESS: c_int = 0;
const NOT_SUPPORTED: c_int = 3;
const INSUFFICIENT_SIZE: c_int = 7;

type Device = *mut c_void;

fn index(device: Device) -> usize {
    (device as usize).saturating_sub(1)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(count, Card::get().installed() as c_uint) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut Device) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(device, (index as usize + 1) as Device) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(id: *const c_char, device: *mut Device) -> c_int {
    // 0000:01:00.0 is device 0, see cudaDeviceGetPCIBusId; ids come in several widths, the bus after the first colon.
    let number = if id.is_null() {
        1
    } else {
        // SAFETY: a C string of the caller.
        let text = unsafe { std::ffi::CStr::from_ptr(id) }.to_string_lossy();
        text.split(':').nth(1).and_then(|bus| usize::from_str_radix(bus, 16).ok()).unwrap_or(1)
    };
    // SAFETY: an out parameter of C.
    unsafe { put(device, number.max(1) as Device) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByUUID(id: *const c_char, device: *mut Device) -> c_int {
    // It ends with the index in two digits, see nvmlDeviceGetUUID.
    let index = if id.is_null() {
        0
    } else {
        // SAFETY: a C string of the caller.
        let text = unsafe { std::ffi::CStr::from_ptr(id) }.to_string_lossy();
        let digits = text.get(text.len().saturating_sub(2)..);
        digits.and_then(|digits| usize::from_str_radix(digits, 16).ok()).unwrap_or(0)
    };
    let index = if index < Card::get().installed() as usize { index } else { 0 };
    // SAFETY: an out parameter of C.
    unsafe { put(device, (index + 1) as Device) };
    SUCCESS
}

/// As `cuDeviceGetUuid_v2` says it: the letters `oomph-virtual-g` and the index. Monitors know the virtual GPU by it.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetUUID(device: Device, place: *mut c_char, length: c_uint) -> c_int {
    let text = format!("GPU-6f6f6d70-682d-7669-7274-75616c2d67{:02x}", index(device) as u8);
    put_text(place, length, &text)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetIndex(device: Device, place: *mut c_uint) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, index(device) as c_uint) };
    SUCCESS
}

fn put_text(place: *mut c_char, length: c_uint, text: &str) -> c_int {
    if text.len() + 1 > length as usize || place.is_null() {
        return INSUFFICIENT_SIZE;
    }
    // SAFETY: the caller's buffer has `length` bytes, which is enough.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), place, text.len());
        place.add(text.len()).write(0);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetName(_device: Device, place: *mut c_char, length: c_uint) -> c_int {
    put_text(place, length, &Card::get().name)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetDriverVersion(place: *mut c_char, length: c_uint) -> c_int {
    put_text(place, length, "580.0")
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetCudaDriverVersion(place: *mut c_int) -> c_int {
    driver::cuDriverGetVersion(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetCudaDriverVersion_v2(place: *mut c_int) -> c_int {
    driver::cuDriverGetVersion(place)
}

/// Total, free, used: `nvmlMemory_t`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMemoryInfo(device: Device, place: *mut [u64; 3]) -> c_int {
    let (free, total) = memory::info(index(device));
    // SAFETY: an out parameter of C.
    unsafe { put(place, [total, free, total - free]) };
    SUCCESS
}

/// Version (which stays), total, reserved, free, used: `nvmlMemory_v2_t`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Device, place: *mut u64) -> c_int {
    let (free, total) = memory::info(index(device));
    if !place.is_null() {
        // SAFETY: the struct has five words.
        unsafe { put(place.add(1).cast::<[u64; 4]>(), [total, 0, free, total - free]) };
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCudaComputeCapability(
    _device: Device,
    major: *mut c_int,
    minor: *mut c_int,
) -> c_int {
    driver::cuDeviceComputeCapability(major, minor, 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetUtilizationRates(_device: Device, place: *mut [c_uint; 2]) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, [0, 0]) };
    SUCCESS
}

/// No process is listed: PyTorch then names none in its error.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetComputeRunningProcesses(
    _device: Device,
    count: *mut c_uint,
    _infos: *mut c_void,
) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(count, 0) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: Device,
    count: *mut c_uint,
    infos: *mut c_void,
) -> c_int {
    nvmlDeviceGetComputeRunningProcesses(device, count, infos)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: c_int) -> *const c_char {
    match code {
        SUCCESS => c"Success",
        NOT_SUPPORTED => c"Not Supported",
        _ => c"error of the virtual GPU",
    }
    .as_ptr()
}

macro_rules! answers {
    ($($name:ident => $code:expr;)*) => {$(
        /// Answers without looking at its arguments.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            $code
        }
    )*};
}

answers! {
    nvmlInit => SUCCESS;
    nvmlInit_v2 => SUCCESS;
    nvmlInitWithFlags => SUCCESS;
    nvmlShutdown => SUCCESS;
    // Success, with the struct as the caller zeroed it: no fabric. PyTorch 2.13 gives up expandable segments on an error.
    nvmlDeviceGetGpuFabricInfoV => SUCCESS;
    nvmlDeviceGetNvLinkRemoteDeviceType => NOT_SUPPORTED;
    nvmlDeviceGetNvLinkRemotePciInfo_v2 => NOT_SUPPORTED;
    nvmlDeviceGetNvLinkState => NOT_SUPPORTED;
    nvmlDeviceGetTemperature => NOT_SUPPORTED;
    nvmlDeviceGetPowerUsage => NOT_SUPPORTED;
    nvmlDeviceGetClockInfo => NOT_SUPPORTED;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_has_the_number_that_the_driver_gives_it() {
        let mut bytes = [0; 16];
        driver::cuDeviceGetUuid_v2(&raw mut bytes, 2);
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut text = [0 as c_char; 96];
        assert_eq!(nvmlDeviceGetUUID(3 as Device, text.as_mut_ptr(), 96), SUCCESS);
        // SAFETY: it was written with its end.
        let said = unsafe { std::ffi::CStr::from_ptr(text.as_ptr()) }.to_str().unwrap();
        assert_eq!(said.strip_prefix("GPU-").unwrap().replace('-', ""), digits);
        assert_eq!(said.len(), "GPU-00000000-0000-0000-0000-000000000000".len());
        assert_eq!(nvmlDeviceGetUUID(3 as Device, text.as_mut_ptr(), 20), INSUFFICIENT_SIZE);
    }

    #[test]
    fn a_number_that_is_no_cards_is_the_first_card() {
        for id in [c"GPU-6f6f6d70-682d-7669-7274-75616c2d6700", c"", c"f", c"\xff\xfe", c"GPU-ff"] {
            let mut device = std::ptr::null_mut();
            assert_eq!(nvmlDeviceGetHandleByUUID(id.as_ptr(), &raw mut device), SUCCESS);
            assert_eq!(index(device), 0, "{id:?}");
        }
    }
}
