//! Prints the rows of anything that can be streamed, a line each: `stream_rows BATCH_ROWS BUDGET LOCATION…`.
//!
//! What it took goes to stderr, at the end.

use arrow_cast::display::{ArrayFormatter, FormatOptions};
use oomph_data::stream::{Stream, StreamOptions};
use std::error::Error;
use std::io::{self, Write};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let batch_rows = arguments.next().ok_or("how many rows in a batch?")?.parse()?;
    let budget = arguments.next().ok_or("how many bytes of budget?")?.parse()?;
    let locations: Vec<String> = arguments.collect();
    let mut stream =
        Stream::open(&locations, StreamOptions { batch_rows, budget, ..StreamOptions::default() })?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    let format = FormatOptions::default();
    while let Some(batch) = stream.next_batch()? {
        let columns = batch
            .columns()
            .iter()
            .map(|column| ArrayFormatter::try_new(column, &format))
            .collect::<Result<Vec<_>, _>>()?;
        for row in 0..batch.num_rows() {
            let cells: Vec<String> = columns.iter().map(|column| column.value(row).to_string()).collect();
            writeln!(out, "{}", cells.join("\t"))?;
        }
    }
    writeln!(io::stderr(), "{:?}", stream.progress())?;
    Ok(())
}
