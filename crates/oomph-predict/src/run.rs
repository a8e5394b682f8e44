//! Starts programs on the virtual GPU and collects what they left.

use crate::host;
use crate::refusal::{Refusal, RefusedFact};
use oomph_child::{Ended, Listener, Stopper};
use oomph_gpus::Gpu;
use oomph_stage::installed::Installed;
use oomph_stage::libraries::RECORD;
use oomph_stage::ram::Ram;
use oomph_stage::spare::Asked;
use oomph_stage::{Launch, Spare, StageError, VirtualGpu, handed, package};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{debug, info};

/// The Python that runs inside the program; under a name that no package has.
const PACKAGE: &str = "_oomph_virtual";

/// How long a program that was asked to end may take for it.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a program whose time is up may take to hear of it.
const DEAF: Duration = Duration::from_secs(5);

/// What a program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Script,
    /// A module, as `python -m` takes it.
    Module,
    Notebook,
}

/// A program to be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub kind: Kind,
    /// The file or the module.
    pub target: OsString,
    pub arguments: Vec<OsString>,
}

impl Program {
    /// As it would be typed.
    pub fn typed(&self) -> String {
        let words = std::iter::once(&self.target).chain(&self.arguments);
        let words: Vec<String> = words.map(|word| word.display().to_string()).collect();
        let module = if self.kind == Kind::Module { "-m " } else { "" };
        format!("{module}{}", words.join(" "))
    }
}

/// One of several ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct World {
    pub size: u32,
    pub rank: u32,
    /// How many are on one machine.
    pub per_node: u32,
}

impl World {
    /// Which of its machine's cards it has.
    pub fn card(self) -> u32 {
        self.rank % self.per_node.max(1)
    }
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// By itself.
    Finished,
    /// After as many steps as were asked for.
    Stopped,
    /// It ran out of memory.
    OutOfMemory,
    /// Of another error.
    Failed,
}

/// How far a program is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Until {
    /// Its first training steps, or forwards.
    Steps,
    /// On to validation and to the step of training after it, within limits of time and steps.
    Validation,
    /// To its end, with loops over data loaders cut short.
    End,
}

/// What a program came to, beside its steps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Reached {
    /// `inference`, `training`, `validation`, `save`, `second_epoch`, in this order.
    pub phases: Vec<String>,
    /// Loops over data loaders that were ended early.
    pub cut: u64,
    /// What it did last.
    pub doing: Option<String>,
}

/// What a program did to a device, by PyTorch's own counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct DeviceFacts {
    /// The most bytes in tensors.
    pub peak_allocated: u64,
    /// The most bytes that PyTorch took of the device.
    pub peak_reserved: u64,
    /// How often cached memory was given back to serve a request.
    pub retries: u64,
    /// Out-of-memories, caught ones included.
    pub ooms: u64,
    /// The most bytes that the process took of the device, by any means.
    pub peak_driver: u64,
    /// The same, after plans of convolutions were tried for the last time.
    #[serde(default)]
    pub peak_settled: u64,
}

/// A line that read a value which only a GPU would have computed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ReadFact {
    pub file: String,
    pub line: u32,
    pub function: String,
    /// `read`, `branch` or `size`.
    pub what: String,
    pub detail: String,
    pub count: u64,
}

/// A call without a model.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct CallFact {
    pub name: String,
    pub count: u64,
}

/// What it took to compute values on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct SpentFact {
    /// Bytes, at most.
    pub bytes: u64,
    pub seconds: f64,
}

/// Workspaces of convolutions that were estimated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct EstimatedFact {
    pub count: u64,
    /// The largest, as it was allocated.
    pub largest: u64,
    /// The most bytes that one of them may really be.
    pub most: u64,
}

/// A batch that the peak came with.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct PeakBatch {
    /// The step, from 1.
    pub step: u64,
    /// Which one of its epoch, from 1, if it came from a data loader by itself.
    pub batch: Option<u64>,
    /// The shape of its largest tensor.
    pub shape: Vec<u64>,
}

