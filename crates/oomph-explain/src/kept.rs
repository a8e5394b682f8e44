//! What outlives the forward that made it.
//!
//! A block of a forward that is still there when the same line has begun another forward is kept by something: a graph that
//! no backward pass has used, a list, a hook. Which of them follows from lives and from order, and is proved by the
//! census where there is one. Rules say what to do about each.

use crate::finding::{Patch, Place, Where};
use crate::observed::Observed;
use crate::sources::Phase;
use hashbrown::{HashMap, HashSet};
use oomph_trace::census::Holder;
use oomph_trace::{FrameId, Moment};
use oomph_words::{grouped, printable};

/// Why it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// A graph whose gradients will not be used.
    NoGradMissing,
    /// A graph that has had its backward pass, or whose result is stored.
    GraphKept,
    /// Graphs that wait for one backward pass together.
    BackwardOnce,
    /// Tensors without a graph.
    TensorsKept,
}

/// What one line's forwards leave behind.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) how: How,
    /// The blocks, with the moment at which each could have been freed.
    pub(crate) blocks: Vec<(Moment, u32)>,
    pub(crate) bytes: u64,
    /// How many forwards they are of.
    pub(crate) rounds: usize,
    /// What a forward leaves, in the median.
    pub(crate) per_round: u64,
    /// The program's own line that makes them.
    pub(crate) made_at: Option<FrameId>,
    /// Who keeps them, if the census knows.
    pub(crate) holder: Option<Holder>,
    /// Whether it is inferred rather than proved.
    pub(crate) likely: bool,
}

/// Less than this is noise: a counter, a random state.
const LEAST: u64 = 1 << 20;
/// A forward that leaves so many blocks has left its graph; one without gradients leaves its result. Where the program itself
/// can say more, it takes more to begin with.
fn blocks_of_a_graph(observed: &Observed) -> usize {
    if observed.census.is_some() { 3 } else { 2 }
}

impl Kept {
    /// Checks all that is alive at the moment that is explained.
    pub(crate) fn find(observed: &Observed) -> Vec<Self> {
        let (all, forwards, until) = (&observed.history.allocations, &observed.forwards, observed.moment);
        let mut by_site: HashMap<FrameId, Vec<(usize, u32)>> = HashMap::new();
        for &(index, kind) in &observed.held {
            let of_the_model = kind.is_of_the_model();
            let i = index as usize;
            let phase = observed.sources.phase(all.stack(i));
            let of_a_round = matches!(phase, Phase::Forward | Phase::User | Phase::Data);
            let Some(round) = forwards.before(all.born(i)).filter(|_| !of_the_model && of_a_round) else {
                continue;
            };
            let site = forwards.all()[round].site;
            // What the program's own lines make may be the next forward's input.
            let least = if phase == Phase::Forward { 1 } else { 2 };
            if forwards.later(site, all.born(i), until) >= least {
                by_site.entry(site).or_default().push((round, index));
            }
        }
        let mut kept: Vec<Self> =
            by_site.into_iter().filter_map(|(site, blocks)| Self::of_site(observed, site, blocks)).collect();
        kept.sort_by_key(|one| std::cmp::Reverse(one.bytes));
        kept
    }

    fn of_site(observed: &Observed, site: FrameId, blocks: Vec<(usize, u32)>) -> Option<Self> {
        let all = &observed.history.allocations;
        let mut rounds: HashMap<usize, (u64, usize)> = HashMap::new();
        for &(round, index) in &blocks {
            let sum = rounds.entry(round).or_default();
            sum.0 += all.size(index as usize);
            // A graph is what modules make; what the program's own lines keep beside it is not.
            sum.1 += usize::from(observed.sources.phase(all.stack(index as usize)) == Phase::Forward);
        }
        let bytes: u64 = rounds.values().map(|(bytes, _)| bytes).sum();
        if bytes < LEAST {
            return None;
        }
        let mut sizes: Vec<u64> = rounds.values().map(|(bytes, _)| *bytes).collect();
        sizes.sort_unstable();
        let mut counts: Vec<usize> = rounds.values().map(|(_, count)| *count).collect();
        counts.sort_unstable();
        let is_graph_by_count = counts[counts.len() / 2] >= blocks_of_a_graph(observed);
        let own = observed.forwards.all().iter().find(|forward| forward.site == site).and_then(|f| f.own);
        let indices = || blocks.iter().map(|&(_, index)| index);
        let (by_graph, by_address) = (graph_holder(observed), tensor_holder(observed, indices()));
        // What the program's own lines made may carry a graph too, which is visible only from the tensor at its end.
        let only_a_graph =
            by_graph.is_some() && by_address.as_ref().is_none_or(|holder| holder.with_graph > 0);
        let is_graph_by_count = is_graph_by_count || only_a_graph;
        let holder = if is_graph_by_count { by_graph.or(by_address) } else { by_address };
        if holder.as_ref().is_some_and(|holder| holder.chained && holder.forwards > 1) {
            return None; // Each forward goes on from the one before: that is one long forward.
        }
        let is_graph = match &holder {
            Some(holder) if holder.with_graph == 0 && holder.nodes == 0 => false,
            Some(holder) if holder.with_graph > 0 => true,
            _ => is_graph_by_count,
        };
        let (how, proved) = if is_graph {
            how_graph(observed, site, &rounds, holder.as_ref())
        } else {
            (How::TensorsKept, true)
        };
        let frees = blocks
            .iter()
            .filter_map(|&(round, index)| {
                let after = observed.forwards.all()[round].end.max(all.born(index as usize));
                Some((observed.forwards.next(site, after)?, index))
            })
            .collect();
        Some(Self {
            how,
            blocks: frees,
            bytes,
            rounds: rounds.len(),
            per_round: sizes[sizes.len() / 2],
            made_at: own,
            likely: !proved || (holder.is_none() && how != How::NoGradMissing),
            holder,
        })
    }
}

