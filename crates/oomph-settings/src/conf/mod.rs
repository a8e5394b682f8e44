//! `PYTORCH_CUDA_ALLOC_CONF`: the settings that decide where blocks go.

mod parse;

pub use parse::{ConfError, names};

use crate::rounding::{LARGE_REQUEST, LARGE_SEGMENT, SMALL_LIMIT, round_size, segment_size};
use crate::version::Version;

/// The allocator's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Conf {
    /// `max_split_size_mb` in bytes.
    pub max_split_size: Option<u64>,
    /// `max_non_split_rounding_mb` in bytes; as large as a large segment unless set.
    pub max_non_split_rounding: Option<u64>,
    /// `large_segment_size_mb` in bytes.
    pub large_segment_size: u64,
    /// `roundup_power2_divisions`, for the intervals that start at 1, 2, 4 … 32768 MiB.
    pub roundup_power2_divisions: [u32; 16],
    /// `garbage_collection_threshold`; 0 is off.
    pub garbage_collection_threshold: f64,
    pub expandable_segments: bool,
    /// `per_process_memory_fraction`; 1 is no limit.
    pub per_process_memory_fraction: f64,
    pub throw_on_cudamalloc_oom: bool,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            max_split_size: None,
            max_non_split_rounding: None,
            large_segment_size: LARGE_SEGMENT,
            roundup_power2_divisions: [0; 16],
            garbage_collection_threshold: 0.0,
            expandable_segments: false,
            per_process_memory_fraction: 1.0,
            throw_on_cudamalloc_oom: false,
        }
    }
}

impl Conf {
    /// The bytes that a request takes once rounded.
    #[inline]
    pub fn round(&self, requested: u64) -> u64 {
        round_size(requested, &self.roundup_power2_divisions)
    }

    /// The bytes of the segment that is made for a rounded request.
    pub fn segment_size(&self, rounded: u64) -> u64 {
        if rounded > SMALL_LIMIT && rounded < LARGE_REQUEST {
            self.large_segment_size
        } else {
            segment_size(rounded)
        }
    }

    /// The threshold beyond which segments go back; expandable ones never do.
    pub fn collection_threshold(&self) -> f64 {
        if self.expandable_segments { 0.0 } else { self.garbage_collection_threshold }
    }

    /// What the process may take of a card with `total` bytes, if the settings limit it.
    pub fn limit(&self, version: Version, total: u64) -> Option<u64> {
        if self.per_process_memory_fraction >= 1.0 || !version.at_least(10) {
            return None;
        }
        let allowed = self.per_process_memory_fraction * total as f64;
        Some(if version.at_least(13) { allowed.round() as u64 } else { allowed as u64 })
    }
}
