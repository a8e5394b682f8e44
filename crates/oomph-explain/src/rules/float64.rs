//! Numbers of 64 bits where 32 would do.
//!
//! ## What it sees
//!
//! Tensors of float64 on the card. NumPy makes float64 by default, and one float64 operand makes the result of
//! every operation float64: twice the memory, and on most cards a small part of the speed.
//!
//! ```python
//! x = torch.from_numpy(features).cuda()        # float64, if features came from NumPy
//! loss = (weights * out).mean()                # float64 weights make everything that follows float64
//! ```
//!
//! ## What to do
//!
//! `.float()` where data enters: `torch.from_numpy(features).float()`. Leave `torch.set_default_dtype` and `model.double()` out.
//!
//! ## How the numbers come about
//!
//! Dtypes are what the program itself said at the out-of-memory; PyTorch's snapshots do not have them. The saving is half of what
//! is float64, as far as it is seen; what a graph keeps is not seen, and comes on top.

use super::matters;
use crate::context::Context;
use crate::finding::{Basis, Finding, Fix, Grade, Patch, Place, Severity, Weight, Where};
use crate::kinds::Kind;
use oomph_words::is_library_file;
use oomph_words::{bytes, printable};

pub(super) const CODE: &str = "OM309";
const CAUSE: &str = "float64";

pub(super) fn check(context: &Context) -> Vec<Finding> {
    let (Some(oom), Some(census)) = (context.fatal(), context.census) else { return Vec::new() };
    let is_double = |dtype: &str| matches!(dtype, "float64" | "complex128");
    let seen: u64 =
        census.tensors.iter().filter(|tensor| is_double(&tensor.dtype)).map(|tensor| tensor.bytes).sum();
    let module =
        census.modules.iter().filter(|module| is_double(&module.dtype)).max_by_key(|module| module.bytes);
    let on_line = (census.frames.iter().flat_map(|frame| &frame.tensors))
        .find(|tensor| is_double(&tensor.dtype) && tensor.device.starts_with("cuda"));
    // A model of doubles makes activations of doubles, which are visible only in the graph.
    let hidden = if module.is_some() || on_line.is_some() {
        context.held_of(Kind::Activation) + context.held_of(Kind::Temporary) + oom.size
    } else {
        0
    };
    let held = seen.max(hidden);
    if seen == 0 && on_line.is_none() || !matters(held, context.capacity(), 0.25, 64 << 20) {
        return Vec::new();
    }
    let holder = (census.holders.iter())
        .filter(|holder| is_double(&holder.dtype) && holder.line > 0 && !is_library_file(&holder.file))
        .max_by_key(|holder| holder.bytes);
    let name = match (module, holder, on_line) {
        (Some(module), ..) => format!("`{}` computes", printable(&module.name)),
        (_, Some(holder), _) => format!("`{}` is", printable(&holder.name)),
        (_, _, Some(tensor)) => format!("`{}` is", printable(&tensor.name)),
        _ => "tensors are".to_owned(),
    };
    let place = holder.map(Place::of_holder);
    let title = super::with_place(
        format!(
            "{name} float64, twice the size of float32: {} of the memory",
            bytes(held.min(context.held_bytes() + oom.size))
        ),
        place.clone(),
    );
    let asked_at = context.place(oom.stack, oom.moment + 1);
    let places: Vec<Where> =
        place.into_iter().chain([asked_at]).map(|place| Where { place, bytes: held, count: 1 }).collect();
    let patch = Patch::at(CAUSE, &places[0].place, holder.map(|holder| holder.name.clone()));
    vec![
        Finding::new(CODE, Severity::Warning, title)
            .because("NumPy's numbers are float64, and one float64 operand makes the result float64")
            .at(places)
            .saves(
                (held / 2).min(context.history.peak.reserved.bytes),
                Basis::Estimated,
                "allocated peak, in float32",
            )
            .fix(
                Fix::new(Grade::ChangesNumerics, "make it float32 where it enters")
                    .code("torch.from_numpy(features).float()"),
            )
            .caused_by(CAUSE, Weight::Mistake, held)
            .patched(patch),
    ]
}
