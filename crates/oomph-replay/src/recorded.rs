//! The world that a recording was made in, as far as it shows: how much memory there was, and which rules of which version
//! gave every block its address.

use crate::addresses::{Addresses, Order};
use crate::allocator::Memory;
use crate::program::{Options, Outcome, Program};
use crate::torch::Torch;
use oomph_settings::conf::Conf;
use oomph_settings::rounding::LARGEST_SIZE;
use oomph_settings::version::{TieBreak, Version};
use oomph_trace::{Action, Settings};

/// The settings that a recording was made under. Numbers that the file has win over what its text says.
pub fn conf_of(settings: &Settings) -> Conf {
    let text =
        [Version::NEWEST, Version::new(2, 9)].into_iter().find_map(|v| Conf::parse(&settings.conf, v).ok());
    Conf {
        max_split_size: settings.max_split_size,
        garbage_collection_threshold: settings.garbage_collection_threshold,
        expandable_segments: settings.expandable_segments,
        roundup_power2_divisions: settings.roundup_power2_divisions,
        ..text.unwrap_or_default()
    }
}

/// How much memory a recorded program had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedMemory {
    /// What the replay uses: the least that agrees with the recording.
    pub memory: Memory,
    /// It had at least this much.
    pub at_least: u64,
    /// And less than this, if it ever ran short.
    pub below: Option<u64>,
}

impl RecordedMemory {
    /// Works it out from what was taken, and from where the allocator ran short.
    pub fn of(program: &Program, conf: &Conf) -> Self {
        let events = &program.device.events;
        let mut reserved = program.reserved_before();
        let (mut below, mut on_device, mut limited) = (u64::MAX, None, false);
        let threshold = conf.collection_threshold();
        let mut collected_at = u64::MAX;
        for release in program.releases.iter().filter(|release| !release.asked_for) {
            if threshold > 0.0 {
                // Garbage is collected beyond the threshold, which is a share of the limit.
                collected_at = collected_at.min(release.reserved);
            } else if let Some(segment) = release.segment {
                // Memory went back to make room for a segment: before, there was none for it.
                below = below.min(release.reserved.saturating_add(segment));
            }
        }
        for row in 0..events.len() {
            let size = events.size[row];
            match events.action[row] {
                Action::SegmentFree | Action::SegmentUnmap => reserved = reserved.saturating_sub(size),
                Action::SegmentAlloc | Action::SegmentMap => reserved = reserved.saturating_add(size),
                Action::OutOfMemory => {
                    let segment = conf.segment_size(size.min(LARGEST_SIZE));
                    let free = events.address[row];
                    if free >= segment {
                        limited = true;
                        below = below.min(reserved.saturating_add(segment));
                    } else {
                        on_device = Some(reserved.saturating_add(free));
                    }
                }
                _ => {}
            }
        }
        let below = (below != u64::MAX).then_some(below);
        match on_device {
            Some(room) if !limited => {
                let at_least = program.proven.reserved;
                let room = below.map_or(room, |below| room.min(below.saturating_sub(1))).max(at_least);
                Self { memory: Memory::of(room), at_least, below }
            }
            _ => {
                let at_least = program.proven.allowed;
                let mut limit = below.map(|_| at_least);
                if collected_at != u64::MAX {
                    let most = (collected_at.saturating_sub(1) as f64 / threshold) as u64;
                    limit = Some(below.map_or(most, |below| most.min(below - 1)).max(at_least));
                }
                Self { memory: Memory { limit, ..Memory::UNLIMITED }, at_least, below }
            }
        }
    }

    /// Limits that agree with the recording too, where garbage was collected beyond a share of one: how much then
    /// went back distinguishes them.
    pub(crate) fn other_limits(&self) -> impl Iterator<Item = u64> + use<> {
        const TRIED: u64 = 48;
        let most = self.memory.limit.unwrap_or(self.at_least).max(self.at_least);
        let step = (most - self.at_least) / TRIED;
        let (at_least, steps) = (self.at_least, if step == 0 { 0 } else { TRIED });
        (0..steps).map(move |times| at_least + times * step)
    }

    /// Whether the program ever ran short of memory.
    pub fn ran_short(&self) -> bool {
        self.memory != Memory::UNLIMITED
    }
}

/// A recording replayed as it was: the same settings, the recorded addresses of segments.
#[derive(Clone, Debug)]
pub struct Reproduction {
    /// The version whose rules were followed.
    pub version: Version,
    pub outcome: Outcome,
    /// Segments and mappings that were not taken as recorded.
    pub segments_differ: u64,
    /// How often the cache was given back to find room.
    pub retries: u64,
}

impl Reproduction {
    /// Everything that is not as recorded.
    pub fn differences(&self) -> u64 {
        let outcome = &self.outcome;
        let died = u64::from(outcome.died.is_some());
        outcome.address_mismatches + self.segments_differ + outcome.ooms_avoided.len() as u64 + died
    }

    /// Replays under the rules of one version.
    pub fn under(program: &Program, conf: &Conf, memory: Memory, version: Version) -> Self {
        let (segments, maps) = program.segment_addresses();
        let mut torch = Torch::new(conf.clone(), version, memory, Addresses::recorded(segments, maps));
        let open = program.import_before(&mut torch);
        let outcome = program.play(&mut torch, open, &Options { compare: true, ..Options::default() });
        let segments_differ = torch.addresses().disagreements() + torch.addresses().left_over();
        let retries = crate::allocator::Allocator::usage(&torch).retries;
        Self { version, outcome, segments_differ, retries }
    }
}

/// The rules under which other settings are replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World {
    pub version: Version,
    pub order: Order,
    /// Whether segments lie where the recording has some of their size.
    pub borrows: bool,
}

impl World {
    /// The likeliest world of a version.
    pub fn of(version: Version) -> Self {
        Self { version, order: Order::Driver, borrows: true }
    }

    /// All worlds of a version: several only where addresses decide.
    pub(crate) fn all_of(version: Version) -> Vec<Self> {
        let likeliest = Self::of(version);
        if version.tie_break() != TieBreak::Address {
            return vec![likeliest];
        }
        let others = [(Order::Up, true), (Order::Driver, false), (Order::Up, false)];
        std::iter::once(likeliest)
            .chain(others.map(|(order, borrows)| Self { order, borrows, ..likeliest }))
            .collect()
    }
}

/// All rules that agree with what was recorded, the likeliest first.
pub fn plausible_worlds(reproductions: &[Reproduction]) -> Vec<World> {
    let least = reproductions.iter().map(Reproduction::differences).min().unwrap_or(0);
    let agree = reproductions.iter().filter(|one| one.differences() == least);
    agree.flat_map(|one| World::all_of(one.version)).collect()
}

/// One version for each rule that decides among equal blocks, the likeliest first.
pub fn candidate_versions(program: &Program) -> Vec<Version> {
    // Events name their pool from 2.12 on.
    let newer = !program.device.events.pool.is_empty();
    let newest = [Version::NEWEST, Version::new(2, 12)];
    if newer { newest.to_vec() } else { [Version::new(2, 11)].into_iter().chain(newest).collect() }
}
