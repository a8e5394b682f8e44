//! Which setting would have fitted: candidates, the least memory that each completes in, and the best of them.

use crate::allocator::Memory;
use crate::program::Options;
use crate::replayer::{Doubt, Replayed, Replayer};
use oomph_settings::conf::{Conf, ConfError};
use oomph_settings::rounding::SEGMENT_QUANTUM;
use oomph_settings::version::Version;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What was found for one setting.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The settings as they are written; empty for PyTorch's defaults.
    pub conf: String,
    /// Whether the recording was made with them.
    pub recorded: bool,
    /// The replay with more memory than it needs.
    pub plenty: Replayed,
    /// The replay in the memory that was asked about.
    pub asked: Option<Replayed>,
    /// The least memory that it completes in.
    pub least: Option<LeastMemory>,
}

/// The least memory that a program completes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeastMemory {
    /// Bytes of segments; the CUDA context comes on top.
    pub bytes: u64,
    /// How often the cache is emptied to get through in that.
    pub retries: u64,
}

/// All trials, and what follows from them.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// The recorded settings first, then the others as they were tried.
    pub trials: Vec<Trial>,
    /// The memory that was asked about, or that the recording ran short of.
    pub memory: Option<Memory>,
    /// No allocator does it in less: what the program asked for at its peak.
    pub lower_bound: u64,
    /// The trial to use, if one is better than the recorded settings.
    pub best: Option<usize>,
}

/// An improvement below this share is not worth changing a setting for.
const WORTHWHILE: f64 = 0.01;

/// Whether a program completes in some memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fit {
    Yes,
    /// How much memory there was is not known well enough to say.
    Maybe,
    No,
}

impl Fit {
    /// The name for scripts.
    pub fn key(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::Maybe => "maybe",
            Self::No => "no",
        }
    }

    /// Judges a replay in the memory that a recording shows, of which only the bounds are known.
    pub fn of(replayer: &Replayer, replayed: &Replayed, least: Option<LeastMemory>) -> Self {
        if replayer.completes(replayed) {
            return Self::Yes;
        }
        let uncertain = replayed.doubts.iter().find_map(|doubt| match doubt {
            Doubt::MemoryUncertain { below, .. } => Some(*below),
            _ => None,
        });
        match (uncertain, least) {
            (Some(below), Some(least)) if least.bytes < below => Self::Maybe,
            _ => Self::No,
        }
    }
}

impl Trial {
    /// Whether it completes in the memory that was asked about.
    pub fn fit(&self, replayer: &Replayer) -> Option<Fit> {
        self.asked.as_ref().map(|asked| Fit::of(replayer, asked, self.least))
    }
}

/// The settings that are worth trying under a version, the recorded ones not among them.
pub fn candidates(version: Version, limited: bool) -> Vec<&'static str> {
    let mut candidates = vec![""];
    if version >= Version::new(2, 1) {
        candidates.push("expandable_segments:True");
    }
    candidates.extend([
        "max_split_size_mb:64",
        "max_split_size_mb:128",
        "max_split_size_mb:256",
        "max_split_size_mb:512",
        "roundup_power2_divisions:4",
        "roundup_power2_divisions:8",
        "roundup_power2_divisions:16",
    ]);
    if version >= Version::new(2, 11) {
        candidates.extend(["large_segment_size_mb:64", "expandable_segments:True,large_segment_size_mb:12"]);
    }
    // Without a limit on the process, this one does nothing in any version.
    if limited {
        candidates.push("garbage_collection_threshold:0.8");
    }
    candidates
}

/// Keys that decide where blocks go; others of the recorded settings are kept whatever is tried.
const TRIED: [&str; 6] = [
    "expandable_segments",
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "roundup_power2_divisions",
    "large_segment_size_mb",
    "garbage_collection_threshold",
];

