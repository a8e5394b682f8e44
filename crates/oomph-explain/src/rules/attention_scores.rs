//! Attention writes its scores out: a number for every pair of positions.
//!
//! ## What it sees
//!
//! Blocks of the size of attention's scores, batch × heads × n × n, alive in numbers: the product, what the softmax gives, what dropout
//! gives, in every layer. They grow with the square of the length; everything else grows with the length.
//!
//! ```python
//! weights = torch.softmax(q @ k.transpose(-2, -1) * scale, dim=-1)     # n × n, and kept for the backward pass
//! out = weights @ v
//! ```
//!
//! ## What to do
//!
//! `F.scaled_dot_product_attention(q, k, v)` computes the same without writing them out. Models of transformers do
//! it with `attn_implementation="sdpa"`. Where the scores have to be written out, `oomph.fit` runs the batch in parts, with fewer of them at a
//! time.
//!
//! ## How the numbers come about
//!
//! With shapes that the program itself said, blocks of exactly that size are counted; without them (PyTorch's snapshots), the largest blocks
//! made in functions that are called attention, and the finding says "likely". The saving is replayed: the peak without
//! them.

use super::matters;
use crate::context::Context;
use crate::finding::{Finding, Fix, Grade, Patch, Severity, Weight};
use crate::fitting;
use crate::kinds::Kind;
use crate::sources::Phase;
use hashbrown::HashMap;
use oomph_words::{bytes, percent, plural};

pub(super) const CODE: &str = "OM308";
const CAUSE: &str = "attention_scores";

/// Shorter sequences do not make large scores.
const SHORTEST: u64 = 256;

pub(super) fn check(context: &Context) -> Vec<Finding> {
    let all = &context.history.allocations;
    let whole = if context.fatal().is_some() { context.capacity() } else { context.peak() };
    let of_forward = |i: usize| {
        matches!(context.sources.phase(all.stack(i)), Phase::Forward | Phase::Recompute | Phase::User)
            && matches!(context.kinds.kind(i), Kind::Activation | Kind::Temporary)
    };
    let mut by_size: HashMap<u64, u64> = HashMap::new();
    for &(index, _) in &context.held {
        let i = index as usize;
        if of_forward(i) && all.requested(i) >= 1 << 20 {
            *by_size.entry(all.requested(i)).or_default() += all.size(i);
        }
    }
    if let Some(oom) = context.fatal() {
        *by_size.entry(oom.size).or_default() += oom.size;
    }
    // Images are square as well: what speaks of attention must be there.
    let proved = if speaks_of_attention(context) { square_sizes(context) } else { Vec::new() };
    let inferred = attention_size(context);
    // Of a block's size only as much is known as its rounding leaves.
    let near = |a: u64, b: u64| a.abs_diff(b) <= 512 + a / 512;
    let is_scores = |size: u64, of: u64| [of, of / 2, of * 2].into_iter().any(|other| near(size, other));
    let sum = |of: u64| {
        by_size.iter().filter(|&(&size, _)| is_scores(size, of)).map(|(_, &bytes)| bytes).sum::<u64>()
    };
    let known = proved.into_iter().map(|size| (sum(size), size)).max();
    let (held, size, likely) = match (known, inferred) {
        (Some((held, size)), _) if matters(held, whole, 0.20, 64 << 20) => (held, size, false),
        (_, Some(size)) => (sum(size), size, true),
        _ => return Vec::new(),
    };
    if !matters(held, whole, 0.25, 64 << 20) {
        return Vec::new();
    }
    let alike = |index: u32| of_forward(index as usize) && is_scores(all.requested(index as usize), size);
    let alive: Vec<u32> =
        context.held.iter().map(|&(index, _)| index).filter(|&index| alike(index)).collect();
    let dropped: Vec<u32> = (0..all.len() as u32).filter(|&index| alike(index)).collect();
    let saved = context.what_if().without(&dropped);
    let mut places = context.places(alive.iter().copied());
    if let Some(oom) = context.fatal().filter(|oom| places.is_empty() && is_scores(oom.size, size)) {
        places.push(crate::finding::Where {
            place: context.place(oom.stack, oom.moment + 1),
            bytes: oom.size,
            count: 1,
        });
    }
    let title = format!(
        "attention writes its scores out: {} ({}) in {} of {}",
        bytes(held),
        percent(held.min(whole), whole),
        plural(alive.len().max(1) as u64, "tensor"),
        bytes(size)
    );
    let title = super::with_place(title, places.first().map(|place| place.place.clone()));
    let patch = places.first().and_then(|place| Patch::at(CAUSE, &place.place, None));
    let severity = if likely && context.fatal().is_none() { Severity::Note } else { Severity::Warning };
    let finding = Finding::new(CODE, severity, title)
        .because("they hold a number for every pair of positions: twice the length, four times the memory")
        .at(places);
    vec![
        saved
            .add_to(finding, "without them", "allocated peak")
            .fix(
                Fix::new(
                    Grade::ChangesNumerics,
                    "attention that does not write them out (last bits may differ)",
                )
                .code("F.scaled_dot_product_attention(q, k, v)"),
            )
            .fix_if(fitting::batch_in_parts(context))
            .caused_by(CAUSE, Weight::Oversized, held)
            .likely_if(likely)
            .patched(patch),
    ]
}

