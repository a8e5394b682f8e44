//! A stream of batches for a Python iterator.
//!
//! The stream lives on a thread of its own, which makes a batch whenever it is asked for one. So the caller waits without the
//! interpreter's lock and hears Ctrl-C; a batch that was being made then is not lost, but the next one that is given.

use crate::errors::raised;
use crate::results::Table;
use crate::work;
use arrow_array::RecordBatch;
use oomph_data::stream::{Progress, Stopper, Stream as Batches, StreamOptions};
use oomph_data::text::TextOverrides;
use oomph_data::{BrokenRows, DataError, OnError};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// As in [`crate::work`].
const LOOK_UP: Duration = Duration::from_millis(100);

/// Batches under a budget.
#[pyclass(frozen, module = "oomph._native")]
pub(crate) struct Stream {
    /// None once it is closed.
    open: Mutex<Option<Open>>,
    /// Held while a batch is waited for, and only without the interpreter's lock; the others but for a moment.
    answers: Mutex<Answers>,
    state: Mutex<State>,
}

/// What keeps the stream's threads at work.
struct Open {
    requests: Sender<()>,
    stopper: Stopper,
}

struct Answers {
    answers: Receiver<Result<Answer, DataError>>,
    /// A batch was asked for and not received: Ctrl-C came between, or it was not waited for.
    owed: bool,
    /// Received and not taken: whether it is there was all that was asked.
    ready: Option<Result<Answer, DataError>>,
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

/// Answers requests until the channel is closed.
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
        let (state, stopper) = (state(&batches), batches.stopper());
        let (requests, asked) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        thread::Builder::new()
            .name("oomph-stream".to_owned())
            .spawn(move || serve(batches, &asked, &answer))?;
        let answers = Mutex::new(Answers { answers, owed: false, ready: None });
        Ok(Self { open: Mutex::new(Some(Open { requests, stopper })), answers, state: Mutex::new(state) })
    }

    /// The next batch, or none at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Table>> {
        let batch = py.detach(|| self.wait_for_batch())?;
        Ok(batch.map(Table::batch))
    }

    /// Whether the next batch, or what is there instead (the end, an error), is there within so many seconds. It is asked for.
    fn ready(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let patience = Duration::try_from_secs_f64(seconds)
            .map_err(|_| PyValueError::new_err(format!("{seconds} seconds cannot be waited")))?;
        py.detach(|| self.answered_within(&mut locked(&self.answers), Some(patience)))
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

    /// Drops everything that was read ahead. Whoever waits for a batch waits no longer.
    fn close(&self) {
        if let Some(open) = locked(&self.open).take() {
            open.stopper.stop();
        }
        // Locked only by a caller that waits, and will find it closed.
        if let Ok(mut line) = self.answers.try_lock() {
            line.ready = None;
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.close();
    }
}

impl Stream {
    fn wait_for_batch(&self) -> PyResult<Option<RecordBatch>> {
        let mut line = locked(&self.answers);
        self.answered_within(&mut line, None)?;
        let Answer { batch, state } = match line.ready.take() {
            Some(Ok(answer)) => answer,
            // Only `close` stops it here.
            Some(Err(DataError::Stopped)) | None => return Err(closed()),
            Some(Err(error)) => return Err(raised(error)),
        };
        *locked(&self.state) = state;
        Ok(batch)
    }

    /// Asks for a batch, unless one is there or was asked for, and waits for it: so long at most, or as long as it takes.
    fn answered_within(&self, line: &mut Answers, patience: Option<Duration>) -> PyResult<bool> {
        if line.ready.is_some() {
            return Ok(true);
        }
        if !line.owed {
            locked(&self.open).as_ref().ok_or_else(closed)?.requests.send(()).map_err(|_| closed())?;
            line.owed = true;
        }
        let until = patience.and_then(|patience| Instant::now().checked_add(patience));
        loop {
            let left =
                until.map_or(LOOK_UP, |until| until.saturating_duration_since(Instant::now()).min(LOOK_UP));
            match line.answers.recv_timeout(left) {
                Ok(answer) => {
                    line.owed = false;
                    line.ready = Some(answer);
                    return Ok(true);
                }
                Err(RecvTimeoutError::Timeout) => Python::attach(|py| py.check_signals())?,
                Err(RecvTimeoutError::Disconnected) => return Err(closed()),
            }
            if until.is_some_and(|until| until <= Instant::now()) {
                return Ok(false);
            }
        }
    }
}

fn closed() -> PyErr {
    PyValueError::new_err("the stream is closed")
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
