//! What is said of a program: whether it fits a card, with what margin, and how sure that is.

use crate::host::{self, HostPrediction};
use crate::run::{
    Among, Batches, CallFact, DeviceFacts, Facts, Kind, NcclFact, Program, Ran, Reached, ReadFact, RunError,
    Runner, Status, StepFact, Torch, Values, Voice, World,
};
use oomph_explain::{Explanation, explain};
use oomph_gpus::Gpu;
use oomph_replay::answer::replayable;
use oomph_replay::replayer::Replayer;
use oomph_trace::{History, Recording};
use std::fs::File;
use std::io;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Fits,
    /// It runs out of memory.
    DoesNotFit,
    /// It failed of something else, its time was up, or it hangs on values that are not known.
    Unknown,
}

/// Something that may make the numbers wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uncertain {
    /// For scripts: `branch`, `size`, `growth`, `batches`, `not_reached`, `made_up`, `estimate`, `note`.
    pub what: String,
    pub why: String,
    /// File, line and function, if it is a line's doing.
    pub place: Option<(String, u32, String)>,
    pub count: u64,
}

/// The range of a total that has estimates in it: of workspaces, of plans that won, of NCCL, of the driver's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimated {
    /// If each of them takes the least.
    pub low: u64,
    /// If each of them takes the most.
    pub high: u64,
}

/// What a total may be that hangs on values which are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// With as few elements as there can be.
    pub low: u64,
    /// With as many.
    pub high: u64,
}

/// What it would need on a card without a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// The most bytes in tensors.
    pub allocated: u64,
    /// The most bytes that PyTorch takes.
    pub reserved: u64,
    /// With everything else, as nvidia-smi shows it.
    pub total: u64,
}

/// What is said of a program on a card.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// As it would be typed.
    pub program: String,
    pub gpu: Gpu,
    /// The rank, of several.
    pub world: Option<World>,
    pub verdict: Verdict,
    pub status: Status,
    /// What it died of.
    pub error: Option<String>,
    /// Steps that were run.
    pub steps: u64,
    /// Forwards, where there was no optimizer.
    pub forwards: u64,
    pub reached: Reached,
    /// Whether it was stopped because its time was up.
    pub timed_out: bool,
    /// The rank that was run in its place, if it was not run itself.
    pub like: Option<World>,
    /// What the rank did, to be held against what others did.
    pub among: Among,
    /// What a step of the rank takes beside memory, where that was asked for.
    pub step: Option<StepFact>,
    /// Whether the program starts its ranks itself, one a GPU.
    pub starts_ranks: bool,
    /// What it was fed with, where that differs from step to step or the longest was asked for.
    pub batches: Option<Batches>,
    /// What it did to the device.
    pub device: DeviceFacts,
    /// Out of the card's memory and all that the process took of it.
    pub total: u64,
    /// What it would need, where it does not fit and that was asked.
    pub needs: Option<Needs>,
    /// What may be wrong.
    pub uncertain: Vec<Uncertain>,
    /// Calls without a model.
    pub unmodelled: Vec<CallFact>,
    /// What the total may really be, where something in it was estimated.
    pub estimated: Option<Estimated>,
    /// What the total may really be, where sizes hang on values that are not known.
    pub range: Option<Range>,
    /// What NCCL takes, where it was used; the least is in the total.
    pub nccl: Option<NcclFact>,
    /// The most bytes of managed memory, such as the state of paged optimizers: the host's, and not in the total.
    pub managed: u64,
    /// What it takes of the host's memory, where that was asked for.
    pub host: Option<HostPrediction>,
    /// The PyTorch that it was run with.
    pub torch: Torch,
    /// PyTorch's allocator settings.
    pub conf: String,
    /// What there is to say about the recording.
    pub explanation: Explanation,
    pub recording: Arc<Recording>,
}

