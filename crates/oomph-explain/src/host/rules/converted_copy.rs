//! Data is held twice in RAM: a converted copy beside its original.
//!
//! ## What it sees
//!
//! At the peak of RAM, a copy and, from before, what it was made of. Two ways to know: the copy was made inside a function that converts
//! (`DataFrame.astype`, `to_numpy`, `to_pandas`, `Module.float`, `toarray` and their like), and an older line holds as much, or as much in other types; or
//! a tensor was made after an array of exactly as many bytes, or of half or twice as many, and no older tensor is as large: it may be `torch.tensor(array)`, which
//! copies. Arrays and tensors that are computed may be as large by chance, so that this is never more than a note.
//! NumPy's own `astype` is a function of C, and is seen where those were recorded: `oomph run --ram --native`.
//!
//! ## What to do
//!
//! Let the original go before more is made, or do not copy: `torch.from_numpy` and `DataFrame.to_numpy(copy=False)` share memory where types allow it.
//! A table that is read in small types need not be converted: `oomph.data.load`. Where both are only alive during the conversion, convert column by column.
//!
//! ## How the numbers come about
//!
//! The bytes of the copy are measured. That the one was made of the other is inferred from types, sizes and order: a recording does not show what is in memory.

use super::super::HostKind;
use super::super::blocks::Block;
use super::super::context::{HostContext, sum};
use super::{matters, severity};
use crate::finding::{Basis, Finding, Fix, Grade, Severity};
use hashbrown::HashMap;
use oomph_words::bytes;

pub(crate) const CODE: &str = "OM501";

/// Types of numbers differ by so much at the most.
const MOST_TIMES: u64 = 8;
/// By how much the bytes of a table may differ from a whole ratio: its index, and text that stays as it is.
const OFF: f64 = 0.03;
/// So soon after the copy was made, as a share of the recording, its original is gone: it was there for the conversion only.
const SOON: f64 = 0.01;

pub(crate) fn check(context: &HostContext) -> Vec<Finding> {
    let (by_function, by_size) = (by_function(context), by_size(context));
    by_function.iter().chain(&by_size).map(|pair| finding(context, pair)).collect()
}

/// How a copy is known.
#[derive(Clone, Copy, PartialEq)]
enum Known {
    /// A function that converts has made it.
    ByFunction,
    /// It is as large as what was there.
    BySize,
}

/// A copy and its original.
struct Pair<'a> {
    copy: Vec<&'a Block>,
    original: Vec<&'a Block>,
    known: Known,
}

/// What a function that converts has made, and an older line with as much.
fn by_function<'a>(context: &'a HostContext) -> Option<Pair<'a>> {
    let mut copies: HashMap<u32, Vec<&Block>> = HashMap::new();
    let mut others: HashMap<u32, Vec<&Block>> = HashMap::new();
    for block in context.at_peak() {
        if context.under(block).converting {
            copies.entry(context.line(block)).or_default().push(block);
        } else if context.kind(block).is_data() || context.kind(block) == HostKind::Objects {
            others.entry(context.line(block)).or_default().push(block);
        }
    }
    let mut copies: Vec<(u32, Vec<&Block>)> = copies.into_iter().collect();
    copies.sort_by_key(|(line, blocks)| (std::cmp::Reverse(sum(blocks.iter().copied())), *line));
    copies.into_iter().find_map(|(line, copy)| {
        let held = sum(copy.iter().copied());
        let begun = copy.iter().map(|block| block.born).min()?;
        // Of several, the one that was there last.
        let mut of_others: Vec<(&u32, &Vec<&Block>)> = others.iter().collect();
        of_others.sort_by_key(|(line, blocks)| {
            (std::cmp::Reverse(blocks.iter().map(|block| block.born).max()), **line)
        });
        let original = of_others
            .into_iter()
            .filter(|(other, _)| **other != line)
            .map(|(_, blocks)| blocks.iter().copied().filter(|block| block.born < begun).collect())
            .find(|blocks: &Vec<&Block>| is_ratio(held, sum(blocks.iter().copied())))?;
        matters(held, context.peak()).then_some(Pair { copy, original, known: Known::ByFunction })
    })
}

