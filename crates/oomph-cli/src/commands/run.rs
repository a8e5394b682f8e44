//! `oomph run`: a program as it is, recorded while it runs.

use crate::memory::GpuParser;
use crate::printer::{Printer, width};
use crate::{Outcome, files};
use clap::Args;
use oomph_explain::{Explanation, SegmentLines};
use oomph_gpus::Gpu;
use oomph_report::{Named, TextOptions, run, text};
use oomph_run::Program;
use oomph_run::left::Left;
use oomph_stage::guard::Limits;
use oomph_stage::libraries;
use oomph_trace::Recording;
use oomph_words::Size;
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
/// Every Python process of the program is recorded, each rank in its own file. Standard input, output and the terminal are
/// the program's; what oomph says goes to stderr. Signals reach the program, and its exit code is the result.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  oomph run train.py --batch-size 8\n  oomph run -m mypackage.train\n  oomph run torchrun --nproc-per-node 4 train.py     # train-rank0.oomph, train-rank1.oomph …\n  oomph run --budget 15GiB train.py                  # as on a smaller card\n  oomph run --budget 15GiB --overflow 8GiB train.py  # slower instead of dead\n  oomph run --gpu t4 train.py                        # on a virtual card: no GPU is needed\n\nEverything after the program's name is the program's. Exits as the program does; 2 if it could not be started."
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
    /// Where to write the recording [default: PROGRAM.oomph]
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: Option<PathBuf>,
    /// Write no recording
    #[arg(long, conflicts_with = "output")]
    pub(crate) no_recording: bool,
    /// How large a recording may become; what comes later is not recorded
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    pub(crate) recording_limit: Size,
    /// The interpreter for scripts and modules [default: python3, or that of the active environment]
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
    /// PROGRAM is a module, as python -m takes it
    #[arg(short, long)]
    pub(crate) module: bool,
    /// Print where the recorder's library is, for `oomph.record`
    #[arg(long, hide = true, exclusive = true)]
    pub(crate) library: bool,
    /// A script, module or command, and its arguments
    #[arg(
        value_name = "PROGRAM",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required_unless_present = "library"
    )]
    pub(crate) program: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments, printer: &mut Printer) -> anyhow::Result<Outcome> {
    if arguments.library {
        printer.data(&format!("{}\n", libraries::recorder()?.display()))?;
        return Ok(Outcome::Fine);
    }
    let program = Program {
        python: arguments.python.clone(),
        words: arguments.program.clone(),
        module: arguments.module,
        output: if arguments.no_recording { None } else { Some(output(arguments)?) },
        most_bytes: arguments.recording_limit.0,
        limits: Limits {
            budget: arguments.budget.map(|size| size.0),
            overflow: arguments.overflow.map_or(0, |size| size.0),
        },
        gpu: arguments.gpu.clone(),
        devices: arguments.devices,
    };
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
    report(&ran.left, &recordings, !arguments.no_recording, printer);
    let lines: Vec<SegmentLines> = recordings.iter().map(|one| SegmentLines::of(&one.recording)).collect();
    for report in &ran.reports {
        let line_of = |address| lines.iter().find_map(|one| one.place(address)).map(|place| place.short());
        printer.note(run::guard(&report.0, &line_of).trim_end());
    }
    Ok(Outcome::Passed(ran.ended.code()))
}

/// `train.py` gives `train.oomph`, here.
fn output(arguments: &Arguments) -> anyhow::Result<PathBuf> {
    let named = || {
        let words = &arguments.program;
        // `torchrun --nproc-per-node 4 train.py` is about train.py.
        let script = words.iter().find(|word| word.ends_with(".py")).or(words.first());
        let stem = script.and_then(|word| Path::new(word).file_stem()).unwrap_or("program".as_ref());
        Path::new(stem).with_extension("oomph")
    };
    Ok(std::path::absolute(arguments.output.clone().unwrap_or_else(named))?)
}

struct Read {
    name: String,
    recording: Recording,
    explanation: Explanation,
}

fn read(left: &[Left], printer: &mut Printer) -> Vec<Read> {
    let mut all = Vec::new();
    for path in left.iter().filter_map(|one| one.recording.as_deref()) {
        match files::read(path, printer) {
            Ok(recording) => {
                let explanation = oomph_explain::explain(&recording);
                all.push(Read { name: shorter(path), recording, explanation });
            }
            Err(error) => printer.error(&format!("{error:#}")),
        }
    }
    all
}

/// What was recorded, and why the program died if memory is the reason.
fn report(left: &[Left], recordings: &[Read], wanted: bool, printer: &mut Printer) {
    for note in left.iter().flat_map(|one| &one.notes) {
        printer.warning(note);
    }
    if recordings.is_empty() {
        if wanted && left.iter().all(|one| one.notes.is_empty()) {
            printer.note("oomph: nothing was recorded: the program did not use CUDA through PyTorch");
        }
        return;
    }
    let named: Vec<Named> =
        recordings.iter().map(|one| Named { name: &one.name, explanation: &one.explanation }).collect();
    let died = named.iter().filter(|one| run::ran_out(one.explanation)).copied().collect::<Vec<_>>();
    if !died.is_empty() {
        let options = TextOptions { lines: 8, stacks: false, width: width() };
        printer.say(&format!("\n{}", text::explanation(&died, options)));
    }
    printer.note(run::summary(&named, died.is_empty()).trim_end());
}

/// As it would be typed here.
fn shorter(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(here).unwrap_or(path).display().to_string()
}