/// Why there is no prediction.
#[derive(Debug, thiserror::Error)]
pub enum PredictError {
    /// The program did not run.
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("the program used no GPU: it never called torch.cuda")]
    NoGpu {
        /// A command that it started, or became.
        starts: Option<String>,
    },
    /// Its time was up.
    #[error("the time was up before the program used the GPU")]
    TimedOut,
    /// It failed before it had done anything.
    #[error("the program failed: {0}")]
    Failed(String),
    /// It failed before it had done anything, and had asked for what another rank sends, which was not known.
    #[error("the program failed: {0}")]
    Waiting(String),
    /// Its recording cannot be read.
    #[error("the recording that the program left cannot be read: {0}")]
    Recording(String),
}

/// The part of a total that predictions were seen to be wrong by.
pub(crate) const SEEN: f64 = 0.03;

/// Whether what is left of a card is within what predictions were seen to be wrong by.
pub(crate) fn is_close(total: u64, memory: u64) -> bool {
    memory.saturating_sub(total) as f64 <= SEEN * total as f64
}

/// More memory than any card has: to see what a program would take if it could.
const UNLIMITED: u64 = 1 << 40;

impl Prediction {
    /// Runs a program on a card, and says what happened.
    pub fn make(
        runner: &Runner,
        program: &Program,
        gpu: &Gpu,
        world: Option<World>,
        voice: Voice,
    ) -> Result<Prediction, PredictError> {
        let mut values = runner.values();
        let mut ran = runner.run(program, gpu, world, voice)?;
        if ran.facts.status == Status::Failed && ran.facts.plain_helps {
            // Of a number that is not of the type that it asked for, perhaps.
            values = values.plain();
            ran = runner.run_with(program, gpu, world, Voice::Kept, values)?;
        }
        if ran.facts.status == Status::Failed && ran.facts.more_helps {
            // Of a value that was made up, perhaps: once more, with whatever it takes to know them.
            values = values.more();
            ran = runner.run_with(program, gpu, world, Voice::Kept, values)?;
        }
        if let Some(world) = world {
            runner.take_messages(&ran, world)?;
        }
        let mut prediction = Self::of(program, gpu, world, &ran)?;
        // How much it would have taken is not known, but for one that had run out already.
        if let Some(seconds) = runner.timeout()
            && prediction.timed_out
            && prediction.verdict == Verdict::Fits
        {
            prediction.verdict = Verdict::Unknown;
            prediction.error = Some(format!("the time was up: it was stopped after {seconds} s"));
        }
        if ran.facts.open_sizes > 0 && prediction.verdict != Verdict::Unknown {
            prediction.find_range(runner, program, values)?;
        }
        runner.go_on()?;
        Ok(prediction)
    }

    /// Sizes were taken to be the most that they can be: what if they are the least?
    fn find_range(&mut self, runner: &Runner, program: &Program, values: Values) -> Result<(), PredictError> {
        // Of a run that was cut short nothing follows, but that the least may fit.
        let is_whole = |ran: &Ran| !ran.facts.timed_out && ran.facts.status != Status::Failed;
        let least = Values { least: true, ..values };
        let few = runner.run_with(program, &self.gpu, self.world, Voice::Kept, least)?;
        if !is_whole(&few) {
            if self.verdict == Verdict::DoesNotFit {
                self.verdict = Verdict::Unknown;
            }
            return Ok(());
        }
        let few = Self::of(program, &self.gpu, self.world, &few)?;
        // On the card it may have ended early: how much the most would take is seen where nothing ends it.
        let high = if self.verdict == Verdict::DoesNotFit {
            let many = runner.run_with(program, &unlimited(&self.gpu), self.world, Voice::Kept, values)?;
            let most = Self::of(program, &self.gpu, self.world, &many)?.total;
            // It takes more than there is, at least.
            if is_whole(&many) { most } else { most.max(self.gpu.memory + 1) }
        } else {
            self.total
        };
        let range = Range { low: few.total.min(high), high: high.max(few.total) };
        self.range = (range.low < range.high).then_some(range);
        if self.verdict == Verdict::DoesNotFit && few.verdict != Verdict::DoesNotFit {
            self.verdict = Verdict::Unknown;
        }
        Ok(())
    }

