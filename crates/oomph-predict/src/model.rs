//! A model that is known by its name, and a usual way to train or run it: writes the script, and says which batches and sequences fit which
//! cards.
//!
//! The Python in `python/oomph/models` does both, in the user's interpreter: it reads the model's `config.json`, writes the script and a checkpoint
//! that takes no room, and takes steps with other sizes on the virtual GPU. Here is what is asked and what is answered. Whether the script fits a
//! card is for [`crate::prediction`] to say, of this script as of any other.

use crate::prediction::{Needs, Prediction, SEEN, Verdict, is_close, unlimited};
use crate::run::{DeviceFacts, Kind, Program, RunError, Runner, Status, Voice};
use oomph_gpus::Gpu;
use oomph_stage::{StageError, package};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The Python that reads and writes, under a name that no package has.
const PACKAGE: &str = "_oomph_models";
/// Cards of this compute capability and later have bfloat16 and its fast attention.
const AMPERE: (u32, u32) = (8, 0);

/// A usual way to use a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// Adapters beside weights in 4 bits.
    Qlora,
    /// Adapters beside weights in 16 bits.
    Lora,
    /// All weights.
    Full,
    /// It is run, not trained.
    Infer,
}

impl Way {
    /// As it is typed.
    pub fn name(self) -> &'static str {
        match self {
            Way::Qlora => "qlora",
            Way::Lora => "lora",
            Way::Full => "full",
            Way::Infer => "infer",
        }
    }
}

/// What is asked.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// A folder, its `config.json`, or a name of the Hub.
    pub model: &'a str,
    /// How it is used.
    pub way: Way,
    /// Sequences in a batch.
    pub batch: u64,
    /// Tokens in a sequence; a usual number, if none is named.
    pub sequence: Option<u64>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The model cannot be used like this.
    #[error("{why}")]
    Refused {
        /// Why.
        why: String,
        /// What to do.
        hint: String,
    },
    /// The interpreter did not do it.
    #[error("{}: {error}", python.display())]
    Python {
        /// The interpreter.
        python: PathBuf,
        /// Why.
        error: String,
    },
    /// The other sizes could not be tried.
    #[error("other batches and sequences could not be tried: {0}")]
    Sizes(String),
    /// A program could not be run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A file could not be written.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// What the Python left cannot be read.
    #[error("what was left cannot be read: {0}")]
    Left(#[from] serde_json::Error),
}

/// A model, and the script for it.
#[derive(Debug)]
pub struct Model {
    /// As it was named.
    pub model: String,
    /// How it is used.
    pub way: Way,
    /// Sequences in a batch.
    pub batch: u64,
    /// Tokens in a sequence.
    pub sequence: u64,
    /// A short name, for files.
    pub name: String,
    /// Its class in transformers.
    pub architecture: String,
    /// How many parameters it has.
    pub parameters: u64,
    /// With QLoRA: parameters that are not quantized although they could be, because they are no linear layers.
    pub left: u64,
    /// Tokens that it takes at most, if its configuration says so.
    pub positions: Option<u64>,
    /// The script's text.
    pub script: String,
    path: PathBuf,
    checkpoints: Checkpoints,
    // Goes when this does.
    folder: tempfile::TempDir,
}

/// Folders of checkpoints, by the type that a card computes in.
#[derive(Debug, Deserialize)]
struct Checkpoints {
    bfloat16: PathBuf,
    float16: PathBuf,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Prepared {
    Refused {
        error: String,
        hint: String,
    },
    Ready {
        name: String,
        architecture: String,
        parameters: u64,
        left: u64,
        positions: Option<u64>,
        sequence: u64,
        script: PathBuf,
        checkpoints: Checkpoints,
    },
}

/// What a card takes, and the most that fits on it.
#[derive(Clone, Debug)]
pub struct CardSizes {
    /// The card.
    pub gpu: Gpu,
    /// What the sizes that were asked about need.
    pub needs: Needs,
    /// Whether they fit.
    pub fits: bool,
    /// The largest batch of sequences of that length; 0 if none fits.
    pub batch: u64,
    /// The longest sequence in a batch of that size; 0 if none fits.
    pub sequence: u64,
    /// Whether these two were run. Otherwise they lie on a curve through sizes that were.
    pub is_run: bool,
}

impl CardSizes {
    /// Whether they fit too closely to be sure.
    pub fn is_close(&self) -> bool {
        self.fits && is_close(self.needs.total, self.gpu.memory)
    }

    /// What the script itself took on this card has the last word.
    pub fn settle(&mut self, prediction: &Prediction, model: &Model) {
        self.fits = prediction.verdict == Verdict::Fits;
        if self.fits {
            let DeviceFacts { peak_allocated, peak_reserved, .. } = prediction.device;
            self.needs =
                Needs { allocated: peak_allocated, reserved: peak_reserved, total: prediction.total };
            (self.batch, self.sequence) = (self.batch.max(model.batch), self.sequence.max(model.sequence));
        } else {
            (self.batch, self.sequence) =
                (self.batch.min(model.batch - 1), self.sequence.min(model.sequence - 1));
        }
    }
}

/// A card to answer for.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The card.
    pub gpu: &'a Gpu,
    /// Whether the largest sizes are run, or taken from a curve.
    pub is_run: bool,
}

#[derive(Deserialize)]
struct Answer {
    allocated: u64,
    reserved: u64,
    other: u64,
    cards: Vec<AnswerOfCard>,
}

#[derive(Deserialize)]
struct AnswerOfCard {
    fits: bool,
    batch: u64,
    sequence: u64,
}

