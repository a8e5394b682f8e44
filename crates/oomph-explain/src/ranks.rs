//! Ranks of one run: which of them did the same, and in what the others stand out.
//!
//! Boundary: it compares explanations; what the ranks are called, and how it reads, is another's business.

use crate::explanation::{DeviceExplanation, Explanation};
use crate::finding::{Place, Severity};
use crate::kinds::Kind;
use crate::oom::Outcome;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// What ranks that did the same may differ by, as a share of the peak: shards and batches are not all of one size.
const SAME: f64 = 0.02;
/// What they may differ by in any case: one of the allocator's small segments.
const SAME_BYTES: u64 = 2 << 20;
/// Of a group so many times smaller than the largest, each rank stands out.
const FEW: usize = 8;

/// A device of a recording, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// The number of the recording.
    pub recording: usize,
    /// The number of the device in its explanation.
    pub device: usize,
}

/// Ranks that did the same.
#[derive(Clone, Debug)]
pub struct Group {
    /// In order; never empty.
    pub members: Vec<Member>,
    /// The worst of them: one that died, or else the one that reserved most.
    pub worst: Member,
    /// In what the few stand out from the many.
    pub odd: Option<Odd>,
}

/// In what a group stands out.
#[derive(Clone, Debug)]
pub struct Odd {
    /// The number of the group that it was compared with: of the large ones the one that is most like it.
    pub beside: usize,
    /// The differences, what weighs most first.
    pub differences: Vec<Difference>,
}

/// A difference of one rank from the many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// It ran out of memory and died, and they did not.
    Died,
    /// They ran out of memory and died, and it did not.
    Lived,
    /// It holds more or less of a kind at its peak.
    Held {
        kind: Kind,
        /// Bytes here.
        here: u64,
        /// Bytes there.
        there: u64,
        /// The line with the largest part of the difference, and that part.
        line: Option<(Place, u64)>,
    },
    /// It holds the same, and has more or less reserved for it.
    Reserved {
        /// Bytes here.
        here: u64,
        /// Bytes there.
        there: u64,
    },
    /// Something is found here that is not found there.
    Found {
        /// The finding's code.
        code: &'static str,
        title: String,
    },
    /// Something is found there that is not found here.
    NotFound {
        /// The finding's code.
        code: &'static str,
        title: String,
    },
}

/// One of many, with what is compared of it.
struct Rank<'a> {
    member: Member,
    device: &'a DeviceExplanation,
    died: bool,
    /// Code and title of what is to be acted on, by code.
    found: BTreeMap<&'static str, &'a str>,
    kinds: BTreeMap<Kind, u64>,
}

impl<'a> Rank<'a> {
    fn of(member: Member, explanation: &'a Explanation) -> Self {
        let device = &explanation.devices[member.device];
        let found = (explanation.findings.iter())
            .filter(|one| one.device == Some(device.ordinal) && one.severity <= Severity::Warning)
            .map(|one| (one.code, one.title.as_str()));
        Self {
            member,
            device,
            died: has_died(device),
            found: found.rev().collect(),
            kinds: device.kinds.iter().map(|one| (one.kind, one.bytes)).collect(),
        }
    }

    fn is_like(&self, other: &Self) -> bool {
        self.died == other.died
            && self.found.keys().eq(other.found.keys())
            && self.is_close(other, self.device.peak.reserved.bytes, other.device.peak.reserved.bytes)
            && self.kinds_of(other).all(|(_, here, there)| self.is_close(other, here, there))
    }

    fn is_close(&self, other: &Self, here: u64, there: u64) -> bool {
        let peak = self.device.peak.allocated.bytes.max(other.device.peak.allocated.bytes);
        here.abs_diff(there) <= SAME_BYTES.max((peak as f64 * SAME) as u64)
    }

    /// Every kind that one of both holds, with the bytes of both.
    fn kinds_of<'b>(&'b self, other: &'b Self) -> impl Iterator<Item = (Kind, u64, u64)> + 'b {
        let bytes = |kinds: &BTreeMap<Kind, u64>, kind: &Kind| kinds.get(kind).copied().unwrap_or(0);
        let mine = self.kinds.iter().map(move |(kind, &here)| (*kind, here, bytes(&other.kinds, kind)));
        let theirs = other.kinds.iter().filter(|(kind, _)| !self.kinds.contains_key(*kind));
        mine.chain(theirs.map(|(kind, &there)| (*kind, 0, there)))
    }