/// A candidate laid over the recorded settings.
fn overlay(recorded: &str, candidate: &str) -> String {
    let (mut items, mut depth) = (vec![String::new()], 0);
    for c in recorded.chars().filter(|c| !c.is_whitespace()) {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth == 0 => {
                items.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(item) = items.last_mut() {
            item.push(c);
        }
    }
    let kept = items.into_iter().filter(|item| {
        let key = item.split(':').next().unwrap_or_default();
        !item.is_empty() && !TRIED.contains(&key)
    });
    let tried = (!candidate.is_empty()).then(|| candidate.to_owned());
    kept.chain(tried).collect::<Vec<_>>().join(",")
}

/// Tries settings. `extra` ones are the user's own. `samples` over time are taken of each. `progress` hears how many of how many replays are done.
pub fn tune(
    replayer: &Replayer,
    memory: Option<Memory>,
    extra: &[String],
    samples: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Tuning, ConfError> {
    let (version, lower_bound) = (replayer.version(), replayer.lower_bound());
    let memory = memory.or_else(|| replayer.memory.ran_short().then_some(replayer.memory.memory));
    let limited = memory.is_some_and(|memory| memory.limit.is_some());
    let squeeze = memory.map_or(Squeeze::Device, Squeeze::of);
    let recorded = replayer.conf_text();
    let mut settings = vec![(recorded.to_owned(), replayer.conf.clone())];
    let mut add = |text: String, conf: Conf| {
        if settings.iter().all(|(_, known)| *known != conf) {
            settings.push((text, conf));
        }
    };
    for candidate in candidates(version, limited) {
        // What was recorded may hold a key that this version does not know: then the candidate is used alone.
        let over_recorded = overlay(recorded, candidate);
        match Conf::parse(&over_recorded, version) {
            Ok(conf) => add(over_recorded, conf),
            Err(_) => add(candidate.to_owned(), Conf::parse(candidate, version)?),
        }
    }
    for text in extra {
        add(text.clone(), Conf::parse(text, version)?);
    }
    // A replay for each step of the bisection, about.
    let expected = settings.len() * 12;
    let done = AtomicUsize::new(0);
    let tick = || {
        let so_far = done.fetch_add(1, Ordering::Relaxed) + 1;
        progress(so_far.min(expected), expected);
    };
    let next = AtomicUsize::new(0);
    let trials: Mutex<Vec<(usize, Trial)>> = Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(settings.len());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some((text, conf)) = settings.get(index) else { break };
                    let trial = try_out(replayer, text, conf, memory, squeeze, samples, &tick);
                    if let Ok(mut trials) = trials.lock() {
                        trials.push((index, trial));
                    }
                }
            });
        }
    });
    let mut trials = trials.into_inner().unwrap_or_default();
    trials.sort_by_key(|&(index, _)| index);
    let mut trials: Vec<Trial> = trials.into_iter().map(|(_, trial)| trial).collect();
    if let Some(first) = trials.first_mut() {
        first.recorded = true;
    }
    let best = best(replayer, &trials);
    for index in [0, best.unwrap_or(0)] {
        let (Some(trial), Some((_, conf))) = (trials.get_mut(index), settings.get(index)) else { continue };
        let hangs = trial.plenty.usage.ties > 0
            && trial.least.is_some_and(|least| !replayer.surely_completes(conf, squeeze.memory(least.bytes)));
        if hangs && !trial.plenty.doubts.contains(&Doubt::LeastMemoryHangsOnAddresses) {
            trial.plenty.doubts.push(Doubt::LeastMemoryHangsOnAddresses);
        }
    }
    Ok(Tuning { trials, memory, lower_bound, best })
}

fn try_out(
    replayer: &Replayer,
    text: &str,
    conf: &Conf,
    memory: Option<Memory>,
    squeeze: Squeeze,
    samples: usize,
    tick: &dyn Fn(),
) -> Trial {
    let options = Options { samples, ..Options::default() };
    let plenty = replayer.under(conf, Memory::UNLIMITED, &options);
    tick();
    let asked = memory.map(|memory| {
        let replayed = replayer.under(conf, memory, &options);
        tick();
        replayed
    });
    let least = least_memory(replayer, conf, &plenty, squeeze, tick);
    Trial { conf: text.to_owned(), recorded: false, plenty, asked, least }
}

/// What is made less and less: the card's memory, or a limit on the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Squeeze {
    /// The card's memory.
    Device,
    /// A limit on the process.
    Limit,
}

impl Squeeze {
    /// What memory is short of: a limit, if that is all there is.
    pub fn of(memory: Memory) -> Self {
        let only_a_limit = memory.limit.is_some() && memory.free >= Memory::UNLIMITED.free;
        if only_a_limit { Self::Limit } else { Self::Device }
    }

    /// So much of it.
    pub fn memory(self, bytes: u64) -> Memory {
        match self {
            Self::Device => Memory::of(bytes),
            Self::Limit => Memory { limit: Some(bytes), ..Memory::UNLIMITED },
        }
    }
}

/// How often what should suffice is doubled before it is given up: a setting may leave a part of the memory unused.
const DOUBLINGS: u32 = 6;