/// Why a graph is kept, and whether that is proved.
fn how_graph(
    observed: &Observed,
    site: FrameId,
    rounds: &HashMap<usize, (u64, usize)>,
    holder: Option<&Holder>,
) -> (How, bool) {
    let forwards = observed.forwards.all();
    let until = observed.moment;
    let end_of_round = |round: usize| {
        let after = forwards[round].end;
        observed.forwards.next(site, after).unwrap_or(until)
    };
    // A backward pass before the line was reached again: these have had theirs.
    let had = rounds
        .keys()
        .filter(|&&round| observed.kinds.backward_within(forwards[round].end, end_of_round(round)));
    if had.count() * 2 > rounds.len() {
        return (How::GraphKept, true);
    }
    // The same line may have trained before; where each forward then had a backward pass of its own, these wait for none.
    let mut trained = (0, 0);
    for (round, forward) in forwards.iter().enumerate() {
        if forward.site == site
            && !rounds.contains_key(&round)
            && observed.kinds.backward_within(forward.end, until)
        {
            trained.0 += 1;
            trained.1 += usize::from(observed.kinds.backward_within(forward.end, end_of_round(round)));
        }
    }
    let waits = match observed.census {
        Some(census) => {
            let model =
                census.modules.iter().filter(|module| module.requires_grad).max_by_key(|module| module.bytes);
            let evaluates = model.is_some_and(|module| !module.training)
                || census.complete && census.optimizers.is_empty()
                || census.frames.iter().any(|frame| speaks_of_evaluation(&frame.function))
                || holder.is_some_and(|holder| speaks_of_evaluation(&holder.function));
            // A backward pass has come since, and these are still there.
            let first = rounds.keys().min().map_or(0, |&round| forwards[round].end);
            if !evaluates && observed.kinds.backward_within(first, until) {
                return (How::GraphKept, true);
            }
            if census.complete || evaluates || trained.0 == 0 {
                !evaluates
            } else {
                trained.1 * 2 < trained.0
            }
        }
        None if trained.0 > 0 => trained.1 * 2 < trained.0,
        None if !observed.kinds.backward().is_empty() => false,
        // Nothing has gone backward yet: only the names of functions show whether it would have.
        None => {
            match forwards
                .iter()
                .find(|forward| forward.site == site)
                .map(|forward| around(observed, forward))
            {
                Some(names) if names.iter().any(|name| speaks_of_evaluation(name)) => false,
                Some(names) if names.iter().any(|name| speaks_of_training(name)) => true,
                _ => observed.kinds.trains(),
            }
        }
    };
    (if waits { How::BackwardOnce } else { How::NoGradMissing }, observed.census.is_some())
}

/// The names of the program's own functions around a forward.
fn around<'a>(observed: &'a Observed, forward: &crate::forwards::Forward) -> Vec<&'a str> {
    let recording = observed.recording;
    let stack = observed.device.events.stack.get(forward.start as usize).copied().unwrap_or_default();
    (recording.stacks.get(stack).iter().rev())
        .take_while(|&&id| !crate::sources::is_module_call(recording, &recording.stacks.frame(id)))
        .filter(|&&id| observed.sources.is_own(id))
        .map(|&id| recording.strings.get(recording.stacks.frame(id).name))
        .collect()
}

fn speaks_of_training(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["train", "fit", "optimize", "update", "learn"].iter().any(|word| name.contains(word))
}

/// Whether a function's name says that it measures rather than trains.
pub(crate) fn speaks_of_evaluation(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    if name.contains("train") {
        return false;
    }
    ["valid", "eval", "test", "infer", "predict", "score", "embed", "extract", "generate", "encode"]
        .iter()
        .any(|word| name.contains(word))
        || name.split('_').any(|word| word == "val")
}

