//! What happens inside, for a bug report: `--verbose` and `OOMPH_LOG`, on stderr. Nothing is logged unless it is asked for.

use std::io::IsTerminal;
use tracing::Level;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

/// The variable; a level (`debug`) or levels by crate (`oomph_stage=debug,oomph_predict=trace`), as everywhere in Rust.
const VARIABLE: &str = "OOMPH_LOG";

/// Starts logging. `-v` says what was found, staged and started, `-vv` with which variables; arguments are never shown. What the variable says counts before it.
pub(crate) fn start(verbose: u8) -> Result<(), String> {
    let targets = match std::env::var(VARIABLE) {
        Ok(text) if !text.trim().is_empty() => {
            text.parse::<Targets>().map_err(|error| format!("{VARIABLE}={text}: {error}"))?
        }
        _ => match verbose {
            0 => return Ok(()),
            // Ours alone: what libraries say of their connections drowns it.
            1 => ours(Level::INFO),
            2 => ours(Level::DEBUG),
            _ => Targets::new().with_default(LevelFilter::TRACE),
        },
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
        .with_timer(tracing_subscriber::fmt::time::uptime());
    // Only one can be set, and only here.
    let _ = tracing_subscriber::registry().with(lines.with_filter(targets)).try_init();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        system = std::env::consts::OS,
        machine = std::env::consts::ARCH
    );
    Ok(())
}

fn ours(level: Level) -> Targets {
    Targets::new().with_target("oomph", level)
}
