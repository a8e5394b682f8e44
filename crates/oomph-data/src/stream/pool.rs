//! The threads that decode ahead, and the account of what they hold.
//!
//! Pieces get tickets in the order in which they are handed out. The piece at the front may always go on, once what it has decoded
//! has been taken; those ahead of it share what is theirs, and nothing while memory is low. So the threads wait for
//! the reader, never for each other.

use super::cutter::Cutter;
use super::decode::{Decoder, Expansion, Sink, Work};
use super::plan::{Kind, Piece, Plan};
use super::pressure::Gauge;
use super::token::{Place, TextPlace};
use crate::source::Compression;
use crate::{BrokenRows, DataError};
use arrow_array::RecordBatch;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Pieces that are begun at once, so that empty ones do not pile up.
const MOST_PIECES: usize = 64;
/// How long a thread waits before it looks at memory again.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Rows that were decoded at once.
pub(super) struct Slab {
    pub(super) batch: RecordBatch,
    pub(super) bytes: u64,
    /// Ticket of its piece.
    pub(super) piece: u64,
    /// Its number in the piece.
    pub(super) number: u64,
}

#[derive(Default)]
struct Slot {
    /// Bytes of its slabs, and of what is being decoded.
    held: u64,
    /// Of those, reserved for what is being decoded.
    reserved: u64,
    slabs: VecDeque<Slab>,
    pushed: u64,
    ended: bool,
    error: Option<DataError>,
    broken: BrokenRows,
    text: Option<TextPlace>,
}

/// What is held, and what happened.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    /// Bytes of pieces, of slabs that the reader has taken and of batches it puts together.
    pub(super) held: u64,
    pub(super) peak: u64,
    /// How often nothing was read ahead because memory was low.
    pub(super) backed_off: u64,
    pub(super) pieces: u64,
}

struct State {
    /// The ticket at the front.
    front: u64,
    slots: VecDeque<Slot>,
    /// Whether there are no more pieces.
    ended: bool,
    stopped: bool,
    taken: u64,
    counts: Counts,
    broken: BrokenRows,
}

impl State {
    fn slot(&mut self, ticket: u64) -> Option<&mut Slot> {
        self.slots.get_mut(usize::try_from(ticket.checked_sub(self.front)?).ok()?)
    }

    fn ahead(&self) -> u64 {
        self.slots.iter().skip(1).map(|slot| slot.held).sum()
    }

    fn recount(&mut self) {
        let held = self.slots.iter().map(|slot| slot.held).sum::<u64>() + self.taken;
        self.counts.held = held;
        self.counts.peak = self.counts.peak.max(held);
    }
}

struct Shared {
    plan: Arc<Plan>,
    state: Mutex<State>,
    changed: Condvar,
    feed: Mutex<Feed>,
    gauge: Gauge,
    expansion: Arc<Expansion>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reader's end.
pub(super) struct Pool {
    shared: Arc<Shared>,
}

impl Pool {
    /// Begins with the piece of this place.
    pub(super) fn start(plan: Arc<Plan>, place: &Place) -> Result<Self, DataError> {
        let feed = Feed::new(&plan, place);
        let state = State {
            front: place.piece,
            slots: VecDeque::new(),
            ended: false,
            stopped: false,
            taken: 0,
            counts: Counts::default(),
            broken: BrokenRows::default(),
        };
        let shared = Arc::new(Shared {
            plan,
            state: Mutex::new(state),
            changed: Condvar::new(),
            feed: Mutex::new(feed),
            gauge: Gauge::new(),
            expansion: Arc::new(Expansion::new()),
        });
        let pool = Self { shared };
        for number in 0..pool.shared.plan.limits.decoders {
            let shared = pool.shared.clone();
            std::thread::Builder::new()
                .name(format!("oomph-stream-{number}"))
                .spawn(move || work(&shared))
                .map_err(|error| DataError::io("the threads of the stream", error))?;
        }
        Ok(pool)
    }

