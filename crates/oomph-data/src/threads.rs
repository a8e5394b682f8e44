//! Work that is handed out in order to several threads.

use crate::{DataError, Observer};
use std::sync::{Mutex, PoisonError};

/// Takes items one after the other and works on them in several threads, each with a state of its own; gives the states.
///
/// The first error ends it: what was handed out before is still worked on, so that of several broken rows the one that
/// comes first in the file is named, whatever the threads did.
pub(crate) fn share<Item: Send, State: Send>(
    threads: usize,
    observer: &dyn Observer,
    next: impl FnMut() -> Result<Option<Item>, DataError> + Send,
    begin: impl Fn() -> State + Sync,
    work: impl Fn(&mut State, Item) -> Result<(), DataError> + Sync,
) -> Result<Vec<State>, DataError> {
    let items = Mutex::new((next, false));
    let lock = || items.lock().unwrap_or_else(PoisonError::into_inner);
    let take = || {
        let mut held = lock();
        if held.1 || observer.stopped() {
            return Err(DataError::Stopped);
        }
        let item = (held.0)();
        held.1 = item.is_err();
        item
    };
    let one = || -> Result<State, DataError> {
        let mut state = begin();
        while let Some(item) = take()? {
            work(&mut state, item).inspect_err(|_| lock().1 = true)?;
        }
        Ok(state)
    };
    let results: Vec<Result<State, DataError>> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads.max(1)).map(|_| scope.spawn(one)).collect();
        let first = one();
        let others = others
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        std::iter::once(first).chain(others).collect()
    });
    let mut states = Vec::with_capacity(results.len());
    let mut failure: Option<DataError> = None;
    for result in results {
        match result {
            Ok(state) => states.push(state),
            Err(error) if failure.as_ref().is_none_or(|known| says_more(&error, known)) => {
                failure = Some(error)
            }
            Err(_) => {}
        }
    }
    failure.map_or(Ok(states), Err)
}

/// What stopped the others says more than that they were stopped; of two broken rows the first does.
fn says_more(error: &DataError, known: &DataError) -> bool {
    match (error, known) {
        (DataError::Row { line, .. }, DataError::Row { line: known, .. }) => line < known,
        (_, known) => matches!(known, DataError::Stopped),
    }
}