/// Bisects down to the size that the device hands out in. Success need not be monotone in memory; what is returned
/// completes, and a step less does not.
pub fn least_memory(
    replayer: &Replayer,
    conf: &Conf,
    plenty: &Replayed,
    squeeze: Squeeze,
    tick: &dyn Fn(),
) -> Option<LeastMemory> {
    if !replayer.completes(plenty) {
        return None;
    }
    let units = |bytes: u64| bytes.div_ceil(SEGMENT_QUANTUM);
    // The retries in so much memory, if it completes.
    let in_units = |units: u64| {
        let replayed = replayer.quickly_under(conf, squeeze.memory(units.saturating_mul(SEGMENT_QUANTUM)));
        tick();
        replayer.completes(&replayed).then_some(replayed.usage.retries)
    };
    let enough = units(plenty.usage.reserved.peak.max(replayer.lower_bound()));
    let (mut high, mut retries) =
        (0..=DOUBLINGS).find_map(|times| Some((enough << times, in_units(enough << times)?)))?;
    // Fails below `low`, completes at `high`.
    let mut low = if high > enough { high / 2 } else { units(replayer.lower_bound()).saturating_sub(1) };
    low = low.min(high.saturating_sub(1));
    // Mostly what it reserves with plenty is what it needs: one step less fails, and nothing is left to bisect.
    let mut just_below = high == enough;
    while high - low > 1 {
        let middle = if std::mem::take(&mut just_below) { high - 1 } else { low + (high - low) / 2 };
        match in_units(middle) {
            Some(found) => (high, retries) = (middle, found),
            None => low = middle,
        }
    }
    Some(LeastMemory { bytes: high.saturating_mul(SEGMENT_QUANTUM), retries })
}

/// The better of two: it fits, it stalls less often, it needs less.
fn merit(replayer: &Replayer, trial: &Trial) -> (Fit, u64, u64) {
    let fit = trial.fit(replayer).unwrap_or(Fit::Yes);
    // Where it may not complete, the stalls up to there say nothing.
    let stalls = trial.asked.as_ref().filter(|_| fit == Fit::Yes).map_or(0, |asked| asked.usage.retries);
    (fit, stalls, trial.least.map_or(u64::MAX, |least| least.bytes))
}

fn best(replayer: &Replayer, trials: &[Trial]) -> Option<usize> {
    let first = trials.first()?;
    let recorded = merit(replayer, first);
    if first.asked.is_some() && recorded.0 == Fit::Yes && recorded.1 == 0 {
        return None; // it fits as it is
    }
    let merits: Vec<_> = trials.iter().map(|trial| merit(replayer, trial)).collect();
    let &(fit, stalls, least) = merits.iter().min()?;
    // Settings are tried in the order of how well they are proven: the first that does, or nearly as good as the best.
    let does = first.asked.is_some() && fit == Fit::Yes;
    let nearly = |bytes: u64| bytes as f64 <= (1.0 + WORTHWHILE) * least as f64;
    let index = merits.iter().position(|m| (m.0, m.1) == (fit, stalls) && (does || nearly(m.2)))?;
    let found = merits[index];
    if index == 0 || found.0 == Fit::No {
        return None; // as good as any, or none fits
    }
    let fits_at_last = found.0 == Fit::Yes && recorded.0 != Fit::Yes;
    let stalls_less = found.0 == recorded.0 && found.1 < recorded.1;
    let needs_less = (found.2 as f64) < (1.0 - WORTHWHILE) * recorded.2 as f64;
    (fits_at_last || stalls_less || needs_less).then_some(index)
}

impl Tuning {
    /// The recorded settings' trial.
    pub fn recorded(&self) -> Option<&Trial> {
        self.trials.first()
    }

    /// The bounds of the memory that the recorded program had, if that is what was asked about.
    pub fn uncertain_memory(&self) -> Option<&Doubt> {
        let mut asked =
            self.trials.iter().filter_map(|trial| trial.asked.as_ref()).flat_map(|asked| &asked.doubts);
        asked.find(|doubt| matches!(doubt, Doubt::MemoryUncertain { .. }))
    }

    /// The trial to use, if one is better.
    pub fn best_trial(&self) -> Option<&Trial> {
        self.trials.get(self.best?)
    }

    /// What makes the numbers of the best (or, without one, of the recorded) trial uncertain.
    pub fn doubts(&self) -> Vec<Doubt> {
        let Some(trial) = self.best_trial().or(self.recorded()) else { return Vec::new() };
        let mut doubts = trial.plenty.doubts.clone();
        doubts.extend(self.uncertain_memory().cloned());
        doubts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_tried_is_a_setting_of_pytorchs() {
        for name in TRIED {
            assert!(oomph_settings::conf::names().any(|known| known == name), "{name}");
        }
    }

    #[test]
    fn candidates_keep_what_they_do_not_try() {
        let recorded = "per_process_memory_fraction:0.5, roundup_power2_divisions:[256:1,>:4],pinned_use_background_threads:True";
        assert_eq!(
            overlay(recorded, "expandable_segments:True"),
            "per_process_memory_fraction:0.5,pinned_use_background_threads:True,expandable_segments:True"
        );
        assert_eq!(overlay("max_split_size_mb:64", ""), "");
        assert_eq!(overlay("", "max_split_size_mb:64"), "max_split_size_mb:64");
    }
}
