//! What `oomph gpus` prints.

use super::document;
use serde::Serialize;

/// Cards of the catalogue.
pub(crate) fn gpus(cards: &[&oomph_gpus::Gpu]) -> String {
    document(Gpus { gpus: cards.iter().map(|gpu| Gpu::of(gpu)).collect() })
}

#[derive(Serialize)]
struct Gpus<'a> {
    /// The cards.
    gpus: Vec<Gpu<'a>>,
}

#[derive(Serialize)]
struct Gpu<'a> {
    /// What people type: `t4`, `a100-80gb`.
    name: &'a str,
    /// What the driver calls it.
    title: &'a str,
    /// Bytes, as CUDA says them.
    memory: u64,
    /// Bytes that a CUDA context takes.
    context: u64,
    /// `memory` less `context`: what is left for a program's tensors.
    usable: u64,
    /// Such as `8.9`.
    compute_capability: &'a str,
    /// Streaming multiprocessors.
    sms: u32,
    /// Where the numbers are from.
    source: &'a str,
}

impl<'a> Gpu<'a> {
    fn of(gpu: &'a oomph_gpus::Gpu) -> Self {
        Self {
            name: &gpu.name,
            title: &gpu.title,
            memory: gpu.memory,
            context: gpu.context,
            usable: gpu.usable(),
            compute_capability: &gpu.compute_capability,
            sms: gpu.sms,
            source: &gpu.source,
        }
    }
}
