//! One device of a recording, ready for every what-if.

use crate::addresses::{Addresses, Order};
use crate::allocator::{Allocator, Memory, Usage};
use crate::program::{Change, Death, OpenBlocks, Options, Outcome, Program};
use crate::recorded::{RecordedMemory, Reproduction, World, candidate_versions, plausible_worlds};
use crate::torch::Torch;
use oomph_settings::conf::Conf;
use oomph_settings::version::{TieBreak, Version};
use oomph_trace::{Device, History, Recording};

/// A recording that was reproduced, and can be replayed under other settings.
#[derive(Clone, Debug)]
pub struct Replayer<'a> {
    program: Program<'a>,
    /// The settings of the recording.
    pub conf: Conf,
    /// How much memory the program had.
    pub memory: RecordedMemory,
    /// The replay under the recorded settings, fed the recorded addresses.
    pub reproduction: Reproduction,
    conf_text: String,
    /// The out-of-memory that the program died of, by event.
    fatal: Option<u32>,
    lower_bound: u64,
    /// The version whose rules are followed; the recording's own unless another was asked for.
    version: Version,
    worlds: Vec<World>,
    doubts: Vec<Doubt>,
}

/// Why a replay may differ from what a GPU would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The file has no settings: defaults are assumed.
    SettingsUnknown,
    /// The file was cut off, or a ring buffer forgot its beginning.
    Incomplete,
    /// Events contradict each other.
    Contradictions(u64),
    /// So many blocks were there before the first event; how they came there is not known.
    BlocksBefore(u64),
    /// So many blocks lie elsewhere than recorded, under the recorded settings.
    NotReproduced(u64),
    /// Frees of blocks that were not allocated, or allocations on top of live blocks.
    UnknownBlocks(u64),
    /// The recording ran out of memory at this event; what the program would have done otherwise is not in it.
    EndsWhereItRanOut(u32),
    /// So many frees had to wait for another stream; how long hangs on the GPU's pace.
    DeferredFrees(u64),
    /// Equal free blocks lay in different segments, and the outcome hangs on which one the driver's addresses
    /// put first. In the orders that were tried, the reserved peak was between these.
    Ties {
        least: u64,
        most: u64,
        /// Whether it ended alike in all of them: at the same event, after as many retries.
        ends_alike: bool,
    },
    /// In another order of addresses it does not complete in its least memory.
    LeastMemoryHangsOnAddresses,
    /// Before 2.12 a recording does not say which private pool a request went to; it is inferred.
    PoolsInferred,
    /// The recorded program was limited to something between these.
    MemoryUncertain { at_least: u64, below: u64 },
    /// The model was not held against a real allocator.
    ModelNotProven,
    /// `roundup_power2_divisions` of 1 left sizes unrounded before 2.4, which is not modelled.
    UnroundedSizes,
}

