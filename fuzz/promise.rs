//! What `SECURITY.md` promises of any file, measured: memory by an allocator that counts, work by the processor's time.
//!
//! Both targets hold what they do to it, so that a file that swells is found as a crash is, not only one that crashes.

use peak_alloc::PeakAlloc;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// What the command itself takes, less what it has before it reads.
const FLOOR: usize = 24 << 20;
/// What unpacking may take.
const PACKED: usize = 160 << 20;

/// What one file may take.
pub struct Promise {
    memory: usize,
    seconds: f64,
}

impl Promise {
    /// So many times its size. `is_packed` if it unpacks to more than it is.
    pub fn of(bytes: &[u8], times: usize, is_packed: bool) -> Self {
        let memory = FLOOR + times * bytes.len() + if is_packed { PACKED } else { 0 };
        // 20 s for a file of a few megabytes; a fuzzer's are smaller, and what is slow by its square shows early. Instrumented code takes three times as
        // long. A packed file may hold a million events in a kilobyte.
        let seconds = if is_packed { 15.0 } else { 2.0 + 2e-5 * bytes.len() as f64 };
        Self { memory, seconds }
    }

    /// Does it, and looks at what it took.
    pub fn hold<T>(&self, what: &str, work: impl FnOnce() -> T) -> T {
        let (before, start) = (MEMORY.current_usage(), processor_time());
        MEMORY.reset_peak_usage();
        let done = work();
        let took = MEMORY.peak_usage().saturating_sub(before);
        assert!(took <= self.memory, "{what} took {took} bytes, and may take {}", self.memory);
        let seconds = (processor_time() - start).as_secs_f64();
        assert!(seconds <= self.seconds, "{what} took {seconds:.1} s, and may take {:.1}", self.seconds);
        done
    }
}

/// Of all threads: other programs on this machine do not count.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
