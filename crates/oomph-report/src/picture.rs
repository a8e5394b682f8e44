//! A picture of memory over time (in order of events), as SVG inside HTML.
//!
//! What was allocated, stacked by kind; what was reserved, as a line; the peak, out-of-memories and steps, marked. No
//! script and nothing to load; text and lines take the colour of the page, so it reads on light and on dark. All texts in
//! it are our own: nothing of a stranger's gets in here.

use oomph_explain::{Column, HostKind, Kind, Timeline};
use oomph_words::{bytes, plural};
use std::fmt::Write;

/// Columns that are drawn, each one wide.
pub const COLUMNS: usize = 600;

const LEFT: f64 = 64.0;
const TOP: f64 = 22.0;
const HEIGHT: f64 = 180.0;
const BELOW: f64 = 34.0;
const RIGHT: f64 = 16.0;
/// More steps than this are a solid band.
const MOST_STEPS: usize = 150;

/// A kind's colour, distinguishable on light and on dark. The legend names every one.
pub(crate) fn colour(kind: Kind) -> &'static str {
    match kind {
        Kind::Parameter => "#4e79a7",
        Kind::Frozen => "#a0cbe8",
        Kind::Adapter => "#2f4b7c",
        Kind::Gradient => "#f28e2b",
        Kind::OptimizerState => "#59a14f",
        Kind::Activation => "#86bcb6",
        Kind::Temporary => "#b07aa1",
        Kind::Workspace => "#9c755f",
        Kind::Input => "#d37295",
        Kind::Unknown => "#8c8c8c",
    }
}

/// The same of a kind of RAM. What is the same kind of thing on a GPU has no colour there that would be taken for it.
pub(crate) fn colour_of_ram(kind: HostKind) -> &'static str {
    match kind {
        HostKind::Arrays => "#4e79a7",
        HostKind::Tables => "#59a14f",
        HostKind::Tensors => "#f28e2b",
        HostKind::Pinned => "#d4a90f",
        HostKind::Objects => "#b07aa1",
        HostKind::Images => "#d37295",
        HostKind::Shared => "#86bcb6",
        HostKind::Oomph => "#8073c9",
        HostKind::Native => "#9c755f",
        HostKind::Unknown => "#8c8c8c",
    }
}

pub fn timeline(timeline: &Timeline) -> String {
    let columns = &timeline.columns;
    let highest = columns.iter().map(|column| column.reserved.max(column.allocated())).max().unwrap_or(0);
    let scale = Scale { highest: highest.max(1), columns: columns.len().max(1) };
    let (width, height) = (LEFT + COLUMNS as f64 + RIGHT, TOP + HEIGHT + BELOW);
    let peak = columns.get(timeline.peak).map_or(0, Column::allocated);
    let mut out = format!(
        "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"allocated and reserved memory over time, peak {}\">\n",
        bytes(peak)
    );
    grid(&mut out, scale, timeline);
    bands(&mut out, scale, columns);
    let _ = writeln!(
        out,
        "<path class=\"reserved\" d=\"{}\"><title>reserved, {} at most</title></path>",
        outline(scale, columns.iter().map(|column| column.reserved)),
        bytes(columns.iter().map(|column| column.reserved).max().unwrap_or(0))
    );
    steps(&mut out, scale, &timeline.steps);
    ooms(&mut out, scale, &timeline.ooms);
    let y = scale.y(peak);
    let _ = writeln!(out, "<circle cx=\"{}\" cy=\"{y}\" r=\"3\"/>", scale.x(timeline.peak as f64 + 0.5));
    label(&mut out, scale, timeline.peak, TOP - 8.0, &format!("peak {} allocated", bytes(peak)));
    out.push_str("</svg>\n");
    out
}

#[derive(Clone, Copy)]
struct Scale {
    highest: u64,
    columns: usize,
}

impl Scale {
    fn x(self, column: f64) -> f64 {
        tenths(LEFT + column * COLUMNS as f64 / self.columns as f64)
    }

    fn y(self, value: u64) -> f64 {
        tenths(TOP + HEIGHT * (1.0 - value as f64 / self.highest as f64))
    }
}

/// Finer than a pixel, and short to write.
fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

fn grid(out: &mut String, scale: Scale, timeline: &Timeline) {
    let (left, right) = (LEFT, LEFT + COLUMNS as f64);
    for quarter in 0..=4 {
        let value = (scale.highest as f64 * f64::from(quarter) / 4.0) as u64;
        let y = scale.y(value);
        let _ = writeln!(
            out,
            "<path class=\"grid\" d=\"M{left} {y}H{right}\"/><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            left - 6.0,
            tenths(y + 3.5),
            bytes(value)
        );
    }
    let bottom = TOP + HEIGHT + 26.0;
    let took = timeline.seconds.map(|seconds| format!(" in {seconds:.2} s")).unwrap_or_default();
    let _ = writeln!(
        out,
        "<text x=\"{right}\" y=\"{bottom}\" text-anchor=\"end\">{}{took}</text>",
        plural(timeline.events, "event")
    );
}

