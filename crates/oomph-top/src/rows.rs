//! Rows of the table of processes: which, in what order, how they hang together.

use crate::cards::find;
use crate::ram::HeldBy;
use crate::rates::{Id, Rates, id};
use crate::words::Glyphs;
use oomph_host::{InsideDevice, Process, Sample};
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::str::FromStr;

#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) pid: u32,
    /// Its place in the sample; none for a process on a card that cannot be seen from here.
    pub(crate) at: Option<usize>,
    pub(crate) id: Id,
    /// Memory on the driver's cards.
    pub(crate) on_gpus: Vec<(u32, Option<u64>)>,
    /// What it has asked for of RAM, by its recording.
    pub(crate) asked: Option<u64>,
    /// Per cent of a processor.
    pub(crate) busy: Option<f64>,
    /// The branch it sits on, in a tree.
    pub(crate) branch: String,
}

impl Row {
    pub(crate) fn process<'a>(&self, sample: &'a Sample) -> Option<&'a Process> {
        sample.processes.get(self.at?)
    }

    /// Memory on the driver's cards, as far as it is known.
    pub(crate) fn gpu_bytes(&self) -> u64 {
        self.on_gpus.iter().filter_map(|(_, bytes)| *bytes).fold(0, u64::saturating_add)
    }
}

/// The sum of one value over all devices of a process, if it reports any.
pub(crate) fn inside(process: &Process, value: impl Fn(&InsideDevice) -> Option<u64>) -> Option<u64> {
    let devices = &process.inside.as_ref()?.devices;
    let known: Vec<u64> = devices.iter().filter_map(value).collect();
    if known.is_empty() { None } else { Some(known.into_iter().fold(0, u64::saturating_add)) }
}

/// By what rows are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// Memory on cards, then RAM.
    #[default]
    Gpu,
    /// In tensors.
    Allocated,
    /// Taken from the driver by PyTorch.
    Reserved,
    Step,
    /// Peak of the last step.
    Peak,
    /// Asked for of RAM, and not given back.
    Asked,
    /// In RAM.
    Resident,
    /// In RAM, its own.
    Anonymous,
    /// In RAM, pages of files.
    File,
    /// In RAM, shared.
    Shared,
    /// Out of RAM.
    Swap,
    /// Locked in RAM.
    Pinned,
    /// Processor time.
    Cpu,
    Pid,
    User,
    Command,
}

impl Sort {
    /// Every way, as the columns stand.
    pub const ALL: [Sort; 16] = [
        Sort::Pid,
        Sort::User,
        Sort::Gpu,
        Sort::Allocated,
        Sort::Reserved,
        Sort::Step,
        Sort::Peak,
        Sort::Asked,
        Sort::Resident,
        Sort::Anonymous,
        Sort::File,
        Sort::Shared,
        Sort::Swap,
        Sort::Pinned,
        Sort::Cpu,
        Sort::Command,
    ];

    /// As it is typed.
    pub fn name(self) -> &'static str {
        match self {
            Sort::Gpu => "gpu",
            Sort::Allocated => "allocated",
            Sort::Reserved => "reserved",
            Sort::Step => "step",
            Sort::Peak => "peak",
            Sort::Asked => "asked",
            Sort::Resident => "ram",
            Sort::Anonymous => "anonymous",
            Sort::File => "file",
            Sort::Shared => "shared",
            Sort::Swap => "swap",
            Sort::Pinned => "pinned",
            Sort::Cpu => "cpu",
            Sort::Pid => "pid",
            Sort::User => "user",
            Sort::Command => "command",
        }
    }

    /// What it means, for the list to choose from.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Sort::Gpu => "memory on GPUs, then RAM",
            Sort::Allocated => "in tensors (under oomph)",
            Sort::Reserved => "taken by PyTorch (under oomph)",
            Sort::Step => "steps done (under oomph)",
            Sort::Peak => "peak of the last step (under oomph)",
            Sort::Asked => "asked for of RAM (its RAM is recorded)",
            Sort::Resident => "in RAM",
            Sort::Anonymous => "in RAM: its own",
            Sort::File => "in RAM: pages of files",
            Sort::Shared => "in RAM: shared",
            Sort::Swap => "out of RAM",
            Sort::Pinned => "locked in RAM",
            Sort::Cpu => "processor time",
            Sort::Pid => "number",
            Sort::User => "user",
            Sort::Command => "command",
        }
    }

    pub(crate) fn at(self) -> usize {
        Self::ALL.iter().position(|one| *one == self).unwrap_or(0)
    }

    pub(crate) fn next(self) -> Self {
        Self::ALL[(self.at() + 1) % Self::ALL.len()]
    }

    pub(crate) fn previous(self) -> Self {
        Self::ALL[(self.at() + Self::ALL.len() - 1) % Self::ALL.len()]
    }

    /// Whether the smallest comes first by default.
    pub(crate) fn ascends(self) -> bool {
        matches!(self, Sort::Pid | Sort::User | Sort::Command)
    }
}