    /// The next slab, in order.
    pub(super) fn next(&self) -> Result<Option<Slab>, DataError> {
        let mut state = self.shared.state();
        loop {
            if state.stopped {
                return Err(DataError::Stopped);
            }
            let front = state.front;
            if let Some(slot) = state.slots.front_mut() {
                if let Some(slab) = slot.slabs.pop_front() {
                    slot.held -= slab.bytes;
                    state.taken += slab.bytes;
                    state.recount();
                    self.shared.changed.notify_all();
                    return Ok(Some(slab));
                }
                if let Some(error) = slot.error.take() {
                    return Err(error);
                }
                if slot.ended {
                    let broken = std::mem::take(&mut slot.broken);
                    state.broken.append(broken);
                    state.slots.pop_front();
                    state.front = front + 1;
                    state.counts.pieces += 1;
                    self.shared.changed.notify_all();
                    continue;
                }
            } else if state.ended {
                return Ok(None);
            }
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Bytes that the reader holds beside the slabs it has taken (a batch), and those of them it has released.
    pub(super) fn account(&self, taken: u64, released: u64) {
        let mut state = self.shared.state();
        state.taken = (state.taken + taken).saturating_sub(released);
        state.recount();
    }

    /// Where the piece of a ticket that is not yet finished lies in its text.
    pub(super) fn text_place(&self, ticket: u64) -> Option<TextPlace> {
        self.shared.state().slot(ticket)?.text
    }

    pub(super) fn stopper(&self) -> Stopper {
        Stopper(self.shared.clone())
    }

    pub(super) fn counts(&self) -> Counts {
        self.shared.state().counts
    }

    pub(super) fn broken_rows(&self) -> BrokenRows {
        self.shared.state().broken.clone()
    }
}

impl Drop for Pool {
    /// The threads end after what they are doing, and are not waited for.
    fn drop(&mut self) {
        self.stopper().stop();
        self.shared.state().slots.clear();
    }
}

/// Ends a stream from another thread than the one that waits for its next batch.
#[derive(Clone)]
pub struct Stopper(Arc<Shared>);

impl Stopper {
    /// Whoever waits for a batch gets [`DataError::Stopped`], at once.
    pub fn stop(&self) {
        self.0.state().stopped = true;
        self.0.changed.notify_all();
    }
}

/// What a thread does: the next piece, until there is none.
fn work(shared: &Shared) {
    let mut decoder = Decoder::new(shared.plan.clone(), shared.expansion.clone());
    loop {
        let mut feed = shared.feed.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(mut account) = Account::open(shared) else { return };
        let next = held(|| feed.next(&shared.plan, &mut account));
        let (work, text) = match next {
            Ok(Some(next)) => next,
            // With the feed still locked: no thread may take a ticket behind the last.
            Ok(None) => return account.withdraw(),
            Err(error) => return account.close(Some(error), BrokenRows::default()),
        };
        drop(feed);
        account.text(text);
        let mut broken = BrokenRows::default();
        let error = held(|| decoder.decode(work, &mut account, &mut broken)).err();
        let failed = error.is_some();
        account.close(error, broken);
        if failed {
            return;
        }
    }
}

/// A panic here would leave the reader waiting for ever: it becomes an error like any other.
fn held<T>(work: impl FnOnce() -> Result<T, DataError>) -> Result<T, DataError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(DataError::Usage(
            "a thread of the stream gave up; this is a fault of oomph: please report it".to_owned(),
        ))
    })
}

/// The account of a piece.
struct Account<'a> {
    shared: &'a Shared,
    ticket: u64,
}

