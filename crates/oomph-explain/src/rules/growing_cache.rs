//! A tensor grows with every round, and is copied anew each time.
//!
//! ## What it sees
//!
//! One line that allocates a larger block each time it is reached, by the same amount:
//!
//! ```python
//! bank = torch.cat([bank, features])       # old and new are both there while it copies
//! keys = torch.cat([past_keys, keys], 1)   # a cache of keys and values, token by token
//! ```
//!
//! While it copies, the old and the new one are alive together, so memory ends at half of what the tensor could have
//! been; and blocks of ever new sizes do not fit where the old ones were.
//!
//! ## What to do
//!
//! Make the tensor once, as large as it will be, and write into it; or collect the parts in a list in host memory and concatenate
//! once. A generation's cache of keys and values grows with batch × beams × tokens: fewer of them, a cache that is allocated
//! once, is quantized, or lies in host memory.
//!
//! ## How the numbers come about
//!
//! The growth is measured: sizes that one line asked for, one after another. The saving is what the copy takes, the old one
//! beside the new.

use super::matters;
use crate::context::Context;
use crate::finding::{Basis, Finding, Fix, Grade, Severity, Weight, Where};
use crate::kinds::Kind;
use crate::sources::Phase;
use hashbrown::HashMap;
use oomph_trace::{Action, StackId};
use oomph_words::{bytes, grouped};

pub(super) const CODE: &str = "OM206";

/// So many times larger than before make a pattern.
const LEAST_INCREASES: usize = 4;

/// Sizes that one line asked for.
struct Series {
    stack: StackId,
    first: u64,
    last: u64,
    increases: Vec<u64>,
    broken: bool,
}

pub(super) fn check(context: &Context) -> Vec<Finding> {
    let grown = grows(context);
    if grown.is_empty() { made_at_once(context).into_iter().collect() } else { grown }
}

/// Whether a name or a line is about a cache of keys and values.
fn speaks_of_a_cache(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    let is_word = |word: &str| matches!(word, "kv" | "past" | "pasts");
    text.contains("past_key")
        || text.contains("cache")
        || text.split(|c: char| !c.is_alphanumeric()).any(is_word)
}

/// A cache that is made as large as it may become, all at once.
fn made_at_once(context: &Context) -> Option<Finding> {
    let (oom, census) = (context.fatal()?, context.census?);
    // What is trained has no such cache.
    if !context.without_gradients() && !census.optimizers.is_empty() {
        return None;
    }
    let all = &context.history.allocations;
    let about = census
        .frames
        .iter()
        .take(3)
        .any(|frame| speaks_of_a_cache(&frame.text) || speaks_of_a_cache(&frame.function));
    let named = |index: u32| {
        let address = all.address(index as usize);
        let tensor = census.tensors.iter().find(|tensor| tensor.address == address)?;
        census.holders.get(tensor.holder? as usize)
    };
    let own = context.sources.of_stack(oom.stack).own_site.or(context.sources.of_stack(oom.stack).place);
    let is_of_it = |index: u32| {
        let facts = context.sources.of_stack(all.stack(index as usize));
        let here = about && facts.own_site.or(facts.place) == own;
        matches!(facts.phase, Phase::User | Phase::Forward)
            && (here
                || named(index)
                    .is_some_and(|holder| speaks_of_a_cache(&holder.name) || speaks_of_a_cache(&holder.path)))
    };
    let blocks: Vec<u32> = (context.held.iter())
        .filter(|(_, kind)| !kind.is_weights() && !matches!(kind, Kind::Gradient | Kind::OptimizerState))
        .map(|&(index, _)| index)
        .filter(|&index| all.size(index as usize) >= 1 << 20 && is_of_it(index))
        .collect();
    let asked = if about { oom.size } else { 0 };
    let held = blocks.iter().map(|&index| all.size(index as usize)).sum::<u64>() + asked;
    if blocks.is_empty() || !matters(held, context.capacity(), 0.25, 64 << 20) {
        return None;
    }
    let places = context.places(blocks.iter().copied());
    let title = super::with_place(
        format!(
            "the cache of keys and values takes {} in {} tensors",
            bytes(held),
            grouped(blocks.len() as u64)
        ),
        places.first().map(|place| place.place.clone()),
    );
    let finding = Finding::new(CODE, Severity::Warning, title).at(places).saves(
        (held / 2).min(context.history.peak.reserved.bytes),
        Basis::Estimated,
        "with half the sequences",
    );
    let weight = if held * 3 >= context.capacity() { Weight::Mistake } else { Weight::Oversized };
    Some(cache_fixes(finding).caused_by("kv_cache", weight, held).likely_if(!about))
}