impl fmt::Display for Sort {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Sort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim().to_ascii_lowercase();
        Self::ALL.into_iter().find(|sort| sort.name() == text).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|sort| sort.name()).collect();
            format!("{text:?} is no column; choose of {}", names.join(", "))
        })
    }
}

/// Which rows, and in what order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    pub(crate) sort: Sort,
    pub(crate) reverse: bool,
    pub(crate) tree: bool,
    pub(crate) on_gpus: bool,
    pub(crate) user: Option<String>,
    pub(crate) filter: String,
}

impl Choice {
    /// Whether a process is among those that are asked for, whatever is typed as a filter.
    pub(crate) fn has(&self, process: &Process) -> bool {
        let is_on_gpus = !process.on_gpus.is_empty() || process.inside.is_some();
        (is_on_gpus || !self.on_gpus) && self.user.as_ref().is_none_or(|user| *user == process.user)
    }

    fn takes(&self, row: &Row, sample: &Sample, needle: &str) -> bool {
        let process = row.process(sample);
        let is_on_gpus = !row.on_gpus.is_empty() || process.is_some_and(|process| process.inside.is_some());
        if self.on_gpus && !is_on_gpus {
            return false;
        }
        let user = process.map(|process| process.user.as_str());
        if let Some(asked) = &self.user
            && user != Some(asked)
        {
            return false;
        }
        if needle.is_empty() || row.pid.to_string().contains(needle) {
            return true;
        }
        process.is_some_and(|process| {
            [&process.user, &process.command, &process.name]
                .into_iter()
                .any(|text| text.to_lowercase().contains(needle))
        })
    }
}

pub(crate) fn rows(
    sample: &Sample,
    ram: &HeldBy,
    rates: &Rates,
    choice: &Choice,
    glyphs: &Glyphs,
) -> Vec<Row> {
    let mut all: Vec<Row> = sample
        .processes
        .iter()
        .enumerate()
        .map(|(at, process)| Row {
            pid: process.pid,
            at: Some(at),
            id: id(process),
            on_gpus: process.on_gpus.clone(),
            asked: ram.get(&id(process)).map(|held| held.asked),
            busy: rates.of(process),
            branch: String::new(),
        })
        .collect();
    all.extend(unseen(sample));
    let needle = choice.filter.trim().to_lowercase();
    if choice.tree {
        return tree(all, sample, choice, &needle, glyphs);
    }
    all.retain(|row| choice.takes(row, sample, &needle));
    all.sort_by(|a, b| compare(a, b, sample, choice));
    all
}

/// Processes on cards whose pids are unknown here: of another container, or of the host.
fn unseen(sample: &Sample) -> Vec<Row> {
    let mut all: Vec<Row> = Vec::new();
    for gpu in &sample.gpus.cards {
        for one in gpu.processes.iter().filter(|one| find(one.pid, &sample.processes).is_none()) {
            match all.iter_mut().find(|row| row.pid == one.pid) {
                Some(row) => row.on_gpus.push((gpu.index, one.bytes)),
                None => all.push(Row {
                    pid: one.pid,
                    at: None,
                    id: (one.pid, 0),
                    on_gpus: vec![(gpu.index, one.bytes)],
                    asked: None,
                    busy: None,
                    branch: String::new(),
                }),
            }
        }
    }
    all
}

fn compare(a: &Row, b: &Row, sample: &Sample, choice: &Choice) -> Ordering {
    let order = match choice.sort {
        Sort::User => words(a, sample).0.cmp(words(b, sample).0),
        Sort::Command => words(a, sample).1.cmp(words(b, sample).1),
        sort => value(a, sample, sort).total_cmp(&value(b, sample, sort)),
    };
    let order = if choice.sort.ascends() == choice.reverse { order.reverse() } else { order };
    // Ties stand still: the larger in RAM first, then by number.
    let resident = |row: &Row| row.process(sample).map_or(0, |process| process.resident);
    order.then_with(|| resident(b).cmp(&resident(a))).then_with(|| a.pid.cmp(&b.pid))
}

