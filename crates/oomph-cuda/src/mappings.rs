//! Says which addresses get memory behind them, and which lose it: to the recorder, if it asks. The driver of a real card tells nobody.

use std::ffi::c_int;
use std::sync::OnceLock;

/// Device (-1 where it is not known), address, bytes, and whether there is memory behind them now.
type Listener = extern "C" fn(c_int, u64, u64, c_int);

static LISTENER: OnceLock<Listener> = OnceLock::new();

/// From here on this is called.
#[unsafe(no_mangle)]
pub extern "C" fn oomph_tell_mappings(listener: Option<Listener>) {
    if let Some(listener) = listener {
        let _ = LISTENER.set(listener);
    }
}

pub fn mapped(device: Option<usize>, address: u64, size: u64) {
    tell(device, address, size, 1);
}

pub fn unmapped(address: u64, size: u64) {
    tell(None, address, size, 0);
}

fn tell(device: Option<usize>, address: u64, size: u64, is_mapped: c_int) {
    if let Some(listener) = LISTENER.get() {
        let device = device.and_then(|device| c_int::try_from(device).ok()).unwrap_or(-1);
        listener(device, address, size, is_mapped);
    }
}