    /// What a program that has run says.
    pub(crate) fn of(
        program: &Program,
        gpu: &Gpu,
        world: Option<World>,
        ran: &Ran,
    ) -> Result<Prediction, PredictError> {
        let facts = &ran.facts;
        if !facts.cuda {
            return Err(match &facts.error {
                Some(error) if facts.among.is_waiting() => PredictError::Waiting(error.clone()),
                Some(error) => PredictError::Failed(error.clone()),
                None if facts.timed_out => PredictError::TimedOut,
                None => PredictError::NoGpu { starts: facts.starts.clone() },
            });
        }
        let unreadable = |error: String| PredictError::Recording(error);
        let recording = match File::open(ran.recording()) {
            Ok(file) => oomph_trace::read(file).map_err(|error| unreadable(error.to_string()))?,
            // Of an allocator that cannot be recorded, only totals are known.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Recording::default(),
            Err(error) => return Err(unreadable(error.to_string())),
        };
        let explanation = explain(&recording);
        let index = world.map_or(0, |world| world.card() as usize);
        // The device that did the most: a program may choose another than the first.
        let device = match facts.devices.get(index).filter(|device| device.peak_driver > 0) {
            Some(device) => *device,
            None => {
                let most = facts.devices.iter().copied().max_by_key(|device| device.peak_driver);
                most.unwrap_or_else(|| recorded(&explanation))
            }
        };
        let verdict = match facts.status {
            // A program that catches an out-of-memory and then gives up has not fitted.
            Status::Finished if device.ooms > 0 && facts.steps == 0 && facts.forwards == 0 => {
                Verdict::DoesNotFit
            }
            Status::Failed if device.ooms > 0 && facts.steps == 0 => Verdict::DoesNotFit,
            Status::Finished | Status::Stopped => Verdict::Fits,
            Status::OutOfMemory => Verdict::DoesNotFit,
            Status::Failed => Verdict::Unknown,
        };
        // How large a product of sparse matrices is, only the library that is not there could have said: what follows is made up.
        let product = facts.unmodelled.iter().any(|call| call.name.starts_with(SPARSE_PRODUCT));
        let (verdict, error) = match verdict {
            Verdict::Fits if product => (Verdict::Unknown, Some(NO_PRODUCT.to_owned())),
            other => (other, facts.error.clone()),
        };
        let total = gpu.context + device.peak_driver;
        let ordinal = facts.devices.iter().position(|one| *one == device).unwrap_or(index);
        // Of one that ran out of memory, the recording ends where it did here.
        let ended_well = facts.status != Status::OutOfMemory && device.ooms == 0;
        let elsewhere = ended_well.then(|| reserved_elsewhere(&recording, ordinal as u32)).flatten();
        let (estimated, estimates) = estimated(facts, device, gpu, elsewhere);
        let mut uncertain = uncertain(facts, program.kind);
        if facts.status == Status::Failed {
            uncertain.extend(facts.made_up.as_ref().map(after_a_made_up_value));
        }
        uncertain.extend(estimates);
        Ok(Prediction {
            program: program.typed(),
            gpu: gpu.clone(),
            world,
            verdict,
            status: facts.status,
            error,
            steps: facts.steps,
            forwards: facts.forwards,
            reached: facts.reached.clone(),
            timed_out: facts.timed_out,
            like: None,
            among: facts.among.clone(),
            step: facts.step,
            starts_ranks: facts.starts_ranks,
            batches: facts.batches.clone(),
            device,
            total,
            needs: None,
            uncertain,
            unmodelled: facts.unmodelled.clone(),
            estimated,
            range: None,
            nccl: facts.nccl.clone(),
            managed: facts.managed,
            host: HostPrediction::of(&ran.left(host::FILE), facts.values.bytes),
            torch: ran.torch.clone(),
            conf: facts.memory_config.clone(),
            explanation,
            recording: Arc::new(recording),
        })
    }