/// Whether it computes in bfloat16.
pub fn has_bfloat16(gpu: &Gpu) -> bool {
    let mut numbers = gpu.compute_capability.split('.').map(|word| word.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= AMPERE
}

impl Model {
    /// Reads the model's configuration, and writes its script.
    pub fn prepare(python: &Path, question: &Question) -> Result<Model, ModelError> {
        let folder = oomph_stage::folder::folder()?;
        let inside = folder.path();
        package::write_parts(inside, PACKAGE, &["models"]).map_err(StageError::from)?;
        package::write_parts(&inside.join(PACKAGE), "scripts", &["models/scripts"])
            .map_err(StageError::from)?;
        let asked = json!({
            "model": question.model,
            "way": question.way,
            "batch": question.batch,
            "sequence": question.sequence,
            "folder": inside,
        });
        let task = write(inside, "question.json", &asked)?;
        let start = format!(
            "import sys\nif sys.path[:1] == ['']: del sys.path[0]\nsys.path.insert(0, {:?}); from {PACKAGE}.prepare import main; del sys.path[0]; main()",
            inside.display().to_string()
        );
        let failed = |error: String| ModelError::Python { python: python.to_path_buf(), error };
        let output = Command::new(python)
            .args(["-B", "-c", &start])
            .arg(&task)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| failed(error.to_string()))?;
        let Ok(answer) = std::fs::read(inside.join("prepared.json")) else {
            let words = String::from_utf8_lossy(&output.stderr);
            return Err(failed(words.lines().last().unwrap_or("it failed").to_owned()));
        };
        match serde_json::from_slice(&answer)? {
            Prepared::Refused { error, hint } => Err(ModelError::Refused { why: error, hint }),
            Prepared::Ready {
                name,
                architecture,
                parameters,
                left,
                positions,
                sequence,
                script: path,
                checkpoints,
            } => Ok(Model {
                model: question.model.to_owned(),
                way: question.way,
                batch: question.batch,
                sequence,
                name,
                architecture,
                parameters,
                left,
                positions,
                script: std::fs::read_to_string(&path).map_err(|error| StageError::write(&path, error))?,
                path,
                checkpoints,
                folder,
            }),
        }
    }

    /// What was asked, in words.
    pub fn title(&self) -> String {
        format!("{}, {}, batch {}, sequence {}", self.model, self.way.name(), self.batch, self.sequence)
    }

    /// The script with its checkpoint for a card, for so many steps.
    pub fn program(&self, gpu: &Gpu, steps: u32) -> Program {
        let checkpoint = self.checkpoint(gpu).as_os_str().to_owned();
        let arguments: [OsString; 4] =
            ["--model".into(), checkpoint, "--steps".into(), steps.to_string().into()];
        Program {
            kind: Kind::Script,
            target: self.path.clone().into_os_string(),
            arguments: arguments.to_vec(),
        }
    }

    fn checkpoint(&self, gpu: &Gpu) -> &Path {
        if has_bfloat16(gpu) { &self.checkpoints.bfloat16 } else { &self.checkpoints.float16 }
    }

    /// What other sizes take on a card of this kind, and the most that fits on cards like it.
    pub fn sizes(
        &self,
        runner: &Runner,
        gpu: &Gpu,
        cards: &[Asked<'_>],
    ) -> Result<Vec<CardSizes>, ModelError> {
        let inside = self.folder.path();
        let answer = inside.join("sizes.json");
        let asked = json!({
            "script": self.path,
            "model": self.checkpoint(gpu),
            "batch": self.batch,
            "sequence": self.sequence,
            "positions": self.positions,
            "cards": cards.iter().map(|card| json!({
                "room": card.gpu.usable(),
                "safe": ((card.gpu.memory as f64 / (1.0 + SEEN)) as u64).saturating_sub(card.gpu.context),
                "search": card.is_run,
            })).collect::<Vec<_>>(),
            "answer": answer,
        });
        let task = write(inside, "sizes-question.json", &asked)?;
        let program = Program {
            kind: Kind::Script,
            target: inside.join(PACKAGE).join("sizes.py").into_os_string(),
            arguments: vec![task.into_os_string()],
        };
        let facts = runner.run_unrecorded(&program, &unlimited(gpu), Voice::Kept)?;
        if facts.status != Status::Finished {
            return Err(ModelError::Sizes(facts.error.unwrap_or_else(|| "it was stopped".to_owned())));
        }
        let bytes = std::fs::read(&answer).map_err(|error| StageError::write(&answer, error))?;
        let found: Answer = serde_json::from_slice(&bytes)?;
        let of_card = |(asked, one): (&Asked, AnswerOfCard)| CardSizes {
            gpu: asked.gpu.clone(),
            needs: Needs {
                allocated: found.allocated,
                reserved: found.reserved,
                total: asked.gpu.context + found.other + found.reserved,
            },
            fits: one.fits,
            batch: one.batch,
            sequence: one.sequence,
            is_run: asked.is_run,
        };
        Ok(cards.iter().zip(found.cards).map(of_card).collect())
    }
}

fn write(folder: &Path, name: &str, what: &serde_json::Value) -> Result<PathBuf, ModelError> {
    let path = folder.join(name);
    std::fs::write(&path, serde_json::to_vec(what)?).map_err(|error| StageError::write(&path, error))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::has_bfloat16;
    use oomph_gpus::Catalogue;

    #[test]
    fn cards_from_ampere_on_have_bfloat16() {
        let catalogue = Catalogue::built_in();
        let has = |name: &str| has_bfloat16(catalogue.find(name).unwrap());
        assert!(!has("t4") && !has("v100-16gb") && !has("gtx-1080"));
        assert!(has("a100-40gb") && has("rtx-3060-12gb") && has("b200") && has("rtx-5090"));
    }
}
