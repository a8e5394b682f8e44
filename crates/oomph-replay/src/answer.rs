//! A question about a recording, and the answer: what happened, and what would have.

use crate::allocator::Memory;
use crate::bfc::Bfc;
use crate::packed::{Packed, pack_program};
use crate::program::{Death, Options};
use crate::replayer::{Doubt, Replayed, Replayer};
use crate::tune::{Fit, LeastMemory, Squeeze, least_memory};
use hashbrown::HashSet;
use oomph_settings::conf::{Conf, ConfError};
use oomph_settings::version::Version;
use oomph_trace::{Action, Device, History, Peaks, PoolId, Recording};

/// Which allocator to replay under.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Model {
    /// PyTorch's native caching allocator.
    #[default]
    Torch,
    /// TensorFlow's BFC allocator, growing.
    Bfc,
    /// An allocator that knows the future.
    Packed,
}

impl Model {
    /// The name for scripts.
    pub fn key(self) -> &'static str {
        match self {
            Self::Torch => "torch",
            Self::Bfc => "bfc",
            Self::Packed => "packed",
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Question {
    /// Settings in place of the recorded ones.
    pub conf: Option<String>,
    /// Memory in place of what the program had.
    pub memory: Option<Memory>,
    /// The version of PyTorch; without one, the rules that reproduce the recording.
    pub version: Option<Version>,
    pub model: Model,
    /// The event at which the program died for want of memory.
    pub fatal: Option<u32>,
    /// How long to look for a packing.
    pub patience: std::time::Duration,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The settings are wrong.
    #[error(transparent)]
    Conf(#[from] ConfError),
    /// There is nothing to replay.
    #[error(
        "there are no events in this recording, only a final state: nothing can be replayed. Record with \
         torch.cuda.memory._record_memory_history(max_entries=1_000_000)"
    )]
    NoEvents,
    /// No program is like this.
    #[error("this recording has {0} streams and private pools; no real program does, and none is replayed")]
    TooManyStreams(usize),
}

/// More streams, or more private pools, than any program has: each costs a look whenever memory is short.
const MOST_STREAMS: usize = 1024;

/// What happened, and what would have.
#[derive(Clone, Debug)]
pub struct Answer {
    pub device: u32,
    /// How many events there are, and allocations among them.
    pub events: u64,
    /// Allocations among the events.
    pub allocations: u64,
    /// What the recording lacks: (cut off or overwritten, blocks that were there before it began).
    pub lacks: (bool, u64),
    pub question: Question,
    /// Peaks as they were recorded.
    pub recorded_peak: Peaks,
    /// The settings of the recording, as they were written.
    pub recorded_conf: String,
    /// Recorded out-of-memories, by event.
    pub recorded_ooms: Vec<u32>,
    /// Retries of the reproduction.
    pub recorded_retries: u64,
    /// Blocks that lie elsewhere than recorded, under the recorded settings.
    pub address_mismatches: u64,
    /// Anything else that is not as recorded, under the recorded settings.
    pub other_differences: u64,
    /// The rules that were followed.
    pub version: Version,
    /// The rules that reproduce the recording.
    pub recorded_version: Version,
    pub replayed: Replayed,
    /// Whether the recorded program died for want of memory: the recording ends there.
    pub died: bool,
    /// Whether it gets to the end of the recording.
    pub fit: Fit,
    /// The request that it did not get past.
    pub stopped_by: Option<Death>,
    /// The least memory that it completes in, under these settings.
    pub least: Option<LeastMemory>,
    /// What no allocator can do with less than.
    pub lower_bound: u64,
    /// The packing, if that is what was asked about: its height, whether that is the least possible, and how it was found.
    pub packing: Option<(u64, bool, &'static str)>,
}

/// Refuses a device that has nothing to replay.
pub fn replayable(device: &Device) -> Result<(), AskError> {
    let pools: HashSet<PoolId> = (device.events.pool.iter().map(|&(_, pool)| pool))
        .chain(device.segments.iter().map(|segment| segment.pool))
        .collect();
    let lanes = device.streams.len() + pools.len();
    if lanes > MOST_STREAMS {
        return Err(AskError::TooManyStreams(lanes));
    }
    let asks = |action: &Action| matches!(action, Action::Alloc | Action::OutOfMemory);
    if device.events.action.iter().any(asks) { Ok(()) } else { Err(AskError::NoEvents) }
}

/// How many points in time a timeline has.
const SAMPLES: usize = 512;

pub fn ask(recording: &Recording, device: &Device, question: Question) -> Result<Answer, AskError> {
    replayable(device)?;
    let history = History::of(recording, device);
    let replayer = Replayer::new(recording, device, &history, question.version, question.fatal);
    let version = replayer.version();
    let conf = match &question.conf {
        Some(text) => Conf::parse(text, version)?,
        None => replayer.conf.clone(),
    };
    let lower_bound = replayer.lower_bound();
    let memory = question.memory.unwrap_or(match question.model {
        Model::Torch => replayer.memory.memory,
        _ => Memory::UNLIMITED,
    });
    let options = Options { samples: SAMPLES, ..Options::default() };
    let mut packing = None;
    let (replayed, least) = match question.model {
        Model::Torch => {
            let squeeze = Squeeze::of(memory);
            let plenty = replayer.quickly_under(&conf, Memory::UNLIMITED);
            let least = least_memory(&replayer, &conf, &plenty, squeeze, &|| {});
            let mut replayed = replayer.under(&conf, memory, &options);
            if let Some(least) = least
                && plenty.usage.ties > 0
                && !replayer.surely_completes(&conf, squeeze.memory(least.bytes))
            {
                replayed.doubts.push(Doubt::LeastMemoryHangsOnAddresses);
            }
            (replayed, least)
        }
        Model::Bfc => {
            let mut replayed = replayer.with(&mut Bfc::growing(memory), memory, &options);
            replayed.doubts.push(Doubt::ModelNotProven);
            (replayed, None)
        }
        Model::Packed => {
            let placement = pack_program(replayer.program(), question.patience);
            let height = placement.height;
            packing = Some((height, placement.optimal, placement.method));
            let replayed = replayer.with(&mut Packed::new(placement, memory), memory, &options);
            (replayed, Some(LeastMemory { bytes: height, retries: 0 }))
        }
    };
    let reproduction = &replayer.reproduction;
    Ok(Answer {
        device: device.ordinal,
        events: device.events.len() as u64,
        allocations: device.events.count(Action::Alloc) as u64,
        lacks: replayer.lacks(),
        recorded_peak: history.peak,
        recorded_conf: replayer.conf_text().to_owned(),
        recorded_ooms: (0..device.events.len() as u32)
            .filter(|&row| device.events.action[row as usize] == Action::OutOfMemory)
            .collect(),
        recorded_retries: reproduction.retries,
        address_mismatches: reproduction.outcome.address_mismatches,
        other_differences: reproduction.differences() - reproduction.outcome.address_mismatches,
        version,
        recorded_version: reproduction.version,
        died: replayer.died(),
        fit: Fit::of(&replayer, &replayed, least),
        stopped_by: replayer.stopped_by(&replayed),
        replayed,
        least,
        lower_bound,
        packing,
        question,
    })
}
