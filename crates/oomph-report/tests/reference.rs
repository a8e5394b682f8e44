//! Holds what is written down about our JSON to the types that print it: the tables of `docs/reference/json.md`, `web/src/schema.ts`, and
//! the schemas of `assets/schemas`.
//!
//! The types are read from the sources, as `docs/reference/make.py` reads the Python package: they are in four crates, and a derive
//! would put a feature and a second build of each under every one of them. What serde does to a type is understood as far as these
//! types need it; any other attribute is an error, and real documents are held to what was understood.
//!
//! `make reference` runs this test in a mode that writes them.

#![allow(clippy::unwrap_used, clippy::panic)] // a test fails by panicking

#[path = "reference/conform.rs"]
mod conform;
#[path = "reference/markdown.rs"]
mod markdown;
#[path = "reference/schema.rs"]
mod schema;
#[path = "reference/shapes.rs"]
mod shapes;
#[path = "reference/typescript.rs"]
mod typescript;

use shapes::Shapes;
use std::path::{Path, PathBuf};

/// The crates whose types are printed as JSON.
const CRATES: [&str; 4] = ["oomph-report", "oomph-host", "oomph-data", "oomph-top"];

fn root() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).canonicalize().unwrap()
}

fn shapes() -> Shapes {
    Shapes::read(&root().join("crates"), &CRATES)
}

/// Compares a file with what it must be, or writes it.
fn hold(path: &str, wanted: &str) {
    let file = root().join(path);
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    if std::env::var_os("OOMPH_REFERENCE").is_some_and(|value| value == "write") {
        if found != wanted {
            std::fs::write(&file, wanted).unwrap();
        }
        return;
    }
    let line = found.lines().zip(wanted.lines()).position(|(found, wanted)| found != wanted);
    assert!(
        found == wanted,
        "{path} is not what the types say, from line {} on. Type: make reference",
        line.map_or(found.lines().count().min(wanted.lines().count()), |line| line) + 1
    );
}

#[test]
fn the_tables_of_json_are_what_the_types_say() {
    let page = std::fs::read_to_string(root().join("docs/reference/json.md")).unwrap();
    hold("docs/reference/json.md", &markdown::filled(&page, &shapes()));
}

#[test]
fn the_page_s_script_has_the_types_of_its_writer() {
    hold("web/src/schema.ts", &typescript::types(&shapes(), &["page::data::Page", "page::data::Text"]));
}

#[test]
fn the_schemas_of_documents_are_what_the_types_say() {
    let shapes = shapes();
    for (verb, names) in [
        ("explain", &["json::explain::Recording", "json::explain::Recordings"][..]),
        ("replay", &["json::replay::Answer"]),
        ("tune", &["json::tune::Tuning"]),
        ("predict", &["json::predict::Prediction", "json::predict::Predictions", "json::predict::Tries"]),
        ("plan", &["json::plan::Plan"]),
        ("diff", &["json::diff::Diff"]),
        ("doctor", &["json::doctor::Examination"]),
    ] {
        let path = format!("crates/oomph-report/assets/schemas/{verb}.json");
        hold(&path, &schema::document(&shapes, names));
        assert!(oomph_report::json::schema(verb).is_some(), "{verb}");
    }
}

#[test]
fn real_documents_are_as_described() {
    let shapes = shapes();
    for (snapshot, name) in [
        ("check_against_a_baseline_in_json", "json::check::Check"),
        ("data_profile_in_json", "oomph_data::Profile"),
        ("diff_in_json", "json::diff::Diff"),
        ("explain_in_json", "json::explain::Recording"),
        ("gpus_in_json", "json::gpus::Gpus"),
        ("replay_in_json", "json::replay::Answer"),
        ("tune_in_json", "json::tune::Tuning"),
    ] {
        let file = root().join(format!("crates/oomph-cli/tests/snapshots/cli__{snapshot}.snap"));
        let text = std::fs::read_to_string(file).unwrap();
        let printed = text.split_once("--- stdout\n").unwrap().1.split("\n--- stderr").next().unwrap();
        let wrong = conform::document(printed, &shapes, name);
        assert!(wrong.is_empty(), "{snapshot} is not a {name}: {wrong:#?}");
    }
}
