//! `oomph rule`: what a rule looks for.

use crate::Outcome;
use crate::arguments::Format;
use crate::printer::Printer;
use clap::Args;
use oomph_explain::rules::{ALL, Rule};
use std::fmt::Write;

/// Explain a rule, or list all rules
#[derive(Args)]
#[command(after_help = "Examples:\n  oomph rule\n  oomph rule OM201")]
pub(crate) struct Arguments {
    /// A code such as OM201, or a name such as growth-every-step
    #[arg(value_name = "CODE")]
    pub(crate) code: Option<String>,
    /// Every rule in full, as docs/reference/rules.md has them
    #[arg(long, conflicts_with = "code")]
    pub(crate) full: bool,
    /// How to show it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
}

pub(crate) fn run(arguments: &Arguments, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let rules: Vec<&Rule> = match &arguments.code {
        None => ALL.iter().collect(),
        Some(code) => match Rule::find(code) {
            Some(rule) => vec![rule],
            None => {
                printer.error(&format!("there is no rule {code:?}"));
                printer.hint("oomph rule lists them all");
                return Ok(Outcome::Failed);
            }
        },
    };
    let mut out = String::new();
    match (arguments.format, &arguments.code) {
        (Format::Json, _) => out = oomph_report::json::rules(&rules),
        (_, None) if arguments.full => {
            for (index, rule) in rules.into_iter().enumerate() {
                let space = if index == 0 { "" } else { "\n" };
                // A rule's own sections stand below it.
                let text = rule.documentation().replace("\n## ", "\n### ");
                writeln!(out, "{space}## {} {}\n\n{}", rule.code, rule.name(), text.trim_end())?;
            }
        }
        (_, Some(_)) => {
            for rule in rules {
                writeln!(out, "# {} {}\n\n{}", rule.code, rule.name(), rule.documentation())?;
            }
        }
        (Format::Markdown, None) => {
            writeln!(out, "| code | name | looks for |\n|---|---|---|")?;
            for rule in rules {
                writeln!(out, "| {} | {} | {} |", rule.code, rule.name(), rule.summary())?;
            }
        }
        (Format::Text, None) => {
            let width = rules.iter().map(|rule| rule.name().len()).max().unwrap_or(0);
            for rule in rules {
                writeln!(out, "{}  {:width$}  {}", rule.code, rule.name(), rule.summary())?;
            }
        }
    }
    printer.data(&out)?;
    Ok(Outcome::Fine)
}