fn cache_fixes(finding: Finding) -> Finding {
    finding
        .fix(Fix::new(
            Grade::Safe,
            "fewer sequences or beams at a time, fewer positions: it grows with all of them",
        ))
        .fix(
            Fix::new(Grade::ChangesNumerics, "a cache of half the precision, quantized, or in host memory")
                .code("cache_implementation=\"offloaded\""),
        )
}

fn grows(context: &Context) -> Vec<Finding> {
    let events = &context.device.events;
    let fatal = context.fatal();
    let until = fatal.map_or(events.len(), |oom| oom.moment as usize + 1).min(events.len());
    let mut series: HashMap<u32, Series> = HashMap::new();
    for row in 0..until {
        let (stack, size) = (events.stack[row], events.size[row]);
        let asks = matches!(events.action[row], Action::Alloc | Action::OutOfMemory);
        let facts = context.sources.of_stack(stack);
        if !asks || !matches!(facts.phase, Phase::User | Phase::Forward) || size < 1 << 16 {
            continue;
        }
        let one = series.entry(facts.python).or_insert(Series {
            stack,
            first: size,
            last: size,
            increases: Vec::new(),
            broken: false,
        });
        if size > one.last {
            one.increases.push(size - one.last);
        }
        one.broken |= size < one.last;
        one.last = size;
    }
    let all = &context.history.allocations;
    let is_growing = |one: &Series| {
        let mut steps = one.increases.clone();
        steps.sort_unstable();
        let middle = steps.get(steps.len() / 2).copied().unwrap_or(0);
        let alike = steps.iter().filter(|&&step| step.abs_diff(middle) * 4 <= middle).count();
        !one.broken
            && steps.len() >= LEAST_INCREASES
            && alike * 4 >= steps.len() * 3
            && one.last >= one.first * 2
    };
    let held_at = |python: u32| {
        let alive = context.held.iter().map(|&(index, _)| index as usize);
        let mine = alive.filter(|&i| context.sources.of_stack(all.stack(i)).python == python);
        let asked = fatal.filter(|oom| context.sources.of_stack(oom.stack).python == python);
        mine.map(|i| all.size(i)).sum::<u64>() + asked.map_or(0, |oom| oom.size)
    };
    let best = (series.iter())
        .filter(|(_, one)| is_growing(one))
        .map(|(&python, one)| (held_at(python), python, one))
        .max_by_key(|&(held, python, _)| (held, std::cmp::Reverse(python)));
    let Some((held, _, one)) = best else { return Vec::new() };
    let facts = context.sources.of_stack(one.stack);
    let whole = if fatal.is_some() { context.capacity() } else { context.peak() };
    if !matters(held, whole, 0.15, 32 << 20) {
        return Vec::new();
    }
    let place = context.place(one.stack, 1);
    let is_cache = facts.cache
        || context.census.is_some_and(|census| {
            (census.frames.iter().take(3))
                .any(|frame| speaks_of_a_cache(&frame.text) || speaks_of_a_cache(&frame.function))
        });
    // What a model's layers make grows with its inputs: sequences that come sorted are no cache.
    if !is_cache && facts.phase == Phase::Forward {
        return Vec::new();
    }
    let (key, what) = if is_cache {
        ("kv_cache", "the cache of keys and values grows")
    } else {
        ("growing_cache", "a tensor grows")
    };
    let title = format!(
        "{what} with every round: from {} to {} in {} rounds, copied each time, at {}",
        bytes(one.first),
        bytes(one.last),
        grouped(one.increases.len() as u64 + 1),
        place.short()
    );
    let saving = one.last.min(held);
    let severity = if fatal.is_some() { Severity::Warning } else { Severity::Note };
    let finding = Finding::new(CODE, severity, title)
        .because("while it is copied, the old one and the new one are there together")
        .at(vec![Where { place, bytes: held, count: 1 }])
        .saves(saving, Basis::Estimated, "allocated peak, with one tensor that is made once")
        // Blocks of ever new sizes leave holes, and what is kept beside them is what they are made of: this is the story.
        .caused_by(key, Weight::Mistake, held.max(context.capacity()))
        .likely_if(is_cache && !facts.cache);
    vec![if is_cache {
        cache_fixes(
            finding.fix(
                Fix::new(Grade::Safe, "make the cache once, as long as it will be")
                    .code("cache_implementation=\"static\""),
            ),
        )
    } else {
        finding
            .fix(
                Fix::new(Grade::Safe, "make it once and write into it")
                    .code("bank = torch.empty(total, width, device=\"cuda\"); bank[i:j] = features"),
            )
            .fix(
                Fix::new(Grade::Safe, "or collect the parts in host memory and concatenate once")
                    .code("parts.append(features.cpu())"),
            )
    }]
}
