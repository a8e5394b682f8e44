//! For scripts: what the verbs print with `--format json`, as types.
//!
//! One file a verb. The types are the source: what is written is what they serialize to, and `docs/reference/json.md` has their
//! fields with the comments on them, put there by `make reference` (`tests/reference.rs` holds it to them). Fields are in the order in
//! which they are printed. Keys are stable within a `schema_version`; bytes are whole numbers.

pub(crate) mod check;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod fit;
pub(crate) mod gpus;
pub(crate) mod model;
pub(crate) mod patch;
pub(crate) mod plan;
pub(crate) mod predict;
pub(crate) mod profile;
pub(crate) mod replay;
pub(crate) mod rule;
pub(crate) mod tune;

pub use check::checks;
pub use diff::diff;
pub use explain::explanation;
pub use rule::rules;

use serde::Serialize;

/// Changes when a key changes its meaning or is removed.
pub const SCHEMA_VERSION: u32 = 1;

/// The JSON Schema of what a verb prints, made from the types of its file; none if nobody has asked for one yet.
pub fn schema(verb: &str) -> Option<&'static str> {
    Some(match verb {
        "explain" => include_str!("../../assets/schemas/explain.json"),
        "replay" => include_str!("../../assets/schemas/replay.json"),
        "tune" => include_str!("../../assets/schemas/tune.json"),
        "predict" => include_str!("../../assets/schemas/predict.json"),
        "plan" => include_str!("../../assets/schemas/plan.json"),
        "diff" => include_str!("../../assets/schemas/diff.json"),
        "doctor" => include_str!("../../assets/schemas/doctor.json"),
        _ => return None,
    })
}

/// What every document begins with.
#[derive(Serialize)]
struct Versioned<T> {
    schema_version: u32,
    #[serde(flatten)]
    document: T,
}

/// A whole document: the version, then its fields.
pub(crate) fn document(document: impl Serialize) -> String {
    pretty(&Versioned { schema_version: SCHEMA_VERSION, document })
}

/// A document that has its version already.
pub(crate) fn pretty(value: &impl Serialize) -> String {
    // It is made of numbers, texts and lists: there is nothing in it that cannot be written.
    let mut text = serde_json::to_string_pretty(value).unwrap_or_default();
    text.push('\n');
    text
}