    /// Finds out what a program would need that does not fit: once more, on a card like this one but with unlimited memory.
    pub fn ask_needs(&mut self, runner: &Runner, program: &Program) -> Result<(), PredictError> {
        let unlimited_card = unlimited(&self.gpu);
        let ran = runner.run(program, &unlimited_card, self.world, Voice::Kept)?;
        if let Some(error) = &ran.facts.error {
            let why = format!(
                "what it would need could not be found out: on a card without a limit it failed: {error}"
            );
            self.uncertain.push(Uncertain { what: "note".into(), why, place: None, count: 1 });
        }
        let index = self.card().unwrap_or(0) as usize;
        if ran.facts.timed_out {
            let why = "what it would need could not be found out: the time was up".into();
            self.uncertain.push(Uncertain { what: "note".into(), why, place: None, count: 1 });
        } else if matches!(ran.facts.status, Status::Finished | Status::Stopped)
            && let Some(device) = ran.facts.devices.get(index)
        {
            self.needs = Some(Needs {
                allocated: device.peak_allocated,
                reserved: device.peak_reserved,
                total: self.gpu.context + device.peak_driver,
            });
            self.explain_with_needs(index as u32, device.peak_allocated);
        }
        Ok(())
    }

    /// The verdict knows what the program had still to do, and so does whoever reads the recording.
    fn explain_with_needs(&mut self, device: u32, allocated: u64) {
        let recording = Arc::make_mut(&mut self.recording);
        if let Some(census) = recording.censuses.iter_mut().rfind(|census| census.device == device) {
            census.needs = Some(allocated);
            self.explanation = explain(recording);
        }
    }

    /// The same on another card that would not have been short of memory either.
    pub(crate) fn on(&self, gpu: &Gpu) -> Prediction {
        Prediction {
            gpu: gpu.clone(),
            total: gpu.context + self.device.peak_driver,
            estimated: self.estimated.map(|range| Estimated {
                low: range.low - self.gpu.context.min(range.low) + gpu.context,
                high: range.high - self.gpu.context.min(range.high) + gpu.context,
            }),
            range: self.range.map(|range| Range {
                low: range.low - self.gpu.context.min(range.low) + gpu.context,
                high: range.high - self.gpu.context.min(range.high) + gpu.context,
            }),
            ..self.clone()
        }
    }

    /// Which of its machine's cards the run had that this is of: none where it is not one of several.
    pub fn card(&self) -> Option<u32> {
        self.like.or(self.world).map(World::card)
    }

    /// Whether what was run is all that there is to run, or all that training repeats. What was not run is not known to fit.
    pub fn is_whole(&self) -> bool {
        self.not_reached().is_none()
    }

    /// What was not run, in words: there, more may be taken.
    pub fn not_reached(&self) -> Option<&'static str> {
        if self.uncertain.iter().any(|one| one.what == "growth") {
            return Some("memory still rose when the limit came");
        }
        if self.batches.as_ref().is_some_and(Batches::may_grow) {
            return Some("batches differ in shape, and the longest was not run");
        }
        not_reached(self.status, self.steps, &self.reached)
    }

    /// What is left of the card, or what is missing.
    pub fn margin(&self) -> Option<i64> {
        let total = match self.verdict {
            Verdict::Fits => self.total,
            Verdict::DoesNotFit => self.needs?.total,
            Verdict::Unknown => return None,
        };
        Some(self.gpu.memory as i64 - total as i64)
    }

    /// Whether the margin is within what predictions were seen to be wrong by.
    pub fn is_close(&self) -> bool {
        if self.verdict == Verdict::Fits && self.estimated.is_some_and(|range| range.high > self.gpu.memory) {
            return true;
        }
        self.verdict == Verdict::Fits && is_close(self.total, self.gpu.memory)
    }
}

