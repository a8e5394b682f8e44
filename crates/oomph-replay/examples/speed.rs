//! Times the native model and tuning on a recording: `cargo run --release --example speed -- FILE`.
#![allow(clippy::print_stdout, clippy::unwrap_used)]
use oomph_replay::{allocator::*, conf::Conf, replayer::*, tune::*};
use oomph_trace::{History, read_path};
use std::time::Instant;
fn main() {
    let path = std::env::args().nth(1).unwrap();
    let t = Instant::now();
    let recording = read_path(&path).unwrap();
    let device = &recording.devices[0];
    println!("read {:?}", t.elapsed());
    let t = Instant::now();
    let history = History::of(&recording, device);
    println!("history {:?}", t.elapsed());
    let t = Instant::now();
    let r = Replayer::new(&recording, device, &history, None, None);
    println!("replayer {:?} {} differences {}", t.elapsed(), r.version(), r.reproduction.differences());
    for conf in ["", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:4"] {
        let conf = Conf::parse(conf, r.version()).unwrap();
        let t = Instant::now();
        let out = r.quickly_under(&conf, Memory::UNLIMITED);
        let dt = t.elapsed().as_secs_f64();
        println!("{:.3}s {:.1} M events/s reserved {}", dt, device.events.len() as f64 / dt / 1e6, out.usage.reserved.peak);
    }
    let t = Instant::now();
    let tuning = tune(&r, None, &[], history.peak.requested.bytes, &|_, _| {}).unwrap();
    println!("tune {:?}", t.elapsed());
    for trial in &tuning.trials {
        println!("{:50} {:>12} least {:?} ties {}", trial.conf, trial.plenty.usage.reserved.peak, trial.least, trial.plenty.usage.ties);
    }
}
