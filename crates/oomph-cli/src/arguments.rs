//! What can be typed. Help texts are the reference: they teach.

use crate::sizes::{Size, Tolerance};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Where did my GPU memory go, why did it run out, and what would have helped?
///
/// oomph reads recordings of GPU memory: PyTorch's snapshots (pickle, JSON, memory_viz pages;
/// plain, gzip, xz or zstd) and its own .oomph files. It never runs anything that is in them.
///
/// To make a recording:
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
    after_help = "Exit codes: 0 fine, 1 findings or over a limit, 2 oomph itself failed.\nStart with: oomph explain snapshot.pickle"
)]
pub(crate) struct Arguments {
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

#[derive(Subcommand)]
pub(crate) enum Command {
    Explain(Explain),
    Diff(Diff),
    Check(Check),
    Rule(Rule),
    Convert(Convert),
    Completions(Completions),
    Man(Man),
}

/// Say where the memory went, why it ran out, and what to do
///
/// The answer comes first: findings, worst first, each with what it would save and how to mend it. Then the evidence: what
/// was alive at the peak, by kind and by line of your own code; what was reserved without being used; the steps.
/// Several files (one a rank) give a table, then the worst of them.
///
/// Exits with 1 if there are errors or warnings.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  oomph explain snapshot.pickle\n  oomph explain rank*.pickle\n  oomph explain --stacks --lines 3 snapshot.pickle\n  oomph explain --format json snapshot.pickle | jq '.devices[0].peak'"
)]
pub(crate) struct Explain {
    /// Recordings to explain; `-` reads one from stdin
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// How to show it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
    /// How many lines (or stacks) of the peak to list
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub(crate) lines: usize,
    /// List whole stacks instead of your own lines
    #[arg(long)]
    pub(crate) stacks: bool,
}

/// Say what changed at the peak between two recordings, by line and by kind
#[derive(Args)]
#[command(after_help = "Example:\n  oomph diff before.pickle after.pickle")]
pub(crate) struct Diff {
    /// The first recording
    #[arg(value_name = "BEFORE")]
    pub(crate) before: PathBuf,
    /// The second recording
    #[arg(value_name = "AFTER")]
    pub(crate) after: PathBuf,
    /// How to show it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
    /// How many lines to list
    #[arg(long, default_value_t = 15, value_name = "N")]
    pub(crate) lines: usize,
}

/// Fail if the peak is too high: the gate for CI
///
/// Exits with 1 if the peak of any device of any recording is over the limit, or if the program ran out of memory and died:
/// then its peak is not what it needs. The limit is a size, or another recording's peak and a tolerance.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  oomph check snapshot.pickle --max-peak 14GiB\n  oomph check snapshot.pickle --baseline main.pickle --tolerance 2%"
)]
pub(crate) struct Check {
    /// The recordings to check, one a rank
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// The highest peak that passes: 14GiB, 14000MB, or bytes
    #[arg(long, value_name = "SIZE", conflicts_with = "baseline")]
    pub(crate) max_peak: Option<Size>,
    /// A recording whose peak is the limit
    #[arg(long, value_name = "FILE")]
    pub(crate) baseline: Option<PathBuf>,
    /// By how much the baseline may be exceeded: 2% or 0.02
    #[arg(long, value_name = "SHARE", default_value = "0%", requires = "baseline")]
    pub(crate) tolerance: Tolerance,
    /// Which peak: what is taken from the device, or what the program holds
    #[arg(long, value_enum, default_value_t = Metric::Reserved)]
    pub(crate) peak: Metric,
    /// How to show it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Metric {
    /// Taken from the device: what must fit on the card
    Reserved,
    /// In blocks that the program holds
    Allocated,
}

/// Explain a rule, or list all rules
#[derive(Args)]
#[command(after_help = "Examples:\n  oomph rule\n  oomph rule OM201")]
pub(crate) struct Rule {
    /// A code such as OM201, or a name such as growth-every-step
    #[arg(value_name = "CODE")]
    pub(crate) code: Option<String>,
    /// How to show it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
}

/// Write a recording in another format
///
/// The output is complete or not there: it is written beside its place and moved when it is done.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  oomph convert snapshot.pickle -o snapshot.oomph     # many times smaller\n  oomph convert snapshot.oomph -o snapshot.pickle     # for memory_viz\n  oomph convert py314.pickle --to pickle -o p4.pickle # protocol 5 to 4"
)]
pub(crate) struct Convert {
    /// The recording to convert; `-` reads stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Where to write; `-` is stdout
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: PathBuf,
    /// The format; by default told by the output's ending
    #[arg(long, value_enum)]
    pub(crate) to: Option<Target>,
    /// Write over a file that exists
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Target {
    /// oomph's own: small, and readable even if cut off
    Oomph,
    /// PyTorch's snapshot as JSON
    Json,
    /// PyTorch's snapshot, pickle protocol 4: every memory_viz reads it
    Pickle,
}

/// Print a completion script for a shell
#[derive(Args)]
#[command(
    after_help = "Example:\n  oomph completions bash > ~/.local/share/bash-completion/completions/oomph"
)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

/// Print the manual page, or write those of all verbs into a folder
#[derive(Args)]
#[command(after_help = "Example:\n  oomph man | man -l -")]
pub(crate) struct Man {
    /// A folder for the pages of oomph and of every verb
    #[arg(long, value_name = "FOLDER")]
    pub(crate) folder: Option<PathBuf>,
}