fn after_a_made_up_value(read: &ReadFact) -> Uncertain {
    let why = format!("the last value before it failed was made up: {}", read.detail);
    Uncertain {
        what: "made_up".into(),
        why,
        place: Some((read.file.clone(), read.line, read.function.clone())),
        count: read.count,
    }
}

/// Of a program that was killed: what its recording has.
fn recorded(explanation: &Explanation) -> DeviceFacts {
    let most = explanation.devices.iter().max_by_key(|device| device.peak.reserved.bytes);
    most.map(|device| DeviceFacts {
        peak_allocated: device.peak.allocated.bytes,
        peak_reserved: device.peak.reserved.bytes,
        peak_driver: device.peak.reserved.bytes,
        ..DeviceFacts::default()
    })
    .unwrap_or_default()
}

/// What PyTorch takes of the device at once for requests of a few MiB: whether one more of these is needed depends on little.
const SEGMENT: u64 = 20 << 20;

/// What the total of a device may really be, and why: nothing where nothing of it was estimated.
fn estimated(
    facts: &Facts,
    device: DeviceFacts,
    gpu: &Gpu,
    elsewhere: Option<Elsewhere>,
) -> (Option<Estimated>, Vec<Uncertain>) {
    let context = gpu.context;
    let total = context + device.peak_driver;
    let (mut low, mut high, mut why) = (total, total, Vec::new());
    let estimate = |why: String, count: u64| Uncertain { what: "estimate".into(), why, place: None, count };
    if let Some(fact) = facts.estimated {
        // Twice: a workspace that is larger than those before it takes a segment of its own, and theirs stay cached.
        low = total.saturating_sub(2 * fact.largest);
        high = total + (2 * fact.most).saturating_sub(fact.largest);
        let words = "no cuDNN to ask: workspaces are estimated, and the total is";
        why.push(estimate(format!("{words} {}", mebibytes(low, high)), fact.count));
    }
    if let Some(fact) = facts.tried {
        let other = fact.less.max(fact.more) + SEGMENT;
        // Trials themselves need the same whichever plan wins, and what was allocated in them was taken of the device.
        let least = total.saturating_sub(other).max(context + device.peak_allocated).min(total);
        let most = (context + device.peak_settled + other).max(total + SEGMENT);
        (low, high) = (low.min(least), high.max(most));
        let words = "cudnn.benchmark: which plan is the fastest is not known, and the total is";
        why.push(estimate(format!("{words} {}", mebibytes(least, most)), fact.count));
    }
    if let Some(fact) = facts.nccl.as_ref().filter(|fact| fact.most > fact.taken) {
        high += fact.most - fact.taken;
        let range = mebibytes(fact.taken, fact.most);
        why.push(estimate(
            format!("NCCL takes {range} of each card, by their links; the least is counted"),
            fact.communicators,
        ));
    }
    for fact in &facts.chances {
        (low, high) = (low.saturating_sub(fact.less), high + fact.more);
        let range = mebibytes(total.saturating_sub(fact.less), total + fact.more);
        why.push(estimate(format!("{}: the total is {range}", fact.why), 1));
    }
    if let Some(Elsewhere { less, more }) = elsewhere {
        // Where there is no room for more, PyTorch gives back what it has cached.
        let most = (total + more).min(gpu.memory.max(total));
        low = low.saturating_sub(less);
        high += most - total;
        let words = "the driver's addresses decide which of two equal free blocks is taken: the total is";
        why.push(estimate(format!("{words} {}", mebibytes(total.saturating_sub(less), most)), 1));
    }
    ((low < high).then_some(Estimated { low, high }), why)
}

/// How much less, or more, is reserved where the driver puts segments at other addresses.
#[derive(Clone, Copy, Debug)]
struct Elsewhere {
    less: u64,
    more: u64,
}

/// The calls that multiply sparse matrices, and why nothing is known after them.
const SPARSE_PRODUCT: &str = "cusparseSpGEMM";
const NO_PRODUCT: &str = "it multiplies sparse matrices: how large the product is, and what cuSPARSE needs for it, only a card shows";

