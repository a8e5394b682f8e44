//! Batches under a budget: files of any size, in threads, in order or shuffled, a shard of them or all, taken up where they
//! were left.
//!
//! Inputs are cut into *pieces* ([`plan`]: a row group or a part of one, a record batch, a few MiB of text between two records,
//! some rows of an array), pieces are dealt to ranks, and decoded ahead by two threads (or one: [`limits`]) into *slabs* ([`decode`], [`pool`]).
//! A *window* of slabs is what rows are shuffled in; in order it is one slab. Batches are cut from the windows.
//!
//! The order is a matter of the inputs and the options alone, never of time: the same seed, epoch, rank, world and budget
//! give the same rows in the same order, and a [`Token`] leads back to any batch of it. A shuffle is
//! quasi-random: pieces in random order, rows at random within a window of almost half the budget; it is not a
//! random permutation of the whole.

mod cutter;
mod decode;
mod limits;
mod measure;
mod plan;
mod pool;
mod pressure;
mod random;
mod rows_of_arrays;
mod token;

use crate::text::{Columns, TextOverrides};
use crate::{BrokenRows, DataError, OnError};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use arrow_select::concat::concat_batches;
use arrow_select::interleave::interleave_record_batch;
use limits::shown;
use plan::Plan;
pub use pool::Stopper;
use pool::{Pool, Slab};
use random::Random;
use std::sync::Arc;
use token::Place;
pub use token::Token;

/// What to read, and how.
#[derive(Clone)]
pub struct StreamOptions {
    /// Rows of a batch; the last one may have fewer.
    pub batch_rows: usize,
    /// Bytes that may be in memory: read ahead, decoded, in the window, in the batch that is put together. Batches that were
    /// handed out are the caller's.
    pub budget: u64,
    /// The seed of a shuffle; in file order without one.
    pub shuffle: Option<u64>,
    /// Another shuffle of the same seed for every epoch.
    pub epoch: u64,
    /// These columns, in this order, or all.
    pub columns: Option<Vec<String>>,
    /// Which shard, from 0.
    pub rank: usize,
    /// How many shards. Every row is in exactly one; their numbers of batches may differ, unless they are to be [`equal`].
    ///
    /// [`equal`]: StreamOptions::equal
    pub world: usize,
    /// Every rank hands out as many batches as the one with the fewest rows has whole ones; the rest is left out. Text is read
    /// once more for that, to count.
    pub equal: bool,
    /// What to do with a row that makes no sense.
    pub on_error: OnError,
    /// What a person says about text.
    pub text: TextOverrides,
    /// Types of the columns of text; otherwise those of its head.
    pub types: Option<Columns>,
    /// No last batch with fewer rows.
    pub drop_last: bool,
    /// Where an earlier stream was left.
    pub resume: Option<Token>,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self {
            batch_rows: 1 << 16,
            budget: 256 << 20,
            shuffle: None,
            epoch: 0,
            columns: None,
            rank: 0,
            world: 1,
            equal: false,
            on_error: OnError::Fail,
            text: TextOverrides::default(),
            types: None,
            drop_last: false,
            resume: None,
        }
    }
}

/// How far a stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Batches that were handed out.
    pub batches: u64,
    pub rows: u64,
    /// Pieces that are behind, and how many there are, where that is known.
    pub pieces: (u64, Option<u64>),
    /// Bytes in memory now.
    pub held: u64,
    /// The most that were.
    pub peak: u64,
    /// How often nothing was read ahead, because the machine or a control group had little memory left.
    pub backed_off: u64,
}

/// Batches of a table that does not fit.
pub struct Stream {
    plan: Arc<Plan>,
    pool: Pool,
    inputs: String,
    batch_rows: usize,
    drop_last: bool,
    window: Option<Window>,
    /// Slabs to drop before the first window, and rows of it: what an earlier stream has handed out.
    behind: Place,
    /// Where the next row is, but for the rows of the window.
    place: Place,
    /// The first slab of the next window, where one was taken too many.
    next: Option<Slab>,
    /// Bytes of windows that are behind, but for the batch that is put together.
    retained: u64,
    batches: u64,
    rows: u64,
    ended: Ended,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    Not,
    AtTheEnd,
    /// Rows behind an error are not handed out as if nothing had been.
    WithAnError,
}

/// Slabs, and the order of their rows.
struct Window {
    slabs: Vec<Slab>,
    /// Slab and row of each row, where they are shuffled.
    order: Option<Vec<(u32, u32)>>,
    rows: usize,
    at: usize,
    /// What it takes, its order included.
    bytes: u64,
}