    fn distance(&self, other: &Self) -> u64 {
        self.kinds_of(other).map(|(_, here, there)| here.abs_diff(there)).sum()
    }

    fn differences(&self, other: &Self) -> Vec<Difference> {
        let mut held: Vec<(Kind, u64, u64)> =
            self.kinds_of(other).filter(|&(_, here, there)| !self.is_close(other, here, there)).collect();
        held.sort_by_key(|&(_, here, there)| Reverse(here.abs_diff(there)));
        let mut all = Vec::new();
        match (self.died, other.died) {
            (true, false) => all.push(Difference::Died),
            (false, true) => all.push(Difference::Lived),
            _ => {}
        }
        all.extend(held.iter().map(|&(kind, here, there)| Difference::Held {
            kind,
            here,
            there,
            line: self.line(other, kind, here > there),
        }));
        let (here, there) = (self.device.peak.reserved.bytes, other.device.peak.reserved.bytes);
        if held.is_empty() && !self.is_close(other, here, there) {
            all.push(Difference::Reserved { here, there });
        }
        let only = |mine: &Self, theirs: &Self| -> Vec<(&'static str, String)> {
            let rest = mine.found.iter().filter(|(code, _)| !theirs.found.contains_key(*code));
            rest.map(|(code, title)| (*code, (*title).to_owned())).collect()
        };
        all.extend(only(self, other).into_iter().map(|(code, title)| Difference::Found { code, title }));
        all.extend(only(other, self).into_iter().map(|(code, title)| Difference::NotFound { code, title }));
        all
    }

    /// The line that makes most of the difference in a kind.
    fn line(&self, other: &Self, kind: Kind, more: bool) -> Option<(Place, u64)> {
        let mut lines: BTreeMap<&Place, i128> = BTreeMap::new();
        for (rank, sign) in [(self, 1), (other, -1)] {
            for line in rank.device.lines.iter().filter(|line| line.kind == kind) {
                *lines.entry(&line.place).or_default() += sign * i128::from(line.bytes);
            }
        }
        let sign = if more { 1 } else { -1 };
        let (place, bytes) =
            lines.into_iter().max_by_key(|&(place, bytes)| (sign * bytes, Reverse(place)))?;
        (sign * bytes > 0).then(|| (place.clone(), u64::try_from(bytes.unsigned_abs()).unwrap_or(u64::MAX)))
    }
}

/// Whether the program ran out of memory on this device and died.
pub fn has_died(device: &DeviceExplanation) -> bool {
    device.ooms.iter().any(|oom| oom.outcome == Outcome::Fatal)
}

/// Puts together what did the same, the largest group first.
pub fn groups(all: &[&Explanation]) -> Vec<Group> {
    let ranks: Vec<Rank> = (all.iter().enumerate())
        .flat_map(|(recording, explanation)| {
            (0..explanation.devices.len())
                .map(move |device| Rank::of(Member { recording, device }, explanation))
        })
        .collect();
    let mut alike: Vec<Vec<&Rank>> = Vec::new();
    for rank in &ranks {
        match alike.iter_mut().find(|group| group[0].is_like(rank)) {
            Some(group) => group.push(rank),
            None => alike.push(vec![rank]),
        }
    }
    // It is stable: groups of one size stay in the order of their first.
    alike.sort_by_key(|group| Reverse(group.len()));
    let largest = alike.first().map_or(0, Vec::len);
    let is_large = |group: &[&Rank]| group.len() > 1 && group.len() * FEW >= largest;
    (alike.iter())
        .map(|group| {
            let mine = group[0];
            let beside = (alike.iter().enumerate())
                .filter(|(_, other)| !is_large(group) && is_large(other))
                .min_by_key(|(_, other)| mine.distance(other[0]));
            let worst = group.iter().max_by_key(|rank| {
                (rank.died, rank.device.peak.reserved.bytes, Reverse(rank.member.recording))
            });
            Group {
                members: group.iter().map(|rank| rank.member).collect(),
                worst: worst.map_or(mine.member, |rank| rank.member),
                odd: beside.map(|(beside, other)| Odd { beside, differences: mine.differences(other[0]) }),
            }
        })
        .collect()
}
