//! `--fetch-torch` of several verbs: a PyTorch with CUDA for interpreters whose own has none.

use crate::Outcome;
use crate::printer::Printer;
use clap::Args;
use oomph_stage::VirtualGpu;
use oomph_stage::fetched::{self, FetchError, Wanted};
use oomph_stage::installed::{Installed, InstalledError};
use std::path::Path;

/// What may be fetched.
#[derive(Args)]
pub(crate) struct Fetching {
    /// Where PyTorch is built without CUDA: fetch the CUDA build of the same version from the package index into oomph's cache, and use it.
    /// Its wheel alone, 0.5 to 1 GB, without NVIDIA's libraries. Asks first. Later runs use it without this option
    #[arg(long)]
    pub(crate) fetch_torch: bool,
    /// Fetch without asking, as in CI
    #[arg(long, requires = "fetch_torch")]
    pub(crate) yes: bool,
}

/// The PyTorch that programs are run with; where there is none, that was said.
pub(crate) fn installed(
    python: Option<&Path>,
    fetching: &Fetching,
    printer: &mut Printer,
) -> anyhow::Result<Result<Installed, Outcome>> {
    // Before it is said what to install: it would not help.
    VirtualGpu::check()?;
    let error = match Installed::find(python) {
        Ok(installed) => return Ok(Ok(installed)),
        Err(InstalledError::NoCuda { wanted, .. }) if fetching.fetch_torch => {
            return match fetch(&wanted, fetching.yes, printer) {
                Ok(true) => Ok(Installed::find(python).map_err(|error| said(&error, printer))),
                Ok(false) => Ok(Err(Outcome::Failed)),
                Err(FetchError::Interrupted { signal }) => Ok(Err(Outcome::Interrupted(signal))),
                Err(error) => Err(error.into()),
            };
        }
        Err(error) => error,
    };
    Ok(Err(said(&error, printer)))
}

fn said(error: &InstalledError, printer: &mut Printer) -> Outcome {
    printer.error(&error.to_string());
    printer.hint(error.hint());
    Outcome::Failed
}

/// Asks, and fetches. False if it may not be fetched, which was said.
fn fetch(wanted: &Wanted, yes: bool, printer: &mut Printer) -> Result<bool, FetchError> {
    if !yes && !printer.can_ask() {
        printer.error("--fetch-torch asks before it fetches, and there is no terminal to ask on");
        printer.hint("add --yes to fetch 0.5 to 1 GB without being asked");
        return Ok(false);
    }
    let offer = wanted.find()?;
    let folder = fetched::folder()?;
    let what = format!(
        "PyTorch {} with CUDA: {} MB from {} into {}",
        wanted.version,
        offer.size.div_ceil(1_000_000),
        offer.index,
        folder.display()
    );
    if !yes && !printer.ask(&format!("{what}. Fetch it?")) {
        printer.note("nothing was fetched");
        return Ok(false);
    }
    if yes {
        printer.note(&format!("fetching {what}"));
    }
    let bar = printer.progress("fetching");
    let place = wanted.fetch(&offer, |done, of| bar.set(done, of))?;
    drop(bar);
    printer.note(&format!("fetched: {} (to remove it: rm -r)", place.display()));
    Ok(true)
}
