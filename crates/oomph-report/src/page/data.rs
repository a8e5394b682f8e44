//! What the page's script reads, as types. `web/src/schema.ts` is made from them by `make reference` (`tests/reference.rs` holds it to
//! them). What is in the columns is `subject.rs`'s, and `docs/reference/page.md` says it.

use super::Mode;
use super::limit::Limit;
use crate::json::explain::Waste;
use oomph_explain::{self as model, Place};
use oomph_replay::tune;
use oomph_words::harmless;
use serde::Serialize;

/// The page's JSON.
#[derive(Serialize)]
pub(super) struct Page<'a> {
    /// Changes with what is in here.
    pub(super) schema: u32,
    /// Of oomph.
    pub(super) version: &'static str,
    /// What several recordings are to each other.
    pub(super) mode: Mode,
    /// In the order in which allocations number them.
    pub(super) kinds: Vec<Kind>,
    pub(super) subjects: Vec<&'a SubjectHead>,
    /// The subject that the page begins with.
    pub(super) worst: usize,
    pub(super) diff: Option<Vec<DiffDevice>>,
}

/// A kind of allocation.
#[derive(Serialize)]
pub(super) struct Kind {
    key: &'static str,
    name: &'static str,
    colour: &'static str,
}

impl Kind {
    /// In the order in which allocations number them: those of devices, and behind them those of RAM, where there is any.
    pub(super) fn all(with_ram: bool) -> Vec<Self> {
        let of_devices = model::Kind::ALL.into_iter().map(|kind| Self {
            key: kind.key(),
            name: kind.name(),
            colour: crate::picture::colour(kind),
        });
        let of_ram = model::HostKind::ALL.into_iter().filter(|_| with_ram).map(|kind| Self {
            key: kind.key(),
            name: kind.name(),
            colour: crate::picture::colour_of_ram(kind),
        });
        of_devices.chain(of_ram).collect()
    }

    /// The number of a kind of RAM.
    pub(super) fn of_ram(kind: model::HostKind) -> u64 {
        let place = model::HostKind::ALL.iter().position(|&one| one == kind);
        (model::Kind::ALL.len() + place.unwrap_or_default()) as u64
    }
}

/// One device of one recording, or the RAM of its process.
#[derive(Serialize)]
pub(super) struct SubjectHead {
    pub(super) title: String,
    /// What happened, in one sentence.
    pub(super) headline: String,
    pub(super) file: String,
    /// The number of its recording.
    pub(super) recording: usize,
    /// None of RAM.
    pub(super) device: Option<u32>,
    pub(super) format: &'static str,
    pub(super) conf: Option<String>,
    pub(super) events: u64,
    pub(super) seconds: Option<f64>,
    pub(super) complete: bool,
    /// How complete, in words.
    pub(super) completeness: String,
    pub(super) limit: Option<Limit>,
    pub(super) peak: Peak,
    /// Reserved bytes at the allocated peak, all accounted for.
    pub(super) waste: Waste,
    pub(super) steps: Option<Steps>,
    pub(super) ooms: Vec<Oom>,
    pub(super) findings: Vec<Finding>,
    pub(super) times: Option<Times>,
    /// The lowest address, in hexadecimal: all others count from it.
    pub(super) address_base: String,
    pub(super) columns: Columns,
    pub(super) what_if: Option<WhatIf>,
    /// Those that did the same and are not drawn.
    pub(super) alike: Option<Alike>,
    /// Where it is RAM. Then allocated is what was asked for, reserved what the kernel counted as the process's own, and there are no segments.
    pub(super) ram: Option<Ram>,
    /// The other memory of the same run.
    pub(super) beside: Option<Beside>,
}

/// What is said of RAM only.
#[derive(Serialize)]
pub(super) struct Ram {
    /// What was asked for at the peak may be off by so much: twice the standard deviation.
    pub(super) error: u64,
    /// Bytes of small requests from one sample to the next, on average.
    pub(super) sampled_every: u64,
    /// How memory is asked for, as the column `stream` numbers it.
    pub(super) hows: Vec<How>,
    /// What the kernel counted.
    pub(super) counted: Column,
}

/// A way to ask for memory.
#[derive(Serialize)]
pub(super) struct How {
    pub(super) name: &'static str,
    /// Whether a block stands for many.
    pub(super) sampled: bool,
}

/// The RAM beside a device's memory, or the device's beside RAM.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Beside {
    pub(super) subject: usize,
    /// Microseconds from the first event of all that belong together to the first one of this; none where the two were recorded at different times.
    pub(super) offset: Option<u64>,
}

/// Ranks in whose place another is drawn.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Alike {
    /// How many.
    pub(super) count: usize,
    /// Their files, in short.
    pub(super) names: String,
}

/// The highest of each.
#[derive(Serialize)]
pub(super) struct Peak {
    pub(super) allocated: At,
    pub(super) reserved: At,
    pub(super) requested: At,
    /// Of the allocated peak.
    pub(super) step: Option<u64>,
    /// Of the allocated peak.
    pub(super) place: String,
}

/// A peak and when it was.
#[derive(Serialize)]
pub(super) struct At {
    bytes: u64,
    moment: u32,
}

impl Peak {
    /// The most that was taken, by which subjects are compared.
    pub(super) fn reserved_bytes(&self) -> u64 {
        self.reserved.bytes.max(self.allocated.bytes)
    }
}

impl At {
    pub(super) fn of(peak: oomph_trace::Peak) -> Self {
        Self { bytes: peak.bytes, moment: peak.moment }
    }
}

