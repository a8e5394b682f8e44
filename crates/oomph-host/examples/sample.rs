//! Prints a sample as JSON: `cargo run -p oomph-host --example sample`. `OOMPH_NVML` names another library for NVML.
#![allow(clippy::print_stdout)]

fn main() -> Result<(), serde_json::Error> {
    let sample = oomph_host::Sampler::new().sample();
    println!("{}", serde_json::to_string_pretty(&sample)?);
    Ok(())
}
