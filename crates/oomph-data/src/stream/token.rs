//! Where a stream was left, as text that a checkpoint can keep.

use crate::DataError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Of the text; raised when it changes.
const VERSION: u32 = 1;

/// Where a stream was left. It holds no location and no secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    oomph_stream: u32,
    /// Digest of the inputs: their names, sizes and versions, and the columns.
    inputs: String,
    pub(super) order: Order,
    pub(super) place: Place,
}

/// All that decides in which order rows come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) budget: u64,
    pub(super) shuffle: Option<u64>,
    pub(super) epoch: u64,
    pub(super) rank: usize,
    pub(super) world: usize,
    pub(super) skips_broken_rows: bool,
}

/// A place in the order: rows are counted from the beginning of a window, windows begin with a slab of a piece.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    /// Among the pieces of this rank.
    pub(super) piece: u64,
    pub(super) slab: u64,
    pub(super) rows: u64,
    /// Batches that were handed out before, of all resumed streams together.
    pub(super) batches: u64,
    /// Where the piece is in a text file that is read in order.
    pub(super) text: Option<TextPlace>,
}

/// The beginning of a piece of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TextPlace {
    pub(super) file: usize,
    pub(super) offset: u64,
    pub(super) line: u64,
    /// Among the pieces of all ranks.
    pub(super) number: u64,
}

/// Counters of a token beyond this are no stream's; they can be added to without a thought.
const MOST: u64 = 1 << 62;

impl Place {
    /// The place, if a stream of these pieces (as many as are listed) or inputs can have been left there.
    pub(super) fn checked(self, pieces: Option<usize>, inputs: usize) -> Result<Self, DataError> {
        let counters = [self.piece, self.slab, self.rows, self.batches];
        let of_text = self.text.map_or([0; 3], |text| [text.offset, text.line, text.number]);
        let listed = match (pieces, self.text) {
            (Some(pieces), None) => self.piece <= pieces as u64,
            // Text that is read in order: without a place in it, it would be read from its beginning.
            (None, Some(text)) => text.file < inputs,
            (None, None) => self == Self::default(),
            (Some(_), Some(_)) => false,
        };
        if !listed || counters.into_iter().chain(of_text).any(|counter| counter > MOST) {
            return Err(DataError::Usage(
                "the stream cannot be resumed: the token names a place that it does not have; use what token() gave"
                    .to_owned(),
            ));
        }
        Ok(self)
    }
}

impl Token {
    pub(super) fn new(inputs: String, order: Order, place: Place) -> Self {
        Self { oomph_stream: VERSION, inputs, order, place }
    }

    /// Refuses to go on elsewhere than where it was left.
    pub(super) fn check(&self, inputs: &str, order: &Order) -> Result<(), DataError> {
        let different = |what: &str, then: &dyn fmt::Debug, now: &dyn fmt::Debug| {
            Err(DataError::Usage(format!(
                "the stream cannot be resumed: {what} was {then:?} and is {now:?}; rows would be lost or repeated"
            )))
        };
        let Order { budget, shuffle, epoch, rank, world, skips_broken_rows } = order;
        let then = &self.order;
        if then.budget != *budget {
            return different("the budget", &then.budget, budget);
        }
        if then.shuffle != *shuffle {
            return different("the seed of the shuffle", &then.shuffle, shuffle);
        }
        if then.epoch != *epoch {
            return different("the epoch", &then.epoch, epoch);
        }
        if (then.rank, then.world) != (*rank, *world) {
            return different("rank and world", &(then.rank, then.world), &(rank, world));
        }
        if then.skips_broken_rows != *skips_broken_rows {
            return different("whether broken rows are skipped", &then.skips_broken_rows, skips_broken_rows);
        }
        if self.inputs != inputs {
            return Err(DataError::Usage(
                "the stream cannot be resumed: the inputs or the columns are others than when it was left; rows would be lost or repeated".to_owned(),
            ));
        }
        Ok(())
    }
}

impl fmt::Display for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

impl FromStr for Token {
    type Err = DataError;

    fn from_str(text: &str) -> Result<Self, DataError> {
        let version = serde_json::from_str::<serde_json::Value>(text)
            .ok()
            .and_then(|token| token.get("oomph_stream")?.as_u64());
        match version {
            Some(version) if version == u64::from(VERSION) => serde_json::from_str(text)
                .map_err(|error| DataError::Usage(format!("this is not a token of a stream: {error}"))),
            Some(version) => Err(DataError::Usage(format!(
                "the token is of version {version}; this oomph knows version {VERSION}: resume with the oomph that wrote it"
            ))),
            None => {
                Err(DataError::Usage("this is not a token of a stream: use what token() gave".to_owned()))
            }
        }
    }
}
