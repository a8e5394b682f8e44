//! What is allocated on each device, now and at the most: of what PyTorch reports with every block.
//!
//! Counted apart from the recording, because a block of a step that repeats is not looked at further.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Devices that are known.
pub(crate) const MOST_DEVICES: usize = 64;

/// Of one device: what is allocated, and the most since three moments.
struct Gauge {
    now: AtomicU64,
    /// Since somebody asked for it: see [`mark`].
    marked: AtomicU64,
    /// Since the last step ended.
    step: AtomicU64,
    /// Since the recording began.
    recording: AtomicU64,
}

static GAUGES: [Gauge; MOST_DEVICES] = [const {
    Gauge {
        now: AtomicU64::new(0),
        marked: AtomicU64::new(0),
        step: AtomicU64::new(0),
        recording: AtomicU64::new(0),
    }
}; MOST_DEVICES];

/// Most blocks are below the peaks: to read is cheaper than to write.
fn lift(most: &AtomicU64, value: u64) {
    if value > most.load(Relaxed) {
        most.fetch_max(value, Relaxed);
    }
}

impl Gauge {
    fn set(&self, allocated: u64) {
        self.now.store(allocated, Relaxed);
        lift(&self.marked, allocated);
        lift(&self.step, allocated);
        lift(&self.recording, allocated);
    }
}

fn gauge(device: u32) -> Option<&'static Gauge> {
    GAUGES.get(device as usize)
}

/// So much is allocated on a device.
pub(crate) fn set(device: u32, allocated: u64) {
    if let Some(gauge) = gauge(device) {
        gauge.set(allocated);
    }
}

/// So much was allocated before anything was heard; does nothing if something was.
pub(crate) fn set_first(device: u32, allocated: u64) {
    if let Some(gauge) = gauge(device)
        && gauge.now.load(Relaxed) == 0
    {
        gauge.set(allocated);
    }
}

/// A recording begins.
pub(crate) fn begin() {
    for gauge in &GAUGES {
        let now = gauge.now.load(Relaxed);
        gauge.step.store(now, Relaxed);
        gauge.recording.store(now, Relaxed);
    }
}

/// A step has ended: its peak on a device.
pub(crate) fn end_step(device: u32) -> u64 {
    gauge(device).map_or(0, |gauge| gauge.step.swap(gauge.now.load(Relaxed), Relaxed))
}

/// What is allocated on a device, and the most since the recording began.
pub(crate) fn now_and_peak(device: u32) -> (u64, u64) {
    gauge(device).map_or((0, 0), |gauge| (gauge.now.load(Relaxed), gauge.recording.load(Relaxed)))
}

/// Forgets the peaks that [`marked`] tells.
pub(crate) fn mark() {
    for gauge in &GAUGES {
        gauge.marked.store(gauge.now.load(Relaxed), Relaxed);
    }
}

/// The peak since the last mark.
pub(crate) fn marked(device: u32) -> u64 {
    gauge(device).map_or(0, |gauge| gauge.marked.load(Relaxed))
}