impl<'a> Account<'a> {
    /// Waits for the turn of the next piece, and takes a ticket for it.
    fn open(shared: &'a Shared) -> Result<Self, DataError> {
        let mut state = shared.state();
        loop {
            if state.stopped || state.ended {
                return Err(DataError::Stopped);
            }
            let first = state.slots.is_empty();
            if first || (state.slots.len() < MOST_PIECES && !shared.gauge.is_low()) {
                let ticket = state.front + state.slots.len() as u64;
                state.slots.push_back(Slot::default());
                return Ok(Self { shared, ticket });
            }
            if state.slots.len() < MOST_PIECES {
                state.counts.backed_off += 1;
            }
            state = shared.changed.wait_timeout(state, LOOK_AGAIN).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn text(&self, text: Option<TextPlace>) {
        if let Some(slot) = self.shared.state().slot(self.ticket) {
            slot.text = text;
        }
    }

    /// There was no piece for the ticket, nor will there be one.
    fn withdraw(self) {
        let mut state = self.shared.state();
        state.slots.pop_back();
        state.ended = true;
        self.shared.changed.notify_all();
    }

    fn close(self, error: Option<DataError>, broken: BrokenRows) {
        let mut state = self.shared.state();
        let failed = error.is_some();
        if let Some(slot) = state.slot(self.ticket) {
            slot.held -= slot.reserved;
            slot.reserved = 0;
            slot.ended = true;
            slot.error = error;
            slot.broken = broken;
        }
        if failed {
            state.ended = true;
        }
        state.recount();
        self.shared.changed.notify_all();
    }
}

impl Sink for Account<'_> {
    fn reserve(&mut self, bytes: u64) -> Result<(), DataError> {
        let share = self.shared.plan.limits.share;
        let mut state = self.shared.state();
        loop {
            if state.stopped {
                return Err(DataError::Stopped);
            }
            let at_front = self.ticket == state.front;
            let ahead = state.ahead();
            let Some(slot) = state.slot(self.ticket) else { return Err(DataError::Stopped) };
            let own = slot.held - slot.reserved;
            let before = slot.reserved;
            let fits =
                if at_front { own == 0 || own + bytes <= share } else { ahead - before + bytes <= share };
            let low = !at_front && self.shared.gauge.is_low();
            if fits && !low {
                slot.held = own + bytes;
                slot.reserved = bytes;
                state.recount();
                return Ok(());
            }
            if low {
                state.counts.backed_off += 1;
            }
            state =
                self.shared.changed.wait_timeout(state, LOOK_AGAIN).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn push(&mut self, batch: RecordBatch, bytes: u64) -> Result<(), DataError> {
        let mut state = self.shared.state();
        if state.stopped {
            return Err(DataError::Stopped);
        }
        let ticket = self.ticket;
        if let Some(slot) = state.slot(ticket) {
            slot.held = slot.held - slot.reserved + bytes;
            slot.reserved = 0;
            slot.slabs.push_back(Slab { batch, bytes, piece: ticket, number: slot.pushed });
            slot.pushed += 1;
        }
        state.recount();
        self.shared.changed.notify_all();
        Ok(())
    }
}

/// Where pieces come from.
enum Feed {
    Listed { next: usize },
    Text(Box<TextFeed>),
}

impl Feed {
    fn new(plan: &Arc<Plan>, place: &Place) -> Self {
        match plan.pieces {
            Some(_) => Self::Listed { next: usize::try_from(place.piece).unwrap_or(usize::MAX) },
            None => Self::Text(Box::new(TextFeed {
                resume: place.text,
                input: place.text.map_or(0, |text| text.file),
                cutter: None,
                number: 0,
            })),
        }
    }

    fn next(
        &mut self,
        plan: &Plan,
        sink: &mut dyn Sink,
    ) -> Result<Option<(Work, Option<TextPlace>)>, DataError> {
        match self {
            Self::Listed { next } => {
                let piece: Option<Piece> = plan.pieces.as_ref().and_then(|pieces| pieces.get(*next).cloned());
                *next = next.saturating_add(1);
                Ok(piece.map(|piece| (Work::Listed(piece), None)))
            }
            Self::Text(feed) => feed.next(plan, sink),
        }
    }
}

/// Text that is read in order: every rank cuts all of it, and keeps its own pieces.
struct TextFeed {
    /// Where to begin, until it has begun.
    resume: Option<TextPlace>,
    input: usize,
    cutter: Option<Cutter>,
    /// Of the next piece, among those of all ranks.
    number: u64,
}

impl TextFeed {
    fn next(
        &mut self,
        plan: &Plan,
        sink: &mut dyn Sink,
    ) -> Result<Option<(Work, Option<TextPlace>)>, DataError> {
        let Kind::Text(columns) = &plan.kind else { return Ok(None) };
        sink.reserve(Expansion::new().bytes(plan.limits.text as u64))?;
        loop {
            let cutter = match &mut self.cutter {
                Some(cutter) => cutter,
                None => {
                    let Some(input) = plan.inputs.get(self.input) else { return Ok(None) };
                    let source = input.open()?;
                    let mut cutter = plan.cutter(&source, columns)?;
                    if let Some(place) = self.resume.take() {
                        self.number = place.number;
                        if columns.format().compression == Compression::None {
                            cutter = Cutter::at(
                                &source,
                                columns.format(),
                                plan.limits,
                                plan.on_error,
                                place.offset,
                                place.line,
                            )?;
                        } else {
                            cutter.skip_to(place.offset)?;
                        }
                    }
                    self.cutter.insert(cutter)
                }
            };
            let Some(chunk) = cutter.next()? else {
                self.cutter = None;
                self.input += 1;
                continue;
            };
            let broken = std::mem::take(&mut cutter.broken);
            let number = self.number;
            self.number += 1;
            if number % plan.order.world as u64 != plan.order.rank as u64 {
                continue;
            }
            let place = TextPlace { file: self.input, offset: chunk.offset, line: chunk.line, number };
            return Ok(Some((
                Work::Chunk { input: self.input, text: chunk.text, line: chunk.line, broken },
                Some(place),
            )));
        }
    }
}
