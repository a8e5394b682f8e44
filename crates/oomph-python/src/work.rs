//! Long work for a Python caller: on a thread of its own, without the interpreter's lock, and with an ear for Ctrl-C.
//!
//! The calling thread waits. It alone may run signal handlers, so it looks for them while it waits; it also calls `progress`, so
//! that a caller's function runs where the caller is. Nothing half-done is left: the work is asked to stop, and is waited for.

use crate::errors::raised;
use oomph_data::{DataError, Observer, Pass};
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// How often the caller's thread looks up. A person who presses Ctrl-C does not feel a tenth of a second, and ten looks a
/// second cost nothing.
const LOOK_UP: Duration = Duration::from_millis(100);

/// What the two threads share.
#[derive(Default)]
pub(crate) struct Watch {
    stop: AtomicBool,
    pass: AtomicU64,
    done: AtomicU64,
    total: AtomicU64,
}

impl Observer for Watch {
    fn advanced(&self, pass: Pass, done: u64, total: u64) {
        self.pass.store(pass as u64, Ordering::Relaxed);
        self.done.store(done, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl Watch {
    /// Calls `progress(pass, done, total)`.
    fn call(&self, py: Python<'_>, progress: &Py<PyAny>) -> PyResult<()> {
        let total = self.total.load(Ordering::Relaxed);
        if total == 0 {
            return Ok(());
        }
        let pass = match self.pass.load(Ordering::Relaxed) {
            pass if pass == Pass::Profiling as u64 => "profiling",
            pass if pass == Pass::Loading as u64 => "loading",
            _ => "writing",
        };
        progress.call1(py, (pass, self.done.load(Ordering::Relaxed), total))?;
        Ok(())
    }
}

/// Does the work; raises what it raises, or what a signal's handler or `progress` raised meanwhile.
pub(crate) fn run<T: Send>(
    py: Python<'_>,
    progress: Option<&Py<PyAny>>,
    work: impl FnOnce(&Watch) -> Result<T, DataError> + Send,
) -> PyResult<T> {
    let watch = Watch::default();
    let outcome = py.detach(|| {
        std::thread::scope(|scope| {
            let (finish, finished) = mpsc::channel();
            let watch = &watch;
            let worker = scope.spawn(move || {
                let outcome = work(watch);
                // It fails only if the caller's thread died.
                let _ = finish.send(());
                outcome
            });
            let mut interrupted = None;
            // Disconnected: the work is done, or has panicked, which `join` returns.
            while finished.recv_timeout(LOOK_UP) == Err(RecvTimeoutError::Timeout) {
                if interrupted.is_some() {
                    continue;
                }
                let heard = Python::attach(|py| {
                    py.check_signals()?;
                    progress.map_or(Ok(()), |progress| watch.call(py, progress))
                });
                if let Err(raised) = heard {
                    watch.stop.store(true, Ordering::Relaxed);
                    interrupted = Some(raised);
                }
            }
            let outcome = worker.join();
            match interrupted {
                Some(raised) => Err(raised),
                None => Ok(outcome),
            }
        })
    })?;
    match outcome {
        Ok(outcome) => {
            let value = outcome.map_err(raised)?;
            progress.map_or(Ok(()), |progress| watch.call(py, progress))?;
            Ok(value)
        }
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Logs what a reader waits for, as Python's programs log: on stderr, unless they say otherwise. On a thread of its own: the one
/// that waits may hold what a Python thread waits for, which has the interpreter's lock.
pub(crate) fn warn(words: &str) {
    let words = words.to_owned();
    let log = move || {
        // None: the interpreter has ended, and nobody listens.
        Python::try_attach(|py| -> PyResult<()> {
            let logger = py.import("logging")?.call_method1("getLogger", ("oomph.data",))?;
            logger.call_method1("warning", ("%s", words)).map(|_| ())
        })
    };
    // A message that cannot be said is no reason to end the work.
    let _ = std::thread::Builder::new().name("oomph-warn".to_owned()).spawn(log);
}

/// Waits for something that leaves nothing behind, such as an answer from the network: whoever presses Ctrl-C does not wait for
/// its end.
pub(crate) fn wait<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, DataError> + Send + 'static,
) -> PyResult<T> {
    let (finish, finished) = mpsc::channel();
    let worker = std::thread::Builder::new().name("oomph-open".to_owned()).spawn(move || {
        // It fails if the caller is gone.
        let _ = finish.send(work());
    })?;
    py.detach(move || {
        loop {
            match finished.recv_timeout(LOOK_UP) {
                Ok(outcome) => return outcome.map_err(raised),
                Err(RecvTimeoutError::Timeout) => Python::attach(|py| py.check_signals())?,
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        match worker.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => Err(raised(DataError::Stopped)),
        }
    })
}