/// The largest batch of a loader that was drawn through.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct LongestBatch {
    /// The shape of its largest tensor.
    pub shape: Vec<u64>,
    /// How many batches were drawn.
    pub drawn: u64,
    /// How many the loader has, if it says so.
    pub of: Option<u64>,
    /// Whether the program took it.
    pub ran: bool,
    /// The most bytes in tensors by the end of its step; none where memory ran out in it.
    pub allocated: Option<u64>,
    /// The most that PyTorch had taken by then.
    pub reserved: Option<u64>,
}

impl LongestBatch {
    /// Whether it was the largest of some only: the loader has more.
    pub fn is_cut(&self) -> bool {
        self.of.is_some_and(|of| of > self.drawn)
    }
}

/// What a program was fed with, where that differs from step to step or the longest was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Batches {
    pub vary: bool,
    /// Whether a data loader gave them.
    pub loader: bool,
    /// How many batches there were.
    pub drawn: u64,
    /// Of how many shapes.
    pub shapes: u64,
    /// Whether the peak had stopped growing.
    pub settled: bool,
    /// Whether the program came to the end of its loader.
    pub whole: bool,
    /// What the peak came with, if it came in these steps.
    pub peak: Option<PeakBatch>,
    /// The longest, where it was asked for and found.
    pub longest: Option<LongestBatch>,
    /// Why it was not found.
    pub no_longest: Option<String>,
}

impl Batches {
    /// Whether a larger batch than any that was run may come.
    pub fn may_grow(&self) -> bool {
        let has_longest = self.longest.as_ref().is_some_and(|longest| longest.ran && !longest.is_cut());
        self.vary && !self.whole && !has_longest
    }
}

/// Convolutions whose plans were tried for their time (`torch.backends.cudnn.benchmark = True`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct TriedFact {
    /// How many convolutions.
    pub count: u64,
    /// The most bytes that another plan needs less than the one that was taken.
    pub less: u64,
    /// And the most that one needs more.
    pub more: u64,
}

/// Communicators of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Communicators {
    /// How many ranks each has.
    pub ranks: u32,
    /// How many of them are on the machine of this rank.
    pub on_one_machine: u32,
    pub count: u64,
}

/// What NCCL took of the card.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct NcclFact {
    /// How many communicators were made.
    pub communicators: u64,
    /// The most bytes that were taken for them at once, which the device's peak has in it.
    pub taken: u64,
    /// The most that it may really be, by links between cards that are not known.
    pub most: u64,
    /// The communicators, by their size.
    #[serde(default)]
    pub sizes: Vec<Communicators>,
}

/// What a training step of a rank takes beside memory.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct StepFact {
    /// An estimate of how long the GPU works, at the speeds of a card of its kind.
    pub seconds: f64,
    /// How many operations the CPU starts.
    pub operations: u64,
    /// Bytes that are sent to ranks of the same machine.
    pub sent_within: u64,
    /// And over groups that span machines.
    pub sent_between: u64,
    /// Of the latter, this rank's share of what leaves its machine: in a ring over several machines one rank of each hands over to the next machine.
    pub sent_out: u64,
}

/// What is taken by chance: by how far the card is behind when something is freed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ChanceFact {
    pub why: String,
    /// Bytes that it may be less.
    pub less: u64,
    /// And more.
    pub more: u64,
}

/// The PyTorch that a program was run with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torch {
    /// Its version: `2.11.0+cu130`.
    pub version: String,
    /// Its CUDA: `13.0`.
    pub cuda: String,
    /// If it was fetched: the version of the interpreter's own, which has no CUDA.
    pub in_place_of: Option<String>,
}

