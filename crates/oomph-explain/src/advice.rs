//! Advice that knows the card and the phase: no bfloat16 where the card has none, no accumulation where there are no gradients.

use crate::context::Context;
use crate::finding::{Fix, Grade};

/// Mixed precision, as this card can do it.
pub(crate) fn mixed_precision(context: &Context) -> Fix {
    let fix = |text: &str, dtype: &str| {
        Fix::new(Grade::ChangesNumerics, text).code(format!("with torch.autocast(\"cuda\", torch.{dtype}):"))
    };
    match context.census.and_then(|census| census.card.capability) {
        Some((major, _)) if major >= 8 => fix("mixed precision", "bfloat16"),
        Some(_) => fix("mixed precision, with torch.amp.GradScaler (this card has no bfloat16)", "float16"),
        None => fix("mixed precision (before Ampere: float16, with torch.amp.GradScaler)", "bfloat16"),
    }
}

/// A smaller batch, with what keeps training the same.
pub(crate) fn smaller_batch(context: &Context) -> Fix {
    if context.is_training() {
        Fix::new(Grade::Safe, "a smaller batch with gradient accumulation (batch norm sees smaller batches)")
    } else {
        Fix::new(Grade::Safe, "a smaller batch: results are the same")
    }
}

/// The 16-bit dtype that this card computes with.
pub(crate) fn sixteen_bits(context: &Context) -> &'static str {
    match context.census.and_then(|census| census.card.capability) {
        Some((major, _)) if major < 8 => "torch.float16",
        _ => "torch.bfloat16",
    }
}
