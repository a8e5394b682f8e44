//! What `oomph predict` prints.

use super::document;
use super::explain::{Finding, HeldKind, Place};
use crate::predict::{NamedPrediction, device};
use oomph_predict::prediction::{self as model, Verdict};
use oomph_predict::run::{self, Status};
use oomph_predict::search::{self, Sweep, largest, largest_close};
use serde::Serialize;

/// One script on one card.
pub(crate) fn prediction(named: &NamedPrediction) -> String {
    document(Prediction::of(named.prediction, named.recording))
}

/// Several cards or ranks.
pub(crate) fn predictions(all: &[model::Prediction]) -> String {
    document(Predictions { predictions: all.iter().map(|one| Prediction::of(one, None)).collect() })
}

/// Values that were tried.
pub(crate) fn sweep(sweep: &Sweep, tried: &[search::Tried]) -> String {
    document(Tries {
        argument: &sweep.argument,
        largest: largest(tried).map(|one| one.value),
        largest_close: largest_close(tried).map(|one| one.value),
        tried: tried
            .iter()
            .map(|one| Tried { prediction: Prediction::of(&one.prediction, None), value: one.value })
            .collect(),
    })
}

/// How a run ended.
pub(crate) fn ended(status: Status) -> &'static str {
    match status {
        Status::Finished => "finished",
        Status::Stopped => "stopped",
        Status::OutOfMemory => "out_of_memory",
        Status::Failed => "failed",
    }
}

#[derive(Serialize)]
struct Predictions<'a> {
    /// **Stable.** One for each card in the order given, or for each rank; `recording` is `null`.
    predictions: Vec<Prediction<'a>>,
}

#[derive(Serialize)]
struct Tries<'a> {
    /// The script's argument.
    argument: &'a str,
    /// **Stable.** The largest of the values that were tried that is safely inside: it fits and is not `close`; `null` if none is.
    largest: Option<u64>,
    /// **Stable.** A larger one that fits too closely to be sure; `null` if there is none.
    largest_close: Option<u64>,
    /// One for each value that was tried, smallest first; `recording` is `null`.
    tried: Vec<Tried<'a>>,
}

#[derive(Serialize)]
struct Tried<'a> {
    /// What it took.
    #[serde(flatten)]
    prediction: Prediction<'a>,
    /// The value.
    value: u64,
}

