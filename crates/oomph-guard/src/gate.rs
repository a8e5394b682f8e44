//! Holds other threads' work back while backing changes: kernels, copies and graphs that would start in between.
//!
//! Waiting for the GPU is not enough where several threads use it: one could start a kernel between the wait and the
//! change. So what starts work passes this gate, at the cost of two atomic operations. Work for other devices passes
//! while one device's gate is closed: what that device still does may wait for it.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// How long to wait for those who are starting work: a queue that is full holds them for as long as a kernel runs.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long those wait at a time who find the gate closed.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

/// A gate. There is one in a process ([`GATE`]); tests have their own.
#[derive(Debug, Default)]
pub struct Gate {
    /// Those who are starting work now.
    starting: AtomicUsize,
    /// The device that is closed, plus one; 0 is none.
    closed: AtomicUsize,
}

/// The gate of this process.
pub static GATE: Gate = Gate { starting: AtomicUsize::new(0), closed: AtomicUsize::new(0) };

impl Gate {
    /// Passes, once the gate is open for the device that `device` gives, which is asked only if it is closed for one.
    pub fn pass<T>(&self, device: impl Fn() -> Option<usize>, work: impl FnOnce() -> T) -> T {
        loop {
            self.starting.fetch_add(1, SeqCst);
            let closed = self.closed.load(SeqCst);
            if closed == 0 || device().is_some_and(|device| device + 1 != closed) {
                break;
            }
            self.starting.fetch_sub(1, SeqCst);
            std::thread::sleep(POLL_INTERVAL);
        }
        let result = work();
        self.starting.fetch_sub(1, SeqCst);
        result
    }

    /// Closes it for a device and waits until no thread is starting work. False, and open, if that takes too long.
    pub fn close(&self, device: usize) -> bool {
        self.closed.store(device + 1, SeqCst);
        let began = Instant::now();
        while self.starting.load(SeqCst) != 0 {
            if began.elapsed() > PATIENCE {
                self.open();
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    pub fn open(&self) {
        self.closed.store(0, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn nobody_starts_work_for_a_device_while_it_is_closed() {
        let (gate, changing, ended) = (Gate::default(), AtomicBool::new(false), AtomicBool::new(false));
        let started = AtomicUsize::new(0);
        let elsewhere = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !ended.load(SeqCst) {
                        gate.pass(
                            || Some(0),
                            || {
                                assert!(!changing.load(SeqCst));
                                started.fetch_add(1, SeqCst);
                            },
                        );
                    }
                });
            }
            scope.spawn(|| {
                while !ended.load(SeqCst) {
                    gate.pass(|| Some(1), || elsewhere.fetch_add(1, SeqCst));
                    std::thread::sleep(POLL_INTERVAL);
                }
            });
            let mut closed = 0;
            while closed < 50 {
                if gate.close(0) {
                    closed += 1;
                    changing.store(true, SeqCst);
                    let before = elsewhere.load(SeqCst);
                    while closed == 1 && elsewhere.load(SeqCst) == before {
                        std::thread::yield_now();
                    }
                    changing.store(false, SeqCst);
                    gate.open();
                    let before = started.load(SeqCst);
                    while started.load(SeqCst) == before {
                        std::thread::yield_now();
                    }
                }
            }
            ended.store(true, SeqCst);
        });
    }

    #[test]
    fn one_who_is_starting_work_himself_does_not_wait_for_ever() {
        let gate = Gate::default();
        gate.pass(|| Some(0), || assert!(!gate.close(0)));
        assert!(gate.close(0));
    }
}