fn words<'a>(row: &Row, sample: &'a Sample) -> (&'a str, &'a str) {
    row.process(sample).map_or(("", ""), |process| (process.user.as_str(), process.command.as_str()))
}

/// As a number; what is not known sorts below zero.
fn value(row: &Row, sample: &Sample, sort: Sort) -> f64 {
    let process = row.process(sample);
    let number = |value: Option<u64>| value.map_or(-1.0, |value| value as f64);
    match sort {
        Sort::Gpu => {
            let virtually = process
                .and_then(|process| inside(process, |device| device.is_virtual.then_some(device.reserved)));
            let is_on = !row.on_gpus.is_empty() || virtually.is_some();
            if is_on { row.gpu_bytes().saturating_add(virtually.unwrap_or(0)) as f64 } else { -1.0 }
        }
        Sort::Allocated => {
            number(process.and_then(|process| inside(process, |device| Some(device.allocated))))
        }
        Sort::Reserved => number(process.and_then(|process| inside(process, |device| Some(device.reserved)))),
        Sort::Peak => number(process.and_then(|process| inside(process, |device| device.last_peak))),
        Sort::Step => number(process.and_then(|process| process.inside.as_ref()).map(|inside| inside.steps)),
        Sort::Asked => number(row.asked),
        Sort::Resident => number(process.map(|process| process.resident)),
        Sort::Anonymous => number(process.map(|process| process.anonymous)),
        Sort::File => number(process.map(|process| process.file)),
        Sort::Shared => number(process.map(|process| process.shared)),
        Sort::Swap => number(process.map(|process| process.swapped)),
        Sort::Pinned => number(process.map(|process| process.pinned)),
        Sort::Cpu => row.busy.unwrap_or(-1.0),
        Sort::Pid => f64::from(row.pid),
        Sort::User | Sort::Command => 0.0,
    }
}

