//! `oomph run`: a program as it is, recorded while it runs.

use crate::attaching::Asked;
use crate::claim::{Claim, Wanted};
use crate::fetching::{self, Fetching};
use crate::memory::GpuParser;
use crate::printer::{Printer, width};
use crate::{Outcome, files};
use clap::Args;
use oomph_explain::{Explanation, SegmentLines};
use oomph_gpus::Gpu;
use oomph_report::{Named, TextOptions, run, text};
use oomph_run::left::Left;
use oomph_run::{Program, Ran};
use oomph_stage::guard::Limits;
use oomph_stage::libraries;
use oomph_trace::Recording;
use oomph_words::{Size, harmless};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Run a program, recording what it does to GPU memory
///
/// Runs it as it is, on the GPU that is there, and writes what PyTorch's allocator does, from which line, to a file that can
/// be read whenever the program ends, killed or not. Once the program is steady this costs less than a twentieth of its time.
/// Steps are marked by the optimizer; parameters, gradients and optimizer state are known from it. If the program runs out of
/// memory, PyTorch's error is followed by an explanation. A handler that catches the error finds the memory free again: the
/// frames that held it are cleared.
///
/// --budget holds the program, all of its CUDA memory, to less than the card has: a large card behaves like a small
/// one, a shared card is shared. --overflow then serves what no longer fits from host memory, so that the
/// program goes on, slower, instead of dying.
///
/// --ram records the machine's memory too, of every process of the program: which lines of Python had asked for it when most was in use, each large block and a sample of the small ones,
/// beside what the kernel counted. It goes to a file of its own, train-ram.oomph, which is there when the kernel has killed the program.
///
/// --ram --attach PID records a process that runs already, a CPython of 3.10 or later on Linux on x86-64: memory that it asks for from then on has lines. Its main thread loads the recorder when it comes to its next
/// line of Python. Ctrl-C, --seconds or the end of the process end the recording. It takes the rights of a debugger: the same user, and often sudo.
///
/// Every Python process of the program is recorded, each rank in its own file. Standard input, output and the terminal are
/// the program's; what oomph says goes to stderr. Signals reach the program, and its exit code is the result.
///
/// A recording is written over an older one of the same name, and over nothing else. If another run is writing it, this one goes
/// to a name with a number: train-2.oomph.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  oomph run train.py --batch-size 8\n  oomph run -m mypackage.train\n  oomph run torchrun --nproc-per-node 4 train.py     # train-rank0.oomph, train-rank1.oomph …\n  oomph run --budget 15GiB train.py                  # as on a smaller card\n  oomph run --budget 15GiB --overflow 8GiB train.py  # slower instead of dead\n  oomph run --gpu t4 train.py                        # on a virtual card: no GPU is needed\n  oomph run --ram load.py                            # which lines hold the RAM\n  oomph run --ram --attach 4711 --seconds 60         # of a process that runs already\n\nEverything after the program's name is the program's. Exits as the program does; 2 if it could not be started."
)]
pub(crate) struct Arguments {
    /// Hold all CUDA memory of each process to this much of each device: 15GiB
    #[arg(long, value_name = "SIZE")]
    pub(crate) budget: Option<Size>,
    /// Serve so much more from host memory, over the bus: 8GiB
    #[arg(long, value_name = "SIZE")]
    pub(crate) overflow: Option<Size>,
    /// Run on a virtual card: t4, rtx-4090, a100-80gb … (`oomph gpus` lists them). Kernels do nothing
    #[arg(long, value_name = "NAME", value_parser = GpuParser, hide_possible_values = true)]
    pub(crate) gpu: Option<Gpu>,
    /// How many virtual cards
    #[arg(long, value_name = "N", default_value_t = 1, requires = "gpu", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) devices: u32,
    /// Record the machine's memory too, by line
    #[arg(long, conflicts_with = "no_recording")]
    pub(crate) ram: bool,
    /// With --ram: the functions of C between the line of Python and the memory too, for `oomph explain --stacks`
    #[arg(long, requires = "ram")]
    pub(crate) native: bool,
    /// Record a process that runs already, by its number; with --ram
    #[arg(long, value_name = "PID", conflicts_with_all = ["program", "library", "native", "budget", "overflow", "gpu", "no_recording", "python", "module"], value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) attach: Option<u32>,
    /// End the recording after so long; the process goes on
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) seconds: Option<u32>,
    /// Where to write the recording [default: PROGRAM.oomph]
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: Option<PathBuf>,
    /// Write over a file that is no recording
    #[arg(long, conflicts_with = "no_recording")]
    pub(crate) force: bool,
    /// Write no recording
    #[arg(long, conflicts_with = "output")]
    pub(crate) no_recording: bool,
    /// How large a recording may become; what comes later is not recorded
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    pub(crate) recording_limit: Size,
    /// The interpreter for scripts and modules [default: python3, or that of the active environment]
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) fetching: Fetching,
    /// PROGRAM is a module, as python -m takes it
    #[arg(short, long)]
    pub(crate) module: bool,
    /// Print where the recorder's library is, for `oomph.record`; with --ram, that of the machine's memory
    #[arg(long, hide = true, conflicts_with_all = ["program", "output"])]
    pub(crate) library: bool,
    /// A script, module or command, and its arguments
    #[arg(
        value_name = "PROGRAM",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required_unless_present_any = ["library", "attach"]
    )]
    pub(crate) program: Vec<OsString>,
}