/// Whether the one may be the other in types of another size.
fn is_ratio(one: u64, other: u64) -> bool {
    let (less, more) = (one.min(other) as f64, one.max(other) as f64);
    [1u64, 2, 4, MOST_TIMES]
        .iter()
        .any(|&times| less > 0.0 && (more / less / times as f64 - 1.0).abs() <= OFF)
}

/// A large tensor that came after an array of one size with it, or of half or twice.
fn by_size<'a>(context: &'a HostContext) -> Option<Pair<'a>> {
    let large = |block: &&Block| matters(block.size, context.peak());
    // What a function has converted is found by that; the peak has few blocks of this size, at most twenty.
    let data: Vec<(&Block, HostKind)> = (context.at_peak().filter(large))
        .filter(|block| !context.under(block).converting)
        .map(|block| (block, context.kind(block)))
        .filter(|(_, kind)| kind.is_data())
        .collect();
    let (tensors, others): (Vec<_>, Vec<_>) =
        data.into_iter().partition(|(_, kind)| *kind == HostKind::Tensors);
    let original = |tensor: &Block| {
        // What is as large as a tensor that was there is more likely computed from that.
        let is_computed =
            (tensors.iter()).any(|(other, _)| other.born < tensor.born && other.size == tensor.size);
        let sizes = [Some(tensor.size), tensor.size.checked_mul(2), Some(tensor.size / 2)];
        let fits = |block: &Block| block.born < tensor.born && sizes.contains(&Some(block.size));
        others.iter().map(|(block, _)| *block).rfind(|block| !is_computed && fits(block))
    };
    let pairs = tensors.iter().filter_map(|(tensor, _)| Some((*tensor, original(tensor)?)));
    let (copy, original) = pairs.max_by_key(|(copy, _)| copy.size)?;
    Some(Pair { copy: vec![copy], original: vec![original], known: Known::BySize })
}

