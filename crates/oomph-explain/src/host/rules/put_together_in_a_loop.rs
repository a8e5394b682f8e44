//! Data is put together in a loop: each round copies all that came before.
//!
//! ## What it sees
//!
//! One line makes data again and again, each time more, and lets the last go when the next is there: `table = pd.concat([table, part])`,
//! `array = np.append(array, part)`, `tensor = torch.cat([tensor, part])` in a loop. A function that puts together is seen in the stack; NumPy's and PyTorch's
//! own are not, and the line is then named for what it does.
//!
//! ## What to do
//!
//! Collect the parts in a list, and put them together once, after the loop. At the end of each round the old and the new are there together, and the time grows with the square of the rounds.
//!
//! ## How the numbers come about
//!
//! What is lost is the largest of what was copied: it was there beside its copy. Sizes and order are measured; of what came and went between two writes of the recorder, only what was alive at the most is there.

use super::super::blocks::Block;
use super::super::context::{HostContext, sum};
use super::matters;
use crate::finding::{Basis, Finding, Fix, Grade, Severity};
use hashbrown::HashMap;
use oomph_trace::StackId;
use oomph_words::{bytes, grouped};

pub(crate) const CODE: &str = "OM502";

/// So many blocks make a loop.
const LEAST_BLOCKS: usize = 8;
/// They are looked at in so many parts, of which each has a larger one than the last.
const PARTS: usize = 4;
/// So many times what the line ever held at once was made in all.
const TURNOVER: u64 = 2;
/// From the first to the last; without a function in the stack that says so, more, and so many in tenths are larger than the one before: batches differ in size too.
const GROWN: u64 = 2;
const GROWN_WITHOUT_WORD: u64 = 8;
const STEADILY: usize = 9;
/// Of the blocks, in tenths, so many live until the next is there: who grows in place gives the old back first.
const BESIDE: usize = 5;

pub(crate) fn check(context: &HostContext) -> Vec<Finding> {
    // By whole stacks: what a line puts together and what it puts to it are not of one size.
    let mut stacks: HashMap<StackId, Vec<&Block>> = HashMap::new();
    for block in &context.blocks.all {
        if context.under(block).concatenating || context.kind(block).is_data() {
            stacks.entry(block.stack).or_default().push(block);
        }
    }
    let mut found: Vec<(u64, StackId, Finding)> = (stacks.into_iter())
        .filter_map(|(stack, blocks)| {
            let (lost, finding) = of_stack(context, &blocks)?;
            Some((lost, stack, finding))
        })
        .collect();
    found.sort_by_key(|(lost, stack, _)| (std::cmp::Reverse(*lost), *stack));
    found.into_iter().map(|(_, _, finding)| finding).take(1).collect()
}

fn of_stack(context: &HostContext, blocks: &[&Block]) -> Option<(u64, Finding)> {
    let says_so = blocks.iter().any(|block| context.under(block).concatenating);
    if blocks.len() < LEAST_BLOCKS {
        return None;
    }
    let parts: Vec<u64> = (blocks.chunks(blocks.len().div_ceil(PARTS)))
        .map(|part| part.iter().map(|block| block.size).max().unwrap_or(0))
        .collect();
    let (first, last) = (blocks.first()?.size, *parts.last()?);
    let (factor, steadily) = if says_so { (GROWN, 0) } else { (GROWN_WITHOUT_WORD, STEADILY) };
    let larger = blocks.windows(2).filter(|pair| pair[0].size < pair[1].size).count();
    let grows = parts.windows(2).all(|pair| pair[0] < pair[1])
        && last >= first.saturating_mul(factor)
        && larger * 10 >= (blocks.len() - 1) * steadily;
    let copied: Vec<u64> = copied(blocks).collect();
    let made = sum(blocks.iter().copied());
    let turned_over = made >= TURNOVER.saturating_mul(most_at_once(blocks));
    let lost = copied.iter().copied().max().unwrap_or(0);
    let beside = copied.len() * 10 >= (blocks.len() - 1) * BESIDE;
    if !(grows && turned_over && beside && matters(lost, context.peak())) {
        return None;
    }
    let places = context.places(blocks.iter().rev().take(1).copied());
    let place = places.first().map(|one| one.place.short()).unwrap_or_default();
    let sure = if says_so { "" } else { ", likely" };
    let title = format!(
        "data is put together in a loop{sure}: {} is copied with each round, at {place}",
        bytes(lost)
    );
    let finding = Finding::new(CODE, if says_so { Severity::Warning } else { Severity::Note }, title)
        .because(format!(
            "{} blocks of the line were recorded, {} in all; the largest has {}",
            grouped(blocks.len() as u64),
            bytes(made),
            bytes(last)
        ))
        .at(places)
        .saves(lost, Basis::Estimated, "the largest that was there beside its copy")
        .fix(
            Fix::new(Grade::Safe, "collect the parts, and put them together once after the loop")
                .code("parts.append(part)\nwhole = pd.concat(parts)"),
        );
    Some((lost, finding))
}