/// What the program left behind, beside its recording.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Facts {
    pub status: Status,
    /// Optimizer steps.
    pub steps: u64,
    /// Forwards, where there was no optimizer.
    pub forwards: u64,
    #[serde(default)]
    pub reached: Reached,
    /// What it died of.
    pub error: Option<String>,
    /// Whether it used the GPU at all.
    pub cuda: bool,
    #[serde(default)]
    pub devices: Vec<DeviceFacts>,
    /// Lines that read what is not known.
    #[serde(default)]
    pub reads: Vec<ReadFact>,
    /// How many sizes were not known, and taken to be the most or the least that they can be.
    #[serde(default)]
    pub open_sizes: u64,
    /// The last value that was made up, before the program failed.
    #[serde(default)]
    pub made_up: Option<ReadFact>,
    /// Whether more time or memory would have told some of the values.
    #[serde(default)]
    pub more_helps: bool,
    /// Whether it might have got further with plain numbers.
    #[serde(default)]
    pub plain_helps: bool,
    /// What values took on the host.
    #[serde(default)]
    pub values: SpentFact,
    /// Calls without a model.
    #[serde(default)]
    pub unmodelled: Vec<CallFact>,
    /// Libraries that do not take the virtual GPU.
    #[serde(default)]
    pub refused: Vec<RefusedFact>,
    /// Workspaces of convolutions for which there was no cuDNN to ask.
    #[serde(default)]
    pub estimated: Option<EstimatedFact>,
    /// Convolutions whose fastest plan is not known.
    #[serde(default)]
    pub tried: Option<TriedFact>,
    /// NCCL's own memory, where it was used.
    #[serde(default)]
    pub nccl: Option<NcclFact>,
    /// What hangs on timing.
    #[serde(default)]
    pub chances: Vec<ChanceFact>,
    /// The most bytes of managed memory, which are not the card's.
    #[serde(default)]
    pub managed: u64,
    /// What else must be said.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Allocator settings.
    #[serde(default)]
    pub memory_config: String,
    /// Whether it was stopped because its time was up.
    #[serde(default)]
    pub timed_out: bool,
    /// What it was fed with, if there is something to say of it.
    #[serde(default)]
    pub batches: Option<Batches>,
    /// A command that it started, or became, and that was not followed.
    #[serde(default)]
    pub starts: Option<String>,
    /// What is to be known of a rank among others.
    #[serde(default)]
    pub among: Among,
    /// What the last step of a rank took beside memory, where that was asked for.
    #[serde(default)]
    pub step: Option<StepFact>,
    /// Whether the program starts its ranks itself, one a GPU.
    #[serde(default)]
    pub starts_ranks: bool,
}

/// What a rank did, to be held against what others did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Among {
    /// All that it allocated and sent, as counters: ranks that are alike in these are alike in memory.
    pub counters: String,
    /// What it trains and which collectives it runs: ranks that are alike in this may still have other data.
    pub role: String,
    /// The groups that it is in, which are neither itself nor all: the first rank, the distance to the next, and how many.
    pub groups: Vec<[u32; 3]>,
    /// Objects that it received.
    pub received: Vec<Received>,
}

impl Among {
    /// Whether it asked for something that was not known.
    pub(crate) fn is_waiting(&self) -> bool {
        self.received.iter().any(|one| one.digest.is_none())
    }
}

/// An object that a rank received from another.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Received {
    /// Of which rank.
    pub source: u32,
    pub name: String,
    /// What was in it; none where that was not known.
    pub digest: Option<String>,
}

impl Facts {
    /// Of a program that was killed when its time was up: it left its recording at most.
    fn of_killed(recording: &Path) -> Facts {
        Facts {
            status: Status::Stopped,
            steps: 0,
            forwards: 0,
            reached: Reached::default(),
            error: None,
            cuda: recording.exists(),
            devices: Vec::new(),
            reads: Vec::new(),
            open_sizes: 0,
            made_up: None,
            more_helps: false,
            plain_helps: false,
            values: SpentFact::default(),
            unmodelled: Vec::new(),
            refused: Vec::new(),
            estimated: None,
            tried: None,
            nccl: None,
            chances: Vec::new(),
            managed: 0,
            notes: Vec::new(),
            memory_config: String::new(),
            timed_out: true,
            batches: None,
            starts: None,
            among: Among::default(),
            step: None,
            starts_ranks: false,
        }
    }
}

/// What may be spent to know values that a GPU would have computed, and what is done where they cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Values {
    /// Bytes of host memory.
    pub bytes: u64,
    /// Seconds, all reads together.
    pub seconds: u32,
    /// Sizes that are not known are the least that they can be, not the most.
    pub least: bool,
    /// Whatever is read is worth its time, not only what something is decided by.
    pub patient: bool,
    /// Numbers that are read are of the plain types, for programs that ask for these; what they decide is not seen then.
    pub plain: bool,
}