/// Orders of addresses that are tried without any rule, beside those that drivers were seen to follow.
const SCATTERED: u32 = 8;
/// Longer recordings are replayed in fewer orders: an order takes about a second for so many events.
const EVENTS: usize = 2_000_000;

/// Replays the recording with segments at other addresses: those of the virtual GPU are one guess of many. None if that makes no difference.
fn reserved_elsewhere(recording: &Recording, ordinal: u32) -> Option<Elsewhere> {
    let device = recording.devices.iter().find(|device| device.ordinal == ordinal)?;
    replayable(device).ok()?;
    let history = History::of(recording, device);
    let replayer = Replayer::quick(recording, device, &history, None);
    if replayer.reproduction.differences() > 0 {
        return None;
    }
    let scattered = if device.events.len() > EVENTS { 0 } else { SCATTERED };
    let (least, most) = replayer.reserved_elsewhere(scattered);
    let peak = history.peak.reserved.bytes;
    let elsewhere = Elsewhere { less: peak.saturating_sub(least), more: most.saturating_sub(peak) };
    (elsewhere.less > 0 || elsewhere.more > 0).then_some(elsewhere)
}

/// Whole within the width that a line of doubts has.
fn mebibytes(low: u64, high: u64) -> String {
    const MIB: u64 = 1 << 20;
    format!("{} to {} MiB", low / MIB, high.div_ceil(MIB))
}

/// A card like this one, but with unlimited memory.
pub fn unlimited(gpu: &Gpu) -> Gpu {
    Gpu { memory: UNLIMITED, ..gpu.clone() }
}

fn not_reached(status: Status, steps: u64, reached: &Reached) -> Option<&'static str> {
    let came_to = |phase: &str| reached.phases.iter().any(|one| one == phase);
    let in_validation = reached.doing.as_deref() == Some("validation");
    match steps {
        _ if status == Status::Finished || came_to("second_epoch") => None,
        _ if came_to("validation") && !in_validation => None,
        _ if came_to("validation") => Some("validation was not run to its end"),
        0 => Some("the program's end was not reached"),
        _ => Some("validation was not reached"),
    }
}

/// Why the longest batch may take more than what was run.
fn larger_may_come(batches: &Batches) -> Option<String> {
    if batches.whole {
        return None;
    }
    if let Some(why) = &batches.no_longest {
        return Some(format!("the longest batch was not run: {why}"));
    }
    match &batches.longest {
        Some(longest) if !longest.ran => {
            Some("the longest batch was not run: the program drew no further batch".to_owned())
        }
        Some(longest) if longest.is_cut() => Some(format!(
            "a longer batch may come: {} of {} were drawn within the limit",
            longest.drawn,
            longest.of.unwrap_or_default()
        )),
        _ if batches.may_grow() => {
            let grew = if batches.settled { "" } else { ", and the peak may not have stopped growing" };
            let then = if batches.loader {
                "--longest runs the longest of the loader"
            } else {
                "no data loader gives them, so give it one of the longest"
            };
            Some(format!("batches differ in shape ({} in {}){grew}: {then}", batches.shapes, batches.drawn))
        }
        _ => None,
    }
}