#[derive(Serialize)]
pub(super) struct Prediction<'a> {
    /// The script and its arguments, as they would be typed.
    program: &'a str,
    /// The card. With `--memory` and no `--gpu`, a card like `a100-80gb`, whose `title` says that it is none in particular.
    gpu: Gpu<'a>,
    /// With `--ranks`, which one.
    rank: Option<u32>,
    /// With `--ranks`, the rank that was run in its place: all that follows is what that one did. `null` of one that was run itself.
    like_rank: Option<u32>,
    /// **Stable.** Of what was run, see `reached`; `null` if the script failed of something else than memory, if its time was up, or if `range`
    /// spans `gpu.memory`.
    fits: Option<bool>,
    /// **Stable.** It fits, but what stays free is at most 3 % of `total`, or `estimated.high` is more than there is: too close to be sure.
    close: bool,
    /// **Stable.** `gpu.memory` less `total` if it fits, less `needs.total` if it does not: negative is what is missing. `null` if that
    /// is not known.
    margin: Option<i64>,
    /// **Stable.** By PyTorch's own counters. If it ran out of memory, what it had reached by then.
    peak: Peak,
    /// What the CUDA context takes, from the catalogue of cards.
    context: u64,
    /// **Stable.** `context` and the most that the process took of the device, by PyTorch and past it: what nvidia-smi would show at the
    /// peak.
    total: u64,
    /// What `total` may really be, where something in it was estimated: workspaces of convolutions, where cuDNN is not installed (or older than
    /// 9.8); the plan that wins, with `torch.backends.cudnn.benchmark`; `nccl`. `null` where nothing was.
    estimated: Option<Range>,
    /// What `total` may really be, where sizes hang on values that only a GPU would have computed and that could not be had on the CPU;
    /// `null` where none does.
    range: Option<Sizes>,
    /// What NCCL takes of the card beyond PyTorch, where it was used; `null` where not. `total` has `low` in it, `estimated.high` has `high`.
    nccl: Option<Nccl>,
    /// The most bytes of managed memory (`cudaMallocManaged`), such as the state of paged optimizers. They are the host's: `total` is without them.
    managed: u64,
    /// **Stable.** With `--ram`, what the program takes of the host's memory; else `null`.
    host: Option<Host<'a>>,
    /// **Stable.** On a card of this kind with unlimited memory, if it does not fit and ran there. With `--gpus` always there; with
    /// `--max` and `--sweep` always `null`.
    needs: Option<Needs>,
    /// How the script ended: `stopped` (when enough was seen, or at a limit), `finished` (by itself), `out_of_memory`, `failed`.
    ended: &'static str,
    /// What it died of, as Python says it.
    error: Option<&'a str>,
    /// Optimizer steps that were run; of several optimizers, of the one that had most.
    steps: u64,
    /// Forwards that were counted because there was no optimizer.
    forwards: u64,
    /// **Stable.** What was run. Where it neither finished nor came to the end of its validation or to `second_epoch`, the text says
    /// "fits so far", and `uncertain` has `not_reached`; so it does where `uncertain` has `growth`, and where batches differ and the
    /// longest was not run.
    reached: Reached<'a>,
    /// Whether it was stopped because its time was up (`--timeout`): `fits` is then `null`, unless it had run out of memory already.
    timed_out: bool,
    /// What the script was fed with, where that differs in shape from step to step, or `--longest` was given; else `null`.
    batches: Option<Batches<'a>>,
    /// Out-of-memories, caught ones included.
    ooms: u64,
    /// How often the allocator gave its whole cache back to find room.
    retries: u64,
    /// The step of the allocated peak, from 1.
    step: Option<u64>,
    /// Where the allocated peak is.
    #[serde(rename = "where")]
    place: Option<Place<'a>>,
    /// What was held at the allocated peak.
    kinds: Option<Vec<HeldKind>>,
    /// About the recording.
    findings: Vec<Finding<'a>>,
    /// **Stable.** What may make this wrong; empty if nothing is in doubt.
    uncertain: Vec<Uncertain<'a>>,
    /// **Stable.** Functions of NVIDIA's libraries that were called and are not modelled.
    unmodelled_calls: Vec<Call<'a>>,
    /// The PyTorch that the script was run with.
    torch: Torch<'a>,
    /// The allocator settings of the environment that the script had; empty if none.
    alloc_conf: &'a str,
    /// The file that the recording was written to.
    recording: Option<&'a str>,
}

#[derive(Serialize)]
struct Host<'a> {
    /// **Stable.** The most bytes of its own and of the processes that it starts, without what the virtual card took. CUDA's own are not in it.
    most: u64,
    /// **Stable.** The same without values that were computed in place of a GPU: they may have been there at that moment, or not.
    least: u64,
    /// Bytes pinned for copies to and from the GPU, when the first process held most.
    pinned: u64,
    /// Bytes that the virtual card took, which are not in the above.
    virtual_card: u64,
    /// How many processes held something.
    processes: u64,
    /// The lines of the first process that held it, most first.
    lines: Vec<HostLine<'a>>,
}

#[derive(Serialize)]
struct HostLine<'a> {
    /// The line; `null` where no Python was running.
    place: Option<Place<'a>>,
    /// Bytes.
    bytes: u64,
}

impl<'a> Host<'a> {
    fn of(host: &'a oomph_predict::host::HostPrediction) -> Self {
        let line = |line: &'a oomph_explain::HostLine| HostLine {
            place: line.place.as_ref().map(Place::of),
            bytes: line.bytes,
        };
        Self {
            most: host.most,
            least: host.least,
            pinned: host.pinned,
            virtual_card: host.of_card,
            processes: host.processes as u64,
            lines: host.lines.iter().map(line).collect(),
        }
    }
}