impl Default for Values {
    fn default() -> Self {
        Values { bytes: 2 << 30, seconds: 60, least: false, patient: false, plain: false }
    }
}

impl Values {
    /// More of everything, for a program that failed of a value that was made up.
    pub(crate) fn more(self) -> Self {
        Values { bytes: self.bytes * 4, seconds: self.seconds * 4, patient: true, ..self }
    }

    /// Plain numbers, for a program that failed without having decided anything by one that was made up.
    pub(crate) fn plain(self) -> Self {
        Values { plain: true, ..self }
    }
}

/// A program that has run.
#[derive(Debug)]
pub struct Ran {
    pub facts: Facts,
    pub time: Duration,
    /// Which PyTorch it had.
    pub(crate) torch: Torch,
    folder: tempfile::TempDir,
}

impl Ran {
    /// The recording, if the GPU was used and its allocator is one that can be recorded.
    pub fn recording(&self) -> PathBuf {
        self.left("recording.oomph")
    }

    /// Another file that was left.
    pub(crate) fn left(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The libraries could not be made.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// A file could not be written or read.
    #[error("{}: {error}", path.display())]
    File { path: PathBuf, error: io::Error },
    /// The interpreter did not start.
    #[error("{}: {error}", python.display())]
    Start { python: PathBuf, error: io::Error },
    /// oomph was asked to end.
    #[error("interrupted by signal {signal}")]
    Interrupted { signal: i32 },
    /// Signals cannot be listened to.
    #[error("cannot listen for signals: {0}")]
    Signals(io::Error),
    /// It ended without leaving facts.
    #[error(
        "the program ended ({status}) before it had left what was asked for{}{}",
        killed(status),
        words(last_words)
    )]
    Died {
        status: ExitStatus,
        /// The end of what it printed, where that was kept.
        last_words: String,
    },
    /// A library does not take the virtual GPU.
    #[error("{refusal}\n\nhint: {}", refusal.hint())]
    Refused {
        /// Which.
        refusal: Refusal,
    },
    /// What it left cannot be read.
    #[error("what the program left cannot be read: {0}")]
    Facts(#[from] serde_json::Error),
}

fn killed(status: &ExitStatus) -> &'static str {
    // The kernel's way to end whoever takes the last of the memory.
    match std::os::unix::process::ExitStatusExt::signal(status) {
        Some(9) => ": this machine's own memory ran out, most likely",
        _ => "",
    }
}

fn words(last: &str) -> String {
    if last.is_empty() { String::new() } else { format!(":\n{last}") }
}

/// Who hears what the program prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Voice {
    /// Our stderr.
    Heard,
    /// Nobody, unless it dies.
    Kept,
}

/// Everything that is the same in all runs of a program.
#[derive(Debug)]
pub struct Runner<'a> {
    installed: &'a Installed,
    listener: RefCell<Listener>,
    // Before the folder, which goes after it.
    spare: Option<RefCell<Spare>>,
    card: Arc<VirtualGpu>,
    recorder: PathBuf,
    steps: u32,
    until: Until,
    conf: Option<String>,
    values: Values,
    further: Further,
    awaited: Option<Awaited>,
}

/// A program that somebody writes while it is started: what it will import is imported meanwhile.
#[derive(Clone, Debug, Serialize)]
pub struct Awaited {
    /// The file that it waits for.
    pub file: PathBuf,
    /// Modules, in the order of their import.
    pub ahead: Vec<String>,
    /// This process: if it is gone, nobody needs the program.
    pub process: u32,
}

/// What else a prediction may do, or must not.
#[derive(Clone, Copy, Debug, Default)]
pub struct Further {
    /// Where batches differ, more steps than were asked for, until the peak has stopped growing.
    pub while_batches_vary: bool,
    /// A step with the longest batch of the loader that feeds the training.
    pub longest: bool,
    /// Seconds after which each run is stopped.
    pub timeout: Option<u32>,
    /// What a step of a rank sends to others, and how long it may take.
    pub accounts: bool,
    /// What the program takes of the host's memory.
    pub ram: bool,
}

