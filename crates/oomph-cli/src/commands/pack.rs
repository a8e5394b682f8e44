//! `oomph pack`: how little memory could do.

use crate::arguments::Format;
use crate::printer::Printer;
use crate::{Outcome, files, outputs};
use anyhow::Context;
use clap::Args;
use oomph_replay::lifetimes::Lifetimes;
use oomph_replay::packed::nearly;
use oomph_replay::packing::{Limits, best_fit, first_fit_by_size, lower_bound, pack};
use oomph_report::packing::{self, Packing};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Pack buffers with known lifetimes into the least memory
///
/// Takes a table with the columns id, lower, upper and size (comma-separated; a buffer lives from lower up to, but not
/// including, upper) and finds an offset for each, so that no two that live at the same time overlap. Shows what no
/// placement can do with less than, what simple methods need, and what a search found. The search ends when the time is over,
/// or within a ten-thousandth of the bound.
///
/// For a recording, use `oomph replay --allocator packed`.
///
/// Exits with 1 if the placement is higher than --capacity.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  oomph pack lifetimes.csv\n  oomph pack lifetimes.csv --capacity 1048576 --patience 60 -o placed.csv"
)]
pub(crate) struct Arguments {
    /// The table; `-` reads it from stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Stop as soon as a placement fits into this, in the unit of the table
    #[arg(long, value_name = "N")]
    pub(crate) capacity: Option<u64>,
    /// How long to search, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) patience: u64,
    /// Write the table with a column `offset`
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Write over a file that is there
    #[arg(long, requires = "output")]
    pub(crate) force: bool,
    /// How to show it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
}

/// Beyond so many buffers, first fit alone takes longer than the search may.
const MANY: usize = 200_000;

pub(crate) fn run(arguments: &Arguments, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let name = arguments.file.display().to_string();
    let text = files::read_text(&arguments.file)?;
    let lifetimes = Lifetimes::parse(&text).with_context(|| name.clone())?;
    let capacity = arguments.capacity;
    let began = Instant::now();
    let bar = printer.progress("packing");
    let limits = Limits {
        time: Duration::from_secs(arguments.patience),
        good_enough: capacity.unwrap_or_else(|| nearly(lower_bound(&lifetimes.buffers))),
        progress: &mut |_| {
            bar.set(began.elapsed().as_millis() as u64, arguments.patience * 1000);
            true
        },
    };
    let placement = pack(&lifetimes.buffers, limits);
    drop(bar);
    let seconds = began.elapsed().as_secs_f64();
    let packed = Packing {
        name: &name,
        buffers: lifetimes.buffers.len() as u64,
        first_fit: (lifetimes.buffers.len() <= MANY).then(|| first_fit_by_size(&lifetimes.buffers).height),
        best_fit: best_fit(&lifetimes.buffers).height,
        capacity,
        seconds,
        placement: &placement,
    };
    if let Some(path) = &arguments.output {
        let table = lifetimes.with_offsets(&placement.offsets);
        outputs::write_whole(path, arguments.force, |out| Ok(out.write_all(table.as_bytes())?))?;
    }
    printer.data(&match arguments.format {
        Format::Text => packing::text(&packed),
        Format::Json => packing::json(&packed),
        Format::Markdown => packing::markdown(&packed),
    })?;
    let too_high = capacity.is_some_and(|capacity| placement.height > capacity);
    Ok(if too_high { Outcome::Findings } else { Outcome::Fine })
}