/// The most that these blocks held at once.
fn most_at_once(blocks: &[&Block]) -> u64 {
    let mut changes: Vec<(usize, i128)> = Vec::new();
    for block in blocks {
        changes.push((block.born, i128::from(block.size)));
        changes.extend(block.freed.map(|freed| (freed, -i128::from(block.size))));
    }
    changes.sort_by_key(|(row, _)| *row);
    let mut held = 0i128;
    let most = changes.into_iter().map(|(_, change)| {
        held += change;
        held
    });
    u64::try_from(most.max().unwrap_or(0)).unwrap_or(u64::MAX)
}

/// Those that lived until a larger one of the next few was there: a table has several blocks, one for each of its types.
fn copied<'b>(blocks: &'b [&Block]) -> impl Iterator<Item = u64> + 'b {
    const NEXT: usize = 4;
    blocks.iter().enumerate().filter_map(|(index, block)| {
        let freed = block.freed?;
        let mut next = blocks.iter().skip(index + 1).take(NEXT);
        next.any(|next| next.size > block.size && next.born < freed).then_some(block.size)
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{MIB, Program};
    use super::CODE;
    use oomph_trace::{CALLER, How, StackId};

    const NUMPY: &str = "/v/site-packages/numpy/_core/_multiarray_umath.so";

    fn concat(program: &mut Program) -> StackId {
        let pandas = "/v/lib/python3.12/site-packages/pandas/core/reshape/concat.py";
        program.stack(&[(CALLER, NUMPY, 0), ("concat", pandas, 380), ("main", "load.py", 8)])
    }

    fn rounds(program: &mut Program, line: StackId, rounds: u64, step: u64) {
        let mut last = None;
        for round in 1..=rounds {
            let next = program.alloc(How::Large, round * step, line);
            if let Some(last) = last.replace(next) {
                program.free(last);
            }
            program.wait(1000);
        }
    }

    #[test]
    fn a_table_that_is_made_anew_with_each_part_is_found() {
        let mut program = Program::default();
        let line = concat(&mut program);
        rounds(&mut program, line, 40, 4 * MIB);
        let found = program.found(CODE);
        assert_eq!(
            found[0].title,
            "data is put together in a loop: 156 MiB is copied with each round, at load.py:8 main"
        );
        assert_eq!(found[0].severity.name(), "warning");
        // Where no function says so, it is likely.
        let mut program = Program::default();
        let line = program.asked_by(NUMPY, "load.py", 8);
        rounds(&mut program, line, 40, 4 * MIB);
        assert!(program.found(CODE)[0].title.contains("likely"));
    }

    #[test]
    fn a_list_of_growing_arrays_and_batches_that_vary_are_none() {
        let mut program = Program::default();
        let (line, batches) = (concat(&mut program), program.asked_by(NUMPY, "train.py", 3));
        for round in 1..=40 {
            program.alloc(How::Large, round * 4 * MIB, line);
        }
        let mut last = None;
        for round in 0..80u64 {
            let next = program.alloc(How::Large, (200 + 10 * (round % 7)) * MIB, batches);
            if let Some(last) = last.replace(next) {
                program.free(last);
            }
        }
        assert!(program.found(CODE).is_empty(), "{:?}", program.found(CODE));
    }

    #[test]
    fn what_grows_in_place_is_none() {
        let mut program = Program::default();
        let line = concat(&mut program);
        let mut last = None;
        for round in 1..=40u64 {
            if let Some(last) = last {
                program.free(last);
            }
            last = Some(program.alloc(How::Large, round * 4 * MIB, line));
        }
        assert!(program.found(CODE).is_empty());
    }
}
