//! A model that is known by its name, and a usual way to train or run it: writes the script, and says which batches and sequences fit which
//! cards.
//!
//! The Python in `python/oomph/models` does both, in the user's interpreter: it reads the model's `config.json`, writes the script and a checkpoint
//! that takes no room, and takes steps with other sizes on the virtual GPU. Here is what is asked and what is answered. Whether the script fits a
//! card is for [`crate::prediction`] to say, of this script as of any other.

use crate::prediction::{Needs, Prediction, SEEN, Verdict, is_close, unlimited};
use crate::run::{Awaited, DeviceFacts, Kind, Program, RunError, Runner, Status, Voice};
use oomph_gpus::Gpu;
use oomph_stage::{StageError, package};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

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

    /// What its script imports, beside PyTorch and transformers.
    fn packages(self) -> &'static [&'static str] {
        match self {
            Way::Qlora => &["accelerate", "peft", "bitsandbytes"],
            Way::Lora => &["accelerate", "peft"],
            Way::Full | Way::Infer => &["accelerate"],
        }
    }
}

#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// A folder, its `config.json`, or a name of the Hub.
    pub model: &'a str,
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
    Refused { why: String, hint: String },
    /// Its configuration could not be read, and no script was written.
    #[error("the model could not be read: {0}")]
    NotRead(String),
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

/// A model that was named, before anything of it is known: where its script and its checkpoints will be.
///
/// The first process that asks for sizes reads the configuration and writes them, so that nothing waits for another that imports transformers just for that.
#[derive(Debug)]
pub struct Named {
    model: String,
    way: Way,
    batch: u64,
    sequence: Option<u64>,
    name: String,
    script: PathBuf,
    prepared: PathBuf,
    checkpoints: Checkpoints,
    // Goes when this does.
    folder: tempfile::TempDir,
}

/// A model, and the script for it.
#[derive(Debug)]
pub struct Model {
    /// As it was named.
    pub model: String,
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
    pub script: String,
}

/// Folders of checkpoints, by the type that a card computes in.
#[derive(Debug, Serialize)]
struct Checkpoints {
    bfloat16: PathBuf,
    float16: PathBuf,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Prepared {
    Refused { error: String, hint: String },
    Ready { architecture: String, parameters: u64, left: u64, positions: Option<u64>, sequence: u64 },
}

/// What a card takes, and the most that fits on it.
#[derive(Clone, Debug)]
pub struct CardSizes {
    pub gpu: Gpu,
    /// What the sizes that were asked about need.
    pub needs: Needs,
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

impl Named {
    /// Where everything will be.
    pub fn new(question: &Question) -> Result<Named, ModelError> {
        let folder = oomph_stage::folder::folder()?;
        let inside = folder.path();
        package::write_parts(inside, PACKAGE, &["models"]).map_err(StageError::from)?;
        package::write_parts(&inside.join(PACKAGE), "scripts", &["models/scripts"])
            .map_err(StageError::from)?;
        let name = short_name(question.model);
        let half = |name: &str| inside.join(name);
        Ok(Named {
            model: question.model.to_owned(),
            way: question.way,
            batch: question.batch,
            sequence: question.sequence,
            // Two parts of a path are shown with a line.
            script: inside.join("script").join(format!("{name}-{}.py", question.way.name())),
            prepared: inside.join("prepared.json"),
            checkpoints: Checkpoints { bfloat16: half("bfloat16"), float16: half("float16") },
            name,
            folder,
        })
    }

    /// The script with its checkpoint for a card, for so many steps.
    pub fn program(&self, gpu: &Gpu, steps: u32) -> Program {
        let checkpoint = self.checkpoint(gpu).as_os_str().to_owned();
        let arguments: [OsString; 4] =
            ["--model".into(), checkpoint, "--steps".into(), steps.to_string().into()];
        Program {
            kind: Kind::Script,
            target: self.script.clone().into_os_string(),
            arguments: arguments.to_vec(),
        }
    }

    /// For whoever runs the script: it may be started before there is one.
    pub fn awaited(&self) -> Awaited {
        // Not peft and bitsandbytes, whose imports ask for the card.
        let ahead = [
            "torch",
            "transformers",
            "transformers.models.auto.modeling_auto",
            "transformers.modeling_utils",
            "accelerate",
        ];
        Awaited {
            file: self.script.clone(),
            ahead: ahead.map(str::to_owned).to_vec(),
            process: std::process::id(),
        }
    }

    pub fn way(&self) -> Way {
        self.way
    }

    /// Whether the script is there.
    pub fn is_written(&self) -> bool {
        self.script.exists()
    }

    fn checkpoint(&self, gpu: &Gpu) -> &Path {
        if has_bfloat16(gpu) { &self.checkpoints.bfloat16 } else { &self.checkpoints.float16 }
    }