/// How a program is run to try something out: further than for a prediction, and with another text for some of its files.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trial {
    /// Optimizer steps, 0 for all.
    pub(crate) steps: u64,
    /// Forwards where there is no optimizer, 0 for all.
    pub(crate) forwards: u64,
    /// Seconds after which it is stopped.
    pub(crate) seconds: u32,
    /// By the file's real path; a cell of a notebook has its number behind it.
    pub(crate) source: BTreeMap<String, String>,
}

/// What runs beside an ordinary prediction.
enum Purpose<'a> {
    Unrecorded,
    Values(Values),
    Fit(&'a Value),
    Trial(&'a Trial),
}

/// What the program is, and what the user wrote, go as [`handed`] writes them; our own folders are text.
#[derive(Serialize)]
struct Task<'a> {
    kind: Kind,
    target: String,
    args: Vec<String>,
    steps: u64,
    until: Until,
    folder: &'a Path,
    world: Option<World>,
    /// What ranks send each other, of those that have run.
    messages: PathBuf,
    values: Values,
    recorder: Option<&'a Path>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fit: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    forwards: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<u32>,
    more: bool,
    longest: bool,
    accounts: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    spare: Option<Asked>,
    #[serde(skip_serializing_if = "Option::is_none")]
    awaited: Option<&'a Awaited>,
}