/// Who holds these blocks: for a graph by the number of forwards that hang on it, else by the addresses of its tensors.
pub(crate) fn holder(observed: &Observed, blocks: impl Iterator<Item = u32>, graph: bool) -> Option<Holder> {
    let by_graph = if graph { graph_holder(observed) } else { None };
    by_graph.or_else(|| tensor_holder(observed, blocks))
}

/// Neither a module's parameters nor an optimizer's state.
fn is_plain(holder: &&Holder) -> bool {
    holder.what.is_empty() || holder.what == "tensor"
}

/// Whoever has the graphs of most forwards, of more than one.
fn graph_holder(observed: &Observed) -> Option<Holder> {
    let holders = observed.census?.holders.iter().filter(is_plain);
    let hangs = holders.filter(|holder| holder.with_graph > 0 && holder.nodes > 0 && holder.forwards > 1);
    hangs.max_by_key(|holder| (holder.forwards, holder.nodes)).cloned()
}

/// Whoever has most bytes of these blocks.
fn tensor_holder(observed: &Observed, blocks: impl Iterator<Item = u32>) -> Option<Holder> {
    let census = observed.census?;
    let all = &observed.history.allocations;
    let addresses: HashSet<u64> = blocks.map(|index| all.address(index as usize)).collect();
    let mut sums: HashMap<u32, u64> = HashMap::new();
    for tensor in &census.tensors {
        if let Some(holder) = tensor.holder.filter(|_| addresses.contains(&tensor.address)) {
            *sums.entry(holder).or_default() += tensor.bytes;
        }
    }
    let (&best, _) = sums.iter().max_by_key(|&(holder, bytes)| (*bytes, std::cmp::Reverse(*holder)))?;
    // What only a graph holds has no name.
    census.holders.get(best as usize).filter(|holder| is_plain(holder) && !holder.name.is_empty()).cloned()
}

impl Kept {
    /// The line to look at first: the one that keeps, where it is known, else the one that makes.
    pub(crate) fn place(&self, observed: &Observed) -> Option<Place> {
        let is_own = |holder: &&Holder| holder.line > 0 && !oomph_words::is_library_file(&holder.file);
        let keeps = self.holder.as_ref().filter(is_own);
        match keeps {
            Some(holder) => Some(Place::of_holder(holder)),
            None => self.made_at.map(|frame| observed.place_of_frame(frame, true)),
        }
    }

    /// Both lines, with the bytes.
    pub(crate) fn places(&self, observed: &Observed) -> Vec<Where> {
        let count = self.blocks.len() as u64;
        let mut places: Vec<Where> = (self.place(observed).into_iter())
            .chain(self.made_at.map(|frame| observed.place_of_frame(frame, true)))
            .map(|place| Where { place, bytes: self.bytes, count })
            .collect();
        places.dedup();
        let parts = observed.places(self.blocks.iter().map(|&(_, index)| index));
        for part in parts {
            if places.iter().all(|known| known.place != part.place) {
                places.push(part);
            }
        }
        places
    }

    /// Who keeps it, in words: `history` (list of 412).
    pub(crate) fn keeper(&self) -> Option<String> {
        self.holder.as_ref().and_then(named)
    }

    /// The change to make, where it is one of a few lines.
    pub(crate) fn patch(&self, observed: &Observed, cause: &'static str) -> Option<Patch> {
        let made = self.made_at.map(|frame| observed.place_of_frame(frame, true));
        let place = match (cause, &made) {
            // What has to be wrapped is the call, not what keeps its result.
            ("no_grad_missing", Some(made)) => made.clone(),
            _ => self.place(observed)?,
        };
        let Place::Line { file, line, function, .. } = place else { return None };
        let others = [made, self.place(observed)];
        let also = (others.into_iter().flatten())
            .filter_map(|other| match other {
                Place::Line { file: of, line: at, .. } if of == file && at != line => Some(at),
                _ => None,
            })
            .collect();
        let name = self.holder.as_ref().map(|holder| holder.name.clone()).filter(|name| !name.is_empty());
        Some(Patch { cause, file, line, function, name, also })
    }
}

/// A holder in words: `history` (list of 412).
pub(crate) fn named(holder: &Holder) -> Option<String> {
    let passing = holder.root == "local" && oomph_words::is_library_file(&holder.file);
    if holder.name.is_empty() || passing || matches!(holder.root.as_str(), "unknown" | "garbage") {
        return None;
    }
    // How a framework leads to it says nothing to whoever wrote the program: the last two names do.
    let parts: Vec<&str> = holder.name.rsplitn(3, '.').collect();
    let short = match parts[..] {
        [last, before, _] => format!("{before}.{last}"),
        _ => holder.name.clone(),
    };
    let name = printable(&short);
    Some(match (holder.container.as_str(), holder.length) {
        ("" | "tensor", _) => format!("`{name}`"),
        (container, Some(length)) => format!("`{name}` ({} of {})", printable(container), grouped(length)),
        (container, None) => format!("`{name}` ({})", printable(container)),
    })
}
