//! Text of a table is held as objects of Python, one a cell.
//!
//! ## What it sees
//!
//! At the peak of RAM, many objects of Python that were made inside pandas' readers (`read_csv`, `read_json`, `read_excel`, `read_sql` and their like): columns of text, dates
//! that were not parsed, or numbers beside words, of which each cell is an object of 50 bytes and more, and 8 bytes for where it is.
//!
//! ## What to do
//!
//! `oomph.data.load` reads the table in the smallest types that hold every value: words that repeat become categories, dates become dates, and text lies in one piece. With pandas alone, name
//! the types: `dtype={"city": "category"}`, `parse_dates=[…]`, or `dtype_backend="pyarrow"`.
//!
//! ## How the numbers come about
//!
//! Small objects are sampled: the bytes are an estimate, and the report says by how much it may be off. How small the columns could be is not in a recording: `oomph.data.profile` says it.

use super::super::HostKind;
use super::super::blocks::Block;
use super::super::context::{HostContext, sum};
use super::{matters, severity};
use crate::finding::{Basis, Finding, Fix, Grade};
use oomph_words::bytes;

pub(crate) const CODE: &str = "OM504";

pub(crate) fn check(context: &HostContext) -> Vec<Finding> {
    let objects: Vec<&Block> = (context.at_peak())
        .filter(|block| context.kind(block) == HostKind::Objects && context.under(block).reading)
        .collect();
    let held = sum(objects.iter().copied());
    if !matters(held, context.peak()) {
        return Vec::new();
    }
    let places = context.places(objects);
    let place = places.first().map(|one| one.place.short()).unwrap_or_default();
    let title = format!("{} of a table are objects of Python, one a cell, read at {place}", bytes(held));
    vec![
        Finding::new(CODE, severity(held, context.peak()), title)
            .at(places)
            .saves(held, Basis::Estimated, "all of these objects; the text itself still takes its own bytes")
            .fix(
                Fix::new(Grade::Safe, "read it in the smallest types that hold every value")
                    .code("table = oomph.data.load(\"table.csv\")"),
            )
            .fix(
                Fix::new(Grade::Safe, "or let pandas hold text in one piece")
                    .code("pd.read_csv(path, dtype_backend=\"pyarrow\")"),
            ),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{MIB, Program};
    use super::CODE;
    use oomph_trace::How;

    #[test]
    fn text_of_a_table_is_found_and_a_program_s_own_objects_are_not() {
        let reader = "/v/lib/python3.12/site-packages/pandas/io/parsers/readers.py";
        for (name, wanted) in [("read_csv", 1), ("to_csv", 0)] {
            let mut program = Program::default();
            let read = program.stack(&[(name, reader, 1026), ("main", "load.py", 4)]);
            let own = program.line("load.py", 9);
            for _ in 0..400 {
                program.alloc(How::Object, MIB / 4, read);
                program.alloc(How::Object, MIB / 4, own);
            }
            let found = program.found(CODE);
            assert_eq!(found.len(), wanted);
            if let Some(found) = found.first() {
                assert_eq!(
                    found.title,
                    "100 MiB of a table are objects of Python, one a cell, read at load.py:4 main"
                );
            }
        }
        let mut program = Program::default();
        let read = program.stack(&[("read_csv", reader, 1026), ("main", "load.py", 4)]);
        program.alloc(How::Object, 15 * MIB, read);
        assert!(program.found(CODE).is_empty(), "too little");
    }
}
