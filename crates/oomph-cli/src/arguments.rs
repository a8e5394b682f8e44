//! What can be typed before and after every verb. What a verb takes stands in the verb's own file. Help texts are the
//! reference: they teach.

use crate::commands::Command;
use clap::{Args, Parser, ValueEnum};

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

#[derive(Args)]
pub(crate) struct Global {
    /// When to use colour (NO_COLOR is honoured)
    #[arg(long, value_enum, default_value_t = Color::Auto, global = true)]
    pub(crate) color: Color,
    /// Say nothing on stderr but errors
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Say on stderr what was found, staged and started, for a bug report; twice: with arguments and variables
    #[arg(short, long, global = true, action = clap::ArgAction::Count, conflicts_with = "quiet")]
    pub(crate) verbose: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Text,
    /// For scripts; keys are documented and stable
    Json,
    /// For issues and pull requests
    Markdown,
}
