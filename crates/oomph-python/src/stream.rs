//! A stream of batches for a Python iterator.
//!
//! The stream lives on a thread of its own, which makes a batch whenever it is asked for one. So the caller waits without the
//! interpreter's lock and hears Ctrl-C; a batch that was being made then is not lost, but the next one that is given.

use crate::errors::raised;
use crate::results::Table;
use crate::work;
use arrow_array::RecordBatch;
use oomph_data::stream::{Progress, Stream as Batches, StreamOptions};
use oomph_data::text::TextOverrides;
use oomph_data::{BrokenRows, DataError, OnError};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// As in [`crate::work`].
const LOOK_UP: Duration = Duration::from_millis(100);

/// Batches under a budget.
#[pyclass(frozen, module = "oomph._native")]
pub(crate) struct Stream {
    requests: Mutex<Option<Sender<()>>>,
    /// Held while a batch is waited for, and only without the interpreter's lock; the others but for a moment.
    answers: Mutex<Answers>,
    state: Mutex<State>,
}

struct Answers {
    answers: Receiver<Result<Answer, DataError>>,
    /// A batch was asked for and not taken: Ctrl-C came between.
    owed: bool,
}

/// Where the stream is, after what was handed out.
struct State {
    token: String,
    progress: Progress,
    broken_rows: BrokenRows,
}

struct Answer {
    batch: Option<RecordBatch>,
    state: State,
}

fn state(batches: &Batches) -> State {
    State { token: batches.token(), progress: batches.progress(), broken_rows: batches.broken_rows() }
}

/// Answers requests until nobody is left to ask.
fn serve(mut batches: Batches, requests: &Receiver<()>, answers: &Sender<Result<Answer, DataError>>) {
    while requests.recv().is_ok() {
        let answer = batches.next_batch().map(|batch| Answer { batch, state: state(&batches) });
        if answers.send(answer).is_err() {
            return;
        }
    }
}

#[pymethods]
impl Stream {
    /// Lists what there is to read and begins to read ahead.
    #[staticmethod]
    #[pyo3(signature = (locations, *, batch, budget, shuffle, epoch, columns, rank, world, equal, on_error, delimiter, header, nulls, drop_last, resume))]
    #[allow(clippy::too_many_arguments)] // as many as the stream has
    fn open(
        py: Python<'_>,
        locations: Vec<String>,
        batch: usize,
        budget: u64,
        shuffle: Option<u64>,
        epoch: u64,
        columns: Option<Vec<String>>,
        rank: usize,
        world: usize,
        equal: bool,
        on_error: &str,
        delimiter: Option<&str>,
        header: bool,
        nulls: Vec<String>,
        drop_last: bool,
        resume: Option<&str>,
    ) -> PyResult<Self> {
        let on_error = match on_error {
            "fail" => OnError::Fail,
            "skip" => OnError::Skip,
            _ => {
                return Err(PyValueError::new_err(format!(
                    "on_error={on_error:?} is neither \"fail\" nor \"skip\""
                )));
            }
        };
        let delimiter = match delimiter.map(str::as_bytes) {
            None => None,
            Some([byte]) => Some(*byte),
            Some(_) => {
                return Err(PyValueError::new_err("a delimiter is one character of ASCII, such as \";\""));
            }
        };
        let options = StreamOptions {
            batch_rows: batch,
            budget,
            shuffle,
            epoch,
            columns,
            rank,
            world,
            equal,
            on_error,
            text: TextOverrides { delimiter, no_header: !header, nulls },
            types: None,
            drop_last,
            resume: resume.map(str::parse).transpose().map_err(raised)?,
        };
        let batches = work::wait(py, move || Batches::open(&locations, options))?;
        let state = state(&batches);
        let (requests, asked) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        thread::Builder::new()
            .name("oomph-stream".to_owned())
            .spawn(move || serve(batches, &asked, &answer))?;
        let answers = Mutex::new(Answers { answers, owed: false });
        Ok(Self { requests: Mutex::new(Some(requests)), answers, state: Mutex::new(state) })
    }

    /// The next batch, or none at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Table>> {
        let batch = py.detach(|| self.wait_for_batch())?;
        Ok(batch.map(Table::batch))
    }

    /// What to resume with behind the last batch that was given.
    fn token(&self) -> String {
        locked(&self.state).token.clone()
    }

    /// Batches and rows that were given, pieces behind and of how many, bytes held now and at most, times that reading ahead
    /// was held back.
    fn progress(&self) -> (u64, u64, u64, Option<u64>, u64, u64, u64) {
        let progress = locked(&self.state).progress;
        let (behind, all) = progress.pieces;
        (progress.batches, progress.rows, behind, all, progress.held, progress.peak, progress.backed_off)
    }

    /// Rows that were left out: how many, and line and reason of the first.
    fn broken_rows(&self) -> (u64, Vec<(u64, String)>) {
        let state = locked(&self.state);
        let first = state.broken_rows.first.iter().map(|row| (row.line, row.what.clone()));
        (state.broken_rows.count, first.collect())
    }

    /// Lets go of everything that was read ahead.
    fn close(&self) {
        *locked(&self.requests) = None;
    }
}

impl Stream {
    fn wait_for_batch(&self) -> PyResult<Option<RecordBatch>> {
        let closed = || PyValueError::new_err("the stream is closed");
        let mut line = locked(&self.answers);
        if !line.owed {
            locked(&self.requests).as_ref().ok_or_else(closed)?.send(()).map_err(|_| closed())?;
            line.owed = true;
        }
        let answer = loop {
            match line.answers.recv_timeout(LOOK_UP) {
                Ok(answer) => break answer,
                Err(RecvTimeoutError::Timeout) => Python::attach(|py| py.check_signals())?,
                Err(RecvTimeoutError::Disconnected) => return Err(closed()),
            }
        };
        line.owed = false;
        let Answer { batch, state } = answer.map_err(raised)?;
        *locked(&self.state) = state;
        Ok(batch)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