pub(crate) fn run(arguments: &Arguments, printer: &mut Printer) -> anyhow::Result<Outcome> {
    if arguments.library {
        let which = if arguments.ram { libraries::RAM } else { libraries::RECORD };
        printer.data(&format!("{}\n", libraries::recorder(which)?.display()))?;
        return Ok(Outcome::Fine);
    }
    if let Some(pid) = arguments.attach {
        return attach(pid, arguments, printer);
    }
    if arguments.seconds.is_some() {
        anyhow::bail!("--seconds ends the recording of a process that runs already: --attach names it");
    }
    let claim = claim(arguments, printer)?;
    let program = Program {
        python: arguments.python.clone(),
        words: arguments.program.clone(),
        module: arguments.module,
        output: claim.as_ref().map(|claim| std::path::absolute(claim.path())).transpose()?,
        ram: claim.as_ref().filter(|_| arguments.ram).map(|claim| of_ram(claim.path())).transpose()?,
        native: arguments.native,
        most_bytes: arguments.recording_limit.0,
        limits: Limits {
            budget: arguments.budget.map(|size| size.0),
            overflow: arguments.overflow.map_or(0, |size| size.0),
        },
        gpu: arguments.gpu.clone(),
        devices: arguments.devices,
    };
    if arguments.fetching.fetch_torch && program.gpu.is_none() {
        anyhow::bail!("--fetch-torch is for a virtual card: name one with --gpu");
    }
    if program.gpu.is_some()
        && arguments.fetching.fetch_torch
        && let Err(outcome) =
            fetching::installed(program.python_of_card().as_deref(), &arguments.fetching, printer)?
    {
        return Ok(outcome);
    }
    let ran = match program.run() {
        Ok(ran) => ran,
        Err(error) => {
            printer.error(&error.to_string());
            if let Some(hint) = error.hint() {
                printer.hint(hint);
            }
            return Ok(Outcome::Failed);
        }
    };
    let recordings = read(&ran.left, printer);
    report(&ran, &recordings, claim.is_some() && !arguments.ram, printer);
    if arguments.native {
        name_functions(&ran.ram, printer);
    }
    if arguments.ram {
        report_ram(&ran.ram, printer);
    }
    let lines: Vec<SegmentLines> = recordings.iter().map(|one| SegmentLines::of(&one.recording)).collect();
    for report in &ran.reports {
        let line_of = |address| lines.iter().find_map(|one| one.place(address)).map(|place| place.short());
        printer.note(run::guard(&report.0, &line_of).trim_end());
    }
    Ok(Outcome::Passed(ran.ended.code()))
}

fn attach(pid: u32, arguments: &Arguments, printer: &mut Printer) -> anyhow::Result<Outcome> {
    if !arguments.ram {
        printer.error("--attach records RAM, and there is no --ram");
        printer.hint(&format!(
            "oomph run --ram --attach {pid}. What a program does with a GPU is recorded from its start (oomph run PROGRAM), or by oomph.record() in it"
        ));
        return Ok(Outcome::Failed);
    }
    let asked = Asked {
        pid,
        output: arguments.output.as_deref(),
        force: arguments.force,
        most_bytes: arguments.recording_limit.0,
        seconds: arguments.seconds,
    };
    Ok(match asked.record(printer)? {
        Ok(path) => {
            report_ram(&[path], printer);
            Outcome::Fine
        }
        Err(outcome) => outcome,
    })
}

/// `train.py` gives `train.oomph`, here.
fn claim(arguments: &Arguments, printer: &mut Printer) -> anyhow::Result<Option<Claim>> {
    if arguments.no_recording {
        return Ok(None);
    }
    let words = &arguments.program;
    // `torchrun --nproc-per-node 4 train.py` is about train.py.
    let script = words.iter().find(|word| word.as_encoded_bytes().ends_with(b".py")).or(words.first());
    let stem = script.and_then(|word| Path::new(word).file_stem()).unwrap_or("program".as_ref());
    let usual = Path::new(stem).with_extension("oomph");
    let wanted = Wanted { named: arguments.output.as_deref(), usual, inputs: words, force: arguments.force };
    wanted.claim(printer)
}

