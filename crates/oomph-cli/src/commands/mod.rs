//! The command line: verbs, one a file.
//!
//! A verb's file holds what it takes (`Arguments`, whose doc comments are its help) and what it does (`run`, without
//! logic of its own). To add a verb, add a file and a line below.

use crate::Outcome;
use crate::arguments::Global;
use crate::printer::Printer;
use clap::{Parser, Subcommand};

/// Where did my GPU memory go, why did it run out, and what would have helped?
///
/// oomph reads recordings of GPU memory: PyTorch's snapshots (pickle, JSON, memory_viz pages;
/// plain, gzip, xz or zstd) and its own .oomph files. It never runs anything that is in them.
///
/// To make a recording, run the program as it is (or put it into `with oomph.record("train.oomph"):`):
///
///   oomph run train.py --batch-size 8
///
/// If it runs out of memory, it says why. PyTorch's own recordings are read too:
///
///   torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
///   ...your program...
///   torch.cuda.memory._dump_snapshot("snapshot.pickle")
#[derive(Parser)]
#[command(
    name = "oomph",
    version,
    verbatim_doc_comment,
    max_term_width = 100,
    after_help = "Exit codes: 0 fine, 1 findings or over a limit, 2 oomph itself failed.\nStart with: oomph run train.py"
)]
pub(crate) struct CommandLine {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

macro_rules! verbs {
    ($($(#[$about:meta])* $verb:ident in $module:ident),* $(,)?) => {
        $(mod $module;)*

        #[derive(Subcommand)]
        pub(crate) enum Command {
            $($(#[$about])* $verb($module::Arguments)),*
        }

        impl Command {
            pub(crate) fn run(&self, printer: &mut Printer) -> anyhow::Result<Outcome> {
                match self {
                    $(Self::$verb(arguments) => $module::run(arguments, printer)),*
                }
            }
        }
    };
}

verbs! {
    Run in run,
    Predict in predict,
    Plan in plan,
    Fit in fit,
    Data in data,
    Top in top,
    Doctor in doctor,
    Explain in explain,
    Report in report,
    Diff in diff,
    Check in check,
    Replay in replay,
    Tune in tune,
    Gpus in gpus,
    Rule in rule,
    Convert in convert,
    Mcp in mcp,
    Completions in completions,
    Man in man,
    #[command(hide = true)]
    OnVirtualGpu in on_virtual_gpu,
}
