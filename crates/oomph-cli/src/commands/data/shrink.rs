//! `oomph data shrink`: the same values in a smaller file.

use super::{Opened, Reading, Watched, heard, shown_error};
use crate::Outcome;
use crate::outputs::{self, Outputs};
use crate::printer::Printer;
use anyhow::bail;
use clap::Args;
use oomph_child::Listener;
use oomph_data::arrays::{
    Array, Arrays, ShrinkOptions, Shrunk, SparseChoice, load_array, profile_array, write_npy,
};
use oomph_data::input::{Input, Options};
use oomph_data::profile::{self, Profile};
use oomph_data::{DataError, Policy, write};
use oomph_report::data::Written;
use std::path::PathBuf;
use std::sync::Mutex;

/// Write a table or an array with the smallest types that hold it
///
/// Reads it twice, in pieces: once to decide the types, once to write. Every value is kept, unless --policy allows floats to change by a part of
/// themselves; each column that changes is named with its worst error. Tables become Parquet, arrays (.npy) stay arrays.
///
/// The file is whole or not there: Ctrl-C and a full disk leave nothing behind. What is there is not written over
/// without --force, and what is read never.
///
/// Exits with 0, or with 2 if it could not be done; 1, which is for findings elsewhere, is not used.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  oomph data shrink train.csv train.parquet\n  oomph data shrink train.csv train.parquet --policy rel:1e-6 --columns user,price\n  oomph data shrink s3://bucket/logs.jsonl.gz logs.parquet --on-error skip\n  oomph data shrink embeddings.npy small.npy --policy rel:1e-3"
)]
pub(super) struct Arguments {
    /// The file or address to read
    #[arg(value_name = "IN")]
    input: String,
    /// The file to write: Parquet for tables, .npy for arrays
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// How much a value may change: `exact`, or `rel:` and the part of itself that a float may be off
    #[arg(long, value_name = "POLICY", default_value = "exact")]
    policy: Policy,
    #[command(flatten)]
    reading: Reading,
    /// Write over a file that is there
    #[arg(long)]
    force: bool,
    /// Rows of a row group, which is what readers of the file hold at a time
    #[arg(long, value_name = "N", default_value_t = write::ROW_GROUP as u64, value_parser = clap::value_parser!(u64).range(1..))]
    row_group_rows: u64,
}

pub(super) fn run(arguments: &Arguments, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let inputs = [PathBuf::from(&arguments.input)];
    Outputs { inputs: &inputs, force: arguments.force }.check(&[&arguments.output])?;
    let opened = arguments.reading.open(&arguments.input).map_err(|error| shown_error(&error))?;
    arguments.check_ending(&opened)?;
    // From here on a signal ends the pass, and what it was writing goes with it.
    let listener = Mutex::new(Listener::start()?);
    let done = match &opened {
        Opened::Table(input) => arguments.table(input, &listener, printer),
        Opened::Arrays(arrays) => arguments.array(arguments.only(arrays)?, &listener, printer),
    };
    if let Some(signal) = heard(&listener) {
        return Ok(Outcome::Interrupted(signal));
    }
    let (profile, memory) = done?;
    let name = arguments.output.display().to_string();
    let written = Written {
        profile: &profile,
        exact: arguments.policy == Policy::Exact,
        output: &name,
        memory,
        file_bytes: arguments.output.metadata().map_or(0, |metadata| metadata.len()),
    };
    printer.note(oomph_report::data::written(&written).trim_end());
    Ok(Outcome::Fine)
}

impl Arguments {
    /// A name that says another format than the one that is written would mislead every reader after.
    fn check_ending(&self, opened: &Opened) -> anyhow::Result<()> {
        let ending = self.output.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        let right = if matches!(opened, Opened::Table(_)) { "parquet" } else { "npy" };
        if !ending.eq_ignore_ascii_case(right) {
            let what =
                if right == "npy" { "an array is written as .npy" } else { "a table is written as .parquet" };
            bail!("{}: {what}; end the name so", self.output.display());
        }
        Ok(())
    }

    /// The array of a file that holds one.
    fn only<'a>(&self, arrays: &'a Arrays) -> anyhow::Result<&'a Array> {
        match arrays {
            Arrays::One(array) => Ok(array),
            Arrays::Named(arrays) => match arrays.as_slice() {
                [(_, array)] => Ok(array),
                several => {
                    let names: Vec<&str> = several.iter().map(|(name, _)| name.as_str()).collect();
                    let names = oomph_words::harmless(&names.join(", "));
                    bail!("{}: holds {} arrays ({names}); a .npy file holds one", self.input, several.len())
                }
            },
            Arrays::Sparse(_) => {
                bail!("{}: a sparse matrix; oomph.data.shrink makes it smaller in Python", self.input)
            }
        }
    }

    /// What was read, and what is written takes in memory.
    fn table(
        &self,
        input: &Input,
        listener: &Mutex<Listener>,
        printer: &Printer,
    ) -> anyhow::Result<(Profile, u64)> {
        let options = Options { policy: self.policy, ..self.reading.options() };
        let watched = |doing| Watched { bar: printer.progress(doing), listener: Some(listener) };
        let profiled =
            profile::of(input, &options, &watched("profiling")).map_err(|error| shown_error(&error))?;
        let rows = usize::try_from(self.row_group_rows).unwrap_or(usize::MAX);
        let mut memory = 0;
        outputs::write_whole(&self.output, self.force, |out| {
            let written = write::parquet(input, &profiled, out, rows, &options, &watched("writing"))
                .map_err(|error| shown_error(&error))?;
            memory = written.columns.iter().map(|column| column.bytes).sum();
            Ok(())
        })?;
        Ok((profiled.profile, memory))
    }

    fn array(
        &self,
        array: &Array,
        listener: &Mutex<Listener>,
        printer: &Printer,
    ) -> anyhow::Result<(Profile, u64)> {
        let options = ShrinkOptions { policy: self.policy, sparse: SparseChoice::Never, drop_zeros: false };
        let watched = |doing| Watched { bar: printer.progress(doing), listener: Some(listener) };
        let shrink = || -> Result<(Shrunk, Profile), DataError> {
            let profiled = profile_array(array, self.policy, &watched("profiling"))?;
            let shrunk = load_array(array, &profiled, &options, &watched("converting"))?;
            Ok((shrunk, profiled.profile))
        };
        let (shrunk, profile) = shrink().map_err(|error| shown_error(&error))?;
        let Shrunk::Dense(dense) = shrunk else { bail!("{}: became a sparse matrix", self.input) };
        outputs::write_whole(&self.output, self.force, |mut out| Ok(write_npy(&mut out, &dense)?))?;
        let memory = match self.policy {
            Policy::Exact => profile.bytes.exact,
            Policy::Relative(_) => profile.bytes.within,
        };
        Ok((profile, memory))
    }
}
