//! How the answer for a model looks that is known by its name: whether it fits, what fits on which card, and the script that was run.

use crate::json;
use crate::markdown::escape;
use crate::predict::{NamedPrediction, doubts, fetched, markdown as prediction_markdown, summary};
use crate::shared::TextOptions;
use crate::text::{BOLD, DIM, GREEN, RED, YELLOW, paint, wrap};
use anstyle::Style;
use oomph_predict::model::{CardSizes, Model};
use oomph_words::{bytes, printable};
use std::fmt::Write;

/// What is known of a model.
#[derive(Clone, Copy, Debug)]
pub struct NamedModel<'a> {
    pub model: &'a Model,
    /// What was predicted of the card that was named; none if there were several.
    pub prediction: Option<NamedPrediction<'a>>,
    /// What fits on cards.
    pub cards: &'a [CardSizes],
    /// The file that the script was written to.
    pub script: Option<&'a str>,
}

// --- words ------------------------------------------------------------------------------------------------

/// `Qwen2ForCausalLM, 7.62 billion parameters`.
fn architecture(model: &Model) -> String {
    let (number, word) = match model.parameters {
        many @ 1_000_000_000.. => (many as f64 / 1e9, "billion"),
        few => (few as f64 / 1e6, "million"),
    };
    format!("{}, {number:.2} {word} parameters", model.architecture)
}

/// What may surprise of how it is quantized.
fn left(model: &Model) -> Option<String> {
    (model.left * 100 >= model.parameters && model.left > 0).then(|| {
        format!(
            "{} of the parameters stay in 16 bits: this transformers has experts in one tensor, and bitsandbytes quantizes linear layers only",
            oomph_words::percent(model.left, model.parameters)
        )
    })
}

/// A number that was run, or one on a curve.
fn number(value: u64, card: &CardSizes) -> String {
    match (value, card.is_run) {
        (0, _) => "none".to_owned(),
        (_, true) => value.to_string(),
        (_, false) => format!("~{value}"),
    }
}

/// Whether what was asked about fits.
fn fits(card: &CardSizes) -> (Style, &'static str) {
    match (card.fits, card.is_close()) {
        (true, false) => (GREEN, "yes"),
        (true, true) => (YELLOW, "barely"),
        (false, _) => (RED, "no"),
    }
}

/// The longest sequence; a model's last position ends it before memory does.
fn sequence(model: &Model, card: &CardSizes) -> String {
    match model.positions {
        Some(most) if card.sequence >= most => format!("{most}, all it takes"),
        _ => number(card.sequence, card),
    }
}

/// What stands below the table.
fn notes(model: &Model, cards: &[CardSizes]) -> Vec<String> {
    let mut notes: Vec<String> = left(model).into_iter().collect();
    notes.push(format!(
        "largest batch: of sequences of {} tokens; longest sequence: in a batch of {}. With 3 % of the card to spare, for predictions may be off by that. Each was run, as a step on the virtual card, and so was the next larger, which did not fit",
        model.sequence, model.batch
    ));
    if cards.iter().any(|card| !card.is_run) {
        notes.push("~ was not run: it lies on a curve through steps that were, on another card; kernels of this one may take a little more or less. --gpus runs them".to_owned());
    }
    notes
}

// --- text -------------------------------------------------------------------------------------------------

/// For a terminal.
pub fn text(named: &NamedModel, options: TextOptions) -> String {
    let model = named.model;
    let mut out = match &named.prediction {
        Some(prediction) => summary(prediction.prediction, options),
        None => format!("{}\n", paint(BOLD, printable(&model.title()))),
    };
    let _ = writeln!(out, "  {:<34} {}", "the model", printable(&architecture(model)));
    // Where the script failed, nothing is known of other sizes.
    if !named.cards.is_empty() {
        table(&mut out, named, options);
    }
    if let Some(prediction) = &named.prediction {
        doubts(&mut out, std::iter::once(prediction.prediction));
        if let Some(words) = fetched(prediction.prediction) {
            let _ = writeln!(out, "\n{}", paint(DIM, words));
        }
        if let Some(recording) = prediction.recording {
            let _ = writeln!(out, "\n{} {}", paint(BOLD, "Recording:"), printable(recording));
        }
    }
    let _ = match named.script {
        Some(file) => writeln!(out, "\n{} {}", paint(BOLD, "Script:"), printable(file)),
        None => write!(out, "\n{}\n\n{}", paint(BOLD, "The script that was run"), model.script),
    };
    out
}

/// What fits on which card.
fn table(out: &mut String, named: &NamedModel, options: TextOptions) {
    let model = named.model;
    let width = named.cards.iter().map(|card| card.gpu.name.chars().count()).max().unwrap_or(4).max(4);
    let heading = format!(
        "{:width$}  {:>10}  {:>10}  {:6}  {:>13}  {:>16}",
        "card", "memory", "needs", "fits", "largest batch", "longest sequence"
    );
    let _ = writeln!(out, "\n{}", paint(BOLD, heading));
    for card in named.cards {
        let (style, words) = fits(card);
        let _ = writeln!(
            out,
            "{:width$}  {:>10}  {:>10}  {}  {:>13}  {:>16}",
            printable(&card.gpu.name),
            bytes(card.gpu.memory),
            bytes(card.needs.total),
            paint(style, format!("{words:6}")),
            number(card.batch, card),
            sequence(model, card)
        );
    }
    for note in notes(model, named.cards) {
        let _ = writeln!(out, "{}", paint(DIM, wrap(&note, options.width, 0, 2)));
    }
}

// --- JSON -------------------------------------------------------------------------------------------------

pub fn json(named: &NamedModel) -> String {
    json::model::answer(named)
}

// --- Markdown ---------------------------------------------------------------------------------------------

/// For issues and pull requests.
pub fn markdown(named: &NamedModel, lines: usize) -> String {
    let model = named.model;
    let mut out = match &named.prediction {
        Some(prediction) => prediction_markdown(prediction, lines),
        None => format!("## {}\n\n", escape(&model.title())),
    };
    let _ = writeln!(out, "{}\n", escape(&architecture(model)));
    if !named.cards.is_empty() {
        out.push_str("| card | memory | needs | fits | largest batch | longest sequence |\n|---|---:|---:|---|---:|---:|\n");
        for card in named.cards {
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {} | {} |",
                escape(&card.gpu.name),
                bytes(card.gpu.memory),
                bytes(card.needs.total),
                fits(card).1,
                number(card.batch, card),
                sequence(model, card)
            );
        }
        for note in notes(model, named.cards) {
            let _ = writeln!(out, "\n{}", escape(&note));
        }
    }
    match named.script {
        Some(file) => {
            let _ = writeln!(out, "\nThe script that was run: {}", escape(file));
        }
        None => {
            let _ = writeln!(out, "\nThe script that was run:\n\n```python\n{}```", model.script);
        }
    }
    out
}
