//! Asks for cards in a thread of its own: a call into a driver that hangs does not come back, and who takes samples must not hang
//! with it. RAM and processes go on; of the cards the last answer is reported, with its age.

use crate::gpus::{Gpus, Missing, Reader};
use crate::smi;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// A driver without a process that keeps it awake wakes up for the first question, card by card.
const FIRST: Duration = Duration::from_secs(30);
/// Then it takes milliseconds; this much is none that is merely busy.
const LATER: Duration = Duration::from_secs(2);

/// Asks, waits a while, and takes the last answer if none comes.
pub(crate) struct Asked {
    library: Option<PathBuf>,
    first: Duration,
    thread: Option<Thread>,
}

/// The thread that asks, as it is seen from outside.
struct Thread {
    questions: Sender<()>,
    /// Each with the time at which it came.
    answers: Receiver<(Instant, Gpus)>,
    began: Instant,
    last: Option<(Instant, Gpus)>,
    /// A question is not answered yet: another would only wait behind it.
    is_waiting: bool,
}

impl Asked {
    /// With the driver's library, or with another.
    pub(crate) fn new(library: Option<PathBuf>) -> Self {
        Self { library, first: FIRST, thread: None }
    }

    pub(crate) fn hurried(self) -> Self {
        Self { first: LATER, ..self }
    }

    pub(crate) fn read(&mut self) -> Gpus {
        let thread = self.thread.get_or_insert_with(|| Thread::start(self.library.clone()));
        thread.read(self.first)
    }
}

impl Thread {
    fn start(library: Option<PathBuf>) -> Self {
        let (questions, asked) = channel();
        let (answer, answers) = channel();
        let ask = move || {
            let mut reader = Reader::new(library);
            while asked.recv().is_ok() {
                // A static program has no loader of libraries in it.
                let gpus = if cfg!(target_feature = "crt-static") { smi::read() } else { reader.read() };
                if answer.send((Instant::now(), gpus)).is_err() {
                    return;
                }
            }
        };
        // If no thread can be started, there is no answer, as with a driver that hangs.
        let _ = std::thread::Builder::new().name("nvml".to_owned()).spawn(ask);
        Self { questions, answers, began: Instant::now(), last: None, is_waiting: false }
    }

    fn read(&mut self, first: Duration) -> Gpus {
        if let Ok(late) = self.answers.try_recv() {
            self.last = Some(late);
            self.is_waiting = false;
        }
        // It was waited for when it was asked: since then everything else goes on without it.
        let mut patience = Duration::ZERO;
        if !self.is_waiting {
            patience = if self.last.is_some() { LATER } else { first };
            self.is_waiting = self.questions.send(()).is_ok();
        }
        match self.answers.recv_timeout(patience) {
            Ok(answer) => {
                self.is_waiting = false;
                let (_, gpus) = self.last.insert(answer);
                gpus.clone()
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => self.old(),
        }
    }

    fn old(&self) -> Gpus {
        let since = |when: &Instant| Some(when.elapsed().as_millis() as u64);
        match &self.last {
            Some((when, gpus)) => Gpus { silent_for: since(when), ..gpus.clone() },
            None => Gpus {
                missing: Some(Missing::Other(format!("no word in {} s", self.began.elapsed().as_secs()))),
                silent_for: since(&self.began),
                ..Gpus::default()
            },
        }
    }
}
