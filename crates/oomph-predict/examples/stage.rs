//! Sets the stage and runs a command on it: `stage PYTHON GPU COMMAND...`.
#![allow(clippy::print_stderr, clippy::unwrap_used)]
use std::process::Command;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let at = std::time::Instant::now();
    let installed = oomph_predict::installed::Installed::find(Some(args[1].as_ref())).unwrap();
    let stage = oomph_predict::stage::Stage::set(&installed).unwrap();
    let catalogue = oomph_gpus::Catalogue::load().unwrap();
    let gpu = catalogue.find(&args[2]).unwrap();
    let status = Command::new(&args[3]).args(&args[4..]).envs(stage.environment(gpu, 2)).status().unwrap();
    std::process::exit(status.code().unwrap_or(99));
}
