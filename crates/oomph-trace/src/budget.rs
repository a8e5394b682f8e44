//! What one file may make of itself: memory and work, charged where they are made.
//!
//! A few hundred bytes can ask for gigabytes: by packing, by naming one list a million times, by growing one stack frame by frame. No rule
//! for each of these tricks is needed if whoever stores an element says what it takes, and whoever follows a reference says that it did.
//!
//! Boundary: this counts. Readers charge *before* they store, and stop when they are refused.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A packed file may grow so many times when it is unpacked, which takes time alone. Real snapshots were seen to shrink 4- to 94-fold (text that
/// generates, by xz); steps that repeat exactly, without times, 436-fold.
pub(crate) const LARGEST_RATIO: u64 = 600;
/// Below this much, what is unpacked is not suspicious.
const ALWAYS_UNPACKED: u64 = 256 << 20;

/// Elements of a plain file: a snapshot takes a third of its size in memory, hardly ever more than it.
const PLAIN: Allowance = Allowance { always: 8 << 20, times: 16 };
/// The same of a packed one, an `.oomph` recording included: an event of steps that repeat exactly takes a quarter of a byte there, and 48 in memory.
const PACKED: Allowance = Allowance { always: 64 << 20, times: 200 };
/// References that are followed: a few a byte, in real files.
const WORK: Allowance = Allowance { always: 64 << 20, times: 128 };

/// So much, whatever the file's size, and so many times its size.
#[derive(Debug)]
struct Allowance {
    always: u64,
    times: u64,
}

impl Allowance {
    fn of(&self, read: u64) -> u64 {
        self.always.saturating_add(read.saturating_mul(self.times))
    }
}

/// Whether a file that is packed into `packed` bytes may unpack to so much.
pub(crate) fn may_unpack(packed: u64, unpacked: u64) -> bool {
    unpacked <= ALWAYS_UNPACKED.max(packed.saturating_mul(LARGEST_RATIO))
}

/// Why a file is refused: what it asks for is out of all proportion to its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "refused: {what} would take {} than a file of this size may{}",
    if *is_work { "more work".to_owned() } else { format!("more memory ({} MiB)", allowed >> 20) },
    if *form == Form::Compressed { "; unpack it yourself if you trust it" } else { "" }
)]
pub struct Swells {
    /// What there is too much of.
    pub what: &'static str,
    /// Bytes, or steps, that were allowed.
    pub allowed: u64,
    /// Whether it is work that there would be too much of, not memory.
    pub is_work: bool,
    /// How the file lies on the disk.
    pub form: Form,
}

/// How a file lies on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As it is.
    Plain,
    /// Compressed as a whole: unpacked, it may take more.
    Compressed,
    /// An `.oomph` recording, whose chunks are compressed.
    Recording,
}

/// How many bytes of the file have been read, as it lies on the disk. Set by who reads, looked at by who decodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter(Arc<AtomicU64>);

impl Meter {
    pub(crate) fn set(&self, read: u64) {
        self.0.store(read, Ordering::Relaxed);
    }

    fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A stream whose bytes are counted.
pub(crate) struct Counted<R> {
    source: R,
    meter: Meter,
}

impl<R> Counted<R> {
    pub(crate) fn new(source: R, meter: Meter) -> Self {
        Self { source, meter }
    }
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = self.source.read(into)?;
        self.meter.add(length as u64);
        Ok(length)
    }
}

/// What is left of a file's allowance.
#[derive(Debug)]
pub(crate) struct Budget {
    meter: Meter,
    form: Form,
    made: u64,
    may_make: u64,
    done: u64,
    may_do: u64,
    unpacked: u64,
    refused: Option<Swells>,
}

impl Budget {
    pub(crate) fn new(meter: Meter, form: Form) -> Self {
        Self { meter, form, made: 0, may_make: 0, done: 0, may_do: 0, unpacked: 0, refused: None }
    }

    /// Bytes that are about to be stored. False if they must not be.
    #[inline]
    pub(crate) fn charge(&mut self, bytes: usize, what: &'static str) -> bool {
        self.made = self.made.saturating_add(bytes as u64);
        self.made <= self.may_make || self.look_again(what)
    }

    /// Steps that are about to be done. False if they must not be.
    #[inline]
    pub(crate) fn work(&mut self, steps: usize, what: &'static str) -> bool {
        self.done = self.done.saturating_add(steps as u64);
        self.done <= self.may_do || self.look_again(what)
    }

    /// Bytes of a chunk that are about to be unpacked. False if they must not be.
    pub(crate) fn unpack(&mut self, bytes: usize) -> bool {
        self.unpacked = self.unpacked.saturating_add(bytes as u64);
        may_unpack(self.meter.read(), self.unpacked)
    }

    /// More of the file may have been read since.
    #[cold]
    fn look_again(&mut self, what: &'static str) -> bool {
        let read = self.meter.read();
        let memory = if self.form == Form::Plain { PLAIN } else { PACKED };
        (self.may_make, self.may_do) = (memory.of(read), WORK.of(read));
        let is_work = self.made <= self.may_make;
        if is_work && self.done <= self.may_do {
            return self.refused.is_none();
        }
        let allowed = if is_work { self.may_do } else { self.may_make };
        self.refused.get_or_insert(Swells { what, allowed, is_work, form: self.form });
        false
    }

    /// Why it was refused, if it was.
    pub(crate) fn refused(&self) -> Option<Swells> {
        self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_made_follows_what_was_read() {
        let meter = Meter::default();
        let mut budget = Budget::new(meter.clone(), Form::Plain);
        assert!(budget.charge(8 << 20, "stacks"));
        meter.set(1 << 20);
        assert!(budget.charge(16 << 20, "stacks"));
        assert_eq!(budget.refused(), None);
        assert!(!budget.charge(1, "stacks"));
        assert_eq!(
            budget.refused(),
            Some(Swells { what: "stacks", allowed: 24 << 20, is_work: false, form: Form::Plain })
        );
        let said = budget.refused().unwrap().to_string();
        assert!(said.contains("stacks would take more memory (24 MiB)"), "{said}");
    }

    #[test]
    fn references_that_are_followed_count_too() {
        let mut budget = Budget::new(Meter::default(), Form::Compressed);
        assert!(budget.work(64 << 20, "annotations"));
        assert!(!budget.work(1, "annotations"));
        assert_eq!(
            budget.refused().unwrap().to_string(),
            "refused: annotations would take more work than a file of this size may; unpack it yourself if you trust it"
        );
    }

    #[test]
    fn a_packed_file_may_not_unpack_without_measure() {
        assert!(may_unpack(1, 256 << 20));
        assert!(!may_unpack(1, (256 << 20) + 1));
        assert!(may_unpack(1 << 20, 600 << 20));
    }
}
