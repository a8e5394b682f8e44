//! How fast the native model goes through a recording, on one core: `throughput FILE`, as JSON.
#![allow(clippy::print_stdout)]

use oomph_replay::addresses::{Addresses, Order};
use oomph_replay::allocator::{Allocator, Memory};
use oomph_replay::program::{OpenBlocks, Options, Program};
use oomph_replay::recorded::conf_of;
use oomph_replay::torch::Torch;
use oomph_settings::conf::Conf;
use oomph_settings::version::Version;
use oomph_trace::{History, read_path};
use std::error::Error;
use std::time::Instant;

const SETTINGS: [&str; 4] =
    ["", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:4"];
/// The best of so many rounds, or of as many as fit into half a second.
const ROUNDS: usize = 5;
const HALF_A_SECOND: f64 = 0.5;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("name a recording")?;
    let recording = read_path(path)?;
    let device = recording.devices.first().ok_or("there is no device")?;
    let history = History::of(&recording, device);
    let program = Program::of(device, &history, &conf_of(&recording.settings));
    for text in SETTINGS {
        for version in [Version::new(2, 11), Version::NEWEST] {
            let conf = Conf::parse(text, version)?;
            let mut best = f64::INFINITY;
            let mut torch = None;
            let (mut rounds, mut spent) = (0, 0.0);
            while rounds < ROUNDS || spent < HALF_A_SECOND {
                let mut model =
                    Torch::new(conf.clone(), version, Memory::UNLIMITED, Addresses::made_up(Order::Driver));
                let began = Instant::now();
                program.play(&mut model, OpenBlocks::default(), &Options::default());
                let seconds = began.elapsed().as_secs_f64();
                best = best.min(seconds);
                (rounds, spent) = (rounds + 1, spent + seconds);
                torch = Some(model);
            }
            let Some(torch) = torch else { continue };
            println!(
                "{{\"conf\": \"{text}\", \"torch\": \"{version}\", \"events\": {}, \"seconds\": {best}, \
                 \"reserved\": {}, \"block_slots\": {}}}",
                program.len(),
                torch.usage().reserved.peak,
                torch.block_slots()
            );
        }
    }
    Ok(())
}
