//! `oomph doctor`.

use crate::Outcome;
use crate::printer::Printer;
use clap::Args;

/// Say what is true of this machine, and what to do
#[derive(Args)]
pub(crate) struct Arguments {}

pub(crate) fn run(_arguments: &Arguments, _printer: &mut Printer) -> anyhow::Result<Outcome> {
    Ok(Outcome::Fine)
}
