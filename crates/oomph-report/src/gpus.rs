//! How the catalogue of GPUs looks.

use crate::json;
use crate::markdown::escape;
use crate::text::{BOLD, DIM, paint};
use oomph_gpus::Gpu;
use oomph_words::{bytes, printable};
use std::fmt::Write;

/// For a terminal: a table, or one card with its sources.
pub fn text(cards: &[&Gpu]) -> String {
    let width = cards.iter().map(|gpu| gpu.name.chars().count()).max().unwrap_or(4).max(4);
    let mut out = String::new();
    let heading = format!("{:width$}     memory     usable  capability  SMs  title", "name");
    let _ = writeln!(out, "{}", paint(BOLD, heading));
    for gpu in cards {
        let _ = writeln!(
            out,
            "{:width$}  {:>9}  {:>9}  {:>10}  {:>3}  {}",
            printable(&gpu.name),
            bytes(gpu.memory),
            bytes(gpu.usable()),
            printable(&gpu.compute_capability),
            gpu.sms,
            printable(&gpu.title)
        );
    }
    if let [gpu] = cards {
        let _ = writeln!(out, "{}", paint(DIM, oomph_words::harmless(&gpu.source)));
    }
    out
}

pub fn json(cards: &[&Gpu]) -> String {
    json::gpus::gpus(cards)
}

/// For issues and pull requests.
pub fn markdown(cards: &[&Gpu]) -> String {
    let mut out = "| name | memory | usable | capability | SMs |\n|---|---:|---:|---:|---:|\n".to_owned();
    for gpu in cards {
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} |",
            escape(&gpu.name),
            bytes(gpu.memory),
            bytes(gpu.usable()),
            escape(&gpu.compute_capability),
            gpu.sms
        );
    }
    out
}