/// Parents before their children. A process that is left out by the filter is kept where a child of it is not.
fn tree(all: Vec<Row>, sample: &Sample, choice: &Choice, needle: &str, glyphs: &Glyphs) -> Vec<Row> {
    let places: HashMap<u32, usize> = all.iter().enumerate().map(|(at, row)| (row.pid, at)).collect();
    let parent = |row: &Row| {
        let parent = row.process(sample)?.parent;
        if parent == row.pid { None } else { places.get(&parent).copied() }
    };
    let mut kept: HashSet<usize> = HashSet::new();
    for (at, row) in all.iter().enumerate() {
        if choice.takes(row, sample, needle) {
            // Samples are not taken at one instant: parents may go round in a circle, which ends at what is kept already.
            let mut next = Some(at);
            while let Some(at) = next.filter(|at| kept.insert(*at)) {
                next = parent(&all[at]);
            }
        }
    }
    let mut children: HashMap<Option<usize>, Vec<usize>> = HashMap::new();
    for (at, row) in all.iter().enumerate().filter(|(at, _)| kept.contains(at)) {
        children.entry(parent(row).filter(|parent| kept.contains(parent))).or_default().push(at);
    }
    // A parent is sorted as the best of its children: a shell that started a training is where the training is looked for.
    let mut by_rank: Vec<usize> = kept.iter().copied().collect();
    by_rank.sort_by(|a, b| compare(&all[*a], &all[*b], sample, choice));
    let mut best: HashMap<usize, usize> = HashMap::new();
    for (rank, at) in by_rank.into_iter().enumerate() {
        // Whoever has a rank has a better one, and so have all above: this ends in a circle too.
        let mut next = Some(at);
        while let Some(at) = next.filter(|at| !best.contains_key(at)) {
            best.insert(at, rank);
            next = parent(&all[at]);
        }
    }
    for siblings in children.values_mut() {
        siblings.sort_by_key(|at| best.get(at).copied().unwrap_or(usize::MAX));
    }
    let mut ordered: Vec<Row> = Vec::with_capacity(kept.len());
    let mut put: HashSet<usize> = HashSet::new();
    // A stack, the next one last: place, trunk to its left, whether it is the last child, whether it has a parent.
    let mut next: Vec<(usize, String, bool, bool)> = Vec::new();
    let push = |of: Option<usize>, trunk: &str, next: &mut Vec<(usize, String, bool, bool)>| {
        let siblings = children.get(&of).map_or(&[][..], Vec::as_slice);
        for (number, at) in siblings.iter().enumerate().rev() {
            next.push((*at, trunk.to_owned(), number + 1 == siblings.len(), of.is_some()));
        }
    };
    push(None, "", &mut next);
    // Those in a cycle have no root: they come last.
    let mut stray: Vec<usize> = kept.iter().copied().collect();
    stray.sort_unstable_by(|a, b| b.cmp(a));
    while let Some((at, trunk, is_last, has_parent)) = next.pop().or_else(|| {
        let at = std::iter::from_fn(|| stray.pop()).find(|at| !put.contains(at))?;
        Some((at, String::new(), true, false))
    }) {
        if !put.insert(at) {
            continue;
        }
        let mut row = all[at].clone();
        // Deeper than this there is no room for a name.
        const DEEPEST: usize = 12;
        let mut below = trunk.clone();
        if has_parent {
            row.branch = format!("{trunk}{}", if is_last { glyphs.last_branch } else { glyphs.branch });
            if trunk.chars().count() < DEEPEST * 3 {
                below.push_str(if is_last { "   " } else { glyphs.trunk });
            }
        }
        push(Some(at), &below, &mut next);
        ordered.push(row);
    }
    ordered
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::staged;

    fn pids(sample: &Sample, choice: &Choice) -> Vec<u32> {
        let rows = rows(sample, &HeldBy::new(), &Rates::default(), choice, Glyphs::new(true));
        rows.iter().map(|row| row.pid).collect()
    }

    #[test]
    fn gpu_memory_comes_before_ram() {
        let sample = staged::two_gpus();
        assert_eq!(pids(&sample, &Choice::default()), [200, 100, 4_000_123, 300, 400, 1]);
        let reversed = Choice { reverse: true, ..Choice::default() };
        assert_eq!(pids(&sample, &reversed)[5], 200);
    }

    #[test]
    fn every_column_sorts_and_is_typed_as_it_is_called() {
        let sample = staged::two_gpus();
        for sort in Sort::ALL {
            assert_eq!(sort.name().parse::<Sort>().unwrap(), sort);
            assert_eq!(pids(&sample, &Choice { sort, ..Choice::default() }).len(), 6);
            assert_eq!(sort.next().previous(), sort);
        }
        let by = |sort| pids(&sample, &Choice { sort, ..Choice::default() });
        assert_eq!(by(Sort::Pid), [1, 100, 200, 300, 400, 4_000_123]);
        assert_eq!(by(Sort::Resident)[0], 400);
        assert_eq!(by(Sort::User)[..3], [4_000_123, 400, 100]);
        assert!("size".parse::<Sort>().unwrap_err().contains("ram"));
    }

    #[test]
    fn a_filter_looks_at_user_command_and_number() {
        let sample = staged::two_gpus();
        let with = |filter: &str| pids(&sample, &Choice { filter: filter.into(), ..Choice::default() });
        assert_eq!(with("ALICE"), [100, 400]);
        assert_eq!(with("serve.py"), [200]);
        assert_eq!(with("400"), [4_000_123, 400]);
        assert_eq!(with("nobody at all"), [] as [u32; 0]);
        let user = Choice { user: Some("bob".into()), ..Choice::default() };
        assert_eq!(pids(&sample, &user), [200]);
        let on_gpus = Choice { on_gpus: true, ..Choice::default() };
        assert_eq!(pids(&sample, &on_gpus), [200, 100, 4_000_123, 300]);
    }

    #[test]
    fn children_hang_on_their_parents_and_keep_them_in_sight() {
        let sample = staged::two_gpus();
        let choice = Choice { tree: true, sort: Sort::Pid, ..Choice::default() };
        let rows = rows(&sample, &HeldBy::new(), &Rates::default(), &choice, Glyphs::new(true));
        let branches: Vec<(u32, &str)> = rows.iter().map(|row| (row.pid, row.branch.as_str())).collect();
        assert_eq!(
            branches,
            [(1, ""), (100, "|- "), (400, "|  `- "), (200, "|- "), (300, "`- "), (4_000_123, "")]
        );
        let filtered = Choice { filter: "loader".into(), ..choice };
        assert_eq!(pids(&sample, &filtered), [1, 100, 400]);
    }

    #[test]
    fn parents_in_a_circle_are_all_shown_once() {
        let mut sample = staged::two_gpus();
        sample.processes[1].parent = 300;
        sample.processes[3].parent = 100;
        let mut shown = pids(&sample, &Choice { tree: true, ..Choice::default() });
        shown.sort_unstable();
        assert_eq!(shown, [1, 100, 200, 300, 400, 4_000_123]);
    }
}
