//! `oomph on-virtual-gpu`: a script on a virtual card with unlimited memory, to its end. Nothing is recorded and nothing predicted:
//! `oomph.fit` plans there, for several ranks as the first of them. Not for people, and not in the help.

use crate::memory::GpuParser;
use crate::printer::Printer;
use crate::{Outcome, fixing, predicting};
use clap::Args;
use oomph_gpus::Gpu;
use oomph_predict::prediction::unlimited;
use oomph_predict::run::{Runner, Status, Until, Voice, World};
use std::ffi::OsString;
use std::path::PathBuf;

/// Run a script on a virtual card with unlimited memory
#[derive(Args)]
pub(crate) struct Arguments {
    /// The card
    #[arg(long, value_name = "NAME", value_parser = GpuParser, hide_possible_values = true)]
    gpu: Gpu,
    /// The interpreter that has PyTorch
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// As the first of so many ranks
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    ranks: u32,
    /// How many of them one machine has; all by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    per_node: Option<u32>,
    /// The script and its arguments
    #[arg(value_name = "SCRIPT", trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    script: Vec<OsString>,
}

pub(crate) fn run(arguments: &Arguments, _printer: &mut Printer) -> anyhow::Result<Outcome> {
    let program = predicting::program(&arguments.script, false)?;
    let installed = fixing::installed(arguments.python.as_deref())?;
    let runner = Runner::new(&installed, 0, Until::End, None)?;
    let per_node = arguments.per_node.unwrap_or(arguments.ranks);
    let world = (arguments.ranks > 1).then_some(World { size: arguments.ranks, rank: 0, per_node });
    let facts = runner.run_unrecorded(&program, &unlimited(&arguments.gpu), world, Voice::Heard)?;
    Ok(match facts.status {
        Status::Finished | Status::Stopped => Outcome::Fine,
        Status::OutOfMemory | Status::Failed => Outcome::Failed,
    })
}
