//! What samples cost: `cargo run --release -p oomph-host --example cost [SAMPLES [PROCESSES [MILLISECONDS]]]`.
//!
//! Takes so many samples (1000 unless said), beside so many more processes that sleep (0), with so much time between two (0).
//! Prints processor time for each sample, and RAM after the first samples, at half time and at the end.
#![allow(clippy::print_stdout)]

use std::io;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

struct Sleepers(Vec<Child>);

impl Drop for Sleepers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // One that has ended already is as good.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn main() -> io::Result<()> {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let get = |index: usize, usual| numbers.get(index).copied().unwrap_or(usual);
    let (samples, more, pause) = (get(0, 1000).max(1), get(1, 0), Duration::from_millis(get(2, 0)));
    let sleepers: io::Result<Vec<Child>> =
        (0..more).map(|_| Command::new("sleep").arg("86400").stdin(Stdio::null()).spawn()).collect();
    let _sleepers = Sleepers(sleepers?);

    let mut sampler = oomph_host::Sampler::new();
    let first = processor_time()?;
    let seen = sampler.sample().processes.len();
    println!(
        "{seen} processes; the first sample took {:.2} ms of a processor",
        milliseconds(processor_time()? - first)
    );
    for _ in 0..20 {
        sampler.sample();
    }
    let (before, began, start) = (processor_time()?, Instant::now(), resident()?);
    let mut half = start;
    for sample in 0..samples {
        sampler.sample();
        std::thread::sleep(pause);
        if sample == samples / 2 {
            half = resident()?;
        }
    }
    let (spent, lasted) = (processor_time()? - before, began.elapsed());
    let each = milliseconds(spent) / samples as f64;
    println!("{samples} samples in {:.1} s: {each:.3} ms of a processor each", lasted.as_secs_f64());
    println!("at one a second: {:.2} % of a processor", each / 10.0);
    println!("RAM: {start} KiB at the beginning, {half} KiB at half time, {} KiB at the end", resident()?);
    Ok(())
}

/// Of all threads, in nanoseconds: cards are asked for in one of their own.
fn processor_time() -> io::Result<u64> {
    let mut sum = 0;
    for thread in std::fs::read_dir("/proc/self/task")? {
        let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        let first = text.split(' ').next().and_then(|text| text.parse::<u64>().ok());
        sum += first.ok_or(io::ErrorKind::InvalidData)?;
    }
    Ok(sum)
}

fn milliseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}

/// In KiB.
fn resident() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.ok_or(io::ErrorKind::InvalidData.into())
}
