//! What `oomph replay` prints. `oomph tune` has a replay for each setting that it tried.

use super::document;
use super::explain::Peaks;
use crate::replay::{doubt, fits, margin, past_death};
use oomph_replay::answer::{self as model, Model};
use oomph_replay::replayer::Doubt;
use oomph_replay::{allocator, program, replayer};
use serde::Serialize;

/// A replay of one device.
pub(crate) fn answer(answer: &model::Answer, name: &str) -> String {
    let conf = answer.question.conf.as_ref().unwrap_or(&answer.recorded_conf);
    let torch = answer.question.model == Model::Torch;
    document(Answer {
        file: name,
        device: answer.device,
        events: answer.events,
        allocator: answer.question.model.key(),
        conf: torch.then_some(conf),
        torch: torch.then(|| answer.version.to_string()),
        fits: fits(Some(answer.fit), answer.died),
        past_death: past_death(Some(answer.fit), answer.died),
        margin: margin(&answer.replayed, answer.least),
        address_mismatches: answer.address_mismatches,
        other_differences: answer.other_differences,
        least_memory: answer.least.map(|least| least.bytes),
        least_memory_retries: answer.least.map(|least| least.retries),
        lower_bound: answer.lower_bound,
        packing: answer.packing.map(|(height, optimal, method)| Packing { height, optimal, method }),
        recorded: Recorded {
            conf: &answer.recorded_conf,
            torch: answer.recorded_version.to_string(),
            peak: Peaks::of(&answer.recorded_peak),
            retries: answer.recorded_retries,
            ooms: &answer.recorded_ooms,
        },
        replayed: Replayed {
            oom: answer.stopped_by.as_ref().map(Death::of),
            ..Replayed::of(&answer.replayed)
        },
        timeline: answer.replayed.outcome.timeline.iter().map(Sample::of).collect(),
    })
}

#[derive(Serialize)]
struct Answer<'a> {
    /// The file, as it was given.
    file: &'a str,
    /// The device's ordinal.
    device: u32,
    /// How many events it has.
    events: u64,
    /// `torch`, `bfc`, `packed`.
    allocator: &'static str,
    /// The settings that were replayed.
    conf: Option<&'a String>,
    /// The version of PyTorch that was replayed.
    torch: Option<String>,
    /// **Stable.** `yes`: it gets to the end, `no`: it does not, `maybe`: how much memory the recorded program had is not known well
    /// enough. Of a recording that ends where its program died, `no` or `null`: what came after is not in it.
    fits: Option<&'static str>,
    /// **Stable.** Of such a recording, whether it gets past the request that the program died of; `null` if that is not known, and for
    /// every other recording.
    past_death: Option<bool>,
    /// **Stable.** The memory that it was replayed in less `least_memory`: what is to spare, or lacking if negative. `null` where one of
    /// them is not known.
    margin: Option<i64>,
    /// **Stable.** Blocks that lie elsewhere than recorded, when replayed as recorded.
    address_mismatches: u64,
    /// Segments, mappings and out-of-memories that are not as recorded, likewise.
    other_differences: u64,
    /// **Stable.** The least bytes of segments that it completes in, to 2 MiB; `null` if it does not complete in any, and for `bfc`.
    least_memory: Option<u64>,
    /// The retries in that.
    least_memory_retries: Option<u64>,
    /// What the program asks for at its peak: no allocator needs less.
    lower_bound: u64,
    /// For `packed`.
    packing: Option<Packing>,
    /// What was recorded.
    recorded: Recorded<'a>,
    /// How it went.
    #[serde(flatten)]
    replayed: Replayed<'a>,
    /// At most 512 stretches of events.
    timeline: Vec<Sample>,
}

#[derive(Serialize)]
struct Packing {
    /// Bytes.
    height: u64,
    /// Whether it cannot be less.
    optimal: bool,
    /// How it was found.
    method: &'static str,
}

#[derive(Serialize)]
struct Recorded<'a> {
    /// The settings.
    conf: &'a str,
    /// The version of PyTorch whose rules reproduce it.
    torch: String,
    /// The peaks.
    peak: Peaks,
    /// The retries.
    retries: u64,
    /// The out-of-memories, by event.
    ooms: &'a [u32],
}