/// Whether the lines that run multiply matrices or take a softmax, or are in a function called attention.
fn speaks_of_attention(context: &Context) -> bool {
    let words = ["softmax", "matmul", "bmm", "einsum", " @ "];
    context.fatal().is_some_and(|oom| context.sources.of_stack(oom.stack).attention)
        || context.census.is_some_and(|census| {
            (census.frames.iter().take(3)).any(|frame| words.iter().any(|word| frame.text.contains(word)))
        })
}

/// Bytes of tensors that the program itself showed to be squares in their last two dimensions.
fn square_sizes(context: &Context) -> Vec<u64> {
    let Some(census) = context.census else { return Vec::new() };
    let is_square = |shape: &[u64]| match *shape {
        [.., rows, columns] if shape.len() >= 3 => rows == columns && rows >= SHORTEST,
        _ => false,
    };
    let element = |dtype: &str| match dtype {
        "float64" => 8,
        "float16" | "bfloat16" => 2,
        _ => 4,
    };
    let size = |shape: &[u64], dtype: &str| {
        shape.iter().fold(element(dtype), |product: u64, &n| product.saturating_mul(n))
    };
    let mut sizes: Vec<u64> = (census.tensors.iter())
        .filter(|tensor| is_square(&tensor.shape) && tensor.dtype.contains("float"))
        .map(|tensor| size(&tensor.shape, &tensor.dtype))
        .chain(
            (census.frames.iter().flat_map(|frame| &frame.tensors))
                .filter(|tensor| is_square(&tensor.shape))
                .map(|tensor| size(&tensor.shape, &tensor.dtype)),
        )
        .filter(|&bytes| bytes >= 1 << 20)
        .collect();
    // The product that failed: n × n of the two that the line multiplies.
    if let Some(frame) = census.frames.first()
        && ["@", "matmul", "bmm", "einsum", "softmax"].iter().any(|word| frame.text.contains(word))
    {
        for tensor in frame.tensors.iter().filter(|tensor| tensor.shape.len() >= 3) {
            let [head @ .., rows, columns] = tensor.shape.as_slice() else { continue };
            let n = (*rows).max(*columns);
            if n >= SHORTEST && rows != columns {
                let mut shape = head.to_vec();
                shape.extend([n, n]);
                sizes.push(size(&shape, &tensor.dtype));
            }
        }
    }
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// The size that most bytes made in attention have, if it stands out.
fn attention_size(context: &Context) -> Option<u64> {
    let all = &context.history.allocations;
    let mut by_size: HashMap<u64, u64> = HashMap::new();
    for &(index, kind) in &context.held {
        let i = index as usize;
        if context.sources.of_stack(all.stack(i)).attention
            && matches!(kind, Kind::Activation | Kind::Temporary)
        {
            *by_size.entry(all.requested(i)).or_default() += all.size(i);
        }
    }
    if let Some(oom) = context.fatal().filter(|oom| context.sources.of_stack(oom.stack).attention) {
        *by_size.entry(oom.size).or_default() += oom.size;
    }
    let (&size, _) = by_size.iter().max_by_key(|&(size, bytes)| (*bytes, *size))?;
    // Queries, keys and values are there as well, each the length of the sequence: scores are larger.
    let smaller = by_size.keys().any(|&other| other >= 1 << 16 && other * 2 <= size);
    let larger = by_size.keys().any(|&other| other > size);
    (smaller && !larger).then_some(size)
}
