//! A data set lies on the card.
//!
//! ## What it sees
//!
//! Large blocks that the program's own lines made before the first forward, which are no weights, and stay: all images, all
//! features, all batches, moved at once.
//!
//! ```python
//! images = images.cuda()                             # all of them
//! batches = [(x.cuda(), y.cuda()) for x, y in loader]
//! ```
//!
//! ## What to do
//!
//! Leave the data in host memory, and move a batch at a time: `x = images[i:j].cuda(non_blocking=True)`, from pinned memory. Where it must
//! be on the card, store it small (uint8 images, float16 features) and convert a batch at a time.
//!
//! ## How the numbers come about
//!
//! Measured: what was made before the first forward and is alive when memory ran out, by line. The saving is replayed: the peak
//! without it.

use super::matters;
use crate::context::Context;
use crate::finding::{Finding, Fix, Grade, Severity, Weight, Where};
use crate::kinds::Kind;
use crate::sources::Phase;
use hashbrown::HashMap;
use oomph_trace::FrameId;
use oomph_words::{bytes, percent};

pub(super) const CODE: &str = "OM311";
const CAUSE: &str = "dataset_on_card";

pub(super) fn check(context: &Context) -> Vec<Finding> {
    let Some(oom) = context.fatal() else { return Vec::new() };
    // A program that calls no module, and cannot be asked, may do anything with what it holds.
    if context.forwards.all().is_empty() && context.census.is_none() {
        return Vec::new();
    }
    let all = &context.history.allocations;
    let first_forward = context.forwards.all().first().map_or(context.moment, |forward| forward.start);
    let is_data = |i: usize, kind: Kind| {
        let facts = context.sources.of_stack(all.stack(i));
        matches!(facts.phase, Phase::User | Phase::Data)
            && !(facts.model_init || facts.copied || facts.loaded || facts.parallel || kind.is_of_the_model())
            && all.born(i) <= first_forward
            && all.born(i) > 0
    };
    let mut groups: HashMap<Option<FrameId>, (u64, Vec<u32>)> = HashMap::new();
    for &(index, kind) in &context.held {
        if is_data(index as usize, kind) {
            let place = context.sources.of_stack(all.stack(index as usize)).place;
            let group = groups.entry(place).or_default();
            group.0 += all.size(index as usize);
            group.1.push(index);
        }
    }
    // Memory may end while the data is being moved.
    let facts = context.sources.of_stack(oom.stack);
    if context.forwards.all().is_empty()
        && matches!(facts.phase, Phase::User | Phase::Data)
        && !(facts.model_init || facts.copied || facts.loaded)
    {
        groups.entry(facts.place).or_default().0 += oom.size;
    }
    let Some((frame, (held, blocks))) = groups.into_iter().max_by_key(|(frame, (held, _))| (*held, *frame))
    else {
        return Vec::new();
    };
    // One tensor at one line, made where memory ends, is that tensor's story, unless the line moves what was elsewhere.
    let there: u64 = blocks.iter().map(|&index| all.size(index as usize)).sum();
    let moves = context
        .census
        .and_then(|census| census.frames.first())
        .is_some_and(|frame| [".cuda(", ".to(", "device="].iter().any(|call| frame.text.contains(call)));
    // A line that computes where memory ends has made what it needs for that.
    let computes = context.census.is_some() && frame == facts.place && !moves;
    let moved = moves && matters(there, context.capacity(), 0.15, 64 << 20);
    if computes || (there * 2 < held && !moved) || !matters(held, context.capacity(), 0.25, 256 << 20) {
        return Vec::new();
    }
    let holder = context.census.and_then(|census| {
        let address = all.address(*blocks.first()? as usize);
        let tensor = census.tensors.iter().find(|tensor| tensor.address == address)?;
        census.holders.get(tensor.holder? as usize)
    });
    if holder.is_some_and(|holder| {
        let name = holder.name.to_ascii_lowercase();
        (!holder.what.is_empty() && holder.what != "tensor")
            || name.contains("cache")
            || name.contains("buffer")
    }) {
        return Vec::new();
    }
    let place = frame.map(|frame| context.place_of_frame(frame, true));
    let name = holder.and_then(crate::kept::named).unwrap_or_else(|| "the data".to_owned());
    let title = super::with_place(
        format!(
            "{name} lies on the card as a whole: {} ({}), moved there before the first batch",
            bytes(held),
            percent(held.min(context.capacity()), context.capacity())
        ),
        place.clone(),
    );
    let saved = context.what_if().without(&blocks);
    let places =
        place.into_iter().map(|place| Where { place, bytes: held, count: blocks.len() as u64 }).collect();
    vec![
        saved
            .add_to(Finding::new(CODE, Severity::Warning, title).at(places), "without it", "allocated peak")
            .fix(
                Fix::new(Grade::Safe, "leave it in host memory, and move a batch at a time")
                    .code("x = images[i:j].cuda(non_blocking=True)"),
            )
            .caused_by(
                CAUSE,
                if held * 2 >= context.capacity() { Weight::Mistake } else { Weight::Oversized },
                held,
            )
            .likely_if(holder.is_none()),
    ]
}