fn finding(context: &HostContext, pair: &Pair) -> Finding {
    let Pair { copy, original, known } = pair;
    let saved = sum(copy.iter().copied()).min(sum(original.iter().copied()));
    let mut places = context.places(copy.iter().copied());
    let of = context.places(original.iter().copied());
    let (from, to) = (of.first().map(|one| one.place.short()), places.first().map(|one| one.place.short()));
    let made = copy.iter().map(|block| block.born).max().unwrap_or(0);
    let gone = original.iter().filter_map(|block| block.freed).max();
    let passing = original.iter().all(|block| block.freed.is_some())
        && gone.is_some_and(|row| {
            let after = context.time(row).saturating_sub(context.time(made));
            after as f64 <= SOON * context.duration() as f64
        });
    let (from, to) = (from.unwrap_or_default(), to.unwrap_or_default());
    let by_size = *known == Known::BySize;
    let title = match passing {
        _ if by_size => format!(
            "{} may be in RAM twice: a tensor from {to}, and an array from {from}, whose sizes fit",
            bytes(saved)
        ),
        true => format!("{} are in RAM twice while they are converted, at {to}", bytes(saved)),
        false => format!("{} are in RAM twice: a converted copy from {to} beside its original", bytes(saved)),
    };
    let because = match by_size {
        true => "that the one was made of the other is a guess: a recording does not show what is in memory"
            .into(),
        false => format!("the original is from {from}, and is still held at the peak"),
    };
    places.extend(of);
    let severity = if passing || by_size { Severity::Note } else { severity(saved, context.peak()) };
    Finding::new(CODE, severity, title)
        .because(because)
        .at(places)
        .saves(saved, Basis::Estimated, "the smaller of both, at the peak of what is asked for")
        .fix(match passing {
            true => Fix::new(Grade::Safe, "convert column by column, and let each go"),
            false => Fix::new(Grade::Safe, "let the original go before more is made").code("del original"),
        })
        .fix(
            Fix::new(
                Grade::Safe,
                "read a table in types as small as its values allow, so that there is nothing to convert",
            )
            .code("oomph.data.load(\"table.csv\")"),
        )
        .fix(Fix::new(Grade::Safe, "share an array's memory with its tensor").code("torch.from_numpy(array)"))
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{MIB, Program};
    use super::CODE;
    use oomph_trace::{CALLER, How, StackId};

    const NUMPY: &str = "/v/site-packages/numpy/_core/_multiarray_umath.so";
    const TORCH: &str = "/v/site-packages/torch/lib/libc10.so";

    fn astype(program: &mut Program, line: u32) -> StackId {
        let pandas = "/v/lib/python3.12/site-packages/pandas/core/generic.py";
        program.stack(&[(CALLER, NUMPY, 0), ("astype", pandas, 6400), ("main", "load.py", line)])
    }

    #[test]
    fn a_frame_of_another_type_beside_the_first_is_found() {
        let mut program = Program::default();
        let (read, convert) = (program.asked_by(NUMPY, "load.py", 3), astype(&mut program, 4));
        let original = program.alloc(How::Large, 800 * MIB, read);
        program.wait(1_000_000);
        let _copy = program.alloc(How::Large, 400 * MIB, convert);
        program.wait(1_000_000);
        let found = program.found(CODE);
        assert_eq!(
            found[0].title,
            "400 MiB are in RAM twice: a converted copy from load.py:4 main beside its original"
        );
        assert_eq!((found[0].severity.name(), found[0].places.len()), ("warning", 2));
        // Let go at once, it was there for the conversion only.
        program.free(original);
        program.wait(500_000_000);
        program.alloc(How::Large, 1, read);
        assert_eq!(program.found(CODE)[0].severity.name(), "note");
    }

    #[test]
    fn numpys_own_is_found_where_functions_of_c_were_recorded() {
        for (function, wanted) in [("<native> array_astype", 1), ("<native> array_copy", 0)] {
            let mut program = Program::default();
            let floats = program.asked_by(NUMPY, "load.py", 3);
            let narrow = program.stack(&[
                (CALLER, NUMPY, 0),
                ("<native> PyArray_NewLikeArray", NUMPY, 0),
                (function, NUMPY, 0),
                ("main", "load.py", 4),
            ]);
            program.alloc(How::Large, 800 * MIB, floats);
            program.alloc(How::Large, 400 * MIB, narrow);
            let titles: Vec<String> = program.found(CODE).into_iter().map(|one| one.title).collect();
            assert_eq!(titles.len(), wanted, "{titles:?}");
            let title = "400 MiB are in RAM twice: a converted copy from load.py:4 main beside its original";
            assert!(titles.iter().all(|one| one == title), "{titles:?}");
        }
    }

    #[test]
    fn a_tensor_that_copies_an_array_is_found() {
        let mut program = Program::default();
        let (array, tensor) = (program.asked_by(NUMPY, "load.py", 3), program.asked_by(TORCH, "load.py", 4));
        program.alloc(How::Large, 80 * MIB, array);
        program.alloc(How::Large, 40 * MIB, tensor);
        let found = program.found(CODE);
        assert_eq!(
            found[0].title,
            "40.0 MiB may be in RAM twice: a tensor from load.py:4 main, and an array from load.py:3 main, whose sizes fit"
        );
        assert_eq!((found.len(), found[0].severity.name()), (1, "note"));
    }

    #[test]
    fn a_tensor_that_may_be_computed_from_another_and_a_later_array_are_none() {
        let mut program = Program::default();
        let (array, tensor) = (program.asked_by(NUMPY, "load.py", 3), program.asked_by(TORCH, "load.py", 4));
        // `t = torch.rand(...)`, `array = load()`, `b = t + 1`.
        program.alloc(How::Large, 80 * MIB, tensor);
        program.alloc(How::Large, 80 * MIB, array);
        program.alloc(How::Large, 80 * MIB, tensor);
        assert!(program.found(CODE).is_empty(), "{:?}", program.found(CODE));
    }

    #[test]
    fn other_arrays_and_an_original_that_went_first_are_none() {
        let mut program = Program::default();
        let (read, convert) = (program.asked_by(NUMPY, "load.py", 3), astype(&mut program, 4));
        let tensor = program.asked_by(TORCH, "load.py", 9);
        let original = program.alloc(How::Large, 800 * MIB, read);
        program.free(original);
        program.alloc(How::Large, 900 * MIB, convert);
        program.alloc(How::Large, 123 * MIB, tensor);
        program.alloc(How::Large, 500 * MIB, read);
        assert!(program.found(CODE).is_empty(), "{:?}", program.found(CODE));
    }
}
