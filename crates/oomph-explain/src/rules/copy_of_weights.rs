//! Weights are there twice.
//!
//! ## What it sees
//!
//! A set of blocks with the sizes of the model's parameters, one for one, beside the model itself: a checkpoint that was
//! loaded to the card and is still held, a deep copy, a `state_dict` that was cloned, a second model of the same shape.
//!
//! ```python
//! checkpoint = torch.load("model.pt")             # on the card it was saved from
//! model.load_state_dict(checkpoint["model"])      # and there it stays as long as `checkpoint` lives
//! ```
//!
//! ## What to do
//!
//! Load to host memory: `torch.load(path, map_location="cpu")`, and `del` what was loaded. Keep copies of weights (the best
//! epoch, an average) in host memory: `{name: value.cpu() for …}`. Build a model once.
//!
//! ## How the numbers come about
//!
//! Measured: blocks that match the parameters' sizes, or what the program itself said at the out-of-memory. The saving is replayed: the
//! peak without the copy.

use super::matters;
use crate::context::Context;
use crate::finding::{Finding, Fix, Grade, Patch, Place, Severity, Weight, Where};
use crate::kinds::Kind;
use hashbrown::HashMap;
use oomph_trace::{Frame, FrameId, StackId};
use oomph_words::{bytes, plural, printable};

pub(super) const CODE: &str = "OM207";
const CAUSE: &str = "copy_of_weights";

/// Most makers that are compared.
const MOST_GROUPS: usize = 64;

/// Blocks that one line made, by size.
#[derive(Default)]
struct Group {
    blocks: Vec<u32>,
    sizes: HashMap<u64, u64>,
    bytes: u64,
    loaded: bool,
    copied: bool,
    first: u32,
}

pub(super) fn check(context: &Context) -> Vec<Finding> {
    let whole = if context.fatal().is_some() { context.capacity() } else { context.peak() };
    let mut groups: HashMap<Vec<FrameId>, Group> = HashMap::new();
    let all = &context.history.allocations;
    for &(index, kind) in &context.held {
        let i = index as usize;
        let of_a_step = matches!(
            kind,
            Kind::Gradient | Kind::OptimizerState | Kind::Activation | Kind::Workspace | Kind::Temporary
        );
        if of_a_step || all.requested(i) < 1 << 10 {
            continue;
        }
        let facts = context.sources.of_stack(all.stack(i));
        let group = groups
            .entry(made_by(context, all.stack(i)))
            .or_insert_with(|| Group { first: all.born(i), ..Group::default() });
        group.blocks.push(index);
        *group.sizes.entry(all.requested(i)).or_default() += 1;
        group.bytes += all.size(i);
        group.loaded |= facts.loaded;
        group.copied |= facts.copied;
        group.first = group.first.min(all.born(i));
    }
    let mut groups: Vec<(Option<FrameId>, Group)> = (groups.into_iter())
        .filter(|(_, group)| group.bytes >= 16 << 20 && group.sizes.len() >= 2)
        .map(|(frames, group)| (frames.last().copied(), group))
        .collect();
    // All are compared with all: the largest are enough.
    groups.sort_by_key(|(frame, group)| (std::cmp::Reverse(group.bytes), *frame));
    groups.truncate(MOST_GROUPS);
    groups.sort_by_key(|(frame, group)| (group.first, *frame));
    let mut found: Option<(usize, usize, u64)> = None;
    for later in 0..groups.len() {
        for earlier in 0..later {
            let (original, copy) = (&groups[earlier].1, &groups[later].1);
            let matched: u64 = (copy.sizes.iter())
                .map(|(size, &count)| size * count.min(original.sizes.get(size).copied().unwrap_or(0)))
                .sum();
            let alike = matched * 10 >= copy.bytes * 8 && matched * 10 >= original.bytes * 6;
            if alike && found.is_none_or(|(_, _, most)| matched > most) {
                found = Some((earlier, later, matched));
            }
        }
    }
    if let Some((earlier, later, matched)) = found
        && matters(matched, whole, 0.12, 64 << 20)
    {
        let (original, copy) = (&groups[earlier].1, &groups[later].1);
        // The checkpoint may have come first, and the model after it.
        let is_first = original.loaded && !copy.loaded;
        let (extra, frame) = if is_first { (original, groups[earlier].0) } else { (copy, groups[later].0) };
        return vec![finding_of(context, extra, frame, matched)];
    }
    by_census(context, whole).into_iter().collect()
}

