//! Drives the native model by a script, so that another model can be held against it.
//!
//! Reads traces from stdin and writes what became of them to stdout. A trace is a line
//! `trace MINOR TOTAL FREE LIMIT CONF` (LIMIT `-` for none, CONF `-` for defaults), then one line a call:
//! `a ID SIZE STREAM POOL POOL` allocates, `f ID` frees, `l ID` requests a free, `c ID` completes it, `e` empties
//! the cache. Answers are the address or `oom REASON` of each allocation, then the statistics.
#![allow(clippy::print_stdout)]

use oomph_replay::addresses::{Addresses, Order};
use oomph_replay::allocator::{Allocator, Handle, Memory, Request};
use oomph_replay::torch::Torch;
use oomph_settings::conf::Conf;
use oomph_settings::version::Version;
use std::collections::HashMap;
use std::error::Error;
use std::io::{BufRead, BufWriter, Write, stdin, stdout};

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = BufWriter::new(stdout().lock());
    let mut torch: Option<Torch> = None;
    let mut blocks: HashMap<String, Handle> = HashMap::new();
    for line in stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["trace", minor, total, free, limit, conf] = words[..] {
            finish(&mut out, torch.take())?;
            let version = Version::new(2, minor.parse()?);
            let memory = Memory { total: total.parse()?, free: free.parse()?, limit: limit.parse().ok() };
            let conf = Conf::parse(if conf == "-" { "" } else { conf }, version)?;
            torch = Some(Torch::new(conf, version, memory, Addresses::made_up(Order::Up)));
            blocks.clear();
            continue;
        }
        let Some(torch) = torch.as_mut() else { return Err("a trace begins with its settings".into()) };
        let block = |id: &str| blocks.get(id).copied().ok_or("an unknown block");
        match words[..] {
            ["a", id, size, stream, graph, pool] => {
                let pool = (graph.parse()?, pool.parse()?);
                match torch.malloc(Request { size: size.parse()?, stream: stream.parse()?, pool }) {
                    Ok(handle) => {
                        writeln!(out, "{}", torch.address(handle))?;
                        blocks.insert(id.to_owned(), handle);
                    }
                    Err(refusal) => writeln!(out, "oom {}", refusal.key())?,
                }
            }
            ["f", id] => torch.free(block(id)?),
            ["l", id] => torch.free_later(block(id)?),
            ["c", id] => torch.complete(block(id)?),
            ["e"] => torch.empty_cache(),
            _ => return Err(format!("what is {line:?}?").into()),
        }
    }
    finish(&mut out, torch.take())?;
    Ok(out.flush()?)
}

fn finish(out: &mut impl Write, torch: Option<Torch>) -> std::io::Result<()> {
    let Some(torch) = torch else { return Ok(()) };
    let usage = torch.usage();
    let gauges = [
        usage.allocated,
        usage.reserved,
        usage.active,
        usage.requested,
        usage.inactive_split,
        usage.segments,
    ];
    write!(out, "end")?;
    for gauge in gauges {
        write!(out, " {} {}", gauge.now, gauge.peak)?;
    }
    writeln!(out, " {} {} {} {}", usage.retries, usage.ooms, usage.device_allocs, usage.device_frees)
}