impl<'a> Prediction<'a> {
    pub(super) fn of(prediction: &'a model::Prediction, recording: Option<&'a str>) -> Self {
        let found = device(prediction);
        let gpu = &prediction.gpu;
        Self {
            program: &prediction.program,
            gpu: Gpu::of(gpu),
            rank: prediction.world.map(|world| world.rank),
            like_rank: prediction.like.map(|world| world.rank),
            fits: match prediction.verdict {
                Verdict::Fits => Some(true),
                Verdict::DoesNotFit => Some(false),
                Verdict::Unknown => None,
            },
            close: prediction.is_close(),
            margin: prediction.margin(),
            peak: Peak {
                allocated: prediction.device.peak_allocated,
                reserved: prediction.device.peak_reserved,
            },
            context: gpu.context,
            total: prediction.total,
            estimated: prediction.estimated.map(|range| Range { low: range.low, high: range.high }),
            range: prediction.range.map(|range| Sizes { low: range.low, high: range.high }),
            nccl: prediction.nccl.as_ref().map(|fact| Nccl {
                communicators: fact.communicators,
                sizes: fact.sizes.iter().map(Communicators::of).collect(),
                low: fact.taken,
                high: fact.most,
            }),
            managed: prediction.managed,
            host: prediction.host.as_ref().map(Host::of),
            needs: prediction.needs.map(Needs::of),
            ended: ended(prediction.status),
            error: prediction.error.as_deref(),
            steps: prediction.steps,
            forwards: prediction.forwards,
            reached: Reached {
                steps: prediction.steps,
                forwards: prediction.forwards,
                phases: &prediction.reached.phases,
                loops_cut: prediction.reached.cut,
                finished: prediction.status == Status::Finished,
            },
            timed_out: prediction.timed_out,
            batches: prediction.batches.as_ref().map(Batches::of),
            ooms: prediction.device.ooms,
            retries: prediction.device.retries,
            step: found.and_then(|device| device.peak_step),
            place: found.map(|device| Place::of(&device.peak_place)),
            kinds: found.map(|device| device.kinds.iter().map(HeldKind::of).collect()),
            findings: prediction.explanation.findings.iter().map(Finding::of).collect(),
            uncertain: prediction.uncertain.iter().map(Uncertain::of).collect(),
            unmodelled_calls: (prediction.unmodelled.iter())
                .map(|call| Call { name: &call.name, count: call.count })
                .collect(),
            torch: Torch {
                version: &prediction.torch.version,
                cuda: &prediction.torch.cuda,
                in_place_of: prediction.torch.in_place_of.as_deref(),
            },
            alloc_conf: &prediction.conf,
            recording,
        }
    }
}

#[derive(Serialize)]
pub(super) struct Gpu<'a> {
    /// Its name in the catalogue.
    name: &'a str,
    /// What the driver calls it.
    title: &'a str,
    /// Bytes that CUDA says it has; with `--memory`, those.
    memory: u64,
    /// Such as `8.9`.
    compute_capability: &'a str,
}

impl<'a> Gpu<'a> {
    pub(super) fn of(gpu: &'a oomph_gpus::Gpu) -> Self {
        Self {
            name: &gpu.name,
            title: &gpu.title,
            memory: gpu.memory,
            compute_capability: &gpu.compute_capability,
        }
    }
}

#[derive(Serialize)]
struct Peak {
    /// In tensors.
    allocated: u64,
    /// Taken by PyTorch.
    reserved: u64,
}

#[derive(Serialize)]
struct Range {
    /// If each of them takes the least.
    low: u64,
    /// If each of them takes the most.
    high: u64,
}

#[derive(Serialize)]
struct Nccl {
    /// How many communicators were made.
    communicators: u64,
    /// Of how many ranks they are, fewest first.
    sizes: Vec<Communicators>,
    /// Over sockets, as it was measured.
    low: u64,
    /// Over NVLink, as it was published.
    high: u64,
}

#[derive(Serialize)]
struct Communicators {
    /// How many ranks each has.
    ranks: u32,
    /// How many of them are on the machine of this rank: NVLink can only join those.
    on_one_machine: u32,
    /// How many communicators there are of these.
    count: u64,
}

impl Communicators {
    fn of(fact: &run::Communicators) -> Self {
        Self { ranks: fact.ranks, on_one_machine: fact.on_one_machine, count: fact.count }
    }
}

#[derive(Serialize)]
struct Sizes {
    /// With as few elements as there can be.
    low: u64,
    /// With as many.
    high: u64,
}

#[derive(Serialize)]
struct Torch<'a> {
    /// Its version: `2.11.0+cu130`.
    version: &'a str,
    /// Its CUDA: `13.0`.
    cuda: &'a str,
    /// The version that is installed, which has no CUDA, if this one was fetched (`--fetch-torch`); `null` if this is the installed one.
    in_place_of: Option<&'a str>,
}

#[derive(Serialize)]
pub(super) struct Needs {
    /// In tensors.
    allocated: u64,
    /// Taken by PyTorch.
    reserved: u64,
    /// In all.
    total: u64,
}

