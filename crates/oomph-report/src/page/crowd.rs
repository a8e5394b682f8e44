//! A run of more ranks than a page can draw: of those that did the same one is drawn, and says whom it stands for.
//!
//! Boundary: who did the same is `oomph-explain`'s to say, and what is said of all of them `ranks.rs`'s.

use super::data::Alike;
use crate::ranks::Ranks;
use crate::shared::Named;
use crate::{host, html};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// So many recordings are drawn: each is some hundred kilobytes of a page, and more cannot be looked at one by one.
pub const MOST_DRAWN: usize = 64;

/// Which of many recordings a page draws.
#[derive(Clone, Debug)]
pub struct Crowd {
    recordings: usize,
    drawn: Vec<usize>,
    /// By the number of a recording that is drawn, and the ordinal of its device.
    alike: BTreeMap<(usize, u32), Alike>,
    compared: String,
}

impl Crowd {
    /// Chooses: of the largest group, and then of those that are worst.
    pub fn of(all: &[Named]) -> Self {
        let ranks = Ranks::of(all);
        let mut groups: Vec<_> = ranks.groups.iter().collect();
        let first = groups.len().min(1);
        groups[first..].sort_by_key(|group| Reverse(ranks.badness(group.worst)));
        groups.truncate(MOST_DRAWN);
        let mut drawn: BTreeSet<usize> = groups.iter().map(|group| group.worst.recording).collect();
        let mut of_ram: Vec<(Reverse<u64>, usize)> = (all.iter().enumerate())
            .filter_map(|(index, one)| Some((Reverse(one.explanation.host.as_ref()?.asked), index)))
            .collect();
        of_ram.sort_unstable();
        // At least the largest: beside GPUs it is what is asked about.
        let room = MOST_DRAWN.saturating_sub(drawn.len()).max(1);
        drawn.extend(of_ram.iter().take(room).map(|&(_, index)| index));
        let drawn: Vec<usize> = drawn.into_iter().collect();
        let alike = (groups.iter())
            .filter(|group| group.members.len() > 1)
            .filter_map(|group| {
                let place = drawn.binary_search(&group.worst.recording).ok()?;
                let others: Vec<_> = (group.members.iter())
                    .copied()
                    .filter(|member| drawn.binary_search(&member.recording).is_err())
                    .collect();
                let alike = Alike { count: others.len(), names: ranks.names(&others) };
                (alike.count > 0).then(|| ((place, ranks.device(group.worst).ordinal), alike))
            })
            .collect();
        Self { recordings: all.len(), drawn, alike, compared: compared(all) }
    }

    /// Which recordings are drawn, by their numbers, in order.
    pub fn drawn(&self) -> &[usize] {
        &self.drawn
    }

    /// How many recordings the run has.
    pub(super) fn recordings(&self) -> usize {
        self.recordings
    }

    /// What is said of all of them.
    pub(super) fn compared(&self) -> String {
        self.compared.clone()
    }

    /// Whom a device stands for, by the number of its recording among those that are drawn.
    pub(super) fn alike(&self, recording: usize, ordinal: u32) -> Option<Alike> {
        self.alike.get(&(recording, ordinal)).cloned()
    }
}

/// What is said of all, before the one that the page opens with: of devices, and of processes, where there are several.
pub(super) fn compared(all: &[Named]) -> String {
    let mut out = String::new();
    let ranks = Ranks::of(all);
    let processes = all.iter().filter(|one| one.explanation.host.is_some()).count();
    // Of ranks there may be one: the others could not be read.
    if ranks.devices() > 1 || (ranks.devices() == 1 && processes == 0) {
        out.push_str("<section class=\"oomph compared\" aria-label=\"Ranks compared\">\n");
        html::compared(&mut out, &ranks);
        out.push_str("</section>\n");
    }
    if processes > 1 {
        out.push_str("<section class=\"oomph compared\" aria-label=\"Processes compared\">\n");
        host::processes_in_html(&mut out, all);
        out.push_str("</section>\n");
    }
    out
}