/// Every kind that was ever there, each upon those before it.
fn bands(out: &mut String, scale: Scale, columns: &[Column]) {
    let mut below = vec![0_u64; columns.len()];
    for (position, kind) in Kind::ALL.into_iter().enumerate() {
        let most = columns.iter().map(|column| column.kinds[position]).max().unwrap_or(0);
        if most == 0 {
            continue;
        }
        let above: Vec<u64> =
            below.iter().zip(columns).map(|(low, column)| low + column.kinds[position]).collect();
        let _ = writeln!(
            out,
            "<path fill=\"{}\" d=\"{}{}Z\"><title>{}, {} at most</title></path>",
            colour(kind),
            outline(scale, above.iter().copied()),
            back_along(scale, &below),
            kind.name(),
            bytes(most)
        );
        below = above;
    }
}

/// Steps from left to right; what does not change is one line.
fn outline(scale: Scale, values: impl Iterator<Item = u64>) -> String {
    let mut out = String::new();
    let mut drawn = None;
    let mut count = 0;
    for (column, value) in values.enumerate() {
        let y = scale.y(value);
        if drawn.is_none() {
            let _ = write!(out, "M{LEFT} {y}");
        } else if drawn != Some(y) {
            let _ = write!(out, "H{}V{y}", scale.x(column as f64));
        }
        drawn = Some(y);
        count = column + 1;
    }
    let _ = write!(out, "H{}", scale.x(count as f64));
    out
}

fn back_along(scale: Scale, values: &[u64]) -> String {
    let mut out = String::new();
    let mut drawn = None;
    for (column, &value) in values.iter().enumerate().rev() {
        let y = scale.y(value);
        if drawn != Some(y) {
            let _ = write!(out, "H{}V{y}", scale.x(column as f64 + 1.0));
        }
        drawn = Some(y);
    }
    let _ = write!(out, "H{LEFT}");
    out
}

fn steps(out: &mut String, scale: Scale, steps: &[usize]) {
    if steps.is_empty() {
        return;
    }
    let (top, bottom) = (TOP + HEIGHT + 3.0, TOP + HEIGHT + 8.0);
    let mut path = String::new();
    if steps.len() > MOST_STEPS {
        let (first, last) = (steps[0], steps[steps.len() - 1]);
        let _ = write!(path, "M{} {top}H{}V{bottom}H{0}Z", scale.x(first as f64), scale.x(last as f64 + 1.0));
    } else {
        for &step in steps {
            let _ = write!(path, "M{} {top}V{bottom}", scale.x(step as f64));
        }
    }
    let _ = writeln!(
        out,
        "<path class=\"steps\" d=\"{path}\"/><text x=\"{LEFT}\" y=\"{}\">{}, a tick each</text>",
        TOP + HEIGHT + 26.0,
        plural(steps.len() as u64, "step")
    );
}

fn ooms(out: &mut String, scale: Scale, ooms: &[(usize, bool)]) {
    let words = |fatal| if fatal { "out of memory" } else { "out of memory, caught" };
    for &(column, fatal) in ooms {
        let _ = writeln!(
            out,
            "<path class=\"{}\" d=\"M{} {TOP}V{}\"><title>{}</title></path>",
            if fatal { "oom" } else { "caught" },
            scale.x(column as f64 + 0.5),
            TOP + HEIGHT,
            words(fatal)
        );
    }
    // One is named, the worst: names would cover each other.
    if let Some(&(column, fatal)) = ooms.iter().find(|&&(_, fatal)| fatal).or(ooms.first()) {
        label(out, scale, column, TOP + HEIGHT - 6.0, words(fatal));
    }
}

/// A text over a column, kept inside the picture.
fn label(out: &mut String, scale: Scale, column: usize, y: f64, text: &str) {
    let x = scale.x(column as f64 + 0.5);
    let (anchor, x) = match x - LEFT {
        near if near < 100.0 => ("start", x + 4.0),
        far if far > COLUMNS as f64 - 100.0 => ("end", x - 4.0),
        _ => ("middle", x),
    };
    let _ = writeln!(
        out,
        "<text class=\"mark\" x=\"{}\" y=\"{y}\" text-anchor=\"{anchor}\">{text}</text>",
        tenths(x)
    );
}