impl<'a> Runner<'a> {
    /// Stages the virtual GPU, whose folder goes when this does: from here on signals end programs, and not this process.
    /// `steps`: how many optimizer steps to run, 0 for all. `until`: and what after them.
    pub fn new(
        installed: &'a Installed,
        steps: u32,
        until: Until,
        conf: Option<String>,
    ) -> Result<Runner<'a>, RunError> {
        let listener = RefCell::new(Listener::start().map_err(RunError::Signals)?);
        let card = Arc::new(VirtualGpu::set(installed)?);
        package::write_parts(&card.folder().join("python"), PACKAGE, &["live", "virtual"])
            .map_err(StageError::from)?;
        let recorder =
            RECORD.write(card.folder()).map_err(|error| StageError::write(card.folder(), error))?;
        // Where the path is too long for a socket, say: each run is a process of its own then.
        let spare = Spare::open(card.folder()).inspect_err(|error| debug!(%error, "no spare interpreter"));
        let spare = spare.ok().map(RefCell::new);
        let (values, further) = (Values::default(), Further::default());
        Ok(Runner {
            installed,
            listener,
            spare,
            card,
            recorder,
            steps,
            until,
            conf,
            values,
            further,
            awaited: None,
        })
    }

    /// One that runs the same at the same time, in another thread: from a copy of the spare interpreter that the first run leaves.
    /// Before that first run.
    pub fn beside(&self) -> Result<Runner<'a>, RunError> {
        Ok(Runner {
            installed: self.installed,
            listener: RefCell::new(Listener::start().map_err(RunError::Signals)?),
            spare: self.spare.as_ref().and_then(|spare| spare.borrow_mut().another().ok()).map(RefCell::new),
            card: Arc::clone(&self.card),
            recorder: self.recorder.clone(),
            steps: self.steps,
            until: self.until,
            conf: self.conf.clone(),
            values: self.values,
            further: self.further,
            awaited: None,
        })
    }

    /// What ranks that have run send to the others.
    fn messages(&self) -> PathBuf {
        self.card.folder().join("messages")
    }

    /// From here on nobody has sent anything.
    pub(crate) fn forget_messages(&self) -> Result<(), RunError> {
        let path = self.messages();
        match std::fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(RunError::File { path, error }),
            _ => Ok(()),
        }
    }

    /// From here on the others receive what this run of a rank has sent.
    pub(crate) fn take_messages(&self, ran: &Ran, world: World) -> Result<(), RunError> {
        let (sent, place) = (ran.left("sent"), self.messages().join(world.rank.to_string()));
        let failed = |error| RunError::File { path: place.clone(), error };
        match std::fs::remove_dir_all(&place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        if sent.is_dir() {
            std::fs::create_dir_all(self.messages())
                .and_then(|()| std::fs::rename(&sent, &place))
                .map_err(failed)?;
        }
        Ok(())
    }

    /// Whether a rank would receive now what it received in its run.
    pub(crate) fn has_received(&self, among: &Among) -> bool {
        among.received.iter().all(|one| message(&self.messages(), one.source, &one.name) == one.digest)
    }

    /// With so much for values.
    pub fn with_values(self, values: Values) -> Self {
        Runner { values, ..self }
    }

    /// What may be spent for values.
    pub(crate) fn values(&self) -> Values {
        self.values
    }

    /// The same, for predictions that do this too.
    #[must_use]
    pub fn with(self, further: Further) -> Runner<'a> {
        Runner { further, ..self }
    }

    /// The same, for a program that may not be written yet.
    #[must_use]
    pub fn awaiting(self, awaited: Awaited) -> Runner<'a> {
        Runner { awaited: Some(awaited), ..self }
    }

    /// Seconds after which a prediction is stopped.
    pub(crate) fn timeout(&self) -> Option<u32> {
        self.further.timeout
    }

    /// Runs a program on a card.
    pub fn run(
        &self,
        program: &Program,
        gpu: &Gpu,
        world: Option<World>,
        voice: Voice,
    ) -> Result<Ran, RunError> {
        self.start(program, gpu, world, voice, None)
    }

    /// Runs a program on a card, with other values.
    pub(crate) fn run_with(
        &self,
        program: &Program,
        gpu: &Gpu,
        world: Option<World>,
        voice: Voice,
        values: Values,
    ) -> Result<Ran, RunError> {
        self.start(program, gpu, world, voice, Some(&Purpose::Values(values)))
    }

    /// Runs a program to its end, without a recording: for what it leaves elsewhere.
    pub fn run_unrecorded(
        &self,
        program: &Program,
        gpu: &Gpu,
        world: Option<World>,
        voice: Voice,
    ) -> Result<Facts, RunError> {
        Ok(self.start(program, gpu, world, voice, Some(&Purpose::Unrecorded))?.facts)
    }

    /// Runs a program until it has trained for two steps, and asks for a plan; what for is said in `task`.
    pub(crate) fn run_fit(
        &self,
        program: &Program,
        gpu: &Gpu,
        voice: Voice,
        task: &Value,
    ) -> Result<Ran, RunError> {
        package::write(&self.card.folder().join("python")).map_err(StageError::from)?;
        self.start(program, gpu, None, voice, Some(&Purpose::Fit(task)))
    }

    /// Runs a program to try something out.
    pub(crate) fn run_trial(
        &self,
        program: &Program,
        gpu: &Gpu,
        voice: Voice,
        trial: &Trial,
    ) -> Result<Ran, RunError> {
        self.start(program, gpu, None, voice, Some(&Purpose::Trial(trial)))
    }

    fn start(
        &self,
        program: &Program,
        gpu: &Gpu,
        world: Option<World>,
        voice: Voice,
        purpose: Option<&Purpose>,
    ) -> Result<Ran, RunError> {
        let ran = self.start_it(program, gpu, world, voice, purpose);
        if ran.is_err()
            && let Some(spare) = &self.spare
        {
            // Whoever runs beside this one waits for the spare interpreter.
            spare.borrow().first_is_over();
        }
        ran
    }

    fn start_it(
        &self,
        program: &Program,
        gpu: &Gpu,
        world: Option<World>,
        voice: Voice,
        purpose: Option<&Purpose>,
    ) -> Result<Ran, RunError> {
        if let Some(spare) = &self.spare {
            spare.borrow_mut().await_it(&mut self.listener.borrow_mut());
        }
        let began = Instant::now();
        let inside = self.card.folder();
        let temporary = |error| RunError::File { path: inside.to_path_buf(), error };
        let folder = tempfile::Builder::new().prefix("run-").tempdir_in(inside).map_err(temporary)?;
        let mut task = Task {
            kind: program.kind,
            target: handed::text(&program.target),
            args: program.arguments.iter().map(handed::text).collect(),
            steps: u64::from(self.steps),
            until: self.until,
            folder: folder.path(),
            world,
            messages: self.messages(),
            values: self.values,
            recorder: Some(&self.recorder),
            fit: None,
            forwards: None,
            seconds: None,
            more: false,
            longest: false,
            accounts: false,
            source: None,
            spare: None,
            awaited: None,
        };
        match purpose {
            Some(Purpose::Unrecorded) => (task.recorder, task.seconds) = (None, self.further.timeout),
            // Lines are not asked for, and the search would fill the recording.
            Some(Purpose::Fit(fit)) => (task.fit, task.recorder) = (Some(*fit), None),
            Some(Purpose::Trial(trial)) => {
                (task.steps, task.forwards, task.seconds) =
                    (trial.steps, Some(trial.forwards), Some(trial.seconds));
                // In a file: a variable of the environment holds 128 KiB.
                let path = folder.path().join("source.json");
                std::fs::write(&path, serde_json::to_vec(&trial.source)?)
                    .map_err(|error| RunError::File { path: path.clone(), error })?;
                task.source = Some(path);
            }
            Some(Purpose::Values(_)) | None => {
                if let Some(Purpose::Values(values)) = purpose {
                    task.values = *values;
                }
                let Further { while_batches_vary, longest, timeout, accounts, ram: _ } = self.further;
                (task.more, task.longest, task.seconds) = (while_batches_vary, longest, timeout);
                task.accounts = accounts;
                task.awaited = self.awaited.as_ref();
            }
        }
        // `-c` puts the current folder first, where anybody's `json.py` may lie: it goes before anything is imported. Once the package is
        // imported, what is in it is found without the path.
        let imports = match purpose {
            Some(Purpose::Fit(_)) => format!("import oomph; from {PACKAGE}.fit import start as main"),
            _ => format!("from {PACKAGE}.child import main"),
        };
        let start = format!(
            "import sys\nif sys.path[:1] == ['']: del sys.path[0]\nsys.path.insert(0, {:?}); {imports}; del sys.path[0]; main()",
            inside.join("python").display().to_string(),
        );
        // A plain run may be the first of several: it leaves a spare interpreter for them.
        // One whose recording is not asked for is seldom the first of several, but may come after others.
        // What a fork takes of the host is not what a program takes that was started for itself.
        let spare = self.spare.as_ref().filter(|_| !self.further.ram).filter(|spare| match purpose {
            None | Some(Purpose::Values(_)) => true,
            Some(Purpose::Unrecorded) => spare.borrow().is_asked_for(),
            Some(Purpose::Fit(_) | Purpose::Trial(_)) => false,
        });
        task.spare = spare.and_then(|spare| spare.borrow_mut().ask(&start));
        let timeout = task.seconds.map(|seconds| Duration::from_secs(seconds.into()) + DEAF);
        let mut launch = Launch::new(Command::new(&self.installed.python));
        launch.within(timeout);
        launch.on(&self.card, gpu, world.map_or(1, |world| world.per_node));
        if self.further.ram && task.recorder.is_some() {
            launch.recording_ram(&Ram::set(
                inside,
                &folder.path().join(host::FILE),
                host::MOST_BYTES,
                false,
            )?);
        }
        let command = launch.command();
        command
            .args(["-X", "faulthandler", "-c", &start])
            .env("OOMPH_PREDICT", serde_json::to_string(&task)?);
        if let Some(conf) = &self.conf {
            command.env("PYTORCH_CUDA_ALLOC_CONF", conf).env_remove("PYTORCH_ALLOC_CONF");
        }
        let mut kept = match voice {
            Voice::Heard => None,
            Voice::Kept => Some(tempfile::tempfile_in(inside).map_err(temporary)?),
        };
        let ended = match spare {
            Some(spare) if task.spare.is_none() => {
                self.run_spare(&mut spare.borrow_mut(), &launch, kept.as_ref())
            }
            _ => Ok(None),
        };
        self.go_on()?;
        let not_started = |error| RunError::Start { python: self.installed.python.clone(), error };
        let status = match ended.map_err(not_started)? {
            Some(ended) => ended.status,
            None => {
                let command = launch.command();
                match &kept {
                    None => command.stdout(Stdio::from(io::stderr())),
                    Some(file) => {
                        let copy = || file.try_clone().map_err(temporary);
                        command.stdin(Stdio::null()).stdout(copy()?).stderr(copy()?)
                    }
                };
                let ended = launch.run(&mut self.listener.borrow_mut(), Some(PATIENCE));
                if let Some(spare) = spare.filter(|_| task.spare.is_some()) {
                    spare.borrow().first_is_over();
                }
                self.go_on()?;
                ended.map_err(not_started)?.status
            }
        };
        let facts = match std::fs::read(folder.path().join("facts.json")) {
            Ok(bytes) => logged(serde_json::from_slice(&bytes)?),
            Err(_) if timeout.is_some_and(|timeout| began.elapsed() >= timeout) => {
                Facts::of_killed(&folder.path().join("recording.oomph"))
            }
            Err(_) => {
                return Err(RunError::Died {
                    status,
                    last_words: kept.as_mut().map(last_words).unwrap_or_default(),
                });
            }
        };
        // What it says itself follows from that; and what it took where it went on, by another way, is not what it takes on a card.
        if let Some(refused) = facts.refused.first() {
            return Err(RunError::Refused { refusal: Refusal::new(refused, &self.installed.cuda) });
        }
        let torch = Torch {
            version: self.installed.torch_version.clone(),
            cuda: self.installed.cuda.clone(),
            in_place_of: self.installed.fetched.as_ref().map(|(_, own)| own.clone()),
        };
        Ok(Ran { facts, time: began.elapsed(), torch, folder })
    }

    /// From the spare interpreter that an earlier run left; nothing if there is none.
    fn run_spare(
        &self,
        spare: &mut Spare,
        launch: &Launch,
        kept: Option<&File>,
    ) -> io::Result<Option<Ended>> {
        let mut listener = self.listener.borrow_mut();
        match kept {
            None => {
                let (input, output) = (io::stdin(), io::stderr());
                let files = [input.as_fd(), output.as_fd(), output.as_fd()];
                spare.run(launch, files, &mut listener, PATIENCE)
            }
            Some(file) => {
                let nothing = File::open("/dev/null")?;
                let files = [nothing.as_fd(), file.as_fd(), file.as_fd()];
                spare.run(launch, files, &mut listener, PATIENCE)
            }
        }
    }

    /// What ends the program that runs, and starts no other; for another thread.
    pub fn stopper(&self) -> Stopper {
        self.listener.borrow().stopper()
    }

    /// Fails if a signal came that asks to end.
    pub fn go_on(&self) -> Result<(), RunError> {
        self.listener.borrow_mut().heard().map_or(Ok(()), |signal| Err(RunError::Interrupted { signal }))
    }
}

