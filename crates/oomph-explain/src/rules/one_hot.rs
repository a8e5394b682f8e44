//! Classes are written out as int64, one number for every class.
//!
//! ## What it sees
//!
//! `F.one_hot` over a vocabulary, or masks and indices as int64: eight bytes for a boolean, times the number of classes.
//!
//! ```python
//! targets = F.one_hot(tokens, 50_000)          # 8 bytes × tokens × 50,000
//! ```
//!
//! ## What to do
//!
//! Losses take class numbers as they are: `F.cross_entropy(logits, tokens)`. Where a mask is wanted, bool takes an eighth. A product with
//! a one-hot matrix is an index: `weight[tokens]`, or `F.embedding`.
//!
//! ## How the numbers come about
//!
//! Dtypes, and the line itself, are what the program said at the out-of-memory; PyTorch's snapshots do not have them. The saving is
//! what those tensors take.

use super::matters;
use crate::context::Context;
use crate::finding::{Basis, Finding, Fix, Grade, Place, Severity, Weight, Where};
use oomph_words::{bytes, printable};

pub(super) const CODE: &str = "OM310";
const CAUSE: &str = "one_hot";

pub(super) fn check(context: &Context) -> Vec<Finding> {
    let (Some(oom), Some(census)) = (context.fatal(), context.census) else { return Vec::new() };
    let wide: u64 =
        census.tensors.iter().filter(|tensor| tensor.dtype == "int64").map(|tensor| tensor.bytes).sum();
    let line = census.frames.iter().take(2).find(|frame| frame.text.contains("one_hot"));
    let asked = if line.is_some() { oom.size } else { 0 };
    let held = wide + asked;
    if !matters(held, context.capacity(), 0.15, 64 << 20) {
        return Vec::new();
    }
    let holder = (census.holders.iter())
        .filter(|holder| {
            holder.dtype == "int64" && holder.line > 0 && !oomph_words::is_library_file(&holder.file)
        })
        .max_by_key(|holder| holder.bytes)
        .filter(|holder| holder.bytes * 2 >= wide);
    let asked_at = context.place(oom.stack, oom.moment + 1);
    let place = match (line, holder) {
        (Some(_), _) | (None, None) => asked_at,
        (None, Some(holder)) => Place::of_holder(holder),
    };
    let (what, text) = match (line, holder) {
        (Some(line), _) => {
            ("one_hot writes a number of 8 bytes for every class".to_owned(), line.text.as_str())
        }
        (None, Some(holder)) => {
            (format!("`{}` is int64, 8 bytes an element", printable(&holder.name)), holder.text.as_str())
        }
        (None, None) => ("tensors of int64 take 8 bytes an element".to_owned(), ""),
    };
    let title = format!("{what}: {}, at {}", bytes(held), place.short());
    let mut finding = Finding::new(CODE, Severity::Warning, title);
    if !text.is_empty() {
        finding = finding.because(format!("the line: {}", printable(text)));
    }
    vec![
        finding
            .at(vec![Where { place, bytes: held, count: 1 }])
            .saves(held.min(context.history.peak.reserved.bytes), Basis::Measured, "those tensors")
            .fix(
                Fix::new(Grade::Safe, "pass class numbers as they are")
                    .code("F.cross_entropy(logits, tokens)"),
            )
            .fix(
                Fix::new(Grade::Safe, "masks as bool, indices as int32 where an operation takes them")
                    .code("mask = tokens == pad  # bool"),
            ),
    ]
    .into_iter()
    // Where the line that failed says it, nothing else need be looked for.
    .map(|finding| {
        finding.caused_by(
            CAUSE,
            Weight::Mistake,
            if line.is_some() { held.max(context.capacity()) } else { held },
        )
    })
    .collect()
}
