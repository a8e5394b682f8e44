//! What `oomph predict --model` prints.

use super::document;
use super::predict::{Gpu, Needs, Prediction};
use crate::model::NamedModel;
use oomph_predict::model as found;
use serde::Serialize;

/// What fits of a model, and on one card what was predicted.
pub(crate) fn answer(named: &NamedModel) -> String {
    let sizes = Sizes::of(named);
    match &named.prediction {
        Some(one) => document(Answer { prediction: Prediction::of(one.prediction, one.recording), sizes }),
        None => document(sizes),
    }
}

#[derive(Serialize)]
struct Answer<'a> {
    /// What the script takes. `program` is the model and the sizes, in words; `findings` are of a script that nobody wrote yet.
    #[serde(flatten)]
    prediction: Prediction<'a>,
    /// What fits.
    #[serde(flatten)]
    sizes: Sizes<'a>,
}

#[derive(Serialize)]
struct Sizes<'a> {
    /// **Stable.** The model and how it is used.
    model: Model<'a>,
    /// **Stable.** What fits on which card. The card that was named comes first; with `--gpus`, they are in the order given.
    cards: Vec<Card<'a>>,
    /// **Stable.** The script that was run, as text.
    script: &'a str,
}

#[derive(Serialize)]
struct Model<'a> {
    /// As it was named.
    name: &'a str,
    /// How it is used: `qlora`, `lora`, `full` or `infer`.
    train: &'static str,
    /// Sequences in a batch.
    batch: u64,
    /// Tokens in a sequence.
    sequence: u64,
    /// Its class in transformers.
    architecture: &'a str,
    /// How many parameters it has.
    parameters: u64,
    /// With `qlora`, parameters that are not quantized although they are most of a matrix: experts in one tensor, which bitsandbytes leaves in 16 bits.
    not_quantized: u64,
    /// Tokens that it takes at most; `null` if its `config.json` does not say.
    positions: Option<u64>,
}

#[derive(Serialize)]
struct Card<'a> {
    /// The card.
    gpu: Gpu<'a>,
    /// Whether the batch and the sequence that were asked about fit.
    fits: bool,
    /// They fit, but too closely to be sure, as `close` says it of a prediction.
    close: bool,
    /// What they need, if memory is not short.
    needs: Needs,
    /// The largest batch of such sequences that is not `close`; 0 if not one fits.
    largest_batch: u64,
    /// The longest sequence in such a batch, likewise. At most `model.positions`.
    longest_sequence: u64,
    /// Whether these two were run, and the next larger ones too. If not, they lie on a curve through sizes that were.
    run: bool,
}

impl<'a> Sizes<'a> {
    fn of(named: &NamedModel<'a>) -> Self {
        let model = named.model;
        Self {
            model: Model {
                name: &model.model,
                train: model.way.name(),
                batch: model.batch,
                sequence: model.sequence,
                architecture: &model.architecture,
                parameters: model.parameters,
                not_quantized: model.left,
                positions: model.positions,
            },
            cards: named.cards.iter().map(Card::of).collect(),
            script: &model.script,
        }
    }
}

impl<'a> Card<'a> {
    fn of(card: &'a found::CardSizes) -> Self {
        Self {
            gpu: Gpu::of(&card.gpu),
            fits: card.fits,
            close: card.is_close(),
            needs: Needs::of(card.needs),
            largest_batch: card.batch,
            longest_sequence: card.sequence,
            run: card.is_run,
        }
    }
}