#[derive(Serialize)]
pub(crate) struct Replayed<'a> {
    /// **Stable.** The peaks, replayed.
    peak: Peaks,
    /// **Stable.** How often the allocator gave its whole cache back to find room.
    retries: u64,
    /// **Stable.** The request that it does not get past, be it one that the recorded program was served or the one that it died of.
    oom: Option<Death>,
    /// **Stable.** Whether a GPU would do the same, to the byte.
    exact: bool,
    /// **Stable.** Why not; empty if `exact`.
    why: Vec<Why>,
    /// How often addresses decided between equal blocks of different segments.
    ties: u64,
    /// The reserved peak in the orders of addresses that were tried, where ties make it uncertain.
    reserved_range: Option<Range>,
    /// What it was replayed in.
    memory: Memory,
    /// How often memory was taken from the device.
    device_allocs: u64,
    /// How often memory was given back to it.
    device_frees: u64,
    /// Recorded out-of-memories that happened again.
    ooms_as_recorded: Vec<Again>,
    /// Recorded out-of-memories that did not, by event.
    ooms_avoided: &'a [u32],
}

impl<'a> Replayed<'a> {
    pub(crate) fn of(replayed: &'a replayer::Replayed) -> Self {
        let (usage, outcome) = (&replayed.usage, &replayed.outcome);
        Self {
            peak: Peaks {
                requested: usage.requested.peak,
                allocated: usage.allocated.peak,
                reserved: usage.reserved.peak,
            },
            retries: usage.retries,
            oom: outcome.died.as_ref().map(Death::of),
            exact: replayed.is_exact(),
            why: replayed.doubts.iter().map(|one| Why { code: one.key(), text: doubt(one) }).collect(),
            ties: usage.ties,
            reserved_range: replayed.doubts.iter().find_map(|doubt| match doubt {
                Doubt::Ties { least, most, .. } => Some(Range { least: *least, most: *most }),
                _ => None,
            }),
            memory: Memory::of(replayed.memory),
            device_allocs: usage.device_allocs,
            device_frees: usage.device_frees,
            ooms_as_recorded: outcome
                .ooms
                .iter()
                .map(|oom| Again { event: oom.event, reason: oom.refusal.key() })
                .collect(),
            ooms_avoided: &outcome.ooms_avoided,
        }
    }
}

#[derive(Serialize)]
struct Death {
    /// The event.
    event: u32,
    /// What was asked for.
    size: u64,
    /// `device`, `limit`, `rejected`.
    reason: &'static str,
    /// The segment that could not be had.
    segment: u64,
    /// Reserved then.
    reserved: u64,
    /// Allocated then.
    allocated: u64,
    /// Free in pieces that the request could have used.
    usable_free: u64,
    /// The largest of those pieces.
    largest_free: u64,
}

impl Death {
    fn of(death: &program::Death) -> Self {
        Self {
            event: death.event,
            size: death.size,
            reason: death.refusal.key(),
            segment: death.refusal.segment(),
            reserved: death.reserved,
            allocated: death.allocated,
            usable_free: death.usable_free,
            largest_free: death.largest_free,
        }
    }
}

#[derive(Serialize)]
struct Why {
    /// See below.
    code: &'static str,
    /// In words, for people.
    text: String,
}

#[derive(Serialize)]
struct Range {
    /// The least.
    least: u64,
    /// The most.
    most: u64,
}

#[derive(Serialize)]
pub(crate) struct Memory {
    /// What the device had free; `null` if that was not limited.
    free: Option<u64>,
    /// The limit on the process; `null` if there was none.
    limit: Option<u64>,
}

impl Memory {
    pub(crate) fn of(memory: allocator::Memory) -> Self {
        Self {
            free: (memory.free < allocator::Memory::UNLIMITED.free).then_some(memory.free),
            limit: memory.limit,
        }
    }
}

#[derive(Serialize)]
struct Again {
    /// The event.
    event: u32,
    /// `device`, `limit`, `rejected`.
    reason: &'static str,
}

#[derive(Serialize)]
struct Sample {
    /// The first event.
    event: u32,
    /// The most allocated.
    allocated: u64,
    /// The most reserved.
    reserved: u64,
}

impl Sample {
    fn of(sample: &program::Sample) -> Self {
        Self { event: sample.event, allocated: sample.allocated, reserved: sample.reserved }
    }
}