/// Where the steps are.
#[derive(Serialize)]
pub(super) struct Steps {
    pub(super) begins: Vec<u32>,
    pub(super) end: u32,
    /// Whether the last was cut short.
    pub(super) partial: bool,
    /// How many more were the same as one of these.
    pub(super) repeated: u64,
    /// The allocated peak of each.
    pub(super) peaks: Vec<u64>,
}

/// A request that was not served.
#[derive(Serialize)]
pub(super) struct Oom {
    pub(super) moment: u64,
    pub(super) size: u64,
    pub(super) fatal: bool,
    pub(super) text: String,
    pub(super) place: String,
}

/// A finding, whose words are in the page.
#[derive(Serialize)]
pub(super) struct Finding {
    pub(super) code: &'static str,
    pub(super) severity: &'static str,
    pub(super) title: String,
    pub(super) saving: Option<u64>,
    /// The id of its words.
    pub(super) anchor: String,
}

/// How good the times are.
#[derive(Serialize)]
pub(super) struct Times {
    /// Microseconds that times may be off by.
    pub(super) within: u64,
}

/// Where a column is.
#[derive(Serialize)]
pub(super) struct Column {
    /// Of its `<script>`.
    pub(super) id: String,
    pub(super) rows: usize,
}

/// The columns of a device.
#[derive(Serialize)]
pub(super) struct Columns {
    #[serde(flatten)]
    pub(super) allocations: AllocationColumns,
    pub(super) segments: Column,
    #[serde(flatten)]
    pub(super) text: TextColumns,
    /// Where the recording has times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) times: Option<Column>,
}

/// Those with a row for each allocation, and what these number.
#[derive(Serialize)]
pub(super) struct AllocationColumns {
    pub(super) born: Column,
    pub(super) life: Column,
    pub(super) shape: Column,
    pub(super) address: Column,
    pub(super) kind: Column,
    pub(super) stack: Column,
    pub(super) stream: Column,
    pub(super) shapes: Column,
    pub(super) addresses: Column,
    pub(super) deferred: Column,
}

/// Stacks, annotations, and all names.
#[derive(Serialize)]
pub(super) struct TextColumns {
    pub(super) nodes: Column,
    pub(super) stacks: Column,
    pub(super) annotations: Column,
    pub(super) text: Column,
}

/// The column `text`: numbers index `strings`, but for line numbers and flags.
#[derive(Serialize)]
pub(super) struct Text {
    pub(super) strings: Vec<String>,
    /// Name, file, line, flags.
    pub(super) frames: Vec<(i64, i64, u32, u32)>,
    /// Label, file, line, function, flags, through, source; -1 is none.
    pub(super) lines: Vec<(i64, i64, u32, i64, u32, i64, i64)>,
}

/// What other settings would have done.
#[derive(Serialize)]
pub(super) struct WhatIf {
    pub(super) trials: Vec<Trial>,
    /// Whether the recording ends where the program died.
    pub(super) died: bool,
    pub(super) lower_bound: u64,
    pub(super) memory: Option<String>,
    pub(super) verdict: String,
    pub(super) paste: Option<String>,
    pub(super) doubts: Vec<String>,
    /// The version of PyTorch that was replayed.
    pub(super) torch: String,
}

/// A setting that was tried.
#[derive(Serialize)]
pub(super) struct Trial {
    pub(super) conf: String,
    pub(super) recorded: bool,
    pub(super) best: bool,
    pub(super) fit: Option<Fit>,
    pub(super) peak_reserved: u64,
    pub(super) retries: u64,
    /// The least memory that it completes in.
    pub(super) least: Option<u64>,
    /// Reserved bytes over time.
    pub(super) samples: Column,
}

/// Whether a setting gets to the end of the recording.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Fit {
    Yes,
    No,
    Maybe,
}

impl Fit {
    pub(super) fn of(fit: tune::Fit) -> Self {
        match fit {
            tune::Fit::Yes => Self::Yes,
            tune::Fit::No => Self::No,
            tune::Fit::Maybe => Self::Maybe,
        }
    }
}

/// What changed on a device, or in RAM.
#[derive(Serialize)]
pub(super) struct DiffDevice {
    /// None of RAM.
    pub(super) ordinal: Option<u32>,
    /// The subject before.
    pub(super) before: Option<usize>,
    /// The subject after.
    pub(super) after: Option<usize>,
    pub(super) lines: Vec<DiffLine>,
    pub(super) kinds: Vec<DiffKind>,
}

/// What changed at a line.
#[derive(Serialize)]
pub(super) struct DiffLine {
    label: String,
    own: bool,
    before: u64,
    after: u64,
}

impl DiffLine {
    /// `no_stack` is what a line without a stack is called, if not that.
    pub(super) fn of(change: &model::Change, no_stack: Option<&str>) -> Option<Self> {
        let place = change.what.as_ref().ok()?;
        let name = no_stack.filter(|_| matches!(place, Place::NoStack));
        Some(Self {
            label: name.map_or_else(|| harmless(&place.short()), str::to_owned),
            own: matches!(place, Place::Line { own: true, .. }),
            before: change.before,
            after: change.after,
        })
    }
}

/// What changed in a kind.
#[derive(Serialize)]
pub(super) struct DiffKind {
    key: String,
    name: &'static str,
    before: u64,
    after: u64,
}

impl DiffKind {
    pub(super) fn of(change: &model::Change) -> Option<Self> {
        let name = *change.what.as_ref().err()?;
        Some(Self { key: name.replace(' ', "_"), name, before: change.before, after: change.after })
    }
}
