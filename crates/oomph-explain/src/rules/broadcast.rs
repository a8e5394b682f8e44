//! Two shapes broadcast to a square.
//!
//! ## What it sees
//!
//! A line that joins tensors of shapes like (N, 1) and (N,): PyTorch silently broadcasts both to (N, N). The result is
//! N times as large as either, and it is wrong as well: every prediction is held against every target.
//!
//! ```python
//! loss = ((prediction - target) ** 2).mean()     # (N, 1) - (N,) is (N, N)
//! ```
//!
//! ## What to do
//!
//! Give both the same shape: `prediction.squeeze(-1)`, or `target.unsqueeze(-1)`. `F.mse_loss` warns of it.
//!
//! ## How the numbers come about
//!
//! Shapes are what the program itself said of the line at the out-of-memory; without that (PyTorch's snapshots), nothing
//! is said. The saving is the square, less what the smaller result takes.

use super::matters;
use crate::context::Context;
use crate::finding::{Basis, Finding, Fix, Grade, Place, Severity, Weight, Where};
use oomph_trace::census::Named;
use oomph_words::{bytes, printable};

pub(super) const CODE: &str = "OM307";
const CAUSE: &str = "broadcast";

/// So many times larger than what goes in.
const LARGER: u64 = 16;

pub(super) fn check(context: &Context) -> Vec<Finding> {
    let (Some(oom), Some(census)) = (context.fatal(), context.census) else { return Vec::new() };
    let Some(frame) = census.frames.first() else { return Vec::new() };
    let mut found: Option<(&Named, &Named, u64)> = None;
    for (position, a) in frame.tensors.iter().enumerate() {
        for b in &frame.tensors[position + 1..] {
            let Some(elements) = broadcast(&a.shape, &b.shape) else { continue };
            let most = count(&a.shape).max(count(&b.shape));
            let squared = elements >= most.saturating_mul(LARGER) && !is_meant(&a.shape, &b.shape);
            if squared && found.is_none_or(|(_, _, known)| elements > known) {
                found = Some((a, b, elements));
            }
        }
    }
    let Some((a, b, elements)) = found else { return square(context).into_iter().collect() };
    // The result itself, or something made of it: the square of the difference.
    let share = |bytes: u64| elements.abs_diff(bytes) * 10 <= elements;
    let asked = oom.size;
    if ![asked, asked / 2, asked / 4, asked / 8].into_iter().any(share)
        || !matters(asked, context.capacity(), 0.05, 16 << 20)
    {
        return square(context).into_iter().collect();
    }
    let place = context.place(oom.stack, oom.moment + 1);
    let title = format!(
        "`{}` {} and `{}` {} broadcast to {} elements: one tensor of {}, at {}",
        printable(&a.name),
        shape(&a.shape),
        printable(&b.name),
        shape(&b.shape),
        oomph_words::grouped(elements),
        bytes(asked),
        place.short()
    );
    vec![
        Finding::new(CODE, Severity::Warning, title)
            .because(format!("the line: {}", printable(&frame.text)))
            .because("each is stretched to the shape of the other; what comes out is hardly what was meant")
            .at(vec![Where { place, bytes: asked, count: 1 }])
            .saves(asked.min(context.history.peak.reserved.bytes), Basis::Measured, "that tensor")
            .fix(
                Fix::new(Grade::ChangesTraining, "give both the same shape (the result was wrong before)")
                    .code(format!(
                        "{}.squeeze(-1)",
                        if a.shape.len() > b.shape.len() { &a.name } else { &b.name }
                    )),
            )
            .caused_by(CAUSE, Weight::Mistake, asked.max(context.capacity())),
    ]
}

/// A square that is already there: its line joins two tensors that have one dimension of that length each.
fn square(context: &Context) -> Option<Finding> {
    let (oom, census) = (context.fatal()?, context.census?);
    let lists = |shape: &[u64], n: u64| *shape == [n] || *shape == [n, 1] || *shape == [1, n];
    for holder in
        census.holders.iter().filter(|holder| holder.line > 0 && !oomph_words::is_library_file(&holder.file))
    {
        let [rows, columns] = *holder.shape.as_slice() else { continue };
        if rows != columns || !matters(holder.bytes, context.capacity(), 0.05, 16 << 20) {
            continue;
        }
        let words: Vec<&str> = holder.text.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        let joined: Vec<&str> = (census.holders.iter())
            .filter(|other| lists(&other.shape, rows) && words.contains(&other.name.as_str()))
            .map(|other| other.name.as_str())
            .collect();
        let [a, b, ..] = joined[..] else { continue };
        let place = Place::of_holder(holder);
        let title = format!(
            "`{}` and `{}`, of {rows} elements each, broadcast to {rows} × {rows}: `{}` takes {}, at {}",
            printable(a),
            printable(b),
            printable(&holder.name),
            bytes(holder.bytes),
            place.short()
        );
        let held = holder.bytes + oom.size;
        return Some(
            Finding::new(CODE, Severity::Warning, title)
                .because(format!("the line: {}", printable(&holder.text)))
                .because(
                    "each is stretched to the shape of the other; what comes out is hardly what was meant",
                )
                .at(vec![Where { place, bytes: holder.bytes, count: 1 }])
                .saves(holder.bytes.min(context.history.peak.reserved.bytes), Basis::Measured, "that tensor")
                .fix(
                    Fix::new(
                        Grade::ChangesTraining,
                        "give both the same shape (the result was wrong before)",
                    )
                    .code(format!("{a} - {b}  # both of shape ({rows},)")),
                )
                .caused_by(CAUSE, Weight::Mistake, held),
        );
    }
    None
}

fn count(shape: &[u64]) -> u64 {
    shape.iter().fold(1, |product, &size| product.saturating_mul(size))
}

/// How many elements two shapes broadcast to.
fn broadcast(a: &[u64], b: &[u64]) -> Option<u64> {
    let size = |shape: &[u64], from_the_end: usize| {
        shape.len().checked_sub(from_the_end + 1).map_or(1, |at| shape[at])
    };
    let mut elements = 1u64;
    for at in 0..a.len().max(b.len()) {
        let (left, right) = (size(a, at), size(b, at));
        if left != right && left != 1 && right != 1 {
            return None;
        }
        elements = elements.saturating_mul(left.max(right));
    }
    Some(elements)
}

/// Whoever writes x[:, None] and x[None, :] has the same number of dimensions on both sides, and means it.
fn is_meant(a: &[u64], b: &[u64]) -> bool {
    a.len() == b.len() && a.len() > 2
}

fn shape(shape: &[u64]) -> String {
    let sizes: Vec<String> = shape.iter().map(u64::to_string).collect();
    match sizes.len() {
        1 => format!("({},)", sizes[0]),
        _ => format!("({})", sizes.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_broadcast_as_pytorch_does_it() {
        assert_eq!(broadcast(&[5, 1], &[5]), Some(25));
        assert_eq!(broadcast(&[5], &[5]), Some(5));
        assert_eq!(broadcast(&[3, 4], &[4]), Some(12));
        assert_eq!(broadcast(&[3, 4], &[3]), None);
        assert_eq!(broadcast(&[], &[7]), Some(7));
    }
}
