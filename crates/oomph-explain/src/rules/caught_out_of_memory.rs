//! Memory ran out, but the error was caught and the program went on.
//!
//! ## What it sees
//!
//! Out-of-memories after which the program allocated again. Two kinds: a library asks for a workspace, does
//! without when it cannot have it, and nothing is reported (cuDNN choosing an algorithm); or the program
//! catches the exception, for instance to search for a batch size.
//!
//! ## What to do
//!
//! Nothing, if it happens once. Each one empties the cache and waits for the device, so many of them are
//! slow; and a library that does without its workspace runs a slower algorithm. Leaving some memory free
//! avoids both.
//!
//! ## How the numbers come about
//!
//! Counted in the recording. Caught by a library: the next allocation comes from the very same call and next
//! to nothing was freed in between.

use crate::context::Context;
use crate::finding::{Finding, Place, Severity, Where};
use crate::oom::{OutOfMemory, Outcome};
use hashbrown::HashMap;
use oomph_words::{bytes, plural};

pub(super) const CODE: &str = "OM102";

pub(super) fn check(context: &Context) -> Vec<Finding> {
    let with = |outcome: Outcome| -> Vec<&OutOfMemory> {
        context.ooms.iter().filter(|oom| oom.outcome == outcome).collect()
    };
    let mut findings = Vec::new();
    let library = with(Outcome::CaughtByLibrary);
    if let Some(largest) = library.iter().map(|oom| oom.size).max() {
        let title = format!(
            "A library did without {} that did not fit (up to {}), and went on",
            plural(library.len() as u64, "workspace"),
            bytes(largest)
        );
        findings.push(
            Finding::new(CODE, Severity::Note, title)
                .because("not an error of the program; a slower algorithm may have been used")
                .at(places(context, &library)),
        );
    }
    let program = with(Outcome::CaughtByProgram);
    if !program.is_empty() {
        let count = program.len();
        let title = match count {
            1 => "The program caught an out-of-memory and went on".to_owned(),
            _ => format!("The program caught {count} out-of-memories and went on"),
        };
        findings.push(
            Finding::new(CODE, Severity::Note, title)
                .because("each one emptied the cache and waited for the device")
                .at(places(context, &program)),
        );
    }
    findings
}

fn places(context: &Context, ooms: &[&OutOfMemory]) -> Vec<Where> {
    let mut places: Vec<Where> = Vec::new();
    let mut known: HashMap<Place, usize> = HashMap::new();
    for oom in ooms {
        let place = context.place(oom.stack, oom.moment + 1);
        let at = *known.entry(place.clone()).or_insert_with(|| {
            places.push(Where { place, bytes: 0, count: 0 });
            places.len() - 1
        });
        places[at].count += 1;
        places[at].bytes = places[at].bytes.max(oom.size);
    }
    places.sort_by_key(|place| std::cmp::Reverse(place.bytes));
    places
}
