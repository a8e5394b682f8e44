//! Scratch memory of cuBLAS and cuDNN is a good part of the peak.
//!
//! ## What it sees
//!
//! cuBLAS keeps a workspace for every handle and stream: 8 MiB, from Hopper on 32 MiB, forward and backward
//! separately. cuDNN takes what its chosen algorithm wants, for a moment; with `cudnn.benchmark` it tries the
//! hungriest ones first.
//!
//! ## What to do
//!
//! `torch.backends.cudnn.benchmark = False` chooses by rule instead of by trying. A smaller cuBLAS workspace is set
//! before CUDA starts with `CUBLAS_WORKSPACE_CONFIG=:16:8` (slower, and results may differ in the last bits).
//!
//! ## How the numbers come about
//!
//! Recognised by their C++ frames where those were recorded; otherwise a block of cuBLAS's fixed sizes
//! that is never freed, or one that a convolution or recurrent layer allocates and frees within one call. The saving is
//! replayed: the peak without them.

use super::matters;
use crate::context::Context;
use crate::finding::{Finding, Fix, Grade, Severity};
use crate::kinds::Kind;
use oomph_words::{bytes, percent};

pub(super) const CODE: &str = "OM305";

pub(super) fn check(context: &Context) -> Vec<Finding> {
    let held = context.bytes_of(Kind::Workspace);
    if !matters(held, context.peak(), 0.10, 64 << 20) {
        return Vec::new();
    }
    let all = &context.history.allocations;
    let alive: Vec<u32> =
        context.alive.iter().filter(|(_, kind)| *kind == Kind::Workspace).map(|&(index, _)| index).collect();
    let dropped: Vec<u32> = (0..all.len() as u32)
        .filter(|&index| context.kinds.kind(index as usize) == Kind::Workspace)
        .collect();
    let saved = context.what_if().without(&dropped);
    let title = format!(
        "Workspaces of libraries take {} ({} of the peak)",
        bytes(held),
        percent(held, context.peak())
    );
    let from_convolutions =
        (alive.iter()).any(|&index| context.sources.of_stack(all.stack(index as usize)).convolution);
    let finding = Finding::new(CODE, Severity::Note, title).at(context.places(alive));
    let mut finding = saved.add_to(finding, "without any of them", "allocated peak, without any of them");
    if from_convolutions {
        finding = finding.fix(
            Fix::new(Grade::ChangesNumerics, "let cuDNN choose by rule")
                .code("torch.backends.cudnn.benchmark = False"),
        );
    }
    vec![
        finding.fix(
            Fix::new(Grade::ChangesNumerics, "give cuBLAS less, before CUDA starts")
                .code("CUBLAS_WORKSPACE_CONFIG=:16:8"),
        ),
    ]
}