/// What a message has in it, by the rank that sends it or else by one in the same place of another group: the file's name ends with it.
fn message(messages: &Path, source: u32, name: &str) -> Option<String> {
    let within = |folder: PathBuf| {
        let entries = std::fs::read_dir(folder).ok()?;
        entries.filter_map(Result::ok).find_map(|entry| {
            let file = entry.file_name().into_string().ok()?;
            Some(file.strip_prefix(name)?.strip_prefix('.')?.to_owned())
        })
    };
    within(messages.join(source.to_string())).or_else(|| {
        let entries = std::fs::read_dir(messages).ok()?;
        let mut ranks: Vec<u32> =
            entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
        ranks.sort_unstable();
        ranks.into_iter().find_map(|rank| within(messages.join(rank.to_string())))
    })
}

/// Logs what a program left, and why something is in doubt.
fn logged(facts: Facts) -> Facts {
    info!(status = ?facts.status, error = facts.error, steps = facts.steps, forwards = facts.forwards, cuda = facts.cuda, reached = ?facts.reached.phases, "it left");
    debug!(
        bytes = facts.values.bytes,
        seconds = facts.values.seconds,
        open = facts.open_sizes,
        "values were computed on the host"
    );
    for (index, device) in facts.devices.iter().enumerate() {
        debug!(index, ?device);
    }
    for read in &facts.reads {
        debug!(
            file = read.file,
            line = read.line,
            what = read.what,
            count = read.count,
            "a value that is not known was read"
        );
    }
    for call in &facts.unmodelled {
        info!(name = call.name, count = call.count, "a call that is not modelled");
    }
    for note in &facts.notes {
        info!(note);
    }
    facts
}

fn last_words(file: &mut File) -> String {
    const ENOUGH: u64 = 4000;
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    let mut bytes = Vec::new();
    let _ = file.seek(SeekFrom::Start(length.saturating_sub(ENOUGH)));
    let _ = file.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).trim_end().to_owned()
}
