//! A call that is under way: what it does just now, and whether somebody still waits for its answer.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Shared by the call and by the server that waits for it.
#[derive(Clone, Debug, Default)]
pub struct Going(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    doing: String,
    is_cancelled: bool,
    stop: Option<Box<dyn Fn() + Send>>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:?}, cancelled: {}", self.doing, self.is_cancelled)
    }
}

impl Going {
    /// Says what is done now; the client is told within a second.
    pub fn say(&self, doing: &str) {
        doing.clone_into(&mut self.state().doing);
    }

    /// What stops it, once there is something to stop. If the call is cancelled already, at once.
    pub fn on_cancel(&self, stop: impl Fn() + Send + 'static) {
        let mut state = self.state();
        if state.is_cancelled {
            stop();
        }
        state.stop = Some(Box::new(stop));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // What is in it is whole at any time: a thread that panicked has spoilt nothing.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a server does with it.
#[cfg(any(feature = "protocol", test))]
impl Going {
    pub(crate) fn cancel(&self) {
        let mut state = self.state();
        state.is_cancelled = true;
        if let Some(stop) = &state.stop {
            stop();
        }
    }

    #[cfg(feature = "protocol")]
    pub(crate) fn is(&self, other: &Going) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    #[cfg(feature = "protocol")]
    pub(crate) fn doing(&self) -> String {
        self.state().doing.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn what_is_cancelled_is_stopped_be_it_before_or_after() {
        let stopped = Arc::new(AtomicU32::new(0));
        let stop = || {
            let stopped = Arc::clone(&stopped);
            move || {
                stopped.fetch_add(1, Ordering::Relaxed);
            }
        };
        let early = Going::default();
        early.cancel();
        assert_eq!(stopped.load(Ordering::Relaxed), 0);
        early.on_cancel(stop());
        assert_eq!(stopped.load(Ordering::Relaxed), 1);
        let late = Going::default();
        late.on_cancel(stop());
        assert_eq!(stopped.load(Ordering::Relaxed), 1);
        late.cancel();
        assert_eq!(stopped.load(Ordering::Relaxed), 2);
    }
}