impl Stream {
    /// Lists what there is to read and begins to read ahead.
    pub fn open(locations: &[String], options: StreamOptions) -> Result<Self, DataError> {
        let plan = Arc::new(Plan::new(locations, &options)?);
        let inputs = plan.digest();
        let behind = match &options.resume {
            Some(token) => {
                token.check(&inputs, &plan.order)?;
                token.place.checked(plan.pieces.as_ref().map(Vec::len), plan.inputs.len())?
            }
            None => Place::default(),
        };
        let pool = Pool::start(plan.clone(), &behind)?;
        Ok(Self {
            plan,
            pool,
            inputs,
            batch_rows: options.batch_rows,
            drop_last: options.drop_last,
            window: None,
            behind,
            place: behind,
            next: None,
            retained: 0,
            batches: behind.batches,
            rows: 0,
            ended: Ended::Not,
        })
    }

    /// Names and types of the columns.
    pub fn schema(&self) -> SchemaRef {
        self.plan.schema.clone()
    }

    /// The next batch; waits until it is there. After an error there is no other.
    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>, DataError> {
        match self.ended {
            Ended::Not => {}
            Ended::AtTheEnd => return Ok(None),
            Ended::WithAnError => {
                return Err(DataError::Usage(
                    "the stream has ended with an error; open it again (its token leads to where it was)"
                        .to_owned(),
                ));
            }
        }
        let batch = match self.plan.equal_batches {
            Some(batches) if self.batches >= batches => Ok(None),
            _ => self.put_together(),
        };
        match &batch {
            Ok(Some(batch)) => {
                self.batches += 1;
                self.rows += batch.num_rows() as u64;
            }
            Ok(None) => self.ended = Ended::AtTheEnd,
            Err(_) => self.ended = Ended::WithAnError,
        }
        batch
    }

    /// What to give to [`StreamOptions::resume`] to go on behind the last batch. It may be made at any time, and is text.
    pub fn token(&self) -> String {
        let rows = self.window.as_ref().map_or(self.place.rows, |window| window.at as u64);
        let place = Place { rows, batches: self.batches, ..self.place };
        Token::new(self.inputs.clone(), self.plan.order.clone(), place).to_string()
    }

    /// What ends a wait for the next batch from another thread.
    pub fn stopper(&self) -> Stopper {
        self.pool.stopper()
    }

    pub fn progress(&self) -> Progress {
        let counts = self.pool.counts();
        let all = self.plan.pieces.as_ref().map(|pieces| pieces.len() as u64);
        Progress {
            batches: self.batches,
            rows: self.rows,
            pieces: (counts.pieces, all),
            held: counts.held,
            peak: counts.peak,
            backed_off: counts.backed_off,
        }
    }

    /// The rows that were left out, of the pieces that are behind.
    pub fn broken_rows(&self) -> BrokenRows {
        self.pool.broken_rows()
    }

    /// Rows from the windows until there are enough.
    fn put_together(&mut self) -> Result<Option<RecordBatch>, DataError> {
        let mut parts: Vec<RecordBatch> = Vec::new();
        let (mut rows, mut bytes) = (0, 0);
        let most = self.most_of_a_batch();
        while rows < self.batch_rows {
            if !self.fill_window()? {
                break;
            }
            let Some(window) = &mut self.window else { break };
            let count = (self.batch_rows - rows).min(window.rows - window.at);
            bytes += window.bytes * count as u64 / window.rows.max(1) as u64;
            if bytes > most {
                return Err(self.batch_too_large(bytes, rows + count));
            }
            parts.push(window.take(count).map_err(put_together_failed)?);
            rows += count;
        }
        if rows == 0 || (rows < self.batch_rows && self.drop_last) {
            return Ok(None);
        }
        // The parts are the window's own memory in order, and copies otherwise; several become one by another copy.
        let shuffled = self.plan.order.shuffle.is_some();
        let copies = if shuffled { bytes } else { 0 } + if parts.len() > 1 { bytes } else { 0 };
        self.pool.account(copies, 0);
        let batch = match parts.len() {
            1 => Ok(parts.swap_remove(0)),
            _ => concat_batches(&self.plan.schema, &parts).map_err(put_together_failed),
        };
        self.pool.account(0, copies + std::mem::take(&mut self.retained));
        batch.map(Some)
    }