fn uncertain(facts: &Facts, kind: Kind) -> Vec<Uncertain> {
    let mut list: Vec<Uncertain> = facts
        .reads
        .iter()
        // Values that are only read, to be printed or logged, change nothing.
        .filter(|read| read.what != "read")
        .map(|read: &ReadFact| Uncertain {
            what: read.what.clone(),
            why: read.detail.clone(),
            place: Some((read.file.clone(), read.line, read.function.clone())),
            count: read.count,
        })
        .collect();
    let note = |why: String| Uncertain { what: "note".into(), why, place: None, count: 1 };
    list.extend(facts.notes.iter().cloned().map(note));
    if facts.devices.iter().any(|device| device.ooms > 0) && facts.status != Status::OutOfMemory {
        let ooms: u64 = facts.devices.iter().map(|device| device.ooms).sum();
        list.push(note(format!(
            "the program ran out of memory ({ooms}×) and went on: it adapts to the card"
        )));
    }
    if let Some(why) = facts.batches.as_ref().and_then(larger_may_come) {
        list.push(Uncertain { what: "batches".into(), why, place: None, count: 1 });
    }
    if facts.status == Status::Stopped
        && let Some(why) = not_reached(facts.status, facts.steps, &facts.reached)
    {
        let why = format!("{why}, and what it takes is not known");
        list.push(Uncertain { what: "not_reached".into(), why, place: None, count: 1 });
    }
    if kind == Kind::Notebook {
        list.push(note("the notebook ran without its shell commands and magics".into()));
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn facts(more: &str) -> Facts {
        let text = format!(
            r#"{{"status": "finished", "steps": 3, "forwards": 0, "error": null, "cuda": true, {more} "devices": []}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn device() -> DeviceFacts {
        DeviceFacts {
            peak_allocated: 800 * MIB,
            peak_reserved: 900 * MIB,
            peak_driver: 1000 * MIB,
            peak_settled: 950 * MIB,
            ..DeviceFacts::default()
        }
    }

    fn card(memory: u64) -> Gpu {
        Gpu { memory, context: 500 * MIB, ..oomph_gpus::Catalogue::built_in().find("t4").unwrap().clone() }
    }

    fn range(more: &str) -> Option<(u64, u64)> {
        range_elsewhere(more, u64::MAX, None)
    }

    fn range_elsewhere(more: &str, memory: u64, elsewhere: Option<Elsewhere>) -> Option<(u64, u64)> {
        let (range, why) = estimated(&facts(more), device(), &card(memory), elsewhere);
        assert_eq!(range.is_some(), !why.is_empty());
        assert!(why.iter().all(|one| one.what == "estimate"));
        range.map(|range| (range.low / MIB, range.high / MIB))
    }

    #[test]
    fn each_estimate_widens_the_range() {
        assert_eq!(range(""), None);
        let estimated = r#""estimated": {"count": 2, "largest": 104857600, "most": 262144000},"#;
        assert_eq!(range(estimated), Some((1300, 1900)));
        // Another plan may need 30 MiB less, or 100 more, and may take a segment that the first does not.
        let tried = r#""tried": {"count": 5, "less": 31457280, "more": 104857600},"#;
        assert_eq!(range(tried), Some((1380, 1570)));
        // What was allocated was taken, whichever wins; and trials are the peak.
        let tried = r#""tried": {"count": 5, "less": 1048576000, "more": 0},"#;
        assert_eq!(range(tried).unwrap().0, 1300);
        let tried = r#""tried": {"count": 5, "less": 1048576, "more": 1048576},"#;
        assert_eq!(range(tried), Some((1479, 1520)));
        let nccl = r#""nccl": {"communicators": 1, "taken": 104857600, "most": 314572800},"#;
        assert_eq!(range(nccl), Some((1500, 1700)));
        let alone = r#""nccl": {"communicators": 1, "taken": 104857600, "most": 104857600},"#;
        assert_eq!(range(alone), None, "of one rank it is known");
        let chance = r#""chances": [{"why": "of timing", "less": 10485760, "more": 104857600}],"#;
        assert_eq!(range(chance), Some((1490, 1600)));
        let elsewhere = Some(Elsewhere { less: 20 * MIB, more: 60 * MIB });
        assert_eq!(range_elsewhere("", u64::MAX, elsewhere), Some((1480, 1560)));
        assert_eq!(range_elsewhere(nccl, u64::MAX, elsewhere), Some((1480, 1760)));
        // What a card has no room for is given back before it fails.
        assert_eq!(range_elsewhere("", 1510 * MIB, elsewhere), Some((1480, 1510)));
    }
}
