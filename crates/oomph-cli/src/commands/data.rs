//! `oomph data`: tables and arrays that do not fit in RAM.

mod profile;
mod shrink;

use crate::Outcome;
use crate::printer::{Printer, Progress};
use anyhow::anyhow;
use clap::{Args, Subcommand, ValueEnum};
use oomph_child::Listener;
use oomph_data::arrays::{self, Arrays};
use oomph_data::input::{Input, Options};
use oomph_data::source::{self, Format};
use oomph_data::text::TextOverrides;
use oomph_data::{DataError, Observer, OnError, Pass};
use std::sync::{Mutex, PoisonError};

/// Find out what a table or an array takes in memory, and make it smaller
///
/// Tables that kill the kernel are mostly larger than they need be: 64 bits for ages, text for countries, zeros stored as numbers. oomph reads the
/// file once, in pieces, and says the smallest type that keeps every value of each column; a second time, and writes it so.
///
/// It reads CSV, TSV and JSON lines (plain, gzip or zstd), Parquet, Arrow IPC and Feather, .npy and .npz; files, and
/// addresses that begin with http://, https://, s3://, gs:// or az://. It never runs anything that is in them.
///
/// In Python: oomph.data.profile, oomph.data.load, oomph.data.shrink, and oomph.data.stream for what is larger than memory.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  oomph data profile train.csv\n  oomph data shrink train.csv train.parquet"
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Profile(profile::Arguments),
    Shrink(shrink::Arguments),
}

pub(crate) fn run(arguments: &Arguments, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let warn = printer.warner();
    source::on_waiting(move |words| warn(&oomph_words::harmless(words)));
    match &arguments.verb {
        Verb::Profile(arguments) => profile::run(arguments, printer),
        Verb::Shrink(arguments) => shrink::run(arguments, printer),
    }
}

/// How to read it.
#[derive(Args)]
struct Reading {
    /// Only these columns, in this order
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    columns: Option<Vec<String>>,
    /// What to do with a row that makes no sense: too many cells, a broken quote
    #[arg(long, value_enum, default_value_t = WhenBroken::Fail, value_name = "WHAT")]
    on_error: WhenBroken,
    /// What separates cells, if it is not found out: `;`, `|`, `tab`
    #[arg(long, value_name = "CHARACTER", value_parser = delimiter)]
    delimiter: Option<u8>,
    /// The first line is a row already; columns are called c0, c1, c2 …
    #[arg(long)]
    no_header: bool,
    /// What stands for no value in every column, besides an empty cell: -999, unknown; may be given several times. In columns of numbers and times NA, N/A, NULL, null, None and their like always do
    #[arg(long = "null", value_name = "TEXT", allow_hyphen_values = true)]
    nulls: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum WhenBroken {
    /// Stop, and name its line
    Fail,
    /// Leave it out, and say how many were
    Skip,
}

fn delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        b"tab" | b"\\t" => Ok(b'\t'),
        [byte] if !byte.is_ascii_alphanumeric() && !b"\"\r\n.-+".contains(byte) => Ok(*byte),
        _ => Err("one character that no number has, or tab".to_owned()),
    }
}

impl Reading {
    fn options(&self) -> Options {
        let on_error = match self.on_error {
            WhenBroken::Fail => OnError::Fail,
            WhenBroken::Skip => OnError::Skip,
        };
        Options { columns: self.columns.clone(), on_error, ..Options::default() }
    }

    fn text(&self) -> TextOverrides {
        TextOverrides { delimiter: self.delimiter, no_header: self.no_header, nulls: self.nulls.clone() }
    }

    fn open(&self, location: &str) -> Result<Opened, DataError> {
        let source = source::open(location)?;
        let (format, compression) = source::recognise(source.as_ref())?;
        match format {
            Format::Npy | Format::Npz => Ok(Opened::Arrays(Box::new(arrays::open(source)?))),
            _ => Input::of(source, format, compression, &self.text()).map(Opened::Table),
        }
    }

    /// As it would be typed again.
    fn typed(&self) -> Vec<String> {
        let mut typed = Vec::new();
        if let Some(columns) = &self.columns {
            typed.extend(["--columns".to_owned(), columns.join(",")]);
        }
        if self.on_error == WhenBroken::Skip {
            typed.extend(["--on-error", "skip"].map(str::to_owned));
        }
        if let Some(byte) = self.delimiter {
            let name = if byte == b'\t' { "tab".to_owned() } else { char::from(byte).to_string() };
            typed.extend(["--delimiter".to_owned(), name]);
        }
        if self.no_header {
            typed.push("--no-header".to_owned());
        }
        typed.extend(self.nulls.iter().map(|null| format!("--null={null}")));
        typed
    }
}

/// What a location holds.
enum Opened {
    Table(Input),
    Arrays(Box<Arrays>),
}

/// Shows how far a pass is, and ends it when a signal asks for that.
struct Watched<'a> {
    bar: Progress,
    listener: Option<&'a Mutex<Listener>>,
}

impl Observer for Watched<'_> {
    fn advanced(&self, _pass: Pass, done: u64, total: u64) {
        self.bar.set(done, total);
    }

    fn stopped(&self) -> bool {
        self.listener.is_some_and(|listener| heard(listener).is_some())
    }
}

/// The signal that asked to end.
fn heard(listener: &Mutex<Listener>) -> Option<i32> {
    listener.lock().unwrap_or_else(PoisonError::into_inner).heard()
}

/// The error's message, without control characters from the data.
fn shown_error(error: &DataError) -> anyhow::Error {
    anyhow!(oomph_words::harmless(&error.to_string()))
}
