//! Rules: each looks for one thing that goes wrong with memory.
//!
//! One rule a file. Its header comment is its documentation (`oomph rule CODE` prints it), `CODE` its code,
//! the file's name its name, and `check` looks at a [`Context`] and says what it found; a rule that finds
//! nothing says nothing. To add a rule, add a file and its name to the list below.

use crate::context::Context;
use crate::finding::Finding;

macro_rules! rules {
    ($($module:ident),* $(,)?) => {
        $(mod $module;)*

        /// All rules, by code.
        pub static ALL: &[Rule] = &[$(Rule {
            code: $module::CODE,
            module: stringify!($module),
            source: include_str!(concat!(stringify!($module), ".rs")),
            check: $module::check,
        }),*];
    };
}

rules! {
    fatal_out_of_memory,
    caught_out_of_memory,
    growth_every_step,
    inference_keeps_activations,
    duplicates,
    logits_dominate,
    foreach_temporaries,
    one_temporary_makes_the_peak,
    activations_dominate,
    workspaces,
    fragmentation,
    cache_thrash,
    stuck_on_another_stream,
    stuck_in_a_private_pool,
    incomplete_recording,
}

/// A rule.
pub struct Rule {
    /// Its code.
    pub code: &'static str,
    module: &'static str,
    source: &'static str,
    pub(crate) check: fn(&Context) -> Vec<Finding>,
}

impl Rule {
    /// The rule with this code or name.
    pub fn find(code_or_name: &str) -> Option<&'static Self> {
        ALL.iter().find(|rule| {
            rule.code.eq_ignore_ascii_case(code_or_name) || rule.name().eq_ignore_ascii_case(code_or_name)
        })
    }

    /// Its name, with dashes.
    pub fn name(&self) -> String {
        self.module.replace('_', "-")
    }

    /// Its documentation, in Markdown: the header of its file.
    pub fn documentation(&self) -> String {
        (self.source.lines())
            .take_while(|line| line.starts_with("//!"))
            .map(|line| line.trim_start_matches("//!").strip_prefix(' ').unwrap_or(""))
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// What it looks for, in one line.
    pub fn summary(&self) -> String {
        self.documentation().lines().next().unwrap_or_default().trim_end_matches('.').to_owned()
    }
}

/// Large enough to speak of: a share of the peak, and some MiB.
fn matters(bytes: u64, peak: u64, share: f64, at_least: u64) -> bool {
    bytes >= at_least && bytes as f64 >= share * peak as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_documented_and_has_a_code_of_its_own() {
        for rule in ALL {
            let text = rule.documentation();
            assert!(rule.summary().len() > 20, "{} says what it looks for", rule.code);
            for part in ["## What it sees", "## What to do", "## How the numbers come about"] {
                assert!(text.contains(part), "{} lacks {part:?}", rule.code);
            }
            assert_eq!(ALL.iter().filter(|other| other.code == rule.code).count(), 1);
            assert!(Rule::find(&rule.code.to_lowercase()).is_some());
            assert!(Rule::find(&rule.name()).is_some());
        }
        assert!(ALL.is_sorted_by_key(|rule| rule.code));
    }
}