impl Doubt {
    /// The name for scripts.
    pub fn key(&self) -> &'static str {
        match self {
            Self::SettingsUnknown => "settings_unknown",
            Self::Incomplete => "incomplete",
            Self::Contradictions(_) => "contradictions",
            Self::BlocksBefore(_) => "blocks_before",
            Self::NotReproduced(_) => "not_reproduced",
            Self::UnknownBlocks(_) => "unknown_blocks",
            Self::EndsWhereItRanOut(_) => "ends_where_it_ran_out",
            Self::DeferredFrees(_) => "deferred_frees",
            Self::Ties { .. } => "ties",
            Self::LeastMemoryHangsOnAddresses => "least_memory_hangs_on_addresses",
            Self::PoolsInferred => "pools_inferred",
            Self::MemoryUncertain { .. } => "memory_uncertain",
            Self::ModelNotProven => "model_not_proven",
            Self::UnroundedSizes => "unrounded_sizes",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Replayed {
    /// The rules that were followed, if they are PyTorch's.
    pub version: Option<Version>,
    /// What there was to use.
    pub memory: Memory,
    /// The allocator's numbers at the end.
    pub usage: Usage,
    pub outcome: Outcome,
    /// Why it may not be exact; empty if it is.
    pub doubts: Vec<Doubt>,
}

impl Replayed {
    /// Whether a GPU would do the same, to the byte.
    pub fn is_exact(&self) -> bool {
        self.doubts.is_empty()
    }
}

fn lower_bound(device: &Device, history: &History, fatal: Option<u32>, deferred: bool) -> u64 {
    let all = &history.allocations;
    let last = fatal.map_or(0, |event| {
        let held: u64 = history.alive_at(event).into_iter().map(|index| all.requested(index as usize)).sum();
        held.saturating_add(device.events.size[event as usize])
    });
    // What waits for another stream is asked for no longer: an allocator in need would have waited, and had it.
    let most = || all.most_at_once(0..all.len(), |index| all.requested(index));
    let peak = if deferred { most() } else { history.peak.requested.bytes };
    peak.max(last)
}

impl<'a> Replayer<'a> {
    /// Reproduces a recording, by the rules that do it best. What is then asked is answered by the same rules, or by those of
    /// another version. `fatal` is the event at which the program died for want of memory, if it did: what completes must get past it.
    pub fn new(
        recording: &Recording,
        device: &'a Device,
        history: &History,
        version: Option<Version>,
        fatal: Option<u32>,
    ) -> Self {
        Self::reproduce(recording, device, history, version, fatal, true)
    }

    /// The same, but content with the first rules that reproduce the recording.
    pub fn quick(recording: &Recording, device: &'a Device, history: &History, fatal: Option<u32>) -> Self {
        Self::reproduce(recording, device, history, None, fatal, false)
    }

    fn reproduce(
        recording: &Recording,
        device: &'a Device,
        history: &History,
        version: Option<Version>,
        fatal: Option<u32>,
        thoroughly: bool,
    ) -> Self {
        let conf = crate::recorded::conf_of(&recording.settings);
        let program = Program::of(device, history, &conf);
        let mut memory = RecordedMemory::of(&program, &conf);
        let versions = candidate_versions(&program);
        let mut reproductions = Vec::with_capacity(versions.len());
        for version in versions {
            let reproduction = Reproduction::under(&program, &conf, memory.memory, version);
            let done = !thoroughly && reproduction.differences() == 0;
            reproductions.push(reproduction);
            if done {
                break;
            }
        }
        if conf.collection_threshold() > 0.0 && reproductions.iter().all(|one| one.differences() > 0) {
            for limit in memory.other_limits() {
                let tried =
                    RecordedMemory { memory: Memory { limit: Some(limit), ..memory.memory }, ..memory };
                let again =
                    |one: &Reproduction| Reproduction::under(&program, &conf, tried.memory, one.version);
                let found: Vec<Reproduction> = reproductions.iter().map(again).collect();
                if found.iter().any(|one| one.differences() == 0) {
                    (memory, reproductions) = (tried, found);
                    break;
                }
            }
        }
        let worlds = version.map_or_else(|| plausible_worlds(&reproductions), World::all_of);
        let best = reproductions.iter().min_by_key(|one| one.differences()).cloned();
        let reproduction =
            best.unwrap_or_else(|| Reproduction::under(&program, &conf, memory.memory, Version::NEWEST));
        let mut doubts = Vec::new();
        if !recording.settings.known {
            doubts.push(Doubt::SettingsUnknown);
        }
        if recording.source.truncated || device.overflowed == Some(true) {
            doubts.push(Doubt::Incomplete);
        }
        if history.contradictions > 0 {
            doubts.push(Doubt::Contradictions(history.contradictions));
        }
        if reproduction.differences() > 0 {
            doubts.push(Doubt::NotReproduced(reproduction.differences()));
        }
        let unknown = reproduction.outcome.unknown_frees + reproduction.outcome.missing_frees;
        if unknown > 0 {
            doubts.push(Doubt::UnknownBlocks(unknown));
        }
        let conf_text = recording.settings.conf.clone();
        let lower_bound = lower_bound(device, history, fatal, reproduction.outcome.deferred_frees > 0);
        let version = version.unwrap_or(reproduction.version);
        Self { program, conf, memory, reproduction, conf_text, fatal, lower_bound, version, worlds, doubts }
    }

    pub fn program(&self) -> &Program<'a> {
        &self.program
    }

    /// No allocator completes it in less: what the program asked for at its peak, the request that it died of included.
    pub fn lower_bound(&self) -> u64 {
        self.lower_bound
    }

    /// What the recording lacks: (cut off or overwritten, blocks that were there before it began).
    pub fn lacks(&self) -> (bool, u64) {
        (self.doubts.contains(&Doubt::Incomplete), self.program.blocks_before())
    }

    /// The settings of the recording, as they were written.
    pub fn conf_text(&self) -> &str {
        &self.conf_text
    }

    /// Whether the recorded program died for want of memory. What it would have done next is not in the recording: whoever gets past
    /// that request is past the death, and no more is known.
    pub fn died(&self) -> bool {
        self.fatal.is_some()
    }

    /// Whether a replay got as far as the recording, and past the request that the program died of.
    pub fn completes(&self, replayed: &Replayed) -> bool {
        let outcome = &replayed.outcome;
        outcome.died.is_none()
            && self.fatal.is_none_or(|fatal| outcome.ooms.iter().all(|oom| oom.event != fatal))
    }

    /// The request that a replay did not get past: one that the recorded program was served, or the one that it died of.
    pub fn stopped_by(&self, replayed: &Replayed) -> Option<Death> {
        let outcome = &replayed.outcome;
        let again = outcome.ooms.iter().find(|oom| Some(oom.event) == self.fatal).copied();
        outcome.died.or(again)
    }

    /// The version whose rules are followed.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Replays under PyTorch's allocator with these settings, in every world that agrees with the recording. Where they
    /// differ, the one in the middle is returned (the higher of two), which was nearest to what GPUs did.
    pub fn under(&self, conf: &Conf, memory: Memory, options: &Options) -> Replayed {
        let likeliest = self.in_world(conf, memory, self.likeliest(), options);
        let one_version = self.worlds.iter().all(|world| world.version == self.version);
        let no_address_decides = one_version && likeliest.usage.ties == 0;
        if no_address_decides || self.is_recorded(conf, memory, options) {
            return likeliest;
        }
        let mut all = vec![likeliest];
        all.extend(self.worlds.iter().skip(1).map(|&world| self.in_world(conf, memory, world, options)));
        let end = |one: &Replayed| (self.stopped_by(one).map(|death| death.event), one.usage.retries);
        let ends_alike = all.iter().all(|one| end(one) == end(&all[0]));
        all.sort_by_key(|one| one.usage.reserved.peak);
        let least = all.first().map_or(0, |one| one.usage.reserved.peak);
        let most = all.last().map_or(0, |one| one.usage.reserved.peak);
        let mut replayed = all.swap_remove(all.len() / 2);
        if least < most || !ends_alike {
            replayed.doubts.push(Doubt::Ties { least, most, ends_alike });
        }
        replayed
    }

    /// The reserved peak as recorded, and the least and the most that it is where the driver puts segments elsewhere, in so many orders.
    pub fn reserved_elsewhere(&self, orders: u32) -> (u64, u64) {
        let (conf, memory) = (&self.conf, self.memory.memory);
        let recorded = self.in_world(conf, memory, self.likeliest(), &Options::default());
        let peak = recorded.usage.reserved.peak;
        if self.version.tie_break() != TieBreak::Address {
            return (peak, peak);
        }
        let orders = [Order::Up, Order::Driver].into_iter().chain((1..=orders).map(Order::Scattered));
        let peaks = orders.map(|order| {
            let mut torch = Torch::new(conf.clone(), self.version, memory, Addresses::made_up(order));
            let open = self.program.import_before(&mut torch);
            self.program.play(&mut torch, open, &Options::default());
            torch.usage().reserved.peak
        });
        peaks.fold((peak, peak), |(least, most), peak| (least.min(peak), most.max(peak)))
    }

    /// The same in the likeliest world only: for comparing many settings.
    pub fn quickly_under(&self, conf: &Conf, memory: Memory) -> Replayed {
        self.in_world(conf, memory, self.likeliest(), &Options::default())
    }

    /// The same with a change to the program.
    pub fn changed(&self, conf: &Conf, memory: Memory, change: Change) -> Replayed {
        self.in_world(conf, memory, self.likeliest(), &Options { change, ..Options::default() })
    }

    /// Whether it completes with these settings in this memory in every world.
    pub fn surely_completes(&self, conf: &Conf, memory: Memory) -> bool {
        let replay = |world: &World| self.in_world(conf, memory, *world, &Options::default());
        self.worlds.iter().all(|world| self.completes(&replay(world)))
    }

    fn likeliest(&self) -> World {
        self.worlds.first().copied().unwrap_or(World::of(self.version))
    }

    /// Whether this is what was recorded, in memory that makes no difference: then every address is known.
    fn is_recorded(&self, conf: &Conf, memory: Memory, options: &Options) -> bool {
        let as_much = || {
            let limit = memory.limit.unwrap_or(u64::MAX);
            let proven = self.program.proven;
            !self.memory.ran_short() && memory.free >= proven.reserved && limit >= proven.allowed
        };
        *conf == self.conf
            && self.version.tie_break() == self.reproduction.version.tie_break()
            && options.change.is_none()
            && (memory == self.memory.memory || as_much())
    }

    fn in_world(&self, conf: &Conf, memory: Memory, world: World, options: &Options) -> Replayed {
        let as_recorded = self.is_recorded(conf, memory, options);
        let (segments, maps) = self.program.segment_addresses();
        let addresses = if as_recorded {
            Addresses::recorded(segments, maps)
        } else {
            Addresses::borrowed(if world.borrows { &segments } else { &[] }, world.order)
        };
        let mut torch = Torch::new(conf.clone(), world.version, memory, addresses);
        let room = memory.limit.unwrap_or(u64::MAX).min(memory.free);
        let open = if *conf == self.conf && self.program.reserved_before() <= room {
            Ok(self.program.import_before(&mut torch))
        } else {
            self.program.place_before(&mut torch)
        };
        let outcome = match open {
            Ok(open) => self.program.play(&mut torch, open, options),
            Err(death) => Outcome { died: Some(death), ..Outcome::default() },
        };
        let mut doubts = self.doubts.clone();
        let before = self.program.blocks_before();
        if !as_recorded && before > 0 {
            doubts.push(Doubt::BlocksBefore(before));
        }
        if !as_recorded && self.program.infers_pools() {
            doubts.push(Doubt::PoolsInferred);
        }
        self.doubt_outcome(&outcome, as_recorded, &mut doubts);
        if memory == self.memory.memory
            && let Some(below) = self.memory.below
            && !as_recorded
        {
            doubts.push(Doubt::MemoryUncertain { at_least: self.memory.at_least, below });
        }
        if !world.version.at_least(4) && conf.roundup_power2_divisions.contains(&1) {
            doubts.push(Doubt::UnroundedSizes);
        }
        Replayed { version: Some(world.version), memory, usage: *torch.usage(), outcome, doubts }
    }

    fn doubt_outcome(&self, outcome: &Outcome, as_recorded: bool, doubts: &mut Vec<Doubt>) {
        if outcome.deferred_frees > 0 && !as_recorded {
            doubts.push(Doubt::DeferredFrees(outcome.deferred_frees));
        }
        if let Some(&event) = outcome.ooms_avoided.last() {
            doubts.push(Doubt::EndsWhereItRanOut(event));
        }
    }

    /// Replays under another allocator than PyTorch's.
    pub fn with<A: Allocator>(&self, allocator: &mut A, memory: Memory, options: &Options) -> Replayed {
        let open: Result<OpenBlocks, _> = self.program.place_before(allocator);
        let outcome = match open {
            Ok(open) => self.program.play(allocator, open, options),
            Err(death) => Outcome { died: Some(death), ..Outcome::default() },
        };
        let mut doubts: Vec<Doubt> = (self.doubts.iter())
            .filter(|doubt| !matches!(doubt, Doubt::NotReproduced(_) | Doubt::SettingsUnknown))
            .cloned()
            .collect();
        if self.program.blocks_before() > 0 {
            doubts.push(Doubt::BlocksBefore(self.program.blocks_before()));
        }
        self.doubt_outcome(&outcome, false, &mut doubts);
        Replayed { version: None, memory, usage: *allocator.usage(), outcome, doubts }
    }
}