/// The program's own lines that lead to a block, down to where an object begins to make itself: two models differ by the code that makes them.
fn made_by(context: &Context, stack: StackId) -> Vec<FrameId> {
    let recording = context.recording;
    let makes_itself =
        |frame: &Frame| matches!(recording.strings.get(frame.name), "__init__" | "__call__" | "_call_impl");
    (recording.stacks.get(stack).iter().rev())
        .take_while(|&&id| !makes_itself(&recording.stacks.frame(id)))
        .copied()
        .filter(|&id| context.sources.is_own(id))
        .collect()
}

fn finding_of(context: &Context, copy: &Group, frame: Option<FrameId>, matched: u64) -> Finding {
    let place = match frame {
        Some(frame) => context.place_of_frame(frame, true),
        None => Place::Before,
    };
    let held_by = context.census.and_then(|census| {
        let all = &context.history.allocations;
        let first = all.address(*copy.blocks.first()? as usize);
        let holder = census.tensors.iter().find(|tensor| tensor.address == first)?.holder?;
        census.holders.get(holder as usize)
    });
    // A model of its own has a line that makes it, and a name.
    let made =
        held_by.filter(|holder| holder.what == "parameters" && holder.line > 0 && holder.name != "self");
    let place = made.map_or(place, Place::of_holder);
    let what = if copy.loaded {
        "a checkpoint that was loaded to the card is held beside the model"
    } else if copy.copied {
        "a copy of the model is held beside it"
    } else {
        "the weights are on the card a second time"
    };
    let name = held_by
        .filter(|holder| holder.name != "self")
        .and_then(crate::kept::named)
        .map(|name| format!(" by {name}"))
        .unwrap_or_default();
    let title = format!("{what}{name}: {}, made at {}", bytes(matched), place.short());
    let saved = context.what_if().without(&copy.blocks);
    let count = copy.blocks.len() as u64;
    // A program that got through may want its copy.
    let severity = if context.fatal().is_some() { Severity::Warning } else { Severity::Note };
    let finding = Finding::new(CODE, severity, title)
        .because(format!("its {} have the sizes of the parameters, one for one", plural(count, "block")))
        .at(vec![Where { place: place.clone(), bytes: matched, count }]);
    let finding = fixes(saved.add_to(finding, "without the copy", "allocated peak"), copy.loaded);
    let much = matched as f64 >= 0.20 * context.capacity() as f64;
    let weight = if copy.loaded || !copy.copied || much { Weight::Mistake } else { Weight::Oversized };
    let name = held_by.map(|holder| holder.name.clone());
    let patch = if copy.loaded { Patch::at(CAUSE, &place, name) } else { None };
    finding.caused_by(CAUSE, weight, matched).patched(patch)
}

fn fixes(finding: Finding, loaded: bool) -> Finding {
    if loaded {
        finding
            .fix(Fix::new(Grade::Safe, "load to host memory").code("torch.load(path, map_location=\"cpu\")"))
    } else {
        finding
            .fix(
                Fix::new(Grade::Safe, "keep the copy in host memory")
                    .code("{name: value.cpu() for name, value in model.state_dict().items()}"),
            )
            .fix(Fix::new(Grade::Safe, "build the model once, and del the one that is no longer used"))
    }
}

/// Two modules of the same shapes, as the program named them.
fn by_census(context: &Context, whole: u64) -> Option<Finding> {
    let census = context.census?;
    let copy = (census.modules.iter())
        .filter(|module| module.copy_of.is_some() && matters(module.bytes, whole, 0.12, 64 << 20))
        .max_by_key(|module| module.bytes)?;
    let original = copy.copy_of.as_deref().unwrap_or_default();
    let holder = census.holders.iter().find(|holder| holder.name == copy.name && holder.line > 0);
    let title = format!(
        "the weights are on the card twice: `{}` has the shapes of `{}`, {}",
        printable(&copy.name),
        printable(original),
        bytes(copy.bytes)
    );
    let title = super::with_place(title, holder.map(Place::of_holder));
    let places = holder.map(|holder| Where { place: Place::of_holder(holder), bytes: copy.bytes, count: 1 });
    let severity = if context.fatal().is_some() { Severity::Warning } else { Severity::Note };
    // What comes with it: gradients, and Adam's two numbers.
    let held = copy.bytes + copy.gradients + if copy.optimized { 2 * copy.bytes } else { 0 };
    let much = held as f64 >= 0.20 * whole as f64;
    let finding = Finding::new(CODE, severity, title).at(places.into_iter().collect()).saves(
        copy.bytes,
        crate::finding::Basis::Measured,
        "allocated peak",
    );
    let weight = if much { Weight::Mistake } else { Weight::Oversized };
    Some(fixes(finding, false).caused_by(CAUSE, weight, held))
}