/// `train.oomph` gives `train-ram.oomph`.
fn of_ram(output: &Path) -> io::Result<PathBuf> {
    let mut name = output.file_stem().unwrap_or_default().to_owned();
    name.push("-ram.oomph");
    std::path::absolute(output.with_file_name(name))
}

/// While the libraries are there that the program had.
fn name_functions(paths: &[PathBuf], printer: &mut Printer) {
    for path in paths {
        // A process that outlives the program writes on: its functions keep their places.
        let file = File::open(path);
        if file
            .is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK))
        {
            printer.note(&format!(
                "oomph: {} is still written: its functions of C have no names",
                shorter(path)
            ));
            continue;
        }
        let changed = oomph_trace::read_path(path).map_err(anyhow::Error::from).and_then(|recording| {
            let changed = oomph_symbols::name_frames(path, &recording)?;
            Ok(changed.into_iter().map(|library| harmless(library).to_string()).collect::<Vec<_>>())
        });
        match changed {
            Ok(changed) if changed.is_empty() => {}
            Ok(changed) => printer.note(&format!(
                "oomph: functions of C have no names where the library was changed or removed while the program ran: {}",
                changed.join(", ")
            )),
            Err(error) => {
                printer.warning(&format!("{}: functions of C have no names: {error:#}", shorter(path)));
            }
        }
    }
}

/// What was recorded of host memory.
fn report_ram(paths: &[PathBuf], printer: &mut Printer) {
    let read = files::read_each(paths, printer, |place, recording| {
        (paths.get(place).map_or_else(String::new, |path| shorter(path)), oomph_explain::explain(&recording))
    });
    let mut all = Vec::new();
    for one in read {
        match one {
            Ok(one) => all.push(one),
            Err(error) => printer.error(&format!("{error:#}")),
        }
    }
    if all.is_empty() {
        printer.note(NO_RAM);
        return;
    }
    let named: Vec<Named> = all.iter().map(|(name, explanation)| Named { name, explanation }).collect();
    printer.note(run::summary_of_ram(&named).trim_end());
}

const NO_RAM: &str = "oomph: RAM was not recorded: the program is linked statically or drops LD_PRELOAD, or somebody else writes the file";

const NO_CUDA: &str = "oomph: nothing was recorded: the program did not use CUDA through PyTorch";
const NOT_LOADED: &str = "oomph: nothing was recorded: no Python of the program has loaded oomph's recorder, so what it did with CUDA is not known. \
    The recorder comes by PYTHONPATH, which python -I and -E ignore, and by the module site, which -S leaves out: run it without these, or put oomph.record() into the program";

struct Read {
    name: String,
    recording: Recording,
    explanation: Explanation,
}

fn read(left: &[Left], printer: &mut Printer) -> Vec<Read> {
    let mut paths = Vec::new();
    for path in left.iter().filter_map(|one| one.recording.as_ref()) {
        if path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            let name = shorter(path);
            printer.warning(&format!("{name} is gone: it was removed or renamed while the program ran"));
        } else {
            paths.push(path.clone());
        }
    }
    let read = files::read_each(&paths, printer, |place, recording| Read {
        name: paths.get(place).map_or_else(String::new, |path| shorter(path)),
        explanation: oomph_explain::explain(&recording),
        recording,
    });
    let mut all = Vec::new();
    for one in read {
        match one {
            Ok(one) => all.push(one),
            Err(error) => printer.error(&format!("{error:#}")),
        }
    }
    all
}

/// What was recorded, and why the program died if memory is the reason.
fn report(ran: &Ran, recordings: &[Read], wanted: bool, printer: &mut Printer) {
    for note in ran.left.iter().flat_map(|one| &one.notes) {
        printer.warning(note);
    }
    if recordings.is_empty() {
        // Whoever left word had a recording or could not make one, and that was said.
        if wanted && ran.left.is_empty() {
            printer.note(if ran.was_entered { NO_CUDA } else { NOT_LOADED });
        }
        return;
    }
    let named: Vec<Named> =
        recordings.iter().map(|one| Named { name: &one.name, explanation: &one.explanation }).collect();
    let has_died = named.iter().any(|one| run::ran_out(one.explanation));
    if has_died {
        // All of them: whether the one that died held more than the others is half of the answer.
        let options = TextOptions { lines: 8, stacks: false, width: width() };
        printer.say(&format!("\n{}", text::explanation(&named, options)));
    }
    printer.note(run::summary(&named, !has_died).trim_end());
}

/// As it would be typed here.
fn shorter(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(here).unwrap_or(path).display().to_string()
}
