//! Files that must not outlive oomph if a signal ends it.

use crate::unix::{LISTENING, ignored};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, Once};

static LEFTOVERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static WATCH: Once = Once::new();

/// While this is there, a signal that ends oomph takes the file with it.
#[derive(Debug)]
pub struct RemovedOnSignal(PathBuf);

impl RemovedOnSignal {
    /// If a listener handles signals already, it removes the file.
    pub fn new(path: &Path) -> Self {
        if let Ok(mut leftovers) = LEFTOVERS.lock() {
            leftovers.push(path.to_owned());
        }
        if !LISTENING.load(Ordering::Relaxed) {
            // Once for all: a signal that was listened to does not get its old meaning back.
            WATCH.call_once(watch);
        }
        Self(path.to_owned())
    }
}

impl Drop for RemovedOnSignal {
    fn drop(&mut self) {
        if let Ok(mut leftovers) = LEFTOVERS.lock() {
            leftovers.retain(|path| *path != self.0);
        }
    }
}

fn watch() {
    let ignored = ignored();
    let heard = [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0);
    let Ok(mut signals) = Signals::new(heard) else { return };
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            if let Ok(leftovers) = LEFTOVERS.lock() {
                for path in leftovers.iter() {
                    let _ = std::fs::remove_file(path);
                }
            }
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    });
}
