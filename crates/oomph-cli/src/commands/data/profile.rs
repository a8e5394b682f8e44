//! `oomph data profile`: what is in it, and what it could take.

use super::{Opened, Reading, Watched, shown_error};
use crate::Outcome;
use crate::arguments::Format;
use crate::printer::{Printer, width};
use clap::Args;
use oomph_data::arrays::{Arrays, profile_array, profile_sparse};
use oomph_data::profile::{self, Profile};
use oomph_data::{DataError, Observer, Policy, source};
use oomph_report::data::{self, Look, NamedProfile};

/// Say what a table or an array takes in memory, and what it could take
///
/// Reads it once, in pieces, and never holds it. For each column it says the type that it is usually loaded with, the smallest that keeps
/// every value, and the smallest that changes no float by more than --within of itself; then what pandas, polars and oomph would take while they
/// load it. Types are decided by every value, not by a sample: 2^53 + 1 stays an integer, 007 stays text.
///
/// Several files are profiled one after the other; `*` in a path or an address stands for what matches, and a folder that ends in / for what is in it.
///
/// Exits with 0, or with 2 if something could not be read; 1, which is for findings elsewhere, is not used.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  oomph data profile train.csv\n  oomph data profile 'logs/*.csv' --null NA --on-error skip\n  oomph data profile s3://bucket/train.parquet --columns user,price --within rel:1e-3\n  oomph data profile embeddings.npy --format json"
)]
pub(super) struct Arguments {
    /// Files, folders or addresses
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<String>,
    /// The error to ask about beside exactness: how much of itself a float may change
    #[arg(long, value_name = "POLICY", default_value = "rel:1e-6", value_parser = within)]
    within: f64,
    #[command(flatten)]
    reading: Reading,
    /// Show every column of a wide table, not only those that save most
    #[arg(long)]
    all: bool,
    /// How to show it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

fn within(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(Policy::Relative(error)) => Ok(error),
        Ok(Policy::Exact) => {
            Err("exact types are always shown; write rel: and a number, such as rel:1e-6".to_owned())
        }
        Err(error) => Err(error.to_string()),
    }
}

pub(super) fn run(arguments: &Arguments, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let locations = source::expand(&arguments.paths).map_err(|error| shown_error(&error))?;
    let mut found: Vec<(String, Profile)> = Vec::new();
    let mut outcome = Outcome::Fine;
    for location in locations {
        let watched = Watched { bar: printer.progress("profiling"), listener: None };
        let profiles =
            arguments.reading.open(&location).and_then(|opened| arguments.profiles(&opened, &watched));
        drop(watched);
        match profiles {
            Ok(profiles) => found.extend(profiles.into_iter().map(|profile| (location.clone(), profile))),
            Err(error) => {
                printer.error(&format!("{:#}", shown_error(&error)));
                outcome = Outcome::Failed;
            }
        }
    }
    if found.is_empty() {
        return Ok(outcome);
    }
    let options = arguments.reading.typed();
    let named: Vec<NamedProfile> = found
        .iter()
        .map(|(location, profile)| NamedProfile {
            profile,
            input: location,
            options: &options,
            all: arguments.all,
        })
        .collect();
    printer.data(&match arguments.format {
        Format::Text => data::text(&named, Look::terminal(width())),
        Format::Json => data::json(&named),
        Format::Markdown => data::markdown(&named),
    })?;
    Ok(outcome)
}

impl Arguments {
    fn profiles(&self, opened: &Opened, observer: &dyn Observer) -> Result<Vec<Profile>, DataError> {
        let within = Policy::Relative(self.within);
        match opened {
            Opened::Table(input) => {
                let options = oomph_data::input::Options { within: self.within, ..self.reading.options() };
                Ok(vec![profile::of(input, &options, observer)?.profile])
            }
            Opened::Arrays(arrays) => match arrays.as_ref() {
                Arrays::One(array) => Ok(vec![profile_array(array, within, observer)?.profile]),
                Arrays::Named(arrays) => arrays
                    .iter()
                    .map(|(_, array)| Ok(profile_array(array, within, observer)?.profile))
                    .collect(),
                Arrays::Sparse(matrix) => Ok(vec![profile_sparse(matrix, within, observer)?.profile]),
            },
        }
    }
}
