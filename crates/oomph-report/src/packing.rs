//! How a packing looks.

use crate::json::{pretty, with_version};
use crate::markdown::escape;
use crate::text::{BOLD, DIM, GREEN, RED, paint};
use oomph_replay::packing::Placement;
use oomph_words::{grouped, plural, printable};
use serde_json::json;
use std::fmt::Write;

/// A packing with what it is compared to.
pub struct Packing<'a> {
    /// The file, as the user gave it.
    pub name: &'a str,
    /// How many buffers.
    pub buffers: u64,
    /// What first fit in order of size needs; not worked out for very many buffers.
    pub first_fit: Option<u64>,
    /// What best fit needs.
    pub best_fit: u64,
    /// What it should fit into.
    pub capacity: Option<u64>,
    /// How long the search took.
    pub seconds: f64,
    /// What was found.
    pub placement: &'a Placement,
}

impl Packing<'_> {
    fn rows(&self) -> Vec<(&'static str, u64)> {
        let mut rows = vec![("lower bound", self.placement.lower_bound)];
        rows.extend(self.first_fit.map(|height| ("first fit by size", height)));
        rows.extend([("best fit", self.best_fit), ("found", self.placement.height)]);
        rows
    }

    fn above(&self, height: u64) -> f64 {
        100.0 * (height as f64 / self.placement.lower_bound.max(1) as f64 - 1.0)
    }

    fn verdict(&self) -> Option<(bool, String)> {
        let capacity = self.capacity?;
        let fits = self.placement.height <= capacity;
        let verb = if fits { "fits" } else { "does not fit" };
        Some((fits, format!("It {verb} into {}.", grouped(capacity))))
    }
}

/// For a terminal.
pub fn text(packing: &Packing) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{} {}",
        paint(BOLD, printable(packing.name)),
        paint(DIM, format!("({}, {:.2} s)", plural(packing.buffers, "buffer"), packing.seconds))
    );
    if let Some((fits, verdict)) = packing.verdict() {
        let _ = writeln!(out, "{}", paint(if fits { GREEN } else { RED }, verdict));
    }
    for (name, height) in packing.rows() {
        let above =
            if name == "lower bound" { String::new() } else { format!("  +{:.3} %", packing.above(height)) };
        let _ = writeln!(out, "  {name:<18} {:>18}{above}", grouped(height));
    }
    let proof = if packing.placement.optimal { ", which is the least possible" } else { "" };
    let _ = writeln!(out, "Found by {}{proof}.", packing.placement.method);
    out
}

/// For scripts.
pub fn json(packing: &Packing) -> String {
    pretty(&with_version(json!({
        "file": packing.name,
        "buffers": packing.buffers,
        "height": packing.placement.height,
        "lower_bound": packing.placement.lower_bound,
        "optimal": packing.placement.optimal,
        "method": packing.placement.method,
        "first_fit": packing.first_fit,
        "best_fit": packing.best_fit,
        "capacity": packing.capacity,
        "fits": packing.verdict().map(|(fits, _)| fits),
        "seconds": packing.seconds,
    })))
}

/// For issues and pull requests.
pub fn markdown(packing: &Packing) -> String {
    let mut out = format!("## {}\n\n| | bytes | above the bound |\n|---|---:|---:|\n", escape(packing.name));
    for (name, height) in packing.rows() {
        let _ = writeln!(out, "| {name} | {} | {:.3} % |", grouped(height), packing.above(height));
    }
    out
}
