//! How a budget is divided.
//!
//! | part | for |
//! |---|---|
//! | 5/32 | the piece that is being handed out: its chunk of text, its decoded slabs |
//! | 5/32 | the pieces that are read ahead |
//! | 7/16 | the window that rows are shuffled in (in file order: the slabs of a batch, 1/4) |
//! | 1/4 | a batch that is put together |
//!
//! A slab is what is decoded at once: 1/32, so that several fit where one must. Blocks that are read ahead are in what the
//! parts do not use. Pages of Parquet are not small: a page of every column is in memory for each thread that decodes, and a
//! table may have thousands. They are taken off the budget before it is divided, and where two threads would take too much
//! of it, there is one.

use crate::DataError;

/// Below this the parts are too small to hold anything.
const LEAST_BUDGET: u64 = 1 << 20;
/// One decodes while the other reads.
const DECODERS: usize = 2;

/// What each part may have, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// The piece at the front, and all pieces ahead of it, each.
    pub(super) share: u64,
    /// Decoded at once, about.
    pub(super) slab: u64,
    /// A piece, decoded, about: what is shuffled and dealt out.
    pub(super) piece: u64,
    pub(super) window: u64,
    /// A batch, of slabs in order.
    pub(super) batch_in_order: u64,
    /// A batch, out of a window.
    pub(super) batch_shuffled: u64,
    /// Of text, at once.
    pub(super) text: usize,
    /// The longest record of text.
    pub(super) record: usize,
    /// Read ahead of a file.
    pub(super) block: usize,
    /// Threads that decode.
    pub(super) decoders: usize,
    /// Taken off the budget for pages: as much as one decoder holds.
    pages: u64,
}

impl Limits {
    /// `text_total`: bytes of text that are dealt to `world` ranks, so that each gets some.
    pub(super) fn new(budget: u64, world: usize, text_total: Option<u64>) -> Result<Self, DataError> {
        if budget < LEAST_BUDGET {
            return Err(DataError::Usage(format!(
                "a budget of {budget} bytes is too small to read anything; give at least {}",
                shown(LEAST_BUDGET)
            )));
        }
        Ok(Self::divided(budget, world, text_total))
    }

    /// The same budget, where each thread that decodes holds so many bytes of pages.
    pub(super) fn beside_pages(
        budget: u64,
        world: usize,
        pages: u64,
        location: &str,
    ) -> Result<Self, DataError> {
        if pages > budget / 2 {
            return Err(DataError::Usage(format!(
                "{location}: a page of each column takes {} in memory together, more than the budget allows; \
                 give a budget of at least {}, or name fewer columns",
                shown(pages),
                shown(whole_mebibytes(pages.saturating_mul(2))),
            )));
        }
        let decoders = if pages <= budget / 6 { DECODERS } else { 1 };
        let rest = budget - pages * decoders as u64;
        Ok(Self { decoders, pages, ..Self::divided(rest, world, None) })
    }

    fn divided(budget: u64, world: usize, text_total: Option<u64>) -> Self {
        let mut text = (budget / 128).clamp(8 << 10, 4 << 20);
        if let Some(total) = text_total.filter(|_| world > 1) {
            text = text.min(total / (4 * world as u64)).max(4 << 10);
        }
        Self {
            share: budget / 32 * 5,
            slab: (budget / 32).min(16 << 20),
            piece: (budget / 16).min(64 << 20),
            window: budget / 16 * 7,
            batch_in_order: budget / 4,
            batch_shuffled: budget / 8,
            text: text as usize,
            record: usize::try_from(budget / 16).unwrap_or(usize::MAX).max(text as usize),
            block: (budget / 64).clamp(16 << 10, 1 << 20) as usize,
            decoders: DECODERS,
            pages: 0,
        }
    }

    /// A budget that leaves so much to be divided.
    pub(super) fn budget_leaving(&self, bytes: u64) -> u64 {
        whole_mebibytes(bytes.saturating_add(self.pages.saturating_mul(DECODERS as u64)))
    }

    /// The budget whose share is so large.
    pub(super) fn budget_for_share(&self, bytes: u64) -> u64 {
        self.budget_leaving(bytes.saturating_mul(32) / 5)
    }

    pub(super) fn budget_for_record(bytes: u64) -> u64 {
        whole_mebibytes(bytes.saturating_mul(16))
    }

    /// zstd takes windows as powers of two; less than 1 MiB would refuse ordinary files.
    pub(super) fn zstd_window_log(&self) -> u32 {
        (self.batch_in_order.ilog2()).clamp(20, 27)
    }
}

/// Rounded up, with a little to spare: sizes of slabs change with the budget.
fn whole_mebibytes(bytes: u64) -> u64 {
    (bytes.saturating_add(bytes / 16) >> 20).saturating_add(1) << 20
}

/// Bytes as errors name them.
pub(super) fn shown(bytes: u64) -> String {
    match bytes {
        bytes if bytes < 1 << 20 => format!("{} KiB", bytes.div_ceil(1 << 10)),
        bytes => format!("{} MiB", bytes.div_ceil(1 << 20)),
    }
}