impl Needs {
    pub(super) fn of(needs: model::Needs) -> Self {
        Self { allocated: needs.allocated, reserved: needs.reserved, total: needs.total }
    }
}

#[derive(Serialize)]
struct Reached<'a> {
    /// As `steps`.
    steps: u64,
    /// As `forwards`.
    forwards: u64,
    /// Of `training`, `inference`, `validation`, `save` and `second_epoch`, in this order.
    phases: &'a [String],
    /// Loops over data loaders that were ended early.
    loops_cut: u64,
    /// Whether the script came to its end.
    finished: bool,
}

#[derive(Serialize)]
struct Batches<'a> {
    /// Whether their shapes differ.
    vary: bool,
    /// Whether a data loader gave them; else it is what went into the models.
    loader: bool,
    /// How many were run.
    drawn: u64,
    /// Of how many shapes these are, by the largest tensor of each.
    shapes: u64,
    /// Whether the peak had stopped growing; only looked for where shapes differ and `--steps` was not given.
    settled: bool,
    /// Whether the script came to the end of its loader.
    whole: bool,
    /// What the allocated peak came with; `null` if it came after the steps that were watched.
    peak: Option<PeakBatch<'a>>,
    /// With `--longest`, the largest batch of the loader; `null` if there is none.
    longest: Option<LongestBatch<'a>>,
    /// With `--longest`, why there is none.
    no_longest: Option<&'a str>,
}

impl<'a> Batches<'a> {
    fn of(batches: &'a run::Batches) -> Self {
        Self {
            vary: batches.vary,
            loader: batches.loader,
            drawn: batches.drawn,
            shapes: batches.shapes,
            settled: batches.settled,
            whole: batches.whole,
            peak: batches.peak.as_ref().map(|peak| PeakBatch {
                step: peak.step,
                batch: peak.batch,
                shape: &peak.shape,
            }),
            longest: batches.longest.as_ref().map(|longest| LongestBatch {
                shape: &longest.shape,
                drawn: longest.drawn,
                of: longest.of,
                ran: longest.ran,
                allocated: longest.allocated,
                reserved: longest.reserved,
            }),
            no_longest: batches.no_longest.as_deref(),
        }
    }
}

#[derive(Serialize)]
struct PeakBatch<'a> {
    /// The step, from 1.
    step: u64,
    /// Which one of its epoch it is, from 1; `null` for the longest batch, and where no data loader gave it.
    batch: Option<u64>,
    /// The shape of its largest tensor.
    shape: &'a [u64],
}

#[derive(Serialize)]
struct LongestBatch<'a> {
    /// The shape of its largest tensor.
    shape: &'a [u64],
    /// How many batches were drawn to find it.
    drawn: u64,
    /// How many the loader has, if it says so: more than `drawn` if the limit came first.
    of: Option<u64>,
    /// Whether the script took it.
    ran: bool,
    /// The allocated peak by the end of its step; `null` if memory ran out in it.
    allocated: Option<u64>,
    /// The reserved peak, likewise.
    reserved: Option<u64>,
}

#[derive(Serialize)]
struct Uncertain<'a> {
    /// `branch`: the script goes one way or the other by a value that only a GPU would have computed; `size`: a size depends on such a
    /// value; `growth`: memory still rose from turn to turn of this loop when the limit came; `batches`: they differ in shape, and one that
    /// is longer than those that were run may come; `not_reached`: validation, its end, or the end of a script that does not train, was
    /// not run; `estimate`: part of the total is a range, see `estimated`; `note`: something else.
    what: &'a str,
    /// In words, for people.
    why: &'a str,
    /// The file; `null` for `note`, `estimate`, `batches` and `not_reached`.
    file: Option<&'a str>,
    /// The line; likewise.
    line: Option<u32>,
    /// The function; likewise.
    function: Option<&'a str>,
    /// How often.
    count: u64,
}

impl<'a> Uncertain<'a> {
    fn of(one: &'a model::Uncertain) -> Self {
        let place = one.place.as_ref();
        Self {
            what: &one.what,
            why: &one.why,
            file: place.map(|(file, ..)| file.as_str()),
            line: place.map(|(_, line, _)| *line),
            function: place.map(|(.., function)| function.as_str()),
            count: one.count,
        }
    }
}

#[derive(Serialize)]
struct Call<'a> {
    /// The function.
    name: &'a str,
    /// How often.
    count: u64,
}
