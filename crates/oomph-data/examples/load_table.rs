//! Loads a table and says how long each pass took and what the process took at its peak.
//!
//! `cargo run --release -p oomph-data --example load_table -- FILE [rel:1e-6]`

use oomph_data::input::{Input, Options};
use oomph_data::{DataError, Policy, Unobserved, load, profile};
use std::time::Instant;

fn main() -> Result<(), DataError> {
    let mut arguments = std::env::args().skip(1);
    let Some(path) = arguments.next() else {
        return Err(DataError::Usage("name a file".to_owned()));
    };
    let policy = arguments.next().map_or(Ok(Policy::Exact), |policy| policy.parse())?;
    let options = Options { policy, ..Options::default() };
    let before = peak();
    let start = Instant::now();
    let input = Input::open(&path, &Default::default())?;
    let profiled = profile::of(&input, &options, &Unobserved)?;
    let (first, first_peak) = (start.elapsed(), peak());
    let loaded = load::load(&input, &profiled, &options, &Unobserved)?;
    let bytes: u64 = loaded.columns.iter().map(|column| column.bytes).sum();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let lines = [
        format!("first pass   {:.3} s, peak {:.1} MiB", first.as_secs_f64(), mib(first_peak - before)),
        format!(
            "second pass  {:.3} s, peak {:.1} MiB",
            (start.elapsed() - first).as_secs_f64(),
            mib(peak() - before)
        ),
        format!("result       {:.1} MiB, {} rows", mib(bytes), profiled.profile.rows),
    ];
    std::io::Write::write_all(&mut std::io::stdout(), (lines.join("\n") + "\n").as_bytes())
        .map_err(|error| DataError::io("stdout", error))
}

/// The most that the process has held, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
}
