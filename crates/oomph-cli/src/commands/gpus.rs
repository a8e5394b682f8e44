//! `oomph gpus`: the catalogue of cards.

use crate::Outcome;
use crate::arguments::Format;
use crate::printer::Printer;
use clap::Args;
use oomph_gpus::{Catalogue, user_file};
use oomph_report::gpus;

/// List the cards that --gpu knows
///
/// Memory is what CUDA says the card has; usable is what is left for tensors once a process has a CUDA context.
///
/// Cards of your own, or corrections, go into a file (the output says where) of this form:
///
///   [[gpu]]
///   name = "my-card"
///   title = "NVIDIA My Card"
///   memory = 25769803776          # bytes
///   context = 419430400           # bytes
///   compute_capability = "8.9"
///   sms = 128
#[derive(Args)]
#[command(verbatim_doc_comment, after_help = "Examples:\n  oomph gpus\n  oomph gpus 4090")]
pub(crate) struct Arguments {
    /// One card only, with where its numbers are from
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// How to show it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
}

pub(crate) fn run(arguments: &Arguments, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let catalogue = Catalogue::load()?;
    let cards = match &arguments.name {
        Some(name) => vec![catalogue.find(name).map_err(anyhow::Error::msg)?],
        None => catalogue.gpus().iter().collect(),
    };
    printer.data(&match arguments.format {
        Format::Text => gpus::text(&cards),
        Format::Json => gpus::json(&cards),
        Format::Markdown => gpus::markdown(&cards),
    })?;
    if let (None, Some(path)) = (&arguments.name, user_file()) {
        printer.note(&format!(
            "\nCards of your own go into {} (oomph gpus --help shows the form)",
            path.display()
        ));
    }
    Ok(Outcome::Fine)
}
