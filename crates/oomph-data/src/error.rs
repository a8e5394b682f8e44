//! What can go wrong with data, in words that name the place.

use serde::Serialize;
use std::io;

/// Why data could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The machine or the network refused.
    #[error("{location}: {error}")]
    Io {
        /// Path or address.
        location: String,
        error: io::Error,
    },
    /// A row that does not make sense, where broken rows are not to be skipped.
    #[error("{location}: line {line}: {what}")]
    Row {
        /// Path or address.
        location: String,
        /// Counted from 1, as editors do; the header is a line.
        line: u64,
        /// What is wrong with it.
        what: String,
    },
    /// The file as a whole is not what it should be.
    #[error("{location}: {what}")]
    Unreadable {
        /// Path or address.
        location: String,
        /// What is wrong with it, and what to do.
        what: String,
    },
    /// What was asked for makes no sense.
    #[error("{0}")]
    Usage(String),
    /// The caller asked to stop.
    #[error("stopped")]
    Stopped,
}

impl DataError {
    /// An error of the machine, at a place.
    pub fn io(location: &str, error: io::Error) -> Self {
        Self::Io { location: location.to_owned(), error }
    }

    /// A file that is not what it should be.
    pub fn unreadable(location: &str, what: impl Into<String>) -> Self {
        Self::Unreadable { location: location.to_owned(), what: what.into() }
    }

    /// Why a reader failed: the source's own error, what is wrong with the bytes, or the machine.
    pub(crate) fn unread(location: &str, error: io::Error) -> Self {
        let error = match error.downcast::<Self>() {
            Ok(own) => return own,
            Err(error) => error,
        };
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
                Self::unreadable(location, error.to_string())
            }
            _ => Self::io(location, error),
        }
    }
}

/// What to do with a row that does not make sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnError {
    /// Stop, and name its line.
    #[default]
    Fail,
    /// Leave it out, and count it.
    Skip,
}

/// A row that was left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BrokenRow {
    /// Counted from 1.
    pub line: u64,
    /// What is wrong with it.
    pub what: String,
}

/// The rows that were left out: how many, and the first of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct BrokenRows {
    /// How many.
    pub count: u64,
    /// The first [`BrokenRows::NAMED`].
    pub first: Vec<BrokenRow>,
}

impl BrokenRows {
    /// How many are named.
    pub const NAMED: usize = 20;

    pub fn push(&mut self, line: u64, what: String) {
        self.count += 1;
        if self.first.len() < Self::NAMED {
            self.first.push(BrokenRow { line, what });
        }
    }

    /// Adds those of a later part of the same file.
    pub fn append(&mut self, later: BrokenRows) {
        self.count += later.count;
        let room = Self::NAMED - self.first.len();
        self.first.extend(later.first.into_iter().take(room));
    }
}
