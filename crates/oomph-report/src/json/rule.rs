//! What `oomph rule` prints.

use super::document;
use oomph_explain::rules;
use serde::Serialize;

/// Rules: their codes, names and documentation.
pub fn rules(rules: &[&rules::Rule]) -> String {
    document(Rules { rules: rules.iter().map(|rule| Rule::of(rule)).collect() })
}

#[derive(Serialize)]
struct Rules {
    /// All rules in order of code, or the one that was asked for.
    rules: Vec<Rule>,
}

#[derive(Serialize)]
struct Rule {
    /// Such as `OM201`.
    code: &'static str,
    /// Such as `growth-every-step`.
    name: String,
    /// What it looks for, in one line.
    summary: String,
    /// Its documentation, in Markdown.
    documentation: String,
}

impl Rule {
    fn of(rule: &rules::Rule) -> Self {
        Self {
            code: rule.code,
            name: rule.name(),
            summary: rule.summary(),
            documentation: rule.documentation(),
        }
    }
}