    /// What is known of it once its script is written; otherwise why there is none, if that was said.
    pub fn read(&self) -> Result<Option<Model>, ModelError> {
        let Ok(answer) = std::fs::read(&self.prepared) else { return Ok(None) };
        let script = std::fs::read_to_string(&self.script).ok();
        match serde_json::from_slice(&answer)? {
            Prepared::Refused { error, hint } => Err(ModelError::Refused { why: error, hint }),
            Prepared::Ready { architecture, parameters, left, positions, sequence } => {
                // Without a script, whoever was to write it says why.
                Ok(script.map(|script| Model {
                    model: self.model.clone(),
                    way: self.way,
                    batch: self.batch,
                    sequence,
                    name: self.name.clone(),
                    architecture,
                    parameters,
                    left,
                    positions,
                    script,
                }))
            }
        }
    }

    /// Reads the configuration and writes the script, if nobody did. Then: what other sizes take on a card of this kind, and the most that fits on cards
    /// like it.
    pub fn sizes(
        &self,
        runner: &Runner,
        gpu: &Gpu,
        cards: &[Asked<'_>],
    ) -> Result<Vec<CardSizes>, ModelError> {
        let inside = self.folder.path();
        // Two kinds of cards may be asked about at the same time.
        let answer = inside.join(format!("sizes-{}.json", gpu.name));
        let asked = json!({
            "prepared": self.prepared,
            "model": self.model,
            "way": self.way,
            "packages": self.way.packages(),
            "batch": self.batch,
            "sequence": self.sequence,
            "script": self.script,
            "checkpoints": self.checkpoints,
            "checkpoint": self.checkpoint(gpu),
            "cards": cards.iter().map(|card| json!({
                "room": card.gpu.usable(),
                "safe": ((card.gpu.memory as f64 / (1.0 + SEEN)) as u64).saturating_sub(card.gpu.context),
                "search": card.is_run,
            })).collect::<Vec<_>>(),
            "answer": answer,
        });
        let task = inside.join(format!("question-{}.json", gpu.name));
        std::fs::write(&task, serde_json::to_vec(&asked)?)
            .map_err(|error| StageError::write(&task, error))?;
        let program = Program {
            kind: Kind::Script,
            target: inside.join(PACKAGE).join("sizes.py").into_os_string(),
            arguments: vec![task.into_os_string()],
        };
        let facts = runner.run_unrecorded(&program, &unlimited(gpu), None, Voice::Kept)?;
        let is_ready = self.read()?.is_some();
        if facts.status != Status::Finished || !is_ready {
            let error = match (facts.error, runner.timeout()) {
                (Some(error), _) => error,
                (None, Some(seconds)) if facts.timed_out => {
                    format!("the time was up: it was stopped after {seconds} s")
                }
                _ => "it was stopped".to_owned(),
            };
            return Err(if is_ready { ModelError::Sizes(error) } else { ModelError::NotRead(error) });
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

impl Model {
    /// What was asked, in words.
    pub fn title(&self) -> String {
        format!("{}, {}, batch {}, sequence {}", self.model, self.way.name(), self.batch, self.sequence)
    }
}

/// For files: the last part of what was named, in letters that files have.
fn short_name(model: &str) -> String {
    let path = Path::new(model);
    let folder = if path.file_name().is_some_and(|name| name == "config.json") && path.is_file() {
        path.parent().unwrap_or(path)
    } else {
        path
    };
    // A folder may be named by its place alone.
    let whole = if folder.file_name().is_none() {
        std::path::absolute(Path::new(".").join(folder))
            .and_then(|path| path.canonicalize())
            .unwrap_or_default()
    } else {
        folder.to_owned()
    };
    let name = whole.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let mut kept = String::new();
    for letter in name.chars() {
        match letter {
            'a'..='z' | '0'..='9' | '.' | '_' | '-' => kept.push(letter),
            _ if kept.ends_with('-') => {}
            _ => kept.push('-'),
        }
    }
    let kept = kept.trim_matches(['.', '-']);
    if kept.is_empty() { "model".to_owned() } else { kept.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::{has_bfloat16, short_name};
    use oomph_gpus::Catalogue;

    #[test]
    fn cards_from_ampere_on_have_bfloat16() {
        let catalogue = Catalogue::built_in();
        let has = |name: &str| has_bfloat16(catalogue.find(name).unwrap());
        assert!(!has("t4") && !has("v100-16gb") && !has("gtx-1080"));
        assert!(has("a100-40gb") && has("rtx-3060-12gb") && has("b200") && has("rtx-5090"));
    }

    #[test]
    fn files_are_named_by_the_last_part() {
        assert_eq!(short_name("Qwen/Qwen2.5-7B"), "qwen2.5-7b");
        assert_eq!(short_name("models/my model (2)/"), "my-model-2");
        assert_eq!(short_name("..\u{e9}.."), "model");
        assert_eq!(short_name("."), short_name(&std::env::current_dir().unwrap().display().to_string()));
        assert_eq!(short_name("/"), "model");
        assert_eq!(short_name(""), short_name("."));
    }
}