    /// Sees to it that there is a window with rows; false at the end.
    fn fill_window(&mut self) -> Result<bool, DataError> {
        loop {
            if let Some(window) = &self.window {
                if window.at < window.rows {
                    return Ok(true);
                }
                self.place.rows = window.rows as u64;
                match window.order {
                    // The parts of the batch are its memory.
                    None => self.retained += window.bytes,
                    Some(_) => self.pool.account(0, window.bytes),
                }
                self.window = None;
            }
            let Some(mut window) = self.collect()? else { return Ok(false) };
            window.at = usize::try_from(self.behind.rows).unwrap_or(usize::MAX).min(window.rows);
            self.behind.rows = 0;
            self.window = Some(window);
        }
    }

    /// The next window: a slab, or as many as the budget allows where they are shuffled.
    fn collect(&mut self) -> Result<Option<Window>, DataError> {
        let Some(first) = self.next_slab()? else { return Ok(None) };
        self.place = Place {
            piece: first.piece,
            slab: first.number,
            text: self.pool.text_place(first.piece),
            ..self.place
        };
        let mut window = Window {
            rows: first.batch.num_rows(),
            at: 0,
            bytes: first.bytes,
            order: None,
            slabs: vec![first],
        };
        let Some(seed) = self.plan.order.shuffle else { return Ok(Some(window)) };
        let order_bytes = |rows: usize| rows as u64 * size_of::<(u32, u32)>() as u64;
        while let Some(slab) = self.next_slab()? {
            let rows = window.rows + slab.batch.num_rows();
            if window.bytes + slab.bytes + order_bytes(rows) > self.plan.limits.window {
                self.next = Some(slab);
                break;
            }
            window.bytes += slab.bytes;
            window.rows = rows;
            window.slabs.push(slab);
        }
        let rows_of = |(number, slab): (usize, &Slab)| {
            (0..slab.batch.num_rows()).map(move |row| (number as u32, row as u32))
        };
        let mut order: Vec<(u32, u32)> = window.slabs.iter().enumerate().flat_map(rows_of).collect();
        let mine = self.plan.order.rank as u64;
        Random::new(&[seed, self.plan.order.epoch, mine, self.place.piece, self.place.slab])
            .shuffle(&mut order);
        self.pool.account(order_bytes(window.rows), 0);
        window.bytes += order_bytes(window.rows);
        window.order = Some(order);
        Ok(Some(window))
    }

    fn next_slab(&mut self) -> Result<Option<Slab>, DataError> {
        if let Some(slab) = self.next.take() {
            return Ok(Some(slab));
        }
        while let Some(slab) = self.pool.next()? {
            let handed_out = slab.piece == self.behind.piece && slab.number < self.behind.slab;
            if !handed_out && slab.batch.num_rows() > 0 {
                return Ok(Some(slab));
            }
            self.pool.account(0, slab.bytes);
        }
        Ok(None)
    }

    fn most_of_a_batch(&self) -> u64 {
        match self.plan.order.shuffle {
            Some(_) => self.plan.limits.batch_shuffled,
            None => self.plan.limits.batch_in_order,
        }
    }

    /// Counts what the batch would have taken, without keeping it.
    fn batch_too_large(&mut self, mut bytes: u64, mut rows: usize) -> DataError {
        self.window = None;
        while rows < self.batch_rows {
            match self.next_slab() {
                Ok(Some(slab)) => {
                    let count = (self.batch_rows - rows).min(slab.batch.num_rows());
                    bytes += slab.bytes * count as u64 / slab.batch.num_rows() as u64;
                    rows += count;
                    self.pool.account(0, slab.bytes);
                }
                Ok(None) => break,
                Err(error) => return error,
            }
        }
        let parts = if self.plan.order.shuffle.is_some() { 8 } else { 4 };
        DataError::Usage(format!(
            "a batch of {rows} rows takes {}, more than the budget allows; give a budget of at least {}, or ask for fewer rows",
            shown(bytes),
            // Slabs of another size take a little more or less.
            shown(self.plan.limits.budget_leaving(bytes.saturating_mul(parts) / 2 * 3)),
        ))
    }
}

impl Window {
    fn take(&mut self, count: usize) -> Result<RecordBatch, arrow_schema::ArrowError> {
        let begin = self.at;
        self.at += count;
        match &self.order {
            None => Ok(self.slabs[0].batch.slice(begin, count)),
            Some(order) => {
                let batches: Vec<&RecordBatch> = self.slabs.iter().map(|slab| &slab.batch).collect();
                let places: Vec<(usize, usize)> = order[begin..begin + count]
                    .iter()
                    .map(|&(slab, row)| (slab as usize, row as usize))
                    .collect();
                interleave_record_batch(&batches, &places)
            }
        }
    }
}

fn put_together_failed(error: arrow_schema::ArrowError) -> DataError {
    DataError::Usage(format!("a batch could not be put together: {error}; ask for fewer rows"))
}
